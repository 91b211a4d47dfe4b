"""The time-sequence picture that explains TCP-Cherry: data, gap, supplements and their ACKs.

Everything in it is on the sender's wire (``airlab.wire``): a dot is a data segment, a diamond a
supplement, a green stroke what an ACK reported out of order, the line what is acknowledged in
order.  The gap is the wedge between the data sent so far and the first supplement: it closes as
data fills it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Canvas

from airlab.results import load_cell
from airlab.wire import DATA, REPAIR, SUPPLEMENT, SUPPLEMENT_AGAIN, Sent, Wire, read_wire

INK, SOFT = "#222222", "#8a8a8a"
BLUE, ORANGE, GREEN, PURPLE, SAND = "#0072B2", "#D55E00", "#009E73", "#AA4499", "#F2C14E"
LEAST_SILENCE_S = 0.2
"""Shorter waits after an outage are not pointed out."""
_MARKS: dict[str, tuple[str, dict[str, Any]]] = {
    DATA: ("data", {"marker": "o", "color": BLUE, "ms": 2.6}),
    SUPPLEMENT: ("supplement (low priority)", {"marker": "D", "color": ORANGE, "ms": 2.6}),
    SUPPLEMENT_AGAIN: (
        "supplement, sent again",
        {"marker": "D", "color": ORANGE, "ms": 2.6, "mfc": "none", "mew": 0.5},
    ),
    REPAIR: ("data, sent again", {"marker": "x", "color": PURPLE, "ms": 4, "mew": 1.1}),
}


@dataclass(frozen=True)
class Gap:
    """What a phase skipped: ``edge`` is how far data had come, as (time, position) steps."""

    start_s: float
    first: int
    top: int
    edge: tuple[tuple[float, int], ...]


def gaps(sent: Sequence[Sent]) -> list[Gap]:
    """The gaps before supplements: a supplement that does not follow the last one opens one."""
    found: list[Gap] = []
    end, data_end = -1, 0
    for row, one in enumerate(sent):
        if one.kind in (DATA, REPAIR):
            data_end = max(data_end, one.start + one.length)
        elif one.kind == SUPPLEMENT:
            if one.start != end and one.start > data_end:
                edge = tuple(_edge(sent[row:], data_end, one.start))
                found.append(Gap(one.t_s, data_end, one.start, edge))
            end = one.start + one.length
    return found


def _edge(sent: Sequence[Sent], from_: int, top: int) -> Iterator[tuple[float, int]]:
    """How data fills a gap, until it is full."""
    at = from_
    yield sent[0].t_s, at
    for one in sent:
        reached = one.start + one.length
        if one.kind in (DATA, REPAIR) and at < reached <= top:
            at = reached
            yield one.t_s, at
            if at >= top:
                return
    yield sent[-1].t_s, at


def silences(
    sent: Sequence[Sent], outages: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """From the end of each outage until something was sent, where that took long."""
    found = []
    for _, end in outages:
        after = next((one.t_s for one in sent if one.t_s >= end), None)
        if after is not None and after - end >= LEAST_SILENCE_S:
            found.append((end, after))
    return found


def canvas(title: str, folder: Path, span: tuple[float, float]) -> Canvas:
    """The picture of a cell's first measured flow between two times.

    Raises:
        CcscopeError: the cell keeps no capture (``trace.keep_pcap``), or a damaged one.
    """
    cell = load_cell(folder)
    flow = next(f for f in cell.flows if f.role == "measured")
    wire = read_wire(folder / "cap.pcap", flow.port, cell.start_realtime_ns or 0)
    plan = json.loads((folder / "plan.json").read_text())
    outages = [
        (i["start_us"] / 1e6, i["end_us"] / 1e6) for i in plan["intervals"] if i["kind"] == "outage"
    ]
    return draw(title, wire, outages, span)


def draw(
    title: str, wire: Wire, outages: Sequence[tuple[float, float]], span: tuple[float, float]
) -> Canvas:
    """The picture of a flow; positions are in segments of the longest length sent."""
    low, high = span
    mss = max((one.length for one in wire.sent), default=1)
    figure = Canvas(figsize=(7.4, 4.4), dpi=140)
    axes = figure.add_subplot()
    axes.grid(visible=False)
    axes.set_axisbelow(True)
    for begin, end in outages:
        if begin < high and end > low:
            axes.axvspan(begin, end, color="#ececec", linewidth=0, label="shadow: nothing passes")
    _gaps(axes, wire, mss, span)
    _answers(axes, wire, mss, span)
    for kind, (name, look) in _MARKS.items():
        rows = [one for one in wire.sent if one.kind == kind and low <= one.t_s <= high]
        if rows:
            axes.plot(
                [one.t_s for one in rows], [one.start / mss + 0.5 for one in rows],
                linestyle="", label=name, zorder=3, **look,
            )  # fmt: skip
    inside = [one.start / mss for one in wire.sent if low <= one.t_s <= high]
    bottom, top = (min(inside), max(inside)) if inside else (0.0, 1.0)
    room = (top - bottom) * 0.05 + 1
    axes.set_ylim(bottom - room, top + 3 * room)
    axes.set_xlim(low, high)
    for begin, end in silences(wire.sent, outages):
        if low <= begin and end <= high:
            _arrow(axes, (begin, top + room), (end, top + room))
            axes.text(
                (begin + end) / 2, top + 1.2 * room, f"{end - begin:.2f} s of silence",
                fontsize=8, color=INK, ha="center", va="bottom",
            )  # fmt: skip
    axes.set_xlabel("time, s")
    axes.set_ylabel("position in the stream, segments")
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK)
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    figure.legend(
        named.values(), named.keys(), loc="outside lower center", ncols=3, fontsize=8,
        markerscale=1.6,
    )  # fmt: skip
    return figure


def _gaps(axes: Any, wire: Wire, mss: int, span: tuple[float, float]) -> None:  # noqa: ANN401
    low, high = span
    for gap in gaps(wire.sent):
        if not low <= gap.start_s <= high:
            continue
        times = [t for t, _ in gap.edge]
        filled = [at / mss for _, at in gap.edge]
        axes.fill_between(
            times, filled, gap.top / mss, step="post", color=SAND, alpha=0.28, linewidth=0,
            label="gap: skipped, filled later", zorder=1,
        )  # fmt: skip
        segs = round((gap.top - gap.first) / mss)
        x = gap.start_s - (high - low) * 0.012
        _arrow(axes, (x, gap.first / mss), (x, gap.top / mss))
        axes.text(
            gap.start_s + (high - low) * 0.008, (gap.first + gap.top) / 2 / mss, f"{segs} skipped",
            fontsize=8, color=INK, clip_on=True, va="center",
        )  # fmt: skip


def _answers(axes: Any, wire: Wire, mss: int, span: tuple[float, float]) -> None:  # noqa: ANN401
    low, high = span
    acks = [(t, una / mss) for t, una in wire.acks if low <= t <= high]
    if acks:
        axes.plot(
            [low, *(t for t, _ in acks), high],
            [acks[0][1], *(una for _, una in acks), acks[-1][1]],
            drawstyle="steps-post", color=SOFT, linewidth=1.0, label="acknowledged in order",
            zorder=2,
        )  # fmt: skip
    seen = [one for one in wire.sacks if low <= one.t_s <= high]
    if seen:
        axes.vlines(
            [one.t_s for one in seen], [one.start / mss for one in seen],
            [one.end / mss for one in seen], color=GREEN, linewidth=2.2,
            label="ACK of a supplement", zorder=2,
        )  # fmt: skip


def _arrow(
    axes: Any,  # noqa: ANN401 - matplotlib
    from_: tuple[float, float],
    to: tuple[float, float],
) -> None:
    axes.annotate(
        "", from_, to, arrowprops={"arrowstyle": "<->", "color": INK, "linewidth": 0.8},
        annotation_clip=True,
    )  # fmt: skip
