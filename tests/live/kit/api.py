"""An HTTP client for the API, plain enough to misbehave with."""

import contextlib
import http.client
import json
import socket
import ssl
import unittest

from kit.wait import PATIENCE

TIMEOUT = 20 * PATIENCE


def free_port():
    """A free port of this machine, below those that the kernel gives to outgoing connections."""
    for number in range(19110, 19200):
        with socket.socket() as peer, contextlib.suppress(OSError):
            peer.bind(("127.0.0.1", number))
            return number
    raise unittest.SkipTest("needs a free port between 19110 and 19199")


class Unix(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=TIMEOUT)
        self.path = str(path)

    def connect(self):
        self.sock = raw(self.path)


def raw(path):
    """A connection to a unix socket, to write anything to."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(TIMEOUT)
    peer.connect(str(path))
    return peer


def connection(where, tls=None):
    """To a socket's path, or to a port of this machine."""
    if not isinstance(where, int):
        return Unix(where)
    if tls is None:
        return http.client.HTTPConnection("127.0.0.1", where, timeout=TIMEOUT)
    return http.client.HTTPSConnection("localhost", where, timeout=TIMEOUT, context=ssl.create_default_context(cafile=tls))


def ask(where, path, method="GET", headers=None, tls=None):
    """Status, headers and body of one answer."""
    peer = connection(where, tls)
    try:
        peer.request(method, path, headers=headers or {})
        answer = peer.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        peer.close()


def get(where, path):
    """The JSON of an answer that must be good."""
    status, _, body = ask(where, path)
    assert status == 200, (path, status, body[:300])
    return json.loads(body)


class Stream:
    """Server-sent events, as they come."""

    def __init__(self, where):
        self.peer = connection(where)
        self.peer.request("GET", "/api/v1/stream")
        self.answer = self.peer.getresponse()
        assert self.answer.status == 200, self.answer.status

    def next(self):
        """The next event and its data."""
        event = None
        while True:
            line = self.answer.readline().decode()
            assert line, "the stream ended"
            if line.startswith("event: "):
                event = line[7:].strip()
            elif line.startswith("data: "):
                return event, json.loads(line[6:])

    def close(self):
        self.peer.close()
