"""From a raw folder to a cell folder, with made-up runs and with a real ring buffer."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from airlab.collect import collect, handle_number
from airlab.model import CrossPlan, Interval
from airlab.results import CellResult, load_cell
from ccscope.errors import CcscopeError
from ccscope.ftrace import Trace, read_trace

sys.path.insert(0, str(Path(__file__).parent))
import conftest_results as synth

DATA = Path(__file__).parents[1] / "ccscope" / "ring"
OUTAGE = Interval(3_000_000, 4_000_000, "outage", "outage 1 s")
PLAN = synth.make_plan("j", 2, 1e-6, 6.0, (OUTAGE,))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    root = tmp_path_factory.mktemp("collect")
    raw, out = synth.write_raw(root / "raw", PLAN), root / "out"
    out.mkdir()
    return raw, out, collect(raw, PLAN, out, times={"wall_s": 1.5})


def test_cell_json_is_valid_and_complete(made: tuple[Path, Path, dict[str, Any]]) -> None:
    raw, out, data = made
    assert json.loads((out / "cell.json").read_text()) == data
    cell = CellResult.model_validate(data)
    assert cell == load_cell(out)
    assert cell.audit.verdict == "ok"
    assert (cell.label, cell.seed, cell.params) == ("j", 2, {"link.air.ber": 1e-6})
    assert cell.plan_key == PLAN.key
    assert cell.modules[0].srcversion == "1A2B3C4D"
    assert cell.hashes.pcap_sha256
    assert cell.hashes.trace_sha256
    assert cell.times == {"wall_s": 1.5}
    flow = cell.flows[0]
    assert (flow.cc, flow.verified, flow.rtt_source) == ("j", True, "acks")
    received = json.loads((raw / "json/f1.recv.json").read_text())
    inside = sum(b for t, b in received["bins"] if t < synth.T0_NS + 6 * 10**9)
    assert flow.goodput_bps == pytest.approx(inside * 8 / 6, rel=1e-3)
    assert flow.ca_state_s is not None
    assert sum(flow.ca_state_s.values()) == pytest.approx(6.0)
    assert flow.ca_state_s["Loss"] > 0.5
    assert flow.rtos is not None
    assert flow.rtos > 0
    assert flow.rtt_min_us == synth.RTT_US
    assert flow.rtt_p50_us is not None
    assert flow.rtt_p99_us is not None
    assert synth.RTT_US <= flow.rtt_p50_us <= flow.rtt_p99_us
    assert cell.metric("f1:bytes") == flow.bytes
    assert cell.metric("nothing") is None
    assert cell.metric("f9:bytes") is None


def _note(table: Any, column: str, key: str) -> str:
    return str((table.schema.field(column).metadata or {})[key.encode()].decode())


def test_tables(made: tuple[Path, Path, dict[str, Any]]) -> None:
    raw, out, _ = made
    acks = pq.read_table(out / "acks.parquet")
    trace = read_trace(raw)
    assert acks.num_rows == len(trace.events["tcp:tcp_probe"]["t_ns"])
    assert "tcp_current_ssthresh" in _note(acks, "ssthresh_segs", "about")
    assert "before the ACK" in _note(acks, "ssthresh_segs", "about")
    assert _note(acks, "srtt_us", "unit") == "us"
    una = acks["una_bytes"].to_numpy()  # the model's sequence numbers wrap
    assert una[0] == 0
    assert (np.diff(una) == synth.MSS).all()
    assert acks["inflight_bytes"].to_numpy().max() < 1 << 20
    assert set(pq.read_table(out / "states.parquet")["state"].to_pylist()) <= {
        "Open",
        "Recovery",
        "Loss",
    }
    assert pq.read_table(out / "retransmits.parquet").num_rows > 5
    module = pq.read_table(out / "j_j_sample.parquet")
    assert module["flow"].to_pylist()[0] == "f1"
    assert module["bw_Bps"].to_pylist()[0] == synth.RATE_BPS // 8
    samples = pq.read_table(out / "samples.parquet")
    assert _note(samples, "delivery_rate_Bps", "unit") == "B/s"
    assert 50 < samples.num_rows < 70


def test_queue_never_negative_and_bounded(made: tuple[Path, Path, dict[str, Any]]) -> None:
    queue = pq.read_table(made[1] / "queue.parquet")
    level = queue["packets"].to_numpy()
    assert level.min() == 0
    assert 5 < level.max() <= synth.BUFFER + 1
    assert set(queue["stage"].to_pylist()) == {"air:fwd"}


def test_goodput_bins_without_data_are_zero(made: tuple[Path, Path, dict[str, Any]]) -> None:
    table = pq.read_table(made[1] / "goodput.parquet")
    times = table["t_s"].to_numpy()
    dark = (times > 3.2) & (times < 3.9)
    assert dark.sum() >= 5
    assert (table["bytes"].to_numpy()[dark] == 0).all()
    assert np.diff(times) == pytest.approx(0.1)


def test_fairness_at_the_end_is_not_that_of_the_whole(tmp_path: Path) -> None:
    """Two flows that change places: equal over the run, three to one in the last third."""
    plan = replace(PLAN, flows=(PLAN.flows[0], replace(PLAN.flows[0], label="f2")))
    raw = synth.write_raw(tmp_path / "raw", plan)
    times = [synth.T0_NS + 100_000_000 * n for n in range(60)]
    for label, early, late in (("f1", 1000, 3000), ("f2", 2000, 1000)):
        bins = [(t, late if n >= 40 else early) for n, t in enumerate(times)]
        report = {"mode": "recv", "error": None, "bytes": 100_000, "bins": bins, "verified": True}
        synth.put(raw, f"{label}.recv.json", report)
    metrics = collect(raw, plan, tmp_path)["metrics"]
    assert metrics["jain_index"] == pytest.approx(1.0)
    assert metrics["jain_index_late"] == pytest.approx(16 / 20)


def test_what_the_cross_traffic_lost(tmp_path: Path) -> None:
    plan = replace(PLAN, cross=(CrossPlan("x1", "s", "d", 10**6, 0, 6_000_000),))
    raw = synth.write_raw(tmp_path / "raw", plan)
    for name, count in (("x1", 500), ("x1.recv", 450)):
        synth.put(raw, f"{name}.json", {"mode": "udp", "error": None, "datagrams": count})
    assert collect(raw, plan, tmp_path)["metrics"]["udp_loss_1"] == pytest.approx(0.1)


def test_without_trace_and_capture(tmp_path: Path) -> None:
    plan = replace(PLAN, trace=False, capture=False)
    raw = synth.write_raw(tmp_path / "raw", plan)
    for path in (*raw.glob("trace*"), raw / "cap.pcap"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    data = collect(raw, plan, tmp_path)
    flow = data["flows"][0]
    assert data["audit"]["verdict"] == "ok"
    assert flow["rtt_source"] == "samples"
    assert flow["ca_state_s"] is None
    assert flow["rtos"] == 0
    assert data["trace"] is None
    assert data["hashes"] == {"pcap_sha256": None, "pcap_packets": None, "trace_sha256": None}
    assert (tmp_path / "samples.parquet").is_file()
    assert not (tmp_path / "acks.parquet").exists()


def trace_without(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    """Let ``collect`` find a trace in which a system's events are missing."""

    def read(raw: Path) -> Trace:
        trace = read_trace(raw)
        kept = {n: c for n, c in trace.events.items() if not n.startswith(f"{system}:")}
        return replace(trace, events=kept)

    monkeypatch.setattr("airlab.collect.read_trace", read)


