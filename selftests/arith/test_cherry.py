# SPDX-License-Identifier: GPL-2.0
"""The arithmetic of TCP-Cherry (cherry_math.h) against the paper and exact references.

The paper's pseudo-code (figures 1 to 3 and 6 to 8) is written down here once more, in Python and
in the paper's own names; the two are compared over random and extreme operands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import pytest
from arithharness import Harness
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

U32 = 2**32 - 1
MAXCWND_MAX = 8192
CA, READY, FFS, NEW_FFS, FAR = range(5)
FLIGHT, TIMEOUT, RECOVERY, DONE = range(4)
LEARNT, OPEN, BLIND = range(3)

prop = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)

u32 = st.integers(0, U32)
maxcwnds = st.integers(4, MAXCWND_MAX)
windows = st.one_of(st.integers(1, U32), st.integers(1, 1000))
rtts = st.one_of(st.integers(1, U32), st.integers(1, 2_000_000))
few = st.one_of(st.integers(0, 3000), u32)


# Figures 1, 2, 6 and 7 ------------------------------------------------------------------------


class Paper:
    """NewSelect_Data4Supple() as figure 6 prints it; without New FFS it is figure 1."""

    def __init__(self, thresh: int, sigma: int, maxcwnd: int) -> None:
        self.maxcwnd = maxcwnd
        self.i = 0
        self.skip_data = thresh + sigma + 1
        self.seqno4supple = self.skip_data

    def next(self, new_ffs: bool) -> int:
        if new_ffs:
            self.i += 1
            if self.i > self.maxcwnd:
                self.i = 0
                self.seqno4supple = self.skip_data
            else:
                self.seqno4supple += 1
        else:
            self.seqno4supple += 1
        return self.seqno4supple


def chosen(cherry: Harness, thresh: int, sigma: int, limit: int, cycling: bool) -> Iterator[int]:
    """The supplements in the order in which the module's selection names them."""
    yield cherry.one("b", thresh, sigma, limit)
    while True:
        yield cherry.ask("x", int(cycling))[0]


@prop
@given(thresh=u32, sigma=st.integers(0, 2 * MAXCWND_MAX), limit=st.integers(1, 40),
       cycling=st.booleans())  # fmt: skip
def test_selection_is_the_papers(
    cherry: Harness, thresh: int, sigma: int, limit: int, cycling: bool
) -> None:
    paper = Paper(thresh, sigma, limit)
    ours = chosen(cherry, thresh, sigma, limit, cycling)
    assert next(ours) == paper.seqno4supple % 2**32
    for _ in range(2 * limit + 5):
        assert next(ours) == paper.next(cycling) % 2**32


def test_figure_4_duplicates_are_what_its_gap_leads_to(cherry: Harness) -> None:
    """cwnd 40, maxcwnd 50, timeout at segment 1004; the figure has 1066 to 1102 sent twice."""
    sigma = cherry.one("g", FFS, 50, 1, 550_000, 550_000)
    assert sigma == 50
    ours = chosen(cherry, 1004, sigma, 50, cycling=False)
    supplements = [next(ours) for _ in range(49)]
    assert (supplements[0], supplements[-1]) == (1055, 1103)
    assert set(range(1066, 1103)) <= set(supplements)


def test_figure_5_skips_twice_as_far(cherry: Harness) -> None:
    sigma = cherry.one("g", NEW_FFS, 50, 1, 550_000, 550_000)
    assert sigma == 100
    ours = chosen(cherry, 1004, sigma, 50, cycling=True)
    cycle = [next(ours) for _ in range(51)]
    assert cycle == list(range(1105, 1156))
    assert next(ours) == 1105, "the cycle does not begin again"


def test_a_cycle_takes_longer_than_a_round_trip(cherry: Harness) -> None:
    """Else the ACK that ends New FFS would come after the first supplement was sent again."""
    rtt_us, maxcwnd = 550_000, 512
    ours = chosen(cherry, 0, 2 * maxcwnd, maxcwnd, cycling=True)
    first = next(ours)
    length = next(n for n, seg in enumerate(ours, 1) if seg == first)
    assert length * Fraction(rtt_us, maxcwnd) > rtt_us


