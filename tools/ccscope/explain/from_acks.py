"""Evidence from per-ACK rows: what was in flight and allowed just before each ACK came."""

from __future__ import annotations

import numpy as np

from ccscope.explain.classes import CODE, PACING, SENDER, SNDBUF, UNKNOWN
from ccscope.explain.classify import Array, Codes, Slices, at_windows, rolling_min
from ccscope.explain.episodes import from_states
from ccscope.explain.evidence import (
    IDLE_S,
    Evidence,
    Progress,
    former_cwnd,
    held_at_polls,
    kernel_account,
    life_of,
    segment_size,
    state_overlays,
)
from ccscope.recording import Columns, Recording

_PACES = ("bbr", "bbr1", "bbr2", "bbr3")
_PACED = (0.8, 1.15)
_UNSEEN = (
    "whether the program, its send buffer or pacing held the flow back when the windows had room: "
    "poll as well (`ccscope record --per 100ms`, or `ss -tinm`)"
)


def gather(recording: Recording, label: str) -> Evidence:
    """Evidence of a flow that has rows in ``acks``."""
    acks = recording.flow("acks", label)
    samples = recording.flow("samples", label)
    rows = _rows(acks)
    start, end = life_of(recording, label)
    mss = segment_size(recording, label, rows["una"])
    srtt_s = float(np.median(rows["srtt_s"])) if len(rows["t_s"]) else 0.0
    states = _states(recording, label, acks)
    events = from_states(states, end, rows["t_s"], max(0.2, 2 * srtt_s))
    former = former_cwnd(rows["t_s"], rows["cwnd"], events)
    codes = _codes(rows, samples, former, mss, recording.flows.get(label, {}))
    slices = _slices(rows, codes, start, end, mss)
    slices = slices.overlays(state_overlays(events))
    says, cannot = _words(recording, acks, rows, states)
    if (slices.codes == CODE[SENDER]).any():
        cannot.append(_UNSEEN)
    progress = np.append(rows["una"][1:], rows["una"][-1:]) if rows["early"] else rows["una"]
    retransmits = recording.flow("retransmits", label)["t_s"]
    return Evidence(
        slices=slices,
        progress=Progress(rows["t_s"], progress - rows["una"][0]),
        events=events,
        mss_bytes=mss,
        srtt_s=srtt_s,
        step_s=float(np.median(np.diff(rows["t_s"]))) if len(rows["t_s"]) > 1 else 0.0,
        levels={
            "t_s": rows["t_s"],
            "cwnd_segs": rows["cwnd"],
            "rwnd_bytes": rows["rwnd"],
            "inflight_bytes": rows["inflight"],
            "srtt_us": rows["srtt_s"] * 1e6,
        },
        says=says,
        cannot=cannot,
        kernel=kernel_account(samples),
        retransmits=len(retransmits) if "retransmits" in recording.tables() else None,
    )


def _rows(acks: Columns) -> Columns:
    """What held just before each ACK was processed, as plain floats.

    Rows after an ACK say less: what was in flight before it is what is now plus what it
    acknowledged, and the windows before it are those after the ACK before.
    """
    order = np.argsort(acks["t_s"], kind="stable")
    sorted_ = {name: values[order] for name, values in acks.items()}
    early = bool((sorted_["phase"] == "before").any())
    mine = sorted_["phase"] == ("before" if early else "after")
    rows = {name: values[mine] for name, values in sorted_.items()}
    late = {name: values[sorted_["phase"] == "after"] for name, values in sorted_.items()}
    una = rows["una_bytes"].astype(float)
    if early and np.isnan(una).any():
        una = np.nan_to_num(una)
    inflight = rows["inflight_bytes"].astype(float)
    made: Columns = {"t_s": rows["t_s"].astype(float), "una": una, "early": np.array(early)}
    if not early:
        inflight = inflight + np.maximum(np.diff(una, prepend=una[:1]), 0)
    for name, column in (
        *(("cwnd", "cwnd_segs"), ("ssthresh", "ssthresh_segs")),
        *(("rwnd", "snd_wnd_bytes"), ("pacing", "pacing_rate_Bps")),
    ):
        values = rows[column].astype(float)
        if name == "pacing" and early and len(late["t_s"]):
            places = np.clip(np.searchsorted(late["t_s"], rows["t_s"]) - 1, 0, None)
            values = late[column].astype(float)[places]
        made[name] = values if early else np.concatenate([values[:1], values[:-1]])
    made["inflight"] = inflight
    made["srtt_s"] = rows["srtt_us"].astype(float) / 1e6
    return made


