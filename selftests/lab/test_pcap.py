"""The pcap reader."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest
from airlab.model import AirlabError
from airlab.pcap import read_capture


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
        with pytest.raises(AirlabError, match="capture"):
            read_capture(path)
    path.write_bytes(whole[:20] + struct.pack("<I", 113) + whole[24:])
    with pytest.raises(AirlabError, match="Ethernet"):
        read_capture(path)
