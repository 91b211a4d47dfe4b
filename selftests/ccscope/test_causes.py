"""Causes from evidence: stacks as kernels really give them."""

from __future__ import annotations

import pytest
from ccscope.causes import Evidence, retransmit_kind, why
from ccscope.schema import CA_STATES, CAUSES
from ccscope.symbols import Symbols, parse

# Seen on Linux 6.12 and 6.18 (x86-64, Debian's and another's compiler).
LOCAL = ("?", "tcp_set_ca_state", "__tcp_transmit_skb", "tcp_write_xmit", "tcp_tsq_handler")
LOCAL_ON_ACK = (
    *("?", "tcp_set_ca_state", "__tcp_transmit_skb", "tcp_write_xmit"),
    *("__tcp_push_pending_frames", "tcp_rcv_established"),
)
ECN = ("?", "tcp_set_ca_state", "tcp_try_to_open", "tcp_ack", "tcp_rcv_established")
ECN_FRAME = ("?", "tcp_set_ca_state", "tcp_enter_cwr", "tcp_try_to_open", "tcp_ack")
TLP = ("tcp_set_ca_state", "tcp_process_tlp_ack", "tcp_ack", "tcp_rcv_established")
RTO = ("?", "tcp_set_ca_state", "tcp_enter_loss", "tcp_retransmit_timer", "tcp_write_timer")
RACK = ("tcp_set_ca_state", "tcp_enter_recovery", "tcp_rack_reo_timeout", "tcp_write_timer_handler")
MTU = ("tcp_set_ca_state", "tcp_simple_retransmit", "tcp_v4_mtu_reduced")
ON_ACK = ("tcp_set_ca_state", "tcp_fastretrans_alert", "tcp_ack")
UNDO_LOSS = ("?", "tcp_set_ca_state", "tcp_try_undo_loss", "tcp_fastretrans_alert", "tcp_ack")


@pytest.mark.parametrize(
    ("left", "entered", "seen", "cause"),
    [
        ("Open", "CWR", Evidence(LOCAL), "local"),
        ("Open", "CWR", Evidence(LOCAL_ON_ACK), "local"),
        ("Open", "CWR", Evidence(ECN), "ecn"),
        ("Open", "CWR", Evidence(ECN_FRAME), "ecn"),
        ("Open", "CWR", Evidence(TLP), "tlp"),
        ("Open", "CWR", Evidence(("tcp_set_ca_state", "bpf_prog")), "cwr"),
        ("Open", "CWR", Evidence(("?", "?")), "cwr"),
        ("Open", "CWR", Evidence(), "cwr"),
        ("Open", "Loss", Evidence(RTO), "rto"),
        ("Loss", "Loss", Evidence(RTO), "rto"),
        ("Open", "Loss", Evidence(MTU), "mtu"),
        ("Open", "Loss", Evidence(), "rto"),
        ("Disorder", "Recovery", Evidence(ON_ACK, sack=True), "sack"),
        ("Disorder", "Recovery", Evidence(ON_ACK, sack=False), "dupack"),
        ("Disorder", "Recovery", Evidence(RACK, sack=True), "rack"),
        ("Disorder", "Recovery", Evidence(ON_ACK), "recovery"),
        ("Open", "Recovery", Evidence(MTU, sack=True), "mtu"),
        ("Open", "Disorder", Evidence(ON_ACK), "disorder"),
        ("Recovery", "Open", Evidence(ON_ACK), "done"),
        ("Recovery", "Open", Evidence(ON_ACK, undo=True), "undo"),
        ("Recovery", "Disorder", Evidence(ON_ACK, undo=True), "undo"),
        ("Loss", "Open", Evidence(UNDO_LOSS), "undo"),
    ],
)
def test_causes(left: str, entered: str, seen: Evidence, cause: str) -> None:
    found, evidence = why(left, entered, seen)
    assert found == cause
    assert found in CAUSES
    assert evidence or found in ("disorder", "done")


def test_every_cause_of_the_schema_has_a_row_above() -> None:
    rows = test_causes.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {row[3] for row in rows} == set(CAUSES)


def test_evidence_is_said() -> None:
    assert why("Open", "CWR", Evidence(LOCAL))[1] == "set by __tcp_transmit_skb"
    text = why("Loss", "Loss", Evidence(RTO, counts="lost 3"))[1]
    assert text == "tcp_retransmit_timer, again; lost 3"


def test_what_sent_a_segment_again() -> None:
    assert [retransmit_kind(s, "ESTABLISHED") for s in CA_STATES] == [
        *("tlp", "tlp", "tlp", "fast", "rto")
    ]
    assert retransmit_kind("Open", "SYN_SENT") == "rto"


def test_symbols() -> None:
    text = """
ffffffff81000000 T something
ffffffff81000100 t tcp_ack.constprop.0
ffffffff81000200 t other
ffffffff81000300 W inet_x
ffffffff81000300 t alias
ffffffff81000400 D tcp_data
ffffffff81000500 T end
"""
    names = Symbols(parse(text.splitlines()))
    assert len(names) == 4
    wanted = ["?", "?", "tcp_ack", "tcp_ack", "?", "inet_x", "inet_x", "?"]
    places = [0, 0x10, 0x100, 0x1FF, 0x200, 0x300, 0x4FF, 0x500]
    assert names.names(0xFFFFFFFF81000000 + p if p else 5 for p in places) == wanted
    assert parse(["0000000000000000 T tcp_ack"]) == []
