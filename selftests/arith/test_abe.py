# SPDX-License-Identifier: GPL-2.0
"""TCP-J's arithmetic (abe.h) against exact references.

Error bounds that are tested here, and where they come from:

* eq. (8): within 1/2 byte/s (rounding to nearest), up to the saturation limit;
* eq. (9), one step: within 1/2 of a 1/256 byte/s;
* eq. (9), any number of steps: within 1/2 byte/s (the rounding of the samples, which the filter
  averages) plus 5/256 byte/s (the rounding of the steps, 1/2 unit each, summed up by 1/(1-alpha));
* target: exactly the rounded-down quotient, unless BW * RTTmin could pass 2^64.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from fractions import Fraction

import pytest
from arithharness import Harness
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

U32 = 2**32 - 1
U64 = 2**64 - 1
MAX_RATE = 2**44 - 1
Q = 256
ALPHA = 900
FALLBACK, EQ5, EQ6, EQ7, ECN = range(5)

# The harness fixture lives as long as the session, which hypothesis asks to be told.
prop = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

u32 = st.integers(0, U32)
u64 = st.integers(0, U64)
rate = st.one_of(st.integers(0, MAX_RATE), st.integers(0, 2**24))
interval = st.one_of(st.integers(1, U32), st.integers(1, 5000))
alphas = st.integers(0, 999)
windows = st.one_of(st.integers(1, U32), st.integers(1, 100))


def sample(size: int, dt_us: int) -> Fraction:
    """Eq. (8), exactly."""
    return Fraction(size * 10**6, dt_us)


def nearest(value: Fraction) -> int:
    """Round half up."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


def step(
    bw: Fraction | None, before: Fraction, now: Fraction, alpha: Fraction = Fraction(9, 10)
) -> Fraction:
    """Eq. (9), exactly; the first sample is taken as it is."""
    if bw is None:
        return now
    return alpha * bw + (1 - alpha) * (now + before) / 2


# Eq. (8)


@prop
@given(size=st.integers(0, MAX_RATE), dt_us=interval)
def test_sample_is_the_rounded_quotient(harness: Harness, size: int, dt_us: int) -> None:
    assert harness.one("s", size, dt_us) == min(nearest(sample(size, dt_us)), MAX_RATE)


@prop
@given(size=u64, dt_us=u32)
def test_sample_saturates_and_never_wraps(harness: Harness, size: int, dt_us: int) -> None:
    got = harness.one("s", size, dt_us)
    assert got == min(nearest(sample(min(size, MAX_RATE), max(dt_us, 1))), MAX_RATE)


@prop
@given(size=u64, more=u64, dt_us=interval, longer=interval)
def test_sample_is_monotone(
    harness: Harness, size: int, more: int, dt_us: int, longer: int
) -> None:
    low, high = sorted((size, more))
    short, long = sorted((dt_us, longer))
    assert harness.one("s", low, dt_us) <= harness.one("s", high, dt_us)
    assert harness.one("s", size, long) <= harness.one("s", size, short)


@pytest.mark.parametrize(
    ("size", "dt_us", "expected"),
    [
        (0, 1000, 0),
        (1448, 1000, 1_448_000),
        (65536, 1, 65_536_000_000),
        (125_000_000_000 * 120, 120_000_000, 12_500_000_000 * 10),  # 1 Tbit/s for two minutes
        (U64, 1, MAX_RATE),
        (U64, 0, MAX_RATE),
        (U64, U32, nearest(sample(MAX_RATE, U32))),
        (1, U32, 0),
    ],
)
def test_sample_extremes(harness: Harness, size: int, dt_us: int, expected: int) -> None:
    assert harness.one("s", size, dt_us) == expected


# Eq. (9)


@prop
@given(bw=st.integers(1, MAX_RATE * Q), before=rate, now=rate, alpha=alphas)
def test_filter_step(harness: Harness, bw: int, before: int, now: int, alpha: int) -> None:
    exact = step(Fraction(bw, Q), Fraction(before), Fraction(now), Fraction(alpha, 1000)) * Q
    assert abs(harness.one("f", bw, before, now, alpha) - exact) <= Fraction(1, 2)


