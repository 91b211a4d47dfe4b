"""``airlab cell`` with an engine that boots nothing, for grids that Snakemake really runs.

The test puts this in place of Python for Snakemake's jobs; how a cell goes is read from a file in
the folder that GRIDFAKE names: ``fail`` lists labels that fail, ``slow`` makes cells hang.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from airlab import cli, joblist, runner
from airlab.engines import Availability, EngineError, RawRun, Watch
from airlab.model import CellPlan


class FakeEngine:
    """Leaves a console and no raw output; collecting is faked too."""

    name = "fake"
    parallel = True

    def __init__(self, place: Path) -> None:
        self._place = place

    def availability(self) -> Availability:
        return Availability(True, "always")

    def provenance(self) -> dict[str, Any]:
        version = self._place / "qemu"
        qemu = version.read_text() if version.is_file() else "1"
        return {"engine": self.name, "kernel": "6.12", "qemu": qemu}

    def interactive(self, plan: CellPlan) -> int:
        raise NotImplementedError

    def run(self, plan: CellPlan, scratch: Path, watch: Watch, slot: int) -> RawRun:
        scratch.mkdir(parents=True)
        (scratch / "console.log").write_text("hello\n")
        while (self._place / "slow").is_file():
            time.sleep(0.05)
        fail = self._place / "fail"
        if fail.is_file() and plan.cell.cc in fail.read_text().split():
            raise EngineError("panic", "the guest panicked", "Oops")
        return RawRun(scratch / "out", scratch / "console.log", 3.0, 0.1, 0.1, 0.7, 4.0)


def collect(_raw: Path, plan: CellPlan, out: Path) -> None:
    """A cell as of a run that went well."""
    cell = plan.cell
    data = {
        "scenario": plan.scenario,
        "slug": cell.slug,
        "label": cell.cc,
        "seed": cell.seed,
        "params": cell.point,
        "plan_key": plan.key,
        "duration_s": plan.duration_us / 1e6,
        "flows": [],
        "stages": [],
        "metrics": {"goodput_bps": 1e6 * cell.seed},
        "audit": {"verdict": "ok", "checks": []},
        "hashes": {"pcap_sha256": "0", "pcap_packets": 1, "trace_sha256": None},
        "trace": None,
        "kernel": "6.12",
        "modules": [],
    }
    (out / "cell.json").write_text(json.dumps(data))


def main() -> int:
    place = Path(os.environ["GRIDFAKE"])
    joblist.choose = lambda *_words, **_keys: FakeEngine(place)
    runner.collect = collect
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
