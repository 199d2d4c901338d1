"""Page tables of processes and the kernel's flags of their pages, as far as the thesis' figures 5.5 to 5.8 need them. That is entries that
several processes have (the same frame at the same address), and entries whose page is on an active list (its section 2.4).

`elbowroom profile pages` compares faster, and knows which pages were used lately; which list a page is on it does not say. Root only:
/proc/PID/pagemap hides frames from other users."""

from pathlib import Path

PAGE = 4096
# Bits of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst), and numbers of flags of /proc/kpageflags.
PRESENT, FRAME = 1 << 63, (1 << 55) - 1
ACTIVE, THP = 6, 22


def entries(pid):
    """(page numbers, frames) of what a process has mapped."""
    import numpy as np

    pages, frames = [], []
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            first, last = (int(word, 16) // PAGE for word in line.split()[0].split("-"))
            if first >= 1 << 51:
                continue  # vsyscall
            pagemap.seek(first * 8)
            found = np.frombuffer(pagemap.read((last - first) * 8), dtype=np.uint64)
            there = np.flatnonzero(found & np.uint64(PRESENT))
            pages.append(there.astype(np.uint64) + np.uint64(first))
            frames.append(found[there] & np.uint64(FRAME))
    return np.concatenate(pages), np.concatenate(frames)


def flags(frames):
    """The kernel's flags of frames, each asked for once."""
    import numpy as np

    once, back = np.unique(frames, return_inverse=True)
    found = np.zeros(len(once), dtype=np.uint64)
    with open("/proc/kpageflags", "rb", buffering=0) as file:
        # Neighbours are read together.
        for run in np.split(np.arange(len(once)), np.flatnonzero(np.diff(once) > 64) + 1):
            if len(run):
                first, last = int(once[run[0]]), int(once[run[-1]])
                file.seek(first * 8)
                words = np.frombuffer(file.read((last - first + 1) * 8), dtype=np.uint64)
                found[run] = words[(once[run] - np.uint64(first)).astype(np.int64)]
    return found[back]


def tally(tables, flags_of):
    """Counts over the page tables of several processes: `tables` are their (page numbers, frames), `flags_of` gives frames' flags."""
    import numpy as np

    pages, frames = (np.concatenate([table[i] for table in tables]) for i in (0, 1))
    order = np.lexsort((frames, pages))
    pages, frames = pages[order], frames[order]
    same = (pages[1:] == pages[:-1]) & (frames[1:] == frames[:-1])
    groupable = np.zeros(len(pages), dtype=bool)
    groupable[1:] |= same
    groupable[:-1] |= same
    bits = flags_of(frames)
    active, huge = ((bits >> np.uint64(bit)) & np.uint64(1) == 1 for bit in (ACTIVE, THP))
    counts = {"entries": pages, "groupable": groupable, "active": active, "active_groupable": active & groupable, "huge": huge}
    return {name: int(len(found) if name == "entries" else found.sum()) for name, found in counts.items()}


def look(pids):
    """The tally of the processes' page tables now."""
    return tally([entries(pid) for pid in pids], flags)