@prop
@given(before=rate, now=rate, alpha=alphas)
def test_first_sample_is_taken_as_it_is(
    harness: Harness, before: int, now: int, alpha: int
) -> None:
    assert harness.one("f", 0, before, now, alpha) == now * Q


@prop
@given(
    bw=st.integers(1, MAX_RATE * Q),
    other=st.integers(1, MAX_RATE * Q),
    before=rate,
    now=rate,
    more=rate,
    alpha=alphas,
)
def test_filter_is_monotone_and_stays_between(
    harness: Harness, *, bw: int, other: int, before: int, now: int, more: int, alpha: int
) -> None:
    low, high = sorted((now, more))
    assert harness.one("f", bw, before, low, alpha) <= harness.one("f", bw, before, high, alpha)
    below, above = sorted((bw, other))
    assert harness.one("f", below, before, now, alpha) <= harness.one(
        "f", above, before, now, alpha
    )
    got = harness.one("f", bw, before, now, alpha)
    mean = Fraction(before + now, 2) * Q
    ends = sorted((Fraction(bw), mean))
    assert ends[0] - 1 <= got <= ends[1] + 1


@pytest.mark.parametrize("level", [1, 37, 625_000, 12_500_000_000, MAX_RATE])
@pytest.mark.parametrize("alpha", [0, 500, 900, 999])
def test_constant_rate_is_a_fixed_point(harness: Harness, level: int, alpha: int) -> None:
    bw = level * Q
    for _ in range(50):
        bw = harness.one("f", bw, level, level, alpha)
        assert bw == level * Q


def test_step_response(harness: Harness) -> None:
    """After n samples of a step the rest is 0.95 * 0.9^(n-1) of it: the first weighs 0.05."""
    low, high = 100_000, 1_000_000
    bw, before = low * Q, low
    for n in range(1, 40):
        bw = harness.one("f", bw, before, high, ALPHA)
        before = high
        rest = Fraction(high * Q - bw, (high - low) * Q)
        assert abs(rest - Fraction(95, 100) * Fraction(9, 10) ** (n - 1)) < Fraction(1, 10**7)


def run_filter(harness: Harness, steps: Iterable[tuple[int, int]], alpha: int = ALPHA) -> float:
    """Feed (bytes, dt_us) to the running filter; the largest error against eq. (9) in byte/s."""
    assert harness.one("z") == 0
    exact_bw: float | None = None
    before, worst = 0.0, 0.0
    for size, dt_us in steps:
        got = harness.one("r", size, dt_us, alpha) / Q
        now = size * 1e6 / dt_us
        exact_bw = now if exact_bw is None else 0.9 * exact_bw + 0.1 * (now + before) / 2
        before = now
        # Double precision carries 2^-53 of the rate per step and forgets at 0.1 a step.
        worst = max(worst, abs(got - exact_bw) - exact_bw * 1e-14)
    return worst


BOUND = Fraction(1, 2) + Fraction(5, Q)


@pytest.mark.parametrize("seed", range(4))
def test_long_run_against_double_precision(harness: Harness, seed: int) -> None:
    """5,000 samples over nine decades of rate: the error does not grow with time."""
    draw = random.Random(seed)
    steps = []
    for _ in range(5000):
        size = draw.choice([1, 2, 10, 45]) * draw.choice([1, 536, 1448, 65535])
        steps.append((size, int(10 ** draw.uniform(0, 6))))
    assert run_filter(harness, steps) <= BOUND


def test_slowest_rates_do_not_drift(harness: Harness) -> None:
    """About 10 byte/s: a filter that rounded down to whole bytes would lose half of it."""
    assert run_filter(harness, [(536, 53_000_000 + 17 * k) for k in range(2000)]) <= BOUND


def test_another_alpha_would_be_noticed(harness: Harness) -> None:
    """The bounds above are tight enough to fail for alpha = 0.8, 0.89 and 0.901."""
    draw = random.Random(1)
    steps = [(draw.randint(1, 10) * 1448, draw.randint(1000, 9000)) for _ in range(500)]
    assert run_filter(harness, steps) <= BOUND
    for alpha in (800, 890, 901):
        assert run_filter(harness, steps, alpha) > 100 * BOUND


