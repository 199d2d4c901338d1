"""Which page-table entries could containers share, which are active, and which page faults are duplicated?

The thesis' chapter 5.2: four containers of one application on one CPU; page tables right after the last has started and in the steady
state, page faults of a window. Functions work through their input once, and have no steady state. With randomised addresses and without
(`setarch -R`): the thesis assumes that containers of one owner have one layout."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time

from lab import page_tables, profiling, programs, stats
from lab.tables import of_spread

LASTS = "50 min; 2 min with --quick; needs BPF"
NEEDS = ["cc", "fio", "apache2", "mariadbd", "sysbench", "taskset", "setarch"]
CONTAINERS = 4
# What a program is started by: on the first CPU, as many per core as the thesis has.
ADDRESSES = {"randomised": ["taskset", "-c", "0"], "fixed": ["taskset", "-c", "0", "setarch", "-R"]}
CLASSES = ["read", "cow", "shared", "anonymous", "swap", "write-protect"]
TALLY = ["entries", "groupable", "groupable_across", "elsewhere", "zero", "huge", "active", "active_groupable"]
FUNCTIONS = [f"{name}-{form}" for name in ("uri", "hash") for form in ("dense", "sparse")]
SERVICES = ["mariadb", "sqlite", "httpd", "graph", "fio"]
# Of results from before: functions with work of their own, that went on, and PageRank in memory of its own.
EARLIER = ["pagerank", "dense", "sparse"]
LOOKS = ["initial", "steady"]
ROWS = 20_000  # of a database of MariaDB's, some megabytes
LINE = b"http://host.example/path/%07d?key=value:%09d\n"
PORT = 19_500  # the first of those that web servers listen on
QUICK = {"runs": 1, "steady": 5, "faults": 5, "mib": 32}


def options(parser):
    parser.add_argument("--runs", type=int, default=3, help="how often everything is measured (3)")
    parser.add_argument("--steady", type=int, default=120, help="seconds from the first look to the steady state (120, as in the thesis)")
    parser.add_argument(
        "--faults", type=int, default=10, help="seconds in which faults are counted, starts included (10, as in the thesis)"
    )
    parser.add_argument("--mib", type=int, default=500, help="data of an application (500, as in the thesis)")
    parser.add_argument("--only", action="append", choices=SERVICES + FUNCTIONS, help="this application; repeatable")
    parser.add_argument("--addresses", choices=list(ADDRESSES), help="only so")
    parser.add_argument("--quick", action="store_true", help="one small run of each, to see whether it works")


# ---- record ----


def record(lab, options):
    if options.quick:
        vars(options).update(QUICK)
    given = prepare(lab, options)
    raw = lab.resumed or {"steady_s": options.steady, "faults_s": options.faults, "mib": options.mib, "applications": []}
    done = {(one["run"], one["name"], one["addresses"]) for one in raw["applications"]}
    for run in range(options.runs):
        for name in options.only or SERVICES + FUNCTIONS:
            for addresses in [options.addresses] if options.addresses else ADDRESSES:
                if (run, name, addresses) not in done:
                    print(f"run {run + 1} of {options.runs}: {name}, {addresses} addresses", flush=True)
                    raw["applications"].append(
                        {"run": run, "name": name, "addresses": addresses, **measure(lab, options, given, run, name, addresses)}
                    )
                    lab.keep(raw)
    return raw


def prepare(lab, options):
    """The file that is mapped, and databases."""
    directory, wanted = lab.scope.directory, options.only or SERVICES
    given = {"file": directory / "file", "sqlite": directory / "sqlite", "pages": directory / "pages", "mariadb": directory / "mariadb"}
    block = b"".join(LINE % (i, i * 7) for i in range((1 << 20) // len(LINE % (0, 0)) + 1))[: 1 << 20]
    with open(given["file"], "wb") as out:
        out.writelines([block] * options.mib)
    if "httpd" in wanted:
        given["pages"].mkdir()
        for i in range(options.mib):
            (given["pages"] / str(i)).write_bytes(block)
    if "sqlite" in wanted:
        subprocess.run(["/usr/bin/python3", sqlite(), "make", given["sqlite"], str(options.mib)], check=True)
    if "mariadb" in wanted:
        make_databases(lab, given["mariadb"])
    return given


def sqlite():
    return programs.ROOT / "lab/programs/mapped_database.py"


def make_databases(lab, directory):
    first, socket = directory / "0", lab.scope.directory / "prepare.sock"
    directory.mkdir()
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    install = ["mariadb-install-db", "--no-defaults", "--user=root", "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run([*install, "--skip-name-resolve", f"--datadir={first}"], check=True, **quiet)
    server = lab.start(*mariadbd(first, socket), **quiet)
    client = ["mariadb", "--no-defaults", "-uroot", f"-S{socket}"]
    wait_for_database(socket)
    subprocess.run([*client, "-e", "CREATE DATABASE sbtest"], check=True, **quiet)
    subprocess.run([*oltp(socket), "--create_secondary=off", "prepare"], check=True, **quiet)
    server.terminate()
    server.wait()
    for i in range(1, CONTAINERS):
        shutil.copytree(first, directory / str(i))


def mariadbd(data, socket):
    words = ["mariadbd", "--no-defaults", "--user=root", "--skip-networking", "--innodb-buffer-pool-size=32M"]
    return [*words, f"--datadir={data}", f"--socket={socket}", f"--pid-file={socket}.pid"]


def oltp(socket):
    return ["sysbench", "oltp_read_only", "--mysql-user=root", f"--mysql-socket={socket}", "--tables=1", f"--table-size={ROWS}"]


def wait_for_database(socket):
    words = ["mariadb", "--no-defaults", "-uroot", f"-S{socket}", "-e", "SELECT 1"]
    deadline = time.monotonic() + 60
    while subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True).returncode != 0:
        if time.monotonic() > deadline:
            raise RuntimeError(f"no database answers at {socket} within 60 s")
        time.sleep(0.1)


def measure(lab, options, given, run, name, addresses):
    # Cgroups first, so that faults are counted from the first one on.
    parent = f"{name}-{addresses}-{run}"
    config = lab.scope.directory / f"{parent}.toml"
    config.write_text(f'[containers]\ncgroups = ["/{lab.parent}/{parent}-*"]\n')
    with contextlib.ExitStack() as stack:
        counter = profiling.Faults(lab, "--config", config)
        containers = []
        for i in range(CONTAINERS):
            words, ready = command(lab, given, name, i)
            container = profiling.Program(lab, f"{parent}-{i}", [*ADDRESSES[addresses], *words], ready)
            containers.append(stack.enter_context(container))
        started = time.time()
        looks = start_looks(lab, options, name, containers)
        lists = [lru(containers)]
        for i in range(CONTAINERS):
            start_load(lab, stack, name, i, options)
        time.sleep(max(0, options.faults - (time.time() - started)))
        faults = summed(counter.stop(), parent)
        out, complaint = looks.communicate()
        if looks.returncode != 0:
            raise RuntimeError(f"the product refused: {complaint.strip()}")
        looks = json.loads(out)["answer"]["looks"]
        if name not in FUNCTIONS:
            lists.append(lru(containers))
    found = {when: tally(look) for when, look in zip(LOOKS, looks)}
    read = [(look["read_unix_ms"] / 1e3 - started) for look in looks]
    return {"read_s": read, **found, "lru": dict(zip(LOOKS, lists)), "faults": faults}


def start_looks(lab, options, name, containers):
    """Looks before anything is asked of them, and again when they have worked for a while. A function has no steady state."""
    after = [] if name in FUNCTIONS else ["--after", f"{options.steady}s"]
    words = [lab.options.elbowroom.resolve(), "profile", "pages", "--format", "json", "--active", "500ms", *after]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return lab.start(*words, *(container.cgroup for container in containers), text=True, **streams)


def lru(containers):
    """By the kernel's lists, of all processes of all containers."""
    pids = [int(word) for container in containers for word in container.group.read(("memory", "cgroup.procs"), "cgroup.procs").split()]
    return page_tables.look(pids)


