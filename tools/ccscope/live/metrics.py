"""Numbers for Prometheus: what all flows did since the start, by congestion control.

Labels are bounded: algorithm, CA state, cause, kind of retransmission.  Flows are labels only on
request, and then at most so many.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from ccscope.errors import EXIT_OK
from ccscope.live.feeds import Feed, Frame
from ccscope.live.httpd import Answer, Server
from ccscope.live.model import POLLED, Flow, Model, by_flow
from ccscope.live.pump import Pump
from ccscope.recording import Columns
from ccscope.schema import CA_STATES

SRTT_S = (*(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1), *(0.2, 0.3, 0.5, 1.0, 3.0, 10.0))
"""Upper ends of the histogram's buckets."""

_ALGORITHMS = 50
_OTHER = "other"
_QUIET_S = 60.0


@dataclass
class _State:
    """Where a flow is: its algorithm, CA state, since when, its counters at the last poll."""

    cc: str
    ca: str
    since_s: float
    seen_s: float
    retransmits: float = 0.0
    known: bool = False


class Tally(Model):
    """A model that also counts; the numbers never go down.

    Args:
        per_flow: flows that get numbers of their own, the busiest first; 0 for none.
    """

    def __init__(self, feed: Feed, per_flow: int = 0) -> None:
        super().__init__()
        self._feed, self._per_flow = feed, per_flow
        self._states: dict[str, _State] = {}
        self._algorithms: set[str] = set()
        self._srtt: dict[str, Any] = defaultdict(lambda: np.zeros(len(SRTT_S) + 1, dtype=np.int64))
        self._srtt_sum: dict[str, float] = defaultdict(float)
        self._retransmits: Counter[tuple[str, str]] = Counter()
        self._events: Counter[tuple[str, str]] = Counter()
        self._seconds: dict[tuple[str, str], float] = defaultdict(float)

    # ---- counting ----

    def add(self, frame: Frame) -> None:
        """Take what is new."""
        for tables in frame.tables:
            traced = "acks" in tables
            for name, count in (
                ("acks", self._acks),
                ("samples", self._samples),
                ("states", self._changes),
                ("retransmits", self._again),
                ("life", self._life),
            ):
                columns = tables.get(name)
                if columns is not None and len(columns["t_s"]):
                    for label, rows in by_flow(columns):
                        state = self._state(label, rows, frame.flows)
                        if not (traced and name == "samples"):
                            count(state, rows)
        super().add(frame)
        for state in self._states.values():
            self._pass(state, frame.now_s)
        gone = [n for n, s in self._states.items() if s.seen_s < frame.now_s - _QUIET_S]
        for label in gone:
            del self._states[label]

    def _state(self, label: str, rows: Columns, infos: Mapping[str, Any]) -> _State:
        first, last = float(rows["t_s"][0]), float(rows["t_s"][-1])
        state = self._states.get(label)
        if state is None:
            state = self._states[label] = _State(_OTHER, "Open", first, last)
        state.seen_s = max(state.seen_s, last)
        name = infos.get(label, {}).get("cc") or ""
        if (
            name
            and state.cc == _OTHER
            and (name in self._algorithms or len(self._algorithms) < _ALGORITHMS)
        ):
            self._algorithms.add(name)
            state.cc = name
        return state

    def _pass(self, state: _State, now_s: float) -> None:
        """Count the time up to now for the state a flow is in."""
        if now_s > state.since_s:
            self._seconds[state.cc, state.ca] += now_s - state.since_s
            state.since_s = now_s

    def _acks(self, state: _State, rows: Columns) -> None:
        self._observe(state.cc, rows["srtt_us"])

    def _observe(self, cc: str, srtt_us: Any) -> None:  # noqa: ANN401 - a numpy array
        values = np.asarray(srtt_us, dtype=float) / 1e6
        values = values[np.isfinite(values) & (values > 0)]
        if len(values):
            places = np.searchsorted(SRTT_S, values, side="left")
            self._srtt[cc] += np.bincount(places, minlength=len(SRTT_S) + 1)
            self._srtt_sum[cc] += float(values.sum())

    def _samples(self, state: _State, rows: Columns) -> None:
        self._observe(state.cc, rows["srtt_us"])
        totals = np.asarray(rows["retrans_total"], dtype=float)
        total = float(np.nanmax(totals)) if np.isfinite(totals).any() else state.retransmits
        # What was sent again before the first look is not of this time.
        if state.known and total > state.retransmits:
            self._retransmits[state.cc, "unknown"] += int(total - state.retransmits)
        state.retransmits, state.known = total, True
        for t_s, number in zip(rows["t_s"].tolist(), rows["ca_state"].tolist(), strict=True):
            if np.isfinite(number) and (entered := CA_STATES[int(number)]) != state.ca:
                self._enter(state, t_s, entered, POLLED.get(entered, "done"))

    def _enter(self, state: _State, t_s: float, entered: str, cause: str) -> None:
        self._pass(state, t_s)
        state.ca = entered
        self._events[state.cc, cause] += 1

    def _changes(self, state: _State, rows: Columns) -> None:
        columns = (rows[n].tolist() for n in ("t_s", "state", "cause"))
        for t_s, entered, cause in zip(*columns, strict=True):
            self._enter(state, t_s, entered or state.ca, cause or "unknown")

    def _again(self, state: _State, rows: Columns) -> None:
        for kind, count in Counter(rows["kind"].tolist()).items():
            self._retransmits[state.cc, kind or "unknown"] += count

    def _life(self, state: _State, rows: Columns) -> None:
        if rows["new"].tolist()[-1] == "CLOSE":
            state.seen_s = -np.inf  # gone with the next frame

    # ---- what Prometheus gets ----

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        name = self._feed.source.split(" ")[0]
        source = GaugeMetricFamily("ccscope_source", "1; which source it is", labels=["source"])
        source.add_metric([name], 1)
        yield source
        yield CounterMetricFamily("ccscope_lost_events", "events the source lost", value=self.lost)
        srtt = HistogramMetricFamily(
            "ccscope_srtt_seconds",
            "smoothed round-trip time at each ACK (sockdiag: at each poll)",
            labels=["cc"],
        )
        for cc, counts in self._srtt.items():
            totals = np.cumsum(counts).tolist()
            ends = [*map(str, SRTT_S), "+Inf"]
            srtt.add_metric([cc], list(zip(ends, totals, strict=True)), self._srtt_sum[cc])
        yield srtt
        tables: tuple[tuple[str, str, str, Mapping[tuple[str, str], float]], ...] = (
            ("retransmitted_segments", "segments sent again", "kind", self._retransmits),
            ("ca_events", "changes of the CA state and undos", "cause", self._events),
            ("ca_state_seconds", "time of all flows in a CA state", "state", self._seconds),
        )
        for metric, about, label, counts in tables:
            family = CounterMetricFamily(f"ccscope_{metric}", about, labels=["cc", label])
            for (cc, value), count in sorted(counts.items()):
                family.add_metric([cc, value], count)
            yield family
        flows = GaugeMetricFamily(
            "ccscope_connections",
            f"connections seen in the last {_QUIET_S:.0f} s and not closed",
            labels=["cc"],
        )
        for cc, count in sorted(Counter(s.cc for s in self._states.values()).items()):
            flows.add_metric([cc], count)
        yield flows
        if self._per_flow:
            yield from self._flows(self.busiest(60.0)[: self._per_flow])

    def _flows(self, flows: list[Flow]) -> Iterator[Metric]:
        names = ["flow", "src", "dst", "cc"]
        parts = {
            "cwnd": ("cwnd_segments", "congestion window", 1.0),
            "ssthresh": ("ssthresh_segments", "slow-start threshold; absent when there is none", 1),
            "srtt_ms": ("flow_srtt_seconds", "smoothed round-trip time", 1e-3),
        }
        for series, (name, about, scale) in parts.items():
            family = GaugeMetricFamily(f"ccscope_{name}", about, labels=names)
            for flow in flows:
                value = flow.last().get(series, np.nan)
                if np.isfinite(value):
                    src, _, dst = flow.ends.partition(" \u2192 ")
                    family.add_metric([flow.label, src, dst, flow.cc], value * scale)
            yield family


