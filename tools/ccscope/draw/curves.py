"""Curves over time and their reduction; numpy only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ccscope.recording import Array
from ccscope.schema import SSTHRESH_NONE


@dataclass(frozen=True)
class Curve:
    """A step curve: a value holds until the next time.

    Attributes:
        t: times in s, ascending.
        y: values; NaN where there is none.
    """

    t: Array
    y: Array

    def __len__(self) -> int:
        return len(self.t)

    @property
    def known(self) -> bool:
        """Whether there is any value."""
        return bool(len(self.y)) and not bool(np.isnan(self.y).all())

    def at(self, when: Array) -> Array:
        """Values held at these times; NaN before the first."""
        if not len(self.t):
            return np.full(len(when), np.nan)
        place = np.searchsorted(self.t, when, side="right") - 1
        return np.where(place >= 0, self.y[np.maximum(place, 0)], np.nan)

    def within(self, start: float, stop: float) -> Curve:
        """The part that is seen from ``start`` to ``stop``, the value held at the start included.

        Both ends get a point, so that the curve fills the range.
        """
        low, high = np.searchsorted(self.t, (start, stop), side="right")
        t, y = self.t[low:high], self.y[low:high]
        if low:
            t, y = np.concatenate([[start], t]), np.concatenate([self.y[low - 1 : low], y])
        if len(t) and t[-1] < stop:
            t, y = np.concatenate([t, [stop]]), np.concatenate([y, y[-1:]])
        return Curve(t, y)


EMPTY = Curve(np.zeros(0), np.zeros(0))


def reduced(curve: Curve, start: float, stop: float, most: int) -> Curve:
    """What is seen of a curve, in at most ``most`` points that keep all extremes.

    With no more than ``most`` changes in the range they are given as they are.
    """
    part = curve.within(start, stop)
    if len(part) <= most:
        return part
    return Curve(*envelope(curve.t, curve.y, start, stop, most // 2))


def envelope(t: Array, y: Array, start: float, stop: float, buckets: int) -> tuple[Array, Array]:
    """Reduce a step curve to two points a bucket that keep its extremes.

    Args:
        t, y: times (ascending) and values; the value holds until the next time.
        start, stop: range that is shown.
        buckets: number of equal parts of the range.

    Returns:
        Times (the first and second half of each bucket) and values; within a bucket the
        extreme that came first is first.  NaN before the first value.
    """
    edges = np.linspace(start, stop, buckets + 1)
    times = np.linspace(start, stop, 2 * buckets, endpoint=False)
    made = np.full(2 * buckets, np.nan)
    if not len(t):
        return times, made
    bounds = np.searchsorted(t, edges)
    for i in range(buckets):
        low, high = int(bounds[i]), int(bounds[i + 1])
        if low == high:
            if low:
                made[2 * i : 2 * i + 2] = y[low - 1]
            continue
        part = y[low:high]
        if np.isnan(part).any():
            part = part[~np.isnan(part)]
            if not len(part):
                continue
        first, second = sorted((int(np.argmin(part)), int(np.argmax(part))))
        made[2 * i], made[2 * i + 1] = part[first], part[second]
    return times, made


def rebinned(
    bins: Mapping[str, Array], stop: float, most: int, start: float = 0.0
) -> tuple[Array, Array]:
    """A table like ``goodput`` in ``most`` equal bins over start..stop: start times and bit/s."""
    edges = np.linspace(start, stop, most + 1)
    total = cumulated(bins)
    if not len(total):
        return edges[:-1], np.zeros(most)
    # Bytes up to a moment: straight lines between the bins' edges.
    return edges[:-1], np.diff(np.interp(edges, total.t, total.y)) * 8 / ((stop - start) / most)


def cumulated(bins: Mapping[str, Array]) -> Curve:
    """Bytes that have arrived up to each edge of the bins of a table like ``goodput``."""
    if not bins or not len(bins["t_s"]):
        return EMPTY
    width = bin_width(bins)
    return Curve(
        np.append(bins["t_s"], bins["t_s"][-1] + width),
        np.concatenate([[0.0], np.cumsum(bins["bytes"])]),
    )


def bin_width(bins: Mapping[str, Array]) -> float:
    """Length of the bins of a table like ``goodput``, in s; 0 when it has fewer than two."""
    return float(np.min(np.diff(bins["t_s"]))) if len(bins["t_s"]) > 1 else 0.0


def nice(width: float) -> float:
    """The smallest of 1, 2, 5 x 10^n that is not below ``width`` (> 0)."""
    unit = 10.0 ** math.floor(math.log10(width))
    return next(m * unit for m in (1.0, 2.0, 5.0, 10.0) if m * unit >= width * (1 - 1e-9))


def rate(total: Curve, start: float, stop: float, width: float) -> Curve:
    """Bit/s of a running count of bytes, in bins of ``width`` s that start at multiples of it."""
    first = math.floor(start / width + 1e-9)
    count = max(1, math.ceil((stop - first * width) / width - 1e-9))
    edges = (first + np.arange(count + 1)) * width
    if not len(total):
        return Curve(edges[:-1], np.zeros(count))
    return Curve(edges[:-1], np.diff(np.interp(edges, total.t, total.y)) * 8 / width)


def finite_ssthresh(values: Array) -> Array:
    """Slow-start thresholds with NaN for "none yet"."""
    made = values.astype(float)
    return np.where(made >= SSTHRESH_NONE, np.nan, made)