def tally(look):
    """Sums of one look, in which a process of every container was compared."""
    compared = sum(container["processes"] > 0 for container in look["containers"])
    if compared != CONTAINERS:
        raise RuntimeError(f"page tables of {compared} containers were compared, not of {CONTAINERS}")
    return {name: look["total"].get(name, 0) for name in TALLY}


def summed(answer, parent):
    """Faults of all containers whose cgroup is one of ours."""
    ours = [container for container in answer["containers"] if parent in container["cgroup"]]
    if len(ours) != CONTAINERS:
        raise RuntimeError(f"faults of {len(ours)} containers were counted, not of {CONTAINERS}")
    total = lambda value: sum(value(container) or 0 for container in ours)
    return {
        "total": total(lambda one: one["total"]),
        "duplicates": total(lambda one: one["duplicates"]),
        "cpu_usec": total(lambda one: one["work"].get("cpu")),
        "instructions": total(lambda one: one["work"].get("instructions")),
        "classes": [total(lambda one, name=name: one["classes"].get(name)) for name in CLASSES],
        "tier": answer["tier"],
    }


def command(lab, given, name, i):
    """The command of the i-th container, and whether it says when it is ready."""
    directory = lab.scope.directory
    if name == "mariadb":
        return mariadbd(given["mariadb"] / str(i), directory / f"m{i}.sock"), False
    if name == "sqlite":
        return ["/usr/bin/python3", sqlite(), "ask", given["sqlite"]], True
    if name == "httpd":
        return ["apache2", "-DFOREGROUND", "-f", httpd(directory, given["pages"], i)], False
    if name == "fio":
        words = ["fio", "--name=x", "--ioengine=mmap", "--rw=randread", "--bs=4k", "--time_based", "--runtime=3600", "--thread"]
        return [
            *words,
            "--invalidate=0",
            "--rate_iops=20000",
            f"--filename={given['file']}",
            f"--size={given['file'].stat().st_size}",
        ], False
    return [programs.c("workloads"), *name.split("-"), given["file"]], True


