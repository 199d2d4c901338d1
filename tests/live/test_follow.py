"""`elbowroom follow` and the actuators, beside the servers they are for: real ones, in containers whose limits change."""

import glob
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from kit import cgroup, matrix
from kit.process import Process, descendants
from kit.programs import as_user
from kit.wait import PATIENCE, always, eventually

REPOSITORY = Path(__file__).resolve().parents[2]
ACTUATORS = REPOSITORY / "actuators"
CPUS = os.cpu_count()
MIB = 1 << 20


@pytest.fixture
def agent(new_agent):
    """An agent whose views show what the limits say, whatever else runs on this machine."""
    return new_agent("[view_rules]\nhierarchy = false\n").start()


@pytest.fixture
def follow(agent, tmp_path):
    """Starts `elbowroom follow`: `follow(container, "mariadb", "--socket=...", part="25%")`. It must end with 0, unless a test kills it."""
    started = []

    def start(container, actuator, *arguments, **options):
        flags = [word for key, value in {"every": "1s", **options}.items() for word in (f"--{key}", value)]
        words = [agent.binary, "--run-dir", agent.run_dir, "follow", *flags, container.name, "--", ACTUATORS / actuator, *arguments]
        log = open(tmp_path / f"follow{len(started)}", "w+")
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        process.said = lambda: Path(log.name).read_text()
        started.append((process, log))
        return process

    yield start
    for process, log in started:
        if process.poll() is None:
            process.terminate()
        assert process.wait(30 * PATIENCE) in (0, -signal.SIGKILL), process.said()
        log.close()


def ends(process):
    process.terminate()
    assert process.wait(30 * PATIENCE) == 0, process.said()
    return process.said()


def need(name):
    for path in (shutil.which(name), matrix.UNPACKED / f"usr/bin/{name}", matrix.UNPACKED / f"usr/sbin/{name}"):
        if path and os.access(path, os.X_OK):
            # An unpacked program runs only where its libraries are installed.
            missing = [line.split()[0] for line in subprocess.run(["ldd", path], capture_output=True, text=True).stdout.splitlines() if "not found" in line]
            if missing:
                pytest.skip(f"needs {', '.join(missing)} for {path}: tools/setup runtimes")
            return path
    pytest.skip(f"needs {name}: tools/setup runtimes")


