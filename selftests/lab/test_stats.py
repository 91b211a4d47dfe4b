"""Intervals, ratios, fairness, and the exact bounds of losses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from airlab.stats import (
    estimate,
    frame_loss,
    jain_index,
    loss_bounds,
    median,
    paired_difference,
    paired_ratio,
)
from scipy import stats as scipy_stats


def test_interval_is_students() -> None:
    made = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert made.mean == 3.0
    assert made.half == pytest.approx(2.776445 * math.sqrt(2.5 / 5), rel=1e-6)
    assert made.low == pytest.approx(3 - (made.half or 0))
    assert made.high == pytest.approx(3 + (made.half or 0))


def test_too_few_values_have_no_interval() -> None:
    assert estimate([7.0]).half is None
    assert estimate([7.0]).low is None
    assert estimate([7.0]).high is None
    assert math.isnan(estimate([]).mean)
    assert math.isnan(median([]))


def test_interval_covers_as_often_as_it_says() -> None:
    dice = np.random.default_rng(1)
    hits = 0
    for _ in range(2000):
        made = estimate(dice.normal(10, 3, 5).tolist())
        hits += abs(made.mean - 10) <= (made.half or 0)
    assert 0.935 < hits / 2000 < 0.965


def test_pairs_are_by_seed() -> None:
    of, over = {1: 2.0, 2: 6.0, 3: 9.0}, {2: 3.0, 1: 1.0, 4: 5.0}
    assert paired_ratio(of, over).mean == 2.0
    assert paired_ratio(of, over).n == 2
    assert paired_ratio(of, over).half == pytest.approx(0)
    assert paired_difference(of, over).mean == 2.0
    assert paired_ratio({1: 1.0}, {1: 0.0}).n == 0


def test_jain() -> None:
    assert jain_index([3, 3, 3]) == pytest.approx(1)
    assert jain_index([1, 0, 0, 0]) == pytest.approx(0.25)
    assert math.isnan(jain_index([]))
    assert math.isnan(jain_index([0, 0]))


def test_bounds_of_one_length_are_binomial() -> None:
    n, p = 5000, frame_loss(1514, 1e-6, 0)
    low, high = loss_bounds({1514: n}, 1e-6, 0)
    assert (low, high) == tuple(int(scipy_stats.binom.ppf(q, n, p)) for q in (0.0005, 0.9995))


def test_bounds_of_mixed_lengths_hold_in_simulation() -> None:
    groups = {1514: 3000, 590: 800, 66: 2000}
    low, high = loss_bounds(groups, 1e-5, 0.001)
    dice = np.random.default_rng(2)
    draws = [dice.binomial(n, frame_loss(le, 1e-5, 0.001), 40_000) for le, n in groups.items()]
    total = np.sum(draws, axis=0)
    outside = np.mean((total < low) | (total > high))
    assert 0.0002 < outside <= 0.0015
    assert low < total.mean() < high


def test_bounds_at_the_edges() -> None:
    assert loss_bounds({}, 1e-6, 0) == (0, 0)
    assert loss_bounds({1514: 10}, 0, 0) == (0, 0)
    assert loss_bounds({1514: 10}, 1.0, 0) == (10, 10)
    assert loss_bounds({1514: 3}, 0, 0.5) == (0, 3)
    low, high = loss_bounds({1514: 200_000}, 1e-6, 0)
    assert 2200 < low < 2406 < high < 2600


def test_frame_loss() -> None:
    assert frame_loss(1514, 1e-6, 0) == pytest.approx(1 - (1 - 1e-6) ** (8 * 1514))
    assert frame_loss(66, 0, 0.25) == 0.25
