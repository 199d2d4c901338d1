"""Reads the file of MEMORY_PRESSURE_WATCH into memory that never comes (userfaultfd(2)); meanwhile the kernel holds the lock of the FIFO.
Says `hanging` before. Started by tests, in containers."""

import ctypes
import fcntl
import mmap
import os
import struct

SYS_USERFAULTFD = 323  # x86-64
UFFDIO_API, UFFDIO_REGISTER, MODE_MISSING = 0xC018AA3F, 0xC020AA00, 1

libc = ctypes.CDLL(None, use_errno=True)
faults = libc.syscall(SYS_USERFAULTFD, os.O_CLOEXEC)
if faults < 0:
    raise OSError(ctypes.get_errno(), "userfaultfd")
fcntl.ioctl(faults, UFFDIO_API, bytearray(struct.pack("QQQ", 0xAA, 0, 0)))
memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
fcntl.ioctl(faults, UFFDIO_REGISTER, bytearray(struct.pack("QQQQ", address, mmap.PAGESIZE, MODE_MISSING, 0)))
fifo = os.open(os.environ["MEMORY_PRESSURE_WATCH"], os.O_RDWR)
os.write(fifo, b"\n")
print("hanging", flush=True)
libc.read(fifo, ctypes.c_void_p(address), mmap.PAGESIZE)
