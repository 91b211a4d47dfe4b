"""The classifier: pure functions from evidence to classes, and from classes to phases.

Evidence is what one moment knows: bytes in flight, both windows.  :func:`at_windows` decides which
window was full; :func:`phases` turns the fast changes of the answer into stretches with hysteresis.
Nothing here knows where the numbers came from.

The rules, in this order, for each slice of time (between two ACKs, polls or packets):

1.  CA state Loss, and the silence before it: ``timeout``; CWR and Recovery: ``recovery``.
2.  Everything acknowledged, and no ACK until 50 ms more than a round trip later: ``idle``
    up to one round trip before that ACK.
3.  Less than one segment of room in the receiver's window at the fullest moment of the last round
    trip, and that window not larger than cwnd: ``receiver``.
4.  No more than max(1, cwnd/8) segments of room in cwnd then: limited by cwnd, which is
    ``after-loss`` while cwnd is below its size before the last reduction, else ``slow-start``
    below ssthresh, else ``cwnd``.
5.  Else the sender sent less than both windows allow: ``pacing``, ``sndbuf`` or ``application``
    if there is evidence for one of them, else ``sender``.

The fullest moment of a round trip is what counts because the kernel itself saves up room for
larger segments (TSO deferral) and a receiver acknowledges every second segment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ccscope.explain.classes import (
    AFTER_LOSS,
    CLASSES,
    CODE,
    CWND,
    FAMILY,
    RECEIVER,
    SENDER,
    SLOW_START,
)

Array = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

ENTER = 0.6
"""Share of a cell of time that a class needs to begin a phase."""
HOLD = 0.4
"""Share below which a phase ends; between the two it goes on: hysteresis."""
SLACK = 8
"""A part of cwnd that may be unused in a full window."""


@dataclass(frozen=True)
class Slices:
    """A partition of a flow's time: slice i is from ``edges[i]`` to ``edges[i + 1]``, in s."""

    edges: Array
    codes: Codes

    @property
    def start_s(self) -> float:
        """Where the first begins."""
        return float(self.edges[0])

    @property
    def end_s(self) -> float:
        """Where the last ends."""
        return float(self.edges[-1])

    def seconds(self, start_s: float | None = None, end_s: float | None = None) -> dict[str, float]:
        """Seconds of each class that occurs within a stretch; the sum is the stretch."""
        low = self.start_s if start_s is None else start_s
        high = self.end_s if end_s is None else end_s
        spans = np.diff(np.clip(self.edges, low, high))
        sums = np.bincount(self.codes, weights=spans, minlength=len(CLASSES))
        return {name: float(sums[CODE[name]]) for name in CLASSES if sums[CODE[name]] > 0}

    def overlay(self, start_s: float, end_s: float, name: str) -> Slices:
        """The same with one stretch given to a class."""
        return self.overlays([(start_s, end_s, name)])

    def overlays(self, stretches: list[tuple[float, float, str]]) -> Slices:
        """The same with stretches given to classes; later ones win."""
        cuts = [t for a, b, _ in stretches for t in (a, b) if self.start_s < t < self.end_s]
        edges = np.union1d(self.edges, np.array(cuts, dtype=float))
        middles = (edges[:-1] + edges[1:]) / 2
        where = np.clip(np.searchsorted(self.edges, middles) - 1, 0, len(self.codes) - 1)
        codes = self.codes[where]
        for a, b, name in stretches:
            codes[np.searchsorted(middles, a) : np.searchsorted(middles, b)] = CODE[name]
        return Slices(edges, codes)


@dataclass(frozen=True)
class Phase:
    """A stretch in which one thing limited the flow.

    Attributes:
        start_s: begin.
        end_s: end.
        name: the class, of those in :data:`ccscope.explain.classes.FAMILY`'s values.
        seconds: seconds of every class within it.
    """

    start_s: float
    end_s: float
    name: str
    seconds: dict[str, float]

    @property
    def length_s(self) -> float:
        """Seconds from begin to end."""
        return self.end_s - self.start_s

    def share(self, *names: str) -> float:
        """The part of its time that belongs to these classes, 0 to 1."""
        total = sum(self.seconds.values())
        return sum(self.seconds.get(n, 0.0) for n in names) / total if total else 0.0


def rolling_min(times: Array, values: Array, spans: Array) -> Array:
    """The least value among rows in (times[i] - spans[i], times[i]]; times in order."""
    first = np.minimum(np.searchsorted(times, times - spans, side="right"), np.arange(len(times)))
    lengths = np.arange(len(times)) - first + 1
    level = np.floor(np.log2(np.maximum(lengths, 1))).astype(int)
    made = values.copy()
    table, size = values.copy(), 1  # table[i]: least of the `size` rows that end at i
    for step in range(int(level.max(initial=0)) + 1):
        mine = np.flatnonzero(level == step)
        made[mine] = np.minimum(table[mine], table[np.minimum(first[mine] + size - 1, mine)])
        shifted = np.concatenate([np.full(min(size, len(table)), np.inf), table[:-size]])
        table, size = np.minimum(table, shifted[: len(table)]), size * 2
    return made


