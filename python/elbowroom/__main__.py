"""python -m elbowroom: the view as JSON; with --watch, one line per change. Exit status 1 where there is none."""

import json
import sys

import elbowroom


def show(view):
    print(json.dumps({**view._asdict(), "online": sorted(view.online)}), flush=True)


def main(arguments):
    if arguments not in ([], ["--watch"]):
        print("usage: python -m elbowroom [--watch]", file=sys.stderr)
        return 2
    view = elbowroom.view()
    if view is None:
        print("no agent shows this process a view", file=sys.stderr)
        return 1
    if not arguments:
        show(view)
        return 0
    try:
        for view in elbowroom.changes():
            show(view)
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    return 0


sys.exit(main(sys.argv[1:]))
