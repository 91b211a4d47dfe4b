"""``airlab grid``: a grid file as a Snakemake workflow, and what came of it.

Snakemake schedules, here or on a cluster; each of its jobs is ``airlab cell``, which runs one cell
into the store that grids share.  Snakemake's lock on its folder is not used: a killed process
would leave it behind.  Ours end with their process: one for the result folder, one for each cell.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from airlab import cellstore, joblist, paths, results
from airlab.campaign import Request, finish_result, manifest_of, write_scenario
from airlab.cellstore import CellStore
from airlab.engines import Engine
from airlab.engines.choose import choose
from airlab.gridfile import Grid, GridEngine, load_grid, requests
from airlab.joblist import Entry, JobList
from airlab.model import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, AirlabError
from airlab.plan import build_plan
from airlab.progress import Progress, clock
from airlab.runner import Failure, failure, forget_failure, only_writer

SNAKEFILE = Path(__file__).resolve().parent / "assets" / "Snakefile"
LOG = "snakemake.log"
REPORT = "grid.json"
REPORT_SCHEMA = "grid-report.schema.json"

_LOOK_S = 0.5
_GRACE_S = 60.0
"""How long Snakemake may take to end its jobs after Ctrl-C; a cluster's have to be cancelled."""


@dataclass(frozen=True)
class GridOptions:
    """What the command line says about a grid beside its file."""

    jobs: int = 2
    kernel: str | None = None
    engine: GridEngine | None = None
    out: Path | None = None
    store: Path | None = None
    retry_failed: bool = False
    page: bool = True
    snakemake: Sequence[str] = ()


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Share(_Record):
    """Cells and what they cost: virtual seconds of experiment, wall seconds of guests."""

    cells: int
    virtual_s: float
    wall_s: float


class FailedCell(_Record):
    """A cell without a result."""

    id: str
    block: str
    slug: str
    kind: str
    message: str
    console: str
    """The file that has the kernel's log."""
    now: bool
    """Whether it was tried by this command; otherwise it failed before."""


class BlockReport(_Record):
    """The results of a block."""

    name: str
    result: str
    cells: int
    finished: int
    status: Literal["ok", "failed", "incomplete"]
    """failed: a cell was vetoed or a claim does not hold; incomplete: cells are missing."""


class GridReport(_Record):
    """What an ``airlab grid`` did (``grid.json``)."""

    schema_version: Literal[1] = 1
    grid: str
    title: str
    file: str
    store: str
    cells: int
    """Distinct cells of the grid."""
    computed: Share
    """Run by this command."""
    reused: Share
    """Finished before, or by another process meanwhile."""
    failed: list[FailedCell]
    missing: int
    """Cells that were not run, because of an interruption or of trouble with Snakemake."""
    elapsed_s: float
    interrupted: bool
    blocks: list[BlockReport]


@dataclass
class _Prepared:
    """A grid with its list written and its result folders laid out."""

    grid: Grid
    out: Path
    jobs: JobList
    manifests: Mapping[str, Mapping[str, Any]]
    at_once: int
    finished: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    @property
    def waiting(self) -> list[Entry]:
        """Cells that Snakemake will run."""
        known = self.finished | self.failed
        return [entry for entry in self.jobs.distinct() if entry.id not in known]


def run_grid(path: Path, options: GridOptions) -> int:
    """Run what is not finished, sum up, report; returns the exit status.

    Raises:
        AirlabError: the file is wrong, another process runs this grid, or Snakemake broke.
    """
    start = time.monotonic()
    grid, wanted, out = _load(path, options)
    out.mkdir(parents=True, exist_ok=True)
    with only_writer(out):
        prepared = _prepare(grid, wanted, out, options)
        _say_plan(prepared)
        ended = _run_snakemake(prepared, options) if prepared.waiting else _Ended(0, False)
        blocks = [
            _finish_block(prepared, name, page=options.page and not ended.interrupted)
            for name in wanted
        ]
        report = _report(prepared, path, blocks, time.monotonic() - start, ended)
        results.write_json(out / REPORT, report.model_dump())
    print(text(report, out))
    if report.missing and not ended.interrupted:
        raise AirlabError(_snakemake_trouble(out, ended.status, report.missing))
    return _status(report)


