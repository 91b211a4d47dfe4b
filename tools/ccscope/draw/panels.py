"""Panels of a timeline: each function draws one kind of thing onto matplotlib axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ccscope.draw import look
from ccscope.draw.curves import Curve, nice, rate, reduced
from ccscope.draw.flowview import FlowView, Mark, PacketGraph, Shade, queue, stages
from ccscope.recording import Array
from ccscope.schema import CA_STATES

POINTS = 1200  # of a curve in a figure: some more than a printed line has dots
_BARS = 1500  # beyond so many segments a time-sequence graph shows columns of them
_BINS = 120
_BIG_MARKS, _CROWD = 60, 150  # of a kind, in view; more are drawn smaller
_ARROWS = 300
_SUM = "sum of flows"
_FAR = 2.5  # a window's end that is further up than this, times the data's range, is left out
Axes = Any  # matplotlib is not typed


@dataclass(frozen=True)
class Track:
    """A flow as it is drawn.

    Attributes:
        view: the flow.
        name: for legends.
        style: colour, linestyle, marker as look.styles gives them.
        panel: title of the panel that it shares with the tracks of the same title, in kinds
            that have a panel for each.
        shades: impairments.
    """

    view: FlowView
    name: str
    style: Mapping[str, Any]
    panel: str
    shades: tuple[Shade, ...] = ()

    @property
    def colour(self) -> str:
        """Its colour."""
        return str(self.style["color"])


@dataclass
class Canvas:
    """Axes with the range of time that they show, and what belongs into the legend.

    ``used`` collects what was drawn by name, so that the legend has no more and no less.
    """

    axes: Axes
    start: float
    stop: float
    used: dict[str, Any] = field(default_factory=dict)

    def step(self, curve: Curve, name: str = "", **style: Any) -> Curve:  # noqa: ANN401
        """Draw a step curve, reduced to what can be seen; returns what was drawn."""
        made = reduced(curve, self.start, self.stop, POINTS)
        if not made.known:
            return made
        how = "steps-post" if len(made) < POINTS // 2 else "default"
        (line,) = self.axes.plot(made.t, made.y, drawstyle=how, **style)
        if name:
            self.used.setdefault(name, line)
        return made


def shade(axes: Axes, shades: Sequence[Shade]) -> None:
    """Shade impairments; an instant becomes a line."""
    for item in shades:
        if item.stop_s > item.start_s:
            axes.axvspan(
                *(item.start_s, item.stop_s), color="#999999", alpha=0.25, linewidth=0, zorder=0
            )
        else:
            axes.axvline(item.start_s, color="#777777", linestyle=":", linewidth=1, zorder=0)


# ---- a panel for each group of tracks ----


def cwnd(canvas: Canvas, tracks: Sequence[Track]) -> None:
    """Window, threshold and segments in flight, events, states as a ribbon above."""
    axes = canvas.axes
    for i, track in enumerate(tracks):
        view = track.view
        if len(tracks) == 1:
            flight = {"color": look.FLIGHT, "linewidth": 0.6, "alpha": 0.8, "zorder": 1.5}
            canvas.step(view.inflight_segs, "in flight", **flight)
        canvas.step(view.cwnd, color=track.colour, linewidth=1.1, label=track.name, zorder=2.5)
        faint = {"color": look.INK, "linewidth": 0.8, "linestyle": (0, (4, 2)), "zorder": 2.2}
        canvas.step(view.ssthresh, "ssthresh", **faint)
        marks(canvas, view.marks, view.cwnd)
        ribbon(canvas, view, (i, len(tracks)))
    axes.set_ylabel("segments")
    axes.set_ylim(bottom=0)


def inflight(canvas: Canvas, tracks: Sequence[Track]) -> None:
    """Bytes in flight under the congestion window and the receiver's window, in kB."""
    for track in tracks:
        view = track.view
        flight = view.inflight_bytes
        flight_kb = Curve(flight.t, flight.y / 1e3)
        made = reduced(flight_kb, canvas.start, canvas.stop, POINTS)
        if made.known and len(tracks) == 1:
            canvas.axes.fill_between(
                made.t, made.y, color=track.colour, alpha=0.2, linewidth=0, step="post"
            )
        canvas.step(flight_kb, color=track.colour, linewidth=0.8, label=track.name)
        window = Curve(view.cwnd.t, view.cwnd.y * view.mss / 1e3)
        canvas.step(window, "cwnd in bytes", color=look.INK, linewidth=0.9, linestyle=(0, (4, 2)))
    top = max((line.get_ydata().max() for line in canvas.axes.lines), default=0.0)
    far: list[float] = []
    for track in tracks:
        offered = _scaled(track.view.rwnd_bytes, 1e-3)
        seen = offered.within(canvas.start, canvas.stop)
        if seen.known and np.nanmin(seen.y) > _FAR * top > 0:
            far.append(float(np.nanmin(seen.y)))
        else:
            canvas.step(offered, "receiver's window", color=look.EDGE, linewidth=1.2)
    if far:
        _note(canvas, f"receiver's window: {min(far):.0f} kB and more")
    canvas.axes.set_ylabel("in flight, kB")
    canvas.axes.set_ylim(bottom=0)


