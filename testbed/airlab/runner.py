"""Runs the cells of a campaign on an engine, in parallel, and keeps what is finished.

A cell's folder appears under its name only when it is complete, so an interruption leaves
no half-written result; a later run with the same output folder takes finished cells over
when plan, kernel, image and engine are the same, and moves others aside.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import queue
import shutil
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from airlab.collect import collect
from airlab.engines import Engine, EngineError, RawRun, Watch
from airlab.model import AirlabError, CellPlan
from airlab.progress import Progress


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


def _failure(slug: str, error: BaseException) -> Failure:
    """A failed cell from what its run raised; other cells go on."""
    if isinstance(error, EngineError):
        return Failure(slug, error.kind, str(error), error.console)
    if isinstance(error, AirlabError):
        return Failure(slug, "result", str(error), "")
    trace = "".join(traceback.format_exception(error))
    return Failure(slug, "internal error", str(error), trace)


@contextlib.contextmanager
def _only_writer(out: Path) -> Iterator[None]:
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
        self._engine = engine
        self._out = out
        self._jobs = max(1, jobs)
        self._cancel = threading.Event()
        self._slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(self._jobs):
            self._slots.put(slot)
        self._provenance = engine.provenance()

    def run(self) -> Outcome:
        """Run all cells that are not finished yet; Ctrl-C ends the guests and returns."""
        (self._out / "cells").mkdir(parents=True, exist_ok=True)
        with _only_writer(self._out):
            return self._run()

    def _run(self) -> Outcome:
        outcome = Outcome()
        self._sweep_leftovers()
        waiting = []
        for plan in self._plans:
            if self._is_finished(plan):
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
                    outcome.failed.append(_failure(slug, error))
                    progress.note(f"FAILED {slug}: {error}")
                progress.finish(slug, failed=error is not None)

    def _run_one(self, plan: CellPlan, progress: Progress) -> None:
        slot = self._slots.get()
        slug = plan.cell.slug
        scratch = self._out / "work" / slug
        shutil.rmtree(scratch, ignore_errors=True)
        watch = Watch(progress=lambda t: progress.advance(slug, t), cancel=self._cancel)
        try:
            raw = self._engine.run(plan, scratch, watch, slot)
            self._store(plan, raw, scratch)
        except EngineError as error:
            if error.kind != "cancelled":
                self._keep_failure(slug, error, scratch)
            raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            self._slots.put(slot)

    def _store(self, plan: CellPlan, raw: RawRun, scratch: Path) -> None:
        """Turn the raw output into the cell's folder and put it in place at once."""
        made = scratch / "cell"
        made.mkdir()
        collect(raw.out, plan, made)
        shutil.copy(raw.console, made / "console.log")
        (made / "commands.sh").write_bytes(plan.files["setup.sh"])
        (made / "plan.json").write_text(json.dumps(plan.to_json(), indent=1))
        self._write(made / "identity.json", self._identity(plan))
        times = {
            "wall_s": raw.wall_s,
            "boot_wall_s": raw.boot_wall_s,
            "setup_wall_s": raw.setup_wall_s,
            "main_wall_s": raw.main_wall_s,
            "virtual_s": raw.virtual_s,
        }
        self._write(made / "times.json", times)
        target = self._cell(plan)
        self._set_aside(target)
        shutil.rmtree(self._out / "failed" / plan.cell.slug, ignore_errors=True)
        made.rename(target)

    def _keep_failure(self, slug: str, error: EngineError, scratch: Path) -> None:
        folder = self._out / "failed" / slug
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "error.txt").write_text(f"{error.kind}: {error}\n")
        if (scratch / "console.log").is_file():
            shutil.copy(scratch / "console.log", folder / "console.log")

    def _identity(self, plan: CellPlan) -> dict[str, str]:
        text = json.dumps(self._provenance, sort_keys=True)
        return {"plan": plan.key, "engine": hashlib.sha256(text.encode()).hexdigest()}

    def _is_finished(self, plan: CellPlan) -> bool:
        record = self._cell(plan) / "identity.json"
        return record.is_file() and json.loads(record.read_text()) == self._identity(plan)

    def _set_aside(self, target: Path) -> None:
        """Keep an older result of the same name: nothing measured is thrown away."""
        if not target.exists():
            return
        attic = self._out / "superseded"
        attic.mkdir(exist_ok=True)
        number = sum(1 for _ in attic.glob(f"{target.name}.*"))
        target.rename(attic / f"{target.name}.{number}")

    def _sweep_leftovers(self) -> None:
        """Remove what a killed process left behind."""
        shutil.rmtree(self._out / "work", ignore_errors=True)

    def _cell(self, plan: CellPlan) -> Path:
        return self._out / "cells" / plan.cell.slug

    @staticmethod
    def _write(path: Path, data: Mapping[str, object]) -> None:
        path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
