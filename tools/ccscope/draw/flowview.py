"""What one flow of a recording can show: curves, marks, states, packets.

Each recorder sees something else: rows per ACK before or after it, polls, a capture.  Here is the
one place that decides which of them a curve is taken from.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ccscope.draw.curves import EMPTY, Curve, bin_width, cumulated, finite_ssthresh
from ccscope.draw.look import mark_kind
from ccscope.errors import CcscopeError
from ccscope.recording import Array, Columns, Recording
from ccscope.schema import CA_STATES

_POLLED = "seen by polling; what is shorter than the interval is missing"


@dataclass(frozen=True)
class Mark:
    """An event of a flow.

    Attributes:
        t_s: when.
        kind: key of look.MARKS.
        cause, evidence: as in the table ``states``.
    """

    t_s: float
    kind: str
    cause: str
    evidence: str


@dataclass(frozen=True)
class Stay:
    """A stretch of time in one CA state, with the cause of entering it."""

    start_s: float
    stop_s: float
    state: str
    cause: str


@dataclass(frozen=True)
class Shade:
    """A shaded stretch or instant: an outage, a handoff, a rate change of a lab cell."""

    start_s: float
    stop_s: float
    text: str


@dataclass(frozen=True)
class PacketGraph:
    """A packet time-sequence graph; all in bytes, relative as the source counts them.

    Attributes:
        t, low, high, again: data segments: time, first byte, byte after the last, sent again.
        acked, edge: ACK line; end of the offered window.
        sack_t, sack_low, sack_high: SACK blocks.
        source: ``packets``, ``capture`` or ``trace``; of a trace the data are what lies between
            two values of snd_nxt and the segments sent again whose place is known.
    """

    t: Array
    low: Array
    high: Array
    again: Array
    acked: Curve
    edge: Curve
    sack_t: Array
    sack_low: Array
    sack_high: Array
    source: str

    def __len__(self) -> int:
        return len(self.t) + len(self.acked)


class FlowView:
    """One flow of a recording; everything is read when it is asked for and kept."""

    def __init__(self, recording: Recording, label: str) -> None:
        self.recording = recording
        self.label = label

    @property
    def info(self) -> dict[str, Any]:
        """Addresses, ports, algorithm."""
        return self.recording.flows.get(self.label, {})

    @cached_property
    def acks(self) -> Columns:
        """Rows per ACK: those after it was processed where there are any, else those before."""
        rows = self.recording.flow("acks", self.label)
        after = rows["phase"] == "after"
        if after.any() and not after.all():
            rows = {name: values[after] for name, values in rows.items()}
        return rows

    @cached_property
    def samples(self) -> Columns:
        """Polls of the socket."""
        return self.recording.flow("samples", self.label)

    @property
    def source(self) -> str:
        """Where window and round-trip times come from: ``acks``, ``samples`` or empty."""
        return "acks" if len(self.acks["t_s"]) else "samples" if len(self.samples["t_s"]) else ""

    def _curve(self, name: str) -> Curve:
        """A column of ``acks``, or of ``samples`` when it is not there."""
        for rows in (self.acks, self.samples):
            if name in rows and len(rows["t_s"]):
                made = Curve(rows["t_s"], rows[name].astype(float))
                if made.known:
                    return made
        return EMPTY

    @cached_property
    def cwnd(self) -> Curve:
        """Congestion window, segments."""
        return self._curve("cwnd_segs")

    @cached_property
    def ssthresh(self) -> Curve:
        """Slow-start threshold, segments; NaN while there is none."""
        found = self._curve("ssthresh_segs")
        return Curve(found.t, finite_ssthresh(found.y))

    @cached_property
    def srtt_ms(self) -> Curve:
        """Smoothed round-trip time, ms; NaN before the first."""
        found = self._curve("srtt_us")
        return Curve(found.t, np.where(found.y > 0, found.y / 1e3, np.nan))

    @cached_property
    def min_rtt_ms(self) -> Curve:
        """Lowest round-trip time of the kernel's window, ms."""
        found = self._curve("min_rtt_us")
        return Curve(found.t, np.where(found.y < 0xFFFFFFFF, found.y / 1e3, np.nan))

    @cached_property
    def rwnd_bytes(self) -> Curve:
        """Window that the receiver offers."""
        return self._curve("snd_wnd_bytes")

    @cached_property
    def mss(self) -> float:
        """Maximum segment size in bytes; NaN when nothing tells."""
        if self.info.get("mss"):
            return float(self.info["mss"])
        polled = self.samples["mss_bytes"].astype(float)
        if len(polled) and not np.isnan(polled).all():
            return float(np.nanmedian(polled))
        packets = self.recording.flow("packets", self.label)
        sizes = packets["len_bytes"][packets["direction"] == "out"].astype(float)
        return float(sizes.max()) if len(sizes) and sizes.max() > 0 else float("nan")

    @cached_property
    def inflight_segs(self) -> Curve:
        """Segments in flight as TCP counts them: what is SACKed or lost is not."""
        for rows in (self.acks, self.samples):
            parts = [
                rows[n].astype(float)
                for n in ("unacked_segs", "sacked_segs", "lost_segs", "retrans_segs")
            ]
            if len(rows["t_s"]) and not np.isnan(parts[0]).all():
                out, sacked, lost, again = (np.nan_to_num(p) for p in parts)
                return Curve(rows["t_s"], out - sacked - lost + again)
        made = self._curve("inflight_bytes")
        return Curve(made.t, made.y / self.mss) if made.known and self.mss > 0 else EMPTY

    @cached_property
    def inflight_bytes(self) -> Curve:
        """Bytes sent and not acknowledged."""
        found = self._curve("inflight_bytes")
        if found.known or not len(self.samples["t_s"]):
            return found
        return Curve(self.samples["t_s"], self.samples["unacked_segs"].astype(float) * self.mss)

    @cached_property
    def acked_bytes(self) -> Curve:
        """Bytes acknowledged so far."""
        found = self._curve("una_bytes")
        if found.known:
            return found
        found = self._curve("bytes_acked")
        if found.known:
            return found
        acked = self.sequence.acked
        return Curve(acked.t, acked.y - acked.y[0]) if len(acked) else EMPTY

    @cached_property
    def arrived_bytes(self) -> Curve:
        """Bytes at the receiver so far, at the edges of bins; empty when nobody counted."""
        return cumulated(self.recording.flow("goodput", self.label))

    @property
    def goodput_of(self) -> str:
        """What goodput is taken from: ``receiver``, ``capture`` or ``acked`` (or empty)."""
        if len(self.arrived_bytes):
            names = {s.get("name") for s in self.recording.meta.get("sources", [])}
            return "capture" if "pcap" in names else "receiver"
        return "acked" if len(self.acked_bytes) else ""

    @property
    def delivered_bytes(self) -> Curve:
        """Bytes delivered so far, by the best source (``goodput_of``)."""
        return self.arrived_bytes if len(self.arrived_bytes) else self.acked_bytes

    @cached_property
    def least_bin_s(self) -> float:
        """Shortest bin in which a rate means anything."""
        if len(self.arrived_bytes):
            return bin_width(self.recording.flow("goodput", self.label)) or 0.1
        return 0.01 if self.source == "acks" else 0.1

    # ---- states ----

    @cached_property
    def state_rows(self) -> list[tuple[float, str, str, str, str]]:
        """Changes of the CA state: time, state, state left, cause, evidence."""
        rows = self.recording.flow("states", self.label)
        if len(rows["t_s"]):
            texts = ([t or "" for t in rows[n]] for n in ("state", "left", "cause", "evidence"))
            return list(zip(rows["t_s"].tolist(), *texts, strict=True))
        polled = self.samples["ca_state"].astype(float)
        made, last = [], "Open"
        for t, number in zip(self.samples["t_s"].tolist(), polled.tolist(), strict=True):
            state = CA_STATES[int(number)] if 0 <= number < len(CA_STATES) else last
            if state != last:
                made.append((t, state, last, "", _POLLED))
            last = state
        return made

    @cached_property
    def marks(self) -> list[Mark]:
        """Events that reduce the window, or undo that, in order of time."""
        made = []
        for t, state, _, cause, evidence in self.state_rows:
            kind = mark_kind(cause, state)
            if kind:
                made.append(Mark(t, kind, cause or state, evidence))
        return made

    def stays(self, start: float, stop: float) -> list[Stay]:
        """CA states from ``start`` to ``stop``; empty when nothing tells them."""
        if not self.state_rows and not self.source:
            return []
        first = self.state_rows[0][2] if self.state_rows and self.state_rows[0][2] else "Open"
        changes = [(start, first, "")]
        for t, state, _, cause, _ in self.state_rows:
            if t >= stop:
                break
            if t <= start:
                changes = [(start, state, cause)]
            elif state != changes[-1][1] or cause != "undo":
                changes.append((t, state, cause))
        ends = [*(c[0] for c in changes[1:]), stop]
        return [
            Stay(begin, end, state, cause)
            for (begin, state, cause), end in zip(changes, ends, strict=True)
            if end > begin
        ]

    @cached_property
    def retransmit_times(self) -> Array:
        """When segments were sent again."""
        again: Array = self.recording.flow("retransmits", self.label)["t_s"]
        if len(again):
            return again
        packets = self.recording.flow("packets", self.label)
        times: Array = packets["t_s"]
        again = times[(packets["direction"] == "out") & (packets["repeated"] == 1)]
        return again

    # ---- packets ----

    @cached_property
    def sequence(self) -> PacketGraph:
        """The packet time-sequence graph from the best source; empty when there is none."""
        packets = self.recording.flow("packets", self.label)
        if len(packets["t_s"]):
            return _of_packets(packets, "packets")
        captured = self.recording.captured().get(self.label)
        if captured is not None:
            return _of_packets(captured, "capture")
        return _of_acks(self.acks, self.recording.flow("retransmits", self.label))

    @cached_property
    def rtt_samples_ms(self) -> Curve:
        """Round-trip times from the packets, ms: of each ACK of data that was sent once."""
        seen = self.sequence
        if seen.source == "trace" or not len(seen.acked) or not len(seen.t):
            return EMPTY
        once = ~np.isin(seen.high, seen.high[seen.again])
        ends, sent = seen.high[once], seen.t[once]
        order = np.argsort(ends, kind="stable")
        ends, sent = ends[order], sent[order]
        new = np.diff(seen.acked.y, prepend=-np.inf) > 0
        acks, times = seen.acked.y[new], seen.acked.t[new]
        place = np.minimum(np.searchsorted(ends, acks), max(len(ends) - 1, 0))
        if not len(ends):
            return EMPTY
        good = (ends[place] == acks) & (sent[place] <= times)
        made = Curve(times[good], (times[good] - sent[place][good]) * 1e3)
        return made if self._at_sender(made) else EMPTY

    def _at_sender(self, samples: Curve) -> bool:
        """Whether the capture was made near the sender: elsewhere it sees a part of the RTT."""
        if not len(samples):
            return True
        if self.srtt_ms.known:
            return float(np.median(samples.y)) > 0.5 * float(np.nanmin(self.srtt_ms.y))
        packets = self.recording.flow("packets", self.label)
        syn = [packets["t_s"][packets["flags"] == flags] for flags in ("S", "SA", "A")]
        if any(not len(times) for times in syn):
            return True
        first, second, third = (float(times[0]) for times in syn)
        return second - first >= third - second


