"""Numbers of a flow, as the tables of ``report`` and ``diff`` show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ccscope.draw.curves import Curve
from ccscope.draw.flowview import FlowView
from ccscope.schema import CA_STATES


@dataclass(frozen=True)
class FlowMetrics:
    """A flow in numbers; None where the recording cannot tell.

    Attributes:
        goodput_bps: bytes delivered over the time in which the flow had any rows.
        goodput_of: ``receiver``, ``capture`` or ``acked``.
        cwnd_mean_segs, cwnd_cv: mean over time, and standard deviation over time by the mean.
        cwnd_max_segs: highest.
        srtt_p50_us, srtt_p95_us, srtt_p99_us: quantiles over the rows (ACKs or polls); of a
            capture at the sender over its round-trip times.
        rtt_min_us: lowest seen by the kernel, else by the capture.
        retransmits: segments sent again.
        state_n, state_s: how often each CA state was entered, and seconds in it.
        events: how often each cause of schema.CAUSES took place (events that are marked only).
    """

    duration_s: float
    goodput_bps: float | None
    goodput_of: str
    cwnd_mean_segs: float | None
    cwnd_cv: float | None
    cwnd_max_segs: float | None
    srtt_p50_us: float | None
    srtt_p95_us: float | None
    srtt_p99_us: float | None
    rtt_min_us: float | None
    retransmits: int | None
    state_n: dict[str, int]
    state_s: dict[str, float]
    events: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def metrics(view: FlowView, stop: float) -> FlowMetrics:
    """The numbers of a flow from its first row to ``stop`` (s)."""
    start = _first(view)
    length = max(stop - start, 0.0)
    mean, cv, top = _over_time(view.cwnd, stop)
    p50, p95, p99, low = _rtts(view)
    stays = view.stays(start, stop)
    total = view.delivered_bytes
    return FlowMetrics(
        duration_s=length,
        goodput_bps=(
            float(total.y[-1] - total.y[0]) * 8 / length if len(total) and length > 0 else None
        ),
        goodput_of=view.goodput_of,
        cwnd_mean_segs=mean,
        cwnd_cv=cv,
        cwnd_max_segs=top,
        srtt_p50_us=p50,
        srtt_p95_us=p95,
        srtt_p99_us=p99,
        rtt_min_us=low,
        retransmits=_retransmits(view),
        state_n=_entered(view),
        state_s={
            s: sum(i.stop_s - i.start_s for i in stays if i.state == s) for s in CA_STATES
        } if stays else {},
        events=dict(sorted(Counter(m.cause for m in view.marks).items())),
    )  # fmt: skip


def _first(view: FlowView) -> float:
    firsts = [c.t[0] for c in (view.cwnd, view.delivered_bytes) if len(c)]
    return float(min(firsts, default=0.0))


def _entered(view: FlowView) -> dict[str, int]:
    rows = [(state, left) for _, state, left, _, _ in view.state_rows]
    counts = Counter(state for state, left in rows if state != left or state == "Loss")
    return {state: counts[state] for state in CA_STATES if counts[state]}


def _over_time(curve: Curve, stop: float) -> tuple[float | None, float | None, float | None]:
    """Mean, coefficient of variation and maximum of a step curve up to ``stop``."""
    if not curve.known:
        return None, None, None
    lengths = np.maximum(np.diff(np.append(curve.t, max(stop, curve.t[-1]))), 0.0)
    good = ~np.isnan(curve.y)
    y, weight = curve.y[good], lengths[good]
    if weight.sum() <= 0:
        weight = np.ones(len(y))
    mean = float(np.average(y, weights=weight))
    deviation = float(np.sqrt(np.average((y - mean) ** 2, weights=weight)))
    return mean, deviation / mean if mean else None, float(y.max())


def _rtts(view: FlowView) -> tuple[float | None, float | None, float | None, float | None]:
    samples = view.srtt_ms if view.srtt_ms.known else view.rtt_samples_ms
    values = samples.y[~np.isnan(samples.y)] * 1e3
    if not len(values):
        return None, None, None, None
    p50, p95, p99 = (float(q) for q in np.quantile(values, (0.5, 0.95, 0.99)))
    lowest = view.min_rtt_ms if view.min_rtt_ms.known else view.rtt_samples_ms
    low = float(np.nanmin(lowest.y)) * 1e3 if lowest.known else None
    return p50, p95, p99, low


def _retransmits(view: FlowView) -> int | None:
    total = view.samples["retrans_total"].astype(float)
    if len(total) and not np.isnan(total).all():
        polled = int(np.nanmax(total))
        return max(polled, len(view.retransmit_times))
    known = {"retransmits", "packets"} & set(view.recording.tables())
    return len(view.retransmit_times) if known or view.source == "acks" else None


# ---- in words ----

ROWS: tuple[tuple[str, str, float, str], ...] = (
    ("goodput_bps", "goodput, Mbit/s", 1e-6, ".3f"),
    ("cwnd_mean_segs", "cwnd, mean, segments", 1, ".2f"),
    ("cwnd_cv", "cwnd, coefficient of variation", 1, ".3f"),
    ("cwnd_max_segs", "cwnd, highest, segments", 1, ".0f"),
    ("srtt_p50_us", "srtt, median, ms", 1e-3, ".2f"),
    ("srtt_p95_us", "srtt, 95th percentile, ms", 1e-3, ".2f"),
    ("srtt_p99_us", "srtt, 99th percentile, ms", 1e-3, ".2f"),
    ("rtt_min_us", "RTT, lowest, ms", 1e-3, ".2f"),
    ("retransmits", "segments sent again", 1, ".0f"),
    ("duration_s", "length, s", 1, ".3f"),
)
"""Key, heading, factor and format of the plain numbers."""


def flat(numbers: FlowMetrics) -> dict[str, float | None]:
    """All numbers under one key each: ``state_s.Open``, ``events.local``, ..."""
    made: dict[str, float | None] = {key: getattr(numbers, key) for key, *_ in ROWS}
    groups: tuple[tuple[str, Mapping[str, float]], ...] = (
        ("state_n", numbers.state_n),
        ("state_s", numbers.state_s),
        ("events", numbers.events),
    )
    for group, values in groups:
        made.update({f"{group}.{name}": float(value) for name, value in values.items()})
    return made


def heading(key: str) -> tuple[str, float, str]:
    """Heading, factor and format of a key of :func:`flat`."""
    for name, text, factor, form in ROWS:
        if name == key:
            return text, factor, form
    group, _, name = key.partition(".")
    return {
        "state_n": (f"{name}, entered", 1.0, ".0f"),
        "state_s": (f"{name}, s", 1.0, ".3f"),
        "events": (f"events: {name}", 1.0, ".0f"),
    }[group]
