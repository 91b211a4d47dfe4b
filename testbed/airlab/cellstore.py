"""The store that grids share: each cell once, under a name made from all that decides its bits.

::

    STORE/
      cells/ID/       a finished cell, as in a result folder
      failed/ID/      why a cell gave no result: error.txt, console.log
      work/ID/        being run
      locks/ID        held by the process that runs it
      runs.jsonl      a line for each start and end of a run, never changed

Several processes may use a store at once, also on several machines that share the file system
(with working locks).  A lock ends with its process, so nothing is left to be cleaned by hand.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from airlab.engines import Engine, Watch
from airlab.model import AirlabError, CellPlan
from airlab.runner import Failure, Store, failure, failure_of

ID_LENGTH = 32


class CellStore:
    """The part of a store that one engine has made and will make."""

    def __init__(self, root: Path, engine: Engine) -> None:
        self.root = root
        self._store = Store(root, engine)
        self.provenance = self._store.provenance

    def id(self, plan: CellPlan) -> str:
        """A cell's name: a hash of plan, seed, kernel, image, emulator and flags."""
        text = json.dumps(self._store.identity(plan), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]

    def run_once(self, plan: CellPlan, watch: Watch) -> Literal["computed", "reused"] | Failure:
        """Run a cell unless it is there or has failed; another process that runs it is waited for.

        What fails is marked as failed and returned, whatever it was; a mark is returned as it is.
        """
        name = self.id(plan)
        with _locked(self.root / "locks" / name, wait=True):
            if self._store.is_finished(plan, name):
                return "reused"
            return failure(self.root, name) or self._run(plan, name, watch)

    def _run(self, plan: CellPlan, name: str, watch: Watch) -> Literal["computed"] | Failure:
        self._log("start", name, plan)
        event = "stopped"
        try:
            self._store.run(plan, name, watch)
            event = "done"
        except Exception as error:
            event = "failed"
            return failure_of(name, error)
        finally:
            self._log(event, name, plan)
        return "computed"

    def _log(self, event: str, name: str, plan: CellPlan) -> None:
        line = {
            "event": event,
            "cell": name,
            "run": f"{plan.scenario}/{plan.cell.slug}",
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        # One write in append mode: lines of several processes do not mix.
        with open(self.root / "runs.jsonl", "ab", buffering=0) as log:
            log.write(json.dumps(line).encode() + b"\n")


def folder(root: Path, name: str) -> Path:
    """Where a finished cell of a store is."""
    return root / "cells" / name


def is_there(root: Path, name: str) -> bool:
    """Whether a cell of this name is finished."""
    return (folder(root, name) / "identity.json").is_file()


def sweep(root: Path) -> None:
    """Remove what killed processes left half-made; what a living one makes is let alone."""
    for left in (root / "work").glob("*"):
        with contextlib.suppress(BlockingIOError), _locked(root / "locks" / left.name, wait=False):
            shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _locked(file: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock file, which is removed in the end.

    Raises:
        BlockingIOError: another process holds it, and we do not wait.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with open(file, "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise
            except OSError as error:
                raise AirlabError(
                    f"{file}: cannot lock it ({error.strerror}); keep the store on a file system "
                    "with locks, or give another --store"
                ) from None
            if not _is_at(lock.fileno(), file):
                continue  # The one before us removed it: this lock protects nothing.
            try:
                yield
            finally:
                file.unlink()
            return


def _is_at(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False
