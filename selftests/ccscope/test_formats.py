"""Imports of what other tools write, exports of what they read."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from ccscope.assemble import unlimited_as_null
from ccscope.cli import main
from ccscope.errors import CcscopeError
from ccscope.export import FORMATS, export
from ccscope.imports import import_file
from ccscope.pcapfile import Packet, PcapngWriter, packets
from ccscope.recording import Recording, Writer

RING = Path(__file__).with_name("ring")
A, B = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
START_NS = 1_700_000_000 * 10**9


def _frame(
    back: bool, seq: int, ack: int, length: int = 0, *, flags: int = 16, options: bytes = b""
) -> bytes:
    options += bytes(-len(options) % 4)
    ports = (80, 40000) if back else (40000, 80)
    tcp = struct.pack(
        ">HHIIBBHHH", *ports, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, (5 + len(options) // 4) << 4,
        flags, 1000, 0, 0,
    ) + options  # fmt: skip
    ends = B + A if back else A + B
    head = struct.pack(">BBHIBBH", 0x45, 2, 20 + len(tcp) + length, 0, 64, 6, 0) + ends
    return bytes(12) + b"\x08\x00" + head + tcp


def _sack(*blocks: tuple[int, int]) -> bytes:
    words = b"".join(struct.pack(">II", a & 0xFFFFFFFF, b & 0xFFFFFFFF) for a, b in blocks)
    return bytes([1, 1, 5, 2 + len(words)]) + words


ISN = (1 << 32) - 1500
FRAMES = [
    _frame(False, ISN, 0, flags=2, options=bytes([3, 3, 7])),
    _frame(True, 9000, ISN + 1, flags=18, options=bytes([3, 3, 2])),
    _frame(False, ISN + 1, 9001),
    _frame(False, ISN + 1, 9001, 1000),
    _frame(False, ISN + 1001, 9001, 1000),  # across the wrap
    _frame(False, ISN + 2001, 9001, 1000),
    _frame(True, 9001, ISN + 1, options=_sack((ISN + 1001, ISN + 3001))),
    _frame(False, ISN + 1, 9001, 1000),  # again
    _frame(True, 9001, ISN + 3001, options=_sack((ISN + 1, ISN + 1001))),  # it was not lost
]


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "x.pcapng"
    with PcapngWriter(path, "test") as writer:
        for i, frame in enumerate(FRAMES):
            whole = len(frame) + (1000 if i in (3, 4, 5, 7) else 0)
            writer.write(Packet(START_NS + i * 10_000_000, frame, 1, whole))
    return path


def test_a_capture(capture: Path, tmp_path: Path) -> None:
    assert main(["import", str(capture), "-o", str(tmp_path / "r")]) == 0
    recording = Recording.open(tmp_path / "r")
    assert list(recording.flows.values()) == [
        {"src": "10.0.0.1", "sport": 40000, "dst": "10.0.0.2", "dport": 80, "family": 4}
    ]
    seen = recording.flow("packets", "f1")
    assert seen["seq_bytes"].tolist() == [0, 0, 1, 1, 1001, 2001, 1, 1, 1]
    assert seen["ack_bytes"].tolist()[6:] == [1, 1, 3001]
    assert "".join(d[0] for d in seen["direction"]) == "oiooooioi"
    assert seen["repeated"].tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert seen["sack"].tolist()[6::2] == ["1001-3001", "1-1001"]
    assert seen["dsack"].tolist()[6::2] == [0, 1]
    assert seen["flags"].tolist()[:3] == ["S", "SA", "A"]
    assert seen["window_bytes"].tolist()[:4] == [1000, 1000, 128000, 128000]
    assert seen["window_bytes"][6] == 4000
    assert recording.table("goodput")["bytes"].sum() == 3000
    assert recording.capture is not None
    out = tmp_path / "plot"
    assert main(["export", str(tmp_path / "r"), "-f", "xplot", "-o", str(out)]) == 0
    text = (out / "f1.xpl").read_text()
    assert "red\ndarrow 0.070000000 1" in text
    assert text.endswith("go\n")


def test_a_cut_capture_gives_what_is_readable(capture: Path, tmp_path: Path) -> None:
    capture.write_bytes(capture.read_bytes()[:-30])
    meta = import_file(capture, tmp_path / "r")
    assert "cut off" in meta["problems"][0]
    assert not meta["complete"]
    assert meta["tables"]["packets"] == len(FRAMES) - 1


SS = """1700000000.5
State Recv-Q Send-Q Local Address:Port Peer Address:PortProcess
ESTAB 0      181000 10.0.0.1:5001      10.0.0.2:40000
\t skmem:(r0,rb131072,t0,tb87040,f3904,w41152,o0,bl0,d0) \
cubic wscale:7,9 rto:204 rtt:50.5/2.25 mss:1448 cwnd:20 ssthresh:15 bytes_sent:90000 \
bytes_retrans:1448 bytes_acked:80000 segs_out:60 send 4587129bps lastsnd:4 pacing_rate 5.5Mbps \
delivery_rate 4Mbps delivered:58 busy:900ms rwnd_limited:4ms(0.4%) unacked:7 retrans:1/3 lost:2 \
sacked:3 rcv_space:14480 notsent:100 minrtt:49.9 snd_wnd:65536
ESTAB 0 0 [::ffff:10.0.0.1]:22 [fe80::1]:50000 bbr rto:200 rtt:1/0.5 cwnd:10 app_limited
2023-11-14T22:13:21,500000000+00:00
ESTAB 0      181000 10.0.0.1:5001      10.0.0.2:40000
\t cubic rto:204 rtt:51/2 cwnd:21
"""


def test_a_log_of_ss(tmp_path: Path) -> None:
    (tmp_path / "ss.log").write_text(SS)
    import_file(tmp_path / "ss.log", tmp_path / "r")
    recording = Recording.open(tmp_path / "r")
    rows = recording.flow("samples", "f1")
    assert rows["t_s"].tolist() == [0, 1]
    assert rows["cwnd_segs"].tolist() == [20, 21]
    first = {name: values[0] for name, values in rows.items()}
    assert (first["srtt_us"], first["rttvar_us"], first["min_rtt_us"]) == (50500, 2250, 49900)
    assert (first["rto_us"], first["busy_us"], first["rwnd_limited_us"]) == (204000, 900000, 4000)
    assert (first["sndbuf_bytes"], first["wmem_bytes"]) == (87040, 41152)
    assert rows["sndbuf_limited_us"].tolist()[0] == 0  # ss leaves zeros out
    assert (first["retrans_segs"], first["retrans_total"], first["lost_segs"]) == (1, 3, 2)
    assert (first["pacing_rate_Bps"], first["delivery_rate_Bps"]) == (687500, 500000)
    assert rows["ssthresh_segs"].tolist() == [15, 0x7FFFFFFF]
    assert recording.flows["f1"]["cc"] == "cubic"
    assert recording.flows["f2"]["src"] == "10.0.0.1"
    assert recording.flow("samples", "f2")["app_limited"].tolist() == [1]
    (tmp_path / "no.log").write_text("\n".join(SS.splitlines()[1:4]))
    with pytest.raises(CcscopeError, match="does not say when"):
        import_file(tmp_path / "no.log", tmp_path / "q")


def _raw(tmp_path: Path) -> Path:
    raw = tmp_path / "raw"
    shutil.copytree(RING / "trace.formats", raw / "trace.formats")
    (raw / "trace.raw").write_bytes(gzip.decompress((RING / "trace.raw.gz").read_bytes()))
    return raw


def test_text_and_raw_pages_of_one_trace_agree(tmp_path: Path) -> None:
    text = tmp_path / "trace.txt"
    text.write_bytes(gzip.decompress((RING / "trace.txt.gz").read_bytes()))
    import_file(text, tmp_path / "t")
    import_file(_raw(tmp_path), tmp_path / "r")
    one, two = Recording.open(tmp_path / "t"), Recording.open(tmp_path / "r")
    assert len(one.table("acks")["t_s"]) > 100
    for table, names in {
        "acks": ("cwnd_segs", "ssthresh_segs", "srtt_us", "inflight_bytes", "una_bytes"),
        "states": ("state", "left", "cause"),
        "retransmits": ("kind",),
    }.items():
        for label in one.flows:
            for name in names:
                ours, theirs = one.flow(table, label)[name], two.flow(table, label)[name]
                assert ours.tolist() == theirs.tolist()
    assert one.flows == two.flows


def test_several_cpus_become_one(tmp_path: Path) -> None:
    raw = _raw(tmp_path)
    import_file(raw, tmp_path / "one")
    pages = (raw / "trace.raw").read_bytes()
    half = len(pages) // 8192 * 4096
    (raw / "trace.raw").unlink()
    # The later half on the first CPU.
    (raw / "trace.raw.0").write_bytes(pages[half:])
    (raw / "trace.raw.1").write_bytes(pages[:half])
    import_file(raw, tmp_path / "two")
    one, two = Recording.open(tmp_path / "one"), Recording.open(tmp_path / "two")
    for table in one.tables():
        for name, values in one.table(table).items():
            assert np.array_equal(values.astype(str), two.table(table)[name].astype(str))


def test_unknown_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("something else")
    with pytest.raises(CcscopeError, match="neither a capture"):
        import_file(tmp_path / "x", tmp_path / "r")
    with pytest.raises(CcscopeError, match="cannot be read"):
        import_file(tmp_path / "y", tmp_path / "r")
    (tmp_path / "d").mkdir()
    with pytest.raises(CcscopeError, match=r"trace\.raw"):
        import_file(tmp_path / "d", tmp_path / "r")


# ---- exports ----


@pytest.fixture
def recording(tmp_path: Path, capture: Path) -> Recording:
    flow = {"src": "10.0.0.1", "sport": 40000, "dst": "10.0.0.2", "dport": 80, "family": 4}
    with Writer(tmp_path / "rec") as writer:
        times = np.array([0.01, 0.035, 0.065])
        label = np.array(["f1"] * 3, dtype=object)
        acks = {"t_s": times, "flow": label, "cwnd_segs": np.array([10, 12, 6])}
        acks |= {"una_bytes": np.array([0, 1000, 4000]), "snd_wnd_bytes": np.full(3, 9000)}
        acks |= {"ssthresh_segs": np.array([0x7FFFFFFF, 0x7FFFFFFF, 6]), "srtt_us": times * 1e6}
        writer.add("acks", {**acks, "inflight_bytes": np.array([0, 2000, 3000])})
        text = {"flow": "f1", "state": "Recovery", "left": "Open", "cause": "sack", "evidence": "x"}
        states = {n: np.array([v], dtype=object) for n, v in text.items()}
        writer.add("states", {"t_s": times[2:], **states})
        kind = np.array(["fast"], dtype=object)
        writer.add("retransmits", {"t_s": times[2:], "flow": label[:1], "kind": kind})
        shutil.copy(capture, tmp_path / "rec" / "capture.pcapng")
        writer.finish(
            {
                **{"duration_s": 0.1, "start_realtime_ns": START_NS, "start_monotonic_ns": 5},
                **{"flows": {"f1": {**flow, "mss": 1000, "cc": "j"}}, "sources": []},
            }
        )
    return Recording.open(tmp_path / "rec")


def test_csv(recording: Recording, tmp_path: Path) -> None:
    export(recording, "csv", tmp_path / "out")
    with open(tmp_path / "out" / "acks.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["cwnd_segs [segments]"] == "10"
    assert rows[0]["lost_segs [segments]"] == ""
    assert float(rows[1]["t_s [s]"]) == 0.035


def test_jsonl(recording: Recording, tmp_path: Path) -> None:
    export(recording, "jsonl", tmp_path / "x.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert rows[0]["table"] == "recording"
    assert rows[0]["flows"] == recording.flows
    assert rows[1] == {
        **{"table": "acks", "t_s": 0.01, "flow": "f1", "cwnd_segs": 10},
        **{"ssthresh_segs": 0x7FFFFFFF, "srtt_us": 10000, "inflight_bytes": 0},
        **{"una_bytes": 0, "snd_wnd_bytes": 9000},
    }
    assert [r["cause"] for r in rows if r["table"] == "states"] == ["sack"]


def test_pcapng_with_the_state_as_comment(recording: Recording, tmp_path: Path) -> None:
    out = tmp_path / "x.pcapng"
    export(recording, "pcapng", out)
    assert recording.capture is not None
    assert list(packets(out)) == list(packets(recording.capture))
    data = out.read_bytes()
    assert b"flow f1 cwnd 10 ssthresh none srtt_us 10000 inflight_bytes 0" in data
    assert (
        b"flow f1 cwnd 6 ssthresh 6 srtt_us 65000 inflight_bytes 3000 state Recovery (sack)" in data
    )


def _fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """The fields of a protobuf message."""
    made: list[tuple[int, int | bytes]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            made.append((key >> 3, varint()))
        else:
            size = 8 if key & 7 == 1 else varint()
            made.append((key >> 3, data[at : at + size]))
            at += size
    return made


def test_perfetto(recording: Recording, tmp_path: Path) -> None:
    export(recording, "perfetto", tmp_path / "x.perfetto")
    found = [dict(_fields(p)) for _, p in _fields((tmp_path / "x.perfetto").read_bytes())]
    tracks = [dict(_fields(p[60])) for p in found if 60 in p]
    names = {t[1]: t[2].decode() for t in tracks}
    assert "f1 10.0.0.1:40000 - 10.0.0.2:80 j" in names.values()
    events = [(p[8], dict(_fields(p[11]))) for p in found if 11 in p]
    cwnd = next(uuid for uuid, name in names.items() if name == "cwnd_segs")
    values = [struct.unpack("<d", e[44])[0] for _, e in events if e[11] == cwnd]
    assert values == [10, 12, 6]
    slices = [(t, e[9], e.get(23)) for t, e in events if names[e[11]] == "CA state"]
    assert slices == [
        *((5, 1, b"Open"), (65_000_005, 2, None)),
        *((65_000_005, 1, b"Recovery (sack)"), (100_000_005, 2, None)),
    ]
    assert [e[23] for _, e in events if e[9] == 3] == [b"fast"]


def test_qlog(recording: Recording, tmp_path: Path) -> None:
    export(recording, "qlog", tmp_path / "q")
    records = (tmp_path / "q" / "f1.sqlog").read_text().split("\x1e")[1:]
    head, *events = [json.loads(r) for r in records]
    assert head["qlog_format"] == "JSON-SEQ"
    assert "mss_assumed" not in head["trace"]["common_fields"]
    assert events[0]["data"] == {
        "congestion_window": 10000,
        "bytes_in_flight": 0,
        "smoothed_rtt": 10,
    }
    names = [e["name"] for e in events]
    assert names.count("recovery:metrics_updated") == 3
    changed = events[names.index("recovery:congestion_state_updated")]
    assert changed["data"] == {"old": "Open", "new": "Recovery", "trigger": "sack"}
    assert "recovery:packet_lost" in names


def test_xplot_from_acks(recording: Recording, tmp_path: Path) -> None:
    text = export(recording, "xplot", tmp_path / "x")[0].read_text()
    assert text.startswith("double double\ntitle\n")
    assert "yellow\nline 0.035000000 10000 0.065000000 10000\n" in text


def test_what_an_export_needs_is_said(tmp_path: Path, recording: Recording) -> None:
    assert {"csv", "perfetto"} < set(FORMATS)
    with pytest.raises(CcscopeError, match="--format"):
        export(recording, "pdf", tmp_path)
    (recording.path / "capture.pcapng").unlink()
    with pytest.raises(CcscopeError, match="--pcap"):
        export(recording, "pcapng", tmp_path / "x")


def test_no_limit_of_pacing_is_null() -> None:
    for dtype in (np.uint64, float):
        rates = np.array([5, (1 << 64) - 1, 1 << 40], dtype=dtype)
        made = unlimited_as_null(rates)
        assert made[[0, 2]].tolist() == [5, 1 << 40]
        assert np.isnan(made[1])
