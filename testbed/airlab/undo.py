"""Undoes what a cell on a real host changed outside its namespaces, whoever dies.

What lies in namespaces ends with the cell's processes.  The rest (modules, a tracing instance,
host-wide settings) is written into a journal *before* it is done:

* airlab itself undoes it when the cell ends, fails, or is interrupted;
* a guardian, in a session of its own, does so when airlab is killed: it sees the end of a pipe
  whose only other end airlab holds (``python -m airlab.undo FOLDER``);
* when both are killed, the next run on this engine does so, and ``airlab host-clean``.

Each step may be done twice and may find its work done.  A lock says who is alive: airlab and its
guardian hold it together, the kernel takes it from the dead, so whoever gets it knows that a
journal that is still there belongs to nobody.  Uses nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STATE = Path("/run/airlab")
PATIENCE_S = 30.0
"""How long the kernel may take to dismantle namespaces before a module is free to go."""

Entry = dict[str, Any]


class Journal:
    """The notes of one cell in ``/run/airlab/host-ID/journal``, a JSON object a line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "journal"

    def note(self, kind: str, **values: Any) -> None:  # noqa: ANN401 - what a step needs
        """Write down what will have to be undone, before it is done."""
        with self._file.open("a") as file:
            file.write(json.dumps({"kind": kind, **values}) + "\n")

    def note_value(self, path: Path) -> None:
        """Note a setting's value, to be written back."""
        self.note("value", path=str(path), value=path.read_text().rstrip("\n"))

    def entries(self) -> list[Entry]:
        """The notes, last first; a line that its writer did not finish was not acted on."""
        made: list[Entry] = []
        with contextlib.suppress(FileNotFoundError):
            for line in self._file.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    made.insert(0, json.loads(line))
        return made

    def undo(self) -> list[str]:
        """Undo everything and forget it; returns what could not be undone."""
        problems = []
        for entry in self.entries():
            try:
                problem = _UNDO[entry["kind"]](entry)
            except OSError as error:
                problem = str(error)
            if problem:
                problems.append(f"{entry['kind']}: {problem}")
        shutil.rmtree(self.folder, ignore_errors=True)
        return problems


def start_time(pid: int) -> str | None:
    """A process's start in clock ticks since boot, which with its number names it for good."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # A zombie holds nothing any more, and its parent may never look.
    return None if fields[0] in "ZX" else fields[19]


def loaded_modules() -> set[str]:
    """Names of the loaded modules."""
    try:
        lines = Path("/proc/modules").read_text().splitlines()
    except FileNotFoundError:
        return set()
    return {line.split(maxsplit=1)[0] for line in lines}


def _await(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _end_process(entry: Entry) -> str:
    """End the process that all others of the cell die with, if it is still the same one."""
    pid, start = int(entry["pid"]), entry["start"]
    if start_time(pid) == start:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    gone = _await(lambda: start_time(pid) != start)
    return "" if gone else f"process {pid} does not end"


def _remove_instance(entry: Entry) -> str:
    """Remove a tracing instance; it is busy as long as one of its files is open."""
    path = Path(entry["path"])

    def removed() -> bool:
        with contextlib.suppress(OSError):
            path.rmdir()
        return not path.exists()

    return "" if _await(removed) else f"{path} cannot be removed"


def _write_back(entry: Entry) -> str:
    path = Path(entry["path"])
    if path.exists() and path.read_text().rstrip("\n") != entry["value"]:
        path.write_text(entry["value"] + "\n")
    return ""


def _unload(entry: Entry) -> str:
    """Unload the modules that came with the cell, users before what they use."""
    names = set(entry["names"])

    def gone() -> bool:
        here = names & loaded_modules()
        for name in here:
            subprocess.run(["rmmod", name], capture_output=True, check=False)
        return not names & loaded_modules()

    if not names & loaded_modules() or _await(gone):
        return ""
    left = ", ".join(sorted(names & loaded_modules()))
    return f"still in use, left loaded: {left} (`rmmod` them when their users are gone)"


_UNDO: dict[str, Callable[[Entry], str]] = {
    "process": _end_process,
    "instance": _remove_instance,
    "value": _write_back,
    "modules": _unload,
}


@contextlib.contextmanager
def turn(wait: Callable[[], None], state: Path = STATE) -> Iterator[int]:
    """The right to change this host, one cell at a time; gives the lock's descriptor.

    ``wait`` is called again and again while another airlab or its guardian has it; it may raise.
    """
    state.mkdir(mode=0o755, exist_ok=True)
    with (state / "host.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                wait()
        yield lock.fileno()


def leftovers(state: Path = STATE) -> list[Path]:
    """Journals there are; without the lock they may belong to a cell that is running."""
    return sorted(state.glob("host-*/journal"))


def clean(state: Path = STATE) -> list[str]:
    """Undo what the dead left behind; the caller has the lock.  Returns what could not be done."""
    problems = []
    for folder in sorted(state.glob("host-*")):
        if folder.is_dir():
            problems += Journal(folder).undo()
    return problems


def guard(folder: Path, lock: int) -> subprocess.Popen[bytes]:
    """Start a guardian over a folder; it ends when its standard input is closed or we die.

    On return it is deaf to what ends a terminal's processes.
    """
    guardian = subprocess.Popen(
        [sys.executable, "-m", "airlab.undo", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        start_new_session=True,
        pass_fds=(lock,),
    )
    assert guardian.stdout is not None
    guardian.stdout.read(1)
    return guardian


def main(argv: list[str]) -> int:
    """The guardian: wait for the end of airlab, then undo what it has not undone itself."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.write(1, b"!")
    sys.stdin.buffer.read()
    folder = Path(argv[0])
    return 1 if folder.is_dir() and Journal(folder).undo() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
