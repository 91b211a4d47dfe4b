"""The search, the path's facts, the settings and the words of ``ccscope advise``."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from ccscope.advise.lab import hint_of
from ccscope.advise.path import Path as NetPath
from ccscope.advise.path import Steady, measure
from ccscope.advise.report import from_sweep, recording_text, sweep_text, window_of
from ccscope.advise.search import Hint, Trial, find, objective
from ccscope.advise.settings import rounded, scale_of, settings
from ccscope.cli import main
from ccscope.explain import explain
from ccscope.recording import Recording, Writer
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

RECORDED = sorted(Path(__file__).with_name("windows").glob("*.json"))
LOW, HIGH = 8192, 1 << 20
MSS = 1448


def _model(asked: int, knee: float, collapse: float, after: float) -> Trial:
    """A path: goodput rises to the knee; beyond the collapse cwnd swings and some is lost."""
    falls = asked > collapse
    goodput = 1e7 * min(1.0, asked / knee) * (after if falls else 1.0)
    srtt = 0.05 * max(1.0, asked / knee)
    return Trial(asked, asked, goodput, srtt, 0.2 if falls else 0.0, asked / MSS, 5 * falls)


@hypothesis_settings(deadline=None)
@given(
    st.floats(math.log(20_000), math.log(400_000)),
    st.floats(1.1, 2.5),
    st.floats(0.7, 1.0),
    st.floats(0.8, 1.2),
)
def test_the_search_finds_the_knee_with_few_runs(
    log_knee: float, room: float, after: float, wrong: float
) -> None:
    """Also when the hints are 20 % wrong, and when goodput falls beyond the collapse."""
    knee, collapse = math.exp(log_knee), math.exp(log_knee) * room
    runs = itertools.count()

    def run(asked: int) -> Trial:
        next(runs)
        return _model(asked, knee, collapse, after)

    hint = Hint(round(knee * wrong), round(collapse))
    found = find(run, LOW, HIGH, hint=lambda: hint)
    assert found.held
    assert 0.98 * knee <= found.best.window_bytes <= 1.05 * knee
    assert next(runs) == len(found.trials) <= 12
    assert found.largest_held is not None
    assert found.largest_held.window_bytes <= collapse


def test_the_search_needs_no_hint() -> None:
    found = find(lambda asked: _model(asked, 50_000, 2e6, 1.0), LOW, HIGH)
    assert 49_000 <= found.best.window_bytes <= 52_500
    assert len(found.trials) <= 16


def test_where_losses_are_random_the_search_says_so() -> None:
    def run(asked: int) -> Trial:
        return Trial(asked, asked, 1e6 * min(1, asked / 50_000), 0.05, 0.3, 10, 7)

    found = find(run, LOW, HIGH)
    assert not found.held
    text = sweep_text(found, "flows.0.recv_buffer", 0.01, [])
    assert "do not come from the queue" in text


def test_the_runs_are_bounded() -> None:
    found = find(lambda asked: _model(asked, 9_000, 2e6, 1.0), LOW, HIGH, max_runs=4)
    assert len(found.trials) == 4


def test_the_objective_prefers_a_window_that_holds() -> None:
    small = Trial(1, 30_000, 9.95e6, 0.05, 0.2, 20, 3)
    large = Trial(2, 40_000, 1e7, 0.06, 0.0, 27, 0)
    short = Trial(3, 20_000, 9e6, 0.05, 0.0, 14, 0)
    assert objective([small, large, short]) == large
    assert objective([small, short]) == small


@pytest.mark.skipif(not RECORDED, reason="no recorded sweeps")
@pytest.mark.parametrize("file", RECORDED, ids=lambda f: f.stem)
def test_the_search_on_recorded_sweeps(file: Path) -> None:
    """Sweeps that guests made (selftests/guest/windowsweep.py); between windows, interpolated."""
    data = json.loads(file.read_text())
    trials = sorted((Trial(**t) for t in data["trials"]), key=lambda t: t.asked)
    path = NetPath(**{**data["path"], "steady": Steady(**data["path"]["steady"])})
    best = objective(trials)

    def run(asked: int) -> Trial:
        logs = np.log([t.asked for t in trials])
        near = trials[int(np.abs(logs - math.log(asked)).argmin())]
        of = {
            name: float(np.interp(math.log(asked), logs, [getattr(t, name) for t in trials]))
            for name in ("window_bytes", "goodput_bps", "srtt_s", "cwnd_segs")
        }
        return Trial(asked=asked, cwnd_cv=near.cwnd_cv, losses=near.losses, **of)

    found = find(
        run,
        trials[0].asked,
        trials[-1].asked,
        hint=lambda: hint_of(trials[-1].asked, path),
        least_step=lambda: path.mss_bytes / 2,
    )
    assert best.held
    assert found.held
    assert found.best.window_bytes == pytest.approx(best.window_bytes, rel=0.10)
    assert len(found.trials) <= 12
    # One recording with the window wide open already says it.
    assert window_of(path) == pytest.approx(best.window_bytes, rel=0.15)


@hypothesis_settings(deadline=None)
@given(st.integers(1, 1 << 30))
def test_rounded_windows_can_be_offered_exactly(window: int) -> None:
    made = rounded(window)
    unit = 1 << scale_of(window)
    assert 0 <= made - window < unit
    assert made % unit == 0
    assert made >> scale_of(made) <= 65536


@pytest.mark.parametrize(
    ("window", "scale"), [(65535, 0), (65536, 1), (131071, 1), (131072, 2), (1 << 30, 14)]
)
def test_scale_is_the_kernels(window: int, scale: int) -> None:
    """ilog2(window) - 15, as tcp_select_initial_window() has it, at least 0."""
    assert scale_of(window) == scale


def test_settings_name_side_reach_and_undo() -> None:
    made = settings(70_001, MSS, "fd00::1", "fd00::2")
    assert all(way.do and way.undo for way in made)
    assert {way.where for way in made} == {"receiver", "sender"}
    route, lock = made[-2], made[-1]
    assert route.do[-1].startswith("ip -6 route add fd00::1/128 ")
    assert route.do[-1].endswith("window 70002")
    assert route.undo[0] == "ip -6 route del fd00::1/128"
    assert lock.do[1].endswith("cwnd lock 48")


def _steady() -> Steady:
    return Steady(5e5, 0.15, 60.0, 0.2, 3)


def test_a_window_stays_below_the_collapse() -> None:
    path = NetPath(MSS, 0.05, 6e5, 1e6, None, 0, 0, _steady())
    assert window_of(path) == rounded(6e5 * 0.05 + 3 * MSS)
    low = NetPath(MSS, 0.05, 6e5, 1e6, 20_000, 4, 4, _steady())
    assert window_of(low) == 20_000 - MSS
    assert "costs some goodput" in recording_text("f1", low, {})
    lossy = NetPath(MSS, 0.05, 6e5, 1e6, None, 9, 0, _steady())
    assert "no window prevents" in recording_text("f1", lossy, {})


def _sawtooth(folder: Path, *, full: bool = True) -> None:
    """100 segments of 1000 B in flight at most, 500 kB/s, 50 ms and what the queue adds."""
    times = np.arange(0.05, 40.0, 0.02)
    cwnd = 50 + (times % 10) * 5
    drops = np.arange(10.0, 40.0, 10.0)
    rows = len(times)
    names = np.full(rows, "f1", dtype=object)
    acks = {
        **{"t_s": times, "flow": names, "phase": np.full(rows, "before", dtype=object)},
        "ssthresh_is": np.full(rows, "current", dtype=object),
        **{"cwnd_segs": cwnd, "ssthresh_segs": np.full(rows, 50.0)},
        "srtt_us": np.maximum(50_000, cwnd * 1000 / 500_000 * 1e6),
        "inflight_bytes": cwnd * 1000 if full else np.full(rows, 5000.0),
        **{"una_bytes": (times * 500_000).astype(int), "snd_wnd_bytes": np.full(rows, 1e6)},
    }
    states = {
        "t_s": np.concatenate([drops, drops + 0.1]),
        "flow": np.full(6, "f1", dtype=object),
        "state": np.array(["Recovery"] * 3 + ["Open"] * 3, dtype=object),
        "cause": np.array(["sack"] * 3 + ["done"] * 3, dtype=object),
    }
    flow = {"src": "10.0.0.1", "dst": "10.0.0.2", "sport": 5001, "dport": 80, "family": 4}
    flow["mss"] = 1000
    with Writer(folder) as writer:
        writer.add("acks", acks)
        if full:
            writer.add("states", states)
        writer.finish({"duration_s": 40.0, "flows": {"f1": flow}, "sources": [], "problems": []})


def test_a_path_is_read_from_a_sawtooth(tmp_path: Path) -> None:
    _sawtooth(tmp_path / "r")
    recording = Recording.open(tmp_path / "r")
    path = measure(recording, "f1", explain(recording, "f1").evidence)
    assert path.capacity_Bps == pytest.approx(500_000, rel=0.02)
    # The least srtt is that of the shortest queue: 50 segments at 500 kB/s.
    assert path.rtt_s == pytest.approx(0.1, rel=0.02)
    assert path.collapse_bytes == pytest.approx(100_000, rel=0.02)
    assert (path.collapses, path.queued) == (3, 3)
    assert path.steady.cwnd_cv == pytest.approx(np.std(50 + np.arange(0, 50, 0.1)) / 75, rel=0.05)
    assert path.steady.losses == 2  # the first is in the warm-up


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _sawtooth(tmp_path / "r")
    assert main(["advise", str(tmp_path / "r"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)[0]
    window = data["window_bytes"]
    assert window == pytest.approx(500_000 * 0.1 + 3 * 1000, rel=0.01)
    assert data["settings"]
    assert main(["advise", str(tmp_path / "r")]) == 0
    said = capsys.readouterr().out
    assert f"Advice: a receive window of {window} bytes" in said
    assert f"ip route add 10.0.0.1/32 [via GATEWAY] dev DEVICE window {window}" in said
    assert "TCP_WINDOW_CLAMP" in said
    assert "undo: ip route del 10.0.0.1/32" in said


def test_no_advice_where_something_else_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _sawtooth(tmp_path / "r", full=False)
    assert main(["advise", str(tmp_path / "r")]) == 0
    assert "No advice" in capsys.readouterr().out
    assert main(["advise", str(tmp_path / "r"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["window_bytes"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give either a RECORDING or --sweep"),
        (["--sweep", "demo", "--low", "9000", "--high", "8000"], "--low 9000 --high 8000"),
        (["--sweep", "demo", "--tolerance", "0"], "--tolerance 0"),
        (["--sweep", "no-such-scenario"], "no-such-scenario"),
    ],
)
def test_wrong_use_is_told(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(["advise", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_sweeps_json_has_every_trial() -> None:
    found = find(lambda asked: _model(asked, 50_000, 2e5, 0.9), LOW, HIGH)
    data = from_sweep(found, settings(50_000, MSS, "SENDER", "RECEIVER"))
    assert data["runs"] == len(data["trials"])
    assert len(json.loads(json.dumps(data))["settings"]) == 5
