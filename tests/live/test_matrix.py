"""What reaches which runtime, measured: the table in docs/guide/runtimes.md says the same, cell by cell.

*start*: a program that begins under another view says another number; *live*: a running program does. UPDATE_GOLDEN=1
writes what was measured into the guide. Runtimes that are not here keep their cells; ELBOWROOM_TEST_RUNTIMES=all has them fail."""

import os
import subprocess
import time

import pytest

from kit import cgroup, matrix
from kit.programs import Missing
from kit.wait import PATIENCE, eventually

CPUS = os.cpu_count()
FEWER = CPUS // 2
GIB = 1 << 30
BEFORE, AFTER = 3 * GIB, 2 * GIB
# Go looks once a second, and what changes at all has changed by then.
SETTLED, SLOWEST = 3.0, 15.0
ALL = os.environ.get("ELBOWROOM_TEST_RUNTIMES") == "all"


def runtimes(column):
    """The runtimes that are here, and why others are not."""
    here, missing = [], []
    for runtime in matrix.all_runtimes():
        if column in runtime.columns:
            try:
                here.append((runtime, runtime.command(column)))
            except Missing as error:
                missing.append(f"{runtime.name} needs {error}")
    assert not (ALL and missing), missing
    return here, missing


def compare(column, measured, missing):
    """Holds what was measured beside the table, and prints it."""
    cells = matrix.table()
    for (runtime, quantity), cell in measured.items():
        print(f"{column:7} {runtime:9} {quantity:26} {cell}")
    if os.environ.get("UPDATE_GOLDEN"):
        for key, cell in measured.items():
            cells.setdefault(key, {})[column] = cell
        order = [(runtime.name, quantity) for runtime in matrix.all_runtimes() for quantity in runtime.says]
        matrix.rewrite({key: cells.get(key, {}) for key in order})
    else:
        told = {key: cells[key][column] for key in measured}
        assert measured == told, f"docs/guide/runtimes.md, column {column}"
    if missing:
        print("not here:", "; ".join(missing))


def cell(start, live):
    return ", ".join(word for word, yes in (("start", start), ("live", live)) if yes) or "-"


@pytest.mark.parametrize("column", matrix.SURFACES)
def test_what_a_view_reaches_is_what_the_guide_says(new_agent, start, column):
    if CPUS < 2:
        pytest.skip("needs 2 CPUs: a view cannot shrink to less than one")
    here, missing = runtimes(column)
    # Shares of nearly the whole machine: the view is what the limits say, whatever else runs on this machine.
    agent = new_agent("[view_rules]\nhierarchy = false\n").start()
    container = start(*matrix.SURFACES[column], "--cpu-shares", "262144", "--memory", f"{BEFORE >> 20}MiB")
    path = agent.attached(container)["path"]
    eventually(lambda: agent.view(container)["cpus"] == CPUS)
    running = [(runtime, command, container.program(*command)) for runtime, command in here]
    before = {runtime.name: ask() for runtime, _, ask in running}

    cgroup.limit_memory(path, AFTER)
    cgroup.limit_cpus(path, FEWER)
    eventually(lambda: agent.view(container)["cpus"] == FEWER and agent.view(container)["memory"] == AFTER)
    changed = {(runtime.name, quantity): 0 for runtime, _, _ in running for quantity in runtime.says}
    told = matrix.table()
    # Numbers that must change, except CPUs where this machine has too few to see it.
    lively = [
        (runtime.name, quantity)
        for runtime, _, _ in running
        for quantity, place in runtime.says.items()
        if "live" in told.get((runtime.name, quantity), {}).get(column, "")
        and (before[runtime.name][place] > CPUS or FEWER >= runtime.least)
    ]
    begin = time.monotonic()
    # On a busy machine what changes may take longer; what does not is held as long as all.
    while time.monotonic() < begin + (SETTLED if all(changed[key] for key in lively) else SLOWEST) * PATIENCE:
        for runtime, _, ask in running:
            answer = ask()
            for quantity, place in runtime.says.items():
                changed[runtime.name, quantity] |= answer[place] != before[runtime.name][place]
        time.sleep(0.2)

    measured = {}
    for runtime, command, _ in running:
        try:
            answer = container.program(*command)()
        except AssertionError:
            measured |= {(runtime.name, quantity): "aborts" for quantity in runtime.says}
            continue
        for quantity, place in runtime.says.items():
            key = (runtime.name, quantity)
            was, now = before[runtime.name][place], answer[place]
            of_cpus = was <= CPUS
            if of_cpus and FEWER < runtime.least:
                continue  # this machine is too small to see it
            assert not of_cpus or now in (was, FEWER), f"{key}: {was} CPUs became {now}, of {FEWER}"
            measured[key] = cell(now != was, changed[key])
    seen = (container.online_file(), container.mem_total())
    assert seen == (FEWER, AFTER), "the view is not what it was: is another agent at work on this machine?"
    compare(column, measured, missing)


def test_what_words_reach_is_what_the_guide_says(binary, run_dir):
    here, missing = runtimes("words")
    limits = ["--cpus", str(FEWER), "--memory", f"{BEFORE >> 20}MiB"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GO", "NODE_", "MALLOC_", "PYTHON"))}
    words = [binary, "--run-dir", run_dir, "run", "--name", f"elbowroom-test-live-words-{os.getpid()}", "--env-only", *limits, "--", "env"]
    done = subprocess.run(words, env=plain, capture_output=True, text=True, check=True)
    told = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)

    def ask(command, environment):
        """Of the machine itself: only the words differ."""
        done = subprocess.run(command, env=environment, input="\n", capture_output=True, text=True, timeout=60 * PATIENCE)
        assert done.stdout, f"{command}: {done.stderr}"
        return [int(word) for word in done.stdout.split()]

    measured = {}
    for runtime, command in here:
        without, with_them = ask(command, plain), ask(command, told)
        for quantity, place in runtime.says.items():
            measured[runtime.name, quantity] = cell(with_them[place] != without[place], False)
    compare("words", measured, missing)
