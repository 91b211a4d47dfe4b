"""Pictures of a result: SVG and PNG, the same bytes for the same data.

What is drawn over a campaign's parameters is drawn here; what is drawn over time, by
``ccscope.draw``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from ccscope.draw.flowview import FlowView, Shade, shades
from ccscope.draw.look import styles
from ccscope.draw.panels import Track
from ccscope.draw.timeline import STYLE, render, timeline
from ccscope.recording import Recording
from matplotlib.figure import Figure

from airlab.model import AirlabError, Scalar
from airlab.results import CellResult, Row, Summary, load_cell, point_name, write_bytes


@dataclass
class CellData:
    """A cell with its tables."""

    result: CellResult
    recording: Recording

    @cached_property
    def flows(self) -> dict[str, FlowView]:
        """The measured flows by their name for a legend."""
        labels = [f.label for f in self.result.flows if f.role == "measured"]
        name = self.result.label
        return {
            name if len(labels) == 1 else f"{name} {label}": FlowView(self.recording, label)
            for label in labels
        }

    @cached_property
    def shades(self) -> tuple[Shade, ...]:
        """Impairments."""
        return shades(self.recording)


def load_cell_data(folder: Path) -> CellData:
    """Read a cell's folder; its tables are read when they are needed.

    Raises:
        AirlabError: ``cell.json`` is missing or damaged.
    """
    return CellData(load_cell(folder), Recording.open(folder))


def save(figure: Figure, folder: Path, stem: str) -> list[Path]:
    """Write ``stem.svg`` and ``stem.png``; returns both paths."""
    made = []
    for kind in ("svg", "png"):
        write_bytes(folder / f"{stem}.{kind}", render(figure, kind))
        made.append(folder / f"{stem}.{kind}")
    return made


# ---- over a campaign ----


def goodput_over_parameter(
    summary: Summary,
    key: str,
    *,
    paper: Mapping[str, Mapping[float, float]] | None = None,
    fixed: Mapping[str, Scalar] | None = None,
) -> Figure:
    """Goodput against a swept number, with bands of the 95 % interval.

    Args:
        summary: the campaign.
        key: the parameter on the x axis; logarithmic when it spans a factor of 3 or more.
        paper: goodput in bit/s by label and parameter value that the published gains would mean
            on the measured baseline, drawn hollow.
        fixed: values of the other parameters.

    Raises:
        AirlabError: the parameter was not swept.
    """
    rows = [r for r in summary.rows if key in r.params and _fits(r, fixed or {})]
    if not rows:
        raise AirlabError(f"plot: no row of the summary has a value of {key!r}")
    looks = styles([r.label for r in summary.rows])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.0))
        axes = figure.add_subplot()
        for label in dict.fromkeys(r.label for r in rows):
            _band(axes, [r for r in rows if r.label == label], key, looks[label])
            points = (paper or {}).get(label, {})
            if points:
                _paper_points(axes, points, looks[label], f"{label} (paper's gain)")
        xs = [_x(r, key) for r in rows]
        if min(xs) > 0 and max(xs) / min(xs) >= 3:
            axes.set_xscale("log")
        axes.set_xlabel(_axis_name(key))
        axes.set_ylabel("goodput, Mbit/s")
        axes.set_ylim(bottom=0)
        axes.set_title(
            f"{summary.scenario}: mean and 95 % interval, n = {_seeds(rows)}", loc="left"
        )
        axes.legend(ncols=2)
    return figure


def _fits(row: Row, fixed: Mapping[str, Scalar]) -> bool:
    return fixed.items() <= row.params.items() and row.goodput_bps.mean is not None


def _x(row: Row, key: str) -> float:
    value = row.params[key]
    if isinstance(value, str):
        raise AirlabError(f"plot: {key} is the text {value!r}, not a number for an axis")
    return float(value)


def _axis_name(key: str) -> str:
    last = key.rpartition(".")[2]
    return {"ber": "bit error rate", "loss": "packet loss probability"}.get(last, key)


def _seeds(rows: Sequence[Row]) -> str:
    counts = sorted({row.n for row in rows})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _band(axes: Any, rows: Sequence[Row], key: str, look: Mapping[str, Any]) -> None:  # noqa: ANN401
    ordered = sorted(rows, key=lambda r: _x(r, key))
    x = [_x(r, key) for r in ordered]
    mean = np.array([(r.goodput_bps.mean or 0.0) / 1e6 for r in ordered])
    half = np.array([(r.goodput_bps.half or 0.0) / 1e6 for r in ordered])
    axes.fill_between(x, mean - half, mean + half, color=look["color"], alpha=0.15, linewidth=0)
    axes.plot(x, mean, label=ordered[0].label, markersize=4, linewidth=1.4, **look)


def _paper_points(
    axes: Any,  # noqa: ANN401
    points: Mapping[float, float],
    look: Mapping[str, Any],
    label: str,
) -> None:
    x = sorted(points)
    hollow = {"color": look["color"], "marker": look["marker"], "markerfacecolor": "none"}
    axes.plot(x, [points[v] / 1e6 for v in x], linestyle="", label=label, markersize=7, **hollow)


def goodput_bars(summary: Summary) -> Figure:
    """Goodput of each algorithm at each parameter point, with 95 % intervals."""
    looks = styles([r.label for r in summary.rows])
    points = list(dict.fromkeys(point_name(r.params) for r in summary.rows))
    width = 0.8 / max(len(looks), 1)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(max(5.0, 1.2 + 0.55 * len(summary.rows)), 3.8))
        axes = figure.add_subplot()
        for i, (label, look) in enumerate(looks.items()):
            rows = {point_name(r.params): r.goodput_bps for r in summary.rows if r.label == label}
            shown = [p for p in points if p in rows and rows[p].mean is not None]
            x = [points.index(p) + (i - (len(looks) - 1) / 2) * width for p in shown]
            y = [(rows[p].mean or 0.0) / 1e6 for p in shown]
            error = [(rows[p].half or 0.0) / 1e6 for p in shown]
            bars = axes.bar(x, y, width * 0.92, color=look["color"], label=label)
            axes.errorbar(x, y, error, fmt="none", ecolor="#222222", capsize=3, linewidth=1)
            names = [f"{v:.2f}" for v in y]
            axes.bar_label(bars, names, label_type="center", color="white", fontsize=7)
        axes.set_xticks(range(len(points)), points)
        axes.grid(visible=False, axis="x")
        axes.set_ylabel("goodput, Mbit/s")
        axes.set_title(
            f"{summary.scenario}: mean, 95 % interval, n = {_seeds(summary.rows)}", loc="left"
        )
        figure.legend(loc="outside lower center", ncols=min(len(looks), 7))
    return figure


# ---- over time ----

OVER_TIME = {"goodput-time": "throughput", "cwnd": "cwnd", "sequence": "acked", "queue": "queue"}
"""Names of the pictures over time, and the kind of panel of ccscope that each shows."""


def over_time(kind: str, cells: Sequence[CellData], labels: Sequence[str]) -> Figure:
    """A picture over time of one run of each algorithm.

    Args:
        kind: of ccscope.draw.timeline.KINDS.
        cells: the runs; must not be empty.
        labels: all algorithms of the campaign, for colours.
    """
    looks = styles(labels)
    tracks = [
        Track(view, name, looks[cell.result.label], cell.result.label, cell.shades)
        for cell in cells
        for name, view in cell.flows.items()
    ]
    first = cells[0].result
    title = f"{first.scenario}, {point_name(first.params)}, seed {first.seed}"
    stop = max(cell.result.duration_s for cell in cells)
    return timeline((kind,), tracks, (0.0, stop), title)


def example_cells(result: Path, summary: Summary) -> list[CellData]:
    """One cell of each algorithm for pictures over time: the last point, its first seed."""
    wanted = summary.rows[-1].params if summary.rows else {}
    made: dict[str, CellData] = {}
    for line in summary.cells:
        folder = result / "cells" / line.slug
        if line.params == wanted and line.verdict in ("ok", "warn") and line.label not in made:
            made[line.label] = load_cell_data(folder)
    return list(made.values())


def swept_keys(summary: Summary) -> list[str]:
    """Numeric parameters that take more than one value in the campaign."""
    values: dict[str, set[Scalar]] = {}
    for row in summary.rows:
        for key, value in row.params.items():
            values.setdefault(key, set()).add(value)
    return [k for k, v in values.items() if len(v) > 1 and not any(isinstance(x, str) for x in v)]


def draw_all(
    result: Path,
    summary: Summary,
    *,
    paper: Mapping[str, Mapping[float, float]] | None = None,
) -> list[Path]:
    """Draw the standard pictures of a result into ``figures/``; returns the files."""
    folder = result / "figures"
    labels = [row.label for row in summary.rows]
    made = save(goodput_bars(summary), folder, "goodput")
    keys = swept_keys(summary)
    for key in keys[:1] if len(keys) == 1 else []:
        figure = goodput_over_parameter(summary, key, paper=paper)
        made += save(figure, folder, f"goodput-{key.split('.')[-1]}")
    cells = example_cells(result, summary)
    if not cells:
        return made
    for stem, kind in OVER_TIME.items():
        if kind != "queue" or any("queue" in cell.recording.tables() for cell in cells):
            made += save(over_time(kind, cells, labels), folder, stem)
    return made
