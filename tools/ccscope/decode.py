"""From a spool to tables: ``ccscope finish``, and opening a recording that was cut off."""

from __future__ import annotations

import json
import struct
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ccscope import __version__, bpflines, schema
from ccscope.assemble import PROBES, Assembler, unlimited_as_null
from ccscope.errors import CcscopeError
from ccscope.flows import Selection, flow_key
from ccscope.ftrace import (
    CPU_PLACES,
    Columns,
    EventFormat,
    Trace,
    merge,
    parse_format,
    parse_header,
    parse_pages,
)
from ccscope.recording import Writer, complete
from ccscope.sources.sockdiag import Socket, sockets
from ccscope.spool import LINES, NOTE, PAGES, SAMPLE, SpoolReader
from ccscope.symbols import Symbols

_BATCH_BYTES = 8 << 20
_BATCH_SAMPLES = 20_000


@dataclass
class _Pending:
    """Events read and not yet turned into rows: later than the last complete drain."""

    pages: dict[int, bytearray] = field(default_factory=dict)
    events: dict[str, Columns] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    lines: list[bytes] = field(default_factory=list)
    drained_ns: int = 0
    bytes: int = 0


class Stream:
    """Turns the records of a spool into tables as they come; :class:`Decoder` reads a folder.

    Args:
        head: the content of ``head.json``.
    """

    def __init__(self, head: Mapping[str, Any]) -> None:
        self.head = head
        self.problems: list[str] = []
        self.header_bytes, self.formats = _formats(head.get("formats", {}))
        self.selection = Selection.from_json(head.get("selection", {}))
        self.end: dict[str, Any] = {}
        self.trigger: dict[str, Any] = {}
        self.last_ns = int(head["start_monotonic_ns"])
        self.missed = 0
        self._known: dict[tuple[str, int, str, int], dict[str, Any]] = {}
        self._pending = _Pending()
        self._rows: list[tuple[int, Socket]] = []
        self.assembler = Assembler(
            self.last_ns,
            Symbols([(start, name) for start, name in head.get("symbols", [])]),
            self._wanted,
            lambda flow: self._known.get(flow_key(flow), {}),
        )

    def _wanted(self, flow: Mapping[str, Any]) -> bool:
        if not self.selection.ends(flow):
            return False
        return not self.selection.by_socket or flow_key(flow) in self._known

    def feed(self, kind: str, payload: bytes) -> None:
        """Take one record."""
        if kind == PAGES:
            self._pages(payload)
        elif kind == LINES:
            self._pending.lines.append(payload)
            self._pending.bytes += len(payload)
        elif kind == SAMPLE:
            (t_ns,) = struct.unpack_from("<Q", payload)
            self.last_ns = max(self.last_ns, t_ns)
            self._rows += [(t_ns, s) for s in sockets(payload[8:])]
        elif kind == NOTE:
            self._note(json.loads(payload))

    @property
    def full(self) -> bool:
        """Whether so much was fed that it should be taken."""
        return self._pending.bytes >= _BATCH_BYTES or len(self._rows) >= _BATCH_SAMPLES

    def take(self, *, rest: bool = False) -> dict[str, Columns]:
        """Tables of what was fed up to the last complete drain; with ``rest`` of all."""
        return self._flush(None if rest else self._pending.drained_ns)

    def tell(self, flow: Mapping[str, Any]) -> None:
        """The recorder found this connection to be selected."""
        self._known[flow_key(flow)] = dict(flow)

    def _note(self, note: Mapping[str, Any]) -> None:
        for flow in note.get("flows", []):
            if flow_key(flow) not in self._known:
                self.tell(flow)
                self.assembler.reconsider(flow)
        if "drained" in note:
            self._pending.drained_ns = note["drained"]
            self.last_ns = max(self.last_ns, note["drained"])
        if "trigger" in note:
            t_s = (note["t_ns"] - self.head["start_monotonic_ns"]) / 1e9
            self.trigger = {"what": note["trigger"], "t_s": t_s}
        if "end" in note:
            self.end = note["end"]
            self.last_ns = max(self.last_ns, self.end.get("t_ns", 0))

    def forget(self, keep: Container[str]) -> None:
        """Forget all flows but those with these labels; for streams that have no end."""
        self.assembler.forget(keep)
        kept = {flow_key(f) for f in self.assembler.info().values()}
        self._known = {key: flow for key, flow in self._known.items() if key in kept}

    def _pages(self, payload: bytes) -> None:
        (cpu,) = struct.unpack_from("<I", payload)
        self._pending.pages.setdefault(cpu, bytearray()).extend(payload[4:])
        self._pending.bytes += len(payload)

    def _flush(self, until_ns: int | None) -> dict[str, Columns]:
        """Rows of all events before a time; None means all."""
        pending = self._pending
        traces = [Trace(events=pending.events)] if pending.events else []
        for cpu, raw in pending.pages.items():
            first = (cpu << CPU_PLACES) + pending.counts.get(cpu, 0)
            try:
                trace = parse_pages(bytes(raw), self.formats, self.header_bytes, first)
            except CcscopeError as error:
                self.problems.append(f"CPU {cpu}: {error}")
                continue
            pending.counts[cpu] = pending.counts.get(cpu, 0) + trace.count
            self.missed += trace.lost
            traces.append(trace)
        if pending.lines:
            traces.append(self._lines(b"\n".join(pending.lines).decode("latin1")))
        whole = merge(traces).events
        pending.pages.clear()
        pending.lines.clear()
        pending.bytes = 0
        now, pending.events = _split(whole, until_ns)
        if until_ns is None:
            ends = [int(c["t_ns"][-1]) for c in now.values() if len(c["t_ns"])]
            self.last_ns = max([self.last_ns, *ends])
        made = self.assembler.tables(now)
        samples = self._samples()
        return {**made, "samples": samples} if len(samples["t_s"]) else made

    def _samples(self) -> Columns:
        rows, self._rows = self._rows, []
        owners = []
        for t_ns, sock in rows:
            flow = self.assembler.flow_of(sock.flow)
            if flow is not None:
                flow.sack = sock.sack
                flow.info.update({k: v for k, v in sock.flow.items() if k not in flow.info})
                owners.append((t_ns, flow.label, sock))
        names = {name for *_, sock in owners for name in sock.info}
        made: Columns = {
            "t_s": np.array([(t - self.assembler.t0_ns) / 1e9 for t, *_ in owners], dtype=float),
            "flow": np.array([label for _, label, _ in owners], dtype=object),
            "cc": np.array([sock.flow.get("cc") for *_, sock in owners], dtype=object),
        }
        for name in sorted(names):
            made[name] = np.array([sock.info.get(name, np.nan) for *_, sock in owners])
            if name == "pacing_rate_Bps":
                made[name] = unlimited_as_null(made[name])
        return made

    def _lines(self, text: str) -> Trace:
        """The events in lines of bpftrace."""
        first = self._pending.counts.get(0, 0)
        names = json.loads(self.head["formats"]["bpftrace"])["fields"]
        events, bad = bpflines.parse(text, names, first)
        self._pending.counts[0] = first + 2 * text.count("\n") + 2
        if bad:
            self.problems.append(f"{bad} lines of bpftrace could not be read")
        return Trace(events=events)

    def meta(self) -> dict[str, Any]:
        """The content of recording.json, once all batches were taken."""
        head = self.head
        flows = self.assembler.info()
        lost = dict(self.end.get("lost", {}))
        if self.missed and not lost.get("tracefs"):
            lost["tracefs"] = self.missed
        problems = list(self.problems)
        if not self.end:
            problems.append("recording was cut off: the last moments and the counters are missing")
        return {
            "format": schema.FORMAT,
            "version": schema.VERSION,
            "tool": f"ccscope {__version__}",
            "start_realtime_ns": head.get("start_realtime_ns", 0),
            "start_monotonic_ns": head["start_monotonic_ns"],
            "duration_s": (self.last_ns - head["start_monotonic_ns"]) / 1e9,
            "clock": "CLOCK_MONOTONIC",
            "virtual_time": bool(head.get("virtual_time", False)),
            "host": head.get("host", {}),
            "sources": head.get("sources", []),
            "selection": head.get("selection", {}),
            "flows": flows,
            "lost": lost,
            "overhead": self.end.get("overhead", {}),
            "trigger": self.trigger,
            "complete": bool(self.end) and not self.problems,
            "problems": problems,
        }


