"""Channel patterns: laws, exactness, byte layout."""

from __future__ import annotations

import itertools
import math
import struct

import numpy as np
import pytest
from airlab import patterns as pt
from hypothesis import given, settings
from hypothesis import strategies as st

FRAME = 1514


def _spec(**changes):
    base = {"rate_bps": 5_000_000, "stop_ns": 60 * 10**9}
    return pt.ChannelSpec(**{**base, **changes})


def _frames(count, length=FRAME, gap_ns=2_422_400):
    return [(i * gap_ns, length) for i in range(count)]


@pytest.mark.parametrize("ber", [1e-7, 1e-6, 4e-6, 1e-5])
@pytest.mark.parametrize("length", [66, 1514])
def test_loss_count_is_binomial(ber, length):
    spec = _spec(unit=pt.BITS, rate=ber, rate_bps=10**9, stop_ns=10**10)
    count = 10**9 // (8 * length) // 4
    lost = sum(pt.replay(pt.make_pattern(spec, 7, "air", 0), _frames(count, length, 1)).lost)
    p = pt.frame_error_probability(ber, length)
    assert abs(lost - count * p) <= 4 * math.sqrt(count * p) + 3


def test_gaps_have_the_mean_and_variance_of_a_geometric_law():
    rng = np.random.Generator(np.random.PCG64(3))
    p = 0.01
    gaps = pt.geometric_gaps(rng, p, 20_000_000).astype(float)
    q = 1 - p
    assert abs(gaps.mean() - q / p) < 4 * math.sqrt(q) / p / math.sqrt(len(gaps))
    assert gaps.var() == pytest.approx(q / p**2, rel=0.03)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-6, 1e-4), st.integers(2, 750))
def test_where_frames_are_cut_does_not_move_the_errors(seed, ber, half):
    """Two frames of L/2 meet the errors of one frame of L, at the same bits."""
    pattern = pt.make_pattern(_spec(unit=pt.BITS, rate=ber), seed, "air", 0)
    whole = pt.replay(pattern, [(i, 2 * half) for i in range(400)]).lost
    halves = pt.replay(pattern, [(i, half) for i in range(800)]).lost
    assert whole == [a or b for a, b in zip(halves[::2], halves[1::2], strict=True)]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 30_000), min_size=1, max_size=30),
    st.lists(st.integers(54, 1514), min_size=1, max_size=40),
)
def test_replay_agrees_with_marking_every_bit(gaps, lengths):
    """Against the plain reading: bad bits stand after each gap; a frame with one is lost."""
    bad = set(np.cumsum(np.array(gaps) + 1) - 1)
    pattern = pt.Pattern(pt.BITS, good=np.array([*gaps, pt.NEVER], dtype=np.uint64))
    at, expected = 0, []
    for length in lengths:
        expected.append(any(at <= bit < at + 8 * length for bit in bad))
        at += 8 * length
    result = pt.replay(pattern, [(i, n) for i, n in enumerate(lengths)])
    assert result.lost == expected
    assert result.dropped_good == sum(expected)
    assert result.exhausted == 0


def test_exact_drops_count_only_long_frames():
    spec = _spec(drops=(0, 3, 4), min_len=500)
    pattern = pt.make_pattern(spec, 1, "air", 0)
    frames = [(i, FRAME if i % 2 == 0 else 66) for i in range(14)]
    lost = pt.replay(pattern, frames).lost
    assert [i for i, gone in enumerate(lost) if gone] == [0, 6, 8]


def test_a_used_up_table_is_reported_and_drops_no_more():
    pattern = pt.Pattern(pt.PACKETS, good=np.array([1], dtype=np.uint64))
    result = pt.replay(pattern, _frames(5))
    assert result.lost == [False, True, False, False, False]
    assert result.exhausted == 4


@pytest.mark.parametrize("ber", [1e-8, 1e-6, 1e-5])
def test_tables_last_for_a_full_link(ber):
    spec = _spec(unit=pt.BITS, rate=ber, stop_ns=200 * 10**9)
    count = 5_000_000 * 200 // (8 * FRAME)
    for seed in range(3):
        result = pt.replay(pt.make_pattern(spec, seed, "air", 0), _frames(count))
        assert result.exhausted == 0


def test_seed_link_and_direction_choose_the_pattern():
    spec = _spec(unit=pt.BITS, rate=1e-6)
    first = pt.make_pattern(spec, 1, "air", 0).to_bytes()
    assert first == pt.make_pattern(spec, 1, "air", 0).to_bytes()
    others = [(2, "air", 0), (1, "sat", 0), (1, "air", 1)]
    assert all(pt.make_pattern(spec, *other).to_bytes() != first for other in others)


