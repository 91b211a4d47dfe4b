"""Reads the kernel ring buffer's raw pages, as ``trace_pipe_raw`` hands them out.

A page is a header (start time, number of committed bytes, flags for lost events) and then
events of 4-byte granularity.  An event starts with a word of 5 bits ``type_len`` and 27 bits
``time_delta`` (nanoseconds since the event before it):

=========  ====================================================================
type_len   meaning
=========  ====================================================================
0          data; the next word is the length of itself and the data
1..28      data of ``4 * type_len`` bytes
29         padding; with delta 0 the rest of the page, else a length word follows
30         time extend: the next word holds the upper bits of the delta
31         time stamp: delta and next word are the lower 59 bits of the absolute time
=========  ====================================================================

The data of an event start with its 16-bit type number; the event ``format`` files say
which fields follow.  One pass over the pages finds where each event is and when it
happened, then numpy gathers the fields of all events of a type at once.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ccscope.errors import CcscopeError

PAGE_BYTES = 4096
_PADDING, _TIME_EXTEND, _TIME_STAMP = 29, 30, 31
_MISSED_EVENTS, _MISSED_STORED = 1 << 31, 1 << 30
_COMMIT_MASK = (1 << 27) - 1
_STAMP_MASK = (1 << 59) - 1
_MAX_STACK = 128
STACK = ("ftrace", "kernel_stack")
"""The event that follows an event whose trigger asks for the stack."""
CPU_PLACES = 40
"""Bits of ``common_at`` below the CPU's number, so that the places of CPUs do not mix."""

Array = npt.NDArray[Any]
Columns = dict[str, Array]