class Exposition:
    """Gives the text that Prometheus reads."""

    def __init__(self, tally: Tally, lock: threading.Lock) -> None:
        self._tally, self._lock = tally, lock
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """For prometheus_client."""
        with self._lock:
            yield from list(self._tally.collect())

    def answer(self, path: str, _: Mapping[str, list[str]]) -> Answer | None:
        """``GET /metrics``."""
        if path == "":
            return Answer("text/plain; charset=utf-8", b"ccscope: see /metrics\n")
        if path != "metrics":
            return None
        return Answer(CONTENT_TYPE_LATEST, generate_latest(self._registry))


def run(feed: Feed, *, address: str, port: int, per_flow: int) -> int:
    """Serve until Ctrl-C; returns the exit status.

    Raises:
        CcscopeError: the address cannot be had, or the source has failed.
    """
    tally = Tally(feed, per_flow)
    with feed, Pump(feed, tally, every_s=0.25) as pump:
        exposition = Exposition(tally, pump.lock)
        with Server(address, port, exposition.answer) as server:
            print(f"{server.url}metrics", flush=True)
            print(f"ccscope: {feed.source}; Ctrl-C ends it", file=sys.stderr)
            try:
                while pump.error is None:
                    time.sleep(0.2)
            except KeyboardInterrupt:
                return EXIT_OK
    raise pump.error
