"""The search for the window: pure, given a function that tries one.

Goodput rises with the window up to the knee, stays, and may fall beyond the collapse.  The search
tries the largest window, the two that this run's path suggests (the knee, and 95 % of the
collapse), and then closes in, by halving the ratio, on the smallest window that is good enough.
Every try counts for the best goodput, so the bar can rise meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

TOLERANCE = 0.01
STEP = 1.04
MAX_CV = 0.05
MAX_RUNS = 20
_BELOW = 0.95


@dataclass(frozen=True)
class Trial:
    """One window tried.

    Attributes:
        asked: the value that was set (of the scenario's key, or as given).
        window_bytes: the largest window that was offered then.
        goodput_bps: payload a second in the steady state.
        srtt_s: mean smoothed round-trip time.
        cwnd_cv: coefficient of variation of cwnd.
        cwnd_segs: mean congestion window.
        losses: reductions in the steady state.
    """

    asked: int
    window_bytes: float
    goodput_bps: float
    srtt_s: float
    cwnd_cv: float
    cwnd_segs: float
    losses: int

    @property
    def held(self) -> bool:
        """Whether cwnd did not collapse."""
        return self.losses == 0 and self.cwnd_cv <= MAX_CV


@dataclass(frozen=True)
class Hint:
    """What the run with the largest window says of the path, as values to ask for."""

    knee: int | None
    collapse: int | None


@dataclass(frozen=True)
class Found:
    """The end of a search.

    Attributes:
        best: the trial that meets the objective.
        trials: all of them, in the order in which they were made.
        held: whether ``best`` holds cwnd; if not, no window that was tried is good enough and
        holds. largest_held: the largest window that held cwnd, good enough as well: the paper's
        choice.
    """

    best: Trial
    trials: tuple[Trial, ...]
    held: bool
    largest_held: Trial | None


def objective(trials: Iterable[Trial], tolerance: float = TOLERANCE) -> Trial:
    """The smallest window within the tolerance of the best goodput that holds cwnd.

    When none of those holds it: the smallest within the tolerance.
    """
    made = sorted(trials, key=lambda t: t.window_bytes)
    bar = (1 - tolerance) * max(t.goodput_bps for t in made)
    good = [t for t in made if t.goodput_bps >= bar]
    return next((t for t in good if t.held), good[0])


def find(
    run: Callable[[int], Trial],
    low: int,
    high: int,
    *,
    hint: Callable[[], Hint] = lambda: Hint(None, None),
    tolerance: float = TOLERANCE,
    step: float = STEP,
    max_runs: int = MAX_RUNS,
    least_step: Callable[[], float] = lambda: 1,
) -> Found:
    """Search between two values.

    Args:
        run: tries a value; called once for each.
        low: smallest value to try.
        high: largest, tried first.
        hint: asked after the first run.
        tolerance: part of the best goodput that may be missing.
        step: ratio of two values that need not be told apart.
        max_runs: number of runs at most.
        least_step: difference that need not be told apart, such as half a segment.
    """
    trials: dict[int, Trial] = {}

    def attempt(value: float) -> bool:
        asked = round(min(max(value, low), high))
        if asked in trials or len(trials) >= max_runs:
            return False
        trials[asked] = run(asked)
        return True

    attempt(high)
    told = hint()
    if told.collapse is not None:
        attempt(told.collapse * _BELOW)
    if told.knee is not None:
        attempt(told.knee)
    while True:
        best = objective(trials.values(), tolerance).asked
        below = [value for value in trials if value < best]
        if not below:
            if best <= low or not attempt(max(low, best / 2)):
                break
            continue
        under = max(below)
        if best / under <= step or best - under <= least_step():
            break
        if not attempt(math.sqrt(best * under)):
            break
    chosen = objective(trials.values(), tolerance)
    bar = (1 - tolerance) * max(t.goodput_bps for t in trials.values())
    held = [t for t in trials.values() if t.held and t.goodput_bps >= bar]
    largest = max(held, key=lambda t: t.window_bytes) if held else None
    return Found(chosen, tuple(trials.values()), chosen.held, largest)