def test_a_longer_run_has_the_same_beginning():
    short = pt.make_pattern(_spec(unit=pt.BITS, rate=1e-6), 5, "air", 0).good
    long = pt.make_pattern(_spec(unit=pt.BITS, rate=1e-6, stop_ns=10**12), 5, "air", 0).good
    assert (long[: len(short)] == short).all()


def test_a_worse_channel_has_denser_errors():
    low = pt.make_pattern(_spec(unit=pt.BITS, rate=1e-6), 5, "air", 0).good
    high = pt.make_pattern(_spec(unit=pt.BITS, rate=4e-6), 5, "air", 0).good
    assert (high[: len(low)] <= low).all()


def test_gilbert_dwell_times():
    law = pt.Gilbert(2 * 10**9, 50 * 10**6, pt.PACKETS, 1.0)
    spec = _spec(gilbert=law, stop_ns=4000 * 10**9, rate_bps=10**5)
    windows = pt.make_pattern(spec, 3, "air", 0).windows
    lengths = [w.end_ns - w.start_ns for w in windows]
    assert np.mean(lengths) == pytest.approx(50e6, rel=0.1)
    assert len(windows) == pytest.approx(4000 / 2.05, rel=0.1)
    assert all(a.end_ns < b.start_ns for a, b in itertools.pairwise(windows))


def test_bad_state_drops_all_and_good_state_none():
    law = pt.Gilbert(10**8, 10**8, pt.PACKETS, 1.0)
    pattern = pt.make_pattern(_spec(gilbert=law), 3, "air", 0)
    result = pt.replay(pattern, _frames(20_000))
    inside = [any(w.start_ns <= t < w.end_ns for w in pattern.windows) for t, _ in _frames(20_000)]
    assert result.lost == inside
    assert (result.dropped_good, result.exhausted) == (0, 0)


def test_outages_are_exact_and_cut_bad_states():
    bad = [pt.Window(10, 100, pt.BAD), pt.Window(200, 300, pt.BAD)]
    merged = pt.merge_windows(bad, [(50, 60), (90, 210)])
    assert [(w.start_ns, w.end_ns, w.kind) for w in merged] == [
        (10, 50, pt.BAD),
        (50, 60, pt.OUTAGE),
        (60, 90, pt.BAD),
        (90, 210, pt.OUTAGE),
        (210, 300, pt.BAD),
    ]
    spec = _spec(outages=((1000, 2000),))
    pattern = pt.make_pattern(spec, 1, "air", 0)
    times = [-5, 0, 999, 1000, 1999, 2000]
    result = pt.replay(pattern, [(t, 66) for t in times])
    assert result.lost == [False, False, False, True, True, False]
    assert result.dropped_outage == 2


def test_nothing_is_lost_before_and_after_the_experiment():
    spec = _spec(unit=pt.PACKETS, rate=1.0)
    pattern = pt.make_pattern(spec, 1, "air", 0)
    result = pt.replay(pattern, [(-1, FRAME), (0, FRAME), (60 * 10**9, FRAME)])
    assert result.lost == [False, True, False]


def test_byte_layout():
    pattern = pt.Pattern(
        pt.BITS, pt.PACKETS, np.array([5, 2**40], dtype=np.uint64), np.array([7], dtype=np.uint64),
        (pt.Window(1, 2, pt.OUTAGE), pt.Window(3, 4, pt.BAD)), 100, 9,
    )  # fmt: skip
    data = pattern.to_bytes()
    assert data == (
        b"AIRCHAN1"
        + struct.pack("<6I", 1, 2, 2, 1, 2, 100)
        + struct.pack("<Q", 9)
        + struct.pack("<3Q", 5, 2**40, 7)
        + struct.pack("<QQIIQQII", 1, 2, 1, 0, 3, 4, 2, 0)
    )
    again = pt.Pattern.from_bytes(data)
    assert again.to_bytes() == data
    assert again.windows == pattern.windows


@pytest.mark.parametrize("data", [b"", b"AIRCHAN2" + bytes(40), b"AIRCHAN1" + bytes(33)])
def test_refuses_other_files(data):
    with pytest.raises(ValueError, match="channel pattern"):
        pt.Pattern.from_bytes(data)


def test_derived_seeds_fit_and_differ():
    seeds = {pt.derive_seed(1, "netem", "air-ab", k) for k in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**32 for seed in seeds)
