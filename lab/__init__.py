"""Experiments: what Elbowroom costs, how it adapts and what it survives. `python3 -m lab` lists them; lab/README.md explains them."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Containers, cgroups, agents, processes and waiting are the live tests'.
sys.path.insert(0, str(ROOT / "tests/live"))
