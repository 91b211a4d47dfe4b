"""Channel patterns: where a link loses, drawn from the seed before the run.

The seed, the link's name and the direction fix a pattern, never the algorithm, so every
algorithm meets the same errors at the same bit positions of its stream.  docs/lab-internals.md
section 4 has the file's layout and the meaning of its fields; :func:`replay` is the same walk in
Python, for tests and for the audit.

Gaps are geometric and come from uniform numbers by inversion: a higher error rate makes the same
errors denser instead of drawing new ones.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

MAGIC = b"AIRCHAN1"
NO_LOSS, BITS, PACKETS = 0, 1, 2
OUTAGE, BAD = 1, 2
_HEAD = struct.Struct("<8s6IQ")
_WINDOW = struct.Struct("<QQII")

NEVER = 2**62
"""A gap no run reaches: ends an exact drop list."""

SMALLEST_FRAME_BYTES = 54
"""Ethernet, IPv4 and TCP headers: bounds how many packets a rate can carry."""

Gaps = npt.NDArray[np.uint64]


def derive_seed(seed: int, *parts: object) -> int:
    """A 32-bit seed for one random source, from the cell's seed and the source's name."""
    text = "\0".join([str(seed), *map(str, parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def frame_error_probability(ber: float, frame_bytes: int) -> float:
    """1 - (1 - BER)^(8 L): the chance that a frame of L layer-2 bytes is lost."""
    return 0.0 if ber == 0 else -math.expm1(8 * frame_bytes * math.log1p(-ber))


@dataclass(frozen=True)
class Window:
    """A stretch of time after t0, in nanoseconds: kind OUTAGE or BAD."""

    start_ns: int
    end_ns: int
    kind: int


@dataclass(frozen=True)
class Gilbert:
    """Two states with exponential dwell times (means in ns) and a loss law each."""

    good_ns: int
    bad_ns: int
    unit_bad: int
    rate_bad: float
    unit_good: int = NO_LOSS
    rate_good: float = 0.0


@dataclass(frozen=True)
class ChannelSpec:
    """Everything a pattern depends on but the seed.

    ``rate_bps`` bounds how many units pass; ``unit`` and ``rate`` are the law of the good state;
    ``drops`` are exact packet indices (instead of a law); outages are (start, end) in ns.
    """

    rate_bps: int
    stop_ns: int
    unit: int = NO_LOSS
    rate: float = 0.0
    gilbert: Gilbert | None = None
    drops: tuple[int, ...] = ()
    min_len: int = 0
    outages: tuple[tuple[int, int], ...] = ()


def _no_gaps() -> Gaps:
    return np.empty(0, dtype=np.uint64)


@dataclass(frozen=True)
class Pattern:
    """A channel pattern; see the module's text and docs/lab-internals.md section 4."""

    unit_good: int = NO_LOSS
    unit_bad: int = NO_LOSS
    good: Gaps = field(default_factory=_no_gaps)
    bad: Gaps = field(default_factory=_no_gaps)
    windows: tuple[Window, ...] = ()
    min_len: int = 0
    stop_ns: int = 0

    def to_bytes(self) -> bytes:
        """The little-endian file that ``airchan attach`` reads."""
        head = _HEAD.pack(
            MAGIC, self.unit_good, self.unit_bad, len(self.good), len(self.bad),
            len(self.windows), self.min_len, self.stop_ns,
        )  # fmt: skip
        rows = [_WINDOW.pack(w.start_ns, w.end_ns, w.kind, 0) for w in self.windows]
        return b"".join([head, _table(self.good), _table(self.bad), *rows])

    @classmethod
    def from_bytes(cls, data: bytes) -> Pattern:
        """Read a pattern file back; raises ValueError when it is not one."""
        if len(data) < _HEAD.size or data[:8] != MAGIC:
            raise ValueError("not a channel pattern: the magic AIRCHAN1 is missing")
        _, unit_good, unit_bad, n_good, n_bad, n_windows, min_len, stop = _HEAD.unpack_from(data)
        if len(data) != _HEAD.size + 8 * (n_good + n_bad) + _WINDOW.size * n_windows:
            raise ValueError("the channel pattern's length does not agree with its head")
        good = np.frombuffer(data, "<u8", n_good, _HEAD.size).astype(np.uint64)
        bad = np.frombuffer(data, "<u8", n_bad, _HEAD.size + 8 * n_good).astype(np.uint64)
        tail = data[_HEAD.size + 8 * (n_good + n_bad) :]
        windows = tuple(Window(*row[:3]) for row in _WINDOW.iter_unpack(tail))
        return cls(unit_good, unit_bad, good, bad, windows, min_len, stop)


def _table(gaps: Gaps) -> bytes:
    return gaps.astype("<u8").tobytes()


def _generator(seed: int, link: str, direction: int, purpose: int) -> np.random.Generator:
    entropy = [seed, zlib.crc32(link.encode()), direction, purpose]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def geometric_gaps(rng: np.random.Generator, probability: float, units: float) -> Gaps:
    """Gaps between hits, enough (8 sigma) for ``units`` units at ``probability`` each."""
    if probability <= 0:
        return np.array([NEVER], dtype=np.uint64)
    mean = units * probability
    count = math.ceil(mean + 8 * math.sqrt(mean) + 16)
    if probability >= 1:
        return np.zeros(count, dtype=np.uint64)
    uniform = rng.random(count)
    return np.floor(np.log1p(-uniform) / math.log1p(-probability)).astype(np.uint64)


