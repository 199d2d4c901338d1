"""Says for how many CPUs a jemalloc has made its arenas, four for each, once for every line of its input. The argument is its file."""

import ctypes
import sys

jemalloc = ctypes.CDLL(sys.argv[1])
for _ in sys.stdin:
    arenas, size = ctypes.c_uint(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_uint))
    assert jemalloc.mallctl(b"opt.narenas", ctypes.byref(arenas), ctypes.byref(size), None, 0) == 0
    print(max(1, arenas.value // 4), flush=True)
