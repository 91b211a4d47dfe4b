"""Where live views get their data: this host, a recording that is played, one that grows.

All give the same: tables of the recording schema, piece by piece, with a time that goes on.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from ccscope.decode import Stream
from ccscope.errors import CcscopeError
from ccscope.recorder import Options, Session
from ccscope.recording import Columns, Recording
from ccscope.spool import NOTE, PAGES, SpoolTail

_QUEUE_BYTES = 64 << 20
_LOST_EVERY_S = 1.0


@dataclass
class Frame:
    """What came since the frame before.

    Attributes:
        now_s: the time that the views show as now, on the clock of ``t_s``.
        tables: tables as in a recording; several when much came.
        flows: all flows known so far, by label.
        lost: events lost since the start.
        over: nothing will follow.
    """

    now_s: float
    tables: list[dict[str, Columns]] = field(default_factory=list)
    flows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lost: int = 0
    over: bool = False


class Feed(Protocol):
    """A source of frames; a context manager.

    Attributes:
        source: which source it is and why, for the title.
        cannot: what the source cannot give.
        start_realtime_ns: CLOCK_REALTIME at ``t_s`` 0; 0 where it is not known.
    """

    source: str
    cannot: list[str]
    start_realtime_ns: int

    def take(self) -> Frame:
        """What is new; returns at once.

        Raises:
            CcscopeError: the source has failed.
        """

    def pause(self, on: bool) -> None:
        """Hold a recording that is played; others go on, and lose nothing."""

    def forget(self, keep: Container[str]) -> None:
        """Flows with other labels may be forgotten."""

    def __enter__(self) -> Feed: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class _Queue:
    """A spool in memory, between the thread that records and the one that decodes.

    When the reader is late, the oldest pages go; ``dropped`` counts them.
    """

    def __init__(self) -> None:
        self.keep_s: float | None = None
        self.dropped = 0
        self._records: deque[tuple[str, bytes]] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def append(self, kind: str, payload: bytes, now_s: float) -> None:
        """Take one record."""
        with self._lock:
            self._records.append((kind, payload))
            self._bytes += len(payload)
            while self._bytes > _QUEUE_BYTES and self._drop():
                pass

    def _drop(self) -> bool:
        for place, (kind, payload) in enumerate(self._records):
            if kind != NOTE:  # notes tell of flows and are small
                del self._records[place]
                self._bytes -= len(payload)
                self.dropped += kind == PAGES
                return True
        return False

    def note(self, what: Mapping[str, Any], now_s: float) -> None:
        """Take a record of kind NOTE."""
        self.append(NOTE, json.dumps(what).encode(), now_s)

    def taken(self) -> list[tuple[str, bytes]]:
        """All records, which are then gone from here."""
        with self._lock:
            records, self._records = self._records, deque()
            self._bytes = 0
        return list(records)


def _decoded(stream: Stream, records: Iterator[tuple[str, bytes]]) -> list[dict[str, Columns]]:
    made = []
    for kind, payload in records:
        stream.feed(kind, payload)
        if stream.full:
            made.append(stream.take())
    made.append(stream.take())
    return [tables for tables in made if tables]


class HostFeed:
    """What happens on this host: the sources of ``ccscope record``, kept in memory.

    Make and enter it in the main thread, before there are others: the recorder may need a mount
    namespace of its own.

    Raises:
        CcscopeError: the source that was asked for cannot be had.
    """

    def __init__(self, options: Options) -> None:
        self._session = Session(options)
        self.source = ""
        self.cannot: list[str] = []
        self.start_realtime_ns = 0
        self._stack = contextlib.ExitStack()
        self._queue = _Queue()
        self._failed: CcscopeError | None = None
        self._lost, self._next_lost = 0, 0.0

    def __enter__(self) -> HostFeed:
        session = self._session
        with contextlib.ExitStack() as stack:
            self._trace = session.open(stack)
            head = session.head(self._trace)
            self._stream = Stream(head)
            self._stack = stack.pop_all()
        self.start_realtime_ns = head["start_realtime_ns"]
        names = " + ".join(source["name"] for source in session.sources())
        self.source = f"{names} ({session.choice.why})"
        self.cannot = [text for source in session.sources() for text in source["cannot"]]
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            self._session.begin(self._trace, self._queue)
            self._session.loop(self._trace, self._queue, None)
        except CcscopeError as error:
            self._failed = error
        except OSError as error:
            self._failed = CcscopeError(f"recording: {error}")

    def take(self) -> Frame:
        """What is new."""
        if self._failed is not None:
            raise self._failed
        tables = _decoded(self._stream, iter(self._queue.taken()))
        now = time.monotonic_ns()
        if self._trace is not None and now / 1e9 >= self._next_lost:
            self._next_lost = now / 1e9 + _LOST_EVERY_S
            self._lost = self._trace.lost()
        now_s = (now - self._session.started_ns) / 1e9
        lost = self._lost + self._queue.dropped
        return Frame(now_s, tables, self._stream.assembler.info(), lost)

    def pause(self, on: bool) -> None:
        """Nothing: the host goes on."""

    def forget(self, keep: Container[str]) -> None:
        """Flows with other labels may be forgotten."""
        self._stream.forget(keep)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session.reason = "quit"
        self._thread.join()
        self._stack.close()


class FollowFeed:
    """A recording that ``ccscope record`` is writing.

    Raises:
        CcscopeError: there is no spool in the folder.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._tail = SpoolTail(folder / "spool")
        except CcscopeError as error:
            raise CcscopeError(
                f"--follow {folder}: nothing is being recorded there ({error}); a recording that "
                "is finished is played with --replay"
            ) from error
        self._stream = Stream(self._tail.head)
        self.start_realtime_ns = int(self._tail.head.get("start_realtime_ns", 0))
        self.source = f"{folder}, while it is recorded"
        sources = self._tail.head.get("sources", [])
        self.cannot = [text for source in sources for text in source["cannot"]]

    def __enter__(self) -> FollowFeed:
        return self

    def take(self) -> Frame:
        """What is new."""
        tables = _decoded(self._stream, self._tail.new())
        over = bool(self._stream.end)
        if over and (rest := self._stream.take(rest=True)):
            tables.append(rest)
        now_s = (self._stream.last_ns - self._stream.head["start_monotonic_ns"]) / 1e9
        lost = sum(self._stream.end.get("lost", {}).values())
        return Frame(now_s, tables, self._stream.assembler.info(), lost, over)

    def pause(self, on: bool) -> None:
        """Nothing: the recorder goes on."""

    def forget(self, keep: Container[str]) -> None:
        """Flows with other labels may be forgotten."""
        self._stream.forget(keep)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class ReplayFeed:
    """Plays a recording, a cell folder of airlab or the spool of a recording that was cut off.

    Args:
        recording: what to play.
        speed: seconds of the recording in a second; inf plays all at once.

    Raises:
        CcscopeError: there is nothing in it that a live view shows.
    """

    TABLES = ("acks", "samples", "states", "retransmits", "life", "packets")

    def __init__(self, recording: Recording, speed: float = 1.0) -> None:
        self._recording, self._speed = recording, speed
        self._tables = {
            name: columns
            for name in self.TABLES
            if len((columns := _in_order(recording.table(name)))["t_s"])
        }
        if not self._tables:
            raise CcscopeError(
                f"{recording.path} has no rows that a live view shows ({', '.join(self.TABLES)})"
            )
        self.source = f"replay of {recording.path.name}"
        if speed not in (1.0, float("inf")):
            self.source += f" at {speed:g}x"
        self.cannot = [t for s in recording.meta.get("sources", []) for t in s["cannot"]]
        self.start_realtime_ns = int(recording.meta.get("start_realtime_ns", 0))
        ends = [float(columns["t_s"][-1]) for columns in self._tables.values()]
        # Parts of airlab's cells start before the experiment's zero.
        self._at = min(0.0, *(float(c["t_s"][0]) for c in self._tables.values()))
        self._end = max([recording.duration_s, *ends])
        self._places = dict.fromkeys(self._tables, 0)
        self._last = 0.0
        self._paused = False

    def __enter__(self) -> ReplayFeed:
        self._last = time.monotonic()
        return self

    def take(self) -> Frame:
        """What is new."""
        now = time.monotonic()
        if self._speed == float("inf"):
            self._at = self._end
        elif not self._paused:
            self._at = min(self._at + (now - self._last) * self._speed, self._end)
        self._last = now
        tables = {}
        for name, columns in self._tables.items():
            first = self._places[name]
            last = int(np.searchsorted(columns["t_s"], self._at, side="right"))
            if last > first:
                tables[name] = {column: values[first:last] for column, values in columns.items()}
                self._places[name] = last
        lost = sum(self._recording.meta.get("lost", {}).values())
        over = self._at >= self._end
        return Frame(self._at, [tables] if tables else [], self._recording.flows, lost, over)

    def pause(self, on: bool) -> None:
        """Hold the recording's time."""
        self._paused = on

    def forget(self, keep: Container[str]) -> None:
        """Nothing: the recording is in memory as a whole."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


def _in_order(columns: Columns) -> Columns:
    times = columns["t_s"]
    if (np.diff(times) >= 0).all():
        return columns
    order = np.argsort(times, kind="stable")
    return {name: values[order] for name, values in columns.items()}
