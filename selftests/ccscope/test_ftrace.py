"""The ring-buffer parser against the kernel's own text, and on hand-made pages."""

from __future__ import annotations

import gzip
import re
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ccscope.errors import CcscopeError
from ccscope.ftrace import (
    CPU_PLACES,
    Trace,
    parse_format,
    parse_pages,
    parse_stats,
    read_formats,
    read_trace,
    trace_parts,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "lab"))
import conftest_results as synth

DATA = Path(__file__).with_name("ring")


@pytest.fixture(scope="module")
def real() -> Trace:
    header, formats = read_formats(DATA / "trace.formats")
    return parse_pages(gzip.decompress((DATA / "trace.raw.gz").read_bytes()), formats, header)


@pytest.fixture(scope="module")
def golden() -> list[tuple[float, str, str]]:
    """(time in s, event, rest) of each line of the kernel's text."""
    lines = gzip.decompress((DATA / "trace.txt.gz").read_bytes()).decode().splitlines()
    found = [re.search(r" (\d+\.\d{6}): (\w+): (.*)$", line) for line in lines if line[:1] != "#"]
    return [(float(m[1]), m[2], m[3]) for m in found if m]


def _of(golden: list[tuple[float, str, str]], event: str) -> list[tuple[float, str]]:
    return [(t, rest) for t, name, rest in golden if name == event]


def test_every_event_and_time_of_the_kernels_text(
    real: Trace, golden: list[tuple[float, str, str]]
) -> None:
    assert real.count == len(golden) > 2000
    assert real.lost == 0
    assert not real.unknown
    for key, columns in real.events.items():
        rows = _of(golden, key.partition(":")[2])
        assert len(rows) == len(columns["t_ns"]) > 0
        # The text is rounded to microseconds.
        off = np.abs(columns["t_ns"] / 1e9 - np.array([t for t, _ in rows]))
        assert off.max() <= 0.51e-6


@pytest.mark.parametrize(
    ("event", "column", "found"),
    [
        ("tcp:tcp_probe", "snd_cwnd", (r"snd_cwnd=(\d+)", 10)),
        ("tcp:tcp_probe", "srtt", (r"srtt=(\d+)", 10)),
        ("tcp:tcp_probe", "snd_nxt", (r"snd_nxt=0x([0-9a-f]+)", 16)),
        ("tcp:tcp_probe", "ssthresh", (r"ssthresh=(\d+)", 10)),
        ("tcp:tcp_probe", "dport", (r"dest=\S+:(\d+)", 10)),
        ("tcp:tcp_cong_state_set", "cong_state", (r"cong_state=(\d+)", 10)),
        ("tcp:tcp_retransmit_skb", "sport", (r"sport=(\d+)", 10)),
        ("qdisc:qdisc_dequeue", "packets", (r"packets=(-?\d+)", 10)),
        ("qdisc:qdisc_enqueue", "handle", (r"handle=0x([0-9A-F]+)", 16)),
    ],
)
def test_fields_equal_the_kernels_text(
    real: Trace,
    golden: list[tuple[float, str, str]],
    event: str,
    column: str,
    found: tuple[str, int],
) -> None:
    pattern, base = found
    rows = _of(golden, event.partition(":")[2])
    wanted = [int(m[1], base) for _, rest in rows if (m := re.search(pattern, rest))]
    assert real.events[event][column].tolist() == wanted


def test_addresses_are_fixed_arrays(real: Trace) -> None:
    sent = real.events["tcp:tcp_cong_state_set"]
    mine = sent["daddr"][sent["dport"] == 5201]
    assert bytes(mine[0]) == bytes([10, 0, 2, 1])


FORMATS = [
    parse_format(synth.J_FORMAT, "j"),
    *read_formats(DATA / "trace.formats")[1],
]


def test_encoder_and_parser_agree() -> None:
    gaps = [0, 5, (1 << 27) - 1, 1 << 27, 1 << 40, 17] * 50
    times = (10**9 + np.cumsum(gaps)).tolist()
    events = [
        (t, synth.probe_event(i, i, i, 9, 9) if i % 2 else synth.j_event(i))
        for i, t in enumerate(times)
    ]
    trace = parse_pages(synth.pages(events), FORMATS)
    assert trace.events["j:j_sample"]["t_ns"].tolist() == times[::2]
    assert trace.events["j:j_sample"]["bw_Bps"].tolist() == list(range(0, 300, 2))
    assert trace.events["tcp:tcp_probe"]["t_ns"].tolist() == times[1::2]
    assert trace.events["tcp:tcp_probe"]["snd_cwnd"].tolist() == list(range(1, 300, 2))


def _page(body: bytes, start: int = 1000, flags: int = 0) -> bytes:
    return struct.pack("<QQ", start, len(body) | flags) + body + bytes(4080 - len(body))


