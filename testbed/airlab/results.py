"""The result folder: what is in it, how it is written, read and summed up.

::

    RESULT/
      manifest.json   scenario, versions, seeds, engine, planned cells
      summary.json    cells, table rows, claims; schema/result.schema.json describes it
      table.md        the table for people
      claims.json     verdict of each expectation
      figures/        SVG, PNG
      report.html     everything in one page
      cells/SLUG/     cell.json (schema/result-cell.schema.json), *.parquet, plan.json, ...

All files are written under a temporary name and renamed, so a reader never sees half of one.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from airlab.claims import ClaimResult, claims_table, evaluate
from airlab.model import AirlabError, Cell, Scalar
from airlab.stats import Estimate, estimate, paired_ratio

SCHEMA_VERSION = 1


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FlowResult(_Record):
    """One TCP flow; values are None when neither trace nor sender could tell."""

    label: str
    role: str
    cc: str
    """Congestion control the kernel reported."""
    cc_end: str | None
    """The same at the end of the flow, different after a switch in mid-flow."""
    port: int
    src: str
    dst: str
    start_s: float
    stop_s: float
    bytes: int
    """Payload bytes the receiver got over the whole run."""
    goodput_bps: float
    """Payload the receiver got within [start_s, stop_s], over its length, bit/s."""
    retransmissions: int | None
    """Segments sent again, TLP included (TCP_INFO tcpi_total_retrans)."""
    rtos: int | None
    """Retransmission timeouts: entries into CA state Loss (trace), else TCPTimeouts."""
    rtt_mean_us: float | None
    """Mean over ACKs of the smoothed round-trip time; over polls without a trace."""
    rtt_p50_us: float | None
    rtt_p95_us: float | None
    rtt_p99_us: float | None
    rtt_min_us: float | None
    """The kernel's own minimum (tcpi_min_rtt) at the end."""
    rtt_source: Literal["acks", "samples", "none"]
    cwnd_mean_segs: float | None
    """Mean over time of the congestion window."""
    ca_state_s: dict[str, float] | None
    """Seconds in each congestion-avoidance state within [start_s, stop_s]."""
    verified: bool | None
    """Whether all data arrived unchanged; None when not checked."""
    finished_s: float | None = None
    """Seconds from its start until all of a flow of given size had arrived; None: it had not."""
    full_s: float | None = None
    """Seconds from its start until it filled the path (``transfers.py``); None: it did not."""


class CheckResult(_Record):
    """A check of the substrate audit."""

    name: str
    expected: str
    measured: str
    tolerance: str
    ok: bool
    severity: Literal["veto", "warn"]


class AuditResult(_Record):
    """The audit of a cell."""

    verdict: Literal["ok", "warn", "veto"]
    checks: list[CheckResult]


class StageResult(_Record):
    """Losses of one direction of an emulated link during the experiment."""

    name: str
    queue_drops: int | None
    channel_drops: int | None
    frames: int | None
    """Frames that reached the channel."""


class Hashes(_Record):
    """SHA-256 of raw outputs: equal hashes mean bit-equal runs."""

    pcap_sha256: str | None
    pcap_packets: int | None
    trace_sha256: str | None


class TraceResult(_Record):
    """The event trace of a cell."""

    events: int
    lost: int


class ModuleResult(_Record):
    """A kernel module that was loaded."""

    name: str
    srcversion: str
    version: str


class CellResult(_Record):
    """One run: an algorithm at a parameter point with a seed (``cell.json``)."""

    schema_version: Literal[1] = 1
    scenario: str
    slug: str
    label: str
    """Name of the algorithm in this campaign, such as ``reno-nosack``."""
    seed: int
    params: dict[str, Scalar]
    plan_key: str
    duration_s: float
    start_realtime_ns: int | None = None
    """CLOCK_REALTIME at the start: where a kept capture's times and those of the tables meet."""
    flows: list[FlowResult]
    stages: list[StageResult]
    metrics: dict[str, float]
    """Numbers over the measured flows, for tables and claims."""
    audit: AuditResult
    hashes: Hashes
    trace: TraceResult | None
    kernel: str
    modules: list[ModuleResult]
    times: dict[str, float] = {}
    """Wall and virtual seconds of the run."""
    notes: list[str] = []

    @property
    def counted(self) -> bool:
        """Whether the audit lets the cell count."""
        return self.audit.verdict != "veto"

    def metric(self, name: str) -> float | None:
        """A number of the cell by name, or of one flow as ``flow-label:name``."""
        label, colon, field = name.rpartition(":")
        if not colon:
            return self.metrics.get(name)
        for flow in self.flows:
            value = getattr(flow, field, None)
            if flow.label == label and isinstance(value, int | float):
                return float(value)
        return None


