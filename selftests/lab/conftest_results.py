"""A made-up laboratory: raw folders as docs/lab-internals.md describes them.

A small packet-level model of one sender, one bottleneck and a lossy link writes everything a
guest would leave behind, the ring buffer's pages included, so that the chain from raw output
to report is tested without a guest.
"""

from __future__ import annotations

import ipaddress
import json
import random
import shutil
import struct
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airlab.model import Cell, CellPlan, FlowPlan, Interval, PathProbe, StagePlan

DATA = Path(__file__).parents[1] / "ccscope" / "ring"
T0_NS = 7_000_000_000
RATE_BPS, RTT_US, BUFFER, FRAME = 5_000_000, 40_000, 30, 1514
MSS, PORT = 1448, 5001
BETA = {"reno": 0.5, "j": 0.85, "cubic": 0.7, "westwood": 0.8, "bbr": 0.98}

J_FORMAT = """name: j_sample
ID: 1600
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:u64 bw_Bps;\toffset:8;\tsize:8;\tsigned:0;
\tfield:u16 sport;\toffset:16;\tsize:2;\tsigned:0;
\tfield:u16 dport;\toffset:18;\tsize:2;\tsigned:0;

print fmt: "bw=%llu", REC->bw_Bps
"""


def make_plan(
    cc: str = "reno",
    seed: int = 1,
    ber: float = 1e-6,
    duration_s: float = 8.0,
    intervals: tuple[Interval, ...] = (),
) -> CellPlan:
    end_us = int(duration_s * 1e6)
    flow = FlowPlan("f1", cc, "s", "d", "10.0.2.1", PORT, 4, 0, end_us)
    places = ("wA", "wA1", "10:")
    base = StagePlan(
        "air:fwd", "air", "r", "d", *places, RATE_BPS, BUFFER, None, "droptail", "wB", "wB1",
        RTT_US // 2, "airf", ber, 0.0, (), True,
    )  # fmt: skip
    back = replace(
        base, name="air:rev", src="d", dst="r", rate_ns="wB", rate_dev="wB0", rate_handle="20:",
        delay_ns="wA", delay_dev="wA0", channel="airr",
    )  # fmt: skip
    return CellPlan(
        scenario="wlan-ber",
        cell=Cell(cc, seed, (("link.air.ber", ber),)),
        cc=cc,
        duration_us=end_us,
        flows=(flow,),
        stages=(base, back),
        probes=(PathProbe("s-d", "s", "d", RTT_US, RATE_BPS, BUFFER, 4 * BUFFER, FRAME),),
        intervals=intervals,
        nodes=("s", "d"),
        modules=("tcp_j",),
        kernel_args=(),
        capture=True,
        trace=True,
        keep_pcap=False,
        files={"setup.sh": b"ip netns add s\n"},
    )


# ---- the ring buffer ----


