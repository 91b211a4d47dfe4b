"""The substrate audit: silent on a faultless run, and each check fails when it must."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from airlab import audit
from airlab.audit import Check, Raw, TraceFacts
from airlab.model import AirlabError, CellPlan

sys.path.insert(0, str(Path(__file__).parent))
import conftest_results as synth

GOOD = TraceFacts(100, 0)
PLAN = synth.make_plan("reno", 1, 1e-6, 4.0)


@pytest.fixture(scope="module")
def faultless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synth.write_raw(tmp_path_factory.mktemp("audit") / "raw", PLAN)


@pytest.fixture
def raw(faultless: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(faultless, tmp_path / "raw"))


def failed(raw: Path, plan: CellPlan = PLAN, trace: TraceFacts | None = GOOD) -> dict[str, Check]:
    return {c.name: c for c in audit.audit(Raw(raw), plan, trace) if not c.ok}


def test_a_faultless_run_passes_every_check(raw: Path) -> None:
    checks = audit.audit(Raw(raw), PLAN, GOOD)
    assert [c.name for c in checks if not c.ok] == []
    assert audit.verdict(checks) == "ok"
    names = {c.name for c in checks}
    assert {"before rtt s-d", "after rate s-d", "before buffer s-d", "channel airf losses"} <= names


def _put(name: str, **values: object) -> Callable[[Path], None]:
    return lambda raw: synth.change(raw, name, **values)


def _write(name: str, text: str) -> Callable[[Path], None]:
    def fault(raw: Path) -> None:
        (raw / name).write_text(text)

    return fault


def _remove(name: str) -> Callable[[Path], None]:
    return lambda raw: (raw / name).unlink()


def _drops(raw: Path) -> None:
    path = raw / "tc1.wA.json"
    rows = json.loads(path.read_text())
    rows[0]["drops"] += 100_000
    path.write_text(json.dumps(rows))


def _nstat(raw: Path) -> None:
    text = "TcpExt: TCPTimeouts TCPDSACKRecv\nTcpExt: 0 0\nTcp: InSegs RetransSegs\nTcp: 9 99999\n"
    (raw / "nstat1.s").write_text(text)


def _more_retransmissions(raw: Path) -> None:
    """5000 beside the model's."""
    *rest, again = (raw / "nstat1.s").read_text().rstrip().rpartition(" ")
    (raw / "nstat1.s").write_text("".join(rest) + f"{int(again) + 5000}\n")


def _cherry(raw: Path) -> None:
    """Retransmissions that were none: 5000 segments skipped and sent then, beside the model's.

    Of 520 supplements 20 were no claim: out already.
    """
    _more_retransmissions(raw)
    for when, counts in ((0, (7, 7, 0)), (1, (5507, 527, 20))):
        names = ("ClaimedSegs", "SupplementsSent", "SupplementsRepeated")
        lines = (f"{name} {count}\n" for name, count in zip(names, counts, strict=True))
        (raw / f"cherry{when}.s").write_text("".join(lines))


