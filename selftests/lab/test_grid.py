"""Grids: names of cells, the store, the list, and Snakemake with an engine that boots nothing."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import conftest_results as synth
import gridfake
import psutil
import pytest
from airlab import cellstore, cli, grid, joblist, runner, slots
from airlab.cellstore import CellStore
from airlab.engines import Watch
from airlab.grid import GridOptions
from airlab.model import AirlabError, Cell, CellPlan
from airlab.runner import Failure

TEXT = """schema = 1
name = "g"
title = "t"
[[block]]
scenario = "lossy"
cc = ["reno", "cubic"]
seeds = {seeds}
[block.set]
duration = "2s"
"events.0.at" = "1s"
"""


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder that says how the fake cells go; all engines of the test are fakes."""
    folder = tmp_path / "fake"
    folder.mkdir()
    monkeypatch.setenv("GRIDFAKE", str(folder))
    monkeypatch.setattr(slots, "folder", lambda: folder / "slots")
    for module in (joblist, grid):
        fake = gridfake.FakeEngine(folder)
        monkeypatch.setattr(module, "choose", lambda *_words, fake=fake, **_keys: fake)
    monkeypatch.setattr(runner, "collect", gridfake.collect)
    return folder


def _plan(label: str = "a", seed: int = 1) -> CellPlan:
    base = synth.make_plan("reno", 1, 1e-6, 4.0)
    return replace(base, cell=Cell(label, seed), cc=label)


def _events(root: Path) -> Counter[str]:
    return Counter(json.loads(line)["event"] for line in (root / "runs.jsonl").open())


# The store -----------------------------------------------------------------------------------


def test_a_name_is_all_that_decides_the_bits(tmp_path: Path, place: Path) -> None:
    store = CellStore(tmp_path, gridfake.FakeEngine(place))
    names = {store.id(_plan()), store.id(_plan("b")), store.id(_plan(seed=2))}
    names.add(store.id(replace(_plan(), files={"setup.sh": b"another\n"})))
    (place / "qemu").write_text("2")
    names.add(CellStore(tmp_path, gridfake.FakeEngine(place)).id(_plan()))
    assert len(names) == 5
    assert store.id(_plan()) in names


def test_a_finished_cell_is_not_run_again(tmp_path: Path, place: Path) -> None:
    store = CellStore(tmp_path, gridfake.FakeEngine(place))
    assert store.run_once(_plan(), Watch()) == "computed"
    assert store.run_once(_plan(), Watch()) == "reused"
    assert _events(tmp_path) == {"start": 1, "done": 1}
    assert list((tmp_path / "locks").iterdir()) == []


def test_a_failed_cell_is_not_retried_until_it_is_forgotten(tmp_path: Path, place: Path) -> None:
    store = CellStore(tmp_path, gridfake.FakeEngine(place))
    (place / "fail").write_text("a")
    for _ in range(2):
        failed = store.run_once(_plan(), Watch())
        assert isinstance(failed, Failure)
        assert (failed.kind, failed.message) == ("panic", "the guest panicked")
    assert _events(tmp_path) == {"start": 1, "failed": 1}
    (place / "fail").unlink()
    runner.forget_failure(tmp_path, store.id(_plan()))
    assert store.run_once(_plan(), Watch()) == "computed"


def test_who_comes_second_waits_and_takes_the_first_ones_cell(tmp_path: Path, place: Path) -> None:
    (place / "slow").touch()
    made: list[object] = []

    def run() -> None:
        made.append(CellStore(tmp_path, gridfake.FakeEngine(place)).run_once(_plan(), Watch()))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    (place / "slow").unlink()
    for thread in threads:
        thread.join(30)
    assert sorted(map(str, made)) == ["computed", "reused", "reused", "reused"]
    assert _events(tmp_path) == {"start": 1, "done": 1}


