"""Pictures of single runs over time that a figure file asks for, next to those of a paper.

A figure file's ``[[pictures]]`` name runs of its result (a label, a point, a seed) and a kind:

* ``cwnd``: the window, with a vertical dotted line at each Local Congestion, a dashed one where
  an ACK showed a loss and a solid one at a timeout; the legend has only what occurs;
* ``flight``: the same with what is in flight: the part of the window that is used;
* ``sequence``: what was sent and what was acknowledged, in segments, as the sender knew it at each
  ACK: the distance between the two is the flight;
* ``throughput``: goodput at the receiver in bins of 1 s, with its mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyarrow.parquet as pq
from ccscope.ftrace import Array, Columns
from matplotlib.figure import Figure as Canvas

from airlab.figure import Picture
from airlab.plots import save
from airlab.results import CellLine, Summary, load_cell
from airlab.sawtooth import KINDS, reductions

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
MARKS = {
    "local": ("Local Congestion (device queue full)", ":", "#444444"),
    "recovery": ("loss shown by ACKs", "--", "#0072B2"),
    "timeout": ("timeout", "-", "#D55E00"),
}
MSS = 1448
_MOST_POINTS = 6000
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "airlab",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True)
class Run:
    """A run to draw: its name in the legend and its first measured flow's tables."""

    name: str
    tables: Mapping[str, Columns]
    start: float
    stop: float


def draw(
    result: Path, summary: Summary, pictures: Sequence[Picture]
) -> tuple[list[Path], list[str]]:
    """Draw what a figure asks for into ``figures/``.

    Returns:
        The files, and the names of pictures that were left out because a run is missing.
    """
    made: list[Path] = []
    left: list[str] = []
    for picture in pictures:
        lines = [_find(summary, picture, point) for point in picture.points or [{}]]
        if None in lines:
            left.append(picture.name)
            continue
        runs = [_run(result, line, picture) for line in lines if line is not None]
        with mpl.rc_context(_STYLE):
            made += save(_canvas(picture, runs), result / "figures", picture.name)
    return made, left


def _find(summary: Summary, picture: Picture, point: Mapping[str, Any]) -> CellLine | None:
    """The run at a point (a label may be part of it), if it counts."""
    wanted = dict(point)
    label = wanted.pop("cc", picture.of)
    for line in summary.cells:
        same = wanted.items() <= line.params.items()
        if same and (line.label, line.seed) == (label, picture.seed):
            return line if line.verdict in ("ok", "warn") else None
    return None


def _run(result: Path, line: CellLine, picture: Picture) -> Run:
    folder = result / "cells" / line.slug
    flow = next(f for f in load_cell(folder).flows if f.role == "measured")
    tables = {name: _table(folder / f"{name}.parquet", flow.label) for name in picture.needs}
    shown = [str(value) for value in line.params.values()]
    name = ", ".join([*([line.label] if picture.name_labels else []), *shown]) or line.label
    start, stop = picture.span or (0, round(flow.stop_s * 1e6))
    return Run(name, tables, start / 1e6, min(stop / 1e6, flow.stop_s))


def _table(path: Path, flow: str) -> Columns:
    read = pq.read_table(path)
    columns = {n: np.asarray(read.column(n).to_pylist()) for n in read.column_names}
    mine = columns["flow"] == flow if len(columns["t_s"]) else np.zeros(0, dtype=bool)
    return {name: values[mine] for name, values in columns.items()}


def _canvas(picture: Picture, runs: Sequence[Run]) -> Canvas:
    canvas = Canvas(figsize=(5.2, 3.0))
    axes = canvas.add_subplot()
    {"cwnd": _cwnd, "flight": _flight, "sequence": _sequence, "throughput": _throughput}[
        picture.kind
    ](axes, runs)
    axes.set_xlim(min(r.start for r in runs), max(r.stop for r in runs))
    axes.set_xlabel("time, s")
    axes.set_title(picture.title, loc="left", fontsize=9)
    if axes.get_legend_handles_labels()[0]:
        canvas.legend(loc="outside lower center", ncols=2, fontsize=8)
    return canvas