@prop
@given(maxcwnd=maxcwnds, cwnd=windows, max_rtt=rtts, rtt=rtts)
def test_sigma(cherry: Harness, maxcwnd: int, cwnd: int, max_rtt: int, rtt: int) -> None:
    assert cherry.one("g", FFS, maxcwnd, cwnd, max_rtt, rtt) == maxcwnd
    assert cherry.one("g", NEW_FFS, maxcwnd, cwnd, max_rtt, rtt) == 2 * maxcwnd
    far = math.ceil(Fraction(cwnd * max(max_rtt, rtt), rtt))
    assert cherry.one("g", FAR, maxcwnd, cwnd, max_rtt, rtt) == min(far, 2 * maxcwnd)
    assert cherry.one("g", CA, maxcwnd, cwnd, max_rtt, rtt) == 0


def test_sigma_at_the_edges(cherry: Harness) -> None:
    assert cherry.one("g", FAR, 512, 256, 0, 0) == 256
    assert cherry.one("g", FAR, U32, U32, U32, 1) == 2 * MAXCWND_MAX
    assert cherry.one("g", FAR, 512, 100, 825_000, 550_000) == 150


# Phases ---------------------------------------------------------------------------------------


def test_the_first_timeout_is_fast_forward_start(cherry: Harness) -> None:
    for phase in range(5):
        for plus in (0, 1):
            assert cherry.one("n", phase, TIMEOUT, plus, 1) == FFS


def test_later_timeouts_tell_cherry_from_cherry_plus(cherry: Harness) -> None:
    for phase in range(5):
        for number in (2, 3, U32):
            assert cherry.one("n", phase, TIMEOUT, 0, number) == CA
            assert cherry.one("n", phase, TIMEOUT, 1, number) == NEW_FFS


def test_other_events(cherry: Harness) -> None:
    assert cherry.one("n", READY, FLIGHT, 0, 0) == FFS
    assert cherry.one("n", CA, FLIGHT, 1, 0) == CA
    assert [cherry.one("n", p, RECOVERY, 1, 0) for p in range(5)] == [FAR, FAR, FFS, NEW_FFS, FAR]
    assert [cherry.one("n", p, DONE, 1, 0) for p in range(5)] == [CA] * 5


# tau ------------------------------------------------------------------------------------------


def test_tau_of_the_papers_scenario(cherry: Harness) -> None:
    assert cherry.one("t", 550_000, 512) == 1_074_218


