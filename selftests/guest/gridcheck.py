"""Interrupts a grid in every way, resumes it, and compares it with an undisturbed run.

``make check-grid`` runs it on the 48 cells of testbed/grids/acceptance.toml, test_grid.py on four.
Cells that were run are counted by the store's log, which a run only ever appends to.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

REPO = Path(__file__).resolve().parents[2]
END_S = 20.0
"""Wall seconds in which all processes of a killed grid must be gone."""


Blow = Callable[[psutil.Process, list[psutil.Process]], None]


def interrupt(grid: psutil.Process, _jobs: list[psutil.Process]) -> None:
    """Ctrl-C on the terminal: SIGINT to the foreground process group."""
    os.killpg(grid.pid, signal.SIGINT)


def kill_top(grid: psutil.Process, _jobs: list[psutil.Process]) -> None:
    """kill -9 of airlab alone."""
    grid.kill()


def kill_groups(grid: psutil.Process, jobs: list[psutil.Process]) -> None:
    """kill -9 of airlab's process group and of Snakemake's, which has the jobs in it."""
    groups = {os.getpgid(p.pid) for p in jobs if not p.name().startswith("qemu")}
    for group in [*groups, grid.pid]:
        os.killpg(group, signal.SIGKILL)


BLOWS: dict[str, Blow] = {
    "Ctrl-C": interrupt,
    "kill -9 of airlab": kill_top,
    "kill -9 of the process groups": kill_groups,
}


@dataclass
class Run:
    """A grid with its own store; every start of it is the same command."""

    file: Path
    out: Path
    jobs: int

    @property
    def store(self) -> Path:
        """Where its cells are."""
        return self.out.parent / f"{self.out.name}-store"

    def command(self) -> list[str]:
        """What is typed."""
        return [
            *(sys.executable, "-m", "airlab", "grid", str(self.file), "--jobs", str(self.jobs)),
            *("--out", str(self.out), "--store", str(self.store), "--no-page"),
        ]

    def log(self) -> list[dict[str, Any]]:
        """Starts and ends of runs, so far."""
        file = self.store / "runs.jsonl"
        text = file.read_text() if file.is_file() else ""
        return [json.loads(line) for line in text.splitlines()]

    def done(self) -> list[str]:
        """Names of the cells that were run to their end, in that order."""
        return [line["cell"] for line in self.log() if line["event"] == "done"]

    def disturbed(self, blow: Blow, *, after: int, guests: int) -> int:
        """Start it, strike when so many cells are done and so many guests are up.

        Returns:
            airlab's exit status.

        Raises:
            AssertionError: it ended too early, or something of it lives on.
        """
        with open(self.out.with_suffix(".txt"), "a") as said:
            process = subprocess.Popen(
                self.command(), stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )
        grid = psutil.Process(process.pid)
        while len(self.done()) < after or len(_guests(grid)) < guests:
            assert process.poll() is None, f"it ended before it was interrupted: {said.name}"
            time.sleep(0.05)
        below = grid.children(recursive=True)
        blow(grid, below)
        status = process.wait()
        _, living = psutil.wait_procs(below, timeout=END_S)
        assert not living, f"these live on: {[' '.join(p.cmdline())[:80] for p in living]}"
        assert all(_is_whole(cell) for cell in (self.store / "cells").glob("*"))
        return status

    def finished(self) -> dict[str, Any]:
        """Run it to its end; returns its report."""
        with open(self.out.with_suffix(".txt"), "a") as said:
            subprocess.run(self.command(), stdout=said, stderr=subprocess.STDOUT, check=True)
        report: dict[str, Any] = json.loads((self.out / "grid.json").read_text())
        return report

    def hashes(self) -> dict[str, tuple[str, str]]:
        """Capture and trace hashes by the cells' names."""
        cells = {p.parent.name: json.loads(p.read_text()) for p in self._cells()}
        return {
            name: (cell["hashes"]["pcap_sha256"], cell["hashes"]["trace_sha256"])
            for name, cell in cells.items()
        }

    def _cells(self) -> list[Path]:
        return sorted((self.store / "cells").glob("*/cell.json"))


def _is_whole(cell: Path) -> bool:
    needed = ("cell.json", "identity.json", "times.json", "commands.sh", "console.log", "plan.json")
    return all((cell / name).stat().st_size > 0 for name in needed)


def _guests(grid: psutil.Process) -> list[psutil.Process]:
    """QEMU processes below airlab."""
    found = []
    for process in grid.children(recursive=True):
        try:
            if process.name().startswith("qemu"):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def check(
    file: Path,
    out: Path,
    *,
    cells: int,
    blows: Sequence[str],
    say: Callable[[str], None] = lambda _text: None,
) -> Run:
    """Interrupt a grid again and again, resume it, count.

    Raises:
        AssertionError: a promise is not kept.
    """
    run = Run(file, out, jobs=2)
    out.parent.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(blows, 1):
        after = cells * number // (len(blows) + 2)
        status = run.disturbed(BLOWS[name], after=after, guests=min(2, cells - after))
        expected = 130 if BLOWS[name] is interrupt else -signal.SIGKILL
        assert status == expected, f"{name}: status {status}, expected {expected}"
        say(f"{name}: {len(run.done())} of {cells} cells done, nothing lives on")
    before = len(run.done())
    report = run.finished()
    _judge(run, report, cells, before)
    again = run.finished()
    assert again["computed"]["cells"] == 0, again
    assert again["reused"]["cells"] == cells, again
    assert len(run.done()) == cells, "a finished cell was run again"
    events = Counter(line["event"] for line in run.log())
    say(f"resumed: {cells} cells; runs of cells by how they ended: {dict(events)}")
    return run


def _judge(run: Run, report: dict[str, Any], cells: int, before: int) -> None:
    done = Counter(run.done())
    assert len(done) == cells, f"{len(done)} cells were run, {cells} are in the grid"
    assert set(done.values()) == {1}, f"run twice: {[n for n, c in done.items() if c > 1]}"
    assert report["cells"] == cells
    assert report["computed"]["cells"] == cells - before, report
    assert report["computed"]["cells"] + report["reused"]["cells"] == cells, report
    assert report["failed"] == []
    assert report["missing"] == 0


def main() -> int:
    """Check the acceptance grid; says what was counted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder that is not there yet")
    args = parser.parse_args()
    file = REPO / "testbed" / "grids" / "acceptance.toml"
    out = args.out.resolve()
    if out.exists():
        parser.error(f"{out} is there already; remove it or give another --out")

    def say(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    two = check(file, out / "two", cells=48, blows=list(BLOWS), say=say)
    one = Run(file, out / "one", jobs=1)
    one.finished()
    same = one.hashes() == two.hashes()
    say(f"one job at a time and two: {len(one.hashes())} cells, equal hashes: {same}")
    return 0 if same and len(one.hashes()) == 48 else 1


if __name__ == "__main__":
    sys.exit(main())
