"""Pictures of single runs over time that a figure file asks for, next to those of a paper.

A figure file's ``[[pictures]]`` name runs of its result (a label, a point, a seed) and a kind:

* ``cwnd``: the window, with a vertical dotted line at each Local Congestion, a dashed one where
  an ACK showed a loss and a solid one at a timeout; the legend has only what occurs;
* ``flight``: the same with what is in flight: the part of the window that is used;
* ``sequence``: what was sent and what was acknowledged, in segments, as the sender knew it at each
  ACK: the distance between the two is the flight;
* ``supplements``: data, gap, supplements and their ACKs on one run's wire
  (``airlab.supplements``); the run must keep its capture, taken at the sender;
* ``throughput``: goodput at the receiver in bins of 1 s, with its mean, and what was left by UDP
  cross traffic;
* ``available``: the results of inline measurement, A and C, and the truth (``airlab.truth``);
* ``equilibrium``: the window of TCP Symbiosis, the equilibrium of its own K and A, and that of the
  true ones.
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

from airlab import supplements
from airlab.figure import Picture
from airlab.model import CellPlan
from airlab.plots import save
from airlab.results import CellLine, Summary, load_cell, read_json
from airlab.sawtooth import KINDS, reductions
from airlab.truth import PAYLOAD, Truth, truth_of

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
    truth: Truth | None = None


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
        found = [line for line in lines if line is not None]
        with mpl.rc_context(_STYLE):
            made += save(_drawn(result, picture, found), result / "figures", picture.name)
    return made, left


def _drawn(result: Path, picture: Picture, lines: Sequence[CellLine]) -> Canvas:
    if picture.kind != "supplements":
        return _canvas(picture, [_run(result, line, picture) for line in lines])
    folder = result / "cells" / lines[0].slug
    start, stop = picture.span or (0, round(load_cell(folder).duration_s * 1e6))
    return supplements.canvas(picture.title, folder, (start / 1e6, stop / 1e6))


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
    known = truth_of(CellPlan.from_json(read_json(folder / "plan.json")))
    truth = known[1] if known else None
    return Run(name, tables, start / 1e6, min(stop / 1e6, flow.stop_s), truth)


def _table(path: Path, flow: str) -> Columns:
    read = pq.read_table(path)
    columns = {n: np.asarray(read.column(n).to_pylist()) for n in read.column_names}
    mine = columns["flow"] == flow if len(columns["t_s"]) else np.zeros(0, dtype=bool)
    return {name: values[mine] for name, values in columns.items()}


def _canvas(picture: Picture, runs: Sequence[Run]) -> Canvas:
    canvas = Canvas(figsize=(5.2, 3.0))
    axes = canvas.add_subplot()
    _KINDS[picture.kind](axes, runs)
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
    _left(axes, runs, PAYLOAD, "left by UDP")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("goodput, Mbit/s")


def _left(axes: Any, runs: Sequence[Run], scale: float, name: str) -> None:  # noqa: ANN401
    """The true A of the first run that knows it, in Mbit/s times ``scale``."""
    truth = next((run.truth for run in runs if run.truth), None)
    for number, stretch in enumerate(truth.stretches if truth else ()):
        axes.hlines(
            stretch.avail_bps * scale / 1e6, stretch.start, stretch.stop, color="black",
            linewidth=1, linestyle="--", label=None if number else name,
        )  # fmt: skip


def _available(axes: Any, runs: Sequence[Run]) -> None:  # noqa: ANN401 - matplotlib
    for run, colour in zip(runs, COLOURS, strict=False):
        results = run.tables["imtcp_imtcp_result"]
        rows = thinned(_inside(run, results["t_s"]), _MOST_POINTS)
        prefix = f"{run.name}: " if len(runs) > 1 else ""
        for column, mark, name in (("avail_kbps", ".", "A"), ("capacity_kbps", "-", "C")):
            axes.plot(
                results["t_s"][rows], results[column][rows] / 1e3, mark, color=colour,
                markersize=3, linewidth=1, label=f"{prefix}{name} measured",
            )  # fmt: skip
    _left(axes, runs, 1.0, "A in truth")
    truth = next((run.truth for run in runs if run.truth), None)
    if truth:
        capacity = truth.capacity_bps / 1e6
        axes.axhline(capacity, color="black", linewidth=0.8, linestyle=":", label="C in truth")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("on the wire, Mbit/s")


def _equilibrium(axes: Any, runs: Sequence[Run]) -> None:  # noqa: ANN401 - matplotlib
    for run, colour in zip(runs, COLOURS, strict=False):
        steps = run.tables["symbiosis_symbiosis_step"]
        rows = thinned(_inside(run, steps["t_s"]), _MOST_POINTS)
        prefix = f"{run.name}: " if len(runs) > 1 else ""
        axes.plot(
            steps["t_s"][rows], steps["goal_q32"][rows] / 2.0**32, color=colour, linewidth=0.6,
            alpha=0.5, label=f"{prefix}equilibrium as measured",
        )  # fmt: skip
        axes.plot(
            steps["t_s"][rows], steps["after_q32"][rows] / 2.0**32, color=colour, linewidth=1.3,
            label=f"{prefix}window",
        )  # fmt: skip
        if run.truth and len(rows):
            _true_equilibrium(axes, run.truth, {name: v[rows] for name, v in steps.items()})
    axes.set_ylim(bottom=0)
    axes.set_ylabel("window, segments")


def _true_equilibrium(axes: Any, truth: Truth, steps: Columns) -> None:  # noqa: ANN401
    """S = tau (K - gamma (K - A)) for the true K and A."""
    tau_s = float(steps["tau_us"].min()) / 1e6
    gamma = float(steps["gamma_permille"][-1]) / 1e3
    bits = 8 * float(steps["wire_bytes"][-1])
    for number, stretch in enumerate(truth.stretches):
        rate = truth.capacity_bps - gamma * (truth.capacity_bps - stretch.avail_bps)
        axes.hlines(
            rate * tau_s / bits, stretch.start, stretch.stop, color="black", linewidth=1,
            linestyle="--", label=None if number else "equilibrium in truth",
        )  # fmt: skip


_KINDS = {
    "cwnd": _cwnd,
    "flight": _flight,
    "sequence": _sequence,
    "throughput": _throughput,
    "available": _available,
    "equilibrium": _equilibrium,
}