def drop_gaps(indices: Iterable[int]) -> Gaps:
    """Gaps that hit exactly these packets (0 = the first) and none after them."""
    gaps, last = [], -1
    for index in sorted(set(indices)):
        gaps.append(index - last - 1)
        last = index
    return np.array([*gaps, NEVER], dtype=np.uint64)


def bad_windows(rng: np.random.Generator, gilbert: Gilbert, stop_ns: int) -> list[Window]:
    """Bad states from 0 to ``stop_ns``; the channel starts good, dwell times are exponential."""
    windows: list[Window] = []
    now = 0
    while True:
        start = now + _dwell_ns(rng, gilbert.good_ns)
        now = start + _dwell_ns(rng, gilbert.bad_ns)
        if start >= stop_ns:
            return windows
        windows.append(Window(start, min(now, stop_ns), BAD))


def _dwell_ns(rng: np.random.Generator, mean_ns: int) -> int:
    return max(1, round(-math.log1p(-float(rng.random())) * mean_ns))


def merge_windows(bad: Sequence[Window], outages: Iterable[tuple[int, int]]) -> tuple[Window, ...]:
    """Sorted windows without overlap; an outage cuts through a bad state."""
    out = [Window(start, end, OUTAGE) for start, end in sorted(outages) if end > start]
    pieces = list(out)
    for window in bad:
        start = window.start_ns
        for hole in out:
            if hole.end_ns <= start or hole.start_ns >= window.end_ns:
                continue
            if hole.start_ns > start:
                pieces.append(Window(start, hole.start_ns, BAD))
            start = hole.end_ns
        if start < window.end_ns:
            pieces.append(Window(start, window.end_ns, BAD))
    return tuple(sorted(pieces, key=lambda w: w.start_ns))


def _units(spec: ChannelSpec, unit: int, time_ns: int) -> float:
    bits = spec.rate_bps * time_ns / 1e9 * 1.3 + 1e6
    return bits if unit == BITS else bits / (8 * SMALLEST_FRAME_BYTES)


def make_pattern(spec: ChannelSpec, seed: int, link: str, direction: int) -> Pattern:
    """Draw the pattern of one direction (0 forward, 1 reverse) of a link.

    Same arguments, same bytes, on every machine with the same numpy.
    """
    unit, rate, bad_gaps, bad = spec.unit, spec.rate, _no_gaps(), list[Window]()
    if spec.gilbert is not None:
        unit, rate = spec.gilbert.unit_good, spec.gilbert.rate_good
        bad = bad_windows(_generator(seed, link, direction, 2), spec.gilbert, spec.stop_ns)
        time_bad = sum(w.end_ns - w.start_ns for w in bad)
        units = _units(spec, spec.gilbert.unit_bad, time_bad)
        rng = _generator(seed, link, direction, 1)
        bad_gaps = geometric_gaps(rng, spec.gilbert.rate_bad, units)
    if spec.drops:
        unit, good = PACKETS, drop_gaps(spec.drops)
    elif unit == NO_LOSS or rate == 0:
        unit, good = NO_LOSS, _no_gaps()
    else:
        rng = _generator(seed, link, direction, 0)
        good = geometric_gaps(rng, rate, _units(spec, unit, spec.stop_ns))
    windows = merge_windows(bad, spec.outages)
    unit_bad = spec.gilbert.unit_bad if spec.gilbert is not None else NO_LOSS
    return Pattern(unit, unit_bad, good, bad_gaps, windows, spec.min_len, spec.stop_ns)


@dataclass
class Replayed:
    """What a replay gave: a verdict for each frame and the counters of ``airchan stats``."""

    lost: list[bool] = field(default_factory=list)
    dropped_good: int = 0
    dropped_bad: int = 0
    dropped_outage: int = 0
    exhausted: int = 0


class _Walker:
    """One gap table being used up."""

    def __init__(self, unit: int, gaps: Gaps) -> None:
        self.unit = unit
        self._gaps = iter(gaps.tolist())
        self._left: int | None = next(self._gaps, None)

    def take(self, frame_bytes: int) -> tuple[bool, bool]:
        """Pass one frame: (hit, table used up)."""
        if self.unit == NO_LOSS:
            return False, False
        need, hit = (8 * frame_bytes if self.unit == BITS else 1), False
        while self._left is not None and self._left < need:
            hit = True
            need -= self._left + 1
            self._left = next(self._gaps, None)
        if self._left is None:
            return hit, True
        self._left -= need
        return hit, False


def replay(pattern: Pattern, frames: Iterable[tuple[int, int]]) -> Replayed:
    """Walk the pattern with frames of (ns after t0, layer-2 bytes), in order of time.

    An outage drops every frame and uses up no units; a frame shorter than ``min_len`` passes
    outside outages and uses up none either.
    """
    result = Replayed()
    walkers = {
        0: _Walker(pattern.unit_good, pattern.good),
        BAD: _Walker(pattern.unit_bad, pattern.bad),
    }
    windows, at = pattern.windows, 0
    for time_ns, length in frames:
        while at < len(windows) and windows[at].end_ns <= time_ns:
            at += 1
        inside = at < len(windows) and windows[at].start_ns <= time_ns
        kind = windows[at].kind if inside else 0
        active = time_ns >= 0 and (pattern.stop_ns == 0 or time_ns < pattern.stop_ns)
        if not active:
            result.lost.append(False)
        elif kind == OUTAGE:
            result.dropped_outage += 1
            result.lost.append(True)
        elif length < pattern.min_len:
            result.lost.append(False)
        else:
            hit, used_up = walkers[kind].take(length)
            result.exhausted += used_up
            result.dropped_good += hit and kind == 0
            result.dropped_bad += hit and kind == BAD
            result.lost.append(hit)
    return result