@pytest.fixture
def mariadb(agent, start, background, tmp_path):
    """A container with a MariaDB whose pool is 128 MiB, and a function that asks it for its size."""
    server, home = need("mariadbd"), tmp_path / "db"
    home.mkdir()
    container = start("--memory", "512MiB")
    words = f"{server} --no-defaults --user=root --datadir={home} --socket={home}/socket --skip-networking --skip-grant-tables"
    background(container, f"{words} --pid-file={home}/pid --innodb-buffer-pool-size=128M", tmp_path / "log")
    client = [need("mariadb"), "--no-defaults", f"--socket={home}/socket", "--batch", "--skip-column-names"]

    def ask(statement="SELECT @@GLOBAL.innodb_buffer_pool_size"):
        done = subprocess.run([*client, "-e", statement], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return int(done.stdout or 0)

    eventually(ask, within=60)
    return container, ask, f"--socket={home}/socket"


@pytest.fixture
def inside():
    """A process whose root is a directory: `inside(directory)` is its number."""
    pids = []

    def enter(directory):
        pid = os.fork()
        if pid == 0:
            os.chroot(directory)
            signal.pause()
        pids.append(pid)
        eventually(lambda: os.readlink(f"/proc/{pid}/root") == str(directory))
        return pid

    yield enter
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("program", [ACTUATORS / "mariadb", REPOSITORY / "probes/mariadb"], ids=["actuator", "probe"])
def test_the_server_in_the_container_is_asked_and_never_the_hosts(binary, mariadb, inside, tmp_path, program):
    _, _, socket = mariadb
    socket = Path(socket.partition("=")[2])
    words = [program, "get"] if program.parent == ACTUATORS else [program]

    def ask(pid):
        environment = {**os.environ, "ELBOWROOM": str(binary), "ELBOWROOM_PROBE_PID": str(pid), "MYSQL_UNIX_PORT": str(socket)}
        return subprocess.run(words, env=environment, capture_output=True, text=True)

    there, linked, empty = (tmp_path / name for name in ("there", "linked", "empty"))
    for root in (there, linked, empty):
        (root / "run/mysqld").mkdir(parents=True)
    os.link(socket, there / "run/mysqld/mysqld.sock")
    done = ask(inside(there))
    assert done.returncode == 0 and done.stdout.split()[0].rpartition("=")[2].isdigit(), done
    # A link in a container would be followed from here, to a server of the host's.
    (linked / "run/mysqld/mysqld.sock").symlink_to(socket)
    (linked / "var").symlink_to("/")
    for pid in (inside(linked), inside(empty), 0):
        done = ask(pid)
        assert done.returncode != 0 and done.stdout == "" and "no socket of a server in the container" in done.stderr, done


def test_a_buffer_pool_follows_and_is_its_users_again_at_the_end(agent, follow, mariadb):
    container, ask, socket = mariadb
    path = agent.attached(container)["path"]
    process = follow(container, "mariadb", "--no-defaults", socket, part="25%")
    always(lambda: ask() == 128 * MIB, during=1.5)
    cgroup.limit_memory(path, 256 * MIB)
    eventually(lambda: ask() == 64 * MIB, within=30)
    eventually(lambda: "128MiB -> 64MiB: 25% of 256MiB of effective memory" in process.said())
    cgroup.limit_memory(path, 1024 * MIB)
    eventually(lambda: ask() == 128 * MIB, within=30)
    always(lambda: ask() == 128 * MIB, during=3)  # a quarter would be 256 MiB; its user set 128
    cgroup.limit_memory(path, 256 * MIB)
    eventually(lambda: ask() == 64 * MIB, within=30)
    assert "134217728 again" in ends(process)
    assert ask() == 128 * MIB


def test_a_follower_that_is_killed_leaves_nothing_behind(agent, follow, mariadb):
    container, ask, socket = mariadb
    process = follow(container, "mariadb", "--no-defaults", socket, part="12%")
    eventually(lambda: ask() < 64 * MIB, within=30)
    guards = [Process(pid) for pid in descendants(process.pid)]
    process.kill()
    eventually(lambda: ask() == 128 * MIB, within=30)
    eventually(lambda: not any(guard.alive() for guard in guards))


def test_when_the_agent_is_gone_a_server_has_its_own_again(agent, follow, mariadb):
    container, ask, socket = mariadb
    follow(container, "mariadb", "--no-defaults", socket, part="12%")
    eventually(lambda: ask() < 64 * MIB, within=30)
    agent.stop()
    eventually(lambda: ask() == 128 * MIB, within=40)


@pytest.fixture
def redis(agent, start, background, tmp_path, monkeypatch):
    """A container with a Redis whose maxmemory is 100 MiB; its redis-cli with the socket."""
    server, client = need("redis-server"), need("redis-cli")
    monkeypatch.setenv("REDIS_CLI", str(client))
    container = start("--memory", "400MiB")
    socket = tmp_path / "redis"
    background(container, f"{server} --port 0 --unixsocket {socket} --unixsocketperm 777 --maxmemory 100mb --save '' --dir {tmp_path}", tmp_path / "log")

    def ask(*words):
        done = subprocess.run([client, "-s", socket, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    eventually(lambda: ask("PING") == ["PONG"], within=30)
    return container, ask, ("-s", str(socket))


def test_maxmemory_follows_and_another_users_word_stays(agent, follow, redis):
    container, ask, socket = redis
    path = agent.attached(container)["path"]
    most = lambda: int(ask("CONFIG", "GET", "maxmemory")[1])
    process = follow(container, "redis", *socket, part="25%")
    cgroup.limit_memory(path, 200 * MIB)
    eventually(lambda: most() == 50 * MIB and "-> 50MiB" in process.said(), within=30)
    ask("CONFIG", "SET", "maxmemory", "30mb")
    cgroup.limit_memory(path, 400 * MIB)
    eventually(lambda: "another program has set 30MiB" in process.said(), within=30)
    always(lambda: most() == 30 * MIB, during=3)
    ends(process)
    assert most() == 30 * MIB


def test_a_redis_without_a_limit_is_followed_only_up_to_a_limit(agent, follow, redis):
    container, ask, socket = redis
    ask("CONFIG", "SET", "maxmemory", "0")
    words = ["follow", container.name, "--", str(ACTUATORS / "redis"), *socket]
    refused = agent.cli(*words)
    assert refused.returncode == 2 and "--most" in refused.stderr and len(refused.stderr.splitlines()) == 1
    process = follow(container, "redis", *socket, part="10%", most="200MiB")
    eventually(lambda: ask("CONFIG", "GET", "maxmemory")[1] == str(40 * MIB), within=30)
    ends(process)
    assert ask("CONFIG", "GET", "maxmemory")[1] == "0"


def workers(pid_file):
    """How many children the process of a pid file has."""
    pid = pid_file.read_text().strip()
    return len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def one_cpu_less(agent, container):
    """The view of a container that saw all CPUs loses one."""
    if CPUS < 2:
        pytest.skip("needs 2 CPUs: a view cannot shrink to less than one")
    eventually(lambda: agent.view(container)["cpus"] == CPUS)
    cgroup.limit_cpus(agent.row(container)["path"], CPUS - 1)


def test_nginx_has_as_many_workers_as_there_are_cpus(agent, start, follow, background, tmp_path):
    program, pid_file, included = need("nginx"), tmp_path / "pid", tmp_path / "workers.conf"
    included.write_text(f"worker_processes {CPUS};\n")
    (tmp_path / "nginx.conf").write_text(f"include {included}; daemon off; pid {pid_file}; events {{}}\n")
    container = start("--cpu-shares", "262144")
    background(container, f"{program} -e {tmp_path}/errors -p {tmp_path} -c {tmp_path}/nginx.conf", tmp_path / "log")
    eventually(lambda: pid_file.exists() and workers(pid_file) == CPUS)
    process = follow(container, "nginx", str(included), str(pid_file))
    one_cpu_less(agent, container)
    eventually(lambda: workers(pid_file) == CPUS - 1, within=30)
    ends(process)
    eventually(lambda: workers(pid_file) == CPUS)
    assert included.read_text() == f"worker_processes {CPUS};\n"


@pytest.mark.parametrize("actuator", ["nginx", "php-fpm"])
def test_no_process_is_signalled_and_nothing_written_but_what_is_the_containers(agent, start, tmp_path, actuator):
    container = start()
    path = agent.attached(container)["path"]
    stranger = subprocess.Popen(["sleep", "1000"])
    line = "worker_processes 4;\n" if actuator == "nginx" else "pm = static\npm.max_children = 4\n"
    file, pid_file, elsewhere = tmp_path / "file", tmp_path / "pid", tmp_path / "link"
    file.write_text(line)
    elsewhere.symlink_to(file)
    environment = {**os.environ, "ELBOWROOM_CGROUP": path, "ELBOWROOM_PROBE_PID": "1"}

    def sets(where=file, **more):
        words = [ACTUATORS / actuator, "set", "2", where, pid_file]
        return subprocess.run(words, env={**environment, **more}, capture_output=True, text=True)

    try:
        for number, why in [("-1", "no number"), ("", "no number"), ("1 2", "no number"), (str(stranger.pid), "not in the container")]:
            pid_file.write_text(number)
            done = sets()
            assert done.returncode == 1 and why in done.stderr, done
        assert sets(elsewhere).returncode == 1
        assert file.read_text() == line
        assert stranger.poll() is None
        # With no process there any more, only the file is written.
        assert sets(ELBOWROOM_PROBE_PID="0").returncode == 0
        assert "2" in file.read_text() and stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def at_rest(actuator, *words):
    """What an actuator does that has no process to signal."""
    environment = {**os.environ, "ELBOWROOM_PROBE_PID": "0"}
    done = subprocess.run([ACTUATORS / actuator, *words, "/no/pid"], env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


POOL = "[www]\nlisten = /socket\npm = {}\npm.max_children = 8\n"
# Files that are not to be written: what is in them, and the words that say so.
WHOLE = {
    "nginx.conf": ("nginx", "user www;\nworker_processes 4;\nevents {}\n", "a file of its own"),
    "nginx.conf on a line": ("nginx", "worker_processes 4; events {}\n", "a file of its own"),
    "workers twice": ("nginx", "worker_processes 4;\nworker_processes 4;\n", "one line like"),
    "workers by themselves": ("nginx", "worker_processes auto;\n", "a file of its own"),
    "only a comment": ("nginx", "# worker_processes 4;\n", "one line like"),
    "two pools": ("php-fpm", POOL.format("static") + POOL.format("static").replace("www", "blog"), "a file of its own"),
    "a dynamic pool": ("php-fpm", POOL.format("dynamic") + "pm.max_spare_servers = 6\n", "pm = static"),
    "a pool of nobody knows what": ("php-fpm", "pm.max_children = 8\n", "pm = static"),
    "a dynamic pool that was static": ("php-fpm", POOL.format("static") + "  pm=dynamic\n", "once"),
    "a pool without a number": ("php-fpm", "[www]\npm = static\n", "no line like"),
}


@pytest.mark.parametrize("case", WHOLE)
def test_a_file_with_more_than_the_setting_in_it_is_refused_and_stays(tmp_path, case):
    actuator, text, said = WHOLE[case]
    file = tmp_path / "file"
    file.write_text(text)
    for words in (["get"], ["set", "2"]):
        status, printed, why = at_rest(actuator, *words, file)
        assert (status, printed, len(why.splitlines())) == (1, "", 1) and said in why, (words, why)
    assert file.read_text() == text


@pytest.mark.parametrize(
    "actuator, text",
    [
        ("nginx", "worker_processes 8;"),
        ("nginx", "# of elbowroom\n\n  worker_processes\t8 ; # not 9\n\n\n"),
        ("php-fpm", POOL.format("static")),
        ("php-fpm", POOL.format("ondemand ; \"x\"").replace("= 8", "=\"8\"; 8") + "; pm = dynamic\n;pm.max_children = 9\n\n"),
    ],
)
def test_of_a_file_only_the_number_changes(tmp_path, actuator, text):
    file = tmp_path / "file"
    file.write_text(text)
    assert at_rest(actuator, "get", file)[:2] == (0, "8 count\n")
    assert at_rest(actuator, "set", "12", file) == (0, "", "")
    assert file.read_text() == text.replace("8", "12", 1)
    assert at_rest(actuator, "get", file)[1] == "12 count\n"


def test_php_fpm_has_so_many_children_per_cpu(agent, start, follow, background, tmp_path):
    program, pid_file, pool = need("php-fpm8.2"), tmp_path / "pid", tmp_path / "pool.conf"
    before = f"[www]\nlisten = {tmp_path}/socket\npm = static\npm.max_children = {3 * CPUS}\nuser = nobody\n"
    pool.write_text(before)
    (tmp_path / "fpm.conf").write_text(f"[global]\npid = {pid_file}\nerror_log = {tmp_path}/errors\ninclude = {pool}\n")
    container = start("--cpu-shares", "262144")
    background(container, f"{program} -F -n -y {tmp_path}/fpm.conf", tmp_path / "log")
    eventually(lambda: pid_file.exists() and workers(pid_file) == 3 * CPUS)
    process = follow(container, "php-fpm", str(pool), str(pid_file), part="300%")
    one_cpu_less(agent, container)
    eventually(lambda: workers(pid_file) == 3 * (CPUS - 1), within=30)
    ends(process)
    eventually(lambda: workers(pid_file) == 3 * CPUS)
    assert pool.read_text() == before


def test_postgres_follows_in_what_a_reload_takes(agent, start, follow, background, tmp_path):
    programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    if not programs or not Path(programs[-1], "initdb").exists():
        pytest.skip("needs PostgreSQL: tools/setup runtimes")
    home = as_user("postgres", tmp_path / "db")
    user = "setpriv --reuid=postgres --regid=postgres --clear-groups"
    container = start("--cpu-shares", "262144")
    container.run(*user.split(), f"{programs[-1]}/initdb", "-D", f"{home}/data", "-A", "trust", timeout=120)
    with open(home / "data/postgresql.conf", "a") as configuration:
        configuration.write("work_mem = 5MB\n")  # with a unit, unlike what the server counts in
    background(container, f"{user} {programs[-1]}/postgres -D {home}/data -k {home} -h '' -c max_parallel_workers=8", tmp_path / "log")
    psql = [f"--host={home}", "--username=postgres", "--dbname=postgres"]

    def ask(setting="max_parallel_workers"):
        done = subprocess.run(["psql", *psql, "-qAtc", f"SHOW {setting}"], capture_output=True, text=True)
        return done.stdout.strip()

    eventually(ask, within=60)
    automatic = home / "data/postgresql.auto.conf"
    # Settings that need a restart, or that the command line or a role sets, which is stronger than a file.
    subprocess.run(["psql", *psql, "-qc", "ALTER ROLE postgres SET maintenance_work_mem = '32MB'"], check=True)
    before = automatic.read_text()
    for setting, said in [("shared_buffers", "restart"), ("max_parallel_workers", "command line"), ("maintenance_work_mem", "(user)")]:
        refused = agent.cli("follow", container.name, "--", str(ACTUATORS / "postgres"), setting, *psql)
        assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr
        assert setting in refused.stderr and said in refused.stderr
    # Where its user has written it down as well it is not written over: its value is what is effective.
    subprocess.run(["psql", *psql, "-qc", "ALTER SYSTEM SET max_parallel_workers = 6"], check=True)
    for value, status in [("2", 1), ("8", 0)]:
        done = subprocess.run([ACTUATORS / "postgres", "set", value, "max_parallel_workers", *psql], capture_output=True, text=True)
        assert done.returncode == status and ("command line" in done.stderr) == (status == 1), done.stderr
        assert ask() == "8" and "= '2'" not in automatic.read_text()
    subprocess.run(["psql", *psql, "-qc", "ALTER SYSTEM RESET max_parallel_workers"], check=True)
    assert automatic.read_text() == before
    process = follow(container, "postgres", "work_mem", *psql, part="1%", least="1MiB")
    eventually(lambda: agent.find(container))
    cgroup.limit_memory(agent.row(container)["path"], 256 * MIB)
    eventually(lambda: ask("work_mem") == "2621kB", within=30)
    ends(process)
    # A reload is on its way.
    eventually(lambda: ask("work_mem") == "5MB")
    assert automatic.read_text() == before


def test_what_a_server_does_not_heed_is_put_back_at_once_and_said_once(agent, start, follow, tmp_path):
    """An actuator that records what it is told, and always reports another value."""
    written = tmp_path / "written"
    actuator = tmp_path / "deaf"
    actuator.write_text(f"#!/bin/sh\ncase $1 in get) echo {128 * MIB} bytes ;; set) echo $2 >>{written} ;; esac\n")
    actuator.chmod(0o755)
    container = start("--memory", "512MiB")
    path = agent.attached(container)["path"]
    process = follow(container, actuator, part="25%")
    cgroup.limit_memory(path, 256 * MIB)
    eventually(lambda: written.exists() and written.read_text().split() == [str(64 * MIB), str(128 * MIB)], within=30)
    eventually(lambda: "keeps 128MiB where 64MiB is set" in process.said())
    always(lambda: len(written.read_text().split()) == 2, during=3)
    cgroup.limit_memory(path, 128 * MIB)
    eventually(lambda: written.read_text().split()[2:] == [str(32 * MIB), str(128 * MIB)], within=30)
    said = ends(process)
    assert said.count("keeps") == 1 and "->" not in said and "again" not in said.replace("set again", "")
    assert len(written.read_text().split()) == 4


# Arguments that are refused before anything is touched, and the words of the refusal.
BAD = {
    "no container": (["nobody", "--", "/bin/true"], 'no container "nobody"'),
    "no actuator": (["{}", "--", "/no/such/actuator"], "/no/such/actuator"),
    "an actuator that says nothing": (["{}", "--", "/bin/true"], "print a value and its unit"),
    "an actuator that fails": (["{}", "--", "/bin/false"], "/bin/false: ended with"),
    "no percentage": (["--part", "half", "{}", "--", "/bin/true"], "1% to 10000%"),
    "too often": (["--every", "10ms", "{}", "--", "/bin/echo", "4 count"], "--every"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_followed_is_refused(agent, start, tmp_path, case):
    container = start()
    words, said = BAD[case]
    actuator = tmp_path / "four"
    actuator.write_text("#!/bin/sh\necho 4 count\n")
    actuator.chmod(0o755)
    words = [word.replace("{}", container.name).replace("/bin/echo", str(actuator)) for word in words]
    done = agent.cli("follow", *words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert said in done.stderr