def _of_packets(packets: Columns, source: str) -> PacketGraph:
    out = packets["direction"] == "out"
    data = out & (packets["len_bytes"] > 0)
    back = ~out & ~np.isnan(packets["ack_bytes"].astype(float))
    t, ack = packets["t_s"][back], packets["ack_bytes"][back].astype(float)
    low = packets["seq_bytes"][data].astype(float)
    blocks = _sack_blocks(t, packets["sack"][back])
    return PacketGraph(
        packets["t_s"][data],
        low,
        low + packets["len_bytes"][data].astype(float),
        packets["repeated"][data] == 1,
        Curve(t, np.fmax.accumulate(ack) if len(ack) else ack),
        Curve(t, ack + packets["window_bytes"][back].astype(float)),
        *blocks,
        source,
    )


def _sack_blocks(times: Array, texts: Array) -> tuple[Array, Array, Array]:
    found: list[tuple[float, float, float]] = []
    some = np.flatnonzero(texts != None)  # noqa: E711 - elementwise
    for i in some.tolist():
        for block in texts[i].split(","):
            first, _, last = block.rpartition("-")
            if first:
                found.append((times[i], float(first), float(last)))
    columns = np.array(found, dtype=float).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def _of_acks(acks: Columns, retransmits: Columns) -> PacketGraph:
    """What rows per ACK tell of the sequence space: snd_una, snd_nxt, the window's end."""
    t, una = acks["t_s"], acks["una_bytes"].astype(float)
    sent = una + acks["inflight_bytes"].astype(float)
    good = ~np.isnan(sent)
    t, una, sent, window = t[good], una[good], sent[good], acks["snd_wnd_bytes"][good]
    top = np.maximum.accumulate(sent) if len(sent) else sent
    before = np.concatenate([una[:1], top[:-1]])
    grown = top > before
    again_t, again_at = retransmits["t_s"], retransmits["seq_bytes"].astype(float)
    # Where the source does not say which segment it was: most likely the first outstanding one.
    again_at = np.where(np.isnan(again_at), Curve(t, una).at(again_t), again_at)
    usable = ~np.isnan(again_at)
    again_t, again_at = again_t[usable], again_at[usable]
    size = float(np.median(np.diff(una)[np.diff(una) > 0])) if (np.diff(una) > 0).any() else 0.0
    times = np.concatenate([t[grown], again_t])
    order = np.argsort(times, kind="stable")
    nothing = np.zeros(0)
    return PacketGraph(
        times[order],
        np.concatenate([before[grown], again_at])[order],
        np.concatenate([top[grown], again_at + size])[order],
        np.concatenate([np.zeros(int(grown.sum()), bool), np.ones(len(again_t), bool)])[order],
        Curve(t, una),
        Curve(t, una + window.astype(float)),
        *(nothing, nothing, nothing),
        "trace",
    )