@dataclass(frozen=True)
class Field:
    """One field of an event: bytes ``offset .. offset + size`` of its data."""

    name: str
    offset: int
    size: int
    signed: bool
    count: int = 1
    data_loc: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type: an integer, or an array of integers for fixed arrays."""
        width = self.size // self.count
        if width not in (1, 2, 4, 8):
            return np.dtype((np.uint8, (self.size,)))
        base = np.dtype(f"<{'i' if self.signed else 'u'}{width}")
        return base if self.count == 1 else np.dtype((base, (self.count,)))


@dataclass(frozen=True)
class EventFormat:
    """The layout of one event type, from its ``format`` file."""

    system: str
    name: str
    number: int
    fields: tuple[Field, ...]

    @property
    def record(self) -> np.dtype[Any]:
        """A structured type that covers all fields of the event."""
        size = max(f.offset + f.size for f in self.fields)
        return np.dtype(
            {
                "names": [f.name for f in self.fields],
                "formats": [f.dtype for f in self.fields],
                "offsets": [f.offset for f in self.fields],
                "itemsize": size,
            }
        )


@dataclass
class Trace:
    """What a raw trace holds.

    Attributes:
        events: by ``system:event``, columns of equal length: ``t_ns`` (int64,
            CLOCK_MONOTONIC, never decreasing), the event's fields and
            ``common_at``, the event's place among all events of its CPU's pages (from 0, plus
            ``first``).
        count: events of all types, those without a format file too.
        lost: events the ring buffer could not keep.  At least 1 when a page says that some
            are missing without saying how many.
        unknown: number of events by type number for which there was no format.
    """

    events: dict[str, Columns] = field(default_factory=dict)
    count: int = 0
    lost: int = 0
    unknown: dict[int, int] = field(default_factory=dict)


_FIELD = re.compile(r"field:(.+?);\s*offset:(\d+);\s*size:(\d+);(?:\s*signed:(\d);)?")
_ARRAY = re.compile(r"^(?P<name>\w+)\[(?P<count>\w*)\]$")


def parse_format(text: str, system: str) -> EventFormat:
    """Read an event's ``format`` file.

    Raises:
        CcscopeError: the text is not such a file.
    """
    name = re.search(r"^name:\s*(\S+)", text, re.MULTILINE)
    number = re.search(r"^ID:\s*(\d+)", text, re.MULTILINE)
    fields = tuple(_parse_field(m) for m in _FIELD.finditer(text))
    if not name or not number or not fields:
        raise CcscopeError(f"trace: the format file of an event of system {system!r} is damaged")
    return EventFormat(system, name.group(1), int(number.group(1)), fields)


def _parse_field(match: re.Match[str]) -> Field:
    declaration, offset, size, signed = match.groups()
    data_loc = declaration.strip().startswith("__data_loc")
    last = declaration.split()[-1]
    found = _ARRAY.match(last)
    name, count = (found["name"], found["count"]) if found else (last.lstrip("*"), "1")
    many = int(count) if found and count.isdigit() and not data_loc else 1
    if found and not count.isdigit() and not data_loc:
        many = int(size)  # the length is a kernel constant's name: keep the bytes
    return Field(name, int(offset), int(size), signed == "1", max(many, 1), data_loc)


def read_formats(folder: Path) -> tuple[int, list[EventFormat]]:
    """Read ``trace.formats``: (bytes of a page header, the event formats).

    Raises:
        CcscopeError: ``header_page`` is missing or a file is damaged.
    """
    header = folder / "header_page"
    if not header.is_file():
        raise CcscopeError(f"trace: {header} is missing, so the pages cannot be read")
    formats = [
        parse_format(path.read_text(), path.name.partition(".")[0])
        for path in sorted(folder.iterdir())
        if path.name != "header_page"
    ]
    return parse_header(header.read_text()), formats


def parse_header(text: str) -> int:
    """Bytes of a page header, from the text of ``events/header_page``.

    Raises:
        CcscopeError: the text is not that file's.
    """
    data = re.search(r"\bdata;\s*offset:(\d+);", text)
    if data is None:
        raise CcscopeError("trace: header_page does not say where the data start")
    return int(data.group(1))


def parse_pages(
    raw: bytes, formats: Iterable[EventFormat], header_bytes: int = 16, first: int = 0
) -> Trace:
    """Decode concatenated ring-buffer pages of one CPU.

    Args:
        raw: whole pages of 4096 bytes, oldest first.
        formats: the events to decode; others are only counted.
        header_bytes: size of a page header (16 on 64-bit kernels, 12 on 32-bit ones).
        first: what ``common_at`` starts from.

    Raises:
        CcscopeError: the length is not a multiple of 4096, or a page is damaged.
    """
    if len(raw) % PAGE_BYTES:
        raise CcscopeError(
            f"trace: {len(raw)} bytes are not whole pages of {PAGE_BYTES}; the file was cut"
        )
    offsets, times = array("q"), array("q")
    lost = 0
    for base in range(0, len(raw), PAGE_BYTES):
        lost += _scan_page(raw, base, header_bytes, offsets, times)
    where = np.frombuffer(offsets, dtype=np.int64)
    when = np.frombuffer(times, dtype=np.int64)
    return _gather(raw, where, when, (list(formats), lost, first))


def _scan_page(raw: bytes, base: int, header: int, offsets: array[int], times: array[int]) -> int:
    """Append data offset and time of each event of a page; return the lost events."""
    now = int.from_bytes(raw[base : base + 8], "little")
    commit = int.from_bytes(raw[base + 8 : base + 12], "little")
    length = commit & _COMMIT_MASK
    if header + length > PAGE_BYTES:
        raise CcscopeError(f"trace: page {base // PAGE_BYTES} claims {length} bytes of events")
    words = np.frombuffer(raw, dtype="<u4", count=length // 4, offset=base + header).tolist()
    data = base + header
    top = now & ~_STAMP_MASK
    at, end = 0, len(words)
    while at < end:
        word = words[at]
        kind, delta = word & 31, word >> 5
        if kind == _PADDING and delta == 0:
            break
        if kind in (0, _PADDING, _TIME_EXTEND, _TIME_STAMP) and at + 1 >= end:
            raise CcscopeError(f"trace: page {base // PAGE_BYTES} ends inside an event")
        if kind < _PADDING:
            now += delta
            offsets.append(data + 4 * at + (4 if kind else 8))
            times.append(now)
            at += 1 + (kind if kind else max((words[at + 1] + 3) // 4, 1))
        elif kind == _TIME_EXTEND:
            now += (words[at + 1] << 27) + delta
            at += 2
        elif kind == _TIME_STAMP:
            now = top | ((words[at + 1] << 27) + delta)
            at += 2
        else:  # a discarded event
            now += delta
            at += 1 + max((words[at + 1] + 3) // 4, 1)
    if at > end:
        raise CcscopeError(f"trace: page {base // PAGE_BYTES} ends inside an event")
    return _lost_before(raw, base + header + length, base + PAGE_BYTES, commit)


def _lost_before(raw: bytes, tail: int, page_end: int, commit: int) -> int:
    if not commit & _MISSED_EVENTS:
        return 0
    if commit & _MISSED_STORED and tail + 8 <= page_end:
        return int.from_bytes(raw[tail : tail + 8], "little")
    return 1


def _gather(
    raw: bytes, where: Array, when: Array, how: tuple[list[EventFormat], int, int]
) -> Trace:
    formats, lost, first = how
    longest = max((f.record.itemsize for f in formats), default=2)
    # Room behind the last page, so that a record's window never leaves the buffer.
    buffer = np.frombuffer(raw + bytes(longest), dtype=np.uint8)
    trace = Trace(count=len(where), lost=lost)
    if not len(where):
        trace.events = {f"{f.system}:{f.name}": _no_rows(f) for f in formats}
        return trace
    numbers = buffer[where].astype(np.int64) | (buffer[where + 1].astype(np.int64) << 8)
    for form in formats:
        rows = np.flatnonzero(numbers == form.number)
        columns = _columns(buffer, where[rows], form) if len(rows) else _no_rows(form)
        columns["t_ns"] = when[rows]
        columns["common_at"] = rows + first
        trace.events[f"{form.system}:{form.name}"] = columns
    known = {f.number for f in formats}
    found, counts = np.unique(numbers, return_counts=True)
    trace.unknown = {
        int(n): int(c) for n, c in zip(found, counts, strict=True) if int(n) not in known
    }
    return trace


def _no_rows(form: EventFormat) -> Columns:
    empty = np.zeros(0, dtype=form.record)
    columns: Columns = {f.name: np.ascontiguousarray(empty[f.name]) for f in form.fields}
    columns["t_ns"] = np.zeros(0, dtype=np.int64)
    columns["common_at"] = np.zeros(0, dtype=np.int64)
    if (form.system, form.name) == STACK:
        columns["caller"] = np.zeros(0, dtype=object)
    return columns


def _columns(buffer: Array, where: Array, form: EventFormat) -> Columns:
    size = form.record.itemsize
    windows = np.lib.stride_tricks.sliding_window_view(buffer, size)
    records = np.ascontiguousarray(windows[where]).view(form.record)[:, 0]
    columns: Columns = {}
    for item in form.fields:
        values = np.ascontiguousarray(records[item.name])
        columns[item.name] = _strings(buffer, where, values) if item.data_loc else values
    if (form.system, form.name) == STACK:
        columns["caller"] = _callers(buffer, where, form)
    return columns


def _callers(buffer: Array, where: Array, form: EventFormat) -> Array:
    """The addresses of each stack, innermost first, as tuples."""
    places = {f.name: f.offset for f in form.fields}
    made = np.empty(len(where), dtype=object)
    for row, start in enumerate(where.tolist()):
        at = start + places["size"]
        count = int.from_bytes(buffer[at : at + 4].tobytes(), "little")
        begin = start + places["caller"]
        words = buffer[begin : begin + 8 * min(count, _MAX_STACK)].tobytes()
        made[row] = struct.unpack(f"<{len(words) // 8}Q", words[: len(words) // 8 * 8])
    return made


def _strings(buffer: Array, where: Array, locations: Array) -> Array:
    """The texts that ``__data_loc`` words (offset, length << 16) point to."""
    texts = []
    for start, word in zip(where.tolist(), locations.tolist(), strict=True):
        begin = start + (word & 0xFFFF)
        texts.append(bytes(buffer[begin : begin + (word >> 16)]).split(b"\0")[0].decode("latin1"))
    return np.array(texts, dtype=object)


def merge(traces: Iterable[Trace]) -> Trace:
    """The traces of several CPUs as one, each event's rows in order of time."""
    whole = Trace()
    parts: dict[str, list[Columns]] = {}
    for trace in traces:
        whole.count += trace.count
        whole.lost += trace.lost
        for number, count in trace.unknown.items():
            whole.unknown[number] = whole.unknown.get(number, 0) + count
        for event, columns in trace.events.items():
            parts.setdefault(event, []).append(columns)
    whole.events = {event: in_order(pieces) for event, pieces in parts.items()}
    return whole


