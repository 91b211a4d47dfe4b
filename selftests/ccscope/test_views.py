"""plot, report and diff: facts of what is drawn, not pixels."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ccscope.cli import main
from ccscope.compare import compare
from ccscope.draw import look, panels
from ccscope.draw.curves import Curve, nice, rate, reduced
from ccscope.draw.flowview import FlowView, views
from ccscope.errors import CcscopeError
from ccscope.metrics import metrics
from ccscope.page.pack import Packer
from ccscope.pcapfile import Packet, PcapngWriter
from ccscope.recording import Recording, Writer

sys.path.insert(0, str(Path(__file__).parent))
import madeflows

KIND = {"sack": "recovery", "dupack": "recovery", "rto": "loss", "tlp": "other"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flows = {
        "f1": madeflows.made_flow("f1", 20_000, 8e6, 1),
        "f2": madeflows.made_flow("f2", 10_000, 4e6, 2),
    }
    return madeflows.write_recording(tmp_path_factory.mktemp("made") / "two", flows)


@pytest.fixture(scope="module")
def recording(folder: Path) -> Recording:
    return Recording.open(folder)


def _plot(folder: Path, out: Path, *more: str) -> str:
    assert main(["plot", str(folder), "-o", str(out), *more]) == 0
    return out.read_text() if out.suffix == ".svg" else ""


def _drawn(svg: str, gid: str) -> int:
    """How many marks or lines the groups of this id have."""
    groups = re.findall(rf'<g id="{gid}">(.*?)\n  ? ?</g>', svg, re.DOTALL)
    return sum(len(re.findall(r"<use |<path d=\"M", g)) for g in groups)


# ---- figures ----


def test_marks_of_each_cause_are_drawn(folder: Path, recording: Recording, tmp_path: Path) -> None:
    svg = _plot(folder, tmp_path / "x.svg", "--kind", "cwnd", "--flow", "f1")
    causes = [c for c in FlowView(recording, "f1").state_rows if c[3] in {*KIND, *look.MARKS}]
    wanted = [KIND.get(row[3], row[3]) for row in causes]
    assert set(wanted) == set(look.MARKS)
    for kind, style in look.MARKS.items():
        found = re.findall(rf'<g id="mark-{kind}">(.*?)</g>\s*</g>', svg, re.DOTALL)
        assert len(found) == 1, kind
        assert found[0].count("<use ") == wanted.count(kind)
        assert f">{style.text}</text>" in svg
    for text in ("segments", "time, s", "ssthresh", "in flight", "Recovery", "f1 cubic"):
        assert f">{text}</text>" in svg


def test_a_zoomed_figure_has_only_what_is_in_view(
    folder: Path, recording: Recording, tmp_path: Path
) -> None:
    view = FlowView(recording, "f1")
    t = view.sequence.t
    svg = _plot(
        *(folder, tmp_path / "x.svg", "-k", "sequence", "cwnd", "-f", "f1"),
        *("--from", "1.2", "--to", "1.5"),
    )
    inside = int(((t >= 1.2) & (t <= 1.5)).sum())
    lines = re.search(r'<g id="seq-data">(.*?)</g>', svg, re.DOTALL)
    assert lines
    assert lines[1].count("<path ") == inside > 100
    assert 'id="mark-' not in svg
    whole = panels.sequence_parts(view.sequence, 0.0, 40.0)["data"]
    assert len(whole[0]) <= 1500 < len(t)
    assert whole[1].min() == view.sequence.low.min()
    assert whole[2].max() == view.sequence.high.max()


def test_every_kind_and_several_flows(folder: Path, tmp_path: Path) -> None:
    kinds = ["cwnd", "inflight", "throughput", "rtt", "sequence", "states", "acked"]
    svg = _plot(folder, tmp_path / "x.svg", "-k", *kinds, "--title", "Two flows")
    labels = (
        "Two flows",
        "in flight, kB",
        "goodput, Mbit/s",
        "RTT, ms",
        "sequence, MB",
        "sum of flows",
    )
    for text in (*labels, "f1 cubic", "f2 reno", "ACK", "data", "SACK", "sent again"):
        assert f">{text}</text>" in svg
    with pytest.raises(SystemExit):
        main(["plot", str(folder), "-k", "colour"])


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_the_same_data_give_the_same_bytes(folder: Path, tmp_path: Path, kind: str) -> None:
    for name in ("a", "b"):
        _plot(folder, tmp_path / f"{name}.{kind}", "-k", "cwnd", "states")
    assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_reduction_keeps_extremes() -> None:
    draw = np.random.default_rng(5)
    curve = Curve(np.sort(draw.uniform(0, 10, 50_000)), draw.normal(0, 1, 50_000))
    made = reduced(curve, 2.0, 7.0, 500)
    inside = curve.y[(curve.t >= 2) & (curve.t < 7)]
    assert len(made) <= 500
    assert (made.y.min(), made.y.max()) == (inside.min(), inside.max())
    close = reduced(curve, 2.0, 2.01, 500)
    assert close.y[1:-1].tolist() == curve.y[(curve.t > 2) & (curve.t <= 2.01)].tolist()
    assert close.t[[0, -1]].tolist() == [2.0, 2.01]
    assert not len(reduced(Curve(np.zeros(0), np.zeros(0)), 0, 1, 10))


def test_rates() -> None:
    assert [nice(w) for w in (0.1, 0.11, 0.3, 7.0)] == pytest.approx([0.1, 0.2, 0.5, 10.0])
    total = Curve(np.array([0.0, 1.0, 2.0]), np.array([0.0, 1e6, 1e6]))
    assert rate(total, 0.0, 2.0, 0.5).y.tolist() == [8e6, 8e6, 0, 0]


# ---- what a flow can show, by source ----


def test_without_packets_the_trace_gives_the_sequence(tmp_path: Path) -> None:
    flow = madeflows.made_flow("f1", 5000, 8e6)
    folder = madeflows.write_recording(tmp_path / "r", {"f1": flow}, without=("packets",))
    view = FlowView(Recording.open(folder), "f1")
    assert view.sequence.source == "trace"
    assert view.sequence.again.sum() == len(flow.tables["retransmits"]["t_s"])
    assert view.sequence.acked.y[-1] == view.acks["una_bytes"][-1]
    assert not len(view.rtt_samples_ms)
    assert ">from the trace</text>" in _plot(folder, tmp_path / "x.svg", "-k", "sequence")


def test_round_trip_times_of_packets(recording: Recording) -> None:
    """Those of the formula: never below the path's, none of the segments sent twice."""
    samples = FlowView(recording, "f1").rtt_samples_ms
    flow = FlowView(recording, "f1")
    assert len(samples) > 19_000
    assert samples.y.min() >= madeflows.BASE_RTT_S * 1e3
    assert samples.y.max() < 2.2 * madeflows.BASE_RTT_S * 1e3
    assert not np.isin(samples.t, flow.sequence.t).any()