# ---- a recording ----


def views(recording: Recording, labels: Sequence[str] = ()) -> list[FlowView]:
    """The flows asked for, or all that have any rows, the busiest first.

    Raises:
        CcscopeError: a flow is not in the recording, or no flow has anything to show.
    """
    known = list(recording.flows) or _labels_of_tables(recording)
    unknown = [label for label in labels if label not in known]
    if unknown:
        raise CcscopeError(
            f"--flow {unknown[0]}: {recording.path} has no such flow; it has "
            f"{', '.join(known[:20]) or 'none'}"
        )
    counts = _row_counts(recording)
    chosen = list(labels) or sorted(
        (label for label in known if counts.get(label)), key=lambda n: (-counts[n], known.index(n))
    )
    if not chosen and recording.capture is not None:
        found = recording.captured()
        chosen = [label for label in known if label in found]
    if not chosen:
        problems = "; ".join(recording.problems)
        raise CcscopeError(
            f"{recording.path} has no rows of any flow to show"
            + (f" ({problems})" if problems else "")
        )
    return [FlowView(recording, label) for label in chosen]


_COUNTED = ("acks", "samples", "packets", "goodput", "states")


def _row_counts(recording: Recording) -> dict[str, int]:
    made: dict[str, int] = {}
    for name in _COUNTED:
        owners = recording.table(name).get("flow", np.zeros(0, dtype=object))
        labels, counts = np.unique(owners[owners != None].astype(str), return_counts=True)  # noqa: E711
        for label, count in zip(labels.tolist(), counts.tolist(), strict=True):
            made[label] = made.get(label, 0) + count
    return made


