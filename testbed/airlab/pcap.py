"""A reader of classic pcap files: enough to name a capture and to cross-check a flow."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airlab.model import AirlabError

_MAGICS = {b"\xd4\xc3\xb2\xa1": ("<", 1000), b"\x4d\x3c\xb2\xa1": ("<", 1)}
_MAGICS |= {magic[::-1]: (">", scale) for magic, (_, scale) in _MAGICS.items()}
_ETHERNET = 1
_IPV4, _IPV6, _TCP = 0x0800, 0x86DD, 6


@dataclass
class FlowCount:
    """TCP segments towards one destination port, as a capture shows them.

    Attributes:
        segments: segments that carry data.
        data_bytes: payload bytes in them, retransmissions included.
        repeated: data segments with nothing above the highest sequence number seen before.
        new_bytes: payload bytes above the highest sequence number seen before.
        first_ns, last_ns: times of the first and last data segment.
    """

    segments: int = 0
    data_bytes: int = 0
    repeated: int = 0
    new_bytes: int = 0
    first_ns: int = 0
    last_ns: int = 0


@dataclass
class Capture:
    """What is in a pcap file; ``flows`` by TCP destination port."""

    sha256: str
    packets: int
    flows: dict[int, FlowCount]


def read_capture(path: Path) -> Capture:
    """Count the packets of an Ethernet capture and hash the whole file.

    Raises:
        AirlabError: the file is not a classic pcap file, not Ethernet, or cut off.
    """
    data = path.read_bytes()
    flows: dict[int, FlowCount] = {}
    highest: dict[tuple[bytes, int], int] = {}
    packets = 0
    for t_ns, frame in _records(data, path):
        packets += 1
        segment = _tcp_data(frame)
        if segment is None:
            continue
        key, port, seq, length = segment
        _note_time(flows.setdefault(port, FlowCount()), t_ns)
        _count(flows[port], highest, (key, port), seq, length)
    return Capture(hashlib.sha256(data).hexdigest(), packets, flows)


def _records(data: bytes, path: Path) -> Iterator[tuple[int, bytes]]:
    if data[:4] not in _MAGICS or len(data) < 24:
        raise AirlabError(f"capture: {path} is not a classic pcap file")
    order, scale = _MAGICS[data[:4]]
    if struct.unpack_from(order + "I", data, 20)[0] & 0xFFFF != _ETHERNET:
        raise AirlabError(f"capture: {path} does not hold Ethernet frames")
    head = struct.Struct(order + "IIII")
    at = 24
    while at < len(data):
        if at + head.size > len(data):
            raise AirlabError(f"capture: {path} is cut off inside a packet")
        seconds, fraction, length, _ = head.unpack_from(data, at)
        at += head.size
        if at + length > len(data):
            raise AirlabError(f"capture: {path} is cut off inside a packet")
        yield seconds * 10**9 + fraction * scale, data[at : at + length]
        at += length


def _tcp_data(frame: bytes) -> tuple[bytes, int, int, int] | None:
    """(addresses and source port, destination port, sequence number, payload bytes)."""
    if len(frame) < 54:
        return None
    kind = int.from_bytes(frame[12:14], "big")
    if kind == _IPV4 and frame[23] == _TCP:
        at = 14 + 4 * (frame[14] & 15)
        end = 14 + int.from_bytes(frame[16:18], "big")
        ends = frame[26:34]
    elif kind == _IPV6 and frame[20] == _TCP:
        at, end, ends = 54, 54 + int.from_bytes(frame[18:20], "big"), frame[22:54]
    else:
        return None
    if len(frame) < at + 13:
        return None
    source, port, seq = struct.unpack_from(">HHI", frame, at)
    length = end - at - 4 * (frame[at + 12] >> 4)
    return (ends + source.to_bytes(2, "big"), port, seq, length) if length > 0 else None


def _note_time(flow: FlowCount, t_ns: int) -> None:
    flow.first_ns = flow.first_ns or t_ns
    flow.last_ns = t_ns


def _count(
    flow: FlowCount,
    highest: dict[tuple[bytes, int], int],
    key: tuple[bytes, int],
    seq: int,
    length: int,
) -> None:
    end = (seq + length) & 0xFFFFFFFF
    top = highest.setdefault(key, seq)
    ahead = (end - top) & 0xFFFFFFFF
    flow.segments += 1
    flow.data_bytes += length
    if 0 < ahead < 1 << 31:
        highest[key] = end
        flow.new_bytes += min(ahead, length)
    else:
        flow.repeated += 1