def _inside(run: Run, times: Array) -> Array:
    rows: Array = np.flatnonzero((times >= run.start) & (times <= run.stop))
    return rows


def thinned(rows: Array, most: int) -> Array:
    """At most ``most`` of the rows, evenly spaced, the last one included."""
    if len(rows) <= most:
        return rows
    chosen: Array = np.unique(np.linspace(0, len(rows) - 1, most).round().astype(int))
    return rows[chosen]


def _cwnd(axes: Any, runs: Sequence[Run]) -> None:  # noqa: ANN401 - matplotlib
    _windows(axes, runs, "cwnd_segs", 1.0)
    axes.set_ylabel("cwnd, segments")


def _flight(axes: Any, runs: Sequence[Run]) -> None:  # noqa: ANN401 - matplotlib
    _windows(axes, runs, "inflight_bytes", 1 / MSS)
    axes.set_ylabel("in flight, segments")


def _windows(axes: Any, runs: Sequence[Run], column: str, scale: float) -> None:  # noqa: ANN401
    """A column of each run's ACKs over time, and the reductions of all."""
    for run, colour in zip(runs, COLOURS, strict=False):
        acks = run.tables["acks"]
        rows = thinned(_inside(run, acks["t_s"]), _MOST_POINTS)
        axes.plot(
            acks["t_s"][rows], acks[column][rows] * scale, color=colour, linewidth=1.1,
            drawstyle="steps-post", label=run.name if len(runs) > 1 else None,
        )  # fmt: skip
    seen: set[str] = set()
    for run in runs:
        for kind, moment in marks(run):
            text, dash, colour = MARKS[kind]
            axes.axvline(
                moment, linestyle=dash, color=colour, linewidth=0.8, zorder=0.5,
                label=None if kind in seen else text,
            )  # fmt: skip
            seen.add(kind)
    axes.set_ylim(bottom=0)


def marks(run: Run) -> list[tuple[str, float]]:
    """The reductions of a run that are of one of the paper's kinds, with their times."""
    states = run.tables["states"]
    kinds = {cause: kind for kind, causes in KINDS.items() for cause in causes}
    rows = [row for row in reductions(states) if run.start <= states["t_s"][row] <= run.stop]
    found = [(kinds.get(str(states["cause"][row])), float(states["t_s"][row])) for row in rows]
    return [(kind, moment) for kind, moment in found if kind is not None]


def _sequence(axes: Any, runs: Sequence[Run]) -> None:  # noqa: ANN401 - matplotlib
    for run, colour in zip(runs, COLOURS, strict=False):
        acks = run.tables["acks"]
        rows = thinned(_inside(run, acks["t_s"]), _MOST_POINTS)
        times = acks["t_s"][rows]
        acked = acks["una_bytes"][rows] / MSS
        base = float(acked[0]) if len(acked) else 0.0
        sent = acked + acks["inflight_bytes"][rows] / MSS
        prefix = f"{run.name}: " if len(runs) > 1 else ""
        axes.plot(times, sent - base, ".", color=colour, markersize=2, label=f"{prefix}data sent")
        axes.plot(times, acked - base, "-", color=colour, linewidth=0.9, label=f"{prefix}ACK")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("sequence, segments")


def _throughput(axes: Any, runs: Sequence[Run]) -> None:  # noqa: ANN401 - matplotlib
    for run, colour in zip(runs, COLOURS, strict=False):
        bins = run.tables["goodput"]
        edges = np.arange(run.start, run.stop + 1e-9, 1.0)
        place = np.digitize(bins["t_s"], edges) - 1
        rates = np.zeros(max(len(edges) - 1, 0))
        good = (place >= 0) & (place < len(rates))
        np.add.at(rates, place[good], bins["bytes"][good] * 8e-6)
        mean = float(rates.mean()) if len(rates) else 0.0
        prefix = f"{run.name}: " if len(runs) > 1 else ""
        axes.stairs(
            rates, edges, color=colour, linewidth=1.1, label=f"{prefix}mean {mean:.2f} Mbit/s"
        )
    axes.set_ylim(bottom=0)
    axes.set_ylabel("goodput, Mbit/s")
