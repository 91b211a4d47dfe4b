"""The runner's promises, with an engine that boots nothing."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import conftest_results as synth
import pytest
from airlab import runner, slots
from airlab.engines import Availability, EngineError, RawRun, Watch
from airlab.model import AirlabError, Cell, CellPlan

Act = Callable[[CellPlan, Path], None]


class FakeEngine:
    """Writes a console and runs what the test wants to happen in a guest."""

    name = "fake"
    parallel = True

    def __init__(self, act: Act = lambda _plan, _scratch: None, version: str = "1") -> None:
        self._act = act
        self._version = version
        self.ran: list[str] = []

    def availability(self) -> Availability:
        return Availability(True, "always")

    def provenance(self) -> dict[str, Any]:
        return {"engine": self.name, "version": self._version}

    def interactive(self, plan: CellPlan) -> int:
        raise NotImplementedError

    def run(self, plan: CellPlan, scratch: Path, watch: Watch, slot: int) -> RawRun:
        assert 0 <= slot < 2
        scratch.mkdir(parents=True)
        (scratch / "console.log").write_text("hello\n")
        watch.progress(1.0)
        self._act(plan, scratch)
        self.ran.append(plan.cell.slug)
        return RawRun(scratch / "out", scratch / "console.log", 1.0, 0.1, 0.1, 0.7, 4.0)


@pytest.fixture(autouse=True)
def _slots_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Other runs on this machine hold slots too."""
    monkeypatch.setattr(slots, "folder", lambda: tmp_path / "slots")


@pytest.fixture(autouse=True)
def _collects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def collect(_raw: Path, plan: CellPlan, out: Path) -> None:
        (out / "cell.json").write_text(json.dumps({"slug": plan.cell.slug}))

    monkeypatch.setattr(runner, "collect", collect)


def _plans(*labels: str) -> list[CellPlan]:
    base = synth.make_plan("reno", 1, 1e-6, 4.0)
    return [replace(base, cell=Cell(label, 1), cc=label) for label in labels]


def _campaign(plans: list[CellPlan], engine: FakeEngine, out: Path) -> runner.Campaign:
    return runner.Campaign(plans, engine, out, jobs=2)


def test_finished_cells_are_taken_over(tmp_path: Path) -> None:
    plans = _plans("a", "b", "c")
    first, second = FakeEngine(), FakeEngine()
    assert sorted(_campaign(plans[:2], first, tmp_path).run().run) == ["a_s1", "b_s1"]
    outcome = _campaign(plans, second, tmp_path).run()
    assert (sorted(outcome.reused), outcome.run) == (["a_s1", "b_s1"], ["c_s1"])
    assert second.ran == ["c_s1"]


def test_a_cell_of_another_engine_is_run_again_and_kept(tmp_path: Path) -> None:
    plans = _plans("a")
    _campaign(plans, FakeEngine(), tmp_path).run()
    outcome = _campaign(plans, FakeEngine(version="2"), tmp_path).run()
    assert outcome.run == ["a_s1"]
    assert (tmp_path / "superseded" / "a_s1.0" / "cell.json").is_file()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EngineError("panic", "the guest panicked", "Oops"), "panic"),
        (AirlabError("a table is damaged"), "result"),
        (ZeroDivisionError("a mistake of ours"), "internal error"),
    ],
)
def test_a_failed_cell_leaves_the_others(tmp_path: Path, error: Exception, kind: str) -> None:
    def act(plan: CellPlan, _scratch: Path) -> None:
        if plan.cell.cc == "b":
            raise error

    outcome = _campaign(_plans("a", "b", "c"), FakeEngine(act), tmp_path).run()
    assert sorted(outcome.run) == ["a_s1", "c_s1"]
    assert [(f.slug, f.kind) for f in outcome.failed] == [("b_s1", kind)]
    assert sorted(p.name for p in (tmp_path / "cells").iterdir()) == ["a_s1", "c_s1"]
    assert not any((tmp_path / "work").iterdir()), "a half-written result was left"


def test_the_console_of_a_failed_guest_is_kept(tmp_path: Path) -> None:
    def act(_plan: CellPlan, _scratch: Path) -> None:
        raise EngineError("hang", "silence")

    _campaign(_plans("a"), FakeEngine(act), tmp_path).run()
    assert (tmp_path / "failed" / "a_s1" / "console.log").read_text() == "hello\n"
    assert "hang: silence" in (tmp_path / "failed" / "a_s1" / "error.txt").read_text()


def test_any_failure_is_kept_until_the_cell_succeeds(tmp_path: Path) -> None:
    def act(_plan: CellPlan, _scratch: Path) -> None:
        raise ZeroDivisionError("a mistake of ours")

    _campaign(_plans("a"), FakeEngine(act), tmp_path).run()
    kept = runner.failure(tmp_path, "a_s1")
    assert kept is not None
    assert (kept.kind, kept.message) == ("internal error", "a mistake of ours")
    assert "ZeroDivisionError" in (tmp_path / "failed" / "a_s1" / "traceback.txt").read_text()
    _campaign(_plans("a"), FakeEngine(), tmp_path).run()
    assert runner.failure(tmp_path, "a_s1") is None


def test_slots_are_the_lowest_that_nobody_holds() -> None:
    with slots.take_slot() as first:
        with slots.take_slot() as second:
            assert (first, second) == (0, 1)
        with slots.take_slot() as again:
            assert again == 1
    with slots.take_slot() as freed:
        assert freed == 0


def test_without_a_place_for_locks_a_slot_is_still_had(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(slots, "folder", lambda: tmp_path / "no" / "such" / "folder")
    with slots.take_slot() as slot:
        assert slot > 0


def test_an_interruption_ends_the_guests_and_keeps_what_is_finished(tmp_path: Path) -> None:
    class Interrupted(FakeEngine):
        def run(self, plan: CellPlan, scratch: Path, watch: Watch, slot: int) -> RawRun:
            if plan.cell.cc == "a":
                return super().run(plan, scratch, watch, slot)
            scratch.mkdir(parents=True)
            assert watch.cancel.wait(30), "the guest was not told to end"
            raise EngineError("cancelled", "the run was cancelled")

    campaign = _campaign(_plans("a", "b", "c", "d"), Interrupted(), tmp_path)
    gather = campaign._gather

    def press_ctrl_c(futures: Any, outcome: runner.Outcome, progress: Any) -> None:
        done = [f for f, plan in futures.items() if plan.cell.cc == "a"]
        done[0].result(30)
        gather({done[0]: futures[done[0]]}, outcome, progress)
        raise KeyboardInterrupt

    campaign._gather = press_ctrl_c  # type: ignore[method-assign]
    outcome = campaign.run()
    assert outcome.interrupted
    assert outcome.run == ["a_s1"]
    assert [p.name for p in (tmp_path / "cells").iterdir()] == ["a_s1"]


def test_two_writers_are_refused(tmp_path: Path) -> None:
    with open(tmp_path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(AirlabError, match="another airlab is writing"):
            _campaign(_plans("a"), FakeEngine(), tmp_path).run()


def test_leftovers_of_a_killed_run_are_swept(tmp_path: Path) -> None:
    (tmp_path / "work" / "a_s1").mkdir(parents=True)
    (tmp_path / "work" / "a_s1" / "half").touch()
    outcome = _campaign(_plans("a"), FakeEngine(), tmp_path).run()
    assert outcome.run == ["a_s1"]
    assert not (tmp_path / "work" / "a_s1").exists()