def test_a_capture_beside_the_tables_is_on_their_clock(tmp_path: Path) -> None:
    from test_formats import FRAMES, START_NS

    flow = {"src": "10.0.0.1", "dst": "10.0.0.2", "sport": 40000, "dport": 80, "family": 4}
    with Writer(tmp_path / "r") as writer:
        meta = {"duration_s": 2.0, "flows": {"mine": flow}, "sources": [], "lost": {}}
        writer.finish({**meta, "start_realtime_ns": START_NS - 10**9})
    with PcapngWriter(tmp_path / "r/capture.pcapng", "test") as capture:
        for i, frame in enumerate(FRAMES):
            whole = len(frame) + (1000 if i in (3, 4, 5, 7) else 0)
            capture.write(Packet(START_NS + i * 10_000_000, frame, 1, whole))
    opened = Recording.open(tmp_path / "r")
    (view,) = views(opened)
    assert view.sequence.source == "capture"
    assert view.sequence.t.tolist() == pytest.approx([1.03, 1.04, 1.05, 1.07])
    assert view.sequence.again.tolist() == [False, False, False, True]
    assert view.sequence.sack_low.tolist() == [1001, 1]
    assert not opened.problems
    _plot(tmp_path / "r", tmp_path / "x.svg", "-k", "sequence")


def test_polls_show_window_and_states(tmp_path: Path) -> None:
    polls = {
        "t_s": np.arange(5) * 0.1,
        "flow": np.full(5, "f1", dtype=object),
        "cwnd_segs": np.array([10, 20, 30, 15, 16]),
        "ca_state": np.array([0, 0, 3, 3, 0]),
        "unacked_segs": np.array([5, 10, 20, 10, 10]),
        "mss_bytes": np.full(5, 1000),
        "bytes_acked": np.arange(5) * 1000,
    }
    with Writer(tmp_path / "r") as writer:
        writer.add("samples", polls)
        writer.finish({"duration_s": 0.5, "flows": {}, "sources": [], "lost": {}})
    (view,) = views(Recording.open(tmp_path / "r"))
    assert view.cwnd.y.tolist() == [10, 20, 30, 15, 16]
    assert [(m.t_s, m.kind) for m in view.marks] == [(0.2, "recovery")]
    assert [(s.state, round(s.stop_s - s.start_s, 9)) for s in view.stays(0, 0.5)] == [
        ("Open", 0.2),
        ("Recovery", 0.2),
        ("Open", 0.1),
    ]
    assert view.inflight_bytes.y[1] == 10_000
    _plot(tmp_path / "r", tmp_path / "x.svg", "-k", "cwnd", "inflight", "throughput", "states")


