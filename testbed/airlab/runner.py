"""Runs the cells of a campaign on an engine, in parallel, and keeps what is finished.

A cell's folder appears under its name only when it is complete, so an interruption leaves
no half-written result; a later run with the same output folder takes finished cells over
when plan, kernel, image and engine are the same, and moves others aside.

:class:`Store` runs one cell and keeps its result; :class:`Campaign` runs many of one scenario.
A grid (:mod:`airlab.grid`) has another loop over the same store.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import shutil
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from ccscope.errors import CcscopeError

from airlab.collect import collect
from airlab.engines import Engine, EngineError, RawRun, Watch
from airlab.model import AirlabError, CellPlan
from airlab.progress import Progress
from airlab.slots import take_slot


@dataclass(frozen=True)
class Failure:
    """A cell that gave no result."""

    slug: str
    kind: str
    message: str
    console: str


@dataclass
class Outcome:
    """What became of a campaign's cells."""

    run: list[str] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    interrupted: bool = False


def failure_of(slug: str, error: BaseException) -> Failure:
    """A failed cell from what its run raised; other cells go on."""
    if isinstance(error, EngineError):
        return Failure(slug, error.kind, str(error), error.console)
    if isinstance(error, CcscopeError):
        return Failure(slug, "result", str(error), "")
    trace = "".join(traceback.format_exception(error))
    return Failure(slug, "internal error", str(error), trace)