RTT = [synth.RTT_US * 1000]
FAULTS = [
    (_write("rc", "2\n"), "guest finished", "veto"),
    (_remove("rc"), "guest finished", "veto"),
    (_remove("json/f1.json"), "flow f1", "veto"),
    (_remove("json/f1.recv.json"), "flow f1", "veto"),
    (_put("json/f1.json", error="connect: refused"), "flow f1", "veto"),
    (_put("json/f1.recv.json", verified=False, mismatch_at=77), "flow f1", "veto"),
    (_put("json/f1.json", cc="cubic"), "algorithm f1", "veto"),
    (_put("json/before.s-d.ping.json", rtts_ns=[RTT[0] + 600_000]), "before rtt s-d", "veto"),
    (_put("json/after.s-d.ping.json", rtts_ns=[RTT[0] - 600_000]), "after rtt s-d", "veto"),
    (_put("json/after.s-d.ping.json", rtts_ns=[]), "after rtt s-d", "veto"),
    (_remove("json/before.s-d.ping.json"), "before rtt s-d", "veto"),
    (_put("json/before.s-d.rate.json", last_ns=950_000_000), "before rate s-d", "veto"),
    (_put("json/after.s-d.rate.json", datagrams=1), "after rate s-d", "veto"),
    (_remove("json/after.s-d.rate.json"), "after rate s-d", "veto"),
    (_put("json/before.s-d.burst.json", datagrams=29), "before buffer s-d", "veto"),
    (_put("json/after.s-d.burst.json", datagrams=33), "after buffer s-d", "veto"),
    (_remove("json/after.s-d.burst.json"), "after buffer s-d", "veto"),
    (_remove("chan.airf.json"), "channel airf", "veto"),
    (_put("chan.airf.json", armed=False), "channel airf armed", "veto"),
    (_put("chan.airf.json", exhausted=1), "channel airf exhausted", "veto"),
    (_put("chan.airr.json", gso=3), "channel airr gso", "veto"),
    (_put("chan.airf.json", dropped_good=0), "channel airf losses", "warn"),
    (_put("chan.airf.json", dropped_good=500), "channel airf losses", "veto"),
    (_put("chan.airr.json", dropped_good=5), "channel airr losses", "veto"),
    (_drops, "queue drops seen by TCP", "veto"),
    (_nstat, "retransmissions explained", "warn"),
    (_write("stat1", "cpu  110 0 20 885 0 0 5 0 0 0\n"), "processor busy", "warn"),
    (_write("stat1", "cpu  1110 0 20 885 0 0 5 0 0 0\n"), "processor busy", "veto"),
    (_remove("stat1"), "processor busy", "veto"),
    (_write("stat1", "cpu  15 0 20 985 0 0 5 1 0 0\n"), "processor stolen", "warn"),
    (_write("stat1", "cpu  15 0 20 985 0 0 5 20 0 0\n"), "processor stolen", "veto"),
    (_write("proc/tcpdump.err", "3 packets dropped by kernel\n"), "capture drops", "warn"),
    (_write("proc/tcpdump.err", ""), "capture drops", "warn"),
]


@pytest.mark.parametrize(("cpus", "verdict"), [("0\n", True), ("0-1\n", False), ("", True)])
def test_the_processors_that_the_cell_ran_on_are_judged(
    raw: Path, cpus: str, verdict: bool
) -> None:
    """Processor 1 was busy all the time; on average over both that does not show enough."""
    (raw / "cpus").write_text(cpus)
    idle = "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n"
    (raw / "stat0").write_text(idle)
    text = "cpu  90 0 0 910 0 0 0 0 0 0\ncpu0 10 0 0 990 0 0 0 0 0 0\ncpu1 80 0 0 20 0 0 0 0 0 0\n"
    (raw / "stat1").write_text(text)
    assert ("processor busy" not in failed(raw)) is verdict


def test_time_that_no_tick_saw_is_busy_time(raw: Path) -> None:
    """785 of 800 ticks are idle; of 1600 that is half."""
    assert "processor busy" not in failed(raw)
    (raw / "tend").write_text(f"{synth.T0_NS + 16 * 10**9} 0\n")
    assert failed(raw)["processor busy"].measured == "50.9%"


@pytest.mark.parametrize(
    ("fault", "name", "severity"), FAULTS, ids=[f"{i}-{f[1]}" for i, f in enumerate(FAULTS)]
)
def test_a_fault_fails_its_check(
    raw: Path, fault: Callable[[Path], None], name: str, severity: str
) -> None:
    fault(raw)
    found = failed(raw)
    assert name in found
    assert found[name].severity == severity
    assert audit.verdict(found.values()) in (severity, "veto")


def test_what_cherry_skipped_is_no_retransmission(raw: Path) -> None:
    before = set(failed(raw))
    _cherry(raw)
    assert set(failed(raw)) == before
    counts = {"ClaimedSegs": 5500, "SupplementsSent": 520, "SupplementsRepeated": 20}
    assert Raw(raw).supplements("s") == counts
    for when in (0, 1):
        (raw / f"cherry{when}.s").unlink()
    assert "retransmissions explained" in failed(raw)


def test_what_cherry_has_not_sent_yet_is_outstanding(raw: Path) -> None:
    """A run that ends in the dark: 9000 segments are claimed, and no retransmission is theirs."""
    before = set(failed(raw))
    _cherry(raw)
    counts = raw / "cherry1.s"
    counts.write_text(counts.read_text().replace("ClaimedSegs 5507", "ClaimedSegs 14507"))
    assert "queue drops seen by TCP" in failed(raw)
    final = json.loads((raw / "json" / "f1.json").read_text())["final"]
    synth.change(raw, "json/f1.json", final={**final, "unacked_segs": 9000})
    assert set(failed(raw)) == before