def test_marks_without_a_cause_follow_the_state() -> None:
    assert [look.mark_kind(None, s) for s in ("Open", "CWR", "Recovery", "Loss")] == [
        *(None, "other", "recovery", "loss")
    ]
    assert look.mark_kind("ecn", "CWR") == "ecn"
    assert look.mark_kind("undo", "Open") == "undo"
    assert look.mark_kind("done", "Open") is None


# ---- errors ----


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--flow", "f9"], "no such flow"),
        (["--kind", "queue"], "no data for it; it can show: cwnd, inflight"),
        (["--from", "5", "--to", "4"], "0 <= from < to"),
        (["--from", "99999"], "the recording ends"),
        (["-o", "x.gif"], "must end in .svg"),
        (["-o", "no-such-folder/x.svg"], "No such file"),
        (["--width", "900"], "2 to 40"),
    ],
)
def test_wrong_use_is_named(
    folder: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", str(folder), *arguments]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plot", "report", "diff"])
def test_empty_and_damaged_recordings(
    command: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = [str(folder)] if command == "diff" else ["-o", str(tmp_path / "x.svg")]
    assert main([command, str(tmp_path / "nothing"), *second]) == 2
    assert "is not a folder" in capsys.readouterr().err
    with Writer(tmp_path / "empty") as writer:
        writer.finish({"duration_s": 1.0, "flows": {}, "sources": [], "lost": {}})
    assert main([command, str(tmp_path / "empty"), *second]) == 2
    assert "no rows of any flow" in capsys.readouterr().err
    shutil.copytree(folder, tmp_path / "torn")
    for table in ("acks", "packets"):
        file = tmp_path / f"torn/{table}.parquet"
        file.write_bytes(file.read_bytes()[:-300])
    more = ["-k", "throughput", "states"] if command == "plot" else []
    assert main([command, str(tmp_path / "torn"), *second, *more]) == 0
    assert "acks.parquet cannot be read" in capsys.readouterr().err


def test_the_command_needs_only_the_standard_library() -> None:
    script = (
        "import ccscope.cli, sys; ccscope.cli._parser();"
        "print(sorted({m.split('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(done.stdout.replace("'", '"')))
    assert not {"numpy", "pyarrow", "matplotlib"} & loaded


# ---- the page ----


def _unpacked(head: dict[str, Any], text: str) -> Any:
    raw = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    planes = raw.reshape(head["w"], head["n"]).astype(np.int64)
    zigzag = sum(plane << (8 * i) for i, plane in enumerate(planes))
    values = np.cumsum((zigzag >> 1) ^ -(zigzag & 1))
    made = values * head["scale"]
    return np.where(values == head["gap"], np.nan, made) if head["gap"] is not None else made


def test_columns_come_back_as_they_were() -> None:
    packer = Packer()
    columns = (
        (np.array([0.0, 5, -3, 1e12, np.nan, 7]), 1.0),
        (np.array([0.000000001, 2.5, 86400.123456789]), 1e-9),
        (np.array([np.nan, np.nan]), 1.0),
        (np.zeros(0), 1.0),
        (np.arange(1000.0), 1.0),
    )
    for values, scale in columns:
        number = packer.add(values, scale)
        head = packer.heads[number]
        np.testing.assert_allclose(_unpacked(head, packer.texts[head["id"]]), values, rtol=1e-15)
    assert packer.add(np.arange(1000.0)) == len(packer.heads) - 1
    assert packer.heads[-1]["w"] == 1
    with pytest.raises(CcscopeError, match="too large"):
        packer.add(np.array([1e20]))


@pytest.fixture(scope="module")
def page(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page") / "report.html"
    assert main(["report", str(folder), "-o", str(out), "--title", "<b>Two"]) == 0
    return out.read_text()


def test_the_page_holds_every_packet(page: str, recording: Recording) -> None:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    data = json.loads(found[1])
    texts = dict(re.findall(r'<script type="text/plain" id="(c\d+)">(.*?)</script>', page))
    assert [f["label"] for f in data["flows"]] == ["f1", "f2"]

    def column(number: int) -> Any:
        head = data["columns"][number]
        return _unpacked(head, texts[head["id"]])

    for flow in data["flows"]:
        view = FlowView(recording, flow["label"])
        once = ~view.sequence.again
        t, low, size = (column(n) for n in flow["sequence"]["data"])
        np.testing.assert_allclose(t, view.sequence.t[once], atol=1e-9)
        np.testing.assert_allclose(low * 1e6, view.sequence.low[once], atol=0.01)
        assert set(np.round(size * 1e6)) == {madeflows.MSS}
        assert len(column(flow["sequence"]["again"][0])) == view.sequence.again.sum()
        assert len(column(flow["curves"]["cwnd"][0])) == len(view.cwnd)
        assert np.isnan(column(flow["curves"]["ssthresh"][1])[0])
        assert len(flow["events"]) == len(view.marks)
    assert data["evidence"][data["flows"][0]["events"][0][3]].startswith("made: segment")


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    assert "default-src 'none'" in page
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", page)
    assert "<title>&lt;b&gt;Two</title>" in page
    for text in ("uPlot (MIT licence)", "made by a formula", "0 by tracefs", "be wrong"):
        assert text in page


# ---- metrics and diff ----


def test_metrics_are_those_of_the_formula(recording: Recording) -> None:
    view = FlowView(recording, "f1")
    numbers = metrics(view, recording.duration_s)
    assert numbers.goodput_bps == pytest.approx(8e6 * madeflows.MSS / madeflows.FRAME, rel=0.01)
    assert numbers.goodput_of == "receiver"
    pipe = madeflows.BASE_RTT_S * 8e6 / 8 / madeflows.FRAME
    assert numbers.cwnd_mean_segs == pytest.approx(pipe * 1.4, rel=0.1)
    assert numbers.cwnd_cv == pytest.approx(0.22, abs=0.04)
    assert numbers.rtt_min_us == madeflows.BASE_RTT_S * 1e6
    assert numbers.retransmits == len(view.retransmit_times)
    assert numbers.events["local"] == numbers.events["ecn"] == 1
    assert sum(numbers.state_s.values()) == pytest.approx(numbers.duration_s)
    assert numbers.state_n["Loss"] == 1


def test_diff(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"g7": madeflows.made_flow("g7", 3000, 4e6, 2)}
    second = madeflows.write_recording(tmp_path / "b", other)
    plot = tmp_path / "d.svg"
    assert main(["diff", str(folder), str(second), "--json", "--plot", str(plot)]) == 0
    made = json.loads(capsys.readouterr().out)
    (pair,) = made["pairs"]
    assert (pair["a"], pair["b"], pair["by"]) == ("f2", "g7", "addresses and ports")
    assert (made["only_a"], made["only_b"]) == (["f1"], [])
    sent = pair["metrics"]["retransmits"]
    assert sent["difference"] == sent["b"] - sent["a"] < 0
    assert sent["ratio"] == pytest.approx(sent["b"] / sent["a"])
    assert pair["metrics"]["events.rto"] == {"a": 1, "b": 0, "difference": -1, "ratio": 0}
    assert ">B g7 reno</text>" in plot.read_text()
    assert main(["diff", str(folder), str(folder)]) == 0
    text = capsys.readouterr().out
    assert text.count("(matched by addresses and ports)") == 2
    assert "+0.000" in text
    assert main(["diff", str(folder), str(second), "--plot", "x.txt"]) == 2


@pytest.mark.parametrize(
    ("first", "second", "by"),
    [
        ({"dport": 80, "cc": "j"}, {"dport": 80, "cc": "j"}, "port and algorithm"),
        ({"dport": 80, "cc": "j"}, {"dport": 80, "cc": "cubic"}, "port"),
        ({"dport": 80, "cc": "j"}, {"dport": 81, "cc": "j"}, "algorithm"),
        ({"dport": 80, "cc": "j"}, {"dport": 81, "cc": "cubic"}, "order"),
    ],
)
def test_the_rule_by_which_flows_are_matched(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], by: str
) -> None:
    opened = []
    for name, info in (("a", first), ("b", second)):
        with Writer(tmp_path / name) as writer:
            flow = np.array([name], dtype=object)
            writer.add("acks", {"t_s": np.zeros(1), "flow": flow, "cwnd_segs": np.ones(1)})
            flows = {name: {"src": "s", "dst": "d", "sport": 0, "family": 4, **info}}
            writer.finish({"duration_s": 1.0, "flows": flows, "sources": [], "lost": {}})
        opened.append(Recording.open(tmp_path / name))
    assert [pair.by for pair in compare(opened[0], opened[1]).pairs] == [by]
