"""Reads pcap and pcapng files packet by packet, and writes pcapng with comments.

Nothing is held but the packet at hand, so the size of a capture does not matter.  Link layers:
Ethernet (VLAN tags too), Linux cooked (both versions), raw IP and BSD loopback.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

from ccscope.errors import CcscopeError

ETHERNET = 1
_CLASSIC = {b"\xd4\xc3\xb2\xa1": ("<", 1000), b"\x4d\x3c\xb2\xa1": ("<", 1)}
_CLASSIC |= {magic[::-1]: (">", scale) for magic, (_, scale) in _CLASSIC.items()}
_SHB, _IDB, _SPB, _EPB = 0x0A0D0D0A, 1, 3, 6
_SHB_BYTES = struct.pack("<I", _SHB)
_BYTE_ORDER = 0x1A2B3C4D
_OPT_END, _OPT_COMMENT, _OPT_TSRESOL, _OPT_TSOFFSET = 0, 1, 9, 14
_MAX_BLOCK = 1 << 26
_IPV4, _IPV6, _TCP = 0x0800, 0x86DD, 6
_VLANS = (0x8100, 0x88A8)
_EXTENSIONS = (0, 43, 60)  # IPv6 hop-by-hop, routing, destination options


class Packet(NamedTuple):
    """A packet of a capture; ``data`` may be cut at the capture's snapshot length."""

    t_ns: int
    data: bytes
    link_type: int
    length: int


class Segment(NamedTuple):
    """A TCP segment; addresses are 4 or 16 bytes, ``options`` are the raw TCP options."""

    src: bytes
    dst: bytes
    sport: int
    dport: int
    seq: int
    ack: int
    flags: int
    window: int
    length: int
    ecn: int
    options: bytes
    dscp: int = 0


# ---- reading ----


def packets(path: Path, cut: Callable[[str], None] | None = None) -> Iterator[Packet]:
    """All packets of a pcap or pcapng file.

    Args:
        path: the file.
        cut: called with a text when the file ends inside a packet; without it that is an error.

    Raises:
        CcscopeError: no capture, cut off (see ``cut``), or damaged.
    """
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
            reader = _Reader(file, path, cut)
            if magic in _CLASSIC:
                yield from reader.classic(*_CLASSIC[magic])
            elif magic == _SHB_BYTES:
                yield from reader.next_generation()
            else:
                raise CcscopeError(f"capture: {path} is neither a pcap nor a pcapng file")
    except OSError as error:
        raise CcscopeError(f"capture: {path} cannot be read: {error.strerror}") from error


class _CutError(Exception):
    """The file ends inside a record."""


class _Reader:
    def __init__(self, file: BinaryIO, path: Path, cut: Callable[[str], None] | None) -> None:
        self.file, self.path, self.cut = file, path, cut

    def _take(self, count: int) -> bytes:
        data = self.file.read(count)
        if len(data) < count:
            raise _CutError
        return data

    def _ended(self) -> None:
        text = f"capture: {self.path} is cut off inside a packet"
        if self.cut is None:
            raise CcscopeError(text)
        self.cut(text)

    def classic(self, order: str, scale: int) -> Iterator[Packet]:
        head = struct.Struct(order + "IIII")
        try:
            link = struct.unpack(order + "16xI", self._take(20))[0] & 0xFFFF
            while first := self.file.read(1):
                seconds, part, length, whole = head.unpack(first + self._take(15))
                if length > _MAX_BLOCK:
                    raise CcscopeError(
                        f"capture: {self.path} is damaged: a packet of {length} bytes"
                    )
                yield Packet(seconds * 10**9 + part * scale, self._take(length), link, whole)
        except _CutError:
            self._ended()

    def next_generation(self) -> Iterator[Packet]:
        order, interfaces = "<", list[_Interface]()
        kind: int = _SHB
        try:
            while True:
                if kind == _SHB:
                    order, body = self._section()
                    interfaces = []
                else:
                    body = self._block(order)
                    if kind == _IDB:
                        interfaces.append(_interface(order, body))
                    elif kind in (_EPB, _SPB):
                        yield self._packet(order, kind, body, interfaces)
                first = self.file.read(1)
                if not first:
                    return
                raw = first + self._take(3)
                kind = _SHB if raw == _SHB_BYTES else struct.unpack(order + "I", raw)[0]
        except _CutError:
            self._ended()

    def _section(self) -> tuple[str, bytes]:
        head = self._take(8)
        order = "<" if struct.unpack_from("<I", head, 4)[0] == _BYTE_ORDER else ">"
        if struct.unpack_from(order + "I", head, 4)[0] != _BYTE_ORDER:
            raise CcscopeError(f"capture: {self.path} is damaged: a section without byte order")
        total = struct.unpack_from(order + "I", head)[0]
        return order, self._rest(total, 12)

    def _block(self, order: str) -> bytes:
        return self._rest(struct.unpack(order + "I", self._take(4))[0], 8)

    def _rest(self, total: int, had: int) -> bytes:
        if total < had + 4 or total > _MAX_BLOCK or total % 4:
            raise CcscopeError(f"capture: {self.path} is damaged: a block of {total} bytes")
        return self._take(total - had)[:-4]

    def _packet(self, order: str, kind: int, body: bytes, interfaces: list[_Interface]) -> Packet:
        try:
            if kind == _SPB:
                (whole,) = struct.unpack_from(order + "I", body)
                face = interfaces[0]
                length = min(whole, face.snap or whole)
                return Packet(0, body[4 : 4 + length], face.link_type, whole)
            number, high, low, length, whole = struct.unpack_from(order + "5I", body)
            face = interfaces[number]
        except (struct.error, IndexError):
            raise CcscopeError(f"capture: {self.path} is damaged: a packet block") from None
        ticks = (high << 32) | low
        t_ns = ticks * 10**9 // face.per_second + face.offset_s * 10**9
        return Packet(t_ns, body[20 : 20 + length], face.link_type, whole)