def test_a_trace_of_queues_alone_says_nothing_of_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace without ``tcp_probe`` has no timeouts in it, although there were three."""
    trace_without(monkeypatch, "tcp")
    raw = synth.write_raw(tmp_path / "raw", PLAN)
    counters = raw / "nstat1.s"
    counters.write_text(counters.read_text().replace("TcpExt: 0 ", "TcpExt: 3 "))
    flow = collect(raw, PLAN, tmp_path)["flows"][0]
    assert flow["rtos"] == 3
    assert flow["ca_state_s"] is None
    assert flow["rtt_source"] == "samples"
    assert not (tmp_path / "acks.parquet").exists()
    assert (tmp_path / "queue.parquet").is_file()


def test_a_trace_without_queues_makes_no_empty_table_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace_without(monkeypatch, "qdisc")
    collect(synth.write_raw(tmp_path / "raw", PLAN), PLAN, tmp_path)
    assert (tmp_path / "acks.parquet").is_file()
    assert not (tmp_path / "queue.parquet").exists()


def test_a_run_without_reports_is_vetoed_not_lost(tmp_path: Path) -> None:
    raw = synth.write_raw(tmp_path / "raw", PLAN)
    for path in (raw / "json").glob("*.json"):
        path.unlink()
    data = collect(raw, PLAN, tmp_path)
    assert data["audit"]["verdict"] == "veto"
    assert data["flows"][0]["goodput_bps"] == 0


def test_queues_of_equal_handle_are_not_mixed(tmp_path: Path) -> None:
    fwd, rev = PLAN.stages
    plan = replace(PLAN, stages=(fwd, replace(rev, rate_handle=fwd.rate_handle)))
    data = collect(synth.write_raw(tmp_path / "raw", plan), plan, tmp_path)
    assert not (tmp_path / "queue.parquet").exists()
    assert len(data["notes"]) == 2


def test_an_unreadable_raw_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CcscopeError):
        collect(tmp_path, PLAN, tmp_path)


def test_restarted_counters_of_a_queue_are_unknown(tmp_path: Path) -> None:
    raw = synth.write_raw(tmp_path / "raw", PLAN)
    rows = json.loads((raw / "tc1.wA.json").read_text())
    (raw / "tc0.wA.json").write_text(json.dumps(rows))
    (raw / "tc1.wA.json").write_text(json.dumps([{**rows[0], "packets": 1, "drops": 0}]))
    assert collect(raw, PLAN, tmp_path)["stages"][0]["queue_drops"] is None


def test_handles() -> None:
    assert handle_number("10:") == 0x100000
    assert handle_number("a:1f") == 0xA001F


def test_a_real_ring_buffer(tmp_path: Path) -> None:
    """The sender's events only: the receiver's socket fires tcp_probe as well."""
    flow = replace(PLAN.flows[0], port=5201, dst_addr="10.0.2.1")
    plan = replace(PLAN, flows=(flow,))
    raw = synth.write_raw(tmp_path / "raw", plan)
    (raw / "trace.raw").write_bytes(gzip.decompress((DATA / "trace.raw.gz").read_bytes()))
    (raw / "t0").write_text("4500000000 0\n")
    collect(raw, plan, tmp_path)
    text = gzip.decompress((DATA / "trace.txt.gz").read_bytes()).decode().splitlines()
    probes = [x for x in text if "tcp_probe:" in x and "dest=10.0.2.1:5201" in x]
    acks = pq.read_table(tmp_path / "acks.parquet")
    assert acks.num_rows == len(probes) > 100
    assert "Loss" in pq.read_table(tmp_path / "states.parquet")["state"].to_pylist()
    again = [x for x in text if "tcp_retransmit_skb:" in x and "dport=5201" in x]
    assert pq.read_table(tmp_path / "retransmits.parquet").num_rows == len(again) > 10
    level = pq.read_table(tmp_path / "queue.parquet")["packets"].to_numpy()
    assert (level.min(), level[-1]) == (0, 0)
    assert level.max() == 20  # the queue's limit
    # iperf3 uses two connections to this port; each starts at 0.
    assert acks["una_bytes"].to_numpy().max() > 500_000
