"""The model behind live views, the feeds, and the view in a terminal (Textual's own pilot)."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import shutil
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from ccscope.cli import main
from ccscope.decode import finish
from ccscope.errors import CcscopeError
from ccscope.flows import Selection
from ccscope.imports import import_file
from ccscope.live.feeds import FollowFeed, Frame, HostFeed, ReplayFeed
from ccscope.live.model import POINTS, Flow, Model, Points, outline
from ccscope.live.terminal import LiveApp, View
from ccscope.recorder import Options
from ccscope.recording import Recording
from ccscope.spool import NOTE, SpoolReader, SpoolWriter
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

RING = Path(__file__).with_name("ring")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A real flow of 2 s with losses and an outage (ring/README.md)."""
    raw = tmp_path_factory.mktemp("raw")
    shutil.copytree(RING / "trace.formats", raw / "trace.formats")
    shutil.copy(RING / "trace.stats", raw)
    (raw / "trace.raw").write_bytes(gzip.decompress((RING / "trace.raw.gz").read_bytes()))
    import_file(raw, raw / "rec", None)
    return Recording.open(raw / "rec")


def _whole(recording: Recording) -> Model:
    model = Model()
    with ReplayFeed(recording, float("inf")) as feed:
        model.add(feed.take())
    return model


def test_the_model_holds_what_the_recording_holds(recording: Recording) -> None:
    model = _whole(recording)
    assert model.over
    assert set(model.flows) == set(recording.table("acks")["flow"].tolist())
    for label, flow in model.flows.items():
        acks = recording.flow("acks", label)
        assert np.array_equal(flow.points.column("t"), acks["t_s"])
        assert np.array_equal(flow.points.column("cwnd"), acks["cwnd_segs"])
        causes = recording.flow("states", label)["cause"].tolist()
        assert flow.counts["loss"] == causes.count("rto")
        assert flow.counts["recovery"] == sum(c in ("recovery", "sack") for c in causes)
        assert flow.counts["retransmits"] == len(recording.flow("retransmits", label)["t_s"])
    busiest = model.busiest()[0]
    assert busiest.counts["loss"] > 0
    assert busiest.counts["recovery"] > 0
    acked = busiest.points.column("acked")
    edges = np.array([0.0, model.now_s / 2, model.now_s])
    whole = (busiest.rates(edges) * np.diff(edges)).sum() / 8
    assert whole == pytest.approx(acked[-1] - acked[0])


