"""One flow as its sender's wire showed it: what went out, what went out again, what came back.

Read from the capture that a run keeps (``trace.keep_pcap``, captured at the sender's own device).
Low priority (:data:`airlab.topology.LOW_DSCP`) is what tells a supplement of TCP-Cherry from data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ccscope.pcapfile import Packet, Segment, packets, sack_blocks, segment

from airlab.topology import LOW_DSCP

DATA, REPAIR, SUPPLEMENT, SUPPLEMENT_AGAIN = "data", "repair", "supplement", "again"
_SYN = 2


class Sent(NamedTuple):
    """A data segment: seconds, first byte and length in the stream, what it was."""

    t_s: float
    start: int
    length: int
    kind: str


class Sacked(NamedTuple):
    """Bytes that an ACK was the first to report beyond the cumulative ACK."""

    t_s: float
    start: int
    end: int


@dataclass
class Wire:
    """A flow's segments and ACKs in order of time; positions are bytes since the first."""

    sent: list[Sent] = field(default_factory=list)
    acks: list[tuple[float, int]] = field(default_factory=list)
    sacks: list[Sacked] = field(default_factory=list)


def read_wire(capture: Path, port: int, t0_real_ns: int) -> Wire:
    """The first connection to a port in a capture; times are seconds after ``t0_real_ns``.

    Raises:
        CcscopeError: no capture, or a damaged one.
    """
    reader = _Reader(port, t0_real_ns)
    for packet in packets(capture):
        seen = segment(packet)
        if seen is not None:
            reader.take(packet, seen)
    return reader.wire


class _Reader:
    def __init__(self, port: int, t0_ns: int) -> None:
        self.wire = Wire()
        self._port, self._t0 = port, t0_ns
        self._first: int | None = None
        self._out: set[int] = set()
        self._open: list[int] = []
        self._una = 0
        self._known: set[int] = set()

    def take(self, packet: Packet, seen: Segment) -> None:
        t_s = (packet.t_ns - self._t0) / 1e9
        if seen.dport == self._port and seen.flags & _SYN:
            self._first = (seen.seq + 1) & 0xFFFFFFFF
        elif self._first is None:
            return
        elif seen.dport == self._port and seen.length:
            self._sent(t_s, seen)
        elif seen.sport == self._port and not seen.flags & _SYN:
            self._answered(t_s, seen)

    def _offset(self, seq: int) -> int:
        """Bytes since the first, within 2 GB of the cumulative ACK."""
        assert self._first is not None
        ahead = (seq - self._first - self._una) & 0xFFFFFFFF
        return self._una + ahead - ((ahead >> 31) << 32)

    def _sent(self, t_s: float, seen: Segment) -> None:
        start = self._offset(seen.seq)
        low = seen.dscp == LOW_DSCP
        if start in self._out:
            kind = SUPPLEMENT_AGAIN if low else REPAIR
        else:
            kind = SUPPLEMENT if low else DATA
        if start not in self._out:
            self._out.add(start)
            self._open.append(start)
        self.wire.sent.append(Sent(t_s, start, seen.length, kind))

    def _answered(self, t_s: float, seen: Segment) -> None:
        una = self._offset(seen.ack)
        self._una = max(self._una, una)
        self.wire.acks.append((t_s, self._una))
        self._known = {start for start in self._known if start >= self._una}
        waiting = [start for start in self._open if start >= self._una]
        self._open = waiting
        for first, last in sack_blocks(seen.options):
            low, high = self._offset(first), self._offset(last)
            fresh = [s for s in waiting if low <= s < high and s not in self._known]
            if fresh:
                self.wire.sacks.append(Sacked(t_s, min(fresh), high))
                self._known.update(fresh)
