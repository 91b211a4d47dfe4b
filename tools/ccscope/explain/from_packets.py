"""Evidence from a packet capture alone: the window's edge, bytes in flight, gaps.

A capture has no cwnd.  What can be proved from it: the receiver's window (how far data came to its
edge), idleness, silence that ended with a retransmission, repairs.  Data that follows each ACK at
once was held by a window of the sender (cwnd, or the send buffer); data that comes by itself was
not.

The state of the sender when it sent a segment: at the sender it is that of the last ACK before;
elsewhere the segment's time stamp echo names the last ACK that had arrived there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ccscope.explain.classes import APPLICATION, CODE, CWND, RECEIVER, SENDER, SLOW_START, UNKNOWN
from ccscope.explain.classify import Array, Codes, Slices, rolling_min
from ccscope.explain.evidence import (
    IDLE_S,
    Event,
    Evidence,
    Progress,
    life_of,
    state_overlays,
)
from ccscope.recording import Columns, Recording

_MIN_RTO_S = 0.2
_CLOCKED = 0.7
_GROWTH = 1.3


def gather(recording: Recording, label: str) -> Evidence:
    """Evidence of a flow that has rows in ``packets`` only."""
    rows = recording.flow("packets", label)
    order = np.argsort(rows["t_s"], kind="stable")
    rows = {name: values[order] for name, values in rows.items()}
    start, end = life_of(recording, label)
    out = _take(rows, (rows["direction"] == "out") & (rows["len_bytes"] > 0))
    back = _take(rows, (rows["direction"] == "in") & ~np.isnan(rows["ack_bytes"].astype(float)))
    cannot = ["cwnd and ssthresh: a capture does not show them; what is said of cwnd is inferred"]
    if not len(out["t_s"]) or not len(back["t_s"]):
        cannot.append("what limited it: the capture lacks one of its directions")
        slices = Slices(np.array([start, end]), np.array([CODE[UNKNOWN]]))
        return _empty(slices, out, cannot)
    mss = float(np.max(out["len_bytes"]))
    rtt_s, near = _round_trip(rows)
    una, window, last, exact = _seen_by_sender(out, back, near)
    says = [f"{len(out['t_s'])} data packets and {len(back['t_s'])} ACKs of a capture"]
    says.append("captured at the sender" if near else "captured away from the sender")
    tops = np.maximum.accumulate(out["seq_bytes"] + out["len_bytes"]).astype(float)
    if not exact:
        cannot.append(
            "bytes in flight: the capture was made away from the sender and its packets have no "
            "time stamps"
        )
    room = window - (tops - una)
    if not _scaled(rows):
        cannot.append("the receiver's window: the handshake with its scale is not in the capture")
        room = np.full(len(tops), np.inf)
    events = _events(out, back, rtt_s, end)
    sent = _Sent(out["t_s"], tops, una, last, room, near)
    codes = _codes(sent, rtt_s, mss, exact=exact)
    slices = _slices(sent, back, codes, rtt_s, (start, end))
    cannot.append("program and send buffer are not told apart")
    return Evidence(
        slices=slices.overlays(state_overlays(events)),
        progress=Progress(back["t_s"], np.maximum.accumulate(back["ack_bytes"].astype(float))),
        events=events,
        mss_bytes=mss,
        srtt_s=rtt_s,
        step_s=float(np.median(np.diff(out["t_s"]))) if len(out["t_s"]) > 1 else 0.0,
        levels={
            "t_s": out["t_s"],
            "cwnd_segs": np.full(len(tops), np.nan),
            "rwnd_bytes": window,
            "inflight_bytes": tops - una,
            "srtt_us": np.full(len(tops), rtt_s * 1e6),
        },
        says=says,
        cannot=cannot,
        retransmits=int((out["repeated"] == 1).sum()),
    )


def _take(rows: Columns, mine: Any) -> Columns:  # noqa: ANN401 - a mask
    return {name: values[mine] for name, values in rows.items()}


def _empty(slices: Slices, out: Columns, cannot: list[str]) -> Evidence:
    none = np.zeros(0)
    names = ("t_s", "cwnd_segs", "rwnd_bytes", "inflight_bytes", "srtt_us")
    levels = dict.fromkeys(names, none)
    says = [f"{len(out['t_s'])} data packets of a capture"]
    return Evidence(slices, Progress(none, none), [], 1448.0, 0.0, 0.0, levels, says, cannot)


def _round_trip(rows: Columns) -> tuple[float, bool]:
    """The handshake's round trip, and whether the capture is at the sender's end of it."""
    out, flags = rows["direction"] == "out", rows["flags"].astype(str)
    syn = np.flatnonzero(np.array([set(f) == {"S"} for f in flags]))
    both = np.flatnonzero(np.array(["S" in f and "A" in f for f in flags]))
    if len(syn) and len(both) and both[0] > syn[0]:
        third = np.flatnonzero((np.arange(len(out)) > both[0]) & (out == out[syn[0]]))
        there = float(rows["t_s"][both[0]] - rows["t_s"][syn[0]])
        back = float(rows["t_s"][third[0]] - rows["t_s"][both[0]]) if len(third) else 0.0
        # The side that opened is near when the answer took most of the time.
        opener_near = there >= back
        return there + back, opener_near == bool(out[syn[0]])
    return _data_rtt(rows)


def _data_rtt(rows: Columns) -> tuple[float, bool]:
    """Without a handshake: how long data waits for its ACK; next to nothing at the receiver."""
    out = _take(rows, (rows["direction"] == "out") & (rows["len_bytes"] > 0))
    back = _take(rows, (rows["direction"] == "in") & ~np.isnan(rows["ack_bytes"].astype(float)))
    if not len(out["t_s"]) or not len(back["t_s"]):
        return 0.0, True
    acked = np.maximum.accumulate(back["ack_bytes"].astype(float))
    at = np.searchsorted(acked, out["seq_bytes"] + out["len_bytes"])
    mine = at < len(acked)
    waits = back["t_s"][at[mine]] - out["t_s"][mine]
    waits = waits[waits > 0]
    rtt = float(np.percentile(waits, 10)) if len(waits) else 0.0
    after = np.searchsorted(back["t_s"], out["t_s"]) - 1
    clocked = out["t_s"] - back["t_s"][np.clip(after, 0, None)]
    return rtt, rtt > float(np.percentile(clocked, 10)) if len(clocked) else True


def _scaled(rows: Columns) -> bool:
    """Whether windows are to be believed: the handshake was seen, or they are large anyway."""
    syn = np.array(["S" in f for f in rows["flags"].astype(str)])
    largest = float(np.max(rows["window_bytes"])) if len(rows["t_s"]) else 0.0
    return bool(syn.any()) or largest > 65535


def _seen_by_sender(out: Columns, back: Columns, near: bool) -> tuple[Array, Array, Array, bool]:
    """For each data packet: bytes acknowledged, window and time of the last ACK its sender had."""
    acked = np.maximum.accumulate(back["ack_bytes"].astype(float))
    window = back["window_bytes"].astype(float)
    echo, stamps = out["ts_ecr"].astype(float), back["ts_val"].astype(float)
    if near:
        at, exact = np.searchsorted(back["t_s"], out["t_s"], side="right") - 1, True
    elif not np.isnan(echo).all() and not np.isnan(stamps).all():
        at = np.searchsorted(np.maximum.accumulate(stamps), echo, side="right") - 1
        exact = True
    else:
        at, exact = np.searchsorted(back["t_s"], out["t_s"], side="right") - 1, False
    at = np.clip(at, 0, None)
    return acked[at], window[at], back["t_s"][at], exact


def _events(out: Columns, back: Columns, rtt_s: float, end: float) -> list[Event]:
    """Repairs: from the first packet sent again until what was out then is acknowledged."""
    tops = np.maximum.accumulate(out["seq_bytes"] + out["len_bytes"]).astype(float)
    acked = np.maximum.accumulate(back["ack_bytes"].astype(float))
    again = np.flatnonzero(out["repeated"] == 1)
    spurious = back["t_s"][back["dsack"] == 1]
    gaps = np.diff(out["t_s"], prepend=out["t_s"][:1])
    made: list[Event] = []
    for i in again.tolist():
        t_s = float(out["t_s"][i])
        silent = float(gaps[i]) if gaps[i] >= max(_MIN_RTO_S, 1.5 * rtt_s) else 0.0
        if made and t_s < made[-1].end_s and not (silent and made[-1].kind != "rto"):
            continue
        if made and t_s < made[-1].end_s:
            last = made[-1]
            made[-1] = Event(last.t_s, t_s - silent, last.kind, last.spurious, last.silent_s)
        over = int(np.searchsorted(acked, tops[i]))
        stop = float(back["t_s"][over]) if over < len(acked) else end
        before = int(np.searchsorted(back["t_s"], t_s, side="right")) - 1
        sack = before >= 0 and back["sack"][before] is not None
        kind = "rto" if silent else ("sack" if sack else "recovery")
        needless = bool(((spurious > t_s) & (spurious <= max(stop, t_s) + 2 * rtt_s)).any())
        made.append(Event(t_s, max(stop, t_s), kind, needless, silent))
    return made


@dataclass(frozen=True)
class _Sent:
    """For each data packet: when, the highest byte so far, and what its sender knew then."""

    t_s: Array
    tops: Array
    una: Array
    last_ack: Array
    room: Array
    near: bool


def _codes(sent: _Sent, rtt_s: float, mss: float, *, exact: bool) -> Codes:
    """What limited the sender up to each data packet."""
    t_s = sent.t_s
    spans = np.full(len(t_s), max(rtt_s, 1e-3))
    made = np.full(len(t_s), CODE[SENDER])
    if sent.near:
        # Sent at once on an ACK: a window held it.
        soon = (t_s - sent.last_ack) <= max(1e-3, rtt_s / 20)
        share = _mean(t_s, soon.astype(float), max(5 * rtt_s, 0.1))
        grown = _growth(t_s, sent.tops, sent.una, max(rtt_s, 0.01))
        windows = np.where(grown >= _GROWTH, CODE[SLOW_START], CODE[CWND])
        made = np.where(share >= _CLOCKED, windows, CODE[APPLICATION])
    if exact:
        made = np.where(rolling_min(t_s, sent.room, spans) < mss, CODE[RECEIVER], made)
    return made.astype(np.int64)


def _mean(t_s: Array, values: Array, span: float) -> Array:
    """The mean of the values in the time before each row."""
    first = np.searchsorted(t_s, t_s - span, side="right")
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(t_s))
    made: Array = (sums[at + 1] - sums[first]) / (at + 1 - first)
    return made


def _growth(t_s: Array, tops: Array, una: Array, span: float) -> Array:
    """Bytes sent for each byte acknowledged in the last round trips; 2 in slow start."""
    first = np.searchsorted(t_s, t_s - 2 * span, side="right")
    first = np.minimum(first, np.arange(len(t_s)))
    made: Array = (tops - tops[first]) / np.maximum(una - una[first], 1.0)
    return made


def _slices(
    sent: _Sent, back: Columns, codes: Codes, rtt_s: float, life: tuple[float, float]
) -> Slices:
    """The codes as stretches of time, with idleness cut out of them."""
    start, end = life
    edges = np.concatenate([[start], np.clip(sent.t_s, start, end), [end]])
    slices = Slices(edges, np.concatenate([codes, codes[-1:]]))
    # Idle: all that was sent is acknowledged, and nothing is sent.
    acked = np.maximum.accumulate(back["ack_bytes"].astype(float))
    over = np.searchsorted(acked, sent.tops)
    known = over < len(acked)
    free = np.where(known, back["t_s"][np.clip(over, 0, len(acked) - 1)], np.inf)
    # Away from the sender, the ACK has still to arrive and data was sent earlier.
    free = free if sent.near else free + rtt_s
    following = np.append(sent.t_s[1:], end)
    at = np.flatnonzero(following - free > IDLE_S)
    return slices.overlays([(float(free[i]), float(following[i]), "idle") for i in at.tolist()])