def test_a_replay_gives_the_same_in_pieces_and_stands_still_while_paused(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    model = Model()
    with ReplayFeed(recording, 2.0) as feed:
        for step in range(400):
            clock[0] += 0.013
            feed.pause(step == 50)
            frame = feed.take()
            if step == 50:
                assert frame.tables == []
            model.add(frame)
    assert model.over
    whole = _whole(recording)
    for label, flow in whole.flows.items():
        assert np.array_equal(flow.points.column("cwnd"), model.flows[label].points.column("cwnd"))
        assert list(flow.marks) == list(model.flows[label].marks)


def test_thinning_keeps_order_and_extremes() -> None:
    points = Points()
    values = np.random.default_rng(1).integers(10, 1000, 50_000).astype(float)
    values[::7919] += 5000.0
    for start in range(0, len(values), 500):
        rows = np.zeros((8, 500))
        rows[0] = np.arange(start, start + 500)
        rows[1] = values[start : start + 500]
        points.add(rows, 4000)
        assert points.count <= 4000
    times, kept = points.column("t"), points.column("cwnd")
    assert (np.diff(times) > 0).all()
    assert np.array_equal(kept, values[times.astype(int)])
    assert kept.max() == values.max()
    assert kept.min() == values.min()
    newest = values[-1500:]
    assert np.array_equal(kept[-1500:], newest)


def test_an_outline_draws_as_all_points_would() -> None:
    rng = np.random.default_rng(2)
    times = np.sort(rng.uniform(0, 10, 20_000))
    values = rng.normal(size=20_000).cumsum()
    edges = np.linspace(0, 10, 101)
    thin_t, thin = outline(times, values, edges)
    assert len(thin) <= 400
    for first, last in itertools.pairwise(edges):
        mine = values[(times >= first) & (times < last)]
        kept = thin[(thin_t >= first) & (thin_t < last)]
        assert (mine.min(), mine.max(), mine[0], mine[-1]) == (
            *(kept.min(), kept.max()),
            *(kept[0], kept[-1]),
        )


def test_memory_is_bounded_with_many_flows() -> None:
    model = Model()
    for step in range(40):
        rows = 5000
        labels = np.array([f"f{i % 1000}" for i in range(rows)], dtype=object)
        acks = {
            "t_s": step + np.arange(rows) / rows,
            "flow": labels,
            **dict.fromkeys(
                ("cwnd_segs", "ssthresh_segs", "inflight_bytes", "srtt_us", "una_bytes"),
                np.full(rows, 10.0),
            ),
        }
        model.add(Frame(step + 1.0, [{"acks": acks}]))
    assert len(model.flows) <= 200
    assert model.forgotten > 0
    assert sum(f.points.count for f in model.flows.values()) <= POINTS


def test_polls_give_states_without_causes() -> None:
    model = Model()
    states = np.array([0, 3, 3, 0, 4, 0])
    rows = {
        "t_s": np.arange(6.0),
        "flow": np.full(6, "f1", dtype=object),
        "cwnd_segs": np.full(6, 10.0),
        "bytes_acked": np.arange(6) * 1000.0,
        "ca_state": states,
        "retrans_total": np.array([0, 2, 2, 2, 3, 3]),
    }
    model.add(Frame(6.0, [{"samples": rows}]))
    flow = model.flows["f1"]
    assert [(m.kind, m.t_s) for m in flow.marks] == [("recovery", 1.0), ("loss", 4.0)]
    assert "seen by a poll" in flow.marks[0].text
    assert flow.counts["retransmits"] == 3


# ---- a recording that grows ----


def test_following_a_recording_that_grows(tmp_path: Path) -> None:
    head = {"start_monotonic_ns": 5_000_000_000, "start_realtime_ns": 7, "sources": []}
    writer = SpoolWriter(tmp_path / "spool", head, segment_s=1.0)
    with FollowFeed(tmp_path) as feed:
        assert feed.take().tables == []
        writer.note({"drained": 6_000_000_000}, 6.0)
        assert feed.take().now_s == 1.0
        # A record that is half written is read when it is whole.
        segment = tmp_path / "spool" / "000001.seg"
        writer.note({"drained": 7_500_000_000}, 6.5)
        whole = segment.read_bytes()
        segment.write_bytes(whole[:-5])
        assert feed.take().now_s == 1.0
        segment.write_bytes(whole)
        assert feed.take().now_s == 2.5
        writer.note({"drained": 9_000_000_000}, 8.0)  # a new segment
        assert len(list((tmp_path / "spool").glob("*.seg"))) == 2
        assert feed.take().now_s == 4.0
        writer.note({"end": {"t_ns": 10_000_000_000, "lost": {"tracefs": 3}}}, 8.1)
        last = feed.take()
        assert (last.over, last.lost, last.now_s) == (True, 3, 5.0)
    kinds = [kind for kind, _ in SpoolReader(tmp_path / "spool").records()]
    assert kinds == [NOTE] * 4
    writer.close()
    finish(tmp_path)
    with pytest.raises(CcscopeError, match="played with --replay"):
        FollowFeed(tmp_path)


# ---- the terminal ----


def _run(recording: Recording, test: Callable[[LiveApp, Pilot[int]], Awaitable[None]]) -> None:
    async def session() -> None:
        with ReplayFeed(recording, float("inf")) as feed:
            app = LiveApp(feed, span_s=2.5)
            with app.pump:
                async with app.run_test(size=(80, 24)) as pilot:
                    # The canvases follow the lines of text by a frame.
                    while "ended" not in _text(app, "title") or not _drawn(app):
                        await pilot.pause(0.05)
                    await test(app, pilot)

    asyncio.run(session())


def _screen(app: LiveApp) -> list[str]:
    return [
        "".join(segment.text for segment in strip)
        for strip in app.screen._compositor.render_strips()
    ]


def _drawn(app: LiveApp) -> bool:
    return any("\u2800" < c <= "\u28ff" for c in "".join(_screen(app)))


def _text(app: LiveApp, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).render())


def test_the_terminal_shows_curves_marks_axes_and_numbers(recording: Recording) -> None:
    async def look(app: LiveApp, pilot: Pilot[int]) -> None:
        lines = _screen(app)
        assert len(lines) == 24
        assert {len(line) for line in lines} == {80}
        flow = app.model.flows[app.shown]
        assert flow.label == app.model.busiest()[0].label
        assert f"{flow.label}  {flow.ends}" in lines[0]
        assert "replay of rec" in lines[0]
        marks = next(line for line in lines if "L" in line and "┃" in line)
        assert 1 <= marks.count("L") <= flow.counts["loss"]
        curve = "".join(lines[4:11])
        assert sum("\u2800" < c <= "\u28ff" for c in curve) > 20
        assert "\u00d7" in "".join(lines[14:20])
        assert "segments" in lines[2]
        last = flow.last()
        assert f"cwnd {last['cwnd']:.0f}" in _text(app, "values")
        assert "L " in _text(app, "event")
        assert "space Pause" in lines[23]

    _run(recording, look)