def test_what_the_receiver_discards_as_old_explains_retransmissions(raw: Path) -> None:
    """Supplements that data overtook: no drop on the way, and no D-SACK."""
    _more_retransmissions(raw)
    assert "retransmissions explained" in failed(raw)
    for when, old in ((0, 3), (1, 5003)):
        (raw / f"nstat{when}.d").write_text(f"TcpExt: TW PAWSEstab\nTcpExt: 1 {old}\n")
    assert failed(raw) == {}


@pytest.mark.parametrize("trace", [TraceFacts(90, 10), None], ids=["lost", "absent"])
def test_trace_losses_veto(raw: Path, trace: TraceFacts | None) -> None:
    assert failed(raw, trace=trace)["trace events lost"].severity == "veto"


def test_checks_follow_the_plan(raw: Path) -> None:
    bare = replace(PLAN.probes[0], rate_bps=None, buffer_pkts=None)
    plan = replace(PLAN, probes=(bare,), capture=False, trace=False)
    names = {c.name for c in audit.audit(Raw(raw), plan, None)}
    assert "before rtt s-d" in names
    assert not names & {"before rate s-d", "before buffer s-d", "capture drops"}
    assert "trace events lost" not in names


def test_datagrams_suspend_the_loss_accounting(raw: Path) -> None:
    _drops(raw)
    synth.put(raw, "cross.json", {"mode": "udp-send", "datagrams": 1000})
    assert "queue drops seen by TCP" not in failed(raw)


def test_acks_dropped_by_a_queue_are_no_lost_data(raw: Path) -> None:
    rows = [{"dev": "wB0", "handle": "20:", "bytes": 66000, "packets": 1000, "drops": 999999}]
    (raw / "tc1.wB.json").write_text(json.dumps(rows))
    assert failed(raw) == {}


def test_ipv6_has_longer_headers(raw: Path) -> None:
    flow = replace(PLAN.flows[0], family=6)
    assert "before rate s-d" in failed(raw, replace(PLAN, flows=(flow,)))


def test_damage_is_an_error(raw: Path) -> None:
    (raw / "json/f1.json").write_text('{"mode": "se')
    with pytest.raises(AirlabError, match=r"f1\.json"):
        audit.audit(Raw(raw), PLAN, GOOD)
    (raw / "t0").unlink()
    with pytest.raises(AirlabError, match="t0"):
        _ = Raw(raw).t0_ns


def test_real_counters_are_read() -> None:
    raw = Raw(Path(__file__).parents[1] / "ccscope" / "ring")
    assert raw.counters(1, "s")["Tcp.RetransSegs"] == raw.counted("s", "Tcp.RetransSegs") > 10
    row = raw.qdisc(1, "r1", "r1b", "10:")
    assert row is not None
    assert row["kind"] == "netem"


def _altered(changes: dict[str, object]) -> CellPlan:
    plan = PLAN
    forward, back = plan.stages
    return replace(plan, stages=(replace(forward, **changes), back))


@pytest.mark.parametrize(("dropped", "ok"), [(2, True), (1, False), (3, False)])
def test_a_drop_list_must_be_obeyed_exactly(raw: Path, dropped: int, ok: bool) -> None:
    """Of frames 0, 5 and 10**9 the last never comes, so two must be gone."""
    _put("chan.airf.json", dropped_good=dropped)(raw)
    plan = _altered({"drop": (0, 5, 10**9), "ber": 0.0})
    checks = {c.name: c for c in audit.audit(Raw(raw), plan, None)}
    assert checks["channel airf losses"].ok is ok


def test_a_token_bucket_may_be_one_frame_early(raw: Path) -> None:
    def widest(plan: CellPlan) -> str:
        checks = audit.audit(Raw(raw), plan, None)
        return next(c.tolerance for c in checks if c.name == "before rate s-d")

    assert widest(PLAN) == "-1.0% +1.0%"
    assert widest(_altered({"qdisc": "codel"})) > "-1.0% +1.0%"


@pytest.mark.parametrize(("refuses", "vetoed"), [(True, False), (False, True)])
def test_what_a_senders_own_device_refuses_is_no_loss(
    raw: Path, refuses: bool, vetoed: bool
) -> None:
    own = {"own_handle": "1000:", "refuses": refuses, "src": "s", "rate_ns": "s"}
    for when, drops in enumerate((0, 100_000)):
        row = {"dev": "wA1", "handle": "1000:", "bytes": 1500 * drops, "packets": drops}
        (raw / f"tc{when}.s.json").write_text(json.dumps([{**row, "drops": drops}]))
    assert ("queue drops seen by TCP" in failed(raw, _altered(own))) is vetoed