def httpd(directory, pages, i):
    """A configuration with the workers that a container of it has by default."""
    root, modules = directory / f"httpd-{i}", "/usr/lib/apache2/modules"
    root.mkdir(exist_ok=True)
    lines = [f"LoadModule {name}_module {modules}/mod_{name}.so" for name in ("mpm_prefork", "authz_core", "dir")]
    lines += ["ServerName localhost", f"Listen 127.0.0.1:{PORT + i}", f"DocumentRoot {pages}", f"PidFile {root}/pid"]
    lines += [f"ErrorLog {root}/log", f"Mutex file:{root}", "StartServers 5", "User www-data", "Group www-data"]
    config = root / "httpd.conf"
    config.write_text("\n".join(lines) + "\n")
    return config


def start_load(lab, stack, name, i, options):
    """Starts the client of a server, which runs until the stack is left. From a web server it reads files one by one, as in the thesis."""
    socket = lab.scope.directory / f"m{i}.sock"
    ping = f"mariadb --no-defaults -uroot -S{socket} -e 'SELECT 1'"
    pages = f"http://127.0.0.1:{PORT + i}/[0-{options.mib - 1}]"
    scripts = {
        "mariadb": f"until {ping}; do sleep 0.2; done; exec {' '.join(oltp(socket))} --rate=20 --time=3600 run",
        "httpd": f"while :; do curl --silent --max-time 60 --limit-rate 20M -o /dev/null '{pages}'; done",
    }
    if name in scripts:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        child = lab.start("sh", "-c", scripts[name], start_new_session=True, **quiet)

        def end():
            # Its whole session: a shell has children.
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()

        stack.callback(end)


# ---- study ----


def percent(part, whole):
    return 100 * part / max(1, whole)


