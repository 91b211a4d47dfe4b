"""Recordings made by a formula: a long flow over one bottleneck, with every kind of event.

The window grows by a segment each round trip and falls at known moments; at each of them one
segment is lost (but for ECN and local congestion), SACKed around, and sent again.  Everything
follows from the arguments, so tests know what must be seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ccscope.recording import Array, Columns, Writer

MSS, FRAME = 1448, 1514
BASE_RTT_S = 0.020
LEAST, MOST = 0.9, 2.0  # cwnd after and before each event, times the pipe
PERIOD_S = 4.0  # between events
RWND = 800_000
CAUSES = ("sack", "local", "ecn", "rto", "sack", "dupack", "tlp")
STATE = {"local": "CWR", "ecn": "CWR", "tlp": "CWR", "rto": "Loss"}


@dataclass(frozen=True)
class MadeFlow:
    """A flow and its tables; ``falls``: (time, cause) of its events."""

    info: dict[str, Any]
    tables: dict[str, Columns]
    falls: list[tuple[float, str]]


def made_flow(label: str, segments: int, rate_bps: float = 100e6, seed: int = 1) -> MadeFlow:
    """A flow of so many data segments at the bottleneck's rate."""
    draw = np.random.default_rng(seed)
    gap = FRAME * 8 / rate_bps
    sent = np.arange(segments) * gap + draw.uniform(0, 0.3, segments) * gap
    pause = BASE_RTT_S * (MOST - LEAST)  # nothing is sent until the smaller window is in flight
    first = PERIOD_S * 0.4 + float(draw.uniform(-0.05, 0.05))
    falls = np.arange(first, float(sent[-1]) - 0.2, PERIOD_S)
    for t in falls:
        sent[sent > t] += pause
    length = float(sent[-1]) + 0.1
    cwnd = _sawtooth(sent, falls, gap)
    rtt = np.maximum(BASE_RTT_S, cwnd * gap) + draw.uniform(0, 2e-4, segments)
    causes = [CAUSES[i % len(CAUSES)] for i in range(len(falls))]
    arrived = np.maximum.accumulate(sent + rtt)
    low = 1 + np.arange(segments, dtype=np.int64) * MSS
    acked, keep = low + MSS, np.ones(segments, dtype=bool)
    sack = np.full(segments, None, dtype=object)
    again: list[tuple[float, int]] = []
    drops: list[float] = []
    states: list[tuple[float, str, str, str, str]] = []
    for t, cause in zip(falls.tolist(), causes, strict=True):
        # What was lost is known, and the window falls, a round trip later.
        hole = int(np.searchsorted(sent, t - MOST * BASE_RTT_S))
        if hole + 4 >= segments:
            continue
        state = STATE.get(cause, "Recovery")
        seen = float(arrived[hole + 3])
        drops.append(seen)
        done = seen + float(rtt[hole])
        proof = f"made: segment {hole}"
        if state == "Recovery":
            states.append((float(arrived[hole + 1]), "Disorder", "Open", "disorder", ""))
        states.append((seen, state, "Disorder" if state == "Recovery" else "Open", cause, proof))
        states.append((done, "Open", state, "undo" if cause == "dupack" else "done", ""))
        if cause in ("ecn", "local"):
            continue
        keep[hole] = False
        inside = (arrived > arrived[hole]) & (arrived < done) & (np.arange(segments) > hole)
        acked[inside] = low[hole]
        for i in np.flatnonzero(inside).tolist():
            sack[i] = f"{low[hole] + MSS}-{low[i] + MSS}"
        again.append((seen + 1e-5, int(low[hole])))
    tables = {
        "packets": _packets(label, (sent, low), (arrived[keep], acked[keep], sack[keep]), again),
        "acks": _acks(label, (sent, arrived, acked, keep), np.array(drops), gap),
        "states": _states(label, states),
        "retransmits": {
            "t_s": np.array([t for t, _ in again]),
            "flow": _fill(label, len(again)),
            "kind": _fill("fast", len(again)),
            "seq_bytes": np.array([s for _, s in again], dtype=float),
        },
        "goodput": _goodput(label, arrived[keep], length),
    }
    info = {
        **{"src": "10.0.0.1", "dst": "10.0.0.2", "sport": 40000 + seed, "dport": 5000 + seed},
        **{"family": 4, "cc": "cubic" if seed % 2 else "reno", "mss": MSS},
    }
    return MadeFlow(info, tables, [(s[0], s[3]) for s in states])


