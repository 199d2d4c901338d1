"""`listened.py SOCKET`: takes a seccomp listener for its own sysinfo(2), brings it to a keeper as a runtime does, makes the call, and says
its error number."""

import ctypes
import json
import os
import platform
import socket
import struct
import sys

SECCOMP, SYSINFO = {"x86_64": (317, 99), "aarch64": (277, 179)}[platform.machine()]
SET_MODE_FILTER, NEW_LISTENER = 1, 1 << 3
USER_NOTIF, ALLOW = 0x7FC00000, 0x7FFF0000
NO_NEW_PRIVS = 38
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06

libc = ctypes.CDLL(None, use_errno=True)


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def listener():
    words = [(LOAD, 0, 0, 0), (EQUAL, 0, 1, SYSINFO), (RETURN, 0, 0, USER_NOTIF), (RETURN, 0, 0, ALLOW)]
    program = Program(len(words), b"".join(struct.pack("=HBBI", *word) for word in words))
    assert libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    fd = libc.syscall(SECCOMP, SET_MODE_FILTER, NEW_LISTENER, ctypes.byref(program))
    assert fd >= 0, os.strerror(ctypes.get_errno())
    return fd


def main():
    fd = listener()
    state = {"fds": ["seccompFd"], "pid": os.getpid(), "state": {"id": "listened"}}
    with socket.socket(socket.AF_UNIX) as keeper:
        keeper.connect(sys.argv[1])
        socket.send_fds(keeper, [json.dumps(state).encode()], [fd])
    os.close(fd)
    failed = libc.syscall(SYSINFO, ctypes.create_string_buffer(256)) != 0
    print(ctypes.get_errno() if failed else 0)


main()