def study(raw):
    order = SERVICES + EARLIER + FUNCTIONS
    order = ["mariadb", "httpd", "fio", *EARLIER] + [name for name in order if name not in ("mariadb", "httpd", "fio", *EARLIER)]
    cases = []
    for name in order:
        for addresses in ADDRESSES:
            runs = [one for one in raw["applications"] if (one["name"], one["addresses"]) == (name, addresses)]
            if runs:
                looks = {when: of_look(runs, when) for when in LOOKS if when in runs[0]}
                cases.append({"name": name, "addresses": addresses, "runs": len(runs), "looks": looks, "faults": of_faults(runs)})
    tiers = sorted({one["faults"]["tier"] for one in raw["applications"]})
    read = [stats.spread(one["read_s"][i] for one in raw["applications"] if len(one.get("read_s") or []) > i) for i in (0, 1)]
    kept = {name: raw.get(name) for name in ("steady_s", "faults_s", "mib")}
    return {"cases": cases, "tiers": tiers, "read": read, "means": means(cases), **kept}


def of_look(runs, when):
    share = lambda name: stats.spread(percent(one[when].get(name, 0), one[when]["entries"]) for one in runs)
    parts = lambda one: one["entries"] - one["groupable"] - one["elsewhere"] - one["zero"]
    lists = [one["lru"][when] for one in runs if when in one.get("lru", {})]
    return {
        "entries": stats.spread(one[when]["entries"] for one in runs),
        **{name: share(name) for name in TALLY[1:]},
        "exclusive": stats.spread(percent(max(0, parts(one[when])), one[when]["entries"]) for one in runs),
        "others": stats.spread(
            percent(max(0, one[when].get("active", 0) - one[when].get("active_groupable", 0)), one[when]["entries"]) for one in runs
        ),
        "of active": stats.spread(percent(one[when].get("active_groupable", 0), one[when].get("active", 0)) for one in runs),
        **{
            f"lru {name}": stats.spread(percent(one[name], one["entries"]) for one in lists)
            for name in ("groupable", "active", "active_groupable")
        },
    }


def of_faults(runs):
    faults = [one["faults"] for one in runs]
    share = lambda value: stats.spread(percent(value(one), one["total"]) for one in faults)
    return {
        "total": stats.spread(one["total"] for one in faults),
        **{name: share(lambda one, i=i: one["classes"][i]) for i, name in enumerate(CLASSES)},
        "duplicated": share(lambda one: one["duplicates"]),
        "thesis": share(duplicated),
        "rate": stats.spread(one["total"] * 1e6 / max(1, one["cpu_usec"]) for one in faults),
        "counted": stats.spread(one["total"] * 1e6 / one["instructions"] for one in faults if one.get("instructions")),
    }


def duplicated(faults):
    """The most faults that can be duplicated as the thesis has it. A duplicated fault ends in a frame that another container has: a copy
    (CoW) is none, and neither is memory of the container's own. The product counts faults on pages that another container has faulted on,
    copies included."""
    return min(faults["duplicates"], faults["classes"][CLASSES.index("read")] + faults["classes"][CLASSES.index("shared")])


THESIS = {
    "groupable, initial": 53, "groupable, steady": 63.7, "active, initial": 52.4, "active, steady": 71.9,
    "active and groupable, steady": 59.86,
    "duplicated faults, at most": 35.74, "CoW": 1.306, "write-protect": 17.67,
}  # fmt: skip


def means(cases):
    """Means over applications with fixed addresses beside the thesis': {what: (by use, by the kernel's lists)}."""
    fixed = [case for case in cases if case["addresses"] == "fixed"]
    steady = [case for case in fixed if case["name"] not in FUNCTIONS + ["dense", "sparse"]]

    def mean(cases, value):
        values = [value(case).median for case in cases if value(case)]
        return sum(values) / len(values) if values else None

    def of(cases, when, name):
        return tuple(mean(cases, lambda case: case["looks"].get(when, {}).get(key)) for key in (name, f"lru {name}"))

    faults = lambda name: (mean(fixed, lambda case: case["faults"][name]), None)
    found = {
        "groupable, initial": of(fixed, "initial", "groupable"),
        "groupable, steady": of(steady, "steady", "groupable"),
        "active, initial": of(fixed, "initial", "active"),
        "active, steady": of(steady, "steady", "active"),
        "active and groupable, steady": of(steady, "steady", "active_groupable"),
        "duplicated faults, at most": faults("thesis"),
        "CoW": faults("cow"),
        "write-protect": faults("write-protect"),
    }
    return {"all": len(fixed), "steady": len(steady), "rows": found}


# ---- draw ----


