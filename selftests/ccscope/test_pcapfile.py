"""Reading pcap and pcapng, writing pcapng."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest
from ccscope.errors import CcscopeError
from ccscope.pcapfile import Packet, PcapngWriter, packets, read_capture, segment


def _frame(seq: int, length: int, port: int = 5001, six: bool = False, opts: int = 12) -> bytes:
    tcp = struct.pack(">HHIIBBHHH", 40000, port, seq, 0, (5 + opts // 4) << 4, 16, 0, 0, 0)
    tcp += bytes(opts)
    if six:
        head = struct.pack(">IHBB", 6 << 28, len(tcp) + length, 6, 64) + bytes(32)
        return bytes(12) + b"\x86\xdd" + head + tcp
    head = struct.pack(">BBHIBBH", 0x45, 0, 20 + len(tcp) + length, 0, 64, 6, 0) + bytes(8)
    return bytes(12) + b"\x08\x00" + head + tcp


def _write(path: Path, frames: list[bytes], magic: int = 0xA1B2C3D4, order: str = "<") -> Path:
    data = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 96, 1)
    for i, frame in enumerate(frames):
        data += struct.pack(order + "IIII", 1, i * 10, len(frame), 1514) + frame
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("magic", "scale"), [(0xA1B2C3D4, 1000), (0xA1B23C4D, 1)])
@pytest.mark.parametrize("six", [False, True])
def test_counts(tmp_path: Path, order: str, magic: int, scale: int, six: bool) -> None:
    start = (1 << 32) - 100  # sequence numbers wrap
    frames = [
        _frame(start, 1000, six=six),
        _frame((start + 1000) & 0xFFFFFFFF, 1000, six=six),
        _frame(start, 1000, six=six),  # again
        _frame(0, 0, six=six),  # an ACK
        bytes(60),
    ]
    path = _write(tmp_path / "x.pcap", frames, magic, order)
    seen = read_capture(path)
    flow = seen.flows[5001]
    assert seen.packets == 5
    assert seen.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (flow.segments, flow.data_bytes, flow.repeated, flow.new_bytes) == (3, 3000, 1, 2000)
    assert (flow.first_ns, flow.last_ns) == (10**9, 10**9 + 20 * scale)


def test_damage_is_an_error(tmp_path: Path) -> None:
    path = _write(tmp_path / "x.pcap", [_frame(0, 10)])
    whole = path.read_bytes()
    for data in (whole[:-1], whole[:30], b"no capture at all, but long enough", whole[:3]):
        path.write_bytes(data)
        with pytest.raises(CcscopeError, match="capture"):
            read_capture(path)
    cuts: list[str] = []
    path.write_bytes(whole[:-1])
    assert list(packets(path, cuts.append)) == []
    assert "cut off" in cuts[0]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CcscopeError, match="cannot be read"):
        read_capture(tmp_path / "nothing.pcap")


def _packets(frames: list[bytes], link_type: int = 1) -> list[Packet]:
    return [Packet(10**18 + i, f, link_type, len(f)) for i, f in enumerate(frames)]


def test_pcapng_is_read_as_written(tmp_path: Path) -> None:
    made = _packets([_frame(0, 0), _frame(9, 0, six=True)]) + _packets([_frame(1, 0)[14:]], 101)
    with PcapngWriter(tmp_path / "x.pcapng", "ccscope") as writer:
        for i, packet in enumerate(made):
            writer.write(packet, f"cwnd {i}" if i else "")
    assert list(packets(tmp_path / "x.pcapng")) == made
    data = (tmp_path / "x.pcapng").read_bytes()
    assert b"cwnd 1" in data
    for cut in range(len(data) - 1, len(data) - 60, -7):
        (tmp_path / "cut").write_bytes(data[:cut])
        notes: list[str] = []
        assert list(packets(tmp_path / "cut", notes.append)) == made[:2]
        assert notes


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_of_others(tmp_path: Path, order: str) -> None:
    """Both byte orders, microseconds by default, unknown blocks, simple packets."""

    def block(kind: int, body: bytes) -> bytes:
        size = struct.pack(order + "I", len(body) + 12)
        return struct.pack(order + "I", kind) + size + body + size

    frame = _frame(0, 0)
    frame += bytes(-len(frame) % 4)
    data = block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
    data += block(1, struct.pack(order + "HHI", 1, 0, 0))
    data += block(0xBAD, bytes(8))
    data += block(6, struct.pack(order + "5I", 0, 1, 2, len(frame), 1514) + frame)
    data += block(3, struct.pack(order + "I", len(frame)) + frame)
    path = tmp_path / "x.pcapng"
    path.write_bytes(data)
    first, second = packets(path)
    assert first == Packet(((1 << 32) + 2) * 1000, frame, 1, 1514)
    assert (second.data, second.length) == (frame, len(frame))
    path.write_bytes(data[:28] + block(6, struct.pack(order + "5I", 7, 0, 0, 0, 0)))
    with pytest.raises(CcscopeError, match="damaged"):
        list(packets(path))


@pytest.mark.parametrize("six", [False, True])
def test_link_layers(six: bool) -> None:
    whole = _frame(77, 5, six=six)
    ip, kind = whole[14:], whole[12:14]
    wanted = segment(Packet(0, whole, 1, len(whole)))
    assert wanted is not None
    assert (wanted.seq, wanted.length, wanted.dport) == (77, 5, 5001)
    tagged = whole[:12] + b"\x81\x00\x00\x05" + kind + ip
    for link_type, data in [
        *((1, tagged), (101, ip), (113, bytes(14) + kind + ip), (276, kind + bytes(18) + ip)),
        (0, bytes(4) + ip),
    ]:
        assert segment(Packet(0, data, link_type, len(data))) == wanted
    assert segment(Packet(0, whole[:40], 1, len(whole))) is None
    assert segment(Packet(0, whole, 147, len(whole))) is None