class Number(_Record):
    """A mean over seeds; ``half`` is half of the 95 % interval (None with one seed)."""

    mean: float | None
    half: float | None
    n: int

    @classmethod
    def of(cls, made: Estimate) -> Number:
        """From an estimate; a mean of nothing becomes None."""
        return cls(mean=None if math.isnan(made.mean) else made.mean, half=made.half, n=made.n)


class Row(_Record):
    """One line of the table: an algorithm at a parameter point, over its counted seeds."""

    params: dict[str, Scalar]
    label: str
    n: int
    vetoed: int
    missing: int
    goodput_bps: Number
    gain: Number | None
    """Mean paired ratio of goodput to the baseline's, minus 1."""
    retransmissions: Number
    rtt_mean_us: Number
    rtos: Number


class CellLine(_Record):
    """A cell in the summary."""

    slug: str
    label: str
    seed: int
    params: dict[str, Scalar]
    verdict: Literal["ok", "warn", "veto", "missing"]
    reasons: list[str]
    goodput_bps: float | None
    pcap_sha256: str | None
    trace_sha256: str | None


class Summary(_Record):
    """What a campaign showed (``summary.json``)."""

    schema_version: Literal[1] = 1
    scenario: str
    baseline: str | None
    rows: list[Row]
    claims: list[ClaimResult]
    cells: list[CellLine]


def schemas() -> dict[str, dict[str, Any]]:
    """The published JSON schemas by file name."""
    made: dict[str, type[BaseModel]] = {
        "result.schema.json": Summary,
        "result-cell.schema.json": CellResult,
    }
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {name: {"$schema": draft, **model.model_json_schema()} for name, model in made.items()}


def write_schemas(folder: Path) -> None:
    """Write the JSON schemas of ``summary.json`` and ``cell.json``."""
    for name, schema in schemas().items():
        write_json(folder / name, schema)


