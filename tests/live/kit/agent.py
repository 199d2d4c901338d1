"""An agent under test: started, asked, killed, stopped, and looked after when it is gone."""

import contextlib
import json
import os
import signal
import socket
import subprocess

from kit.process import Process, comm, descendants, holders, mounts_of
from kit.wait import PATIENCE, eventually


class Agent:
    """One `elbowroom agent` with its own run directory."""

    def __init__(self, binary, run_dir, log, config=None, prefix=(), args=()):
        self.binary, self.run_dir, self.log = binary, run_dir, log
        self.config, self.prefix = config, prefix  # `prefix` is a command that starts another, such as unshare
        self.args = ["--state-dir", log.with_suffix(".state"), *args]
        self.supervisor = None  # the Popen, until its process is no longer ours
        self.processes = {}  # every process it was ever seen to have, by pid
        self.device = None  # of its views
        self.triggers = None  # of the files beside them that take PSI triggers
        self.pages = None  # the device of its view pages

    # ---- life ----

    def start(self, within=15):
        """Starts it, and waits until it answers."""
        words = [*self.prefix, self.binary, "agent", "--run-dir", self.run_dir, *self.args]
        if self.config is not None:
            file = self.log.with_suffix(".toml")
            file.write_text(self.config)
            words += ["--config", file]
        with open(self.log, "ab") as log:
            self.supervisor = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

        def ready():
            code = self.supervisor.poll()
            if code is not None:
                raise RuntimeError(f"the agent ended with {code}:\n{self.tail()}")
            return self.status()

        try:
            eventually(ready, within)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tail()}") from None
        # By way of the agent, which a prefix may have put into another mount namespace.
        root = f"/proc/{self.supervisor.pid}/root{self.run_dir}"
        mounts = ("private/views", "private/triggers", "pages")
        self.device, self.triggers, self.pages = (os.stat(f"{root}/{mount}").st_dev for mount in mounts)
        return self

    def stop(self):
        """Stops it as a service manager does; the exit status."""
        self.remember()
        if self.supervisor is None:
            return None
        first, self.supervisor = self.supervisor, None
        if first.poll() is None:
            first.terminate()
            return first.wait(30 * PATIENCE)
        # The supervisor that we started was killed. Its successor is no child of ours, so its exit status cannot be read.
        status = self.status()
        if status:
            Process(status["pids"]["supervisor"]).kill(signal.SIGTERM)
        return 0

    def destroy(self):
        """Kills all its processes at one moment, so that none can start another. None survives, in any state."""
        self.remember()

        def gone():
            alive = [Process(pid) for pid in holders(self.run_dir)] + list(self.processes.values())
            alive = [process for process in alive if process.alive()]
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for process in alive:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, number)
            return not alive

        eventually(gone)
        if self.supervisor is not None:
            self.supervisor.wait(10 * PATIENCE)
            self.supervisor = None

    def remember(self):
        """Takes note of the processes it has now, so that teardown can ask after them."""
        known = list((self.status() or {}).get("pids", {}).values())
        if self.supervisor is not None:
            known += [self.supervisor.pid, *descendants(self.supervisor.pid)]
        for pid in known:
            process = Process(pid)
            if pid > 0 and process.started is not None:
                self.processes.setdefault((pid, process.started), process)

    def leftovers(self):
        """Processes, mounts and sockets that are left although the agent was stopped; each as a line."""
        left = [f"process {process}" for process in self.processes.values() if process.alive()]
        for device in (self.device, self.triggers, self.pages):
            if device is not None:
                # The kernel may have given the number to another's file system since.
                left += [f"mount {line}" for line in mounts_of(device) if " elbowroom " in line]
        sockets = [self.run_dir / name for name in ("agent.sock", "feed.sock", "api.sock")]
        left += [f"socket {path}" for path in sockets if path.exists()]
        return left

    def tail(self):
        return "".join(self.log.read_text(errors="replace").splitlines(keepends=True)[-30:]) if self.log.exists() else ""

    # ---- questions ----

    def ask(self, request):
        """One request over the control socket, as the command line would send it; None where no agent listens."""
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(20 * PATIENCE)
            try:
                peer.connect(str(self.run_dir / "agent.sock"))
                peer.sendall(json.dumps(request).encode() + b"\n")
                answer = peer.makefile().readline()
            except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
                return None
        # An agent that died while it answered has not answered.
        return json.loads(answer) if answer.endswith("\n") else None

    def status(self):
        """Its processes and counters."""
        return (self.ask("status") or {}).get("status")

    def pid(self, part):
        """The number of one of its processes now; 0 while there is none, or no agent answers."""
        return ((self.status() or {}).get("pids") or {}).get(part, 0)

    def has_another(self, part, than):
        """Whether another process has the place of the one of this number."""
        return self.pid(part) not in (0, than)

    def standby(self):
        """The process that starts a supervisor where there is none; of an agent whose first supervisor lives."""

        def found():
            named = [pid for pid in descendants(self.supervisor.pid) if comm(pid) == "elbowroom-stand"]
            return named[0] if named else None

        return eventually(found)

    def cli(self, *words, timeout=30, **options):
        """One command line against this agent."""
        return subprocess.run(
            [self.binary, "--run-dir", self.run_dir, *words],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout * PATIENCE, **options,
        )

    def json(self, *words):
        """The same with `--format json`, which must succeed."""
        done = self.cli(*words, "--format", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def list(self):
        """The rows of `elbowroom list`, without the time that a command line takes to start."""
        answer = self.ask("list")
        assert answer, "no agent answers"
        assert "list" in answer, answer
        return answer["list"]

    def find(self, container):
        """The row of `list` for a container, or None."""
        return next((row for row in self.list() if row["path"] in container.cgroups), None)

    def row(self, container):
        """The row of `list` for a container, which must be there: to be waited for."""
        row = self.find(container)
        assert row, f"{container.name} is not listed"
        return row

    def attached(self, container):
        """Waits until a container has its view; its row."""

        def row():
            row = self.row(container)
            assert row["attached"], f"{container.name} is not attached: {row['attach_note']}"
            return row

        return eventually(row)

    def view(self, container):
        """The view of a container, as the agent reports it."""
        return self.row(container)["view"]
