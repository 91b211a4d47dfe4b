# SPDX-License-Identifier: GPL-2.0
"""ImTCP's arithmetic (imtcp_math.h) and the filters (afilter.h) against Python references."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from fractions import Fraction

import pytest
from airlab.afilter import filtered
from arithharness import Harness
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imtcpreference import BITS, both, either, fit_kbps, flat, trend_of

MAX_KBPS = 10**8
NONE, EWMA, ROBUST = range(3)

prop = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
rates = st.one_of(st.integers(1, MAX_KBPS), st.integers(100, 10**6))


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int]:
    low, high = sorted((draw(rates), draw(rates)))
    return low, high


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Departures and arrivals of 2 to 16 packets in ns; delays move both ways."""
    n = draw(st.integers(2, 16))
    sent, acked, out = 0, draw(st.integers(0, 10**9)), []
    for _ in range(n):
        out.append((sent, acked))
        sent += draw(st.one_of(st.integers(0, 10**6), st.integers(0, 10**9)))
        acked += draw(st.one_of(st.integers(0, 10**6), st.integers(0, 10**9)))
    return out


# Ranges and spacing


def test_the_worked_example_of_spacing(imtcp: Harness) -> None:
    """k = 4, (Bl, Bu) = (20, 100) Mbit/s, N = 5: stream 1 sends at 85, 90, 95, 100 Mbit/s."""
    assert imtcp.ask("S", 20_000, 100_000, 4, 1) == [80_000, 100_000]
    sent = [imtcp.one("J", 80_000, 100_000, 5, j) for j in range(2, 6)]
    assert sent == [85_000, 90_000, 95_000, 100_000]
    gaps_us = [imtcp.one("G", 12_000, rate) / 1000 for rate in sent]
    assert gaps_us == pytest.approx([141.2, 133.3, 126.3, 120.0], abs=0.05)


@prop
@given(r=ranges(), k=st.integers(2, 8))
def test_subranges_tile_the_range(imtcp: Harness, r: tuple[int, int], k: int) -> None:
    tiles = [imtcp.ask("S", *r, k, i) for i in range(1, k + 1)]
    assert tiles[0][1] == r[1] and tiles[-1][0] == r[0]
    for higher, lower in itertools.pairwise(tiles):
        assert higher[0] == lower[1]
    for i, (low, high) in enumerate(tiles, 1):
        width = Fraction(r[1] - r[0], k)
        assert abs(high - (r[1] - width * (i - 1))) < 1 and abs(low - (r[1] - width * i)) < 1


@prop
@given(r=ranges(), n=st.integers(4, 16))
def test_rates_rise_to_the_top_of_the_subrange(imtcp: Harness, r: tuple[int, int], n: int) -> None:
    sent = [imtcp.one("J", *r, n, j) for j in range(2, n + 1)]
    assert sent == sorted(sent) and sent[-1] == r[1]
    for j, rate in enumerate(sent, 2):
        assert abs(rate - (r[0] + Fraction((r[1] - r[0]) * (j - 1), n - 1))) < 1


