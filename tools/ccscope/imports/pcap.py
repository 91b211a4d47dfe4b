"""Imports a pcap or pcapng file: the table ``packets`` and, from it, ``goodput``.

A flow is a direction that carried data; its ``out`` packets are the data, its ``in`` packets the
ACKs.  Sequence numbers are relative to the first one seen in their direction, 64 bits wide.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ccscope.assemble import address_text
from ccscope.pcapfile import Packet, Segment, packets, sack_pairs, segment, tcp_options
from ccscope.recording import Columns

_BATCH = 200_000
_FLAGS = "FSRPAUEC"
_SYN, _HALF = 2, 1 << 31
_BIN_S = 0.1
_Ends = tuple[bytes, int, bytes, int]


@dataclass
class _Side:
    """What is sent in one direction of a connection."""

    first: int | None = None
    top: int = 0  # highest byte seen, relative and 64 bits wide
    scale: int | None = None

    def place(self, seq: int) -> int:
        """A sequence number relative to the first, nearest to the highest seen."""
        if self.first is None:
            self.first = seq
        low = (seq - self.first) & 0xFFFFFFFF
        return self.top + ((low - self.top + _HALF) & 0xFFFFFFFF) - _HALF


@dataclass
class _Connection:
    label: str
    out: _Ends
    sides: dict[_Ends, _Side] = field(default_factory=dict)
    carried: dict[_Ends, int] = field(default_factory=dict)


class Importer:
    """Reads a capture once; ``flows`` is known when all batches were taken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []
        self.flows: dict[str, dict[str, Any]] = {}
        self.start_ns = 0
        self.duration_s = 0.0
        self._connections: dict[frozenset[tuple[bytes, int]], _Connection] = {}

    def batches(self) -> Iterator[dict[str, Columns]]:
        """Tables, each batch later than the one before."""
        rows: list[tuple[Any, ...]] = []
        for number, packet in enumerate(packets(self.path, self.problems.append), 1):
            seen = segment(packet)
            if seen is None:
                continue
            self.start_ns = self.start_ns or packet.t_ns
            rows.append(self._row(packet, seen, number))
            if len(rows) >= _BATCH:
                yield self._tables(rows)
                rows = []
        if rows:
            yield self._tables(rows)

    def _row(self, packet: Packet, seen: Segment, number: int) -> tuple[Any, ...]:
        ours, theirs = (seen.src, seen.sport), (seen.dst, seen.dport)
        ends: _Ends = (*ours, *theirs)
        key = frozenset((ours, theirs))
        link = self._connections.get(key)
        if link is None:
            link = self._connections[key] = self._new(ends, seen)
        side = link.sides.setdefault(ends, _Side())
        other = link.sides.setdefault((*theirs, *ours), _Side())
        seq = side.place(seen.seq)
        # SYN takes a number; the first byte of data is then 1, as in other tools.
        end = seq + seen.length
        repeated = bool(seen.length) and end <= side.top
        side.top = max(side.top, end + (seen.flags & _SYN > 0))
        scale, sack, stamps = _options(seen.options)
        if seen.flags & _SYN:
            side.scale = scale
        shift = side.scale or 0 if not seen.flags & _SYN and other.scale is not None else 0
        acked = other.place(seen.ack) if seen.flags & 16 else None
        blocks = [(other.place(a), other.place(b)) for a, b in sack]
        dsack = bool(blocks) and acked is not None and _is_dsack(blocks, acked)
        self.duration_s = (packet.t_ns - self.start_ns) / 1e9
        return (
            *(self.duration_s, link.label, "out" if ends == link.out else "in", seq, acked),
            *(seen.length, _letters(seen.flags), seen.window << shift),
            *(",".join(f"{a}-{b}" for a, b in blocks) or None, int(dsack), seen.ecn),
            *(*stamps, int(repeated), number),
        )

    def _new(self, ends: _Ends, seen: Segment) -> _Connection:
        # The side that opens, or else the one that sends data first, is taken for the source.
        turned = seen.flags & 18 == 18 or not (seen.length or seen.flags & _SYN)
        out = (*ends[2:], *ends[:2]) if turned else ends
        label = f"f{len(self.flows) + 1}"
        self.flows[label] = {
            **{"src": address_text(out[0]), "sport": out[1]},
            **{"dst": address_text(out[2]), "dport": out[3]},
            "family": 4 if len(out[0]) == 4 else 6,
        }
        return _Connection(label, out)

    def _tables(self, rows: list[tuple[Any, ...]]) -> dict[str, Columns]:
        columns = list(zip(*rows, strict=True))
        made: Columns = {}
        for name, values in zip(_NAMES, columns, strict=True):
            text = name in ("flow", "direction", "flags", "sack")
            made[name] = np.array(
                values, dtype=object if text else float if None in values else None
            )
        return {"packets": made}


