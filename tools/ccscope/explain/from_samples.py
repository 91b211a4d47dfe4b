"""Evidence from polls of TCP_INFO: the kernel's own account of what a flow waited for.

The kernel counts three times: busy (data queued or in flight), of that waiting for the receiver's
window, and of that for room in the send buffer while all data was sent.  What is left of busy was
limited by cwnd or by the program, which the state at the poll decides.  Where in the time between
two polls each part lies is not known; the parts are laid one after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ccscope.explain.classes import (
    AFTER_LOSS,
    APPLICATION,
    CODE,
    CWND,
    IDLE,
    PACING,
    RECEIVER,
    RECOVERY,
    SENDER,
    SLOW_START,
    SNDBUF,
    TIMEOUT,
    UNKNOWN,
)
from ccscope.explain.classify import SLACK, Slices
from ccscope.explain.episodes import from_states
from ccscope.explain.evidence import (
    DEFAULT_MSS,
    Event,
    Evidence,
    Progress,
    former_cwnd,
    held_at_polls,
    kernel_account,
    life_of,
    state_overlays,
)
from ccscope.recording import Columns, Recording

_IN = {2: (RECOVERY, "cwr"), 3: (RECOVERY, "recovery"), 4: (TIMEOUT, "rto")}
_PACED = (0.8, 1.15)


def gather(recording: Recording, label: str) -> Evidence:
    """Evidence of a flow that has rows in ``samples`` and none in ``acks``."""
    rows = recording.flow("samples", label)
    order = np.argsort(rows["t_s"], kind="stable")
    rows = {name: values[order] for name, values in rows.items()}
    start, end = life_of(recording, label)
    known = rows["mss_bytes"][rows["mss_bytes"] > 0]
    mss = float(np.median(known)) if len(known) else float(DEFAULT_MSS)
    states = recording.flow("states", label)
    has_states = "states" in recording.tables()
    if has_states:
        by_time = np.argsort(states["t_s"], kind="stable")
        states = {name: values[by_time] for name, values in states.items()}
        events = from_states(states, end, np.zeros(0), _rto(rows))
    else:
        events = _polled_events(rows, end)
    slices = _slices(rows, former_cwnd(rows["t_s"], rows["cwnd_segs"], events), mss, start, end)
    if has_states:
        slices = slices.overlays(state_overlays(events))
    account = kernel_account(rows)
    step = float(np.median(np.diff(rows["t_s"]))) if len(rows["t_s"]) > 1 else 0.0
    says = [f"{len(rows['t_s'])} polls of TCP_INFO, {step:.3g} s apart"]
    if account is not None:
        says.append("the kernel's own busy, rwnd_limited and sndbuf_limited times")
    if has_states:
        says.append(f"{len(states['t_s'])} changes of the CA state")
    totals = rows["retrans_total"][~np.isnan(rows["retrans_total"].astype(float))]
    return Evidence(
        slices=slices,
        progress=_progress(rows, mss),
        events=events,
        mss_bytes=mss,
        srtt_s=float(np.nanmedian(rows["srtt_us"])) / 1e6 if len(rows["t_s"]) else 0.0,
        step_s=step,
        levels={
            "t_s": rows["t_s"],
            "cwnd_segs": rows["cwnd_segs"].astype(float),
            "rwnd_bytes": rows["snd_wnd_bytes"].astype(float),
            "inflight_bytes": rows["unacked_segs"].astype(float) * mss,
            "srtt_us": rows["srtt_us"].astype(float),
        },
        says=says,
        cannot=_cannot(rows, account is not None, has_states),
        kernel=account,
        retransmits=int(totals[-1] - totals[0]) if len(totals) else None,
    )


def _cannot(rows: Columns, account: bool, has_states: bool) -> list[str]:
    made = []
    if not has_states:
        made.append("recoveries and timeouts shorter than the distance of two polls")
        made.append("why a state was entered, and what was undone")
    if not account:
        made.append("how long the flow waited for the receiver's window or the send buffer")
        if np.isnan(rows["snd_wnd_bytes"].astype(float)).all():
            made.append("the receiver's window: these polls do not have it")
    return made


def _rto(rows: Columns) -> float:
    known = rows["rto_us"][rows["rto_us"] > 0]
    return float(np.median(known)) / 1e6 if len(known) else 0.2


def _progress(rows: Columns, mss: float) -> Progress:
    acked = rows["bytes_acked"].astype(float)
    if np.isnan(acked).all():
        acked = rows["delivered_segs"].astype(float) * mss
    known = ~np.isnan(acked)
    return Progress(rows["t_s"][known], acked[known])


def _polled_events(rows: Columns, end: float) -> list[Event]:
    """What polls saw of the CA state; shorter events are between them."""
    numbers = np.nan_to_num(rows["ca_state"].astype(float)).astype(int)
    names = np.array(["Open", "Disorder", "CWR", "Recovery", "Loss"], dtype=object)
    changed = np.flatnonzero(np.diff(numbers, prepend=0))
    states = {
        "t_s": rows["t_s"][changed],
        "state": names[np.clip(numbers[changed], 0, 4)],
        "cause": np.full(len(changed), None, dtype=object),
    }
    return from_states(states, end, np.zeros(0), 0.0)


def _slices(rows: Columns, former: Any, mss: float, start: float, end: float) -> Slices:  # noqa: ANN401
    """The time between two polls, divided as the counters and the later poll say."""
    t_s = rows["t_s"].astype(float)
    if len(t_s) < 2:
        return Slices(np.array([start, end]), np.array([CODE[UNKNOWN]]))
    edges, codes = [start], list[int]()
    held = held_at_polls(rows)

    def add(name: str, until: float) -> None:
        if until > edges[-1]:
            edges.append(until)
            codes.append(CODE[name])

    for i in range(1, len(t_s)):
        dt = t_s[i] - t_s[i - 1]
        if dt <= 0:
            continue
        rest = _rest(rows, i, float(former[i]), mss, int(held[i]))
        parts = _parts(rows, i, dt, rest)
        low = max(t_s[i - 1], edges[-1])
        for name, share in parts:
            low = min(low + share * dt, t_s[i])
            add(name, low)
        add(rest, t_s[i])
    add(UNKNOWN, end)
    return Slices(np.array(edges), np.array(codes))


def _parts(rows: Columns, i: int, dt: float, rest: str) -> list[tuple[str, float]]:
    """Idle, receiver and send buffer, as shares of the time since the poll before."""
    grown = {}
    for name in ("busy_us", "rwnd_limited_us", "sndbuf_limited_us"):
        now, before = (float(rows[name][k]) for k in (i, i - 1))
        if np.isnan(now) or np.isnan(before):
            return _guess(rows, i)
        grown[name] = min(max(now - before, 0.0) / 1e6 / dt, 1.0)
    idle = 1.0 - grown["busy_us"]
    # A poll takes time: a thousandth is no idleness.
    made = [(IDLE, idle)] if idle > 1e-3 else []
    made.append((RECEIVER, grown["rwnd_limited_us"]))
    made.append((SNDBUF, grown["sndbuf_limited_us"]))
    return made


def _guess(rows: Columns, i: int) -> list[tuple[str, float]]:
    """Without the counters: what the poll itself shows."""
    acked = rows["bytes_acked"].astype(float)
    if rows["unacked_segs"][i] == 0 and acked[i] == acked[i - 1]:
        return [(IDLE, 1.0)]
    return []


def _rest(rows: Columns, i: int, former: float, mss: float, held: int) -> str:
    """What limited the flow when it was neither the receiver nor the send buffer."""
    now = {n: float(rows[n][i]) for n in (*_WANTED, "ca_state")}
    if now["ca_state"] in _IN:
        return _IN[int(now["ca_state"])][0]
    inflight = now["unacked_segs"] - np.nan_to_num(now["sacked_segs"])
    if np.isnan(now["rwnd_limited_us"]) and (inflight + 1) * mss > now["snd_wnd_bytes"]:
        return RECEIVER
    if inflight >= now["cwnd_segs"] - max(1, now["cwnd_segs"] // SLACK):
        if now["cwnd_segs"] < former:
            return AFTER_LOSS
        return SLOW_START if now["cwnd_segs"] < now["ssthresh_segs"] else CWND
    # Less than a segment waits for the program (Nagle), not for a window.
    waiting = now["notsent_bytes"] >= mss and now["app_limited"] != 1
    return _held_back(now, held, waiting=waiting)


def _held_back(now: dict[str, float], held: int, *, waiting: bool) -> str:
    """Both windows had room at the poll."""
    if waiting:
        paced = now["delivery_rate_Bps"] / max(now["pacing_rate_Bps"], 1.0)
        # If not paced, the poll came between an ACK and what it lets out.
        return PACING if _PACED[0] <= paced <= _PACED[1] else CWND
    if held == CODE[SNDBUF]:
        return SNDBUF
    told = now["app_limited"] == 1 or not np.isnan(now["notsent_bytes"])
    return APPLICATION if told else SENDER


_WANTED = (
    *("cwnd_segs", "ssthresh_segs", "unacked_segs", "sacked_segs", "snd_wnd_bytes"),
    *("rwnd_limited_us", "pacing_rate_Bps", "delivery_rate_Bps", "app_limited", "notsent_bytes"),
)
