"""What a recording proves about one flow, in the same shape whatever its source was."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ccscope.explain.classes import APPLICATION, CODE, SENDER, SNDBUF
from ccscope.explain.classify import Array, Slices
from ccscope.recording import Columns, Recording

DEFAULT_MSS = 1448
IDLE_S = 0.05
"""A pause that is longer than a round trip by this is idleness, not a delayed ACK."""


@dataclass(frozen=True)
class Progress:
    """Bytes acknowledged so far, at instants in order of time."""

    t_s: Array
    bytes: Array

    def at(self, t_s: float) -> float:
        """Bytes acknowledged up to an instant."""
        place = int(np.searchsorted(self.t_s, t_s, side="right")) - 1
        return float(self.bytes[place]) if place >= 0 else float(self.bytes[0])

    def between(self, start_s: float, end_s: float) -> float:
        """Bytes acknowledged in (start, end]."""
        return self.at(end_s) - self.at(start_s)


@dataclass(frozen=True)
class Event:
    """One reduction of the window, or what led to one.

    Attributes:
        t_s: when it began.
        end_s: when the flow was back in Open (or the next one began).
        kind: ``local``, ``ecn``, ``tlp``, ``cwr``, ``sack``, ``dupack``, ``rack``, ``recovery``,
            ``rto`` or ``mtu``: a cause of ccscope.schema.
        spurious: the kernel undid it (or DSACK showed that it was not needed).
        silent_s: for ``rto``: time without an ACK before it.
    """

    t_s: float
    end_s: float
    kind: str
    spurious: bool = False
    silent_s: float = 0.0


@dataclass
class Evidence:
    """What is known of one flow.

    Attributes:
        slices: what limited it, moment by moment.
        progress: bytes acknowledged.
        events: reductions, in order of time.
        mss_bytes: segment size.
        srtt_s: median smoothed round-trip time; 0 when not known.
        step_s: distance of the observations: the finest that can be told apart.
        levels: instants with cwnd (segments), the receiver's window and bytes in flight, NaN
            where not known: ``t_s``, ``cwnd_segs``, ``rwnd_bytes``, ``inflight_bytes``.
        says: what was used, in words.
        cannot: what cannot be told, in words.
        kernel: seconds by the kernel's own account (TCP_INFO) between the first and last poll:
            ``start_s``, ``end_s``, ``busy``, ``receiver``, ``sndbuf``.
        retransmits: segments sent again; None when not known.
    """

    slices: Slices
    progress: Progress
    events: list[Event]
    mss_bytes: float
    srtt_s: float
    step_s: float
    levels: Columns
    says: list[str] = field(default_factory=list)
    cannot: list[str] = field(default_factory=list)
    kernel: dict[str, float] | None = None
    retransmits: int | None = None

    @property
    def resolution_s(self) -> float:
        """Length of the cells for phases: two round trips or steps, 50 ms at least."""
        return max(0.05, 2 * self.srtt_s, 2 * self.step_s)


def life_of(recording: Recording, label: str) -> tuple[float, float]:
    """When a flow began and ended within a recording, s.

    A connection that was not seen to close lasts until the end of the recording.
    """
    firsts, lasts = [], []
    names = ("acks", "samples", "packets", "states", "retransmits", "life")
    for name in names:
        times = recording.flow(name, label).get("t_s", np.zeros(0))
        if len(times):
            firsts.append(float(times.min()))
            lasts.append(float(times.max()))
    if not firsts:
        return 0.0, 0.0
    end = max(lasts)
    closed = "CLOSE" in set(recording.flow("life", label)["new"])
    whole = recording.kind == "cell" or len(recording.flow("packets", label)["t_s"])
    if not closed and not whole:
        end = max(end, recording.duration_s)
    return max(min(firsts), 0.0), end


def segment_size(recording: Recording, label: str, una: Array) -> float:
    """MSS: polled, noted, or the least step that ACKs take commonly."""
    polled = recording.flow("samples", label)["mss_bytes"]
    polled = polled[polled > 0]
    if len(polled):
        return float(np.median(polled))
    noted = recording.flows.get(label, {}).get("mss")
    if noted:
        return float(noted)
    steps, counts = np.unique(np.diff(una), return_counts=True)
    common = steps[(steps >= 200) & (steps <= 9000) & (counts >= max(2, len(una) // 50))]
    return float(common[0]) if len(common) else DEFAULT_MSS


def former_cwnd(t_s: Array, cwnd: Array, events: list[Event]) -> Array:
    """At each instant, cwnd just before the last reduction; 0 before the first one."""
    begins = np.array([e.t_s for e in events if not e.spurious], dtype=float)
    made = np.zeros(len(t_s))
    if not len(begins) or not len(t_s):
        return made
    before = np.clip(np.searchsorted(t_s, begins, side="right") - 1, 0, None)
    last = np.searchsorted(begins, t_s, side="right") - 1
    return np.where(last >= 0, cwnd[before[np.clip(last, 0, None)]], 0.0)


def state_overlays(events: list[Event]) -> list[tuple[float, float, str]]:
    """Stretches that belong to recoveries and timeouts."""
    made = []
    for event in events:
        if event.kind == "rto":
            made.append((event.t_s - event.silent_s, event.end_s, "timeout"))
        else:
            made.append((event.t_s, event.end_s, "recovery"))
    return made


def held_at_polls(samples: Columns) -> npt.NDArray[np.int64]:
    """At each poll, what in the sender would have held it back: send buffer, program, unknown.

    A program that waits for room is woken when a third of the buffer is free, so a queue of less
    than two thirds of it means that the program has not filled it.  The kernel's sndbuf_limited is
    used where memory was not polled; it misses most of the waiting when the buffer is small (0 s
    in a test with a send buffer of 8 kB that limits all the time).
    """
    queued, room = (samples[n].astype(float) for n in ("wmem_bytes", "sndbuf_bytes"))
    made = np.full(len(queued), CODE[SENDER], dtype=np.int64)
    told = ~np.isnan(queued) & (room > 0)
    full = queued >= room * 2 / 3
    # A poll may come between an ACK that frees room and the program that fills it again.
    full = full | np.append(full[1:], False) | np.append(False, full[:-1])
    made[told] = np.where(full[told], CODE[SNDBUF], CODE[APPLICATION])
    waited = np.diff(samples["sndbuf_limited_us"].astype(float), prepend=np.nan) / 1e6
    spans = np.diff(samples["t_s"], prepend=np.nan)
    counted = ~told & (waited >= 0.5 * spans)
    made[counted] = CODE[SNDBUF]
    return made


def kernel_account(samples: Columns) -> dict[str, float] | None:
    """TCP_INFO's own seconds between the first and the last poll that has them."""
    known = np.flatnonzero(~np.isnan(samples["busy_us"].astype(float)))
    if len(known) < 2:
        return None
    first, last = int(known[0]), int(known[-1])
    made = {"start_s": float(samples["t_s"][first]), "end_s": float(samples["t_s"][last])}
    names = {"busy": "busy_us", "receiver": "rwnd_limited_us", "sndbuf": "sndbuf_limited_us"}
    for name, column in names.items():
        values = np.nan_to_num(samples[column].astype(float))
        made[name] = float(values[last] - values[first]) / 1e6
    return made
