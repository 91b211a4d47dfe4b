"""Local Congestion as on a 2.4 host and what TCP Small Queues make of it, on two equal radios."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from guestlab import Lab, View

pytestmark = pytest.mark.guest

QUEUE = 100
RADIO = """
[nodes.a{n}]
[nodes.b{n}]
[links.l{n}]
between = ["a{n}", "b{n}"]
queue = "shared"
rate = "11Mbit"
frame_time = "1230us"
buffer = "100pkt"
[[flows]]
from = "a{n}"
to = "b{n}"
cc = "{cc}"
"""
SCENARIO = """
schema = 1
name = "two-radios"
title = "One sender without, one with TCP Small Queues"
purpose = "Which of them overflows its own device queue?"
duration = "3s"
cc = ["reno"]
[variants.then]
cc = "reno"
small_queues = false
[trace]
causes = true
""" + "".join(RADIO.format(n=n, cc=cc) for n, cc in enumerate(("then", "reno"), 1))


@pytest.fixture(scope="module")
def view(lab: Lab) -> View:
    return lab.cell(SCENARIO, cc="reno")


def _causes(view: View, flow: str) -> Counter[str]:
    states = view.table("states")
    return Counter(states["cause"][(states["flow"] == flow) & (states["left"] == "Open")])


def _drops(view: View, stage: str) -> Any:
    return next(s["queue_drops"] for s in view.cell["stages"] if s["name"] == stage)


def test_the_link_is_what_it_says(view: View) -> None:
    audit = view.cell["audit"]
    assert audit["verdict"] == "ok", [c for c in audit["checks"] if not c["ok"]]
    measured = {c["name"]: c["measured"] for c in audit["checks"]}
    assert measured["before buffer p1"] in ("100 packets", "101 packets")


def test_a_full_device_queue_is_local_congestion_and_not_a_loss(view: View) -> None:
    assert _causes(view, "f1") == {"local": _drops(view, "l1-ab")}
    assert _drops(view, "l1-ab") >= 1
    assert view.flow("f1")["retransmissions"] == 0
    acks = view.table("acks")
    peak = acks["inflight_bytes"][acks["flow"] == "f1"].max() / 1448
    assert QUEUE <= peak <= QUEUE + 5


def test_small_queues_keep_the_device_queue_short(view: View) -> None:
    assert _causes(view, "f2") == {}
    assert _drops(view, "l2-ab") == 0
    queue = view.table("queue")
    # After the initial window: two packets of the sender, and an answer.
    mine = queue["packets"][(queue["stage"] == "l2-ab") & (queue["t_s"] > 1)]
    assert len(mine) > 100
    assert mine.max() <= 5
    acks = view.table("acks")
    late = (acks["flow"] == "f2") & (acks["t_s"] > 1)
    assert acks["inflight_bytes"][late].max() / 1448 <= 8


def test_data_and_answers_share_the_air(view: View) -> None:
    """Two full frames and an ACK take 2 x (1101 + 1230) and 48 + 1230 us: 3.90 Mbit/s.

    A little less, because some segments are acknowledged alone; 4.97 Mbit/s if ACKs were free.
    """
    air_us = 2 * (1514 * 8 / 11 + 1230) + 66 * 8 / 11 + 1230
    for flow in ("f1", "f2"):
        late = view.table("goodput")
        rows = (late["flow"] == flow) & (late["t_s"] > 1)
        rate = late["goodput_bps"][rows][:-1].mean()
        assert rate == pytest.approx(2 * 1448 * 8e6 / air_us, rel=0.05)
