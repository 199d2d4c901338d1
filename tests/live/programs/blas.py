"""Says how many threads an OpenBLAS has, once for every line of its input. The argument is its file."""

import ctypes
import sys

blas = ctypes.CDLL(sys.argv[1])
for _ in sys.stdin:
    print(blas.openblas_get_num_threads(), flush=True)