def sequence(canvas: Canvas, tracks: Sequence[Track]) -> None:
    """The packet time-sequence graph of each track (one a panel reads best)."""
    axes = canvas.axes
    low, high = np.inf, -np.inf
    for track in tracks:
        graph = track.view.sequence
        unit = 1e6
        for name, part in sequence_parts(graph, canvas.start, canvas.stop).items():
            colour, width = _SEQUENCE[name]
            if not len(part[0]):
                continue
            count, thin = len(part[0]), name in ("data",)
            size = width * (0.7 if count > _ARROWS and thin else 1.0)
            lines = axes.vlines(
                *(part[0], part[1] / unit, part[2] / unit), colors=colour, linewidth=size
            )
            if name == "again" and count and not _tall(part, canvas, graph):
                dots = {"color": colour, "markersize": 3.5, "markeredgewidth": 0.9, "zorder": 3}
                axes.plot(part[0], part[2] / unit, "x", **dots)
            lines.set_gid(f"seq-{name}")
            lines.set_zorder(3 if name == "again" else 2.4 if name == "sack" else 2)
            canvas.used.setdefault(_SEQUENCE_TEXT[name], lines)
            if name in ("data", "again"):
                low, high = min(low, part[1].min()), max(high, part[2].max())
        green = {"color": look.ACKED, "linewidth": 1.0, "zorder": 2.6}
        line = canvas.step(_scaled(graph.acked, 1 / unit), "ACK", **green)
        if line.known:
            low, high = min(low, np.nanmin(line.y) * unit), max(high, np.nanmax(line.y) * unit)
        if high > low:
            seen = graph.edge.within(canvas.start, canvas.stop)
            near = len(seen) and np.nanmin(seen.y) < high + 0.6 * (high - low)
            if near:
                edge = {"color": look.EDGE, "linewidth": 1.0, "zorder": 2.3}
                canvas.step(_scaled(graph.edge, 1 / unit), "window's end", **edge)
                top = np.nanmin(seen.y) + 0.1 * (high - low)
                high = max(high, min(top, np.nanmax(seen.y)))
    if high > low:
        room = 0.04 * (high - low)
        axes.set_ylim(max(low - room, 0 if low >= 0 else low) / 1e6, (high + room) / 1e6)
    axes.set_ylabel("sequence, MB")
    sources = {t.view.sequence.source for t in tracks}
    _note(canvas, "from the trace" if sources == {"trace"} else "from the capture")


def _tall(part: tuple[Array, Array, Array], canvas: Canvas, graph: PacketGraph) -> bool:
    """Whether a segment is tall enough to be seen without a mark."""
    seen = graph.acked.within(canvas.start, canvas.stop)
    height = np.nanmax(seen.y) - np.nanmin(seen.y) if seen.known else 0.0
    return bool(np.median(part[2] - part[1]) * 150 > height)


_SEQUENCE = {"data": (look.DATA, 1.3), "again": (look.AGAIN, 1.6), "sack": (look.SACKED, 1.0)}
_SEQUENCE_TEXT = {"data": "data", "again": "sent again", "sack": "SACK"}