def write_text(path: Path, text: str) -> None:
    """Write a file at once: readers see the old content or all of the new."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file at once: readers see the old content or all of the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:  # noqa: ANN401 - JSON has any shape
    """Write a JSON file at once; NaN is an error."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:  # noqa: ANN401 - JSON has any shape
    """Read a JSON file.

    Raises:
        AirlabError: it is missing or damaged.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise AirlabError(f"{path}: no such file; is this a result folder?") from None
    except ValueError as error:
        raise AirlabError(f"{path}: not JSON: {error}") from None


def load_cell(folder: Path) -> CellResult:
    """Read a cell's folder (``cell.json``, and ``times.json`` if it is there).

    Raises:
        AirlabError: it is missing or not of this version.
    """
    data = read_json(folder / "cell.json")
    times = folder / "times.json"
    if times.is_file():
        data["times"] = read_json(times)
    try:
        return CellResult.model_validate(data)
    except ValidationError as error:
        raise AirlabError(f"{folder / 'cell.json'}: {error}") from None


def load_cells(result: Path) -> list[CellResult]:
    """All finished cells of a result folder, by name of their folders."""
    folders = sorted(p.parent for p in (result / "cells").glob("*/cell.json"))
    return [load_cell(folder) for folder in folders]


def load_summary(result: Path) -> Summary:
    """Read ``summary.json``.

    Raises:
        AirlabError: it is missing or not of this version.
    """
    path = result / "summary.json"
    try:
        return Summary.model_validate(read_json(path))
    except ValidationError as error:
        raise AirlabError(f"{path}: {error}") from None


def summarise(
    scenario: str,
    cells: Sequence[CellResult],
    *,
    baseline: str | None = None,
    expects: Sequence[Mapping[str, Any]] = (),
    planned: Sequence[Cell] | None = None,
) -> Summary:
    """Sum up a campaign.

    Args:
        scenario: its name.
        cells: cells that ran; vetoed ones are listed and kept out of the numbers.
        baseline: label of the algorithm that gains refer to.
        expects: the scenario's expectations.
        planned: all cells of the campaign, in the order of the table; by default ``cells``.
    """
    plan = list(planned) if planned is not None else [_as_cell(c) for c in cells]
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in sorted(plan, key=lambda c: _order(c, plan)):
        groups.setdefault((_point_key(cell.point), cell.cc), []).append(cell)
    claims = evaluate(expects, cells, plan)
    return Summary(
        scenario=scenario,
        baseline=baseline,
        rows=[_row(group, cells, baseline) for group in groups.values()],
        claims=claims,
        cells=[_line(cell, cells) for cell in plan],
    )


def _as_cell(result: CellResult) -> Cell:
    return Cell(result.label, result.seed, tuple(result.params.items()))


def _point_key(params: Mapping[str, Scalar]) -> str:
    return json.dumps(dict(params), sort_keys=True)


def _order(cell: Cell, plan: Sequence[Cell]) -> tuple[list[tuple[float, str]], int]:
    """Points by value (numbers before texts), algorithms in the order of the plan."""
    labels = list(dict.fromkeys(c.cc for c in plan))
    values = cell.point.values()
    keys = [(float(v), "") if isinstance(v, int | float) else (math.inf, v) for v in values]
    return keys, labels.index(cell.cc)


def _row(group: Sequence[Cell], cells: Sequence[CellResult], baseline: str | None) -> Row:
    label, params = group[0].cc, group[0].point
    ran = _at(cells, label, params)
    counted = _counted(ran)
    gain = None
    if baseline is not None and baseline != label:
        base = _counted(_at(cells, baseline, params))
        ratio = paired_ratio(_metric(counted, "goodput_bps"), _metric(base, "goodput_bps"))
        gain = Number.of(Estimate(ratio.mean - 1, ratio.half, ratio.n))
    return Row(
        params=params,
        label=label,
        n=len(counted),
        vetoed=len(ran) - len(counted),
        missing=len({c.seed for c in group} - ran.keys()),
        goodput_bps=_number(counted, "goodput_bps"),
        gain=gain,
        retransmissions=_number(counted, "retransmissions"),
        rtt_mean_us=_number(counted, "rtt_mean_us"),
        rtos=_number(counted, "rtos"),
    )


def _at(
    cells: Iterable[CellResult], label: str, params: Mapping[str, Scalar]
) -> dict[int, CellResult]:
    return {c.seed: c for c in cells if c.label == label and c.params == dict(params)}


def _counted(cells: Mapping[int, CellResult]) -> dict[int, CellResult]:
    return {seed: c for seed, c in cells.items() if c.counted}


def _metric(cells: Mapping[int, CellResult], name: str) -> dict[int, float]:
    values = ((seed, c.metric(name)) for seed, c in cells.items())
    return {seed: value for seed, value in values if value is not None}


def number_at(
    cells: Iterable[CellResult], label: str, params: Mapping[str, Scalar], metric: str
) -> Number:
    """Any metric (or ``flow:metric``) of an algorithm at a point, over its counted seeds."""
    return _number(_counted(_at(cells, label, params)), metric)


def _number(cells: Mapping[int, CellResult], name: str) -> Number:
    values = _metric(cells, name)
    return Number.of(estimate([values[s] for s in sorted(values)]))


def _line(cell: Cell, cells: Sequence[CellResult]) -> CellLine:
    ran = _at(cells, cell.cc, cell.point).get(cell.seed)
    if ran is None:
        verdict: Literal["ok", "warn", "veto", "missing"] = "missing"
        reasons = ["the run gave no result"]
    else:
        verdict = ran.audit.verdict
        failed = (c for c in ran.audit.checks if not c.ok)
        reasons = [f"{c.name}: {c.measured}, expected {c.expected} ({c.tolerance})" for c in failed]
    return CellLine(
        slug=cell.slug,
        label=cell.cc,
        seed=cell.seed,
        params=cell.point,
        verdict=verdict,
        reasons=reasons,
        goodput_bps=None if ran is None else ran.metrics.get("goodput_bps"),
        pcap_sha256=None if ran is None else ran.hashes.pcap_sha256,
        trace_sha256=None if ran is None else ran.hashes.trace_sha256,
    )


def point_name(params: Mapping[str, Scalar]) -> str:
    """A parameter point in words: the last part of each key and its value."""
    return ", ".join(point_parts(params)) or "one point"


def point_parts(
    params: Mapping[str, Scalar], names: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Each parameter in words; a value that has a name in ``names`` is called by that alone."""
    for key, value in params.items():
        yield (names or {}).get(str(value), f"{key.rpartition('.')[2]} {value}")


