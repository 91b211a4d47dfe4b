"""Pictures of a result: SVG and PNG, the same bytes for the same data.

What is drawn over a campaign's parameters is drawn by ``airlab.charts``; what is drawn over time,
by ``ccscope.draw``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ccscope.draw.flowview import FlowView, Shade, shades
from ccscope.draw.look import styles
from ccscope.draw.panels import Track
from ccscope.draw.timeline import render, timeline
from ccscope.recording import Recording
from matplotlib.figure import Figure

from airlab import charts
from airlab.figure import Plot
from airlab.model import Scalar
from airlab.results import CellResult, Summary, load_cell, point_name, write_bytes


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
    goodput, title = charts.goodput(summary), summary.scenario
    made = save(charts.bars(goodput, charts.GOODPUT, title), folder, "goodput")
    keys = swept_keys(summary)
    for key in keys[:1] if len(keys) == 1 else []:
        figure = charts.lines(goodput, key, charts.GOODPUT, title, paper=paper)
        made += save(figure, folder, f"goodput-{key.split('.')[-1]}")
    cells = example_cells(result, summary)
    if not cells:
        return made
    for stem, kind in OVER_TIME.items():
        if kind != "queue" or any("queue" in cell.recording.tables() for cell in cells):
            made += save(over_time(kind, cells, labels), folder, stem)
    return made


def draw_asked(
    result: Path, summary: Summary, cells: Sequence[CellResult], asked: Sequence[Plot]
) -> tuple[list[Path], list[str]]:
    """Draw the charts that a figure file asks for into ``figures/``.

    Args:
        result: the folder.
        summary: the campaign's.
        cells: its runs.
        asked: what to draw.

    Returns:
        The files, and the names of charts that were left out because no run has the metric, or
        none the parameter of the x axis (it is not swept when ``--set`` fixes it).
    """
    made: list[Path] = []
    left: list[str] = []
    for plot in asked:
        found = charts.spots(summary, cells, plot.y)
        there = [spot for spot in found if spot.value.mean is not None]
        if not any(plot.x is None or plot.x in spot.params for spot in there):
            left.append(plot.name)
            continue
        made += save(_chart(plot, found), result / "figures", plot.name)
    return made, left


def _chart(plot: Plot, found: Sequence[charts.Spot]) -> Figure:
    axis = charts.Axis.of(plot.y, plot.y_label)
    if plot.x is not None:
        return charts.lines(found, plot.x, axis, plot.title, x_label=plot.x_label)
    return charts.bars(found, axis, plot.title, x_label=plot.x_label, names=plot.values)