def draw(studied, out):
    cases = studied["cases"]
    size = f" {studied['mib']} MiB of data each." if studied["mib"] else ""
    out.say(
        f"Page tables and page faults of four containers of each application, on one CPU.{size} {when(studied)}; active entries were "
        "used within "
        "half a second. Faults are those from the start of the first container until "
        f'{studied["faults_s"]} s after that of the last. "fixed" is without randomised addresses (`setarch -R`). '
        f"{min(case['runs'] for case in cases)} runs, applications in turn; median (smallest to largest), shares in percent of entries, "
        '"groupable of active" of active entries.'
    )
    columns = {name: name for name in ("entries", "groupable")} | {"across": "groupable_across"}
    columns |= {name: name for name in ("elsewhere",)} | {
        "zeros": "zero",
        "huge": "huge",
        "active": "active",
        "groupable of active": "of active",
    }
    lists = any(look["lru active"] for case in cases for look in case["looks"].values())
    if lists:
        columns |= {"active by the LRU": "lru active", "active and groupable by the LRU": "lru active_groupable"}
    rows = [
        [f"{label(case)}, {at}", *(of_spread(look[key]) for key in columns.values())]
        for case in cases
        for at, look in case["looks"].items()
    ]
    out.table(["application", *columns], rows)
    draw_entries(cases, out)
    head = ["application", "faults", *CLASSES, "duplicated", "per CPU second"]
    keys = ["total", *CLASSES, "duplicated", "rate"]
    rows = [[label(case), *(of_spread(case["faults"][key]) for key in keys)] for case in cases]
    out.table(head, rows)
    bars = {f"{case['name']} {case['addresses']}": [case["faults"][name].median for name in CLASSES] for case in cases}
    profiling.bars(out, "classes", "Page faults by class", "percent of faults", CLASSES, bars)
    draw_means(studied, out)
    out.say(f"Faults were followed by {' and '.join(studied['tiers'])}.")


def label(case):
    return f"{case['name']}, {case['addresses']}"


def when(studied):
    """When the looks were. Results from before came to the first look only when faults had been counted."""
    initial, steady = studied["read"]
    if initial and steady:
        return f'"initial" is {of_spread(initial)} s after the last one has started, "steady" {of_spread(steady)} s after'
    return (
        f'"initial" is when faults had been counted, {studied["faults_s"]} s after the last one has started, "steady" '
        f"{studied['steady_s']} s later"
    )


def draw_entries(cases, out):
    parts = ["groupable", "elsewhere", "exclusive", "zeros"]
    keys = ["groupable", "elsewhere", "exclusive", "zero"]
    bars = {
        f"{case['name']} {case['addresses']}, {at}": [look[key].median for key in keys]
        for case in cases
        for at, look in case["looks"].items()
    }
    profiling.bars(out, "entries", "Page-table entries of four containers", "percent of entries", parts, bars)
    steady = [(case, case["looks"]["steady"]) for case in cases if "steady" in case["looks"]]
    bars = {f"{case['name']} {case['addresses']}": [look["active_groupable"].median, look["others"].median] for case, look in steady}
    if bars:
        profiling.bars(out, "active", "Active entries in the steady state", "percent of entries", ["groupable", "others"], bars)


def draw_means(studied, out):
    means = studied["means"]
    out.say(
        f"Beside the thesis: means over applications with fixed addresses, percent of entries or of faults; {means['all']} applications, "
        f"{means['steady']} that are no functions in the steady state. A fault is duplicated for the thesis when it ends in a frame "
        "that another "
        "container has: of those that the product calls duplicated, at most as many as are reads and shared writes."
    )
    text = lambda value: "-" if value is None else f"{value:.1f}"
    rows = [[name, THESIS[name], *map(text, found)] for name, found in means["rows"].items()]
    out.table(["", "thesis", "here, by use", "here, by the kernel's lists"], rows)
    rates = {label(case): case["faults"]["counted"] for case in studied["cases"] if case["faults"]["counted"]}
    if rates:
        rows = [[name, of_spread(rate)] for name, rate in rates.items()]
        out.table(["faults per million instructions (thesis: 15.07, httpd 47.32)", "here"], rows)
