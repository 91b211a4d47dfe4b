"""The classifier, the cost of losses and the words of ``ccscope explain``, on made-up evidence."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from ccscope.cli import main
from ccscope.explain import explain, largest
from ccscope.explain.classes import ABOUT, CLASSES, CODE, FAMILY, LIMIT
from ccscope.explain.classify import Slices, at_windows, phases, rolling_min
from ccscope.explain.episodes import from_states
from ccscope.recording import Recording, Writer
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

MSS = 1000.0


def _slices(*parts: tuple[float, str]) -> Slices:
    ends = np.cumsum([length for length, _ in parts])
    return Slices(np.concatenate([[0.0], ends]), np.array([CODE[name] for _, name in parts]))


def test_every_class_has_words_a_family_and_a_limit() -> None:
    assert set(ABOUT) == set(CLASSES) == set(FAMILY) == set(LIMIT)
    assert set(FAMILY.values()) <= set(CLASSES)


@hypothesis_settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.001, 3.0), st.sampled_from(CLASSES)), min_size=1, max_size=60),
    st.floats(0.01, 5.0),
    st.floats(0.0, 5.0),
)
def test_classes_and_phases_partition_the_time(
    parts: list[tuple[float, str]], resolution_s: float, least_s: float
) -> None:
    slices = _slices(*parts)
    whole = sum(length for length, _ in parts)
    assert sum(slices.seconds().values()) == pytest.approx(whole)
    made = phases(slices, resolution_s, least_s=least_s, most=5)
    assert len(made) <= 5
    assert made[0].start_s == 0
    assert made[-1].end_s == pytest.approx(whole)
    assert [p.end_s for p in made[:-1]] == [p.start_s for p in made[1:]]
    assert all(a.name != b.name for a, b in itertools.pairwise(made))
    for phase in made:
        assert sum(phase.seconds.values()) == pytest.approx(phase.length_s, abs=1e-9)


def test_hysteresis_keeps_a_phase_through_short_changes() -> None:
    """In each cell of 1 s the receiver holds 55 %: enough to go on, not enough to begin."""
    flicker = [(0.55, "receiver"), (0.45, "application")] * 5
    steady = [(2.0, "receiver")]
    assert [p.name for p in phases(_slices(*steady, *flicker), 1.0)] == ["receiver"]
    steady = [(2.0, "application")]
    assert [p.name for p in phases(_slices(*steady, *flicker), 1.0)] == ["application"]
    clear = [(0.65, "receiver"), (0.35, "application")] * 5
    names = [p.name for p in phases(_slices(*steady, *clear), 1.0)]
    assert names == ["application", "receiver"]


def test_a_sawtooth_is_one_phase() -> None:
    teeth = [(0.1, "recovery"), (1.5, "after-loss"), (0.4, "cwnd")] * 10
    made = phases(_slices((1.0, "slow-start"), *teeth), 0.2)
    assert [p.name for p in made] == ["slow-start", "cwnd"]
    assert made[1].share("recovery") == pytest.approx(0.05)


def test_overlays_replace_exactly_their_stretch() -> None:
    made = _slices((10.0, "cwnd")).overlays([(2.0, 3.0, "recovery"), (2.5, 4.0, "timeout")])
    assert made.seconds() == pytest.approx({"cwnd": 8.0, "recovery": 0.5, "timeout": 1.5})
    assert made.seconds(2.25, 2.75) == pytest.approx({"recovery": 0.25, "timeout": 0.25})


@hypothesis_settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.001, 1.0), st.integers(0, 50)), min_size=1, max_size=80))
def test_rolling_minimum(rows: list[tuple[float, int]]) -> None:
    times = np.cumsum([step for step, _ in rows])
    values = np.array([float(value) for _, value in rows])
    spans = np.linspace(0.01, 2.0, len(rows))
    wanted = [
        min(values[j] for j in range(i + 1) if times[j] > times[i] - spans[i] or j == i)
        for i in range(len(rows))
    ]
    assert rolling_min(times, values, spans).tolist() == wanted


# room in the receiver's window (B), room in cwnd, cwnd, window, ssthresh, former cwnd -> class
WINDOWS = [
    (0, 5, 20, 10_000, 100, 0, "receiver"),
    (999, 5, 20, 10_000, 100, 0, "receiver"),
    (1000, 5, 20, 10_000, 100, 0, "sender"),
    (0, 0, 10, 60_000, 100, 0, "slow-start"),  # both full, cwnd is the smaller
    (9000, 1, 10, 60_000, 100, 0, "slow-start"),
    (9000, 0, 10, 60_000, 5, 0, "cwnd"),
    (9000, 0, 10, 60_000, 5, 20, "after-loss"),
    (9000, 0, 10, 60_000, 100, 20, "after-loss"),
    (9000, 12, 100, 200_000, 5, 0, "cwnd"),
    (9000, 13, 100, 200_000, 5, 0, "sender"),
    (np.nan, 0, 10, np.nan, 5, 0, "cwnd"),
]


@pytest.mark.parametrize("row", WINDOWS)
def test_which_window_was_full(row: tuple[float, ...]) -> None:
    *numbers, wanted = row
    names = ("room_rwnd_bytes", "room_cwnd_segs", "cwnd_segs", "rwnd_bytes", "ssthresh_segs")
    given_ = {n: np.array([v]) for n, v in zip((*names, "former_cwnd_segs"), numbers, strict=True)}
    assert CLASSES[at_windows(**given_, mss_bytes=MSS)[0]] == wanted


def _states(*rows: tuple[float, str, str]) -> dict[str, np.ndarray]:
    return {
        "t_s": np.array([r[0] for r in rows]),
        "state": np.array([r[1] for r in rows], dtype=object),
        "cause": np.array([r[2] for r in rows], dtype=object),
    }


def test_events_from_states() -> None:
    rows = _states(
        (1.0, "Disorder", "disorder"), (1.1, "Recovery", "sack"), (1.4, "Open", "done"),
        (2.0, "CWR", "local"), (2.2, "Open", "done"),
        (3.0, "Recovery", "rack"), (3.3, "Loss", "rto"), (3.9, "Loss", "rto"),
        (4.5, "Open", "undo"),
        (5.0, "Recovery", "dupack"), (5.2, "Open", "done"), (5.25, "Open", "undo"),
        (6.0, "CWR", "ecn"),
    )  # fmt: skip
    made = from_states(rows, 10.0, np.array([0.5, 2.9, 3.1, 8.0]), 0.2)
    seen = [(e.t_s, e.end_s, e.kind, e.spurious) for e in made]
    assert seen == [
        (1.1, 1.4, "sack", False),
        (2.0, 2.2, "local", False),
        (3.0, 3.3, "rack", False),
        (3.3, 4.5, "rto", True),
        (5.0, 5.2, "dupack", True),
        (6.0, 10.0, "ecn", False),
    ]
    assert made[3].silent_s == pytest.approx(0.2)


def _flow(folder: Path, *, silence: tuple[float, float] | None = None) -> Recording:
    """100 kB/s in segments of 1000 B, 50 ms, cwnd 5 all used; an outage ends by a timeout."""
    times = np.arange(0.05, 10.0, 0.01)
    states = []
    if silence:
        times = times[(times < silence[0]) | (times > silence[1])]
        states = [(silence[0] + 0.3, "Loss", "rto"), (silence[1] + 0.05, "Open", "done")]
    rows = len(times)
    acks = {
        "t_s": times,
        "flow": np.full(rows, "f1", dtype=object),
        "phase": np.full(rows, "before", dtype=object),
        "ssthresh_is": np.full(rows, "current", dtype=object),
        "cwnd_segs": np.full(rows, 5.0),
        "ssthresh_segs": np.full(rows, 4.0),
        "srtt_us": np.full(rows, 50_000.0),
        "inflight_bytes": np.full(rows, 5000.0),
        "una_bytes": np.arange(rows) * 1000,
        "snd_wnd_bytes": np.full(rows, 60_000.0),
    }
    table = _states(*states)
    table["flow"] = np.full(len(states), "f1", dtype=object)
    flow = {"src": "10.0.0.1", "dst": "10.0.0.2", "sport": 5001, "dport": 80, "family": 4}
    with Writer(folder) as writer:
        writer.add("acks", acks)
        writer.add("states", table)
        writer.finish({"duration_s": 10.0, "flows": {"f1": flow}, "sources": [], "problems": []})
    return Recording.open(folder)


def test_the_cost_of_a_timeout_is_the_silence(tmp_path: Path) -> None:
    """A path that gives nothing for 2 s and the former rate at once afterwards costs 2 s."""
    found = explain(_flow(tmp_path / "r", silence=(4.0, 6.0)), "f1")
    assert len(found.costs) == 1
    cost = found.costs[0]
    assert cost.before_bps == pytest.approx(800_000, rel=0.02)
    assert cost.lost_s == pytest.approx(2.0, abs=0.06)
    assert found.seconds["timeout"] == pytest.approx(2.05, abs=0.03)
    assert sum(found.seconds.values()) == pytest.approx(found.duration_s)


def test_without_events_nothing_is_lost(tmp_path: Path) -> None:
    found = explain(_flow(tmp_path / "r"), "f1")
    assert found.costs == []
    assert found.limits()["cwnd"] == pytest.approx(found.duration_s)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _flow(tmp_path / "r", silence=(4.0, 6.0))
    assert main(["explain", str(tmp_path / "r")]) == 0
    said = capsys.readouterr().out
    assert "Mostly limited by: cwnd" in said
    assert "1 x timeout" in said
    assert "cost 2.0" in said
    assert main(["explain", str(tmp_path / "r"), "--flow", "f1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)[0]
    assert sum(data["seconds"].values()) == pytest.approx(data["duration_s"])
    assert data["events"][0]["kind"] == "rto"
    assert data["evidence"]


def test_of_many_flows_the_largest_are_taken(tmp_path: Path) -> None:
    labels = [f"f{i}" for i in range(30) for _ in range(2 + i)]
    samples = {"t_s": np.arange(len(labels)) / 10, "flow": np.array(labels, dtype=object)}
    with Writer(tmp_path / "r") as writer:
        writer.add("samples", samples)
        writer.finish({"duration_s": 100.0, "flows": {}, "sources": [], "problems": []})
    kept, left = largest(Recording.open(tmp_path / "r"), 20)
    assert left == 10
    assert set(kept) == {f"f{i}" for i in range(10, 30)}


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--flow", "f9"], "no flow 'f9'; it has f1"), (["--resolution", "0"], "--resolution 0")],
)
def test_wrong_use_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    _flow(tmp_path / "r")
    assert main(["explain", str(tmp_path / "r"), *words]) == 2
    assert said in capsys.readouterr().err


def test_a_recording_without_rows_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = {"src": "10.0.0.1", "dst": "10.0.0.2", "sport": 5001, "dport": 80, "family": 4}
    with Writer(tmp_path / "r") as writer:
        writer.finish({"duration_s": 1.0, "flows": {"f1": flow}, "sources": [], "problems": []})
    assert main(["explain", str(tmp_path / "r")]) == 2
    assert "neither ACKs, polls nor packets" in capsys.readouterr().err


POLL = """{t}
ESTAB 0 7738 10.1.0.1:56336 10.1.0.2:5001 skmem:(r0,rb131072,t0,tb{tb},f0,w{w},o0,bl0,d0) reno \
wscale:7,7 rto:244 rtt:40.287/20.143 mss:1448 cwnd:14 bytes_sent:{b} bytes_acked:{b} \
pacing_rate 5750736bps delivery_rate 1516328bps delivered:1 {app} busy:{busy}ms {limits} \
unacked:5 notsent:{notsent} minrtt:40.287 snd_wnd:65160
"""
POLLS = {
    # What the kernel said of flows whose limit was forced; less than a segment is Nagle's rest.
    "application": {"tb": 87040, "w": 9000, "app": "app_limited", "notsent": 1055, "limits": ""},
    "send buffer": {"tb": 16384, "w": 12800, "app": "app_limited", "notsent": 0, "limits": ""},
    "receiver window": {"tb": 87040, "w": 87000, "app": "", "notsent": 60000, "limits": "rwnd"},
    "cwnd": {"tb": 87040, "w": 87000, "app": "", "notsent": 60000, "limits": ""},
}


@pytest.mark.parametrize("limit", POLLS)
def test_polls_name_the_limit(tmp_path: Path, limit: str) -> None:
    values = dict(POLLS[limit])
    kind = values.pop("limits")
    log = "".join(
        POLL.format(
            t=1_700_000_000 + i,
            b=1000 + 100_000 * i,
            busy=1000 * i + 100,
            limits=f"rwnd_limited:{1000 * i + 100}ms(99%)" if kind else "",
            **values,
        )
        for i in range(8)
    )
    (tmp_path / "ss.log").write_text(log)
    assert main(["import", str(tmp_path / "ss.log"), "-o", str(tmp_path / "r")]) == 0
    found = explain(Recording.open(tmp_path / "r"), "f1")
    assert found.limits()[limit] >= 0.95 * found.duration_s, found.limits()