def pages(events: list[tuple[int, bytes]], missed: int = 0) -> bytes:
    """Encode events (time, data) as the kernel does; ``missed`` is noted on page 0."""
    made = bytearray()
    body, start, last = bytearray(), 0, 0

    def close() -> None:
        commit = len(body)
        tail = bytes(4080 - len(body))
        if missed and not made:
            commit |= (1 << 31) | (1 << 30)
            tail = struct.pack("<Q", missed) + tail[8:]
        made.extend(struct.pack("<QQ", start, commit) + body + tail)

    for t_ns, data in events:
        padded = data + bytes(-len(data) % 4)
        if body and len(body) + len(padded) + 16 > 4060:
            close()
            body = bytearray()
        if not body:
            start = last = t_ns
        delta, last = t_ns - last, t_ns
        if delta >= 1 << 27:
            body += struct.pack("<II", 30 | ((delta & ((1 << 27) - 1)) << 5), delta >> 27)
            delta = 0
        if len(padded) <= 112:
            body += struct.pack("<I", len(padded) // 4 | (delta << 5)) + padded
        else:
            body += struct.pack("<II", delta << 5, len(padded) + 4) + padded
    close()
    return bytes(made)


def _common(number: int) -> bytes:
    return struct.pack("<HBBi", number, 0, 0, 1)


_SRC, _DST = (ipaddress.ip_address(a).packed for a in ("10.0.0.1", "10.0.2.1"))
_SRC6, _DST6 = (bytes(10) + b"\xff\xff" + a for a in (_SRC, _DST))


def _sockaddr(address: bytes, port: int) -> bytes:
    return struct.pack("<H", 2) + struct.pack(">H", port) + address + bytes(20)


def probe_event(una: int, nxt: int, cwnd: int, ssthresh: int, srtt: int) -> bytes:
    data = _common(1484) + _sockaddr(_SRC, 40000) + _sockaddr(_DST, PORT)
    data += struct.pack("<HHHxxIHxx", 40000, PORT, 2, 0, 0)
    data += struct.pack("<7I", nxt & 0xFFFFFFFF, una & 0xFFFFFFFF, cwnd, ssthresh, 65536, srtt, 9)
    return data + struct.pack("<4xQQQ", 1, 2, 3)


def state_event(state: int) -> bytes:
    head = _common(1482) + struct.pack("<QHHH", 3, 40000, PORT, 2)
    return head + _SRC + _DST + _SRC6 + _DST6 + bytes([state])


def retransmit_event() -> bytes:
    head = _common(1490) + struct.pack("<QQiHHH", 2, 3, 1, 40000, PORT, 2)
    return head + _SRC + _DST + _SRC6 + _DST6


def enqueue_event(handle: int = 0x100000) -> bytes:
    return _common(1466) + struct.pack("<QQQiII", 1, 1, 7, 3, handle, 0xFFFFFFFF)


def dequeue_event(handle: int = 0x100000, packets: int = 1, skb: int = 7) -> bytes:
    head = _common(1467) + struct.pack("<QQi4xQ", 1, 1, packets, skb)
    return head + struct.pack("<iII4xQ", 3, handle, 0xFFFFFFFF, 0)


def j_event(rate: int) -> bytes:
    return _common(1600) + struct.pack("<QHH", rate, 40000, PORT)


# ---- the model ----


@dataclass
class Model:
    """A sender with a window, a queue of BUFFER packets, a link with bit errors."""

    cc: str
    ber: float
    seed: int
    duration_s: float
    outages: tuple[tuple[float, float], ...] = ()
    events: list[tuple[int, bytes]] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)
    samples: dict[str, list[int]] = field(default_factory=dict)
    frames: int = 0
    lost_air: int = 0
    lost_outage: int = 0
    lost_queue: int = 0
    again: int = 0

    def run(self) -> None:
        dice = random.Random(f"{self.seed} {self.ber}")
        chance = 1 - (1 - self.ber) ** (8 * FRAME)
        tx, rtt = FRAME * 8e9 / RATE_BPS, RTT_US * 1e3
        cwnd, ssthresh, state = 10.0, 0x7FFFFFFF, 0
        recover_until, free_at, una, sent = -1.0, 0.0, 4294960000, 0
        queue: deque[float] = deque()
        flying: deque[tuple[float, bool]] = deque()
        now, next_sample = 0.0, 0.0
        srtt = rtt
        while now < self.duration_s * 1e9:
            while len(flying) < int(cwnd):
                while queue and queue[0] <= now:
                    queue.popleft()
                if len(queue) >= BUFFER:
                    self.lost_queue += 1
                    flying.append((max(free_at, now) + rtt, True))
                    break
                free_at = max(free_at, now) + tx
                queue.append(free_at)
                sent += 1
                self.frames += 1
                hit = dice.random() < chance
                out = any(a * 1e9 <= free_at < b * 1e9 for a, b in self.outages)
                self.lost_air += hit and not out
                self.lost_outage += out
                self.note(now, enqueue_event())
                self.note(now, dequeue_event(packets=0, skb=0))
                self.note(free_at, dequeue_event())
                flying.append((free_at + rtt, hit or out))
                if not (hit or out):
                    self.arrivals.append(int(free_at + rtt / 2))
            then, lost = flying.popleft()
            now = max(now, then)
            srtt = 0.875 * srtt + 0.125 * (rtt + len(queue) * tx)
            nxt = una + len(flying) * MSS
            self.note(now, probe_event(una, nxt, int(cwnd), ssthresh, int(srtt / 1e3)))
            if self.cc == "j":
                self.note(now, j_event(int(RATE_BPS / 8)))
            una += MSS
            if state and now > recover_until:
                state = 0
                self.note(now, state_event(0))
            if lost:
                self.again += 1
                self.note(now, retransmit_event())
                if not state:
                    dark = any(a * 1e9 <= now - rtt < b * 1e9 for a, b in self.outages)
                    state = 4 if dark else 3
                    self.note(now, state_event(state))
                    cwnd = max(cwnd * (0.1 if dark else BETA[self.cc]), 2.0)
                    ssthresh, recover_until = int(cwnd), now + rtt
            elif not state:
                cwnd += 1.0 if cwnd < ssthresh else 1.0 / cwnd
            if now >= next_sample:
                self.sample(now, (cwnd, ssthresh, srtt), len(flying), sent)
                next_sample += 1e8
        self.events.sort(key=lambda e: e[0])

    def note(self, t_ns: float, data: bytes) -> None:
        self.events.append((T0_NS + int(t_ns), data))

    def sample(self, now: float, state: tuple[float, int, float], fly: int, sent: int) -> None:
        cwnd, ssth, srtt = state
        row = {
            "t_ns": T0_NS + int(now),
            "cwnd_segs": int(cwnd),
            "ssthresh_segs": ssth,
            "srtt_us": int(srtt / 1e3),
            "min_rtt_us": RTT_US,
            "unacked_segs": fly,
            "sacked_segs": 0,
            "lost_segs": 0,
            "retrans_total": self.again,
            "ca_state": 0,
            "delivery_rate_Bps": RATE_BPS // 8,
            "bytes_acked": sent * MSS,
            "rto_us": 200000,
            "mss_bytes": MSS,
        }
        for name, value in row.items():
            self.samples.setdefault(name, []).append(value)