def _sawtooth(t: Array, falls: Array, gap: float) -> Array:
    """The window at these times, in segments; ``gap``: s a segment takes at the bottleneck."""
    last = np.searchsorted(falls, t, side="right") - 1
    since = np.where(last >= 0, t - falls[np.maximum(last, 0)], t + PERIOD_S * 0.6)
    grown = LEAST + (MOST - LEAST) * np.minimum(since / PERIOD_S, 1.0)
    return np.floor(BASE_RTT_S / gap * grown)


def _fill(text: str, count: int) -> Array:
    return np.full(count, text, dtype=object)


def _packets(
    label: str,
    data: tuple[Array, Array],
    back: tuple[Array, Array, Array],
    again: list[tuple[float, int]],
) -> Columns:
    (sent, low), (arrived, acked, sack) = data, back
    repeated = np.array([s for _, s in again], dtype=np.int64)
    outs, ins = len(sent) + len(again), len(arrived)
    times = np.concatenate([sent, [t for t, _ in again], arrived])
    order = np.argsort(times, kind="stable")
    columns: Columns = {
        "t_s": times,
        "flow": _fill(label, outs + ins),
        "direction": np.concatenate([_fill("out", outs), _fill("in", ins)]),
        "seq_bytes": np.concatenate([low, repeated, np.ones(ins, dtype=np.int64)]),
        "ack_bytes": np.concatenate([np.ones(outs, dtype=np.int64), acked]),
        "len_bytes": np.concatenate([np.full(outs, MSS), np.zeros(ins, dtype=int)]),
        "flags": _fill("A", outs + ins),
        "window_bytes": np.full(outs + ins, RWND),
        "sack": np.concatenate([np.full(outs, None, dtype=object), sack]),
        "repeated": np.concatenate(
            [np.zeros(len(sent), int), np.ones(len(again), int), np.zeros(ins, int)]
        ),
    }
    made = {name: values[order] for name, values in columns.items()}
    return {**made, "frame": np.arange(1, outs + ins + 1)}


def _acks(
    label: str, moments: tuple[Array, Array, Array, Array], falls: Array, gap: float
) -> Columns:
    sent, arrived, acked, keep = moments
    t, una = arrived[keep], np.maximum.accumulate(acked[keep])
    cwnd = _sawtooth(t, falls, gap)
    top = np.searchsorted(sent, t) * MSS + 1
    rtt = np.maximum(BASE_RTT_S, cwnd * gap)
    rows = len(t)
    return {
        "t_s": t,
        "flow": _fill(label, rows),
        "phase": _fill("after", rows),
        "cwnd_segs": cwnd,
        "ssthresh_segs": np.where(t < falls[0], 0x7FFFFFFF, np.floor(BASE_RTT_S / gap * LEAST)),
        "ssthresh_is": _fill("raw", rows),
        "srtt_us": np.round(rtt * 1e6),
        "min_rtt_us": np.full(rows, BASE_RTT_S * 1e6),
        "inflight_bytes": np.maximum(top - una, 0),
        "una_bytes": una,
        "snd_wnd_bytes": np.full(rows, RWND),
    }


def _states(label: str, rows: list[tuple[float, str, str, str, str]]) -> Columns:
    names = ("state", "left", "cause", "evidence")
    made: Columns = {"t_s": np.array([r[0] for r in rows], dtype=float)}
    made["flow"] = _fill(label, len(rows))
    for i, name in enumerate(names, 1):
        made[name] = np.array([r[i] for r in rows], dtype=object)
    return made


def _goodput(label: str, arrived: Array, length: float) -> Columns:
    edges = np.arange(0, length + 0.1, 0.1)
    counts = np.histogram(arrived, edges)[0] * MSS
    return {
        "t_s": edges[:-1],
        "flow": _fill(label, len(counts)),
        "bytes": counts,
        "goodput_bps": counts * 80.0,
    }


def write_recording(
    folder: Path, flows: dict[str, MadeFlow], without: tuple[str, ...] = ()
) -> Path:
    """Write flows as a recording, without some tables."""
    length = max(float(f.tables["packets"]["t_s"][-1]) for f in flows.values())
    with Writer(folder) as writer:
        for name in ("acks", "states", "retransmits", "packets", "goodput"):
            for flow in flows.values():
                if name not in without and len(flow.tables[name]["t_s"]):
                    writer.add(name, flow.tables[name])
        writer.finish(
            {
                "duration_s": length,
                "clock": "made",
                "host": {"kernel": "made by a formula"},
                "sources": [{"name": "made", "gives": ["all tables"], "cannot": ["be wrong"]}],
                "flows": {label: flow.info for label, flow in flows.items()},
                "lost": {"tracefs": 0},
                "complete": True,
                "problems": [],
            }
        )
    return folder