def command_of(path: Path, options: GridOptions) -> str:
    """Prepare a grid and return what one would type to run it with Snakemake alone.

    Raises:
        AirlabError: the file is wrong, or another process runs this grid.
    """
    grid, wanted, out = _load(path, options)
    out.mkdir(parents=True, exist_ok=True)
    with only_writer(out):
        prepared = _prepare(grid, wanted, out, options)
    return shlex.join(_command(prepared, options))


def _load(path: Path, options: GridOptions) -> tuple[Grid, dict[str, Request], Path]:
    grid = load_grid(path)
    out = (options.out or Path("results") / grid.name).resolve()
    return grid, requests(grid, path, out, kernel=options.kernel, engine=options.engine), out


# Before --------------------------------------------------------------------------------------


def _prepare(
    grid: Grid, wanted: Mapping[str, Request], out: Path, options: GridOptions
) -> _Prepared:
    """Compile the cells, name them, lay out the result folders, look what is finished."""
    root = (options.store or out.parent / "store").resolve()
    if root == out:
        raise AirlabError(f"{out} cannot be both the result folder and the store; give --store")
    engines: dict[str | None, Engine] = {}
    blocks: dict[str, dict[str, Any]] = {}
    manifests: dict[str, dict[str, Any]] = {}
    entries: list[Entry] = []
    for name, request in wanted.items():
        scenario = request.scenario
        plans = [build_plan(scenario, cell) for cell in request.cells]
        if request.kernel not in engines:
            engines[request.kernel] = choose(
                request.engine, plans=plans, kernel=request.kernel, fast=scenario.allow_fast
            )
        store = CellStore(root, engines[request.kernel])
        for plan in plans:
            entries.append(Entry(store.id(plan), name, plan.cell, plan.duration_us / 1e6))
        provenance = store.provenance
        blocks[name] = {
            "as_run": scenario.raw,
            "source": scenario.source,
            "provenance": provenance,
        }
        manifests[name] = manifest_of(request, provenance)
        write_scenario(request)
    jobs = JobList(out / joblist.NAME, root, blocks, tuple(entries))
    jobs.write()
    _link_cells(out, jobs)
    cellstore.sweep(root)
    parallel = all(engine.parallel for engine in engines.values())
    prepared = _Prepared(grid, out, jobs, manifests, options.jobs if parallel else 1)
    _take_stock(prepared, retry=options.retry_failed)
    return prepared


def _link_cells(out: Path, jobs: JobList) -> None:
    """Make each block a result folder whose cells are links into the store.

    Raises:
        AirlabError: there are cells of another making in the way.
    """
    for block in jobs.blocks:
        folder = out / block / "cells"
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            if not old.is_symlink():
                raise AirlabError(f"{old} is not of a grid; give another --out, or move it away")
            old.unlink()
    for entry in jobs.entries:
        link = out / entry.block / "cells" / entry.cell.slug
        link.symlink_to(os.path.relpath(cellstore.folder(jobs.store, entry.id), link.parent))


def _take_stock(prepared: _Prepared, *, retry: bool) -> None:
    """Sort the cells into finished, failed and waiting; finished ones get their receipts."""
    jobs = prepared.jobs
    shutil.rmtree(jobs.receipts, ignore_errors=True)
    for entry in jobs.distinct():
        if cellstore.is_there(jobs.store, entry.id):
            jobs.leave_receipt(entry.id, computed=False)
            prepared.finished.add(entry.id)
        elif retry:
            forget_failure(jobs.store, entry.id)
        elif failure(jobs.store, entry.id):
            prepared.failed.add(entry.id)