def sequence_parts(
    graph: PacketGraph, start: float, stop: float
) -> dict[str, tuple[Array, Array, Array]]:
    """The upright lines of a time-sequence graph: times, lower and upper ends in bytes.

    Up to 1500 segments in the range each have a line of their own; more are drawn as the columns
    that they fill, which loses no extreme.  ``data`` are first transmissions, ``again`` the others.
    """
    made = {}
    again = graph.again
    for name, t, low, high in (
        ("data", graph.t[~again], graph.low[~again], graph.high[~again]),
        ("again", graph.t[again], graph.low[again], graph.high[again]),
        ("sack", graph.sack_t, graph.sack_low, graph.sack_high),
    ):
        first, last = np.searchsorted(t, (start, np.nextafter(stop, np.inf)))
        part = (t[first:last], low[first:last], high[first:last])
        made[name] = part if last - first <= _BARS else columns(part, (start, stop), _BARS)
    return made


def columns(
    part: tuple[Array, Array, Array], span: tuple[float, float], count: int
) -> tuple[Array, Array, Array]:
    """Upright lines as the columns that they fill: middle, lowest and highest end of each."""
    (t, low, high), (start, stop) = part, span
    place = np.minimum(((t - start) / (stop - start) * count).astype(int), count - 1)
    firsts = np.flatnonzero(np.diff(place, prepend=-1))
    middle = start + (place[firsts] + 0.5) * (stop - start) / count
    return middle, np.minimum.reduceat(low, firsts), np.maximum.reduceat(high, firsts)


