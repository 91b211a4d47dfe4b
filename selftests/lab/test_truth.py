"""What is left of a bottleneck, and the numbers that are judged against it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from airlab import pictures
from airlab.afilter import filtered
from airlab.figure import Picture
from airlab.model import CellPlan, CrossPlan
from airlab.truth import (
    PAYLOAD,
    Stretch,
    Truth,
    flow_metrics,
    measurement_metrics,
    truth_of,
    udp_metrics,
)
from conftest_results import RATE_BPS, make_plan

TRUTH = Truth(10e6, (Stretch(0, 4, 8e6), Stretch(4, 8, 2e6)))


def _plan(*cross: tuple[str, int, int, int]) -> CellPlan:
    rows = [
        CrossPlan(f"x{i}", "y", dst, rate, start * 1_000_000, stop * 1_000_000)
        for i, (dst, rate, start, stop) in enumerate(cross, 1)
    ]
    return replace(make_plan(), cross=tuple(rows))


def test_truth_is_the_rate_less_the_cross_traffic() -> None:
    found = truth_of(_plan(("d", 1_000_000, 0, 3), ("d", 2_000_000, 2, 8), ("r", 9, 0, 8)))
    assert found is not None
    flow, truth = found
    assert flow.label == "f1"
    assert truth.capacity_bps == RATE_BPS
    edges = [(s.start, s.stop, RATE_BPS - s.avail_bps) for s in truth.stretches]
    assert edges == [(0, 2, 1e6), (2, 3, 3e6), (3, 8, 2e6)]


def test_truth_is_not_known_without_udp_or_beside_other_flows() -> None:
    assert truth_of(make_plan()) is None
    plan = _plan(("d", 1_000_000, 0, 8))
    assert truth_of(replace(plan, flows=(*plan.flows, plan.flows[0]))) is None
    assert truth_of(replace(plan, probes=())) is None


def test_cross_traffic_survives_the_plan_file_and_leaves_other_keys_alone() -> None:
    plan = _plan(("d", 1_000_000, 0, 8))
    assert CellPlan.from_json(plan.to_json()).cross == plan.cross
    assert plan.key != make_plan().key
    assert "cross" not in make_plan().to_json()


def _results(rows: list[tuple[float, int]], capacity: int = 10_200) -> dict[str, np.ndarray]:
    times, avail = zip(*rows, strict=True)
    count = len(rows)
    return {
        "t_s": np.array(times),
        "avail_kbps": np.array(avail),
        "capacity_kbps": np.full(count, capacity),
        "srtt_us": np.full(count, 100_000),
    }


def test_errors_of_results_are_of_the_settled_part() -> None:
    rows = [(0.5, 1), (1.5, 8800), (1.7, 7200), (2.0, 8800), (3.0, 8800)]
    made = measurement_metrics(_results(rows), TRUTH)
    assert made["results_1"] == 4
    assert made["avail_bias_1"] == pytest.approx(0.05)
    assert made["avail_error_1"] == pytest.approx(0.1)
    assert made["capacity_bias_1"] == pytest.approx(0.02)
    assert made["result_rtts_1"] == pytest.approx(3.0)
    assert made["results_2"] == 0
    assert "avail_bias_2" not in made


def test_reaction_to_a_step_of_results_and_filters() -> None:
    rows = [(t / 10, 8000) for t in range(1, 40)] + [(4 + t / 10, 2000) for t in range(1, 40)]
    made = measurement_metrics(_results(rows), TRUTH)
    assert made["step_s_2"] == pytest.approx(0.1)
    assert made["step_robust_s_2"] == pytest.approx(0.3), "its third outlier"
    assert made["step_ewma_s_2"] > 1.0
    assert "step_s_1" not in made
    assert made["step_s"] == made["step_s_2"]


def test_a_change_that_is_not_followed_has_no_time() -> None:
    made = measurement_metrics(_results([(t / 10, 8000) for t in range(1, 80)]), TRUTH)
    assert "step_s_2" not in made
    assert made["avail_bias_2"] == pytest.approx(3.0)


def test_how_a_flow_used_what_was_left() -> None:
    times = np.arange(0, 8, 0.1)
    rate = np.where(times < 4, 8e6, 1e6) * PAYLOAD
    goodput = {"t_s": times, "bytes": rate / 8 / 10}
    resent = np.array([0.5, 2.0, 6.0, 6.1])
    acks = {"t_s": times, "srtt_us": np.where(times < 4, 20_000, 30_000)}
    made = flow_metrics(goodput, resent, acks, TRUTH)
    assert made["avail_share_1"] == pytest.approx(1.0)
    assert made["avail_share_2"] == pytest.approx(0.5)
    assert made["losses_per_min_1"] == pytest.approx(20)
    assert made["losses_per_min_2"] == pytest.approx(40)
    assert made["losses_per_min"] == pytest.approx(30)
    assert made["goodput_cv_1"] == pytest.approx(0, abs=0.05)
    assert made["rtt_ms_2"] == pytest.approx(30)


def test_uneven_goodput_has_variation() -> None:
    times = np.arange(0.05, 8, 0.1)
    waves = np.where(np.floor(times) % 2 == 0, 2.0, 1.0)
    empty = np.zeros(0)
    made = flow_metrics({"t_s": times, "bytes": waves}, empty, {"t_s": empty}, TRUTH)
    assert made["goodput_cv_1"] == pytest.approx(np.std([1, 2, 1]) / np.mean([1, 2, 1]), rel=0.01)
    assert "rtt_ms_1" not in made


def test_udp_loss() -> None:
    made = udp_metrics([(100, 90), (300, 300), (0, 0)])
    assert made == pytest.approx({"udp_loss_1": 0.1, "udp_loss_2": 0, "udp_loss": 0.025})
    assert udp_metrics([]) == {}


def test_no_filter_changes_nothing() -> None:
    assert filtered([5, 7, 100, 3], "none", [9] * 4) == [5, 7, 100, 3]


def _drawn(kind: str, tables: dict[str, dict[str, np.ndarray]]) -> tuple[list[str], list[float]]:
    """Names in the legend, and the heights of the true values."""
    picture = Picture.model_validate({"name": "p", "title": "P", "kind": kind, "of": "symbiosis"})
    canvas = pictures._canvas(picture, [pictures.Run("symbiosis", tables, 0, 8, TRUTH)])
    (axes,) = canvas.axes
    heights = [float(c.get_segments()[0][0][1]) for c in axes.collections]
    return axes.get_legend_handles_labels()[1], heights


def test_a_picture_of_a_and_c_beside_the_truth() -> None:
    names, heights = _drawn("available", {"imtcp_imtcp_result": _results([(1, 8100), (5, 2100)])})
    assert sorted(names) == ["A in truth", "A measured", "C in truth", "C measured"]
    assert heights == [8.0, 2.0]


def test_a_picture_of_the_window_beside_its_equilibrium() -> None:
    steps = {
        "t_s": np.array([1.0, 5.0]),
        "after_q32": np.array([10, 20]) * 2**32,
        "goal_q32": np.array([20, 20]) * 2**32,
        "tau_us": np.array([12_112, 12_500]),
        "gamma_permille": np.array([900, 900]),
        "wire_bytes": np.array([1514, 1514]),
    }
    names, heights = _drawn("equilibrium", {"symbiosis_symbiosis_step": steps})
    assert names == ["equilibrium as measured", "window", "equilibrium in truth"]
    assert heights == pytest.approx([8.2, 2.8]), "one segment for each Mbit/s"


def test_goodput_is_drawn_beside_what_was_left() -> None:
    goodput = {"t_s": np.arange(0.0, 8.0), "bytes": np.full(8, 1000)}
    names, heights = _drawn("throughput", {"goodput": goodput})
    assert "left by UDP" in names
    assert heights[-2:] == pytest.approx([8 * PAYLOAD, 2 * PAYLOAD])