def _say_plan(prepared: _Prepared) -> None:
    total = sum(1 for _ in prepared.jobs.distinct())
    failed = f", {len(prepared.failed)} failed before (--retry-failed)" if prepared.failed else ""
    print(
        f"airlab: grid {prepared.grid.name}: {total} cells, {len(prepared.finished)} finished"
        f"{failed}, {len(prepared.waiting)} to run; log {prepared.out / LOG}",
        flush=True,
    )


# Snakemake -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ended:
    """How Snakemake ended."""

    status: int
    interrupted: bool


def _command(prepared: _Prepared, options: GridOptions) -> list[str]:
    return [
        *(sys.executable, "-m", "snakemake"),
        *("--snakefile", str(SNAKEFILE)),
        *("--directory", str(prepared.out)),
        *("--config", f"cells={prepared.jobs.path}"),
        *("--jobs", str(prepared.at_once)),
        # A failed cell leaves the others; no receipt is ever half of anything.
        *("--keep-going", "--rerun-incomplete", "--nolock"),
        *("--rerun-triggers", "mtime"),
        *("--scheduler", "greedy", "--nocolor"),
        *options.snakemake,
    ]


def _run_snakemake(prepared: _Prepared, options: GridOptions) -> _Ended:
    """Run Snakemake to its end and show how the cells get on.

    It dies with us, and its jobs with it.  It has a process group of its own, so that one
    Ctrl-C reaches it and its jobs once, whoever sent it.
    """
    length = sum(entry.virtual_s for entry in prepared.waiting) / len(prepared.waiting)
    progress = Progress(len(prepared.waiting), length)
    with open(prepared.out / LOG, "a") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *_command(prepared, options)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            _attend(process, prepared, progress)
        except KeyboardInterrupt:
            progress.note("interrupted: ending the jobs; finished cells are kept")
            _end(process)
            return _Ended(process.returncode, True)
        finally:
            if process.poll() is None:
                _kill(process)
    return _Ended(process.returncode, False)