class Decoder(Stream):
    """Reads a spool's folder once; :meth:`batches` gives tables piece by piece."""

    def __init__(self, folder: Path) -> None:
        self.reader = SpoolReader(folder)
        super().__init__(self.reader.head)
        self.problems = self.reader.problems

    def batches(self) -> Iterator[dict[str, Columns]]:
        """Tables, each batch later than the one before."""
        self._note_flows()
        for kind, payload in self.reader.records():
            self.feed(kind, payload)
            if self.full:
                yield self.take()
        yield self.take(rest=True)

    def _note_flows(self) -> None:
        """First pass: which connections the recorder found to be selected."""
        for kind, payload in SpoolReader(self.reader.folder).records():
            if kind == NOTE:
                for flow in json.loads(payload).get("flows", []):
                    self.tell(flow)


def _formats(texts: Mapping[str, str]) -> tuple[int, list[EventFormat]]:
    header = parse_header(texts["header_page"]) if "header_page" in texts else 16
    made = []
    for name, text in texts.items():
        if name in ("header_page", "bpftrace"):
            continue
        system = name.partition(".")[0]
        made.append(parse_format(text, PROBES if system.startswith(PROBES) else system))
    return header, made


def _split(
    events: dict[str, Columns], until_ns: int | None
) -> tuple[dict[str, Columns], dict[str, Columns]]:
    if until_ns is None:
        return events, {}
    now, later = {}, {}
    for name, columns in events.items():
        at = int(np.searchsorted(columns["t_ns"], until_ns))
        now[name] = {n: v[:at] for n, v in columns.items()}
        later[name] = {n: v[at:] for n, v in columns.items()}
    return now, later


def decode_spool(folder: Path) -> tuple[dict[str, Any], dict[str, Columns], list[str]]:
    """Read a spool into memory: recording.json's content, tables, problems."""
    decoder = Decoder(folder)
    parts: dict[str, list[Columns]] = {}
    for batch in decoder.batches():
        for name, columns in batch.items():
            parts.setdefault(name, []).append(complete(name, columns))
    meta = decoder.meta()
    tables = {name: _joined(pieces) for name, pieces in parts.items()}
    return meta, tables, meta["problems"]


def _joined(pieces: list[Columns]) -> Columns:
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}


def finish(folder: Path) -> dict[str, Any]:
    """Turn ``folder/spool`` into tables and remove it; returns recording.json's content.

    The spool stays until everything is written, so this can be interrupted and done again.

    Raises:
        CcscopeError: there is no spool, or tables are there already.
    """
    decoder = Decoder(folder / "spool")
    with Writer(folder) as writer:
        for batch in decoder.batches():
            for name, columns in batch.items():
                writer.add(name, columns)
        meta = {**decoder.meta(), "tables": writer.rows}
        writer.finish(meta)
    for path in sorted((folder / "spool").iterdir()):
        path.unlink()
    (folder / "spool").rmdir()
    return meta