# ---- the raw folder ----


def write_raw(folder: Path, plan: CellPlan) -> Path:
    """Write the raw output of a faultless run of the plan."""
    dark = tuple((i.start_us / 1e6, i.end_us / 1e6) for i in plan.intervals if i.kind == "outage")
    model = Model(plan.cell.cc, plan.stages[0].ber, plan.cell.seed, plan.duration_us / 1e6, dark)
    model.run()
    for name in ("json", "proc"):
        (folder / name).mkdir(parents=True)
    _write_trace(folder, model)
    _write_reports(folder, plan, model)
    _write_counters(folder, plan, model)
    return folder


def _write_trace(folder: Path, model: Model) -> None:
    shutil.copytree(DATA / "trace.formats", folder / "trace.formats")
    (folder / "trace.formats" / "j.j_sample").write_text(J_FORMAT)
    (folder / "trace.raw").write_bytes(pages(model.events))
    (folder / "trace.stats").write_text("entries: 0\noverrun: 0\ndropped events: 0\n")


def _write_reports(folder: Path, plan: CellPlan, model: Model) -> None:
    flow = plan.flows[0]
    bins: dict[int, int] = {}
    for t_ns in model.arrivals:
        start = T0_NS + t_ns // 100_000_000 * 100_000_000
        bins[start] = bins.get(start, 0) + MSS
    sender = {
        "mode": "send",
        "error": None,
        "bytes": len(model.arrivals) * MSS,
        "cc": flow.cc,
        "cc_end": flow.cc,
        "samples": model.samples,
        "final": {name: values[-1] for name, values in model.samples.items()},
    }
    receiver = {
        "mode": "recv",
        "error": None,
        "bytes": len(model.arrivals) * MSS,
        "bins": sorted(bins.items()),
        "verified": True,
        "mismatch_at": None,
        "cc": "cubic",
        "connections": 1,
    }
    put(folder, f"{flow.label}.json", sender)
    put(folder, f"{flow.label}.recv.json", receiver)
    tx = FRAME * 8e9 / RATE_BPS
    for phase in ("before", "after"):
        for probe in plan.probes:
            name = f"{phase}.{probe.label}"
            put(folder, f"{name}.ping.json", {"rtts_ns": [RTT_US * 1000 + 50_000] * 9, "lost": 0})
            put(folder, f"{name}.rate.json", _stream(400, tx))
            put(folder, f"{name}.burst.json", _stream(BUFFER + 1, tx))


