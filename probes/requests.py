"""How a service is doing, in a few lines of Python: call `served()` for each request."""

import threading
import time

import elbowroom

_count = 0


def served():
    global _count
    _count += 1


def _tell(objective):
    while True:
        elbowroom.probe(served_total=_count, objective=objective)
        time.sleep(1)


def start(objective=None):
    threading.Thread(target=_tell, args=(objective,), daemon=True).start()