def in_order(pieces: list[Columns]) -> Columns:
    """Pieces of one event's columns as one, sorted by time."""
    if len(pieces) == 1:
        return pieces[0]
    joined = {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}
    order = np.argsort(joined["t_ns"], kind="stable")
    return {name: values[order] for name, values in joined.items()}


def parse_stats(text: str) -> dict[str, float]:
    """Read a ``per_cpu/cpu0/stats`` file: values by name (``overrun``, ``dropped events``...)."""
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {key.strip(): float(value) for key, _, value in pairs}


def lost_in_stats(stats: Mapping[str, float]) -> int:
    """Events lost according to the ring buffer's own counters."""
    return int(sum(stats.get(k, 0.0) for k in ("overrun", "commit overrun", "dropped events")))


def trace_parts(raw: Path) -> list[bytes]:
    """The ring buffer's pages by processor; empty without a trace."""
    return [part.read_bytes() for part in sorted(raw.glob("trace.raw*"))]


def read_trace(raw: Path) -> Trace:
    """Decode the trace of a raw folder (``trace.raw``, ``trace.formats``, ``trace.stats``).

    Of a machine with several processors there is a ``trace.raw.N`` and ``trace.stats.N`` for each
    but number 0.

    Raises:
        CcscopeError: a part is missing or damaged.
    """
    parts = trace_parts(raw)
    if not parts:
        raise CcscopeError(f"trace: {raw / 'trace.raw'} is missing, so there is no trace to read")
    header_bytes, formats = read_formats(raw / "trace.formats")
    trace = merge(
        parse_pages(part, formats, header_bytes, cpu << CPU_PLACES)
        for cpu, part in enumerate(parts)
    )
    told = [parse_stats(file.read_text()) for file in sorted(raw.glob("trace.stats*"))]
    trace.lost = max(trace.lost, sum(map(lost_in_stats, told)))
    return trace
