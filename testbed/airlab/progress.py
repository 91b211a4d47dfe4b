"""Progress of a campaign: runs done of total, virtual against wall time, time left."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

_REDRAW_S = 0.5
_LINE_EVERY_S = 20.0


class Progress:
    """Counts virtual seconds over all cells and says how it goes on a stream.

    On a terminal one line is redrawn; elsewhere (a log file, CI) a line is written every
    20 s, so that a long silence always means trouble.

    Args:
        total_cells: cells of the campaign that have to be run.
        virtual_per_cell_s: experiment length, to weigh unfinished cells.
    """

    def __init__(
        self, total_cells: int, virtual_per_cell_s: float, stream: TextIO | None = None
    ) -> None:
        self._total = total_cells
        self._length = virtual_per_cell_s
        self._stream = stream or sys.stderr
        self._tty = self._stream.isatty()
        self._start = time.monotonic()
        self._last = 0.0
        self._done = 0
        self._failed = 0
        self._running: dict[str, float] = {}
        self._lock = threading.Lock()

    def advance(self, cell: str, virtual_s: float) -> None:
        """A running cell has reached this virtual second."""
        with self._lock:
            self._running[cell] = min(max(virtual_s, 0.0), self._length)
            self._draw()

    def tick(self) -> None:
        """Nothing is new, but time has passed."""
        with self._lock:
            self._draw()

    def finish(self, cell: str, *, failed: bool = False) -> None:
        """A cell has ended."""
        with self._lock:
            self._running.pop(cell, None)
            self._done += 1
            self._failed += failed
            self._draw(force=self._done == self._total)

    def note(self, text: str) -> None:
        """Write a line of its own without spoiling the progress line."""
        with self._lock:
            if self._tty:
                self._stream.write("\r\x1b[K")
            self._stream.write(text.rstrip("\n") + "\n")
            self._stream.flush()

    def line(self) -> str:
        """The progress line as it is now."""
        wall = time.monotonic() - self._start
        virtual = self._done * self._length + sum(self._running.values())
        total = self._total * self._length
        speed = virtual / wall if wall > 0 else 0.0
        left = clock((total - virtual) / speed) if virtual > 0 else "?"
        failed = f", {self._failed} failed" if self._failed else ""
        return (
            f"{self._done}/{self._total} runs{failed}, "
            f"{virtual:.0f} of {total:.0f} virtual s in {clock(wall)} ({speed:.1f}x), {left} left"
        )

    def _draw(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - self._last < (_REDRAW_S if self._tty else _LINE_EVERY_S):
            return
        self._last = now
        if self._tty:
            end = "\n" if force else ""
            self._stream.write("\r\x1b[K" + self.line() + end)
        else:
            self._stream.write(self.line() + "\n")
        self._stream.flush()


def clock(seconds: float) -> str:
    """Seconds as a short clock: ``42 s``, ``3:20``, ``1:02:03``."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"