class _Interface(NamedTuple):
    link_type: int
    snap: int
    per_second: int
    offset_s: int


def _interface(order: str, body: bytes) -> _Interface:
    link, snap = struct.unpack_from(order + "HxxI", body)
    per_second, offset = 10**6, 0
    at = 8
    while at + 4 <= len(body):
        code, length = struct.unpack_from(order + "HH", body, at)
        value = body[at + 4 : at + 4 + length]
        if code == _OPT_END:
            break
        if code == _OPT_TSRESOL and length == 1:
            per_second = 2 ** (value[0] & 127) if value[0] & 128 else 10 ** value[0]
        elif code == _OPT_TSOFFSET and length == 8:
            offset = struct.unpack(order + "q", value)[0]
        at += 4 + (length + 3) // 4 * 4
    return _Interface(link, snap, per_second, offset)


# ---- TCP ----


def _network(data: bytes, link_type: int) -> int:
    """Where the IP header starts; -1 when there is none."""
    if link_type == ETHERNET:
        at = 12
        while data[at : at + 2] and int.from_bytes(data[at : at + 2], "big") in _VLANS:
            at += 4
        return at + 2 if int.from_bytes(data[at : at + 2], "big") in (_IPV4, _IPV6) else -1
    places = {113: 16, 276: 20, 0: 4, 108: 4, 12: 0, 14: 0, 101: 0, 228: 0, 229: 0}
    return places.get(link_type, -1)


def segment(packet: Packet) -> Segment | None:
    """The TCP segment in a packet; None for everything else and for fragments."""
    data = packet.data
    at = _network(data, packet.link_type)
    if at < 0 or len(data) < at + 20:
        return None
    if data[at] >> 4 == 4:
        protocol, tcp = data[at + 9], at + 4 * (data[at] & 15)
        # TCP segmentation offload on a path that also fills in no length leaves 0.
        end = at + (int.from_bytes(data[at + 2 : at + 4], "big") or packet.length - at)
        src, dst, traffic = data[at + 12 : at + 16], data[at + 16 : at + 20], data[at + 1]
        if int.from_bytes(data[at + 6 : at + 8], "big") & 0x1FFF:
            return None
    elif data[at] >> 4 == 6 and len(data) >= at + 40:
        protocol, tcp = data[at + 6], at + 40
        end = tcp + (int.from_bytes(data[at + 4 : at + 6], "big") or packet.length - tcp)
        src, dst = data[at + 8 : at + 24], data[at + 24 : at + 40]
        traffic = (int.from_bytes(data[at : at + 2], "big") >> 4) & 0xFF
        while protocol in _EXTENSIONS and tcp + 2 <= len(data):
            protocol, tcp = data[tcp], tcp + 8 * (data[tcp + 1] + 1)
    else:
        return None
    if protocol != _TCP or len(data) < tcp + 20:
        return None
    sport, dport, seq, ack, offset, flags, window = struct.unpack_from(">HHIIBBH", data, tcp)
    head = 4 * (offset >> 4)
    options = data[tcp + 20 : tcp + head]
    length = max(end - tcp - head, 0)
    return Segment(
        src, dst, sport, dport, seq, ack, flags, window, length, traffic & 3, options, traffic >> 2
    )