@prop
@given(bits=st.integers(1, 2**20), rate=rates)
def test_gaps_and_rates_are_inverse(imtcp: Harness, bits: int, rate: int) -> None:
    gap = imtcp.one("G", bits, rate)
    assert abs(gap - Fraction(bits * 10**6, rate)) <= Fraction(1, 2)
    if gap:
        assert imtcp.one("R", bits, gap) == min(max(bits * 10**6 // gap, 1), MAX_KBPS)


def test_the_initial_range(imtcp: Harness) -> None:
    """Nine packets in 1.09 ms at 100 Mbit/s: (A0/2, A0)."""
    assert imtcp.ask("I", 9 * BITS, 9 * BITS * 10) == [50_000, 100_000]


@prop
@given(r=ranges(), floor=rates, ceil=rates, width=rates)
def test_limits_hold(imtcp: Harness, r: tuple[int, int], floor: int, ceil: int, width: int) -> None:
    low, high = imtcp.ask("L", *r, floor, ceil, width)
    top = max(ceil, floor + 1)
    assert floor <= low < high <= top
    assert high - low >= min(width, top - floor)
    if floor <= r[0] and r[1] <= top and r[1] - r[0] >= max(width, 1):
        assert (low, high) == r


def test_widening_by_half_towards_the_change(imtcp: Harness) -> None:
    assert imtcp.ask("W", 40_000, 60_000, 1) == [40_000, 70_000]
    assert imtcp.ask("W", 40_000, 60_000, 0) == [30_000, 60_000]
    assert imtcp.ask("W", 100, 1000, 0) == [0, 1000]
    assert imtcp.ask("W", 1, MAX_KBPS, 1)[1] == MAX_KBPS


# Trend


@prop
@given(pairs=streams())
def test_trend(imtcp: Harness, pairs: list[tuple[int, int]]) -> None:
    steps, pct, pdt, growth, *trends = imtcp.ask("T", len(pairs), *flat(pairs))
    want_pct, want_pdt, want_growth = trend_of(pairs)
    assert steps == len(pairs) - 1 and growth == want_growth
    assert pct == math.floor(want_pct * 1000)
    assert pdt == math.trunc(want_pdt * 1000)
    assert trends == [either(pct, pdt), both(pct, pdt)]


@prop
@given(growth=st.integers(-(2**36), 2**36), rate=rates)
def test_net_growth(imtcp: Harness, growth: int, rate: int) -> None:
    packet = imtcp.one("G", BITS, rate)
    want = 1 if growth > packet / 2 else -1 if growth < packet / 4 else 0
    assert imtcp.one("N", growth, BITS, rate) == want


def test_a_sawtooth_fools_pct_and_not_net_growth(imtcp: Harness) -> None:
    """Full-size cross packets: one packet up, four small steps down, and up in all."""
    delays = [0]
    for i in range(1, 10):
        delays.append(delays[-1] + (121_000 if i % 5 == 1 else -14_000))
    pairs = [(i * 200_000, i * 200_000 + 10**7 + d) for i, d in enumerate(delays)]
    _, pct, _, growth, _, _ = imtcp.ask("T", 10, *flat(pairs))
    assert pct < 300 and growth > 121_000
    assert imtcp.one("N", growth, BITS, 100_000) == 1


# Choice


def _choice(trend: Sequence[int]) -> int:
    scores = [sum(trend[:a]) - sum(trend[a:]) for a in range(len(trend) + 1)]
    return scores.index(max(scores))


@prop
@given(trend=st.lists(st.integers(-1, 1), min_size=2, max_size=8), falls=st.booleans())
def test_choice(imtcp: Harness, trend: list[int], falls: bool) -> None:
    got = imtcp.one("C", int(falls), *trend)
    below = falls and all(t == 1 for t in trend)
    assert got == (len(trend) + 1 if below else _choice(trend))


@pytest.mark.parametrize(
    ("trend", "falls", "a"),
    [
        ([-1, -1, -1, -1], False, 0),
        ([1, -1, -1, -1], False, 1),
        ([1, 1, -1, -1], False, 2),
        ([1, 1, 1, 1], False, 4),
        ([1, 1, 1, 1], True, 5),
        ([0, 0, 0, 0], True, 0),
        ([1, -1, 1, -1], False, 1),
    ],
)
def test_end_cases_of_the_choice(imtcp: Harness, trend: list[int], falls: bool, a: int) -> None:
    assert imtcp.one("C", int(falls), *trend) == a


def test_falling_starts_at_nine_tenths(imtcp: Harness) -> None:
    def stream(stretch: float) -> list[int]:
        return flat([(i * 100_000, int(10**7 + i * 100_000 * stretch)) for i in range(10)])

    assert imtcp.one("F", 10, *stream(1.10)) == 0
    assert imtcp.one("F", 10, *stream(1.13)) == 1


# Estimates


@pytest.mark.parametrize("avail", [86_000, 90_000, 94_000])
def test_the_fit_finds_the_knee(imtcp: Harness, avail: int) -> None:
    """Above A the arrival rate is B C / (B + X): the noiseless fluid case."""
    capacity, pairs, s, r = 200_000, [(0, 10**7)], 0, 10**7
    for j in range(2, 17):
        rate = imtcp.one("J", 80_000, 100_000, 16, j)
        s += round(BITS * 1e6 / rate)
        arrival = rate if rate <= avail else rate * capacity / (rate + capacity - avail)
        r += round(BITS * 1e6 / arrival)
        pairs.append((s, r))
    got = imtcp.one("X", BITS, len(pairs), *flat(pairs))
    assert abs(got - avail) < 0.03 * avail
    assert abs(got - fit_kbps(pairs, BITS)) < 0.02 * avail


def test_the_fit_agrees_with_floating_point_on_noisy_streams(imtcp: Harness) -> None:
    dice = random.Random(5)
    same = 0
    for _ in range(200):
        s, r, pairs = 0, 10**7, [(0, 10**7)]
        for _ in range(9):
            s += dice.randint(100_000, 300_000)
            r += dice.randint(110_000, 300_000)
            pairs.append((s, r))
        # Rates are rounded to 1/2047 of the largest, which decides close splits otherwise.
        same += abs(imtcp.one("X", BITS, 10, *flat(pairs)) - fit_kbps(pairs, BITS)) <= 1
    assert same >= 190


def _growth(bits: int, sent: int, busy: bool, avail: int, capacity: int) -> Fraction:
    over = Fraction(bits * 10**6 - avail * sent, capacity)
    return over if busy else max(over, Fraction(0))


@prop
@given(
    capacity=st.integers(1000, 10**6),
    share=st.integers(2, 98),
    scale=st.lists(st.integers(30, 200), min_size=1, max_size=8),
    busy=st.booleans(),
)
def test_balance_recovers_a_from_noiseless_streams(
    imtcp: Harness, capacity: int, share: int, scale: list[int], busy: bool
) -> None:
    avail = capacity * share // 100
    loads: list[int] = []
    grew = False
    for percent in scale:
        bits = 9 * BITS
        sent = bits * 10**6 * 100 // (avail * percent)
        growth = _growth(bits, sent, busy, avail, capacity)
        grew |= growth > 100
        loads += [bits, sent, int(growth), int(busy)]
    got = imtcp.one("B", capacity, len(scale), *loads)
    if busy or grew:
        assert abs(got - avail) <= max(2, 0.01 * avail)
    else:
        assert got > avail * 0.99


def test_balance_knows_when_nothing_grew(imtcp: Harness) -> None:
    assert imtcp.one("B", 100_000, 2, 9 * BITS, 10**7, 0, 0, 9 * BITS, 10**7, -5, 0) == 100_001


@prop
@given(
    capacity=rates,
    loads=st.lists(
        st.tuples(
            st.integers(0, 2**24 - 1),
            st.integers(0, 2**34),
            st.integers(-(2**38), 2**38),
            st.integers(0, 1),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_balance_of_anything_is_a_rate(
    imtcp: Harness, capacity: int, loads: list[tuple[int, int, int, int]]
) -> None:
    values = [v for load in loads for v in load]
    assert 1 <= imtcp.one("B", capacity, len(loads), *values) <= capacity + 1


# Results and ranges


@prop
@given(results=st.lists(st.integers(1, MAX_KBPS), min_size=1, max_size=200), width=rates)
def test_interval_and_next_range(imtcp: Harness, results: list[int], width: int) -> None:
    count, mean_q8, half, low, high = imtcp.ask("Q", width, *results)
    assert count == len(results)
    mean = statistics.fmean(results)
    assert abs(mean_q8 / 256 - mean) <= len(results) / 256 + 1e-6 * mean
    want = 0.0
    if count > 1:
        want = 1.96 * statistics.stdev(results) / math.sqrt(count)
    assert abs(half - want) <= 0.002 * want + 3
    reach = max(half, width // 2)
    assert low == max(results[-1] - reach, 0)
    assert high == min(max(results[-1] + reach, 1), MAX_KBPS)


@pytest.mark.parametrize("seed", range(10))
def test_endless_results_never_wrap(imtcp: Harness, seed: int) -> None:
    dice = random.Random(seed)
    low = dice.choice([1, MAX_KBPS // 2, MAX_KBPS - 5])
    results = [dice.randint(low, MAX_KBPS) for _ in range(700)]
    count, mean_q8, half, _, _ = imtcp.ask("Q", 1000, *results)
    assert count == 256
    assert min(results) <= mean_q8 / 256 + 1 and mean_q8 / 256 <= max(results) + 1
    assert half <= MAX_KBPS


# Capacity


@pytest.mark.parametrize("load", [20, 50, 80])
@pytest.mark.parametrize("speed", [3, 10])
def test_capacity_from_busy_trains(imtcp: Harness, load: int, speed: int) -> None:
    """T = (M + (C - A) delta) / C, inverted."""
    capacity = 100_000
    avail = capacity * (100 - load) // 100
    bits = 9 * BITS
    sent = bits * 10**6 // (capacity * speed)
    acked = (bits * 10**6 + (capacity - avail) * sent) // capacity
    values = [bits, sent, acked] * 16
    assert imtcp.one("P", avail, 16, *values) == pytest.approx(capacity, rel=1e-4)
    wrong = imtcp.one("P", avail * 12 // 10, 16, *values)
    assert wrong == pytest.approx(capacity, rel=0.35 if speed == 3 else 0.1)


def test_capacity_that_trains_do_not_tell(imtcp: Harness) -> None:
    assert imtcp.one("P", 50_000, 0) == 0
    assert imtcp.one("P", 50_000, 1, BITS, 10**6, 10**6) == 0
    assert imtcp.one("P", MAX_KBPS, 1, 100, 2**32 - 1, 2**32 - 1) == 0
    assert imtcp.one("P", 0, 1, BITS, 10**6, 10**6) == BITS


@pytest.mark.parametrize("met", [0, 3, 7])
def test_capacity_from_trains_that_met_nothing(imtcp: Harness, met: int) -> None:
    """Whatever A is, and whatever the others met; the fluid formula has no say."""
    dice = random.Random(met)
    trains = []
    for i in range(16):
        between = dice.randint(300, 1500) * 8 if i % 2 and i // 2 < met else 0
        trains.append((3 * BITS, 39_000, (3 * BITS + between) * 10))
    assert imtcp.ask("A", 16, *[v for t in trains for v in t]) == [100_000, 16 - met]


def test_trains_that_met_something_are_no_majority(imtcp: Harness) -> None:
    trains = [(3 * BITS, 39_000, 3 * BITS * 10 + 40_000 * i) for i in range(16)]
    assert imtcp.ask("A", 16, *[v for t in trains for v in t])[0] == 0


def test_trains_sent_slowly_or_few_do_not_tell(imtcp: Harness) -> None:
    slow, fast = [3 * BITS, 100_000, 363_360], [3 * BITS, 39_000, 363_360]
    assert imtcp.ask("A", 16, *slow * 16)[0] == 0
    assert imtcp.ask("A", 3, *fast * 3)[0] == 0
    assert imtcp.ask("A", 4, *fast * 4)[0] == 100_000


# Arrivals and holding


def test_a_delayed_ack_timer_is_left_out(imtcp: Harness) -> None:
    points = [(i, i * 200_000, i * 200_000 + 10**7) for i in range(8)]
    points[4] = (4, 800_000, 800_000 + 50_000_000)
    kept = imtcp.ask("K", BITS, 100_000, 8, *[v for p in points for v in p])
    assert kept == [0, 1, 2, 3, 5, 6, 7]


def test_compressed_acks_leave_the_last(imtcp: Harness) -> None:
    points = [(i, i * 200_000, i * 200_000 + 10**7) for i in range(8)]
    points[2] = (2, 400_000, points[3][2] - 1000)
    kept = imtcp.ask("K", BITS, 100_000, 8, *[v for p in points for v in p])
    assert kept == [0, 1, 3, 4, 5, 6, 7]
    assert len(imtcp.ask("K", BITS, 0, 8, *[v for p in points for v in p])) == 8


@prop
@given(rttvar=st.integers(0, 2**32 - 1), mdev=st.integers(0, 2**32 - 1), srtt=st.integers(0, 2**29))
def test_hold_is_bounded(imtcp: Harness, rttvar: int, mdev: int, srtt: int) -> None:
    assert imtcp.one("H", rttvar, mdev, srtt) == min(max(rttvar - mdev // 2, 0), srtt // 2)


@prop
@given(n=st.integers(1, 16), flow=rates, stream=rates)
def test_needed_window(imtcp: Harness, n: int, flow: int, stream: int) -> None:
    got = imtcp.one("D", n, flow, stream)
    assert 1 <= got <= n
    if flow < stream:
        assert got - 1 < n * (1 - flow / stream) + 1e-9 <= got + 1e-6


# Filters

CAPACITY = 100_000


def test_no_filter_is_no_filter(imtcp: Harness) -> None:
    assert imtcp.ask("f", NONE, CAPACITY, 5, 7, 100, 3) == [5, 7, 100, 3]


@prop
@given(values=st.lists(rates, min_size=2, max_size=60))
def test_ewma(imtcp: Harness, values: list[int]) -> None:
    got = imtcp.ask("f", EWMA, CAPACITY, *values)
    want = float(values[0])
    for value, seen in zip(values[1:], got[1:], strict=True):
        want += (value - want) / 8
        assert abs(seen - want) <= 2


@prop
@given(kind=st.sampled_from([EWMA, ROBUST]), c=rates, a=rates, b=rates)
def test_a_constant_is_reached(imtcp: Harness, kind: int, c: int, a: int, b: int) -> None:
    got = imtcp.ask("f", kind, c, a, *[b] * 300)
    assert abs(got[-1] - b) <= 1


@prop
@given(
    kind=st.sampled_from([EWMA, ROBUST]), c=rates, values=st.lists(rates, min_size=1, max_size=80)
)
def test_the_laboratory_filters_alike(imtcp: Harness, kind: int, c: int, values: list[int]) -> None:
    """airlab compares filters on the results of one run with a copy of this arithmetic."""
    name = ("none", "ewma", "robust")[kind]
    assert imtcp.ask("f", kind, c, *values) == filtered(values, name, [c] * len(values))


def test_robust_follows_a_step_within_three_results(imtcp: Harness) -> None:
    dice = random.Random(1)
    noise = [round(dice.gauss(80_000, 6_000)) for _ in range(100)]
    after = [round(dice.gauss(30_000, 4_000)) for _ in range(6)]
    robust = imtcp.ask("f", ROBUST, CAPACITY, *noise, *after)
    ewma = imtcp.ask("f", EWMA, CAPACITY, *noise, *after)
    assert abs(robust[102] - 30_000) < 8_000
    assert ewma[102] > 60_000, "the plain filter would have done as well"


def test_results_that_are_wide_do_not_hide_a_step(imtcp: Harness) -> None:
    """Noise of half of A, then A doubles and more: with D left to itself it is no outlier."""
    wide = [5_000, 35_000] * 50
    robust = imtcp.ask("f", ROBUST, CAPACITY, *wide, 60_000, 65_000, 55_000)
    assert abs(robust[99] - 20_000) < 5_000
    assert robust[-1] == 60_000


def test_the_first_results_after_a_step_do_not_hide_it(imtcp: Harness) -> None:
    """A step of four deviations: an outlier that entered D at once would hide the next."""
    quiet = [50_000 + 2_000 * (-1) ** i for i in range(100)]
    robust = imtcp.ask("f", ROBUST, CAPACITY, *quiet, *[59_000] * 3)
    assert robust[-2] < 52_000
    assert robust[-1] == 59_000


def test_robust_is_as_smooth_as_ewma_and_minds_outliers_less(imtcp: Harness) -> None:
    dice = random.Random(2)
    clean = [round(dice.gauss(50_000, 5_000)) for _ in range(2000)]
    spoilt = [200_000 if i % 25 == 0 else v for i, v in enumerate(clean, 1)]

    def error(kind: int, values: list[int]) -> float:
        got = imtcp.ask("f", kind, CAPACITY, *values)[50:]
        return statistics.fmean(abs(v - 50_000) for v in got)

    assert error(ROBUST, clean) < 1.15 * error(EWMA, clean)
    assert error(ROBUST, spoilt) < 0.5 * error(EWMA, spoilt)


@prop
@given(c=rates, values=st.lists(st.integers(1, MAX_KBPS), min_size=1, max_size=200))
def test_robust_stays_inside_what_it_was_given(imtcp: Harness, c: int, values: list[int]) -> None:
    got = imtcp.ask("f", ROBUST, c, *values)
    assert all(min(values) - 1 <= v <= max(values) + 1 for v in got)