_NAMES = (
    *("t_s", "flow", "direction", "seq_bytes", "ack_bytes", "len_bytes", "flags", "window_bytes"),
    *("sack", "dsack", "ecn", "ts_val", "ts_ecr", "repeated", "frame"),
)


def _letters(flags: int) -> str:
    return "".join(letter for bit, letter in enumerate(_FLAGS) if flags >> bit & 1)


def _is_dsack(blocks: list[tuple[int, int]], acked: int) -> bool:
    """RFC 2883: the first block is below the ACK, or inside the second."""
    first = blocks[0]
    if first[1] <= acked:
        return True
    return len(blocks) > 1 and blocks[1][0] <= first[0] and first[1] <= blocks[1][1]


def _options(
    raw: bytes,
) -> tuple[int | None, list[tuple[int, int]], tuple[int | None, int | None]]:
    """Window scale, SACK blocks, timestamps."""
    scale, sack, stamps = None, list[tuple[int, int]](), (None, None)
    for kind, size, value in tcp_options(raw):
        if len(value) < size - 2:
            break
        if kind == 3 and size == 3:
            scale = min(value[0], 14)
        elif kind == 5:
            sack = sack_pairs(value)
        elif kind == 8 and size == 10:
            stamps = struct.unpack(">II", value)
    return scale, sack, stamps


class Goodput:
    """Bytes that arrived for the first time, by bins, from pieces of ``packets``."""

    def __init__(self, bin_s: float = _BIN_S) -> None:
        self.bin_s = bin_s
        self._bytes: dict[str, dict[int, int]] = {}

    def add(self, columns: Columns) -> None:
        """Count a piece."""
        mine = (columns["direction"] == "out") & (columns["len_bytes"] > 0)
        mine &= columns["repeated"] == 0
        labels, codes = np.unique(columns["flow"][mine].astype(str), return_inverse=True)
        places = (columns["t_s"][mine] / self.bin_s).astype(np.int64)
        keys, where = np.unique(codes.astype(np.int64) << 40 | places, return_inverse=True)
        sums = np.bincount(where, weights=columns["len_bytes"][mine]).astype(np.int64)
        for key, count in zip(keys.tolist(), sums.tolist(), strict=True):
            bins = self._bytes.setdefault(str(labels[key >> 40]), {})
            place = key & ((1 << 40) - 1)
            bins[place] = bins.get(place, 0) + count

    def columns(self) -> Columns:
        """The table ``goodput``, bins without data between the first and the last included."""
        times, flows, counts = [], [], []
        for label, bins in self._bytes.items():
            for place in range(min(bins), max(bins) + 1):
                times.append(place * self.bin_s)
                flows.append(label)
                counts.append(bins.get(place, 0))
        return {
            "t_s": np.array(times, dtype=float),
            "flow": np.array(flows, dtype=object),
            "bytes": np.array(counts, dtype=np.int64),
            "goodput_bps": np.array(counts, dtype=float) * 8 / self.bin_s,
        }
