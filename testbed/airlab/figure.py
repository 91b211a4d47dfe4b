"""Figure files: which runs, which plot and which claims make a published figure or table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from .algorithms import lookup
from .model import AirlabError, Scalar
from .scenario import Expect, Slug, Strict, Time, read_toml, validate

STANDARD_PICTURES = {
    "goodput": "Goodput by algorithm and point, 95 % intervals.",
    "goodput-time": "Goodput at the receiver over time.",
    "cwnd": "Congestion window and ssthresh; state of congestion avoidance as a ribbon.",
    "sequence": "Bytes acknowledged over time, retransmissions marked.",
    "queue": "Packets in the bottleneck's queue.",
}
"""Pictures of every result and what they show; ``goodput-KEY`` is over the key that is swept."""


class Plot(Strict):
    """A metric over the parameter points, beside the charts of goodput that each result has."""

    name: Slug
    title: str
    x: str | None = Field(None, description="dotted key of a swept number: lines; default: bars")
    y: str = Field(description="the metric, or FLOW:metric of one flow; its end tells the unit")
    x_label: str | None = None
    y_label: str | None = Field(None, description="what the metric is called, without its unit")
    values: dict[str, str] = Field(
        default_factory=dict, description="what values of parameters are called below bars"
    )


class Picture(Strict):
    """Runs drawn over time (``airlab.pictures`` says how); ``points`` are drawn into one picture.

    A point may name another algorithm than ``of`` by the key ``cc``.
    """

    name: Slug
    title: str
    kind: Literal[
        "cwnd", "flight", "sequence", "supplements", "throughput", "available", "equilibrium"
    ]
    of: str = Field(description="label of the algorithm")
    points: list[dict[str, Scalar]] = Field(default_factory=list)
    seed: Annotated[int, Field(ge=1)] = 1
    span: tuple[Time, Time] | None = Field(None, description="from and to; default: all of it")

    @property
    def needs(self) -> tuple[str, ...]:
        """The cell's tables that are drawn."""
        windows = ("acks", "states")
        tables = {
            "sequence": ("acks",),
            "throughput": ("goodput",),
            "available": ("imtcp_imtcp_result",),
            "equilibrium": ("symbiosis_symbiosis_step",),
        }
        return tables.get(self.kind, windows)

    @property
    def name_labels(self) -> bool:
        """Whether the legend has to tell algorithms apart."""
        return len({point.get("cc", self.of) for point in self.points}) > 1


class PaperTable(Strict):
    """Published values: a row of numbers for each label, a column for each point of ``x``.

    ``gain_over`` says the numbers are relative gains (0.35 is 35 %) over that label's metric.
    ``damaged`` lists, for each label, the points whose printed value is not to be trusted.
    """

    source: str
    metric: str = "goodput_bps"
    gain_over: str | None = None
    param: str = Field(description="dotted key of the columns")
    x: Annotated[list[float], Field(min_length=1)]
    rows: dict[str, list[float | Literal["unknown"]]]
    damaged: dict[str, list[float]] = Field(default_factory=dict)
    note: str | None = None

    def value(self, label: str, point: float) -> float | None:
        """The published value; None when there is none or it is damaged."""
        if label not in self.rows or point not in self.x or point in self.damaged.get(label, []):
            return None
        found = self.rows[label][self.x.index(point)]
        return None if isinstance(found, str) else found


class Figure(Strict):
    """A published figure or table and how it is reproduced; :func:`load_figure` makes one."""

    schema_: Literal[1] = Field(alias="schema")
    name: Slug
    title: str
    paper: str
    scenario: str = Field(description="name of a scenario file, without .toml")
    set: dict[str, Scalar | list[Scalar]] = Field(
        default_factory=dict, description="overrides as by --set; a list is a sweep"
    )
    cc: list[str] | None = None
    seeds: Annotated[int, Field(ge=1)] | None = None
    plots: list[Plot] = Field(default_factory=list)
    pictures: list[Picture] = Field(default_factory=list)
    paper_table: PaperTable | None = None
    expect: list[Expect] = Field(default_factory=list)

    def overrides(self) -> dict[str, str]:
        """``set`` in the form :func:`airlab.scenario.load_scenario` takes."""
        return set_texts(self.set)

    def titles(self) -> dict[str, str]:
        """Names of the charts and pictures that are asked for, in their order, and their titles."""
        charts = {plot.name: plot.title for plot in self.plots}
        return charts | {picture.name: picture.title for picture in self.pictures}


def set_texts(values: Mapping[str, Scalar | Sequence[Scalar]]) -> dict[str, str]:
    """Overrides of a file in the form of ``--set``: a list becomes a sweep."""
    return {key: _text(value) for key, value in values.items()}


def _text(value: Scalar | Sequence[Scalar]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    return ",".join(_text(item) for item in value)


def load_figure(path: Path | str) -> Figure:
    """Read and check a figure file; AirlabError names file, key and remedy."""
    figure = validate(Figure, read_toml(Path(path)), str(path))
    faults = list(_faults(figure))
    if faults:
        raise AirlabError("\n".join(f"{path}: {fault}" for fault in faults))
    return figure


def _faults(figure: Figure) -> list[str]:
    faults: list[str] = []
    for label in figure.cc or []:
        try:
            lookup(label)
        except AirlabError as error:
            faults.append(f"cc: {error}")
    table = figure.paper_table
    if table is not None:
        for label, row in table.rows.items():
            if len(row) != len(table.x):
                faults.append(
                    f"paper_table.rows.{label}: {len(row)} values for {len(table.x)} points"
                )
        for label, points in table.damaged.items():
            faults += [
                f"paper_table.damaged.{label}: {point:g} is not a point of x"
                for point in points
                if point not in table.x
            ]
    return faults + _picture_faults(figure) + _claim_faults(figure.expect)


def _picture_faults(figure: Figure) -> list[str]:
    """A name is that of a file."""
    names = [plot.name for plot in figure.plots] + [p.name for p in figure.pictures]
    faults = [
        f"plots, pictures: {n!r} is used twice" for n in dict.fromkeys(names) if names.count(n) > 1
    ]
    faults += [
        f"plots, pictures: {n!r} is the name of a picture of every result; choose another"
        for n in names
        if n in STANDARD_PICTURES or n.startswith("goodput-")
    ]
    for picture in figure.pictures:
        if picture.span is not None and picture.span[0] >= picture.span[1]:
            faults.append(f"pictures.{picture.name}.span: ends before it begins")
    return faults


def _claim_faults(claims: list[Expect]) -> list[str]:
    ids = [claim.id for claim in claims]
    faults = [f"expect: id {name!r} is used twice" for name in {i for i in ids if ids.count(i) > 1}]
    for claim in claims:
        faults += [f"expect.{claim.id}{fault}" for fault in claim.faults()]
    return sorted(faults)
