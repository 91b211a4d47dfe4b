"""How a congestion window moves: numbers for the study of sawtooths, from the trace of one flow.

The first quarter of a flow (``SETTLING``) is its start-up; *steady* numbers are of the rest.
A *reduction* is an entry into CWR, Recovery or Loss from Open or Disorder: a Recovery that ends
in Loss is one reduction, not two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from ccscope.ftrace import Array, Columns

SETTLING = 0.25
"""Share of a flow that counts as its start-up."""

REDUCED = ("CWR", "Recovery", "Loss")
KINDS: dict[str, tuple[str, ...]] = {
    "local": ("local",),
    "recovery": ("dupack", "sack", "rack", "recovery"),
    "timeout": ("rto",),
}
"""The paper's three kinds of error, by the causes of ccscope."""


def window_metrics(acks: Columns, states: Columns, start: float, stop: float) -> dict[str, float]:
    """Numbers of a flow's window; what cannot be told is left out.

    Args:
        acks: columns ``t_s``, ``cwnd_segs``, ``snd_wnd_bytes`` in order of time.
        states: columns ``t_s``, ``state``, ``left``, ``cause`` in order of time.
        start, stop: the flow's time in s.

    Returns:
        ``cwnd_max_segs``; ``cwnd_steady_segs`` and ``cwnd_cv``, mean over time and coefficient of
        variation (standard deviation over mean) of the steady part; ``offered_bytes``, the largest
        window that the receiver offered; ``sawtooth_s``, the mean time between the steady
        part's reductions (three at least); ``reductions``; and for each of :data:`KINDS` how often
        it came (``local_events``, ...) and how often in the start-up (``early_local_events``, ...).
    """
    made: dict[str, float] = {}
    settled = start + SETTLING * (stop - start)
    inside = (acks["t_s"] >= start) & (acks["t_s"] <= stop)
    if inside.any():
        made["cwnd_max_segs"] = float(acks["cwnd_segs"][inside].max())
        made["offered_bytes"] = float(acks["snd_wnd_bytes"][inside].max())
        made |= _steady(acks["t_s"][inside], acks["cwnd_segs"][inside], settled, stop)
    cuts = reductions(states)
    times = states["t_s"][cuts]
    within = (times >= start) & (times <= stop)
    causes = [str(c) for c in states["cause"][cuts][within]]
    times = times[within]
    made["reductions"] = float(len(times))
    late = times[times >= settled]
    if len(late) >= 3:
        made["sawtooth_s"] = float(late[-1] - late[0]) / (len(late) - 1)
    early = [c for c, t in zip(causes, times, strict=True) if t < settled]
    for kind, members in KINDS.items():
        made[f"{kind}_events"] = float(sum(c in members for c in causes))
        made[f"early_{kind}_events"] = float(sum(c in members for c in early))
    return made


def reductions(states: Columns) -> Array:
    """Rows of ``states`` at which the window began to be reduced."""
    entered = np.isin(states["state"].astype(str), REDUCED)
    calm = np.isin(states["left"].astype(str), ("Open", "Disorder"))
    return np.flatnonzero(entered & calm)


def _steady(times: Array, cwnd: Array, settled: float, stop: float) -> dict[str, float]:
    """Mean and coefficient of variation over time; the window holds from one ACK to the next."""
    first = max(int(np.searchsorted(times, settled, side="right")) - 1, 0)
    begins = np.maximum(times[first:], settled)
    spans = np.diff(np.append(begins, stop))
    total = float(spans.sum())
    if total <= 0:
        return {}
    values = cwnd[first:].astype(float)
    mean = float((values * spans).sum()) / total
    spread = float((spans * (values - mean) ** 2).sum()) / total
    return {"cwnd_steady_segs": mean, "cwnd_cv": spread**0.5 / mean if mean else 0.0}


def drop_metrics(
    drops: Sequence[tuple[bool, int | None, int | None]],
) -> dict[str, float]:
    """Where packets were dropped: ``drops_own``, ``drops_way`` and ``drops_air``.

    Args:
        drops: for each stage whether its queue is a sender's own device, drops of its queue and
            drops of its channel (None when unknown).
    """
    made: Mapping[str, list[int]] = {
        "drops_own": [queue for own, queue, _ in drops if own and queue is not None],
        "drops_way": [queue for own, queue, _ in drops if not own and queue is not None],
        "drops_air": [air for _, _, air in drops if air is not None],
    }
    return {name: float(sum(counts)) for name, counts in made.items() if counts}
