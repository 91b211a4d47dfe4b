"""What the picture of TCP-Cherry's supplements is drawn from: a made-up capture."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from airlab.supplements import draw, gaps, silences
from airlab.wire import DATA, REPAIR, SUPPLEMENT, SUPPLEMENT_AGAIN, Sent, read_wire
from ccscope.pcapfile import Packet, sack_blocks, segment

PORT, PEER, ISN, T0 = 5001, 40000, 0xFFFFFC00, 10**12
LE, SYN, ACK = 1, 2, 16


def _frame(
    *, seq: int = 0, ack: int = 0, flags: int = ACK, data: int = 0, dscp: int = 0,
    back: bool = False, blocks: tuple[tuple[int, int], ...] = (), six: bool = False,
) -> bytes:  # fmt: skip
    options = b""
    if blocks:
        packed = b"".join(struct.pack(">II", a & 0xFFFFFFFF, b & 0xFFFFFFFF) for a, b in blocks)
        options = b"\x01\x01" + bytes([5, 2 + len(packed)]) + packed
    ports = (PORT, PEER) if back else (PEER, PORT)
    head = (20 + len(options)) // 4 << 4
    tcp = struct.pack(
        ">HHIIBBHHH", *ports, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, head, flags, 0, 0, 0
    )
    body = tcp + options + bytes(data)
    if six:
        ip = struct.pack(">IHBB", 6 << 28 | dscp << 22, len(body), 6, 64) + bytes(32)
        return bytes(12) + b"\x86\xdd" + ip + body
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, dscp << 2, 20 + len(body), 0, 0, 64, 6, 0, b"", b"")
    return bytes(12) + b"\x08\x00" + ip + body


def _capture(path: Path, frames: list[tuple[float, bytes]]) -> Path:
    made = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1)
    for t_s, data in frames:
        t_ns = T0 + round(t_s * 1e9)
        made += struct.pack("<IIII", t_ns // 10**9, t_ns % 10**9, len(data), len(data)) + data
    path.write_bytes(made)
    return path


def _seq(segs: float) -> int:
    return ISN + 1 + round(1000 * segs)


def _data(segs: float, dscp: int = 0) -> bytes:
    return _frame(seq=_seq(segs), data=1000, dscp=dscp)


def _ack(segs: float, *blocks: tuple[float, float]) -> bytes:
    ranges = tuple((_seq(a), _seq(b)) for a, b in blocks)
    return _frame(ack=_seq(segs), back=True, blocks=ranges)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """One segment, supplements 4 and 5, one of them again, the gap of 1 to 3, and a repair."""
    frames = [
        (0.0, _frame(seq=ISN, flags=SYN)),
        (0.5, _data(0)),
        (0.6, _data(4, LE)),
        (0.7, _data(5, LE)),
        (0.8, _data(4, LE)),
        (1.0, _ack(1)),
        (1.1, _ack(1, (4, 5))),
        (1.2, _ack(1, (4, 6))),
        (1.3, _data(1)),
        (1.4, _data(2)),
        (1.5, _data(3)),
        (2.0, _ack(2, (3, 6))),
        (2.5, _data(2)),
        (3.0, _ack(6)),
    ]
    return _capture(tmp_path / "cap.pcap", frames)


def test_first_and_again_data_and_supplements(capture: Path) -> None:
    """The sequence number wraps on the way."""
    wire = read_wire(capture, PORT, T0)
    assert [(s.start // 1000, s.kind) for s in wire.sent] == [
        (0, DATA), (4, SUPPLEMENT), (5, SUPPLEMENT), (4, SUPPLEMENT_AGAIN),
        (1, DATA), (2, DATA), (3, DATA), (2, REPAIR),
    ]  # fmt: skip
    assert [(round(t, 3), una) for t, una in wire.acks][-2:] == [(2.0, 2000), (3.0, 6000)]
    assert [(s.start, s.end) for s in wire.sacks] == [(4000, 5000), (5000, 6000), (3000, 6000)]


def test_the_gap_is_filled_in_order(capture: Path) -> None:
    (gap,) = gaps(read_wire(capture, PORT, T0).sent)
    assert (gap.first, gap.top) == (1000, 4000)
    edge = [(0.6, 1000), (1.3, 2000), (1.4, 3000), (1.5, 4000)]
    assert [(round(t, 3), at) for t, at in gap.edge] == edge


def test_silences() -> None:
    sent = [Sent(t, 0, 1000, DATA) for t in (1.0, 6.5, 20.1)]
    assert silences(sent, [(2.0, 6.0), (15.0, 20.0), (30.0, 31.0)]) == [(6.0, 6.5)]


def test_all_of_it_is_in_the_legend(capture: Path) -> None:
    figure = draw("A picture", read_wire(capture, PORT, T0), [(2.6, 2.7)], (0.0, 3.5))
    texts = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {"data", "supplement (low priority)", "ACK of a supplement", "data, sent again"} <= texts
    assert "3 skipped" in {text.get_text() for text in figure.axes[0].texts}


@pytest.mark.parametrize("six", [False, True])
def test_dscp_and_ecn(six: bool) -> None:
    data = _frame(data=10, dscp=LE, six=six)
    seen = segment(Packet(0, data, 1, len(data)))
    assert seen is not None
    assert (seen.dscp, seen.ecn, seen.length) == (LE, 0, 10)


def test_sack_option() -> None:
    assert sack_blocks(b"\x01\x01\x08\x0a" + bytes(8)) == []
    cut = b"\x01\x01\x05\x12" + struct.pack(">IIII", 1, 2, 3, 4)
    assert sack_blocks(cut) == [(1, 2), (3, 4)]
    assert sack_blocks(cut[:15]) == [(1, 2)]
