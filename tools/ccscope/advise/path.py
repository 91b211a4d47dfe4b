"""What a recording shows of a path: capacity, round trip, and where cwnd collapses.

Rules, all of them estimates:

* Round trip without a queue: the least RTT polled or recorded, else the least srtt.
* Capacity: the 90th percentile of the bytes acknowledged in stretches of ten round trips (half a
  second at least) without a loss event; of all stretches when there are none without.
* Knee: capacity times round trip, and three segments, because a receiver acknowledges every second
  segment and one is being sent.  A smaller window leaves the path empty at times.
* Collapse: bytes in flight when a reduction began, at its fullest in the round trip before; the
  10th percentile over the reductions.  Reductions at an srtt below 1.25 round trips had no queue
  behind them: those losses are the channel's, and no window prevents them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ccscope.errors import CcscopeError
from ccscope.explain.classes import LIMIT
from ccscope.explain.classify import Array
from ccscope.explain.evidence import Evidence
from ccscope.recording import Recording

WARM_UP = 0.25
"""The part of a flow that is not the steady state."""
QUEUED = 1.25
_SPARE_SEGS = 3


@dataclass(frozen=True)
class Steady:
    """A flow's steady state: after the first quarter.

    Attributes:
        goodput_Bps: bytes acknowledged a second.
        srtt_s: mean smoothed round-trip time, over time.
        cwnd_segs: mean congestion window, over time.
        cwnd_cv: coefficient of variation of cwnd, over time.
        losses: reductions of cwnd.
    """

    goodput_Bps: float  # noqa: N815 - bytes and bits are told apart as in the schema
    srtt_s: float
    cwnd_segs: float
    cwnd_cv: float
    losses: int


@dataclass(frozen=True)
class Path:
    """A path as one flow saw it.

    Attributes:
        mss_bytes: segment size.
        rtt_s: round trip without a queue.
        capacity_Bps: bytes a second that the path can acknowledge.
        window_bytes: largest window that the receiver offered.
        collapse_bytes: bytes in flight at which cwnd collapses; None when it did not.
        collapses: reductions in the whole flow.
        queued: how many of them had a queue behind them (or were local).
        steady: what the flow itself got.
        other_limit: what limited the flow for most of its time, if that was not cwnd; its capacity
            is then only what it used, and says nothing of the path.
    """

    mss_bytes: float
    rtt_s: float
    capacity_Bps: float  # noqa: N815
    window_bytes: float
    collapse_bytes: float | None
    collapses: int
    queued: int
    steady: Steady
    other_limit: str | None = None

    @property
    def knee_bytes(self) -> float:
        """The smallest window that fills the path."""
        return self.capacity_Bps * self.rtt_s + _SPARE_SEGS * self.mss_bytes

    @property
    def random(self) -> bool:
        """Whether most reductions were the channel's doing."""
        return self.collapses > 0 and self.queued * 2 < self.collapses

    def goodput_at(self, window_bytes: float) -> float:
        """Estimated goodput with a window, in bytes a second: what fits into a round trip."""
        room = max(window_bytes - (_SPARE_SEGS - 1) * self.mss_bytes, self.mss_bytes)
        return min(self.capacity_Bps, room / self.rtt_s)

    def srtt_at(self, window_bytes: float) -> float:
        """Estimated round trip with a window: what does not fit on the path waits in the queue."""
        return max(self.rtt_s, window_bytes / self.capacity_Bps)


def measure(recording: Recording, label: str, evidence: Evidence) -> Path:
    """A flow's path.

    Raises:
        CcscopeError: the flow is too short or was not recorded well enough.
    """
    length = evidence.slices.end_s - evidence.slices.start_s
    if len(evidence.progress.t_s) < 10 or length < 20 * max(evidence.srtt_s, 1e-3):
        raise CcscopeError(
            f"{recording.path}: flow {label} is too short to advise on: record 20 round trips"
        )
    rtt_s = _least_rtt(recording, label, evidence)
    levels = evidence.levels
    if np.isnan(levels["cwnd_segs"]).all():
        raise CcscopeError(
            f"{recording.path}: flow {label} has no cwnd (a capture does not show it): record "
            "it at its sender with `ccscope record`"
        )
    events = [e for e in evidence.events if not e.spurious]
    flights = [_flight(evidence, e.t_s - e.silent_s) for e in events]
    queued = [
        e.kind == "local" or _srtt(evidence, e.t_s - e.silent_s) >= QUEUED * rtt_s for e in events
    ]
    behind = [f for f, q in zip(flights, queued, strict=True) if q]
    windows = levels["rwnd_bytes"][~np.isnan(levels["rwnd_bytes"])]
    return Path(
        mss_bytes=evidence.mss_bytes,
        rtt_s=rtt_s,
        capacity_Bps=_capacity(evidence, rtt_s),
        window_bytes=float(windows.max()) if len(windows) else float("nan"),
        collapse_bytes=float(np.percentile(behind, 10)) if behind else None,
        collapses=len(events),
        queued=len(behind),
        steady=steady_of(evidence),
        other_limit=_other_limit(evidence),
    )


