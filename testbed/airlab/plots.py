"""Pictures of a result: SVG and PNG, the same bytes for the same data.

Colours are those of Okabe and Ito, which people with colour-blindness can tell apart; every
algorithm also has a line style and a marker of its own.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyarrow.parquet as pq
from ccscope.recording import Array, Columns
from ccscope.schema import CA_STATES
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from airlab.model import AirlabError, Interval, Scalar
from airlab.results import CellResult, Row, Summary, load_cell, point_name, write_bytes

COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080")
_DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), "-")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STATE_COLOURS = {
    "Open": "#DDDDDD",
    "Disorder": "#56B4E9",
    "CWR": "#E69F00",
    "Recovery": "#0072B2",
    "Loss": "#D55E00",
}
NO_SSTHRESH = 0x7FFFFFFF
_POINTS = 600
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "airlab",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "path.simplify": True,
}


@dataclass
class CellData:
    """A cell with its tables, by name without suffix: columns by name."""

    result: CellResult
    tables: dict[str, Columns] = field(default_factory=dict)
    intervals: tuple[Interval, ...] = ()

    def flow(self, table: str, label: str) -> Columns:
        """The rows of one flow (or stage) of a table; empty when there are none."""
        columns = self.tables.get(table)
        if columns is None:
            return {}
        owner = columns["stage" if table == "queue" else "flow"]
        mine = owner == label
        return {name: values[mine] for name, values in columns.items()}

    def stages(self) -> list[str]:
        """Stages of the queue table, the busiest first."""
        names, counts = np.unique(self.tables.get("queue", {}).get("stage", []), return_counts=True)
        return [str(names[i]) for i in np.argsort(-counts, kind="stable")]


def load_cell_data(folder: Path) -> CellData:
    """Read a cell's folder with its tables.

    Raises:
        AirlabError: ``cell.json`` is missing or damaged.
    """
    data = CellData(load_cell(folder))
    for path in sorted(folder.glob("*.parquet")):
        table = pq.read_table(path)
        data.tables[path.stem] = {n: _column(table.column(n)) for n in table.column_names}
    plan = folder / "plan.json"
    if plan.is_file():
        rows = json.loads(plan.read_text()).get("intervals", [])
        data.intervals = tuple(Interval(**row) for row in rows)
    return data


def _column(values: Any) -> Array:  # noqa: ANN401 - pyarrow is not typed
    return np.asarray(values.to_numpy(zero_copy_only=False))


def styles(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour, dashes and marker for each label, by its place in the list."""
    return {
        label: {
            "color": COLOURS[i % len(COLOURS)],
            "linestyle": _DASHES[i % len(_DASHES)],
            "marker": _MARKERS[i % len(_MARKERS)],
        }
        for i, label in enumerate(dict.fromkeys(labels))
    }


def envelope(t: Array, y: Array, start: float, stop: float, buckets: int) -> tuple[Array, Array]:
    """Reduce a step curve to two points a bucket that keep its extremes.

    Args:
        t, y: times (ascending) and values; the value holds until the next time.
        start, stop: range that is shown.
        buckets: number of equal parts of the range.

    Returns:
        Times (the first and second half of each bucket) and values; within a bucket the
        extreme that came first is first.  NaN before the first value.
    """
    edges = np.linspace(start, stop, buckets + 1)
    times = np.linspace(start, stop, 2 * buckets, endpoint=False)
    made = np.full(2 * buckets, np.nan)
    if not len(t):
        return times, made
    bounds = np.searchsorted(t, edges)
    for i in range(buckets):
        low, high = int(bounds[i]), int(bounds[i + 1])
        if low == high:
            if low:
                made[2 * i : 2 * i + 2] = y[low - 1]
            continue
        part = y[low:high]
        first, second = sorted((int(np.argmin(part)), int(np.argmax(part))))
        made[2 * i], made[2 * i + 1] = part[first], part[second]
    return times, made


def save(figure: Figure, folder: Path, stem: str) -> list[Path]:
    """Write ``stem.svg`` and ``stem.png``; returns both paths."""
    made = []
    with mpl.rc_context(_STYLE):
        for kind, metadata in (
            ("svg", {"Date": None, "Creator": None}),
            ("png", {"Software": None}),
        ):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
            write_bytes(folder / f"{stem}.{kind}", buffer.getvalue())
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
    with mpl.rc_context(_STYLE):
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
    with mpl.rc_context(_STYLE):
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


