"""Charts of a metric over a campaign's parameter points: bars, or lines over a swept number.

A number stands for an algorithm at a point: the mean over the counted seeds with its 95 %
interval.  Axes are in the unit that people read, told by the metric's name (``_bps`` in Mbit/s).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from ccscope.draw.look import INK, styles
from ccscope.draw.timeline import STYLE
from matplotlib.figure import Figure

from airlab.model import AirlabError, Scalar
from airlab.results import CellResult, Number, Summary, number_at, point_parts

_UNITS = {
    "_bps": (1e-6, "Mbit/s"),
    "_bytes": (1e-6, "MB"),
    "_us": (1e-3, "ms"),
    "_s": (1.0, "s"),
    "_pct": (1.0, "%"),
    "_segs": (1.0, "segments"),
}
_AXIS_NAMES = {"ber": "bit error rate", "loss": "packet loss probability"}


@dataclass(frozen=True)
class Spot:
    """What an algorithm showed at a point.

    Attributes:
        label: name of the algorithm in the campaign.
        params: the point.
        value: mean over seeds, in the metric's own unit.
    """

    label: str
    params: Mapping[str, Scalar]
    value: Number


@dataclass(frozen=True)
class Axis:
    """The axis of a metric: its text, and what a value is multiplied by for it."""

    text: str
    scale: float

    @classmethod
    def of(cls, metric: str, noun: str | None = None) -> Axis:
        """The axis of a metric, or of one flow's (``f1:goodput_bps``).

        Args:
            metric: its name; the end tells the unit.
            noun: what to call it; by default the name without its unit.
        """
        name = metric.rpartition(":")[2]
        for end, (scale, unit) in _UNITS.items():
            if name.endswith(end):
                return cls(f"{noun or _words(name.removesuffix(end))}, {unit}", scale)
        return cls(noun or _words(name), 1.0)


def _words(name: str) -> str:
    return name.replace("_", " ")


GOODPUT = Axis.of("goodput_bps")


def goodput(summary: Summary) -> list[Spot]:
    """The goodput of a campaign, point by point."""
    return [Spot(row.label, row.params, row.goodput_bps) for row in summary.rows]


def spots(summary: Summary, cells: Sequence[CellResult], metric: str) -> list[Spot]:
    """Any metric of a campaign's counted cells, in the order of its table."""
    return [
        Spot(row.label, row.params, number_at(cells, row.label, row.params, metric))
        for row in summary.rows
    ]


def bars(
    found: Sequence[Spot],
    axis: Axis,
    title: str,
    *,
    x_label: str | None = None,
    names: Mapping[str, str] | None = None,
) -> Figure:
    """A bar for each algorithm at each point, with its 95 % interval.

    Args:
        found: the numbers; algorithms and points are drawn in their order.
        axis: of the metric.
        title: of the chart; the number of seeds is added.
        x_label: what the points are.
        names: names for values of parameters.
    """
    looks = styles([spot.label for spot in found])

    def place(spot: Spot) -> str:
        return "\n".join(point_parts(spot.params, names))

    points = list(dict.fromkeys(place(spot) for spot in found))
    width = 0.8 / max(len(looks), 1)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(max(5.0, 1.2 + 0.55 * len(found)), 3.8))
        axes = figure.add_subplot()
        for i, (label, look) in enumerate(looks.items()):
            mine = [s for s in found if s.label == label and s.value.mean is not None]
            shift = (i - (len(looks) - 1) / 2) * width
            x = np.array([points.index(place(spot)) + shift for spot in mine])
            mean, half = _scaled(mine, axis)
            axes.bar(x, mean, width * 0.92, color=look["color"], label=label)
            sure = half > 0
            axes.errorbar(
                x[sure], mean[sure], half[sure], fmt="none", ecolor="#222222", capsize=3,
                linewidth=1,
            )  # fmt: skip
            for left, top, value in zip(x, mean + half, mean, strict=True):
                _value(axes, left, top, value)
        axes.set_xticks(range(len(points)), points)
        axes.grid(visible=False, axis="x")
        axes.set_xlabel(x_label or "")
        _finish(figure, axes, axis, title, found)
    return figure


