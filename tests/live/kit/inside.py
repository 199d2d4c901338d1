"""The main process of a test container: does what the test asks for, one JSON request a line, one JSON answer a line.

It stays inside for the whole test, so what it reads is what a long-running program in the container would read."""

import json
import os
import signal
import subprocess
import sys

burners = []
held = {}  # open files by name
memory = []
programs = []


def run(words, timeout=60):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}


def read(path):
    with open(path) as file:
        return file.read()


def hold(path):
    """Opens a file for good; `reread` reads through the same descriptor."""
    held[path] = os.open(path, os.O_RDONLY)


def reread(path):
    return os.pread(held[path], 1 << 16, 0).decode()


def spawn(words):
    """Starts a program that answers every line of its input with a line; its number."""
    programs.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    return len(programs) - 1


def converse(number):
    """One answer of that program."""
    program = programs[number]
    program.stdin.write("\n")
    program.stdin.flush()
    line = program.stdout.readline()
    if not line:
        raise OSError(f"{program.args} ended with {program.wait()}")
    return line


def finish(number):
    """Ends the input of that program; what it said last."""
    return programs[number].communicate()[0]


def burn(threads):
    """Keeps `threads` CPUs busy."""
    for _ in range(threads):
        pid = os.fork()
        if pid == 0:
            os.closerange(3, 4096)  # the ends of other programs' pipes, which would never see their end
            while True:
                pass
        burners.append(pid)


def calm():
    for pid in burners:
        os.kill(pid, signal.SIGKILL)
    for pid in burners:
        os.waitpid(pid, 0)
    burners.clear()


def allocate(mib):
    """Takes memory and touches it; zero gives all of it back."""
    memory.clear()
    if mib:
        memory.append(bytearray(os.urandom(1 << 20)) * mib)


def main():
    actions = {action.__name__: action for action in (run, read, hold, reread, spawn, converse, finish, burn, calm, allocate)}
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = {"ok": actions[name](*arguments)}
        except (OSError, subprocess.SubprocessError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    calm()
    for program in programs:
        program.kill()
        program.wait()


main()