def _span(cells: Sequence[CellData]) -> float:
    return max((c.result.duration_s for c in cells), default=1.0)


def _measured(cell: CellData) -> Iterator[tuple[str, str]]:
    """(flow label, name for a legend) of the measured flows."""
    flows = [f.label for f in cell.result.flows if f.role == "measured"]
    for flow in flows:
        yield flow, cell.result.label if len(flows) == 1 else f"{cell.result.label} {flow}"


def shade(axes: Any, intervals: Sequence[Interval]) -> None:  # noqa: ANN401
    """Shade impairments; an instant becomes a line."""
    for item in intervals:
        start, end = item.start_us / 1e6, item.end_us / 1e6
        if end > start:
            axes.axvspan(start, end, color="#999999", alpha=0.25, linewidth=0, zorder=0)
        else:
            axes.axvline(start, color="#777777", linestyle=":", linewidth=1, zorder=0)


def _facets(cells: Sequence[CellData], height: float) -> tuple[Figure, list[Any]]:
    count = max(len(cells), 1)
    figure = Figure(figsize=(7.6, 0.9 + height * count))
    grid = figure.subplots(count, 1, sharex=True, sharey=True, squeeze=False)
    for cell, axes in zip(cells, grid[:, 0], strict=False):
        shade(axes, cell.intervals)
        axes.set_xlim(0, _span(cells))
    grid[-1, 0].set_xlabel("time, s")
    return figure, list(grid[:, 0])


def _about(cells: Sequence[CellData]) -> str:
    first = cells[0].result
    return f"{first.scenario}, {point_name(first.params)}, seed {first.seed}"