def at_windows(
    *,
    room_rwnd_bytes: Array,
    room_cwnd_segs: Array,
    cwnd_segs: Array,
    rwnd_bytes: Array,
    ssthresh_segs: Array,
    former_cwnd_segs: Array,
    mss_bytes: float,
) -> Codes:
    """Rules 3 to 5 for rows of evidence; a NaN means that the evidence is missing.

    Args:
        room_rwnd_bytes: least room in the receiver's window in the last round trip.
        room_cwnd_segs: least room in cwnd then.
        cwnd_segs: congestion window.
        rwnd_bytes: receiver's window.
        ssthresh_segs: slow-start threshold.
        former_cwnd_segs: cwnd before the last reduction; 0 when there was none.
        mss_bytes: segment size.
    """
    smaller = ~(rwnd_bytes > (cwnd_segs + 1) * mss_bytes)
    receiver = (room_rwnd_bytes < mss_bytes) & smaller
    full = room_cwnd_segs <= np.maximum(1, cwnd_segs // SLACK)
    slow = cwnd_segs < ssthresh_segs
    kinds = np.where(slow, CODE[SLOW_START], CODE[CWND])
    kinds = np.where(cwnd_segs < former_cwnd_segs, CODE[AFTER_LOSS], kinds)
    made = np.where(full, kinds, CODE[SENDER])
    return np.where(receiver, CODE[RECEIVER], made).astype(np.int64)


def families(slices: Slices) -> Slices:
    """The same with classes replaced by their families."""
    to = np.array([CODE[FAMILY[name]] for name in CLASSES])
    return Slices(slices.edges, to[slices.codes])


def phases(
    slices: Slices, resolution_s: float, *, least_s: float = 0.0, most: int = 0
) -> list[Phase]:
    """Stretches of one family each that together are the whole time.

    Time is cut into cells of ``resolution_s``.  A phase goes on until its own share of a cell falls
    below :data:`HOLD` or another reaches :data:`ENTER`.

    Args:
        slices: what limited the flow, moment by moment.
        resolution_s: length of a cell.
        least_s: shorter phases are merged into a neighbour.
        most: ``least_s`` is raised until there are no more than this many; 0: any number.
    """
    coarse = families(slices)
    names = np.array(_smooth(coarse, resolution_s))
    edges = _cells(coarse, resolution_s)
    starts = np.flatnonzero(np.concatenate([[True], names[1:] != names[:-1]]))
    bounds = [*edges[starts].tolist(), float(edges[-1])]
    runs = [(bounds[i], bounds[i + 1], int(names[at])) for i, at in enumerate(starts)]
    runs = _merge(runs, least_s)
    while most and len(runs) > most:
        least_s = max(least_s * 1.5, resolution_s)
        runs = _merge(runs, least_s)
    return [Phase(a, b, CLASSES[code], slices.seconds(a, b)) for a, b, code in runs]


def _cells(slices: Slices, resolution_s: float) -> Array:
    count = max(1, int((slices.end_s - slices.start_s) / resolution_s + 1e-9))
    edges: Array = slices.start_s + resolution_s * np.arange(count + 1, dtype=np.float64)
    edges[-1] = slices.end_s  # what is left over belongs to the last
    return edges


def _smooth(slices: Slices, resolution_s: float) -> list[int]:
    """The class of each cell, with hysteresis."""
    cells = _cells(slices, resolution_s)
    spans = np.diff(slices.edges)
    shares = np.zeros((len(cells) - 1, len(CLASSES)))
    for code in np.unique(slices.codes):
        sums = np.concatenate([[0.0], np.cumsum(np.where(slices.codes == code, spans, 0.0))])
        shares[:, code] = np.diff(np.interp(cells, slices.edges, sums)) / np.diff(cells)
    made: list[int] = []
    now = int(shares[0].argmax())
    for row in shares:
        best = int(row.argmax())
        if row[best] >= ENTER or row[now] < HOLD:
            now = best
        made.append(now)
    return made


def _merge(runs: list[tuple[float, float, int]], least_s: float) -> list[tuple[float, float, int]]:
    """Merge the shortest runs into their longer neighbours until none is shorter than asked."""
    made = list(runs)
    while len(made) > 1:
        at = min(range(len(made)), key=lambda i: made[i][1] - made[i][0])
        if made[at][1] - made[at][0] >= least_s:
            break
        near = [i for i in (at - 1, at + 1) if 0 <= i < len(made)]
        to = max(near, key=lambda i: made[i][1] - made[i][0])
        low, high = min(at, to), max(at, to)
        made[low : high + 1] = [(made[low][0], made[high][1], made[to][2])]
        made = _join(made)
    return made


def _join(runs: list[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    made: list[tuple[float, float, int]] = []
    for run in runs:
        if made and made[-1][2] == run[2]:
            made[-1] = (made[-1][0], run[1], run[2])
        else:
            made.append(run)
    return made