def tcp_options(raw: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Kind, stated length and value of each TCP option; the value of a cut one is shorter."""
    at = 0
    while at < len(raw) and raw[at]:
        if raw[at] == 1:
            at += 1
            continue
        size = raw[at + 1] if at + 1 < len(raw) else 0
        if size < 2:
            return
        yield raw[at], size, raw[at + 2 : at + size]
        at += size


def sack_pairs(value: bytes) -> list[tuple[int, int]]:
    """The whole blocks in a SACK option's value."""
    return list(struct.iter_unpack(">II", value[: len(value) // 8 * 8]))


def sack_blocks(options: bytes) -> list[tuple[int, int]]:
    """The blocks of a SACK option, a DSACK's first; empty without one."""
    return next((sack_pairs(value) for kind, _, value in tcp_options(options) if kind == 5), [])


# ---- counting ----


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
    """What is in a capture file; ``flows`` by TCP destination port."""

    sha256: str
    packets: int
    flows: dict[int, FlowCount]


def read_capture(path: Path) -> Capture:
    """Count the packets of a capture and hash the whole file.

    Raises:
        CcscopeError: the file is no capture, damaged, or cut off.
    """
    flows: dict[int, FlowCount] = {}
    highest: dict[tuple[bytes, bytes, int, int], int] = {}
    count = 0
    for packet in packets(path):
        count += 1
        seen = segment(packet)
        if seen is None or not seen.length:
            continue
        flow = flows.setdefault(seen.dport, FlowCount())
        flow.first_ns = flow.first_ns or packet.t_ns
        flow.last_ns = packet.t_ns
        _count(flow, highest, seen)
    with open(path, "rb") as file:
        return Capture(hashlib.file_digest(file, "sha256").hexdigest(), count, flows)


def _count(
    flow: FlowCount, highest: dict[tuple[bytes, bytes, int, int], int], seen: Segment
) -> None:
    key = (seen.src, seen.dst, seen.sport, seen.dport)
    end = (seen.seq + seen.length) & 0xFFFFFFFF
    ahead = (end - highest.setdefault(key, seen.seq)) & 0xFFFFFFFF
    flow.segments += 1
    flow.data_bytes += seen.length
    if 0 < ahead < 1 << 31:
        highest[key] = end
        flow.new_bytes += min(ahead, seen.length)
    else:
        flow.repeated += 1


# ---- writing ----


class PcapngWriter:
    """Writes one section of a pcapng file, times in ns; a packet may carry a comment."""

    def __init__(self, path: Path, tool: str) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by __exit__
        self._interfaces: dict[int, int] = {}
        body = struct.pack("<IHHq", _BYTE_ORDER, 1, 0, -1) + _options([(4, tool.encode())])
        self._block(_SHB, body)

    def write(self, packet: Packet, comment: str = "") -> None:
        """Append a packet."""
        number = self._interfaces.get(packet.link_type)
        if number is None:
            number = self._interfaces[packet.link_type] = len(self._interfaces)
            options = _options([(_OPT_TSRESOL, b"\x09")])
            self._block(_IDB, struct.pack("<HHI", packet.link_type, 0, 0) + options)
        head = struct.pack(
            *("<IIIII", number, packet.t_ns >> 32, packet.t_ns & 0xFFFFFFFF),
            *(len(packet.data), packet.length),
        )
        options = _options([(_OPT_COMMENT, comment.encode())]) if comment else b""
        self._block(_EPB, head + packet.data + bytes(-len(packet.data) % 4) + options)

    def _block(self, kind: int, body: bytes) -> None:
        total = struct.pack("<I", len(body) + 12)
        self._file.write(struct.pack("<I", kind) + total + body + total)

    def __enter__(self) -> PcapngWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def _options(pairs: list[tuple[int, bytes]]) -> bytes:
    made = b"".join(
        struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)
        for code, value in pairs
    )
    return made + struct.pack("<HH", _OPT_END, 0)
