"""Arms: what divides the memory. See arms.toml."""

import tomllib
from pathlib import Path

from lab import ROOT

STANDARD = Path(__file__).with_name("arms.toml")
KEYS = {"title", "title_v2", "limits", "agent", "claims", "probes"}
# Engines' containers, with one word for an id, and others less deep than the lab's: they are no part of an experiment.
LEAVE_ALONE = 'containers.exclude = ["*", "*/*"]'
# CPU and effective memory are not the subject, so they are looked at in leisure.
COMMON = ['sense.period = "500ms"', 'disk.mode = "off"', 'memory.mode = "enforce"', LEAVE_ALONE]


def read(*files):
    """The arms of these files and the standard ones, by name; a later file's count."""
    arms = {}
    for file in (STANDARD, *files):
        for name, arm in tomllib.loads(Path(file).read_text()).items():
            unknown = set(arm) - KEYS
            if unknown or "title" not in arm:
                raise ValueError(f"{file}: [{name}] has {', '.join(sorted(unknown)) or 'no title'}: an arm has {', '.join(sorted(KEYS))}")
            arms[name] = arm
    return arms


def title(arm, cgroup_v2):
    return cgroup_v2 and arm.get("title_v2") or arm["title"]


def settings(arm, containers):
    """Lines of the agent's configuration; None where none runs. `containers` are dicts: id, right_mib, objective in transactions and in
    questions of the server, the file of its records, its server's socket."""
    if "agent" not in arm:
        return None
    lines = COMMON + arm["agent"]
    if arm.get("claims"):
        lines.append(f"claims = [{', '.join(map(claim, containers))}]")
    if "probes" in arm:
        lines.append(f"probes = [{', '.join(probe(arm['probes'], container) for container in containers)}]")
    return lines


def claim(container):
    return f"""{{ container = "{container['id']}", memory = {{ reservation = "{container['right_mib']}MiB" }} }}"""


def probe(kind, container):
    if kind == "said":
        return f"""{{ container = "{container['id']}", file = "{container['record']}" }}"""
    words = [f"{ROOT}/probes/mariadb", f"--objective={container['questions']}", f"--socket={container['socket']}"]
    return f"""{{ container = "{container['id']}", exec = [{', '.join(f'"{word}"' for word in words)}] }}"""
