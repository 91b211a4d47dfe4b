"""qlog: JSON-SEQ (RFC 7464), a file a flow, events shaped like those of QUIC's recovery.

qlog has no TCP events; names and fields are QUIC's, so that its viewers draw them:
``recovery:metrics_updated`` (congestion_window, bytes_in_flight, ssthresh in bytes; smoothed_rtt,
min_rtt in ms; pacing_rate in bit/s), ``recovery:congestion_state_updated`` (old, new, trigger: the
cause) and ``recovery:packet_lost`` (trigger: what sent the segment again).  The window is in
segments in Linux; it is multiplied by the flow's MSS, or by 1448 where that is not known
(``mss_assumed`` in the header then).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ccscope import schema
from ccscope.export.rows import rows
from ccscope.recording import Recording

_MSS = 1448


def write(recording: Recording, out: Path) -> list[Path]:
    """Write a file for each flow into the folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for label, info in recording.flows.items():
        path = out / f"{label}.sqlog"
        with open(path, "w") as file:
            for record in _records(recording, label, info):
                file.write("\x1e" + json.dumps(record) + "\n")
        made.append(path)
    return made


def _records(recording: Recording, label: str, info: dict[str, Any]) -> Iterator[dict[str, Any]]:
    mss = int(info.get("mss") or _MSS)
    fields: dict[str, Any] = {
        "time_format": "relative",
        "reference_time": recording.meta.get("start_realtime_ns", 0) / 1e6,
        "protocol_type": ["TCP"],
        "flow": info,
    }
    if "mss" not in info:
        fields["mss_assumed"] = mss
    trace = {"common_fields": fields, "vantage_point": {"type": "server"}}
    yield {
        **{"qlog_format": "JSON-SEQ", "qlog_version": "0.3", "title": f"{recording.path} {label}"},
        "trace": trace,
    }
    events = [*_metrics(recording, label, mss), *_states(recording, label)]
    for row in rows(recording.flow("retransmits", label)):
        data = {"trigger": row["kind"]}
        events.append({"time": row["t_s"] * 1e3, "name": "recovery:packet_lost", "data": data})
    yield from sorted(events, key=lambda event: event["time"])


def _metrics(recording: Recording, label: str, mss: int) -> Iterator[dict[str, Any]]:
    columns = recording.flow("acks", label)
    if not len(columns["t_s"]):
        columns = recording.flow("samples", label)
    last: dict[str, Any] = {}
    for row in rows(columns):
        seen = {
            "congestion_window": _times(row["cwnd_segs"], mss),
            "ssthresh": _threshold(row["ssthresh_segs"], mss),
            "bytes_in_flight": _flying(row, mss),
            "smoothed_rtt": _times(row["srtt_us"], 1e-3),
            "min_rtt": _times(row["min_rtt_us"], 1e-3),
            "pacing_rate": _times(row["pacing_rate_Bps"], 8),
        }
        data = {k: v for k, v in seen.items() if v is not None and v != last.get(k)}
        last |= data
        if data:
            yield {"time": row["t_s"] * 1e3, "name": "recovery:metrics_updated", "data": data}


def _states(recording: Recording, label: str) -> Iterator[dict[str, Any]]:
    for row in rows(recording.flow("states", label)):
        data = {"old": row["left"], "new": row["state"], "trigger": row["cause"]}
        name = "recovery:congestion_state_updated"
        yield {"time": row["t_s"] * 1e3, "name": name, "data": data}


def _flying(row: dict[str, Any], mss: int) -> float | None:
    known = row.get("inflight_bytes")
    return _times(row.get("unacked_segs"), mss) if known is None else known


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _threshold(segments: float | None, mss: int) -> float | None:
    return None if segments is None or segments >= schema.SSTHRESH_NONE else segments * mss