def queue_(canvas: Canvas, tracks: Sequence[Track]) -> None:
    """Packets in the bottleneck's queue (lab cells)."""
    recording = tracks[0].view.recording
    for stage in stages(recording)[:1]:
        made = reduced(queue(recording, stage), canvas.start, canvas.stop, POINTS // 2)
        canvas.axes.fill_between(made.t, made.y, color=tracks[0].colour, linewidth=0, step="post")
    canvas.axes.set_ylabel("queue, packets")
    canvas.axes.set_ylim(bottom=0)


# ---- one panel for all tracks ----


def throughput(canvas: Canvas, tracks: Sequence[Track]) -> None:
    """Goodput in bins; with several flows of one recording also their sum."""
    shown = [t for t in tracks if len(t.view.delivered_bytes)]
    width = max([t.view.least_bin_s for t in shown], default=0.1)
    width = nice(max((canvas.stop - canvas.start) / _BINS, width))
    total: Curve | None = None
    for track in shown:
        made = rate(track.view.delivered_bytes, canvas.start, canvas.stop, width)
        _rate_line(canvas, made, width, track.name, track.style)
        total = made if total is None else Curve(made.t, total.y + made.y)
    together = len({id(t.view.recording) for t in shown}) == 1 and len(shown) > 1
    if total is not None and together:
        style = {"color": look.INK, "linestyle": (0, (1, 1)), "zorder": 1.8}
        _rate_line(canvas, total, width, _SUM, style)
    of = {t.view.goodput_of for t in shown}
    what = "acknowledged" if of == {"acked"} else "goodput"
    canvas.axes.set_ylabel(f"{what}, Mbit/s")
    _note(canvas, f"bins of {width:g} s")
    canvas.axes.set_ylim(bottom=0)


def _rate_line(
    canvas: Canvas, made: Curve, width: float, name: str, style: Mapping[str, Any]
) -> None:
    t = np.append(made.t, made.t[-1] + width)
    y = np.append(made.y, made.y[-1]) / 1e6
    plain = {k: v for k, v in style.items() if k != "marker"}
    (line,) = canvas.axes.plot(t, y, drawstyle="steps-post", linewidth=1.2, label=name, **plain)
    if name == _SUM:
        canvas.used.setdefault(name, line)


def rtt(canvas: Canvas, tracks: Sequence[Track]) -> None:
    """Smoothed and lowest round-trip time; of a capture that of every ACK."""
    for track in tracks:
        view, one = track.view, len(tracks) == 1
        points = view.rtt_samples_ms
        inside = (points.t >= canvas.start) & (points.t <= canvas.stop)
        if inside.any() and (one or view.source == ""):
            made = reduced(
                Curve(points.t[inside], points.y[inside]), canvas.start, canvas.stop, 4000
            )
            colour = "#AAAAAA" if one else track.colour
            dots = {"color": colour, "markersize": 1.4, "markeredgewidth": 0, "zorder": 1.5}
            (line,) = canvas.axes.plot(made.t, made.y, ".", rasterized=len(made) > 1500, **dots)
            if one or view.source == "":
                canvas.used.setdefault("each ACK (capture)", line)
        canvas.step(view.srtt_ms, color=track.colour, linewidth=1.1, label=track.name)
        low = {"color": track.colour if not one else look.INK, "linewidth": 0.8}
        canvas.step(view.min_rtt_ms, "lowest RTT", linestyle=(0, (4, 2)), **low)
    canvas.axes.set_ylabel("RTT, ms")
    canvas.axes.set_ylim(bottom=0)


def acked(canvas: Canvas, tracks: Sequence[Track]) -> None:
    """Bytes acknowledged, one curve a track, retransmissions as crosses."""
    for track in tracks:
        view = track.view
        total = _scaled(view.acked_bytes, 1e-6)
        plain = {k: v for k, v in track.style.items() if k != "marker"}
        canvas.step(total, linewidth=1.3, label=track.name, **plain)
        times = view.retransmit_times
        times = times[(times >= canvas.start) & (times <= canvas.stop)]
        moments = times[:: max(1, len(times) // 60)]
        if len(moments) and len(total):
            at = np.interp(moments, total.t, total.y)
            cross = {"markersize": 3, "markeredgewidth": 0.6, "color": track.colour}
            canvas.axes.plot(moments, at, "x", **cross)
    canvas.axes.set_ylabel("acknowledged, MB (crosses: retransmissions)")
    canvas.axes.set_ylim(bottom=0)


def states(canvas: Canvas, tracks: Sequence[Track]) -> None:
    """A bar of CA states for each track, with the marks of its events."""
    axes = canvas.axes
    for row, track in enumerate(tracks):
        _bars(axes, track.view, (canvas.start, canvas.stop), (row - 0.2, 0.56), {})
        level = Curve(np.array([-np.inf]), np.array([row - 0.34]))
        marks(canvas, track.view.marks, level, small=True)
    axes.set_yticks(range(len(tracks)), [t.name for t in tracks])
    axes.set_ylim(len(tracks) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


# ---- parts ----


def _note(canvas: Canvas, text: str) -> None:
    """A small remark above the panel, at the right."""
    canvas.axes.set_title(text, loc="right", fontsize=7, color="#666666", pad=2)


def _scaled(curve: Curve, by: float) -> Curve:
    return Curve(curve.t, curve.y * by)


def marks(canvas: Canvas, events: Sequence[Mark], level: Curve, *, small: bool = False) -> None:
    """Mark events on a curve, a shape and colour for each kind."""
    inside = [m for m in events if canvas.start <= m.t_s <= canvas.stop]
    for kind, style in look.MARKS.items():
        t = np.array([m.t_s for m in inside if m.kind == kind])
        if not len(t):
            continue
        # The level from which it fell: that before the event.
        y = level.at(np.nextafter(t, -np.inf))
        many = small or len(t) > _BIG_MARKS
        size = 2.6 if len(t) > _CROWD else 3.6 if many else 5.5
        (line,) = canvas.axes.plot(
            *(t, y, style.shape),
            color=style.colour,
            markersize=size,
            markeredgecolor="#1C1C1C",
            markeredgewidth=size / 10,
            zorder=4,
            clip_on=False,
            gid=f"mark-{kind}",
        )
        canvas.used.setdefault(style.text, line)


def ribbon(canvas: Canvas, view: FlowView, place: tuple[int, int] = (0, 1)) -> None:
    """Draw the CA states as a strip just above the axes; ``place``: which of how many."""
    height = 0.07 / place[1]
    strip = {"transform": canvas.axes.get_xaxis_transform(), "clip_on": False}
    span = (canvas.start, canvas.stop)
    _bars(canvas.axes, view, span, (1.01 + place[0] * height, height), strip)


def _bars(
    axes: Axes,
    view: FlowView,
    span: tuple[float, float],
    place: tuple[float, float],
    strip: Mapping[str, Any],
) -> None:
    stays = view.stays(*span)
    least = (span[1] - span[0]) / POINTS  # else short stays would vanish in print
    for state in CA_STATES if stays else ():
        spans = [(s.start_s, max(s.stop_s - s.start_s, least)) for s in stays if s.state == state]
        if state == "Open":
            spans = [(span[0], span[1] - span[0])]
        if spans:
            made = axes.broken_barh(
                spans, place, facecolors=look.STATE_COLOURS[state], linewidth=0, **strip
            )
            made.set_gid(f"state-{state}")
