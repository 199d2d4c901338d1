"""Says how many threads a oneTBB would use at once, once for every line of its input. The argument is its file."""

import ctypes
import sys

# tbb::detail::r1::max_concurrency(tbb::detail::d1::task_arena_base const*); of no arena: of the default one.
max_concurrency = ctypes.CDLL(sys.argv[1])["_ZN3tbb6detail2r115max_concurrencyEPKNS0_2d115task_arena_baseE"]
for _ in sys.stdin:
    print(max_concurrency(None), flush=True)