def _value(axes: Any, x: float, top: float, value: float) -> None:  # noqa: ANN401 - matplotlib
    """A bar's number, above it and its interval."""
    text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")
    axes.annotate(
        text, (x, max(top, 0)), (0, 3), textcoords="offset points", ha="center",
        va="bottom", fontsize=7, color=INK,
    )  # fmt: skip


def lines(
    found: Sequence[Spot],
    key: str,
    axis: Axis,
    title: str,
    *,
    paper: Mapping[str, Mapping[float, float]] | None = None,
    x_label: str | None = None,
) -> Figure:
    """A line for each algorithm over a swept number, with bands of the 95 % interval.

    Args:
        found: the numbers.
        key: the parameter on the x axis; logarithmic when it spans a factor of 3 or more.
        axis: of the metric.
        title: of the chart; the number of seeds is added.
        paper: published values by label and parameter value, in the metric's unit, drawn hollow.
        x_label: what the parameter is.

    Raises:
        AirlabError: the parameter was not swept, or is no number.
    """
    looks = styles([spot.label for spot in found])
    there = [s for s in found if key in s.params and s.value.mean is not None]
    if not there:
        raise AirlabError(f"plot: no row of the summary has a value of {key!r}")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.4))
        axes = figure.add_subplot()
        for label in dict.fromkeys(spot.label for spot in there):
            _band(axes, [s for s in there if s.label == label], key, axis, looks[label])
            points = (paper or {}).get(label, {})
            if points:
                _paper_points(axes, points, axis, looks[label], f"{label} (paper's gain)")
        xs = [_x(spot, key) for spot in there]
        if min(xs) > 0 and max(xs) / min(xs) >= 3:
            axes.set_xscale("log")
        last = key.rpartition(".")[2]
        axes.set_xlabel(x_label or _AXIS_NAMES.get(last, last))
        axes.set_ylim(bottom=0)
        _finish(figure, axes, axis, title, there)
    return figure


def _finish(
    figure: Figure,
    axes: Any,  # noqa: ANN401
    axis: Axis,
    title: str,
    found: Sequence[Spot],
) -> None:
    axes.set_ylabel(axis.text)
    counts = sorted({spot.value.n for spot in found})
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    what = "one run each" if counts == [1] else f"mean and 95 % interval, n = {seeds}"
    axes.set_title(f"{title}: {what}", loc="left")
    figure.legend(loc="outside lower center", ncols=5)


def _scaled(mine: Sequence[Spot], axis: Axis) -> tuple[Any, Any]:
    """Means and halves of their intervals (0 with one seed), as numpy arrays for the axis."""
    mean = np.array([(spot.value.mean or 0.0) * axis.scale for spot in mine])
    return mean, np.array([(spot.value.half or 0.0) * axis.scale for spot in mine])


def _x(spot: Spot, key: str) -> float:
    value = spot.params[key]
    if isinstance(value, str):
        raise AirlabError(f"plot: {key} is the text {value!r}, not a number for an axis")
    return float(value)


def _band(
    axes: Any,  # noqa: ANN401
    mine: Sequence[Spot],
    key: str,
    axis: Axis,
    look: Mapping[str, Any],
) -> None:
    ordered = sorted(mine, key=lambda spot: _x(spot, key))
    x = [_x(spot, key) for spot in ordered]
    mean, half = _scaled(ordered, axis)
    axes.fill_between(x, mean - half, mean + half, color=look["color"], alpha=0.15, linewidth=0)
    axes.plot(x, mean, label=ordered[0].label, markersize=4, linewidth=1.4, **look)


def _paper_points(
    axes: Any,  # noqa: ANN401
    points: Mapping[float, float],
    axis: Axis,
    look: Mapping[str, Any],
    label: str,
) -> None:
    x = sorted(points)
    hollow = {"color": look["color"], "marker": look["marker"], "markerfacecolor": "none"}
    y = [points[v] * axis.scale for v in x]
    axes.plot(x, y, linestyle="", label=label, markersize=7, **hollow)