@prop
@given(rtt=u32, count=u32)
def test_tau_is_the_quotient(cherry: Harness, rtt: int, count: int) -> None:
    assert cherry.one("t", rtt, count) == max(rtt * 1000 // max(count, 1), 1)


@prop
@given(count=u32, rtt=u32, tau_min=st.integers(1, U32))
def test_a_count_that_fits_keeps_the_distance(
    cherry: Harness, count: int, rtt: int, tau_min: int
) -> None:
    fits = cherry.one("f", count, rtt, tau_min)
    assert fits <= count
    assert fits == count or (fits + 1) * tau_min > rtt * 1000
    if fits:
        assert cherry.one("t", rtt, fits) >= tau_min


# Shrinking ------------------------------------------------------------------------------------


@prop
@given(wanted=st.tuples(few, few), there=st.tuples(few, few, few))
def test_a_plan_never_asks_for_more_than_there_is(
    cherry: Harness, wanted: tuple[int, int], there: tuple[int, int, int]
) -> None:
    (sigma, supp), (due, avail, spare) = wanted, there
    gap, segs, again, limited = cherry.ask("l", sigma, supp, due, avail, spare)
    assert gap + segs - again <= avail
    assert again <= min(spare, due)
    assert segs <= supp and gap <= sigma
    top = 4 * MAXCWND_MAX
    sigma, supp, due, avail = (min(v, top) for v in (sigma, supp, due, avail))
    want = max(sigma - due, 0)
    assert limited == int(want + supp > avail)
    if not limited:
        assert (gap, segs, again) == (want, supp, 0)
    else:
        assert gap + segs - again == avail or gap == want
    # What is out already is used only where all that is not is a supplement.
    assert not again or segs - again == avail


@prop
@given(
    wanted=st.tuples(st.integers(1, 3000), st.integers(1, 3000)),
    there=st.tuples(st.integers(0, 3000), st.integers(0, 6000), st.integers(0, 3000)),
)
def test_a_shrunk_plan_keeps_its_ratio(
    cherry: Harness, wanted: tuple[int, int], there: tuple[int, int, int]
) -> None:
    (sigma, supp), (due, avail, spare) = wanted, there
    gap, segs, again, limited = cherry.ask("l", sigma, supp, due, avail, spare)
    assume(limited and segs and due <= sigma)
    # The gap in all, old and new, is at least what the supplements' share of sigma is.
    assert gap + due - again >= math.floor(Fraction(segs * sigma, supp))


def test_plans_by_hand(cherry: Harness) -> None:
    # The paper's scenario with a receiver that has room.
    assert cherry.ask("l", 512, 511, 0, 65_535, 0) == [512, 511, 0, 0]
    # A stock receiver's 64 KB of 1448-byte segments after the first one.
    assert cherry.ask("l", 512, 511, 0, 44, 0) == [23, 21, 0, 1]
    # After a timeout what was sent before is the gap (figure 4: 39 of 50).
    assert cherry.ask("l", 50, 49, 39, 65_535, 38) == [11, 49, 0, 0]
    assert cherry.ask("l", 512, 511, 0, 0, 0) == [0, 0, 0, 1]
    assert cherry.ask("l", 0, 0, 0, 0, 0) == [0, 0, 0, 0]


def test_plans_with_what_is_out_already(cherry: Harness) -> None:
    # All of a window of 64 segments is out (New FFS, maxcwnd 512): the last third once more.
    assert cherry.ask("l", 1024, 513, 64, 0, 63) == [0, 21, 21, 1]
    # With SACKs up to the last five of them, these.
    assert cherry.ask("l", 1024, 513, 64, 0, 5) == [0, 5, 5, 1]
    # Ten more could be claimed: 74 segments, 24 of which are supplements.
    assert cherry.ask("l", 1024, 513, 64, 10, 63) == [0, 24, 14, 1]
    # Enough that is new for the share: nothing is repeated.
    assert cherry.ask("l", 1024, 513, 64, 100, 63) == [46, 54, 0, 1]


@prop
@given(lead=st.integers(0, 8192), wanted=st.tuples(st.integers(0, 8192), st.integers(0, 8192)),
       there=st.tuples(st.integers(0, 8192), st.integers(0, 20_000)))  # fmt: skip
def test_a_lead_is_kept_whole(
    cherry: Harness, lead: int, wanted: tuple[int, int], there: tuple[int, int]
) -> None:
    (sigma, supp), (due, avail) = wanted, there
    gap, segs, again, limited = cherry.ask("L", lead, sigma, supp, due, avail, 0)
    assert gap + segs <= avail and not again
    if lead == 0:
        assert [gap, segs, again, limited] == cherry.ask("l", sigma, supp, due, avail, 0)
    if segs:
        assert gap + due >= lead
    if not limited:
        assert (gap, segs) == (max(lead + sigma - due, lead - min(lead, due)), supp)


@prop
@given(cwnd=st.integers(1, 500), due=st.integers(0, 50), avail=st.integers(0, 3000))
def test_data_never_overtakes_supplements_of_a_second_round(
    cherry: Harness, cwnd: int, due: int, avail: int
) -> None:
    """A round trip of Fast-Forward Start at a window above 1, segment by segment."""
    maxcwnd = 512
    gap, supps, _, _ = cherry.ask("L", cwnd - 1, maxcwnd, maxcwnd - cwnd, due, avail, 0)
    for acked in range(supps):
        # cwnd in the first round trip, its share of the second, one for each supplement's ACK.
        gone = cwnd + acked * cwnd // maxcwnd + acked
        assert gone <= gap + due + 1, "this supplement is sent twice"


def test_a_second_round_by_hand(cherry: Harness) -> None:
    # 100 kB: nothing is to be gained at cwnd 32 with 35 segments left.
    gap, segs, _, _ = cherry.ask("L", 31, 512, 480, 1, 34, 0)
    assert gap + 1 >= 31
    assert segs <= 2


# Windows --------------------------------------------------------------------------------------


@prop
@given(cwnd=u32, acked=u32, mask=u32, cap=u32)
def test_growth(cherry: Harness, cwnd: int, acked: int, mask: int, cap: int) -> None:
    new, left = cherry.ask("w", cwnd, acked, mask, cap)
    assert left == mask - min(mask, acked)
    counted = acked - min(mask, acked)
    assert new == (cwnd if cwnd >= cap else min(cwnd + counted, cap))


@prop
@given(parts=st.lists(st.integers(0, 600), max_size=20), before=st.integers(0, 600))
def test_after_a_loss_each_second_ack_counts(
    cherry: Harness, parts: list[int], before: int
) -> None:
    acked, counted = before, 0
    for newly in parts:
        acked += newly
        assert cherry.one("h", acked, newly, 0) == newly
        counted += cherry.one("h", acked, newly, 1)
    assert counted == acked // 2 - before // 2


@prop
@given(acked=u32, newly=u32)
def test_no_more_acks_count_than_there_were(cherry: Harness, acked: int, newly: int) -> None:
    assert cherry.one("h", acked, newly, 1) <= cherry.one("h", acked, newly, 0) <= acked


def test_fast_forward_start_ends_at_maxcwnd(cherry: Harness) -> None:
    cwnd = 1
    for _ in range(511):
        cwnd, _ = cherry.ask("w", cwnd, 1, 0, 512)
    assert cwnd == 512


@pytest.mark.parametrize(("back", "end"), [(1.0, 100), (0.5, 50), (0.75, 75), (0.0, 50)])
def test_first_aid_recovery_by_the_share_that_comes_back(
    cherry: Harness, back: float, end: int
) -> None:
    """Half of cwnd0 ACKs are masked: a saturated path leaves cwnd0/2, a free one gives cwnd0."""
    cwnd0 = 100
    cwnd, mask = cwnd0 // 2, cwnd0 // 2
    for _ in range(round(back * cwnd0)):
        cwnd, mask = cherry.ask("w", cwnd, 1, mask, cwnd0)
    assert cwnd == end


@prop
@given(acked=u32, sent=u32, pct=st.integers(0, 200))
def test_full(cherry: Harness, acked: int, sent: int, pct: int) -> None:
    want = sent > 0 and pct <= 100 and 100 * acked >= sent * pct
    assert cherry.one("u", acked, sent, pct) == int(want)


def test_judging(cherry: Harness) -> None:
    assert cherry.one("j", 511, 511, 0, 75) == LEARNT
    assert cherry.one("j", 0, 511, 0, 75) == BLIND
    assert cherry.one("j", 0, 0, 1, 75) == BLIND
    assert cherry.one("j", 21, 21, 1, 75) == OPEN
    assert cherry.one("j", 10, 21, 1, 75) == LEARNT
    assert cherry.one("j", 20, 21, 1, 200) == LEARNT, "above 100: all of them"
    assert cherry.one("j", 21, 21, 1, 200) == OPEN


@prop
@given(case=st.tuples(u32, u32, u32, u32, u32, u32, st.booleans()))
def test_rate_reduction(cherry: Harness, case: tuple[int, int, int, int, int, int, bool]) -> None:
    target, prior, flight, delivered, out, acked, progress = case
    got = cherry.one("r", target, prior, flight, delivered, out, acked, int(progress))
    if flight > target:
        send = max(math.ceil(Fraction(target * delivered, max(prior, 1))) - out, 0)
    else:
        send = min(max(delivered - out, acked, 0) + progress, target - flight)
    if not send and not out:
        send = 1
    assert got == min(flight + send, 2**31)


def test_rate_reduction_halves_over_a_round_trip(cherry: Harness) -> None:
    """100 in flight, target 50: every other ACK sends one, and the end is the target."""
    flight, delivered, out = 99, 0, 0
    for _ in range(99):
        flight, delivered = flight - 1, delivered + 1
        cwnd = cherry.one("r", 50, 100, flight, delivered, out, 1, 1)
        sent = max(cwnd - flight, 0)
        flight, out = flight + sent, out + sent
    assert flight == 50