def _attend(process: subprocess.Popen[bytes], prepared: _Prepared, progress: Progress) -> None:
    jobs = prepared.jobs
    pending = {entry.id: f"{entry.block}/{entry.cell.slug}" for entry in prepared.waiting}
    running = True
    while running:
        try:
            process.wait(_LOOK_S)
            running = False
        except subprocess.TimeoutExpired:
            progress.tick()
        for name in {mark.name for mark in jobs.receipts.glob("*")} & pending.keys():
            progress.finish(pending.pop(name))
        marks = (jobs.store / "failed").glob("*/error.txt")
        for name in {mark.parent.name for mark in marks} & pending.keys():
            slug = pending.pop(name)
            failed = failure(jobs.store, name)
            progress.note(f"FAILED {slug}: {failed.message if failed else 'tried again'}")
            progress.finish(slug, failed=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Pass Ctrl-C on; a second one, or too long a wait, ends the patience."""
    try:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(_GRACE_S)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _snakemake_trouble(out: Path, status: int, missing: int) -> str:
    tail = "\n".join((out / LOG).read_text(errors="replace").splitlines()[-15:])
    return (
        f"Snakemake ended with status {status} and left {missing} cells; its log is {out / LOG}, "
        f"which ends with:\n{tail}\nThe same command goes on"
    )


# After ---------------------------------------------------------------------------------------


def _finish_block(prepared: _Prepared, name: str, *, page: bool) -> BlockReport:
    """Table, claims, plots and page of a block, as of any result."""
    jobs = prepared.jobs
    folder = prepared.out / name
    mine = [entry for entry in jobs.entries if entry.block == name]
    finished = sum(cellstore.is_there(jobs.store, entry.id) for entry in mine)
    status: Literal["ok", "failed", "incomplete"] = "incomplete"
    if finished:
        print(f"\n{prepared.grid.name}/{name}")
        good = finish_result(folder, page=page, manifest=prepared.manifests[name]) == EXIT_OK
        status = "failed" if not good else "ok" if finished == len(mine) else "incomplete"
    return BlockReport(
        name=name, result=str(folder), cells=len(mine), finished=finished, status=status
    )


def _report(
    prepared: _Prepared,
    path: Path,
    blocks: list[BlockReport],
    elapsed_s: float,
    ended: _Ended,
) -> GridReport:
    jobs = prepared.jobs
    entries = list(jobs.distinct())
    computed: list[Entry] = []
    reused: list[Entry] = []
    failed: list[FailedCell] = []
    for entry in entries:
        mark = failure(jobs.store, entry.id)
        if cellstore.is_there(jobs.store, entry.id):
            (computed if _was_computed(prepared, entry) else reused).append(entry)
        elif mark is not None:
            failed.append(_failed_cell(prepared, entry, mark))
    return GridReport(
        grid=prepared.grid.name,
        title=prepared.grid.title,
        file=str(path),
        store=str(jobs.store),
        cells=len(entries),
        computed=_share(jobs, computed),
        reused=_share(jobs, reused),
        failed=failed,
        missing=len(entries) - len(computed) - len(reused) - len(failed),
        elapsed_s=elapsed_s,
        interrupted=ended.interrupted,
        blocks=blocks,
    )


def _was_computed(prepared: _Prepared, entry: Entry) -> bool:
    """Finished since we looked, not by another grid; its job may have died before the receipt."""
    receipt = prepared.jobs.receipt(entry.id)
    reused = receipt.is_file() and receipt.read_text() == "reused\n"
    return entry.id not in prepared.finished and not reused


def _failed_cell(prepared: _Prepared, entry: Entry, mark: Failure) -> FailedCell:
    return FailedCell(
        id=entry.id,
        block=entry.block,
        slug=entry.cell.slug,
        kind=mark.kind,
        message=mark.message,
        console=str(prepared.jobs.store / "failed" / entry.id / "console.log"),
        now=entry.id not in prepared.failed,
    )


def _share(jobs: JobList, entries: Sequence[Entry]) -> Share:
    times = [cellstore.folder(jobs.store, entry.id) / "times.json" for entry in entries]
    return Share(
        cells=len(entries),
        virtual_s=sum(entry.virtual_s for entry in entries),
        wall_s=sum(results.read_json(file)["wall_s"] for file in times),
    )


def text(report: GridReport, out: Path) -> str:
    """The report for a terminal."""
    lines = [""]
    for cell in report.failed:
        when = "" if cell.now else ", failed before and not retried (--retry-failed)"
        lines += [
            f"FAILED {cell.block}/{cell.slug} ({cell.kind}{when}): {cell.message}",
            f"  kernel log: {cell.console}",
        ]
    missing = f", {report.missing} not run" if report.missing else ""
    lines += [
        f"airlab: grid {report.grid}: {report.cells} cells in {clock(report.elapsed_s)}: "
        f"{report.computed.cells} computed, {report.reused.cells} reused, "
        f"{len(report.failed)} failed{missing}",
        f"  computed: {_cost(report.computed)}",
        f"  reused:   {_cost(report.reused)}",
        f"  report: {out / REPORT}  cells: {report.store}",
    ]
    if report.interrupted:
        lines.append("airlab: interrupted; the same command goes on")
    return "\n".join(lines)


def _cost(share: Share) -> str:
    return (
        f"{share.cells} cells, {share.virtual_s:.0f} virtual s, {clock(share.wall_s)} of guest time"
    )


def _status(report: GridReport) -> int:
    if report.interrupted:
        return EXIT_INTERRUPTED
    whole = not report.failed and all(block.status == "ok" for block in report.blocks)
    return EXIT_OK if whole else EXIT_FAILED


def report_schema() -> dict[str, Any]:
    """The JSON schema of ``grid.json``, as published in ``testbed/schema/``."""
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, **GridReport.model_json_schema()}


if __name__ == "__main__":
    results.write_json(paths.TESTBED / "schema" / REPORT_SCHEMA, report_schema())
