"""What cells say while they run, and what of it makes a result worthless."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from pathlib import Path

from airlab.engines.base import EngineError, Watch

_CONSOLE_TAIL = 60


@dataclass(frozen=True)
class Marks:
    """Wall-clock instants at which the guest announced its stages."""

    start: float
    ready: float
    booted: float
    main: float
    end: float
    done: float


class ConsoleReader:
    """Follows the console file: stage marks and virtual-time ticks."""

    def __init__(self, console: Path, watch: Watch) -> None:
        self._console = console
        self._watch = watch
        self._offset = 0
        self._partial = b""
        self._seen: dict[str, float] = {}
        self.last_word = time.monotonic()

    def poll(self) -> None:
        """Take in what was written since the last call."""
        with open(self._console, "rb") as file:
            file.seek(self._offset)
            new = file.read()
        if not new:
            return
        self._offset += len(new)
        self.last_word = time.monotonic()
        *lines, self._partial = (self._partial + new).split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace").strip())

    def _take(self, line: str) -> None:
        self._watch.said(line)
        if line.startswith("@T "):
            with contextlib.suppress(ValueError):
                self._watch.progress(float(line[3:]))
        elif line.startswith("AIRLAB-"):
            self._seen.setdefault(line.split(maxsplit=1)[0], time.monotonic())

    def marks(self, start: float) -> Marks:
        """The stages' instants; a stage that never came is taken at the end."""
        now = time.monotonic()
        at = self._seen.get
        return Marks(
            start=start,
            booted=at("AIRLAB-BOOTED", now),
            ready=at("AIRLAB-READY", now),
            main=at("AIRLAB-START", now),
            end=at("AIRLAB-END", now),
            done=now,
        )


def tail(log: str) -> str:
    """The last lines of a log, without carriage returns."""
    return "\n".join(log.replace("\r", "").splitlines()[-_CONSOLE_TAIL:])


def refuse_failed_step(out: Path, log: str) -> None:
    """Raise EngineError unless the cell says that all its steps went well."""
    status = (out / "rc").read_text().strip() if (out / "rc").is_file() else "missing"
    if status == "0":
        return
    failed = re.findall(r"^AIRLAB-FAIL (.*)$", log.replace("\r", ""), re.MULTILINE)
    why = failed[0] if failed else f"status {status}"
    said = "".join(f"; {line}" for line in _last_words(out / "proc"))
    raise EngineError("step", f"a step of the cell failed: {why}{said}", tail(log))


def _last_words(folder: Path) -> list[str]:
    """The last error line of each program of the schedule that failed."""
    made = []
    for status in sorted(folder.glob("*.rc")):
        errors = status.with_suffix(".err")
        lines = errors.read_text(errors="replace").split("\n") if errors.is_file() else []
        said = [line for line in lines if line.strip()]
        if status.read_text().strip() not in ("0", "term", "kill") and said:
            made.append(f"{status.stem}: {said[-1]}")
    return made


def virtual_seconds(log: str) -> float:
    """Guest uptime at its last word."""
    found = re.findall(r"^AIRLAB-DONE rc=\d+ uptime=([\d.]+)", log.replace("\r", ""), re.MULTILINE)
    if found:
        return float(found[-1])
    stamps = re.findall(r"^\[ *(\d+\.\d+)\]", log, re.MULTILINE)
    return float(stamps[-1]) if stamps else 0.0