def _cell_text(number: Number | None, scale: float, digits: int, sign: str = "") -> str:
    if number is None or number.mean is None:
        return "-"
    text = f"{number.mean * scale:{sign}.{digits}f}"
    return text if number.half is None else f"{text} ± {number.half * scale:.{digits}f}"


HEADINGS = ("point", "algorithm", "goodput Mbit/s", "gain %", "retransmissions", "RTT ms", "n")


def table_rows(summary: Summary) -> list[tuple[str, ...]]:
    """The table's cells as text, in the order of :data:`HEADINGS`."""
    return [
        (
            point_name(row.params),
            row.label,
            _cell_text(row.goodput_bps, 1e-6, 3),
            "baseline" if row.label == summary.baseline else _cell_text(row.gain, 100, 1, "+"),
            _cell_text(row.retransmissions, 1, 1),
            _cell_text(row.rtt_mean_us, 1e-3, 1),
            str(row.n) + (f" ({_left_out(row)})" if row.vetoed or row.missing else ""),
        )
        for row in summary.rows
    ]


def _left_out(row: Row) -> str:
    parts = [f"{n} {what}" for n, what in ((row.vetoed, "vetoed"), (row.missing, "missing")) if n]
    return ", ".join(parts)


def text_table(summary: Summary) -> str:
    """The table for a terminal: mean ± 95 % interval over seeds."""
    rows = [HEADINGS, *table_rows(summary)]
    widths = [max(len(r[i]) for r in rows) for i in range(len(HEADINGS))]
    lines: list[str] = []
    last = ""
    for row in rows:
        shown = (row[0] if row[0] != last else "", *row[1:])
        if row[0] != last and lines:
            lines.append("")
        last = row[0]
        texts = [
            c.ljust(w) if i < 2 else c.rjust(w)
            for i, (c, w) in enumerate(zip(shown, widths, strict=True))
        ]
        lines.append("  ".join(texts).rstrip())
    return "\n".join(lines) + "\n"


def markdown_table(summary: Summary) -> str:
    """The table in Markdown."""
    rows = [HEADINGS, tuple(["---"] * 2 + ["---:"] * 5), *table_rows(summary)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def write_result(result: Path, summary: Summary, manifest: Mapping[str, Any]) -> None:
    """Write ``manifest.json``, ``summary.json``, ``claims.json`` and ``table.md``."""
    write_json(result / "manifest.json", dict(manifest))
    write_json(result / "summary.json", summary.model_dump())
    write_json(result / "claims.json", [claim.model_dump() for claim in summary.claims])
    note = "Mean and 95 % interval (Student t) over seeds; gains are paired by seed.\n"
    text = f"# {summary.scenario}\n\n{markdown_table(summary)}\n{note}"
    if summary.claims:
        text += f"\n## Claims\n\n```\n{claims_text(summary)}```\n"
    write_text(result / "table.md", text)


def claims_text(summary: Summary) -> str:
    """The verdicts of a summary as text."""
    return claims_table(summary.claims)
