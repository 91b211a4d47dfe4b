"""Losses and recoveries by cause, and what each cost.

**The rule of the cost.**  The flow's own goodput before an event is the bytes acknowledged in the
second before it (in ten round trips, if those are longer; not further back than the end of the
event before), by their time.  From the event on, the flow is followed until it is back in Open
*and* one cell of the resolution carried at least 95 % of that goodput again, or until the next
event or the flow's end.  What it would have carried at the former goodput in that time, less what
it carried, is the loss in bytes; that by the former goodput is the time lost.  It is an estimate:
it takes the former goodput for what the path would have gone on giving.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ccscope.explain.classify import Array
from ccscope.explain.evidence import Event, Evidence
from ccscope.recording import Columns

BACK = 0.95
_LONGEST_S = 60.0

RULE = (
    "cost: what the flow's own goodput before each event (1 s or 10 round trips) would have "
    "carried until it was back in Open and at 95 % of it (or the next event), less what was carried"
)

KINDS = {
    "local": ("Local Congestion (the sender's own queue refused a segment)", "CWR"),
    "ecn": ("reduction for an ECN mark", "CWR"),
    "tlp": ("tail loss repaired by a probe (TLP)", "CWR"),
    "cwr": ("reduction without a loss, cause not recorded", "CWR"),
    "sack": ("recovery by SACK", "Recovery"),
    "dupack": ("recovery by duplicate ACKs", "Recovery"),
    "rack": ("recovery by RACK's timer", "Recovery"),
    "recovery": ("recovery of losses, kind not recorded", "Recovery"),
    "rto": ("timeout", "Loss"),
    "mtu": ("repair of segments too large for the path", "Loss"),
}
"""Words and CA state of each kind."""

_STATE_ONLY = {"CWR": "cwr", "Recovery": "recovery", "Loss": "rto"}


@dataclass(frozen=True)
class Cost:
    """What one event cost.

    Attributes:
        event: which one.
        before_bps: the flow's goodput before it, bit/s of acknowledged payload.
        until_s: until when it was followed.
        lost_bytes: not carried, by the rule; 0 at least.
        lost_s: the same as time at the former goodput.
    """

    event: Event
    before_bps: float
    until_s: float
    lost_bytes: float
    lost_s: float


def from_states(states: Columns, end_s: float, acks_s: Array, rto_floor_s: float) -> list[Event]:
    """Events from the changes of the CA state.

    Args:
        states: the table's rows of one flow, in order of time.
        end_s: the flow's end.
        acks_s: when ACKs came, for the silence before timeouts; may be empty.
        rto_floor_s: silence taken when no ACK times are known.
    """
    made: list[Event] = []
    now: tuple[float, str, float] | None = None  # begin, kind, silence

    def close(t_s: float, *, spurious: bool = False) -> None:
        if now is not None:
            made.append(Event(now[0], t_s, now[1], spurious, now[2]))

    for t_s, state, cause in zip(
        states["t_s"].tolist(), states["state"], states["cause"], strict=True
    ):
        if cause == "undo" and now is None and made and t_s - made[-1].end_s < 1.0:
            last = made[-1]  # DSACK came after the end
            made[-1] = Event(last.t_s, last.end_s, last.kind, True, last.silent_s)
        elif state in _STATE_ONLY and cause != "undo":
            kind = cause if cause in KINDS else _STATE_ONLY[state]
            if state == "Loss" and now is not None and now[1] == "rto" and kind == "rto":
                continue  # the timer ran out again: the same timeout goes on
            close(t_s)
            silent = _silence(t_s, acks_s, rto_floor_s) if kind == "rto" else 0.0
            now = (t_s, kind, silent)
        elif state in ("Open", "Disorder"):
            close(t_s, spurious=cause == "undo")
            now = None
        elif cause == "undo":
            close(t_s, spurious=True)
            now = (t_s, now[1], 0.0) if now else None
    close(end_s)
    return made


def _silence(t_s: float, acks_s: Array, floor_s: float) -> float:
    """Seconds without an ACK before a timeout."""
    at = int(np.searchsorted(acks_s, t_s, side="left")) - 1
    return t_s - float(acks_s[at]) if at >= 0 else floor_s


def costs(evidence: Evidence, resolution_s: float) -> list[Cost]:
    """The cost of every event, by the rule of this module."""
    made: list[Cost] = []
    events, progress = evidence.events, evidence.progress
    if not events or not len(progress.t_s):
        return made
    ends = [e.t_s - e.silent_s for e in events[1:]] + [evidence.slices.end_s]
    former_end = evidence.slices.start_s
    rate = 0.0
    for event, next_s in zip(events, ends, strict=True):
        start = event.t_s - event.silent_s
        span = max(1.0, 10 * evidence.srtt_s)
        low = max(start - span, former_end)
        if start - low >= max(4 * evidence.srtt_s, resolution_s):
            rate = progress.between(low, start) / (start - low)
        # Else the last event is too near: what it was measured against still stands.
        until = _until(evidence, event, rate, min(next_s, start + _LONGEST_S), resolution_s)
        missing = max(0.0, rate * (until - start) - progress.between(start, until))
        made.append(Cost(event, rate * 8, until, missing, missing / rate if rate else 0.0))
        former_end = max(former_end, event.end_s)
    return made


def _until(
    evidence: Evidence, event: Event, rate: float, limit_s: float, resolution_s: float
) -> float:
    now = min(event.end_s, limit_s)
    while now < limit_s:
        step = min(now + resolution_s, limit_s)
        if evidence.progress.between(now, step) >= BACK * rate * (step - now):
            break
        now = step
    return max(now, event.t_s)
