"""Statistics over replicates (seeds).

A seed gives one number per cell; numbers within one run are not independent and are never
used for an interval.  The same seed means the same channel for every algorithm (common
random numbers), so algorithms are compared seed by seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval.

    Attributes:
        mean: the arithmetic mean; NaN when there is no value.
        half: half the width of the Student t interval; None with fewer than two values.
        n: number of values.
    """

    mean: float
    half: float | None
    n: int

    @property
    def low(self) -> float | None:
        """Lower end of the interval, if there is one."""
        return None if self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        """Upper end of the interval, if there is one."""
        return None if self.half is None else self.mean + self.half


def estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Mean and Student t interval of independent values."""
    n = len(values)
    if n == 0:
        return Estimate(math.nan, None, 0)
    mean = float(np.mean(values))
    if n == 1:
        return Estimate(mean, None, 1)
    error = float(np.std(values, ddof=1)) / math.sqrt(n)
    quantile = float(stdtrit(n - 1, 0.5 + confidence / 2))
    return Estimate(mean, quantile * error, n)


def prediction(values: Sequence[float], confidence: float = 0.99) -> tuple[float, float] | None:
    """Where one more independent value is to be expected; None with fewer than three values."""
    n = len(values)
    if n < 3:
        return None
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
    half = float(stdtrit(n - 1, 0.5 + confidence / 2)) * spread * math.sqrt(1 + 1 / n)
    return mean - half, mean + half


def paired_ratio(of: Mapping[int, float], over: Mapping[int, float]) -> Estimate:
    """Estimate of ``of / over`` over the seeds that both have (seeds are the keys).

    A seed whose denominator is 0 has no ratio and is left out.
    """
    seeds = sorted(of.keys() & over.keys())
    return estimate([of[s] / over[s] for s in seeds if over[s] != 0])


def paired_difference(of: Mapping[int, float], over: Mapping[int, float]) -> Estimate:
    """Estimate of ``of - over`` over the seeds that both have."""
    return estimate([of[s] - over[s] for s in sorted(of.keys() & over.keys())])


def median(values: Sequence[float]) -> float:
    """The median; NaN when there is no value."""
    return float(np.median(values)) if len(values) else math.nan


def jain_index(rates: Sequence[float]) -> float:
    """Jain's fairness index, 1/n .. 1; NaN without rates or when all are 0."""
    total, squares = sum(rates), sum(r * r for r in rates)
    return total * total / (len(rates) * squares) if squares else math.nan


def loss_bounds(
    groups: Mapping[int, int], ber: float, loss: float, level: float = 0.999
) -> tuple[int, int]:
    """Two-sided bounds of the number of dropped frames when frames are lost independently.

    A frame of L bytes is lost with ``p(L) = 1 - (1 - loss) * (1 - ber)**(8 L)``, so the
    number of losses over all frames is Poisson-binomial.  Its distribution is computed
    exactly: the inverse discrete Fourier transform of ``prod (1 - p + p w)**n`` over the
    lengths.  Outside the returned bounds, both included, lies at most ``1 - level``, half of
    it on each side.

    Args:
        groups: number of frames by length in bytes.
        ber: bit error rate, 0..1.
        loss: loss probability of a frame on top of bit errors, 0..1.
        level: probability inside the bounds.
    """
    chances = {length: frame_loss(length, ber, loss) for length in groups}
    certain = sum(n for length, n in groups.items() if chances[length] >= 1.0)
    free = {le: n for le, n in groups.items() if 0.0 < chances[le] < 1.0}
    total = sum(free.values())
    if total == 0:
        return certain, certain
    angle = np.exp(-2j * np.pi * np.arange(total + 1) / (total + 1))
    log_phi = np.zeros(total + 1, dtype=complex)
    for length, n in free.items():
        log_phi += n * np.log(1.0 + chances[length] * (angle - 1.0))
    # The characteristic function at -2 pi k / N is a forward transform of the probabilities.
    weights = np.fft.ifft(np.exp(log_phi)).real.clip(0.0)
    below = np.cumsum(weights / weights.sum())
    tail = (1.0 - level) / 2
    low = int(np.searchsorted(below, tail))
    high = int(np.searchsorted(below, 1.0 - tail))
    return certain + low, certain + min(high, total)


def frame_loss(length_bytes: int, ber: float, loss: float) -> float:
    """Probability that a frame is lost: ``1 - (1 - loss) * (1 - ber)**(8 L)``."""
    if ber >= 1.0:
        return 1.0
    intact = (1.0 - loss) * math.exp(8 * length_bytes * math.log1p(-ber))
    return 1.0 - intact
