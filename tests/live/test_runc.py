"""Containers of no engine: runc alone, in cgroups that the configuration names."""

import pytest

MIB = 1 << 20
PLAIN = 'cgroups = ["/elbowroom-test-live-runc*"]'


@pytest.mark.parametrize("wrapped", [False, True], ids=["by itself", "by the wrapper runtime"])
def test_a_container_of_a_named_cgroup_is_given_its_view(new_agent, runc, runtime, wrapped):
    agent = new_agent(containers=PLAIN).start()
    if wrapped:
        runc.runtime = str(runtime)
    container = runc.run("elbowroom-test-runc", "/elbowroom-test-live-runc", cpu=(100_000, 100_000), memory=256 * MIB)
    row = agent.attached(container)
    assert row["engine"] == "plain"
    assert container.online() == 1
    assert container.mem_total() == 256 * MIB


def test_a_container_of_no_named_cgroup_is_let_alone(agent, runc):
    container = runc.run("elbowroom-test-runc", "/elbowroom-test-live-other", memory=256 * MIB)
    assert agent.find(container) is None
    assert container.mem_total() > 256 * MIB
