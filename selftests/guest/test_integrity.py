"""Every byte of a stream, on a path that loses, reorders, duplicates and corrupts."""

from __future__ import annotations

import json
import re

import pytest
from airlab.engines import EngineError, Watch
from guestlab import FLOW, Files, Lab, View, path

pytestmark = pytest.mark.guest

HOSTILE = """
buffer = "40pkt"
loss = "1%"
reorder = "1%"
duplicate = "1%"
corrupt = "1%"
"""
CHECKED = FLOW + 'bytes = "1MB"\nverify = true\n'
SIZE = 1_000_000


def _scenario(ip: int, offload: bool) -> str:
    sender = f"offload = {str(offload).lower()}"
    return path("integrity", "30s", head=f"ip = {ip}", link=HOSTILE, sender=sender, rest=CHECKED)


def _other_seed(files: Files) -> None:
    """The receiver expects the stream of another seed."""
    text = files["main.tsv"].decode()
    files["main.tsv"] = re.sub(
        r"(airflow recv .*--verify )(\d+)", lambda m: f"{m[1]}{int(m[2]) + 1}", text
    ).encode()
    assert files["main.tsv"].decode() != text


@pytest.fixture(
    scope="module",
    params=[
        ("j", 4, False),
        ("j", 6, True),
        ("imtcp", 6, True),
        ("imtcp_bg", 4, True),
        ("symbiosis", 4, True),
        ("symbiosis", 6, False),
    ],
    ids=lambda p: f"{p[0]}-ipv{p[1]}{'-offload' if p[2] else ''}",
)
def hostile(lab: Lab, request: pytest.FixtureRequest) -> View:
    cc, ip, offload = request.param
    return lab.cell(_scenario(ip, offload), cc=cc, any_link=True)


def test_every_byte_arrives_unchanged(hostile: View) -> None:
    flow = hostile.flow()
    assert flow["cc"] == hostile.plan.cc
    assert flow["bytes"] == SIZE
    assert flow["verified"] is True
    assert hostile.report("f1")["error"] is None


def test_the_path_was_hostile(hostile: View) -> None:
    """Without this the test above would prove nothing."""
    assert hostile.counter("a", "Tcp.RetransSegs") > 5
    assert hostile.counter("b", "Tcp.InCsumErrors") > 0
    assert hostile.counter("b", "TcpExt.TCPOFOQueue") > 5
    assert hostile.counter("b", "TcpExt.TCPDSACKOldSent") > 0
    losses = [s["channel_drops"] for s in hostile.cell["stages"]]
    assert sum(losses) > 5


def test_a_wrong_byte_is_found(lab: Lab) -> None:
    plan = lab.plan(_scenario(4, False), edit=_other_seed)
    scratch = lab.scratch("wrong")
    with pytest.raises(EngineError, match=r"f1\.recv .*ended with 1") as failed:
        lab.engine.run(plan, scratch, Watch(), lab.slot)
    assert failed.value.kind == "step"
    report = json.loads((scratch / "out" / "json" / "f1.recv.json").read_text())
    assert report["verified"] is False
    assert report["mismatch_at"] == 0
