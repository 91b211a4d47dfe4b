"""A grid in real guests: killed in the middle, resumed, and equal to runs outside of a grid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gridcheck import check
from guestlab import FLOW, Lab, path

pytestmark = pytest.mark.guest

SCENARIO = path("gridded", "1s", link='buffer = "30pkt"\nber = 1e-5', rest=FLOW)
GRID = """
schema = 1
name = "four"
title = "Four short cells"
[[block]]
scenario = "gridded.toml"
cc = ["j", "cubic"]
seeds = [1, 2]
"""


def test_a_killed_grid_goes_on_and_its_bits_are_those_of_any_run(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "gridded.toml").write_text(SCENARIO)
    (tmp_path / "four.toml").write_text(GRID)
    run = check(tmp_path / "four.toml", tmp_path / "out", cells=4, blows=["kill -9 of airlab"])
    found = json.loads((tmp_path / "out" / "gridded" / "cells" / "j_s2" / "cell.json").read_text())
    alone = lab.cell(SCENARIO, cc="j", seed=2)
    assert found["hashes"] == alone.cell["hashes"]
    assert len(set(run.hashes().values())) == 4
