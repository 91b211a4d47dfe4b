"""pcapng: the capture beside the recording, each TCP packet with its flow's state as comment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ccscope import __version__, schema
from ccscope.assemble import address_text
from ccscope.errors import CcscopeError
from ccscope.pcapfile import PcapngWriter, Segment, packets, segment
from ccscope.recording import Columns, Recording

_SHOWN = (
    *(("cwnd_segs", "cwnd"), ("ssthresh_segs", "ssthresh"), ("srtt_us", "srtt_us")),
    *(("inflight_bytes", "inflight_bytes"), ("lost_segs", "lost"), ("sacked_segs", "sacked")),
)


def write(recording: Recording, out: Path) -> list[Path]:
    """Write the capture with comments into the file ``out``.

    Raises:
        CcscopeError: the recording has no capture, or does not know the wall clock.
    """
    capture = recording.capture
    if capture is None:
        raise CcscopeError(f"{recording.path} has no capture; record with --pcap")
    start = recording.meta.get("start_realtime_ns")
    if not start:
        raise CcscopeError(f"{recording.path} does not say when it began on the wall clock")
    flows = {_key(info): _States(recording, label) for label, info in recording.flows.items()}
    out.parent.mkdir(parents=True, exist_ok=True)
    with PcapngWriter(out, f"ccscope {__version__}") as writer:
        for packet in packets(capture, recording.problems.append):
            seen = segment(packet)
            states = flows.get(_ends(seen)) or flows.get(_ends(seen, back=True)) if seen else None
            t_s = (packet.t_ns - start) / 1e9
            writer.write(packet, states.at(t_s) if states else "")
    return [out]


class _States:
    """The state of a flow at a time, as text."""

    def __init__(self, recording: Recording, label: str) -> None:
        self.label = label
        self.acks = recording.flow("acks", label)
        if not len(self.acks["t_s"]):
            self.acks = recording.flow("samples", label)
        self.states = recording.flow("states", label)

    def at(self, t_s: float) -> str:
        """What was known last before this time."""
        row = int(np.searchsorted(self.acks["t_s"], t_s, side="right")) - 1
        parts = [f"flow {self.label}"]
        if row >= 0:
            parts += [
                text for name, short in _SHOWN if (text := _shown(self.acks, name, short, row))
            ]
        place = int(np.searchsorted(self.states["t_s"], t_s, side="right")) - 1
        if place >= 0:
            state = f"state {self.states['state'][place]}"
            cause = self.states["cause"][place]
            parts.append(f"{state} ({cause})" if cause else state)
        return " ".join(part for part in parts if part)


def _shown(columns: Columns, name: str, short: str, row: int) -> str:
    value = float(columns[name][row])
    if np.isnan(value):
        return ""
    none = name == "ssthresh_segs" and value >= schema.SSTHRESH_NONE
    return f"{short} {'none' if none else int(value)}"


def _key(info: dict[str, Any]) -> tuple[str, int, str, int]:
    return info["src"], info["sport"], info["dst"], info["dport"]


def _ends(seen: Segment, back: bool = False) -> tuple[str, int, str, int]:
    ours, theirs = (address_text(seen.src), seen.sport), (address_text(seen.dst), seen.dport)
    return (*theirs, *ours) if back else (*ours, *theirs)