def _states(recording: Recording, label: str, acks: Columns) -> Columns:
    """Changes of the CA state: recorded, or seen in the rows after the ACKs."""
    states = recording.flow("states", label)
    if "states" in recording.tables():
        order = np.argsort(states["t_s"], kind="stable")
        return {name: values[order] for name, values in states.items()}
    known = np.flatnonzero(~np.isnan(acks["ca_state"].astype(float)))
    numbers = acks["ca_state"][known].astype(int)
    changed = np.flatnonzero(np.diff(numbers, prepend=0))
    names = np.array(["Open", "Disorder", "CWR", "Recovery", "Loss"], dtype=object)
    return {
        "t_s": acks["t_s"][known][changed],
        "state": names[np.clip(numbers[changed], 0, 4)],
        "cause": np.full(len(changed), None, dtype=object),
    }


def _codes(
    rows: Columns, samples: Columns, former: Array, mss: float, flow: dict[str, object]
) -> Codes:
    """What limited the flow in the time before each row."""
    t_s, spans = rows["t_s"], np.maximum(rows["srtt_s"], 1e-4)
    room_r = rolling_min(t_s, rows["rwnd"] - rows["inflight"], spans)
    room_c = rolling_min(t_s, rows["cwnd"] - np.ceil(rows["inflight"] / mss), spans)
    codes = at_windows(
        room_rwnd_bytes=room_r,
        room_cwnd_segs=room_c,
        cwnd_segs=rows["cwnd"],
        rwnd_bytes=rows["rwnd"],
        ssthresh_segs=rows["ssthresh"],
        former_cwnd_segs=former,
        mss_bytes=mss,
    )
    return _held_back(codes, rows, samples, flow)


def _held_back(codes: Codes, rows: Columns, samples: Columns, flow: dict[str, object]) -> Codes:
    """Rule 5: tell program, send buffer and pacing apart where there is evidence."""
    mine = codes == CODE[SENDER]
    if not mine.any():
        return codes
    made = codes.copy()
    by_poll = held_at_polls(samples)
    known = np.flatnonzero(by_poll != CODE[SENDER])
    if len(known):
        times = samples["t_s"][known]
        at = np.clip(np.searchsorted(times, rows["t_s"][mine]), 0, len(known) - 1)
        made[mine] = by_poll[known][at]
    if str(flow.get("cc", "")).startswith(_PACES) and not np.isnan(rows["pacing"]).all():
        span = np.maximum(10 * rows["srtt_s"], 0.1)
        first = np.searchsorted(rows["t_s"], rows["t_s"] - span)
        moved = rows["una"] - rows["una"][first]
        rate = moved / np.maximum(rows["t_s"] - rows["t_s"][first], 1e-9)
        ratio = rate / np.maximum(rows["pacing"], 1.0)
        paced = (ratio >= _PACED[0]) & (ratio <= _PACED[1]) & (made != CODE[SNDBUF])
        made[mine & paced] = CODE[PACING]
    return made


def _slices(rows: Columns, codes: Codes, start: float, end: float, mss: float) -> Slices:
    """Row i says what held since row i - 1; idleness is cut out of it."""
    t_s = rows["t_s"]
    if not len(t_s):
        return Slices(np.array([start, end]), np.array([CODE[UNKNOWN]]))
    edges = np.concatenate([[start], np.clip(t_s, start, end), [end]])
    after = UNKNOWN if end - t_s[-1] > IDLE_S else None
    last = CODE[after] if after else codes[-1]
    slices = Slices(edges, np.concatenate([codes, [last]]))
    gaps = np.diff(t_s) - rows["srtt_s"][1:]
    by = np.diff(rows["una"])  # what each ACK acknowledged
    by = by if rows["early"] else np.concatenate([[0.0], by[:-1]])
    acked = by + 0.5 * mss >= rows["inflight"][:-1]
    at = np.flatnonzero((gaps > IDLE_S) & acked)
    return slices.overlays([(t_s[i], t_s[i] + gaps[i], "idle") for i in at.tolist()])


def _words(
    recording: Recording, acks: Columns, rows: Columns, states: Columns
) -> tuple[list[str], list[str]]:
    phase = "before" if rows["early"] else "after"
    says = [f"{len(rows['t_s'])} ACKs, each with the state {phase} it"]
    cannot = []
    if "states" in recording.tables():
        kinds = {str(c) for c in states["cause"]}
        only = kinds & {"cwr", "recovery"}
        says.append(f"{len(states['t_s'])} changes of the CA state")
        if only or recording.kind == "cell":
            cannot.append(
                "why a state was entered (SACK, duplicate ACKs, RACK, local or ECN) and what was "
                "undone: the states were recorded without their causes"
            )
    else:
        cannot.append("recoveries shorter than the distance of two ACKs: no states were recorded")
    lost = recording.meta.get("lost", {})
    if any(lost.values()):
        cannot.append(f"what happened in {sum(lost.values())} events that the recorder lost")
    return says, cannot
