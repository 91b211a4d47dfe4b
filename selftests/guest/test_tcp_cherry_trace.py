"""Figures 1 to 8 of the TCP-Cherry+ paper, seen in the trace and on the wire of real transfers."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from ccscope.pcapfile import packets, segment
from guestlab import FLOW, Files, Lab, View, swap

pytestmark = pytest.mark.guest

MSS = 1000
MAXCWND = 31
LE = 1
CA, READY, FFS, NEW_FFS, FAR = range(5)

GEO = """
schema = 1
name = "{name}"
title = "A test"
purpose = "Does it hold?"
duration = "{duration}"
cc = ["cherry"]
ip = {ip}
[nodes.a]
mss = 1000
offload = {offload}
sysctl = {{ "net.ipv4.tcp_wmem" = "4096 16384 8388608" }}
[nodes.r]
role = "router"
[nodes.b]
mss = 1000
sysctl = {{ "net.ipv4.tcp_rmem" = "4096 4194304 8388608" }}
[links.lan]
between = ["a", "r"]
[links.air]
between = ["r", "b"]
rate = "{rate}"
delay = "100ms"
buffer = "{buffer}"
qdisc = "{qdisc}"
{link}
reverse = {{ qdisc = "droptail" }}
{rest}
[variants.small]
cc = "cherry"
params = {{ maxcwnd = {maxcwnd} }}
[variants.plus]
cc = "cherry_plus"
params = {{ maxcwnd = {maxcwnd} }}
"""
CHECKED = FLOW + 'bytes = "{size}"\nverify = true\n'
WIRE = """
[trace]
queue = false
keep_pcap = true
capture = { node = "a", link = "lan", snaplen = 96 }
"""


def geo(name: str, duration: str, rest: str, **changed: object) -> str:
    """A path of 200 ms RTT whose bottleneck honours the low priority."""
    words: dict[str, object] = {
        "ip": 4, "offload": "false", "rate": "8Mbit", "buffer": "50pkt", "qdisc": "prio",
        "link": "", "maxcwnd": MAXCWND, **changed,
    }  # fmt: skip
    return GEO.format(name=name, duration=duration, rest=rest, **words)


def rows(view: View, name: str, flow: str = "f1") -> list[dict[str, Any]]:
    """A table of the module's events as rows."""
    table = view.table(f"cherry_cherry_{name}", flow)
    names = [n for n in table if n != "flow"]
    return [
        dict(zip(names, row, strict=True))
        for row in zip(*(table[n].tolist() for n in names), strict=True)
    ]


def sent(view: View) -> list[tuple[int, int, int, int]]:
    """Data segments on the sender's wire: time in ns, DSCP, offset in the stream, length."""
    found, first = [], None
    for packet in packets(view.folder / "cell" / "cap.pcap"):
        seg = segment(packet)
        if seg is None or seg.dport != 5001:
            continue
        if seg.flags & 2:
            first = seg.seq + 1
        elif seg.length and first is not None:
            frame = packet.data
            six = frame[12:14] == b"\x86\xdd"
            tos = (frame[14] & 15) << 4 | frame[15] >> 4 if six else frame[15]
            found.append((packet.t_ns, tos >> 2, (seg.seq - first) % 2**32, seg.length))
    return found


@pytest.fixture(scope="module", params=[(4, "false"), (6, "true")], ids=["ipv4", "ipv6-offload"])
def start(lab: Lab, request: pytest.FixtureRequest) -> View:
    """A connection's start: nothing is lost."""
    ip, offload = request.param
    rest = CHECKED.format(size="200kB") + WIRE
    return lab.cell(geo("ffs", "6s", rest, ip=ip, offload=offload), cc="small")


@pytest.mark.usefixtures("exact")
def test_one_data_segment_then_supplements_sigma_ahead(start: View) -> None:
    wire = sent(start)
    first_round = wire[:MAXCWND]
    _, dscp, offset, length = first_round[0]
    assert (dscp, offset, length) == (0, 0, MSS)
    skipped = [o for _, d, o, _ in first_round[1:] if d == LE]
    assert skipped == [(1 + MAXCWND + n) * MSS for n in range(MAXCWND - 1)]
    assert all(length == MSS for *_, length in first_round)


