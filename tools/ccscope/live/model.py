"""What live views show: for each flow its newest points, marks and numbers, in bounded memory.

Points come from ``acks`` (each ACK), ``samples`` (polls) or ``packets`` (a capture's bytes only).
A flow keeps at most a share of :data:`POINTS`; when it is full, its older half is thinned so that
the highest and lowest windows stay.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ccscope.live.feeds import Frame
from ccscope.recording import Columns
from ccscope.schema import CA_STATES, SSTHRESH_NONE

Array = npt.NDArray[np.floating[Any]]

POINTS = 1_000_000
"""Points of all flows together: 64 bytes each."""

FLOWS = 200
"""Flows with points; the least active ones lose theirs first."""

MARKS = 5_000
"""Marks of a flow, and times of its retransmissions."""

KINDS = {
    "cwr": ("C", "Local Congestion or another CWR"),
    "recovery": ("R", "Recovery: duplicate ACKs or SACK"),
    "loss": ("L", "Loss: the retransmission timer ran out"),
    "ecn": ("E", "congestion mark echoed (ECN)"),
    "undo": ("U", "undo: the reduction was not needed"),
}
"""Kinds of marks: letter and meaning."""

_KIND_OF = {
    **dict.fromkeys(("local", "cwr", "tlp"), "cwr"),
    **dict.fromkeys(("dupack", "sack", "rack", "recovery", "mtu"), "recovery"),
    **{"rto": "loss", "ecn": "ecn", "undo": "undo"},
}
POLLED = {"CWR": "cwr", "Recovery": "recovery", "Loss": "rto", "Disorder": "disorder"}
"""Causes of states that polls see: more they cannot tell."""

_SERIES = ("t", "cwnd", "ssthresh", "inflight", "srtt_ms", "acked", "pacing_bps", "rwnd")
_MSS = 1448
_QUIET_S = 60.0
_THIN = 4


@dataclass(frozen=True)
class Mark:
    """An event of a flow: a state that was entered for a cause, or an undo.

    Attributes:
        t_s: when.
        kind: one of :data:`KINDS`.
        cause: one of schema.CAUSES.
        text: state and evidence, for people.
    """

    t_s: float
    kind: str
    cause: str
    text: str


class Points:
    """Rows of :data:`_SERIES` in order of time, at most ``limit`` of them."""

    def __init__(self) -> None:
        self._data = np.empty((len(_SERIES), 256))
        self.count = 0

    def add(self, rows: Array, limit: int) -> None:
        """Append rows (one array a series); thin the older half when there are too many."""
        need = self.count + rows.shape[1]
        if need > self._data.shape[1]:
            grown = np.empty((len(_SERIES), max(need, 2 * self._data.shape[1])))
            grown[:, : self.count] = self._data[:, : self.count]
            self._data = grown
        self._data[:, self.count : need] = rows
        self.count = need
        while self.count > limit:
            self._thin()

    def _thin(self) -> None:
        old = self._data[:, : self.count]
        half = max(self.count // 2 // _THIN, 1) * _THIN
        groups = np.nan_to_num(old[1, :half]).reshape(-1, _THIN)
        base = np.arange(0, half, _THIN)
        keep = np.unique(np.concatenate([base + groups.argmin(1), base + groups.argmax(1)]))
        kept = np.concatenate([old[:, keep], old[:, half:]], axis=1)
        self._data = kept
        self.count = kept.shape[1]

    def column(self, name: str) -> Array:
        """All values of a series."""
        made: Array = self._data[_SERIES.index(name), : self.count]
        return made

    def between(self, first_s: float, last_s: float) -> dict[str, Array]:
        """The rows of a span of time, and one more on each side so that lines reach the edge."""
        times = self.column("t")
        first = max(int(np.searchsorted(times, first_s)) - 1, 0)
        last = int(np.searchsorted(times, last_s, side="right")) + 1
        part = self._data[:, first : min(last, self.count)]
        return {name: part[i].copy() for i, name in enumerate(_SERIES)}


@dataclass
class Flow:
    """A flow as the views see it.

    Attributes:
        label: its name in the recording.
        info: addresses, ports, algorithm.
        points: the curves.
        marks: events, oldest first.
        retransmits: times of retransmissions.
        state: CA state now.
        counts: marks by kind and ``retransmits``, since the start.
        seen_s: time of the last row.
        closed: the connection has ended.
    """

    label: str
    info: Mapping[str, Any]
    points: Points = field(default_factory=Points)
    marks: deque[Mark] = field(default_factory=lambda: deque(maxlen=MARKS))
    retransmits: deque[float] = field(default_factory=lambda: deque(maxlen=MARKS))
    state: str = "Open"
    counts: Counter[str] = field(default_factory=Counter)
    seen_s: float = 0.0
    closed: bool = False
    mss: float = _MSS
    _rate: tuple[float, float] = (-1.0, 0.0)

    @property
    def ends(self) -> str:
        """Both ends, as text."""
        info = self.info
        return f"{_end(info, 'src', 'sport')} \u2192 {_end(info, 'dst', 'dport')}"

    @property
    def cc(self) -> str:
        """Name of the congestion control, or empty."""
        return str(self.info.get("cc") or "")

    def last(self) -> dict[str, float]:
        """The newest point; empty without points."""
        if not self.points.count:
            return {}
        return {name: float(self.points.column(name)[-1]) for name in _SERIES}

    def rate_bps(self, now_s: float, span_s: float = 1.0) -> float:
        """Bits acknowledged in a second, over the last ``span_s``."""
        edges = np.array([now_s - span_s, now_s])
        return float(self.rates(edges)[0])

    def rates(self, edges: Array) -> Array:
        """Bits acknowledged in a second, in each span between two times."""
        times, acked = self.points.column("t"), self.points.column("acked")
        if not len(times):
            return np.zeros(len(edges) - 1)
        # Between two ACKs nothing was acknowledged: steps, not slopes.
        place = np.searchsorted(times, edges, side="right") - 1
        level = np.where(place >= 0, acked[np.maximum(place, 0)], acked[0])
        made: Array = np.diff(level) * 8 / np.diff(edges)
        return made


def _end(info: Mapping[str, Any], host: str, port: str) -> str:
    address = str(info.get(host, "?"))
    if not info.get(port):
        return address
    return f"[{address}]:{info[port]}" if ":" in address else f"{address}:{info[port]}"


class Model:
    """Takes frames, keeps flows; not safe for several threads at once.

    Attributes:
        flows: by label.
        now_s, lost, over: of the newest frame.
        forgotten: flows that were dropped because there were too many.
        version: grows with each frame that had rows.
    """

    def __init__(self) -> None:
        self.flows: dict[str, Flow] = {}
        self.now_s = 0.0
        self.lost = 0
        self.over = False
        self.forgotten = 0
        self.version = 0

    def add(self, frame: Frame) -> None:
        """Take what is new."""
        self.now_s, self.lost, self.over = frame.now_s, frame.lost, frame.over
        self.version += bool(frame.tables)
        for tables in frame.tables:
            self._tables(tables, frame.flows)
        if len(self.flows) > FLOWS:
            self._drop()

    def _tables(self, tables: Mapping[str, Columns], infos: Mapping[str, Any]) -> None:
        for name, take in (
            ("acks", _acks),
            ("samples", _samples),
            ("packets", _packets),
            ("states", _states),
            ("retransmits", _retransmits),
            ("life", _life),
        ):
            columns = tables.get(name)
            if columns is None or not len(columns["t_s"]):
                continue
            if name in ("samples", "packets") and "acks" in tables and len(tables["acks"]["t_s"]):
                polled = set(tables["acks"]["flow"].tolist())
            else:
                polled = set()
            for label, rows in by_flow(columns):
                flow = self._flow(label, infos)
                # With each ACK seen, polls add nothing to the curves.
                if label in polled:
                    flow.mss = _last(rows, "mss_bytes", flow.mss)
                    continue
                take(flow, rows, max(POINTS // max(len(self.flows), 8), 500))
                flow.seen_s = max(flow.seen_s, float(rows["t_s"][-1]))

    def _flow(self, label: str, infos: Mapping[str, Any]) -> Flow:
        flow = self.flows.get(label)
        if flow is None:
            info = infos.get(label, {})
            flow = self.flows[label] = Flow(label, info, mss=float(info.get("mss") or _MSS))
        return flow

    def _drop(self) -> None:
        order = sorted(self.flows.values(), key=lambda f: (not f.closed, f.seen_s))
        for flow in order[: len(self.flows) - FLOWS * 3 // 4]:
            del self.flows[flow.label]
            self.forgotten += 1

    def busiest(self, span_s: float = 5.0) -> list[Flow]:
        """The flows, most bytes acknowledged lately first."""
        rated = [(f.rate_bps(self.now_s, span_s), f.points.count, f) for f in self.flows.values()]
        return [f for *_, f in sorted(rated, key=lambda r: r[:2], reverse=True)]


def by_flow(columns: Columns) -> Iterable[tuple[str, Columns]]:
    """The rows of each flow, flows in the order of appearance."""
    labels = columns["flow"]
    names = list(dict.fromkeys(labels.tolist()))
    if len(names) == 1:
        yield names[0], columns
        return
    order = {name: i for i, name in enumerate(names)}
    numbers = np.array([order[label] for label in labels.tolist()])
    rows = np.argsort(numbers, kind="stable")
    cuts = np.searchsorted(numbers[rows], np.arange(1, len(names)))
    for name, mine in zip(names, np.split(rows, cuts), strict=True):
        if name is not None:
            yield name, {column: values[mine] for column, values in columns.items()}


def _column(rows: Columns, name: str) -> Array:
    values = rows.get(name)
    if values is None:
        return np.full(len(rows["t_s"]), np.nan)
    return np.asarray(values, dtype=float)


def _last(rows: Columns, name: str, default: float) -> float:
    values = _column(rows, name)
    values = values[np.isfinite(values) & (values > 0)]
    return float(values[-1]) if len(values) else default


def _threshold(values: Array) -> Array:
    return np.where(values >= SSTHRESH_NONE, np.nan, values)


def _in_flight(rows: Columns) -> Array:
    """Segments in the network as the kernel counts them; NaN where it was not told."""
    gone = _column(rows, "sacked_segs") + _column(rows, "lost_segs")
    return _column(rows, "unacked_segs") - gone + _column(rows, "retrans_segs")


def _acks(flow: Flow, rows: Columns, limit: int) -> None:
    counted = _in_flight(rows)
    inflight = np.where(np.isnan(counted), _column(rows, "inflight_bytes") / flow.mss, counted)
    points = [
        *(rows["t_s"], rows["cwnd_segs"], _threshold(_column(rows, "ssthresh_segs")), inflight),
        *(_column(rows, "srtt_us") / 1e3, _column(rows, "una_bytes")),
        *(_column(rows, "pacing_rate_Bps") * 8, _column(rows, "snd_wnd_bytes") / flow.mss),
    ]
    flow.points.add(np.array([np.asarray(p, dtype=float) for p in points]), limit)


def _samples(flow: Flow, rows: Columns, limit: int) -> None:
    flow.mss = _last(rows, "mss_bytes", flow.mss)
    points = [
        *(rows["t_s"], rows["cwnd_segs"], _threshold(_column(rows, "ssthresh_segs"))),
        *(_in_flight(rows), _column(rows, "srtt_us") / 1e3, _column(rows, "bytes_acked")),
        *(_column(rows, "pacing_rate_Bps") * 8, _column(rows, "snd_wnd_bytes") / flow.mss),
    ]
    flow.points.add(np.array([np.asarray(p, dtype=float) for p in points]), limit)
    # What polls see of states and retransmissions; causes need the kernel's events.
    states, totals = _column(rows, "ca_state"), _column(rows, "retrans_total")
    for t_s, number, total in zip(rows["t_s"].tolist(), states, totals, strict=True):
        if np.isfinite(number) and (entered := CA_STATES[int(number)]) != flow.state:
            _enter(flow, t_s, (entered, flow.state, POLLED.get(entered, "done"), "seen by a poll"))
        if np.isfinite(total):
            before = flow.counts["retransmits"]
            if flow.points.count > len(states) and total > before:
                flow.retransmits.append(t_s)
            flow.counts["retransmits"] = int(total)


def _packets(flow: Flow, rows: Columns, limit: int) -> None:
    """A capture tells what was sent and acknowledged, not the window."""
    coming = rows["direction"] == "in"
    sent = np.where(coming, np.nan, _column(rows, "seq_bytes") + _column(rows, "len_bytes"))
    acked = np.where(coming, _column(rows, "ack_bytes"), np.nan)
    last = flow.last()
    first = last.get("acked", 0.0)
    level = np.fmax.accumulate(np.append(first, acked))[1:]
    flight = last.get("inflight", 0.0) * flow.mss
    top = np.fmax.accumulate(np.append(first + flight, sent))[1:]
    none = np.full(len(level), np.nan)
    points = [rows["t_s"], none, none, np.maximum(top - level, 0) / flow.mss, none, level]
    flow.points.add(np.array([*points, none, _column(rows, "window_bytes") / flow.mss]), limit)


def _states(flow: Flow, rows: Columns, _: int) -> None:
    names = ("state", "left", "cause", "evidence")
    for t_s, *said in zip(rows["t_s"].tolist(), *(rows[n].tolist() for n in names), strict=True):
        _enter(flow, t_s, (said[0] or "", said[1] or "", said[2] or "", said[3] or ""))


def _enter(flow: Flow, t_s: float, said: tuple[str, str, str, str]) -> None:
    entered, left, cause, evidence = said
    flow.state = entered or flow.state
    kind = _KIND_OF.get(cause)
    if kind is None:
        return
    text = entered if cause == entered.lower() else f"{entered} ({cause})"
    if kind == "undo":
        text = f"undo, {left} \u2192 {entered}" if left != entered else "undo"
    flow.marks.append(Mark(t_s, kind, cause, f"{text}: {evidence}" if evidence else text))
    flow.counts[kind] += 1


def _retransmits(flow: Flow, rows: Columns, _: int) -> None:
    flow.retransmits.extend(rows["t_s"].tolist())
    flow.counts["retransmits"] += len(rows["t_s"])


def _life(flow: Flow, rows: Columns, _: int) -> None:
    new = [state for state in rows["new"].tolist() if state]
    if new:
        flow.closed = new[-1] in ("CLOSE", "TIME_WAIT")


def outline(times: Array, values: Array, edges: Array) -> tuple[Array, Array]:
    """At most four points a span that draw as all points would: first, lowest, highest, last.

    Args:
        times, values: a curve in order of time; values that are not finite are left out.
        edges: limits of the spans, increasing; points outside count to the outer spans.
    """
    known = np.isfinite(values)
    times, values = times[known], values[known]
    if len(times) <= 4 * len(edges):
        return times, values
    spans = np.clip(np.searchsorted(edges, times, side="right"), 1, len(edges) - 1)
    starts = np.flatnonzero(np.diff(spans, prepend=0))
    ends = np.append(starts[1:], len(times)) - 1
    order = np.lexsort((values, spans))
    keep = np.unique(np.concatenate([starts, ends, order[starts], order[ends]]))
    return times[keep], values[keep]
