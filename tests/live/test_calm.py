"""How calm CPU views are under load, and how soon they follow, beside the paper's rule: numbers, printed with -s, and the goals."""

import os

import pytest

from kit import need
from kit.calm import follow
from kit.wait import PATIENCE, eventually

CPUS = os.cpu_count()
STEADY = float(os.environ.get("ELBOWROOM_CALM_SECONDS", "20"))
DOWN, UP = 0.2, 1.0


@pytest.mark.parametrize("rule", ["waterfill", "paper"])
def test_a_view_is_calm_and_follows(new_agent, start, rule):
    need.idle_cpus(2)
    new_agent(config=f'[policy]\npolicy = "{rule}"\n').start()
    container, neighbour = start(), start()
    container.burn(CPUS)
    if rule == "waterfill":
        eventually(container.shows_what_it_has)
    numbers = follow(container, neighbour, CPUS, STEADY, settle=3 * max(1, PATIENCE / 4))
    print(f"\n{rule} on {CPUS} CPUs: {numbers}")
    if rule == "waterfill" and PATIENCE == 1:
        # Twice a minute, and one more where a minute is not waited for.
        assert numbers["changes_per_minute"] <= 2 * max(1, 60 / STEADY / 2), numbers
        assert 0 < numbers["down_s"] <= DOWN + 0.05 and 0 < numbers["up_s"] <= UP + 0.05, numbers