def _other_limit(evidence: Evidence) -> str | None:
    sums: dict[str, float] = {}
    for name, seconds in evidence.slices.seconds().items():
        if LIMIT[name] != "idle":
            sums[LIMIT[name]] = sums.get(LIMIT[name], 0.0) + seconds
    others = {name: value for name, value in sums.items() if name != "cwnd"}
    if sum(others.values()) <= sums.get("cwnd", 0.0):
        return None
    return max(others, key=lambda name: others[name])


def _least_rtt(recording: Recording, label: str, evidence: Evidence) -> float:
    known = [
        values[values > 0]
        for values in (
            recording.flow("samples", label)["min_rtt_us"].astype(float),
            recording.flow("acks", label)["min_rtt_us"].astype(float),
            evidence.levels["srtt_us"].astype(float),
        )
    ]
    best = next((float(v.min()) for v in known if len(v)), 0.0)
    if best <= 0:
        raise CcscopeError(f"{recording.path}: flow {label} has no round-trip time")
    return best / 1e6


def _flight(evidence: Evidence, t_s: float) -> float:
    """Bytes in flight at their fullest in the round trip before an instant."""
    times = evidence.levels["t_s"]
    low, high = np.searchsorted(times, [t_s - max(evidence.srtt_s, 1e-3), t_s + 1e-9])
    low = min(low, max(high - 1, 0))
    return float(np.nanmax(evidence.levels["inflight_bytes"][low : max(high, low + 1)]))


def _srtt(evidence: Evidence, t_s: float) -> float:
    at = max(int(np.searchsorted(evidence.levels["t_s"], t_s)) - 1, 0)
    return float(evidence.levels["srtt_us"][at]) / 1e6


def _capacity(evidence: Evidence, rtt_s: float) -> float:
    slices, progress = evidence.slices, evidence.progress
    span = max(0.5, 10 * rtt_s, 10 * evidence.srtt_s)
    span = min(span, (slices.end_s - slices.start_s) / 4)
    edges = np.arange(slices.start_s, slices.end_s - span, span / 4)
    rates, clean = [], []
    for low in edges.tolist():
        rate = progress.between(low, low + span) / span
        rates.append(rate)
        if not any(e.t_s < low + span and e.end_s > low for e in evidence.events):
            clean.append(rate)
    return float(np.percentile(clean or rates, 90))


def steady_of(evidence: Evidence) -> Steady:
    """The steady state of a flow."""
    slices = evidence.slices
    low = slices.start_s + WARM_UP * (slices.end_s - slices.start_s)
    levels = evidence.levels
    # What is seen at an ACK held since the ACK before.
    spans = np.diff(np.clip(levels["t_s"], low, None), prepend=low)
    spans = np.maximum(spans, 0.0)
    cwnd, deviation = _weighted(levels["cwnd_segs"], spans)
    srtt, _ = _weighted(levels["srtt_us"].astype(float), spans)
    return Steady(
        goodput_Bps=evidence.progress.between(low, slices.end_s) / (slices.end_s - low),
        srtt_s=srtt / 1e6,
        cwnd_segs=cwnd,
        cwnd_cv=deviation / cwnd if cwnd else 0.0,
        losses=sum(e.t_s - e.silent_s >= low and not e.spurious for e in evidence.events),
    )


def _weighted(values: Array, weights: Array) -> tuple[float, float]:
    """Mean and standard deviation over time."""
    known = ~np.isnan(values) & (weights > 0)
    if not known.any():
        return 0.0, 0.0
    mean = float(np.average(values[known], weights=weights[known]))
    square = float(np.average((values[known] - mean) ** 2, weights=weights[known]))
    return mean, float(np.sqrt(square))