@contextlib.contextmanager
def only_writer(out: Path) -> Iterator[None]:
    """Keep a second airlab out of a result folder; the lock ends with the process.

    Raises:
        AirlabError: another airlab is writing there.
    """
    with open(out / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AirlabError(
                f"another airlab is writing to {out}; wait for it, or give another --out"
            ) from None
        yield


def failure(root: Path, name: str) -> Failure | None:
    """Why a store's cell gave no result when it was run last; None if it has not failed."""
    folder = root / "failed" / name
    try:
        kind, _, message = (folder / "error.txt").read_text().partition(": ")
    except FileNotFoundError:
        return None
    return Failure(name, kind, message.strip(), (folder / "console.log").read_text())


def forget_failure(root: Path, name: str) -> None:
    """Remove the mark of a failed run, so that the cell is run again."""
    shutil.rmtree(root / "failed" / name, ignore_errors=True)


class Store:
    """A folder of cells run on one engine, each under a name that the caller gives it.

    ``cells/NAME`` is finished, ``failed/NAME`` says why there is no result, ``work/NAME`` is being
    run, ``superseded/NAME.N`` are older results of the same name.
    """

    def __init__(self, root: Path, engine: Engine) -> None:
        self._root = root
        self._engine = engine
        self.provenance = engine.provenance()

    def cell(self, name: str) -> Path:
        """Where a finished cell is."""
        return self._root / "cells" / name

    def is_finished(self, plan: CellPlan, name: str) -> bool:
        """Whether the cell is there, from the same plan on the same engine."""
        record = self.cell(name) / "identity.json"
        return record.is_file() and json.loads(record.read_text()) == self.identity(plan)

    def identity(self, plan: CellPlan) -> dict[str, str]:
        """Hashes of all that decides a cell's bits."""
        text = json.dumps(self.provenance, sort_keys=True)
        return {"plan": plan.key, "engine": hashlib.sha256(text.encode()).hexdigest()}

    def run(self, plan: CellPlan, name: str, watch: Watch) -> None:
        """Run a cell and put its folder in place at once.

        Raises:
            EngineError: there is no result; unless it was cancelled, ``failed/NAME`` says why.
            AirlabError: the result cannot be read; the same.
        """
        scratch = self._root / "work" / name
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            with take_slot() as slot:
                raw = self._engine.run(plan, scratch, watch, slot)
            self._keep(plan, name, raw, scratch)
        except Exception as error:
            failure = failure_of(name, error)
            if failure.kind != "cancelled":
                self._keep_failure(failure, scratch)
            raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _keep(self, plan: CellPlan, name: str, raw: RawRun, scratch: Path) -> None:
        """Turn the raw output into the cell's folder and rename it into place."""
        made = scratch / "cell"
        made.mkdir()
        collect(raw.out, plan, made)
        shutil.copy(raw.console, made / "console.log")
        (made / "commands.sh").write_bytes(plan.files["setup.sh"])
        (made / "plan.json").write_text(json.dumps(plan.to_json(), indent=1))
        self._write(made / "identity.json", self.identity(plan))
        times = {
            "wall_s": raw.wall_s,
            "boot_wall_s": raw.boot_wall_s,
            "setup_wall_s": raw.setup_wall_s,
            "main_wall_s": raw.main_wall_s,
            "virtual_s": raw.virtual_s,
        }
        self._write(made / "times.json", times)
        self.cell(name).parent.mkdir(parents=True, exist_ok=True)
        self._set_aside(self.cell(name))
        forget_failure(self._root, name)
        made.rename(self.cell(name))

    def _keep_failure(self, failure: Failure, scratch: Path) -> None:
        folder = self._root / "failed" / failure.slug
        folder.mkdir(parents=True, exist_ok=True)
        if (scratch / "console.log").is_file():
            shutil.copy(scratch / "console.log", folder / "console.log")
        else:
            (folder / "console.log").write_text(failure.console)
        if failure.kind == "internal error":
            (folder / "traceback.txt").write_text(failure.console)
        # Last, and at once: who finds it finds the rest.
        partial = folder / "error.partial"
        partial.write_text(f"{failure.kind}: {failure.message}\n")
        partial.rename(folder / "error.txt")

    def _set_aside(self, target: Path) -> None:
        """Keep an older result of the same name: nothing measured is thrown away."""
        if not target.exists():
            return
        attic = self._root / "superseded"
        attic.mkdir(exist_ok=True)
        number = sum(1 for _ in attic.glob(f"{target.name}.*"))
        target.rename(attic / f"{target.name}.{number}")

    @staticmethod
    def _write(path: Path, data: Mapping[str, object]) -> None:
        path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")


class Campaign:
    """The cells of one scenario, run on one engine into one output folder."""

    def __init__(
        self,
        plans: Sequence[CellPlan],
        engine: Engine,
        out: Path,
        *,
        jobs: int,
    ) -> None:
        self._plans = list(plans)
        self._store = Store(out, engine)
        self._out = out
        self._jobs = max(1, jobs)
        self._cancel = threading.Event()

    def run(self) -> Outcome:
        """Run all cells that are not finished yet; Ctrl-C ends the guests and returns."""
        (self._out / "cells").mkdir(parents=True, exist_ok=True)
        with only_writer(self._out):
            return self._run()

    def _run(self) -> Outcome:
        outcome = Outcome()
        self._sweep_leftovers()
        waiting = []
        for plan in self._plans:
            if self._store.is_finished(plan, plan.cell.slug):
                outcome.reused.append(plan.cell.slug)
            else:
                waiting.append(plan)
        if waiting:
            self._run_all(waiting, outcome)
        return outcome

    def _run_all(self, waiting: list[CellPlan], outcome: Outcome) -> None:
        progress = Progress(len(waiting), waiting[0].duration_us / 1e6)
        with ThreadPoolExecutor(self._jobs, thread_name_prefix="airlab") as pool:
            futures = {pool.submit(self._run_one, plan, progress): plan for plan in waiting}
            try:
                self._gather(futures, outcome, progress)
            except KeyboardInterrupt:
                outcome.interrupted = True
                progress.note("interrupted: ending the guests; finished runs are kept")
            finally:
                # Whatever ends the waiting, no guest may be left running.
                self._cancel.set()
                pool.shutdown(wait=True, cancel_futures=True)

    def _gather(
        self,
        futures: dict[Future[None], CellPlan],
        outcome: Outcome,
        progress: Progress,
    ) -> None:
        pending = set(futures)
        while pending:
            # A bounded wait keeps the main thread open to Ctrl-C.
            ready, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in ready:
                slug = futures[future].cell.slug
                error = future.exception()
                if error is None:
                    outcome.run.append(slug)
                else:
                    outcome.failed.append(failure_of(slug, error))
                    progress.note(f"FAILED {slug}: {error}")
                progress.finish(slug, failed=error is not None)

    def _run_one(self, plan: CellPlan, progress: Progress) -> None:
        slug = plan.cell.slug
        watch = Watch(progress=lambda t: progress.advance(slug, t), cancel=self._cancel)
        self._store.run(plan, slug, watch)

    def _sweep_leftovers(self) -> None:
        """Remove what a killed process left behind."""
        shutil.rmtree(self._out / "work", ignore_errors=True)