def cwnd_over_time(cells: Sequence[CellData], labels: Sequence[str]) -> Figure:
    """Congestion window and ssthresh, one panel a cell, CA states as a ribbon above.

    ``cells`` must not be empty; ``labels`` are all algorithms of the campaign, for colours.
    """
    looks = styles(labels)
    stop = _span(cells)
    with mpl.rc_context(_STYLE):
        figure, panels = _facets(cells, 1.45)
        for cell, axes in zip(cells, panels, strict=True):
            for flow, name in _measured(cell):
                acks = cell.flow("acks", flow) or cell.flow("samples", flow)
                x, y = envelope(acks["t_s"], acks["cwnd_segs"], 0, stop, _POINTS // 2)
                axes.plot(x, y, color=looks[cell.result.label]["color"], linewidth=1, label=name)
                x, y = envelope(acks["t_s"], _ssthresh(acks), 0, stop, _POINTS // 4)
                axes.plot(x, y, color="#444444", linewidth=0.8, linestyle="--")
                ribbon(axes, cell.flow("states", flow), stop)
            axes.set_title(cell.result.label, loc="left", fontsize=9, fontweight="bold", pad=11)
        panels[0].set_ylim(bottom=0)
        figure.supylabel("segments", fontsize=9)
        figure.suptitle(_about(cells), fontsize=10)
        _state_legend(figure)
    return figure


def _ssthresh(acks: Columns) -> Array:
    values = acks["ssthresh_segs"].astype(float)
    values[values >= NO_SSTHRESH] = np.nan
    return values


def ribbon(axes: Any, states: Columns, stop: float) -> None:  # noqa: ANN401
    """Draw the CA states as a strip just above the axes (Open stays light)."""
    if not states:
        return
    times = np.clip(np.concatenate([[0.0], states["t_s"], [stop]]), 0.0, stop)
    names = ["Open", *states["state"]]
    strip = {"linewidth": 0, "transform": axes.get_xaxis_transform(), "clip_on": False}
    axes.broken_barh([(0.0, stop)], (1.01, 0.07), facecolors=STATE_COLOURS["Open"], **strip)
    for state in CA_STATES[1:]:
        rows = [i for i, name in enumerate(names) if name == state and times[i + 1] > times[i]]
        spans = [(times[i], times[i + 1] - times[i]) for i in rows]
        axes.broken_barh(spans, (1.01, 0.07), facecolors=STATE_COLOURS[state], **strip)


def _state_legend(figure: Figure) -> None:
    handles: list[Any] = [Patch(color=c, label=s) for s, c in STATE_COLOURS.items()]
    handles.append(Line2D([], [], color="#444444", linestyle="--", linewidth=0.8, label="ssthresh"))
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=8)


def queue_over_time(cells: Sequence[CellData], labels: Sequence[str]) -> Figure:
    """Packets in the bottleneck's queue, one panel a cell (``cells`` must not be empty)."""
    looks = styles(labels)
    stop = _span(cells)
    with mpl.rc_context(_STYLE):
        figure, panels = _facets(cells, 1.15)
        for cell, axes in zip(cells, panels, strict=True):
            for stage in cell.stages()[:1]:
                queue = cell.flow("queue", stage)
                x, y = envelope(queue["t_s"], queue["packets"], 0, stop, _POINTS // 2)
                axes.fill_between(x, y, color=looks[cell.result.label]["color"], linewidth=0)
            axes.set_title(cell.result.label, loc="left", fontsize=9, fontweight="bold")
        figure.supylabel("queue, packets", fontsize=9)
        figure.suptitle(_about(cells), fontsize=10)
    return figure


def sequence_over_time(cells: Sequence[CellData], labels: Sequence[str]) -> Figure:
    """Bytes acknowledged over time, one curve a cell, retransmissions marked."""
    looks = styles(labels)
    stop = _span(cells)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(7.6, 4.2))
        axes = figure.add_subplot()
        for cell in cells:
            for flow, name in _measured(cell):
                _sequence(axes, cell, (flow, name), looks[cell.result.label], stop)
        if cells:
            shade(axes, cells[0].intervals)
            axes.set_title(_about(cells), loc="left")
        axes.set_xlabel("time, s")
        axes.set_ylabel("acknowledged, MB (crosses: retransmissions)")
        axes.set_xlim(0, stop)
        axes.set_ylim(bottom=0)
        axes.legend()
    return figure


def _sequence(
    axes: Any,  # noqa: ANN401
    cell: CellData,
    names: tuple[str, str],
    look: Mapping[str, Any],
    stop: float,
) -> None:
    flow, name = names
    acks = cell.flow("acks", flow)
    samples = cell.flow("samples", flow)
    t, y = (acks["t_s"], acks["una_bytes"]) if acks else (samples["t_s"], samples["bytes_acked"])
    x, mb = envelope(t, y / 1e6, 0, stop, _POINTS // 4)
    axes.plot(x, mb, color=look["color"], linestyle=look["linestyle"], linewidth=1.3, label=name)
    again = cell.flow("retransmits", flow)
    if again and len(t):
        moments = again["t_s"][:: max(1, len(again["t_s"]) // 60)]
        at = np.interp(moments, t, y / 1e6)
        axes.plot(moments, at, "x", color=look["color"], markersize=3, markeredgewidth=0.6)


def goodput_over_time(cells: Sequence[CellData], labels: Sequence[str]) -> Figure:
    """Goodput at the receiver over time, averaged over at least 1/100 of the run."""
    looks = styles(labels)
    stop = _span(cells)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(7.6, 3.4))
        axes = figure.add_subplot()
        for cell in cells:
            look = looks[cell.result.label]
            for flow, name in _measured(cell):
                t, rate = rebinned(cell.flow("goodput", flow), stop, 100)
                axes.step(
                    t,
                    rate / 1e6,
                    where="post",
                    label=name,
                    linewidth=1.2,
                    color=look["color"],
                    linestyle=look["linestyle"],
                )
        if cells:
            shade(axes, cells[0].intervals)
            axes.set_title(_about(cells), loc="left")
        axes.set_xlabel("time, s")
        axes.set_ylabel("goodput, Mbit/s")
        axes.set_xlim(0, stop)
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside lower center", ncols=7)
    return figure


def rebinned(bins: Columns, stop: float, most: int) -> tuple[Array, Array]:
    """Goodput in at most ``most`` equal bins over 0..stop: start times (s) and bit/s."""
    edges = np.linspace(0, stop, most + 1)
    if not bins or not len(bins["t_s"]):
        return edges[:-1], np.zeros(most)
    width = float(np.min(np.diff(bins["t_s"]))) if len(bins["t_s"]) > 1 else 0.0
    at = np.append(bins["t_s"], bins["t_s"][-1] + width)
    # Bytes up to a moment: straight lines between the bins' edges.
    total = np.concatenate([[0.0], np.cumsum(bins["bytes"])])
    return edges[:-1], np.diff(np.interp(edges, at, total)) * 8 / (stop / most)


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
    made += save(goodput_over_time(cells, labels), folder, "goodput-time")
    made += save(cwnd_over_time(cells, labels), folder, "cwnd")
    made += save(sequence_over_time(cells, labels), folder, "sequence")
    if any("queue" in cell.tables for cell in cells):
        made += save(queue_over_time(cells, labels), folder, "queue")
    return made