def test_sweeping_leaves_the_living_alone(tmp_path: Path) -> None:
    for name in ("dead", "alive"):
        (tmp_path / "work" / name).mkdir(parents=True)
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "dead").touch()
    with open(tmp_path / "locks" / "alive", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cellstore.sweep(tmp_path)
    assert [p.name for p in (tmp_path / "work").iterdir()] == ["alive"]


# The list ------------------------------------------------------------------------------------


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """A grid of two cells, prepared and not run."""
    grid.command_of(_grid(tmp_path, 1), GridOptions(out=tmp_path / "out"))
    return tmp_path / "out" / joblist.NAME


def _grid(folder: Path, seeds: int) -> Path:
    path = folder / f"g{seeds}.toml"
    path.write_text(TEXT.format(seeds=seeds))
    return path


def test_a_cell_is_run_from_the_list_alone(tmp_path: Path, listed: Path) -> None:
    jobs = joblist.read(listed)
    assert [entry.cell.slug for entry in jobs.entries] == ["reno_s1", "cubic_s1"]
    (tmp_path / "g1.toml").unlink()
    name = jobs.entries[0].id
    assert cli.main(["cell", str(listed), name]) == 0
    assert jobs.receipt(name).read_text() == "computed\n"
    linked = tmp_path / "out" / "lossy" / "cells" / "reno_s1"
    assert json.loads((linked / "cell.json").read_text())["slug"] == "reno_s1"
    assert cli.main(["cell", str(listed), name]) == 0
    assert jobs.receipt(name).read_text() == "reused\n"
    assert _events(jobs.store) == {"start": 1, "done": 1}


def test_another_machine_must_make_the_same_cell(
    listed: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "qemu").write_text("2")
    name = joblist.read(listed).entries[0].id
    assert cli.main(["cell", str(listed), name]) == 2
    said = capsys.readouterr().err
    assert "lossy/reno_s1 would be another cell here; different: qemu (list: 1, here: 2)" in said


@pytest.mark.parametrize(
    ("text", "says"),
    [("{}", "not a list of cells"), ("{", "not JSON"), (None, "no such file")],
)
def test_a_damaged_list(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "cells.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(AirlabError, match=says):
        joblist.read(path)


def test_a_cell_that_is_not_in_the_list(listed: Path) -> None:
    with pytest.raises(AirlabError, match="no cell 'beef'; the list names 2 cells"):
        joblist.run_listed(listed, "beef")


def test_cells_of_another_making_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out" / "lossy" / "cells" / "reno_s1").mkdir(parents=True)
    with pytest.raises(AirlabError, match="give another --out"):
        grid.command_of(_grid(tmp_path, 1), GridOptions(out=tmp_path / "out"))


def test_an_engine_in_real_time_runs_one_cell_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gridfake.FakeEngine, "parallel", False)
    command = grid.command_of(_grid(tmp_path, 1), GridOptions(jobs=8, out=tmp_path / "out"))
    assert "--jobs 1 " in command


def test_results_and_store_are_two_folders(tmp_path: Path) -> None:
    with pytest.raises(AirlabError, match="give --store"):
        grid.command_of(_grid(tmp_path, 1), GridOptions(out=tmp_path / "store"))


def test_only_grids_hand_words_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", "demo", "--", "--executor", "slurm"])
    assert "only `airlab grid` hands words on after --" in capsys.readouterr().err


def test_the_printed_command_has_the_words_after_the_dashes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _grid(tmp_path, 1)
    words = ["grid", str(path), "--jobs", "7", "--out", str(tmp_path / "out"), "--print-command"]
    assert cli.main([*words, "--", "--executor", "slurm"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("--executor slurm\n")
    assert "--jobs 7 " in said
    assert f"cells={tmp_path}/out/cells.json" in said


def test_the_published_schema_of_the_report_is_current() -> None:
    published = json.loads((grid.paths.TESTBED / "schema" / grid.REPORT_SCHEMA).read_text())
    assert published == grid.report_schema(), "run: python -m airlab.grid (in testbed/)"


# Snakemake -----------------------------------------------------------------------------------


@pytest.fixture
def faked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Snakemake's jobs run ``airlab cell`` with the fake engine."""
    stub = tmp_path / "python"
    here = Path(gridfake.__file__)
    stub.write_text(
        f'#!/bin/sh\n[ "$2" = airlab ] && shift 2 && exec {sys.executable} {here} "$@"\n'
        f'exec {sys.executable} "$@"\n'
    )
    stub.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub))
    yield stub


def _run(path: Path, out: Path, **more: bool) -> tuple[int, dict[str, object]]:
    store = out.parent / "store"
    options = GridOptions(jobs=2, out=out, store=store, page=False, **more)
    status = grid.run_grid(path, options)
    report: dict[str, object] = json.loads((out / "grid.json").read_text())
    return status, report


def _counts(report: dict[str, object]) -> tuple[int, ...]:
    made = grid.GridReport.model_validate(report)
    return made.cells, made.computed.cells, made.reused.cells, len(made.failed), made.missing


@pytest.mark.usefixtures("faked")
def test_a_grid_with_a_failing_cell_retried_extended_and_shared(
    tmp_path: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One test: each step needs what the former left, and Snakemake takes seconds to start."""
    (place / "fail").write_text("cubic")
    status, report = _run(_grid(tmp_path, 1), tmp_path / "a")
    said = capsys.readouterr()
    assert (status, _counts(report)) == (1, (2, 1, 0, 1, 0))
    assert "FAILED lossy/cubic_s1 (panic): the guest panicked" in said.out
    console = grid.GridReport.model_validate(report).failed[0].console
    assert Path(console).read_text() == "hello\n"

    (place / "fail").unlink()
    status, report = _run(_grid(tmp_path, 1), tmp_path / "a")
    assert (status, _counts(report)) == (1, (2, 0, 1, 1, 0)), (
        "a failed cell was run again by itself"
    )
    assert "failed before and not retried (--retry-failed)" in capsys.readouterr().out

    status, report = _run(_grid(tmp_path, 2), tmp_path / "b", retry_failed=True)
    assert (status, _counts(report)) == (0, (4, 3, 1, 0, 0))
    made = grid.GridReport.model_validate(report)
    assert (made.computed.virtual_s, made.computed.wall_s) == (6.0, 9.0)
    assert (made.reused.virtual_s, made.reused.wall_s) == (2.0, 3.0)
    summary = json.loads((tmp_path / "b" / "lossy" / "summary.json").read_text())
    assert [line["verdict"] for line in summary["cells"]] == ["ok"] * 4
    assert _events(tmp_path / "store") == {"start": 5, "done": 4, "failed": 1}


def test_killing_airlab_ends_all_below_it(tmp_path: Path, place: Path, faked: Path) -> None:
    (place / "slow").touch()
    code = (
        "import sys, pathlib; from airlab import grid; import gridfake;"
        "place = pathlib.Path(sys.argv[1]);"
        "grid.choose = lambda *_words, **_keys: gridfake.FakeEngine(place);"
        f"sys.executable = {str(faked)!r};"
        "grid.run_grid(pathlib.Path(sys.argv[2]), grid.GridOptions(out=pathlib.Path(sys.argv[3])))"
    )
    words = [psutil.Process().exe(), "-c", code, str(place), str(_grid(tmp_path, 1))]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([*words, str(tmp_path / "out")], env=env, start_new_session=True)
    root = tmp_path / "store"
    until = time.monotonic() + 240
    while not (root / "runs.jsonl").is_file() or _events(root)["start"] < 2:
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) >= 3, "Snakemake and two jobs"
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, living = psutil.wait_procs(below, timeout=20)
    assert living == []
    cellstore.sweep(root)
    assert list((root / "work").iterdir()) == []