@pytest.mark.usefixtures("exact")
def test_supplements_are_tau_apart_on_the_wire(start: View) -> None:
    plan = rows(start, "plan")[0]
    rtt_us = rows(start, "phase")[0]["rtt_us"]
    # The smoothed RTT is kept in eighths of a microsecond.
    assert plan["tau_ns"] == pytest.approx(rtt_us * 1000 / MAXCWND, abs=1)
    assert rtt_us == pytest.approx(200_000, abs=3000)
    times = [t for t, dscp, *_ in sent(start)[:MAXCWND] if dscp == LE]
    gaps = np.diff(times)
    assert np.abs(gaps - plan["tau_ns"]).max() < 150_000
    # Lateness does not add up.
    drift = times[-1] - times[0] - plan["tau_ns"] * (len(times) - 1)
    assert abs(drift) < 150_000


def test_every_segment_is_sent_once_and_the_gap_in_order(start: View) -> None:
    wire = sent(start)
    assert sorted(o for _, _, o, _ in wire) == [n * MSS for n in range(200)]
    data = [o for _, dscp, o, _ in wire if dscp != LE]
    assert data == sorted(data), "ordinary data is not in order"
    assert sum(dscp == LE for _, dscp, *_ in wire) == MAXCWND - 1


def test_no_duplicate_reaches_the_receiver(start: View) -> None:
    for name in ("TCPDSACKOldSent", "TCPDSACKOfoSent"):
        assert start.counter("b", f"TcpExt.{name}") == 0, name
    assert start.counter("a", "TcpExt.TCPDSACKRecv") == 0
    assert start.counter("b", "TcpExt.TCPOFOQueue") >= MAXCWND - 1
    assert start.flow()["verified"] is True


def test_each_supplements_ack_raises_cwnd_by_one(start: View) -> None:
    acks = rows(start, "acks")
    assert acks[-1]["acked_segs"] == acks[-1]["sent_segs"] == MAXCWND - 1
    for row in acks:
        assert row["cwnd_segs"] == 1 + row["acked_segs"]
    for old, new in pairwise(acks):
        assert new["acked_segs"] - old["acked_segs"] == new["newly_segs"]


def test_the_kernels_retransmissions_are_first_transmissions(start: View) -> None:
    claimed = start.counter("a", "Tcp.RetransSegs")
    plan = rows(start, "plan")[0]
    assert claimed >= plan["gap_segs"] > 0
    wire = sent(start)
    assert len(wire) == len({o for _, _, o, _ in wire}), "something was sent twice"


def test_after_it_comes_congestion_avoidance(start: View) -> None:
    end = next(r for r in rows(start, "phase") if r["phase"] == CA)
    assert end["old_phase"] == FFS
    assert end["ssthresh_segs"] == end["cwnd_segs"] == MAXCWND


# Outages --------------------------------------------------------------------------------------

SHADOW = """
[[events]]
at = "2s"
link = "air"
outage = "3s"
"""


def _shadow(lab: Lab, cc: str) -> View:
    rest = FLOW + "verify = true\n" + SHADOW + "[trace]\nqueue = false\n"
    return lab.cell(geo("shadow", "9s", rest), cc=cc)


@pytest.fixture(scope="module")
def cherry(lab: Lab) -> View:
    return _shadow(lab, "small")


@pytest.fixture(scope="module")
def plus(lab: Lab) -> View:
    return _shadow(lab, "plus")


def _timeouts(view: View) -> list[dict[str, Any]]:
    return [r for r in rows(view, "loss") if r["ca_state"] == 4]


def test_the_first_timeout_leads_to_fast_forward_start(cherry: View, plus: View) -> None:
    for view in (cherry, plus):
        first = _timeouts(view)[0]
        assert first["timeouts"] == 1
        begun = next(r for r in rows(view, "phase") if r["t_s"] >= first["t_s"])
        assert begun["phase"] == FFS
        plan = next(r for r in rows(view, "plan") if r["t_s"] >= first["t_s"])
        assert plan["sigma_segs"] == MAXCWND
        # What was lost is the gap already (difference 1 of cherry.c).
        ahead = (plan["skip_bytes"] - plan["thresh_bytes"]) / MSS
        assert ahead >= MAXCWND


