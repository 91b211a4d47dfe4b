"""Perfetto: a trace of TrackEvents, written as the few protobuf messages that it needs.

A process track a flow; below it a counter track for each curve, a track with the CA states as
slices and one with retransmissions as instants.  Times are CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ccscope import schema
from ccscope.recording import Columns, Recording

# Field numbers of perfetto/protos: TracePacket, TrackDescriptor, TrackEvent.
_PACKET = 1
_TIME, _SEQUENCE, _EVENT, _TRACK, _CLOCK = 8, 10, 11, 60, 58
_UUID, _NAME, _PARENT, _COUNTER, _PROCESS = 1, 2, 5, 8, 3
_UNIT_NAME = 6
_PID, _PROCESS_NAME = 1, 6
_TYPE, _ON_TRACK, _EVENT_NAME, _VALUE = 9, 11, 23, 44
_BEGIN, _END, _INSTANT, _COUNT = 1, 2, 3, 4
_MONOTONIC = 3
_CURVES = ("cwnd_segs", "ssthresh_segs", "srtt_us", "inflight_bytes", "snd_wnd_bytes", "lost_segs")


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


class _Writer:
    def __init__(self, file: BinaryIO, start_ns: int) -> None:
        self.file, self.start_ns = file, start_ns
        self.tracks = 0

    def packet(self, body: bytes) -> None:
        self.file.write(_bytes(_PACKET, body + _number(_SEQUENCE, 1)))

    def track(self, name: str, parent: int = 0, more: bytes = b"") -> int:
        self.tracks += 1
        body = _number(_UUID, self.tracks) + _bytes(_NAME, name.encode())
        body += (_number(_PARENT, parent) if parent else b"") + more
        self.packet(_bytes(_TRACK, body))
        return self.tracks

    def event(self, t_s: float, kind: int, track: int, more: bytes = b"") -> None:
        body = _number(_TYPE, kind) + _number(_ON_TRACK, track) + more
        t_ns = self.start_ns + max(round(t_s * 1e9), 0)
        self.packet(_number(_TIME, t_ns) + _number(_CLOCK, _MONOTONIC) + _bytes(_EVENT, body))


def write(recording: Recording, out: Path) -> list[Path]:
    """Write the file ``out``."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out, "wb") as file:
        writer = _Writer(file, int(recording.meta.get("start_monotonic_ns", 0)))
        for number, (label, info) in enumerate(recording.flows.items(), 1):
            ends = f"{info['src']}:{info['sport']} - {info['dst']}:{info['dport']}"
            title = f"{label} {ends} {info.get('cc', '')}".strip()
            process = _number(_PID, number) + _bytes(_PROCESS_NAME, title.encode())
            parent = writer.track(title, more=_bytes(_PROCESS, process))
            acks = recording.flow("acks", label)
            if not len(acks["t_s"]):
                acks = recording.flow("samples", label)
            for name in _CURVES:
                if name in acks:
                    _curve(writer, parent, name, acks)
            _slices(writer, parent, recording.flow("states", label), recording.duration_s)
            again = recording.flow("retransmits", label)
            track = writer.track("retransmissions", parent)
            for t_s, kind in zip(again["t_s"].tolist(), again["kind"], strict=True):
                text = _bytes(_EVENT_NAME, str(kind or "retransmission").encode())
                writer.event(t_s, _INSTANT, track, text)
    return [out]


def _curve(writer: _Writer, parent: int, name: str, acks: Columns) -> None:
    values = acks[name].astype(float)
    known = ~np.isnan(values)
    if name == "ssthresh_segs":
        known &= values < schema.SSTHRESH_NONE
    if not known.any():
        return
    unit = schema.describe("acks", name)[0]
    track = writer.track(name, parent, _bytes(_COUNTER, _bytes(_UNIT_NAME, unit.encode())))
    last = None
    for t_s, value in zip(acks["t_s"][known].tolist(), values[known].tolist(), strict=True):
        if value != last:
            writer.event(t_s, _COUNT, track, _double(_VALUE, value))
            last = value


def _slices(writer: _Writer, parent: int, states: Columns, end_s: float) -> None:
    track = writer.track("CA state", parent)
    times = [0.0, *states["t_s"].tolist()]
    names = ["Open", *(_title(states, row) for row in range(len(states["t_s"])))]
    for begin, end, name in zip(times, [*times[1:], max(end_s, times[-1])], names, strict=True):
        writer.event(begin, _BEGIN, track, _bytes(_EVENT_NAME, name.encode()))
        writer.event(end, _END, track)


def _title(states: Columns, row: int) -> str:
    cause = states["cause"][row]
    return f"{states['state'][row]} ({cause})" if cause else str(states["state"][row])