def test_keys_pause_zoom_and_pan(recording: Recording) -> None:
    async def press(app: LiveApp, pilot: Pilot[int]) -> None:
        now = app.model.now_s
        await pilot.press("space")
        assert "PAUSED" in _text(app, "title")
        frames = app.frames
        await pilot.pause(0.6)
        assert app.frames == frames
        await pilot.press("space")
        assert "PAUSED" not in _text(app, "title")
        before = app.view.limits(now)
        await pilot.press("plus")
        first, last = app.view.limits(now)
        assert last == before[1]
        assert last - first == pytest.approx((before[1] - before[0]) / 1.6)
        await pilot.press("left")
        assert app.view.limits(now)[1] < last
        assert "LOOKING BACK" in _text(app, "title")
        shown = _screen(app)
        await pilot.press("0")
        assert app.view.end_s is None
        assert _screen(app) != shown
        await pilot.press("minus", "minus")
        assert app.view.span_s > 2.5

    _run(recording, press)


def test_flows_are_chosen_and_compared(recording: Recording) -> None:
    async def choose(app: LiveApp, pilot: Pilot[int]) -> None:
        labels = list(app.model.flows)
        first = app.shown
        await pilot.press("n")
        assert app.shown == labels[(labels.index(first) + 1) % len(labels)]
        await pilot.press("f")
        table = app.screen.query_one(DataTable)
        assert table.row_count == len(labels)
        await pilot.press("space")
        await pilot.press("enter")
        await pilot.pause(0.2)
        assert app.compared == [app.shown]
        assert f"━ {app.shown}" in _text(app, "legend")

    _run(recording, choose)


def test_time_axis() -> None:
    view = View(10.0)
    assert view.limits(3.0) == (0.0, 10.0)
    assert view.limits(30.0) == (20.0, 30.0)
    view.pan(-0.5, 30.0)
    assert view.limits(31.0) == (15.0, 25.0)
    view.zoom(2.0, 31.0)
    assert view.limits(31.0) == (17.5, 22.5)
    view.pan(+100, 31.0)
    assert view.end_s is None
    for _ in range(100):
        view.zoom(2.0, 31.0)
    assert view.span_s >= 0.05


def test_wrong_use_of_live(
    recording: Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recording.json").write_text(
        json.dumps({"format": "ccscope-recording", "version": 1, "flows": {}})
    )
    rec = str(recording.path)
    for argv, text in [
        (["--replay", rec, "--follow", rec], "give one"),
        (["--speed", "2x"], "--speed is for --replay"),
        (["--replay", str(tmp_path / "none")], "is not a folder"),
        (["--replay", str(tmp_path)], "no rows that a live view shows"),
        (["--follow", rec], "played with --replay"),
        (["--replay", rec], "no terminal"),
    ]:
        assert main(["live", *argv]) == 2
        assert text in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["live", "--speed", "fast"])


def test_rates_are_steps_between_acks() -> None:
    flow = Flow("f1", {})
    rows = np.full((8, 3), np.nan)
    rows[0], rows[5] = [1.0, 2.0, 3.0], [0.0, 1000.0, 3000.0]
    flow.points.add(rows, 100)
    assert flow.rates(np.array([0.0, 1.5, 2.5, 3.5])).tolist() == [0.0, 8000.0, 16000.0]


@pytest.mark.browser  # In real time, on whatever host this is: make check-views runs it.
def test_this_host_is_seen_as_it_happens() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as other,
    ):
        port = server.getsockname()[1]
        options = Options(
            folder=Path(),
            selection=Selection(ports=(port,)),
            source="sockdiag",
            per="sample",
            interval_s=0.05,
        )
        model = Model()
        with HostFeed(options) as feed:
            assert feed.source == "sockdiag (asked for)"
            assert "single ACKs" in feed.cannot[0]
            end = time.monotonic() + 30
            while time.monotonic() < end and min(_counts(model), default=0) < 10:
                client.sendall(bytes(10_000))
                other.recv(1 << 16)
                time.sleep(0.02)
                model.add(feed.take())
        assert len(model.flows) == 2
        busiest = model.busiest()[0]
        assert busiest.info["sport"] == client.getsockname()[1]
        assert busiest.last()["cwnd"] >= 1
        assert (np.diff(busiest.points.column("t")) > 0).all()
        assert busiest.points.column("acked")[-1] > busiest.points.column("acked")[0]
    assert all(t.name not in ("recorder", "pump") for t in threading.enumerate())


def _counts(model: Model) -> list[int]:
    return [flow.points.count for flow in model.flows.values()]
