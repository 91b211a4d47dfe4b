"""Figures over time: panels stacked over one axis of time, made for print.

The same data give the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ccscope.draw import look, panels
from ccscope.draw.panels import Canvas, Track

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "airlab",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "path.simplify": True,
}
FORMATS: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}


@dataclass(frozen=True)
class Kind:
    """A kind of panel.

    Attributes:
        draw: draws tracks onto a canvas.
        each: a panel for each group of tracks, not one for all.
        height: of a panel, inches.
        about: what it shows, for ``--help`` and captions.
    """

    draw: Callable[[Canvas, Sequence[Track]], None]
    each: bool
    height: float
    about: str


KINDS = {
    "cwnd": Kind(panels.cwnd, True, 1.75, "cwnd, ssthresh, in flight, events by cause"),
    "inflight": Kind(panels.inflight, True, 1.6, "bytes in flight under both windows"),
    "throughput": Kind(panels.throughput, False, 1.7, "goodput over time"),
    "rtt": Kind(panels.rtt, False, 1.6, "round-trip times"),
    "sequence": Kind(panels.sequence, True, 2.6, "packet time-sequence graph"),
    "states": Kind(panels.states, False, 0.45, "time in each CA state"),
    "acked": Kind(panels.acked, False, 3.0, "bytes acknowledged, retransmissions"),
    "queue": Kind(panels.queue_, True, 1.2, "the bottleneck's queue (lab)"),
}


def timeline(
    kinds: Sequence[str],
    tracks: Sequence[Track],
    span: tuple[float, float],
    title: str = "",
    width: float = 7.6,
) -> Figure:
    """Panels of these kinds, from top to bottom, over one axis of time.

    Args:
        kinds: keys of :data:`KINDS`.
        tracks: the flows; must not be empty.
        span: first and last second shown.
        title: above all; may be empty.
        width: of the figure, inches.
    """
    rows = _rows(kinds, tracks)
    heights = [_height(KINDS[kind], group) for kind, group, _ in rows]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, sum(heights) + (0.95 if title else 0.75)))
        grid = figure.subplots(
            len(rows), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
        )[:, 0]
        used: dict[str, Any] = {}
        first: dict[str, Any] = {}
        for axes, (kind, group, name) in zip(grid, rows, strict=True):
            panels.shade(axes, group[0].shades)
            axes.set_xlim(*span)
            KINDS[kind].draw(Canvas(axes, *span, used), group)
            if KINDS[kind].each and kind in first and kind != "sequence":
                _same_scale(first[kind], axes)
            first.setdefault(kind, axes)
            if name or kind == "cwnd":  # room for the ribbon, which no layout knows
                pad = 11 if kind == "cwnd" else 4
                size = 9 if name else 1
                axes.set_title(name or " ", loc="left", fontsize=size, fontweight="bold", pad=pad)
        grid[-1].set_xlabel("time, s")
        figure.align_ylabels(list(grid))
        if title:
            figure.suptitle(title, fontsize=10)
        _legend(figure, rows, used, span)
    return figure


def _rows(kinds: Sequence[str], tracks: Sequence[Track]) -> list[tuple[str, Sequence[Track], str]]:
    """Kind, tracks and title of each panel."""
    groups: dict[str, list[Track]] = {}
    for track in tracks:
        groups.setdefault(track.panel, []).append(track)
    made: list[tuple[str, Sequence[Track], str]] = []
    for kind in kinds:
        if KINDS[kind].each:
            shown = dict(list(groups.items())[:1]) if _shared(kind, tracks) else groups
            made += [(kind, group, name if len(shown) > 1 else "") for name, group in shown.items()]
        else:
            made.append((kind, tracks, ""))
    return made


def _shared(kind: str, tracks: Sequence[Track]) -> bool:
    """A queue belongs to a recording, not to a flow."""
    return kind == "queue" and len({id(t.view.recording) for t in tracks}) == 1


def _height(kind: Kind, group: Sequence[Track]) -> float:
    return kind.height + 0.25 + (0.27 * len(group) if kind is KINDS["states"] else 0)


def _same_scale(first: Any, axes: Any) -> None:  # noqa: ANN401 - matplotlib
    """Panels of the same kind have the same scale, so that they can be compared."""
    top = max(first.get_ylim()[1], axes.get_ylim()[1])
    first.set_ylim(top=top)
    if first is not axes:
        axes.sharey(first)


def _legend(
    figure: Figure,
    rows: Sequence[tuple[str, Sequence[Track], str]],
    used: Mapping[str, Any],
    span: tuple[float, float],
) -> None:
    """Flows, other lines, marks; then the CA states where they are shown."""
    kinds = {kind for kind, _, _ in rows}
    handles: list[Any] = []
    overlaid = [g for kind, g, _ in rows if not KINDS[kind].each and kind != "states"]
    titled = all(name for kind, _, name in rows if KINDS[kind].each)
    tracks = overlaid[0] if overlaid else [] if titled else rows[0][1]
    lines = kinds - {"states", "queue", "sequence"}
    seen = dict.fromkeys((t.name, t.colour, str(t.style["linestyle"])) for t in tracks)
    if lines:
        styles = {t.name: t.style for t in tracks}
        handles += [
            Line2D(
                [], [], color=colour, linewidth=1.4, label=name,
                linestyle=styles[name]["linestyle"] if overlaid else "-",
            )
            for name, colour, _ in seen
        ]  # fmt: skip
    for name, artist in used.items():
        handles.append(_handle(artist, name))
    if kinds & {"cwnd", "states"}:
        stays = {s.state for _, group, _ in rows for t in group for s in t.view.stays(*span)}
        handles += [Patch(color=c, label=s) for s, c in look.STATE_COLOURS.items() if s in stays]
    if handles:
        figure.legend(
            handles=handles, loc="outside lower center", ncols=5, fontsize=7.5,
            columnspacing=1.4, handlelength=1.8,
        )  # fmt: skip


def _handle(artist: Any, name: str) -> Line2D:  # noqa: ANN401 - matplotlib
    if not isinstance(artist, Line2D):
        return Line2D(
            *([], []), linestyle="", marker="|", markersize=8, markeredgewidth=1.6, label=name,
            color=tuple(artist.get_colors()[0]),
        )  # fmt: skip
    copy = Line2D([], [], label=name)
    copy.update_from(artist)
    copy.set_gid(None)
    copy.set_label(name)
    if artist.get_marker() not in ("None", "", None):
        copy.set_markersize(max(5.0, artist.get_markersize()))
    return copy


def render(figure: Figure, kind: str) -> bytes:
    """The figure as ``svg``, ``pdf`` or ``png`` (150 dpi; 200 for print is ``svg`` or ``pdf``)."""
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format=kind, dpi=150, metadata=FORMATS[kind])
    return buffer.getvalue()
