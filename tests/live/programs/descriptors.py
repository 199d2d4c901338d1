"""`descriptors.py PLACE SOCKET...`: sends descriptors whose close blocks for as long as this program chooses.

PLACE is a directory with `fuse`, a node like /dev/fuse, and an empty directory `mnt`; or "" for none: then only TCP is sent. A SOCKET is
the path of a unix socket, or @NAME of an abstract one. Prints the outcome as one line of JSON, by socket, then stays until its input ends:
as long as it lives, nothing is answered. Kill it with its process group: a file that it has open itself is closed when the process that
serves it is gone."""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import struct
import sys

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
HEAD = struct.Struct("=IIQQIII4x")
LINGER_SECONDS = 3600
libc = ctypes.CDLL(None, use_errno=True)


def become_root_of_a_namespace():
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def attributes(node):
    mode = 0o040755 if node == 1 else 0o100644
    return struct.pack("=QQQQQQIIIIIIIIII", node, 4096, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def serve(device):
    """A file system in which every name is a file. It never answers FLUSH (25), RELEASE (18) and SETLK (32), which unlocks."""
    with contextlib.suppress(OSError):
        while True:
            _, opcode, unique, *_ = HEAD.unpack_from(os.read(device, 1 << 17))
            match opcode:
                case 2 | 18 | 25 | 32 | 36 | 42:
                    continue
                case 1:  # LOOKUP
                    error, body = 0, struct.pack("=QQQQII", 2, 0, 3600, 3600, 0, 0) + attributes(2)
                case 3:  # GETATTR
                    error, body = 0, struct.pack("=QII", 3600, 0, 0) + attributes(2)
                case 14:  # OPEN
                    error, body = 0, struct.pack("=QII", 0, 0, 0)
                case 26:  # INIT, with FUSE_FLOCK_LOCKS: a file that is released is unlocked first, and that is waited for
                    error, body = 0, struct.pack("=IIIIHHIIHH28x", 7, 31, 0, 1 << 10, 16, 16, 1 << 16, 1, 1, 0)
                case 33:  # SETLKW
                    error, body = 0, b""
                case _:
                    error, body = errno.ENOSYS, b""
            os.write(device, struct.pack("=IiQ", 16 + len(body), -error, unique) + body)


def fuse_file(place):
    """A file, locked, that cannot be closed while the process lives that serves it; and that process."""
    become_root_of_a_namespace()
    device = os.open(f"{place}/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40755,user_id=0,group_id=0"
    if libc.mount(b"hostile", f"{place}/mnt".encode(), b"fuse", 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    server = os.fork()
    if server == 0:
        serve(device)
        os._exit(0)
    os.close(device)
    file = os.open(f"{place}/mnt/x", os.O_RDONLY)
    fcntl.flock(file, fcntl.LOCK_EX)
    return file, server


def lingering():
    """A connection to a listener that never reads, with more to send than fits."""
    listener = socket.create_server(("127.0.0.1", 0))
    stream = socket.create_connection(listener.getsockname())
    stream.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            stream.send(bytes(1 << 16))
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_SECONDS))
    return stream, listener


def send(path, fd):
    address = "\0" + path[1:] if path.startswith("@") else path
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        peer = socket.socket(socket.AF_UNIX, kind)
        try:
            peer.connect(address)
            socket.send_fds(peer, [b'"status"\n' if kind == socket.SOCK_STREAM else b"served=1"], [fd])
            peers.append(peer)
            return "sent"
        except OSError as error:
            peer.close()
            if error.errno != errno.EPROTOTYPE:
                return errno.errorcode[error.errno]
    return "EPROTOTYPE"


peers, kept = [], []


def main():
    place, *paths = sys.argv[1:]
    said = {path: [] for path in paths}
    server = None
    if place:
        file, server = fuse_file(place)
        for path in paths:
            said[path].append(send(path, file))
    for path in paths:
        stream, listener = lingering()
        kept.append(listener)
        said[path].append(send(path, stream.fileno()))
        # Once it is sent, the receiver has the last descriptor, and its close waits. One that was not sent must not block us: no linger.
        if said[path][-1] == "sent":
            stream.close()
        else:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    print(json.dumps(said), flush=True)
    sys.stdin.read()
    if server:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
    os._exit(0)


main()
