"""When a transfer is over, when the path is full, what arrived twice."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from airlab.audit import Raw
from airlab.model import PathProbe
from airlab.transfers import duplicate_metrics, finished_s, full_s, supplement_metrics

sys.path.insert(0, str(Path(__file__).parent))
import conftest_results as synth

PATH = PathProbe("p", "s", "d", 550_000, 8_000_000, 50, 200, 1066)
# 1000 of 1066 bytes are payload: a full path brings 93,808 bytes in each 100 ms.
WHOLE = 93_808


def _bins(values: list[int]) -> dict[str, np.ndarray]:
    return {"t_s": 2.0 + 0.1 * np.arange(len(values)), "bytes": np.array(values)}


def test_full_for_a_round_trip() -> None:
    ramp = [0] * 4 + [WHOLE // 2] * 3 + [WHOLE] * 8
    assert full_s(_bins(ramp), 1.5, PATH, 1000, 4) == pytest.approx(1.1)


def test_a_burst_does_not_fill_it() -> None:
    assert full_s(_bins([WHOLE] * 5 + [0] * 10), 1.5, PATH, 1000, 4) is None
    assert full_s(_bins([WHOLE] * 5), 1.5, PATH, 1000, 4) is None
    assert full_s(_bins([]), 1.5, PATH, 1000, 4) is None


def _raw(tmp_path: Path, got: int, counters: str = "TCPDSACKOldSent TCPDSACKOfoSent") -> Raw:
    (tmp_path / "json").mkdir()
    (tmp_path / "t0").write_text("0 0\n")
    sender = {"start_ns": 1_000_000_000, "bytes": 100_000, "final": {"mss_bytes": 1000}}
    (tmp_path / "json/f1.json").write_text(json.dumps(sender))
    receiver = {"bytes": got, "last_ns": 3_500_000_000}
    (tmp_path / "json/f1.recv.json").write_text(json.dumps(receiver))
    for when, numbers in ((0, "3 0"), (1, "7 1")):
        (tmp_path / f"nstat{when}.d").write_text(f"TcpExt: {counters}\nTcpExt: {numbers}\n")
    return Raw(tmp_path)


def test_finished(tmp_path: Path) -> None:
    flow = synth.make_plan().flows[0]
    raw = _raw(tmp_path, 100_000)
    assert finished_s(raw, flow) is None
    assert finished_s(raw, replace(flow, size_bytes=100_000)) == pytest.approx(2.5)
    assert finished_s(raw, replace(flow, size_bytes=100_001)) is None


def test_supplements(tmp_path: Path) -> None:
    raw, plan = _raw(tmp_path, 100_000), synth.make_plan()
    assert supplement_metrics(raw, plan) == {}
    for when, again in ((0, 5), (1, 75)):
        (tmp_path / f"nstat{when}.s").write_text(f"Tcp: RetransSegs\nTcp: {again}\n")
        text = f"ClaimedSegs {again}\nSupplementsSent {when * 30}\nSupplementsAcked {when * 28}\n"
        (tmp_path / f"cherry{when}.s").write_text(text)
    assert supplement_metrics(raw, plan) == {
        "supplement_segs": 30.0,
        "supplement_acked_segs": 28.0,
        "resent_segs": 30.0,
    }
    other = replace(plan.flows[0], label="f2", role="cross")
    assert supplement_metrics(raw, replace(plan, flows=(*plan.flows, other))) == {}


def test_duplicates(tmp_path: Path) -> None:
    plan = synth.make_plan()
    made = duplicate_metrics(_raw(tmp_path, 100_000), plan)
    assert made == {"duplicate_segs": 5, "overhead_pct": pytest.approx(5.0)}


def test_duplicates_that_cannot_be_told(tmp_path: Path) -> None:
    plan = synth.make_plan()
    raw = _raw(tmp_path, 100_000)
    other = replace(plan.flows[0], label="f2", role="cross")
    assert duplicate_metrics(raw, replace(plan, flows=(*plan.flows, other))) == {}
    (tmp_path / "sysctl.s").write_text("net.ipv4.tcp_sack = 0\n")
    assert duplicate_metrics(raw, plan) == {}
