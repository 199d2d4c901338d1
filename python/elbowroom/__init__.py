"""What this container can really use now, and how its program is doing.

    >>> import elbowroom
    >>> elbowroom.cpus()        # effective CPUs, whole; None where no agent shows a view
    3
    >>> elbowroom.memory()      # effective memory in bytes
    1073741824
    >>> for view in elbowroom.changes(timeout=1.0): ...
    >>> elbowroom.probe(served=812, objective=800)   # requests in the last second: what the agent cannot know
    True

The numbers come from the view page, one page of memory that the agent keeps (`shim/view.h` has its layout): no system call,
no file. The page is looked for when the module is first asked, and again at most once a second where there is none.
"""

from elbowroom._page import PATH, View, changes, cpus, memory, view, wait
from elbowroom._probe import PROBE, probe

__all__ = ["PATH", "PROBE", "View", "changes", "cpus", "memory", "probe", "view", "wait"]