def _stream(count: int, gap_ns: float) -> dict[str, Any]:
    last = 1000 + int((count - 1) * gap_ns)
    return {"datagrams": count, "bytes": count * (FRAME - 42), "first_ns": 1000, "last_ns": last}


def put(folder: Path, name: str, data: dict[str, Any]) -> None:
    (folder / "json" / name).write_text(json.dumps(data))


def change(folder: Path, name: str, **values: object) -> None:
    """Change entries of a JSON file of a raw folder; ``None`` keys are set to null."""
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _write_counters(folder: Path, plan: CellPlan, model: Model) -> None:
    fwd, rev = plan.stages
    zero = {"bytes": 0, "packets": 0, "drops": 0}
    data = {"bytes": model.frames * FRAME, "packets": model.frames, "drops": model.lost_queue}
    for when, counts in ((0, zero), (1, data)):
        row = {"kind": "netem", "handle": fwd.rate_handle, "dev": fwd.rate_dev, **counts}
        (folder / f"tc{when}.{fwd.rate_ns}.json").write_text(json.dumps([row]))
    row = {"kind": "netem", "handle": rev.rate_handle, "dev": rev.rate_dev, **zero}
    for when in (0, 1):
        (folder / f"tc{when}.{rev.rate_ns}.json").write_text(json.dumps([row]))
    counted = {"armed": True, "exhausted": 0, "gso": 0, "dropped_bad": 0, "lengths_bad": {}}
    forward = {
        "frames": model.frames,
        "bytes": model.frames * FRAME,
        "dropped_good": model.lost_air,
        "dropped_outage": model.lost_outage,
        "lengths": {str(FRAME): model.frames - model.lost_outage},
    }
    back = {"frames": 9, "bytes": 600, "dropped_good": 0, "dropped_outage": 0, "lengths": {"66": 9}}
    (folder / "chan.airf.json").write_text(json.dumps({**counted, **forward}))
    (folder / "chan.airr.json").write_text(json.dumps({**counted, **back}))
    for node in plan.nodes:
        for when, again in ((0, 0), (1, model.again if node == "s" else 0)):
            text = "TcpExt: TCPTimeouts TCPDSACKRecv TCPLossProbes\nTcpExt: 0 0 3\n"
            text += f"Tcp: InSegs RetransSegs\nTcp: 10 {again}\n"
            (folder / f"nstat{when}.{node}").write_text(text)
    (folder / "stat0").write_text("cpu  10 0 10 100 0 0 0 0 0 0\n")
    (folder / "stat1").write_text("cpu  15 0 20 885 0 0 5 0 0 0\n")
    (folder / "cap.pcap").write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 96, 1))
    (folder / "proc" / "tcpdump.err").write_text(
        "0 packets captured\n0 packets dropped by kernel\n"
    )
    (folder / "t0").write_text(f"{T0_NS} 1767225600000000000\n")
    (folder / "modules").write_text("tcp_j 1A2B3C4D 0.1.0\n")
    (folder / "uname").write_text("Linux (none) 6.12.0-test #1 SMP x86_64 GNU/Linux\n")
    (folder / "rc").write_text("0\n")
