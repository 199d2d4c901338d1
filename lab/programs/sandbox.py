"""A sandbox as agents' tools run in: it holds MIB megabytes of what it once loaded, and answers a request on the socket PATH now and then, for
which it goes over HOT megabytes of it. python3 sandbox.py PATH MIB HOT"""

import json
import os
import socket
import sys

path, mib, hot = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
held = [bytearray(os.urandom(4096) * 256) for _ in range(mib)]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(16)
print("ready", flush=True)
while True:
    peer, _ = listener.accept()
    with peer:
        request = json.loads(peer.recv(4096))
        total = 0
        for block in held[:hot]:
            for at in range(0, len(block), 4096):
                block[at] = (block[at] + 1) % 256
                total += block[at]
        peer.sendall(json.dumps({"id": request["id"], "total": total}).encode())
