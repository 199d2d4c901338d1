"""Labels that are given to containers that run."""

from kit.process import Process
from kit.wait import eventually

MIB = 1 << 20
KEY = "elbowroom.dev/"


def reserve(agent, container):
    """The memory that the governor reserves for a container; None before its first look at it."""
    return (agent.row(container)["memory"] or {}).get("reservation")


def given(agent, container, promised=(), asked=(), **more):
    """Gives labels; what the agent says of the container then."""
    labels = {"promised": {KEY + k: v for k, v in promised}, "asked": {KEY + k: v for k, v in asked}}
    return agent.ask({"label": {"container": container.name, "by": "a test", **labels, **more}})["container"]


def test_labels_are_given_and_taken_back(new_agent, start):
    agent = new_agent(containers='labels = "all"').start()
    container = start()
    agent.attached(container)
    before = agent.find(container)
    assert (before["labels"], before["labels_by"]) == ({}, None)
    row = given(agent, container, promised=[("priority", "weight=50 tier=1"), ("memory-reservation", "64MiB")], asked=[("priority", "weight=7")])
    assert row["labels"] == {"priority": {"weight": 7, "tier": 1}, "memory_reservation": 64 * MIB, "memory_promised": 64 * MIB}
    assert row["labels_by"] == "a test"
    eventually(lambda: reserve(agent, container) == 64 * MIB)
    text = agent.cli("show", container.name).stdout
    assert "priority weight=7 tier=1 class=throughput; memory-reservation 64MiB (given by a test)" in text
    assert agent.ask({"unlabel": container.name})["container"]["labels_by"] is None
    eventually(lambda: reserve(agent, container) == 0)


def test_a_run_has_labels_from_its_first_moment_and_with_an_agent_that_starts_later(agent, start, run_dir):
    container = start("--priority", "weight=7 tier=1", "--disk-reservation", "rbps=5MiB/s")
    expect = {"priority": {"weight": 7, "tier": 1}, "disk_reservation": {"rbps": "5242880B/s"}, "disk_promised": True}
    assert agent.row(container)["labels"] == expect
    assert agent.stop() == 0
    agent.start()
    eventually(lambda: agent.row(container)["labels"] == expect)
    container.close()
    assert not (run_dir / "labels").exists()


def test_a_killed_runs_labels_go_with_its_cgroups(agent, start, run_dir):
    container = start("--priority", "7")
    command = Process(container.pid)
    container.main.kill()
    container.main.wait()
    container.main.stdin.close()
    eventually(lambda: not command.alive())
    assert (run_dir / "labels" / container.name).exists()
    start("--cpus", "1")
    assert not (run_dir / "labels").exists()


def test_what_is_asked_for_is_heeded_as_the_configuration_says_and_what_is_promised_is_kept(agent, start):
    container = start()
    agent.attached(container)
    row = given(agent, container, promised=[("memory-reservation", "64MiB")], asked=[("priority", "9"), ("nothing", "x")])
    assert row["labels"]["memory_reservation"] == 64 * MIB
    assert "priority" not in row["labels"]
    assert len(row["labels"]["ignored"]) == 2, row["labels"]


def test_a_claim_counts_at_most_to_the_containers_own_limit(new_agent, start):
    agent = new_agent(containers='labels = "all"').start()
    bounded, unbounded = start("--memory", "96MiB"), start()
    for container, asked, promised, counts in [
        (bounded, "1TiB", None, 96), (bounded, "32MiB", None, 32), (unbounded, "1TiB", None, 0), (unbounded, "1TiB", "48MiB", 48),
        (unbounded, None, "64MiB", 64),
    ]:  # fmt: skip
        agent.attached(container)
        key = lambda size: [("memory-reservation", size)] if size else []
        given(agent, container, promised=key(promised), asked=key(asked))
        eventually(lambda: reserve(agent, container) == counts * MIB)


def test_views_and_governors_go_and_come_with_their_labels(agent, start):
    container = start("--memory", "256MiB")
    agent.attached(container)
    eventually(lambda: agent.row(container)["memory"])
    given(agent, container, promised=[("views", "off"), ("governors", "off")])
    eventually(lambda: not agent.row(container)["attached"])
    eventually(lambda: agent.row(container)["memory"] is None)
    given(agent, container, promised=[("views", "on")])
    agent.attached(container)
    eventually(lambda: container.mem_total() == 256 * MIB)
    eventually(lambda: agent.row(container)["memory"])


def test_labels_lapse_unless_they_are_given_again(agent, start):
    kept, lapses = start(), start()
    for container in (kept, lapses):
        agent.attached(container)
        assert given(agent, container, promised=[("priority", "50")], for_seconds=1)["labels_by"] == "a test"
    assert given(agent, kept, promised=[("priority", "50")])["labels_by"] == "a test"
    eventually(lambda: agent.row(lapses)["labels_by"] is None)
    assert agent.row(lapses)["labels"] == {}
    assert agent.row(kept)["labels_by"] == "a test"


def test_labels_of_another_program_stay_where_that_is_wanted(agent, start):
    container = start()
    agent.attached(container)
    weight = lambda row: (row["labels_by"], row["labels"]["priority"]["weight"])
    theirs = lambda weight, **more: given(agent, container, promised=[("priority", weight)], by="another", keep_others=True, **more)
    assert weight(theirs("7")) == ("another", 7)
    assert weight(theirs("8")) == ("another", 8), "its own do not stay"
    assert weight(given(agent, container, promised=[("priority", "50")])) == ("a test", 50)
    assert weight(theirs("7")) == weight(theirs("7", for_seconds=0)) == ("a test", 50)
    agent.ask({"unlabel": container.name})
    assert weight(theirs("7")) == ("another", 7)


def test_no_container_is_given_labels_by_mistake(agent, start):
    container = start()
    agent.attached(container)
    for request, why in [
        ({"label": {"container": "nobody", "by": "a test"}}, "no container"),
        ({"unlabel": "nobody"}, "no container"),
        ({"label": {"container": container.name}}, "missing field `by`"),
        ({"label": {"container": container.name, "by": "a test", "wanted": {}}}, "unknown field `wanted`"),
    ]:
        assert why in agent.ask(request)["error"], request
    assert agent.row(container)["labels_by"] is None
