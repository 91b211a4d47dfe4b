# SPDX-License-Identifier: GPL-2.0
"""References for ImTCP's trend test and regression, in Python's own arithmetic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

BITS = 1514 * 8
"""M, a full packet on the wire."""


def flat(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """A stream as the harness reads it: departure, arrival, departure, ..."""
    return [value for pair in pairs for value in pair]


def trend_of(pairs: Sequence[tuple[int, int]]) -> tuple[Fraction, Fraction, int]:
    """PCT, PDT and growth in ns; a step is bounded as the module's is."""
    limit = 2**34
    delays = [r - s for s, r in pairs]
    steps = [max(-limit, min(limit, b - a)) for a, b in itertools.pairwise(delays)]
    up = Fraction(sum(d > 0 for d in steps), len(steps))
    total = sum(abs(d) for d in steps)
    return up, Fraction(sum(steps), total) if total else Fraction(0), sum(steps)


def either(pct: int, pdt: int) -> int:
    """T_i by the 2002 rule, of PCT and PDT in 1/1000."""
    return 1 if pct > 550 or pdt > 400 else -1


def both(pct: int, pdt: int) -> int:
    """T_i by Pathload's code, of PCT and PDT in 1/1000: 0 where they contradict each other."""
    votes = (pct > 605) - (pct < 495) + (pdt > 440) - (pdt < 360)
    return (votes > 0) - (votes < 0)


def fit_kbps(pairs: Sequence[tuple[int, int]], bits: int) -> int:
    """A by step 5 in floating point: the highest rate of the line with slope 1."""
    points = sorted(
        (bits * 1e6 / (s1 - s0), bits * 1e6 / (r1 - r0))
        for (s0, r0), (s1, r1) in itertools.pairwise(pairs)
    )
    x, y = np.array(points).T
    best, best_at = math.inf, 0.0
    for p in range(1, len(x) + 1):
        error = float(((x[:p] - y[:p]) ** 2).sum())
        if len(x) - p > 2:
            rest = np.polyfit(x[p:], y[p:], 1)
            error += float(((np.polyval(rest, x[p:]) - y[p:]) ** 2).sum())
        if error < best - 1e-9:
            best, best_at = error, float(x[p - 1])
    return round(best_at)