def test_zero_private_area(harness: Harness) -> None:
    """What hooks find before init: no estimate, and a target that is still a window."""
    assert harness.one("z") == 0
    assert harness.one("t", 0, 0, 0, U32) == 2
    assert harness.one("f", 0, 0, 0, ALPHA) == 0


# target


@prop
@given(bw=rate, rtt=u32, mss=st.integers(1, 65536), most=u32)
def test_target(harness: Harness, bw: int, rtt: int, mss: int, most: int) -> None:
    got = harness.one("t", bw, rtt, mss, most)
    exact = bw * rtt // (mss * 10**6)
    if bw.bit_length() + rtt.bit_length() > 64:
        exact = U64 // (mss * 10**6)
    assert got == max(2, min(exact, most))


@prop
@given(bw=u64, more=u64, rtt=u32, longer=u32, mss=u32, larger=u32, most=u32)
def test_target_is_monotone_and_clamped(
    harness: Harness, *, bw: int, more: int, rtt: int, longer: int, mss: int, larger: int, most: int
) -> None:
    def target(bw: int, rtt: int, mss: int) -> int:
        return harness.one("t", bw, rtt, mss, most)

    assert 2 <= target(bw, rtt, mss) <= max(2, most)
    assert target(min(bw, more), rtt, mss) <= target(max(bw, more), rtt, mss)
    assert target(bw, min(rtt, longer), mss) <= target(bw, max(rtt, longer), mss)
    assert target(bw, rtt, max(mss, larger)) <= target(bw, rtt, min(mss, larger))


@pytest.mark.parametrize(
    ("bw", "rtt", "mss", "expected"),
    [
        (625_000, 50_000, 1448, 21),  # 5 Mbit/s, 50 ms
        (12_500_000_000, 2_000_000, 1448, 17_265_193),  # 100 Gbit/s, 2 s
        (12_500_000_000, 600_000_000, 1448, U32),  # 100 Gbit/s, ten minutes: 5.2e9 segments
        (125_000_000, 1, 65536, 2),
        (MAX_RATE, U32, 1, U32),
    ],
)
def test_target_examples(harness: Harness, bw: int, rtt: int, mss: int, expected: int) -> None:
    assert harness.one("t", bw, rtt, mss, U32) == expected


# Eq. (5), (6), (7)


@prop
@given(cwnd=windows, ssthresh=windows)
def test_slow_start_is_told_by_the_old_ssthresh(harness: Harness, cwnd: int, ssthresh: int) -> None:
    assert harness.one("c", cwnd, ssthresh) == (EQ5 if ssthresh <= cwnd else EQ6)


def test_equal_counts_as_congestion_avoidance(harness: Harness) -> None:
    assert harness.one("c", 10, 10) == EQ5


@prop
@given(target=windows, cwnd=windows)
def test_eq5(harness: Harness, target: int, cwnd: int) -> None:
    assert harness.ask("d", EQ5, target, cwnd, 0) == [target, target, target]
    low = min(target, cwnd)
    assert harness.ask("d", EQ5, target, cwnd, 1) == [low, target, low]


@prop
@given(target=windows, cwnd=windows, clamp=st.integers(0, 1))
def test_eq6(harness: Harness, target: int, cwnd: int, clamp: int) -> None:
    assert harness.ask("d", EQ6, target, cwnd, clamp) == [cwnd, target, min(target, cwnd)]


@prop
@given(target=windows, cwnd=windows, clamp=st.integers(0, 1))
def test_eq7(harness: Harness, target: int, cwnd: int, clamp: int) -> None:
    assert harness.ask("d", EQ7, target, cwnd, clamp) == [1, target, target]


@prop
@given(target=windows, cwnd=windows, clamp=st.integers(0, 1))
def test_ecn_never_raises(harness: Harness, target: int, cwnd: int, clamp: int) -> None:
    low = min(target, cwnd)
    assert harness.ask("d", ECN, target, cwnd, clamp) == [low, low, low]
