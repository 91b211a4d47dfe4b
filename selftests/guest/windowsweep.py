"""An exhaustive sweep of the receive window: one guest, a flow for each window, one by one.

What ``ccscope advise --sweep`` finds is compared with it.  A path is a scenario of
``testbed/scenarios``; its first flow is repeated over the same path, with its queue empty before
each.

``python selftests/guest/windowsweep.py NAME FIRST RATIO COUNT OUT.json`` makes the recorded sweeps
in ``selftests/ccscope/windows``.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from airlab.model import Cell, CellPlan
from airlab.plan import build_plan
from airlab.scenario import load_scenario, parse_scenario
from airlab.units import format_time
from ccscope.advise.lab import trial_of
from ccscope.advise.path import Path as NetPath
from ccscope.advise.path import measure
from ccscope.advise.search import Trial
from ccscope.explain.from_acks import gather
from ccscope.recording import Recording

SCENARIOS = Path(__file__).resolve().parents[2] / "testbed" / "scenarios"
GAP_US = 1_000_000
LARGE = 400_000


def grid(first: int, ratio: float, count: int) -> list[int]:
    """Values of SO_RCVBUF at equal ratios, and one that holds nothing back."""
    return [*(round(first * ratio**k) for k in range(count)), LARGE]


def plan_of(name: str, values: list[int]) -> CellPlan:
    """A cell with a flow for each value."""
    scenario = load_scenario(SCENARIOS / f"{name}.toml")
    length = scenario.duration
    raw: dict[str, Any] = copy.deepcopy(scenario.raw)
    flow = raw["flows"][0]
    raw["flows"] = []
    for i, value in enumerate(values):
        start = i * (length + GAP_US)
        times = {"start": format_time(start), "stop": format_time(start + length)}
        raw["flows"].append({**flow, **times, "recv_buffer": f"{value}B"})
    raw["duration"] = format_time(len(values) * (length + GAP_US))
    return build_plan(parse_scenario(raw, name), Cell(scenario.cc[0], 1))


def paths_of(cell: Path, values: list[int]) -> list[NetPath]:
    """What each flow saw of the path."""
    recording = Recording.open(cell)
    labels = [f"f{i}" for i in range(1, len(values) + 1)]
    return [measure(recording, label, gather(recording, label)) for label in labels]


def trials_of(cell: Path, values: list[int]) -> list[Trial]:
    """What each window gave."""
    found = zip(values, paths_of(cell, values), strict=True)
    return [trial_of(value, [path]) for value, path in found]


def _main(name: str, first: str, ratio: str, count: str, out: str) -> None:
    from airlab import kernels
    from airlab.image import ensure_image
    from guestlab import Lab, engine_for

    values = grid(int(first), float(ratio), int(count))
    shared = Path(out).with_suffix("")
    shared.mkdir(parents=True, exist_ok=True)
    lab = Lab(engine_for(ensure_image(kernels.find(None))), shared, 0)
    view = lab.run(plan_of(name, values))
    paths = paths_of(view.folder / "cell", values)
    trials = [dataclasses.asdict(trial_of(v, [p])) for v, p in zip(values, paths, strict=True)]
    path = dataclasses.asdict(paths[-1])
    text = json.dumps({"scenario": name, "path": path, "trials": trials}, indent=1)
    Path(out).write_text(text + "\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