def _labels_of_tables(recording: Recording) -> list[str]:
    """Labels in the tables of a recording whose ``recording.json`` is lost."""
    return sorted(_row_counts(recording), key=lambda n: (len(n), n))


def span(recording: Recording, flows: Sequence[FlowView]) -> float:
    """Seconds to be shown: the recording's length, or up to the last row."""
    if recording.duration_s > 0:
        return recording.duration_s
    last = [rows["t_s"][-1] for f in flows for rows in (f.acks, f.samples) if len(rows["t_s"])]
    last += [f.sequence.t[-1] for f in flows if len(f.sequence.t)]
    return float(max(last, default=0.0)) or 1.0


def shades(recording: Recording) -> tuple[Shade, ...]:
    """The impairments of a lab cell (its ``plan.json``); none for other recordings."""
    try:
        rows = json.loads((recording.path / "plan.json").read_text()).get("intervals", [])
    except OSError:
        return ()
    except ValueError as error:
        recording.problems.append(f"plan.json is damaged: {error}")
        return ()
    return tuple(
        Shade(r["start_us"] / 1e6, r["end_us"] / 1e6, r["text"] or r["kind"]) for r in rows
    )


def stages(recording: Recording) -> list[str]:
    """Stages of the queue table, the busiest first."""
    owners = recording.table("queue")["stage"]
    names, counts = np.unique(owners.astype(str), return_counts=True)
    return [str(names[i]) for i in np.argsort(-counts, kind="stable")]


def queue(recording: Recording, stage: str) -> Curve:
    """Packets in the queue of a stage."""
    rows = recording.flow("queue", stage)
    return Curve(rows["t_s"], rows["packets"].astype(float))