def _event(delta: int, rate: int = 1) -> bytes:
    data = synth.j_event(rate)
    return struct.pack("<I", len(data) // 4 | (delta << 5)) + data


def test_absolute_time_stamps_keep_the_upper_bits() -> None:
    start = (1 << 59) + 1000
    now = 123456789012
    stamp = struct.pack("<II", 31 | ((now & ((1 << 27) - 1)) << 5), now >> 27)
    trace = parse_pages(_page(_event(7) + stamp + _event(3), start), FORMATS)
    assert trace.events["j:j_sample"]["t_ns"].tolist() == [start + 7, (1 << 59) + now + 3]


def test_padding_and_discarded_events() -> None:
    discarded = struct.pack("<II", 29 | (5 << 5), 12) + bytes(8)
    rest = struct.pack("<I", 29) + b"\xff" * 40
    trace = parse_pages(_page(_event(1) + discarded + _event(2) + rest), FORMATS)
    assert trace.events["j:j_sample"]["t_ns"].tolist() == [1001, 1008]


def test_lost_events_are_counted() -> None:
    events = [(10**9 + i, synth.j_event(i)) for i in range(500)]
    assert parse_pages(synth.pages(events, missed=41), FORMATS).lost == 41
    assert parse_pages(_page(_event(1), flags=1 << 31), FORMATS).lost == 1


def test_counters_of_the_ring_buffer_count_too(tmp_path: Path) -> None:
    raw = synth.write_raw(tmp_path / "raw", synth.make_plan(duration_s=0.5))
    assert read_trace(raw).lost == 0
    (raw / "trace.stats").write_text("entries: 3\noverrun: 7\ndropped events: 2\nnow ts: 1.5\n")
    assert read_trace(raw).lost == 9
    assert parse_stats("now ts:  8.8\n") == {"now ts": 8.8}


def test_strings() -> None:
    text = (
        "name: s\nID: 9\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\t"
        "signed:0;\n\tfield:__data_loc char[] who;\toffset:4;\tsize:4;\tsigned:0;\n"
        "\tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n"
    )
    data = struct.pack("<HHI", 9, 0, 24 | (6 << 16)) + b"airlab".ljust(16, b"\0") + b"hello\0"
    trace = parse_pages(synth.pages([(5, data)]), [parse_format(text, "x")])
    assert trace.events["x:s"]["who"].tolist() == ["hello"]
    assert bytes(trace.events["x:s"]["comm"][0]).rstrip(b"\0") == b"airlab"


def test_no_events_and_unknown_events() -> None:
    nothing = parse_pages(b"", FORMATS)
    assert nothing.count == 0
    assert nothing.events["j:j_sample"]["t_ns"].tolist() == []
    trace = parse_pages(_page(_event(1)), FORMATS[1:])
    assert trace.unknown == {1600: 1}


@pytest.mark.parametrize(
    "raw",
    [
        bytes(4095),
        struct.pack("<QQ", 1, 4081) + bytes(4080),
        _page(_event(1)[:-4]),
        _page(struct.pack("<I", 30)),
    ],
    ids=["cut", "commit", "event", "word"],
)
def test_damage_is_an_error(raw: bytes) -> None:
    with pytest.raises(CcscopeError, match="trace"):
        parse_pages(raw, FORMATS)


def test_missing_parts_are_errors(tmp_path: Path) -> None:
    with pytest.raises(CcscopeError, match="missing"):
        read_trace(tmp_path)
    with pytest.raises(CcscopeError, match="header_page"):
        read_formats(tmp_path)
    with pytest.raises(CcscopeError, match="damaged"):
        parse_format("nothing", "x")


def test_speed() -> None:
    events = [(10**9 + i * 1000, synth.enqueue_event()) for i in range(20_000)]
    raw = synth.pages(events) * 15
    start = time.process_time()
    assert parse_pages(raw, FORMATS).count == 300_000
    assert time.process_time() - start < 3


def test_the_traces_of_several_processors_become_one_in_order_of_time(tmp_path: Path) -> None:
    raw = synth.write_raw(tmp_path / "raw", synth.make_plan(duration_s=0.5))
    first = synth.pages([(100, synth.state_event(1)), (300, synth.state_event(2))], missed=2)
    (raw / "trace.raw").write_bytes(first)
    (raw / "trace.raw.1").write_bytes(synth.pages([(200, synth.state_event(3))], missed=3))
    trace = read_trace(raw)
    states = trace.events["tcp:tcp_cong_state_set"]
    assert states["t_ns"].tolist() == [100, 200, 300]
    assert states["cong_state"].tolist() == [1, 3, 2]
    assert states["common_at"].tolist() == [0, 1 << CPU_PLACES, 1]
    assert (trace.count, trace.lost) == (3, 5)
    assert trace_parts(raw)[0] == first
    (raw / "trace.stats").write_text("overrun: 4\n")
    (raw / "trace.stats.1").write_text("overrun: 7\n")
    assert read_trace(raw).lost == 11
