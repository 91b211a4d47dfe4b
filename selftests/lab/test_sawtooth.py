"""Numbers of a moving window, from made-up traces whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest
from airlab.sawtooth import drop_metrics, reductions, window_metrics
from ccscope.recording import Columns

STATE = tuple[float, str, str, str]


def acks(times: list[float], cwnd: list[float], window: int = 150_000) -> Columns:
    return {
        "t_s": np.array(times),
        "cwnd_segs": np.array(cwnd),
        "snd_wnd_bytes": np.full(len(times), window),
    }


def states(*rows: STATE) -> Columns:
    names = ("left", "state", "cause")
    made: Columns = {"t_s": np.array([row[0] for row in rows], dtype=float)}
    for place, name in enumerate(names, 1):
        made[name] = np.array([row[place] for row in rows], dtype=object)
    return made


def cut(at: float, cause: str = "local", state: str = "CWR") -> list[STATE]:
    return [(at, "Open", state, cause), (at + 0.1, state, "Open", "done")]


def test_mean_and_variation_are_over_time_not_over_acks() -> None:
    # 10 segments for 3 s (one ACK), then 20 for 1 s (many ACKs): the mean is 12.5.
    times = [0.0, 4.0, *np.linspace(7.0, 7.9, 10)]
    got = window_metrics(acks(times, [99.0, 10.0, *[20.0] * 10]), states(), 4.0, 8.0)
    settled = 2 / 3 * 10 + 1 / 3 * 20  # the steady part is from 5 to 8 s
    assert got["cwnd_steady_segs"] == pytest.approx(settled)
    assert got["cwnd_cv"] == pytest.approx(np.sqrt(2 / 9) * 10 / settled)
    assert got["cwnd_max_segs"] == 20
    assert got["offered_bytes"] == 150_000


def test_a_flat_window_does_not_vary() -> None:
    got = window_metrics(acks([0.0, 1.0, 2.0], [7.0, 7.0, 7.0]), states(), 0.0, 4.0)
    assert got["cwnd_cv"] == 0
    assert got["reductions"] == 0
    assert "sawtooth_s" not in got


def test_the_period_is_the_mean_distance_of_steady_reductions() -> None:
    rows = [row for at in (1.0, 12.0, 22.0, 34.0) for row in cut(at)]
    got = window_metrics(acks([0.0], [9.0]), states(*rows), 0.0, 40.0)
    assert got["sawtooth_s"] == pytest.approx(11.0)
    assert (got["local_events"], got["early_local_events"]) == (4, 1)
    two = window_metrics(acks([0.0], [9.0]), states(*rows[:6]), 0.0, 40.0)
    assert "sawtooth_s" not in two  # two steady reductions: one distance says nothing


def test_kinds_are_told_apart_and_timeouts_in_a_recovery_are_no_second_reduction() -> None:
    rows = [
        *cut(11.0, "sack", "Recovery"),
        (12.0, "Open", "Disorder", "disorder"),
        (12.1, "Disorder", "Recovery", "recovery"),
        (12.2, "Recovery", "Loss", "rto"),
        (12.9, "Loss", "Open", "done"),
        *cut(13.0, "rto", "Loss"),
        *cut(14.0, "ecn"),
    ]
    got = window_metrics(acks([0.0], [9.0]), states(*rows), 0.0, 20.0)
    counts = {kind: got[f"{kind}_events"] for kind in ("local", "recovery", "timeout")}
    assert counts == {"local": 0, "recovery": 2, "timeout": 1}
    assert got["reductions"] == 4
    assert len(reductions(states(*rows))) == 4


def test_what_is_outside_the_flow_does_not_count() -> None:
    got = window_metrics(acks([0.0, 30.0], [5.0, 500.0]), states(*cut(1.0), *cut(25.0)), 2.0, 20.0)
    assert got["reductions"] == 0
    assert "cwnd_max_segs" not in got


def test_drops_are_sorted_by_place_and_unknown_ones_left_out() -> None:
    stages = [(True, 3, None), (False, 4, 7), (False, None, 1)]
    assert drop_metrics(stages) == {"drops_own": 3, "drops_way": 4, "drops_air": 8}
    assert drop_metrics([(True, None, None)]) == {}