def test_the_second_timeout_is_slow_start_for_cherry(cherry: View) -> None:
    second = _timeouts(cherry)[1]
    assert second["timeouts"] == 2
    later = [r for r in rows(cherry, "supp") if r["t_s"] > second["t_s"]]
    fresh = [r for r in later if r["phase"] in (FFS, NEW_FFS)]
    assert not fresh, "supplements after the second timeout"


def test_the_second_timeout_is_new_fast_forward_start_for_plus(plus: View) -> None:
    second = _timeouts(plus)[1]
    plan = next(r for r in rows(plus, "plan") if r["t_s"] >= second["t_s"])
    assert plan["phase"] == NEW_FFS
    assert plan["sigma_segs"] == 2 * MAXCWND
    cycle = [r for r in rows(plus, "supp") if r["phase"] == NEW_FFS]
    # i runs from 0 to maxcwnd, again and again, over the same segments (figure 6).
    places = [(r["start_bytes"] - plan["skip_bytes"]) // MSS for r in cycle]
    wanted = [n % (MAXCWND + 1) for n in range(len(cycle))]
    assert places == wanted
    assert len(cycle) > 2 * MAXCWND, "it never came to a second cycle"
    gaps_ns = np.diff([r["t_s"] for r in cycle]) * 1e9
    assert np.median(gaps_ns) == pytest.approx(plan["tau_ns"], rel=0.01)


def test_any_ack_ends_the_cycles(plus: View) -> None:
    cycle = [r for r in rows(plus, "supp") if r["phase"] == NEW_FFS]
    acks = [r for r in rows(plus, "acks") if r["phase"] == NEW_FFS]
    assert acks, "New Fast-Forward Start found nothing"
    assert cycle[-1]["t_s"] <= acks[0]["t_s"] + 0.01
    # The link is back at 5 s; a round trip later the first ACK is here.
    assert acks[0]["t_s"] == pytest.approx(5.2, abs=0.05)


def test_nothing_arrives_twice_after_new_fast_forward_start(plus: View) -> None:
    twice = sum(plus.counter("b", f"TcpExt.{n}") for n in ("TCPDSACKOldSent", "TCPDSACKOfoSent"))
    assert twice <= 1, "at most the segment that the timer repeats"
    assert plus.flow()["verified"] is True


# The receiver's first window is 64 segments, of which Fast-Forward Start claims 62.  100 kB are all
# sent, with the FIN, within three round trips.  In both cases hardly anything is left to claim, and
# the link is back after the timer's third retransmission, when the fourth is seconds away.
@pytest.mark.parametrize(
    ("size", "falls"), [("150kB", "270ms"), ("100kB", "700ms")], ids=["first-round", "end"]
)
def test_what_is_out_already_serves_when_nothing_can_be_claimed(
    lab: Lab, size: str, falls: str
) -> None:
    shadow = f'[[events]]\nat = "{falls}"\nlink = "air"\noutage = "5s"\n'
    rest = CHECKED.format(size=size) + shadow + "[trace]\nqueue = false\n"
    view = lab.cell(geo("all-out", "12s", rest), cc="plus")
    plan = next(r for r in rows(view, "plan") if r["phase"] == NEW_FFS)
    assert plan["limited"] and 0 < plan["again_segs"] <= plan["supp_segs"]
    cycle = [r for r in rows(view, "supp") if r["phase"] == NEW_FFS]
    assert len({r["start_bytes"] for r in cycle}) == plan["supp_segs"]
    assert len(cycle) > 2 * plan["supp_segs"], "it never came to a second cycle"
    acks = [r for r in rows(view, "acks") if r["phase"] == NEW_FFS]
    back_s = 5 + float(falls.removesuffix("ms")) / 1000
    assert acks[0]["t_s"] == pytest.approx(back_s + 0.2, abs=0.05)
    assert view.flow()["verified"] is True
    assert view.flow()["finished_s"] < back_s + 2


def test_plus_is_back_sooner(cherry: View, plus: View) -> None:
    assert cherry.flow()["verified"] is True
    assert plus.flow()["bytes"] > cherry.flow()["bytes"]


# First-Aid Recovery ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def repaired(lab: Lab) -> View:
    """One frame is lost to the channel, in congestion avoidance."""
    link = "min_len = 900\ndrop = [200]"
    rest = FLOW + 'stop = "6s"\nverify = true\n[trace]\nqueue = false\n'
    return lab.cell(geo("far", "7s", rest, link=link), cc="small")


@pytest.mark.usefixtures("exact")
def test_first_aid_recovery_brings_cwnd_back(repaired: View) -> None:
    loss = rows(repaired, "loss")[0]
    cwnd0 = loss["cwnd0_segs"]
    assert loss["window_segs"] == cwnd0 // 2
    supps = [r for r in rows(repaired, "supp") if r["phase"] == FAR]
    assert len(supps) == cwnd0
    end = next(r for r in rows(repaired, "phase") if r["old_phase"] == FAR)
    assert end["sent_segs"] == end["acked_segs"] == cwnd0
    assert end["ssthresh_segs"] == cwnd0
    plan = next(r for r in rows(repaired, "plan") if r["phase"] == FAR)
    assert plan["sigma_segs"] >= (3 * cwnd0 + 1) // 2
    twice = [repaired.counter("b", f"TcpExt.TCPDSACK{n}Sent") for n in ("Old", "Ofo")]
    assert sum(twice) == 0, "data overtook supplements"
    assert repaired.flow()["verified"] is True


# One frame of Fast-Forward Start's first round is lost: of the gap, so that it is noticed while the
# second round's supplements come back.
@pytest.fixture(scope="module")
def hurt(lab: Lab) -> View:
    rest = FLOW + 'stop = "4s"\nverify = true\n[trace]\nqueue = false\n'
    link = "min_len = 900\ndrop = [35]"
    return lab.cell(geo("hurt", "5s", rest, link=link, maxcwnd=100), cc="small")


def slow_to_open(view: View) -> bool:
    """A receiver of 6.1 offers 66 KB with its first ACK and more bit by bit, one of 6.12 2 MB."""
    return view.cell["kernel"].split()[2].startswith("6.1.")


def listened(view: View) -> dict[str, Any]:
    """The end of Fast-Forward Start."""
    return next(r for r in rows(view, "phase") if (r["old_phase"], r["phase"]) == (FFS, CA))


def test_one_loss_does_not_undo_fast_forward_start(hurt: View) -> None:
    losses = rows(hurt, "loss")
    assert losses[0]["phase"] == FFS
    end = listened(hurt)
    assert end["acked_segs"] == end["sent_segs"] > MAXCWND
    assert hurt.flow()["verified"] is True
    if slow_to_open(hurt):
        # Rounds that went on for want of window have asked the path since.
        assert len(losses) == 1
        assert end["cwnd_segs"] == 100
        return
    # Half of what it found: what had counted in full before the loss was halved with it.
    assert losses[1]["cwnd0_segs"] == pytest.approx(100, abs=10)
    assert end["cwnd_segs"] == losses[1]["cwnd0_segs"] // 2
    assert losses[1]["t_s"] == pytest.approx(end["t_s"], abs=1e-3)
    # The path is free: First-Aid Recovery says that the loss was the link's.
    aid = next(r for r in rows(hurt, "phase") if r["old_phase"] == FAR)
    assert aid["ssthresh_segs"] == losses[1]["cwnd0_segs"]


def test_after_a_loss_each_second_ack_counts_until_the_round_ends(hurt: View) -> None:
    loss = rows(hurt, "loss")[0]["t_s"]
    rounds = [r for r in rows(hurt, "phase") if (r["old_phase"], r["phase"]) == (FFS, FFS)]
    # The first ended before the loss was seen.
    assert len(rounds) == (3 if slow_to_open(hurt) else 1)
    stop = (rounds[1] if slow_to_open(hurt) else listened(hurt))["t_s"]
    second = [r for r in rows(hurt, "acks") if rounds[0]["t_s"] < r["t_s"] < stop]
    before = [r for r in second if r["t_s"] < loss]
    full = sum(r["newly_segs"] for r in before)
    found = second[-1]["acked_segs"]
    assert found > full
    at_loss = rounds[0]["cwnd_segs"] + full
    assert second[-1]["cwnd_segs"] == at_loss // 2 + found // 2 - full // 2


# Everything wrong at once ---------------------------------------------------------------------

HOSTILE = 'loss = "1%"\nreorder = "1%"\nduplicate = "1%"\ncorrupt = "1%"'


@pytest.fixture(scope="module", params=[(4, "false", "small"), (6, "true", "plus")],
                ids=["ipv4-cherry", "ipv6-offload-plus"])  # fmt: skip
def hostile(lab: Lab, request: pytest.FixtureRequest) -> View:
    ip, offload, cc = request.param
    rest = CHECKED.format(size="1500kB") + SHADOW + "[trace]\nqueue = false\n"
    text = geo("hostile", "40s", rest, ip=ip, offload=offload, link=HOSTILE)
    return lab.cell(text, cc=cc)


def test_every_byte_arrives_unchanged(hostile: View) -> None:
    assert hostile.flow()["bytes"] == 1_500_000
    assert hostile.flow()["verified"] is True
    assert hostile.report("f1")["error"] is None
    assert len(rows(hostile, "supp")) > 2 * MAXCWND


def test_the_path_was_hostile(hostile: View) -> None:
    assert hostile.counter("b", "Tcp.InCsumErrors") > 0
    assert hostile.counter("b", "TcpExt.TCPDSACKOldSent") > 0
    assert _timeouts(hostile)


# A low band that delays: what data overtakes is old to the receiver (PAWS) ----------------------


def _slow_low_band(files: Files) -> None:
    for name in [n for n, text in files.items() if b"pfifo limit 2\n" in text]:
        swap(files, name, "pfifo limit 2\n", "netem delay 300ms limit 1000\n")


@pytest.fixture(scope="module")
def overtaken(lab: Lab) -> View:
    """Supplements need 300 ms more than data: longer than the gap waits."""
    rest = CHECKED.format(size="200kB") + "[trace]\nqueue = false\n"
    return lab.cell(geo("overtaken", "10s", rest), cc="small", edit=_slow_low_band)


def test_what_data_overtakes_is_discarded_and_made_up(overtaken: View) -> None:
    assert overtaken.counter("b", "TcpExt.PAWSEstab") == len(rows(overtaken, "supp")) > 0
    assert "retransmissions explained" not in overtaken.failed_checks()
    assert overtaken.flow()["verified"] is True
    assert overtaken.flow()["rtos"] == 0


# Little data ----------------------------------------------------------------------------------


# The last segment carries the FIN and is never claimed.  Of 40, one is sent first and 38 are left:
# 30 of 61 parts of them are supplements, 18, the rest of what they are to share is gap.
@pytest.mark.parametrize(("size", "supplements"), [("9kB", 0), ("40kB", 18)])
def test_little_data(lab: Lab, size: str, supplements: int) -> None:
    """What fits the initial window goes out as ever; else sigma and the count shrink alike."""
    rest = CHECKED.format(size=size) + WIRE
    view = lab.cell(geo("little", "3s", rest), cc="small")
    assert view.flow()["verified"] is True
    supps = rows(view, "supp")
    assert len(supps) == supplements
    if supps:
        plan = rows(view, "plan")[0]
        assert (plan["data_segs"], plan["gap_segs"], plan["supp_segs"]) == (38, 20, 18)
        assert supps[-1]["start_bytes"] - plan["thresh_bytes"] + 2 * MSS == 39 * MSS
    took = json.loads((view.raw / "json" / "f1.recv.json").read_text())["bins"]
    assert took, "nothing arrived"
    wire = sent(view)
    assert len(wire) == len({o for _, _, o, _ in wire})
    # One and 18 in the first round trip, then the gap of 20; the last one waits for a third.
    by_then = sum(t < wire[0][0] + 0.35e9 for t, *_ in wire)
    assert by_then == len(wire) - (1 if supplements else 0)
    rounds = (wire[-1][0] - wire[0][0]) / 0.2e9
    assert rounds < (0.2 if not supplements else 2.1)
