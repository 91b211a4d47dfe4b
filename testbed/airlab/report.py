"""One HTML page that holds a whole result: table, verdicts, curves, audit.

The page needs no network and no server; without JavaScript the figures and tables remain.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from ccscope.draw.curves import Curve, envelope, rebinned
from ccscope.draw.flowview import FlowView, queue, stages
from ccscope.draw.look import COLOURS, STATE_COLOURS
from ccscope.page import VENDOR, shared_script, shared_style
from ccscope.recording import Array
from ccscope.schema import CA_STATES

from airlab.claims import ClaimResult
from airlab.figure import STANDARD_PICTURES
from airlab.plots import CellData, load_cell_data
from airlab.results import (
    HEADINGS,
    Summary,
    load_cell,
    point_name,
    table_rows,
    write_text,
)

ASSETS = Path(__file__).with_name("assets")
MOST_POINTS = 4000  # of one curve
LEAST_POINTS = 1000  # below that, seeds are left out instead
CURVE_BYTES = 1_200_000  # room for all curves in the page
_GOODPUT_BINS = 400
_RIBBON_CELLS = 1000
_SHORT_FACT = 60  # characters
_CURVES = 4  # cwnd, ssthresh, srtt, queue


def write_report(
    result: Path,
    summary: Summary,
    manifest: Mapping[str, Any],
    asked: Mapping[str, str] | None = None,
) -> Path:
    """Write ``report.html`` of a result whose cells and figures are there; returns its path.

    Args:
        result: the folder.
        summary: the campaign's.
        manifest: the page shows ``scenario.title``, ``question`` and the short facts of
            ``provenance`` at its head, and all of it at its end.
        asked: names and titles of the pictures that a figure file asks for; they come first.

    Raises:
        AirlabError: a cell is damaged.
    """
    page = Template((ASSETS / "report.html").read_text())
    data, decimation = _embedded(result, summary)
    values = {
        "title": _text(_title(summary, manifest)),
        "question": _text(manifest.get("question") or ""),
        "facts": _facts(result, summary, manifest),
        "table": _table(summary),
        "claims": _claims(summary.claims),
        "figures": _figures(result / "figures", asked or {}),
        "audit": _audit(summary),
        "manifest": _text(json.dumps(dict(manifest), indent=1)),
        "decimation": _text(decimation),
        "data": json.dumps(data, separators=(",", ":")).replace("</", "<\\/"),
        "css": shared_style(),
        "js": shared_script() + (ASSETS / "report.js").read_text(),
        "vendor_css": (VENDOR / "uPlot.min.css").read_text(),
        "vendor_js": (VENDOR / "uPlot.iife.min.js").read_text(),
    }
    path = result / "report.html"
    write_text(path, page.substitute(values))
    return path


def _text(value: object) -> str:
    return html.escape(str(value))


# ---- tables ----


def _facts(result: Path, summary: Summary, manifest: Mapping[str, Any]) -> str:
    cells = [load_cell(folder) for folder in _folders(result, summary).values()]
    seeds = sorted({line.seed for line in summary.cells})
    modules = {
        # The kernel's own modules have no version; the kernel's release stands for them.
        f"{m.name} {m.version} (srcversion {m.srcversion})"
        for c in cells
        for m in c.modules
        if m.version != "-"
    }
    verdicts = [line.verdict for line in summary.cells]
    counts = {v: verdicts.count(v) for v in ("ok", "warn", "veto", "missing") if v in verdicts}
    facts = {
        "Kernel": "; ".join(sorted({c.kernel for c in cells if c.kernel})),
        "Modules": "; ".join(sorted(modules)),
        "Algorithms": ", ".join(dict.fromkeys(row.label for row in summary.rows)),
        "Seeds": ", ".join(map(str, seeds)),
        "Runs": ", ".join(f"{n} {verdict}" for verdict, n in counts.items()),
        "Length": f"{cells[0].duration_s:g} s of virtual time a run" if cells else "",
        "Made with": _made_with(manifest),
    }
    shown = ((name, value) for name, value in facts.items() if value)
    return "".join(f"<dt>{_text(n)}</dt><dd>{_text(v)}</dd>" for n, v in shown)


def _folders(result: Path, summary: Summary) -> dict[str, Path]:
    """Folders of the summary's cells that ran; a result folder may hold others, too."""
    ran = (line.slug for line in summary.cells if line.verdict != "missing")
    return {slug: result / "cells" / slug for slug in ran}


def _made_with(manifest: Mapping[str, Any]) -> str:
    """The short facts of the manifest's ``provenance``, such as engine and version of QEMU."""
    provenance = manifest.get("provenance")
    known = provenance if isinstance(provenance, Mapping) else {}
    facts = {"airlab": manifest.get("commit") or manifest.get("airlab"), **known}
    short = (f"{k} {v}" for k, v in facts.items() if isinstance(v, str | int) and v)
    return "; ".join(text for text in short if len(text) <= _SHORT_FACT)


def _title(summary: Summary, manifest: Mapping[str, Any]) -> str:
    scenario = manifest.get("scenario")
    title = scenario.get("title") if isinstance(scenario, Mapping) else None
    return f"{summary.scenario}: {title}" if title else summary.scenario


def _html_table(heads: Sequence[str], rows: Iterable[str], numeric: int) -> str:
    """A table whose columns from ``numeric`` on are numbers."""
    names = (
        f'<th scope="col"{_number_class(i, numeric)}>{_text(h)}</th>' for i, h in enumerate(heads)
    )
    body = "".join(rows)
    head = f"<thead><tr>{''.join(names)}</tr></thead>"
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'


def _number_class(column: int, numeric: int) -> str:
    return ' class="num"' if column >= numeric else ""


def _table(summary: Summary) -> str:
    rows, last = [], None
    for row in table_rows(summary):
        first = row[0] != last
        shown = (row[0] if first else "", *row[1:])
        cells = (f"<td{_number_class(i, 2)}>{_text(c)}</td>" for i, c in enumerate(shown))
        rows.append(f"<tr{' class=point' if first else ''}>{''.join(cells)}</tr>")
        last = row[0]
    return _html_table(HEADINGS, rows, 2)


_CLAIM_CLASS = {"reproduced": "good", "not reproduced": "bad", "not judged": "open"}


def _claims(claims: Sequence[ClaimResult]) -> str:
    if not claims:
        return "<p>The scenario states no expectations.</p>"
    heads = ("verdict", "claim", "judged by", "value [95 % interval]")
    return _html_table(heads, map(_claim_row, claims), len(heads))


def _claim_row(claim: ClaimResult) -> str:
    numbers = []
    for point in claim.points:
        value = "no value" if point.value is None else f"{point.value:.4g}"
        interval = "" if point.low is None else f" [{point.low:.4g}, {point.high:.4g}]"
        near = "; a bound is inside the interval" if point.near else ""
        text = f"{point_name(point.params)}: {value}{interval}, n = {point.n}{near}"
        numbers.append(_text(text))
    source = f" ({claim.source})" if claim.source else ""
    return (
        f'<tr><td class="verdict {_CLAIM_CLASS[claim.verdict]}">{_text(claim.verdict)}</td>'
        f"<td>{_text(claim.claim + source)}</td>"
        f"<td>{_text(f'{claim.subject} {claim.bounds}')}</td>"
        f"<td>{'<br>'.join([*numbers, _text(claim.reason)])}</td></tr>"
    )


_AUDIT_CLASS = {"ok": "good", "warn": "open", "veto": "bad", "missing": "bad"}


def _audit(summary: Summary) -> str:
    lines = [line for line in summary.cells if line.verdict != "ok"]
    good = len(summary.cells) - len(lines)
    intro = (
        f"<p>{good} of {len(summary.cells)} runs passed every check of the substrate audit "
        "(rate, round-trip time and buffer before and after, losses of the channel within their "
        "exact bounds, processor head-room, complete traces).</p>"
    )
    heads = ("run", "audit", "what was not as it should be", "capture SHA-256", "trace SHA-256")
    rows = []
    for line in summary.cells:
        reasons = "<br>".join(map(_text, line.reasons)) or "-"
        hashes = "".join(
            f"<td><code>{_text((h or '-')[:16])}</code></td>"
            for h in (line.pcap_sha256, line.trace_sha256)
        )
        rows.append(
            f"<tr><td>{_text(line.slug)}</td>"
            f'<td class="verdict {_AUDIT_CLASS[line.verdict]}">{line.verdict}</td>'
            f"<td>{reasons}</td>{hashes}</tr>"
        )
    table = _html_table(heads, rows, len(heads))
    is_open = " open" if lines else ""
    return f"{intro}<details{is_open}><summary>All runs</summary>{table}</details>"


def _figures(folder: Path, asked: Mapping[str, str]) -> str:
    captions = {**asked, **STANDARD_PICTURES}
    order = list(captions)
    made = []
    for path in sorted(folder.glob("*.svg"), key=lambda path: _rank(path.stem, order)):
        about = captions.get(path.stem) or f"{path.stem.replace('-', ' over ').capitalize()}."
        source = base64.b64encode(path.read_bytes()).decode()
        made.append(
            f'<figure><img alt="{_text(about)}" src="data:image/svg+xml;base64,{source}">'
            f"<figcaption>{_text(about)}</figcaption></figure>"
        )
    return "".join(made) or "<p>No figures were drawn.</p>"


def _rank(stem: str, order: Sequence[str]) -> tuple[int, str]:
    """What was asked for, then over the campaign, then over time."""
    known = stem if stem in order else "goodput"  # over the swept parameter
    return order.index(known), stem


# ---- curves ----


def _embedded(result: Path, summary: Summary) -> tuple[dict[str, Any], str]:
    """The data of the interactive part, and what was left out of them, in words."""
    labels = list(dict.fromkeys(line.label for line in summary.cells))
    names = list(dict.fromkeys(point_name(line.params) for line in summary.cells))
    ran = [line for line in summary.cells if line.verdict != "missing"]
    folders = _folders(result, summary)
    flows = {slug: len(load_cell(folder).flows) for slug, folder in folders.items()}
    seeds, points = _budget([line.seed for line in ran for _ in range(flows.get(line.slug, 1))])
    cells, duration = [], 1.0
    for line in ran:
        if line.seed not in seeds:
            continue
        cell = load_cell_data(folders[line.slug])
        duration = max(duration, cell.result.duration_s)
        cells.append((line.verdict, names.index(point_name(line.params)), cell))
    data = {
        "points": names,
        "labels": labels,
        "colours": [COLOURS[i % len(COLOURS)] for i in range(len(labels))],
        "states": STATE_COLOURS,
        "duration": duration,
        "cells": [_cell(c, verdict, point, duration, points) for verdict, point, c in cells],
    }
    left_out = sorted({line.seed for line in ran} - seeds)
    text = (
        f"Curves have at most {points} points: the minimum and maximum of each of {points // 2} "
        "equal intervals; all data are in the Parquet files beside this page."
    )
    if left_out:
        text += (
            f" To keep the page small it has no curves of seeds {', '.join(map(str, left_out))}."
        )
    return data, text


def _budget(seeds_of_flows: Sequence[int]) -> tuple[set[int], int]:
    """Which seeds get curves, and how many points a curve has (even)."""
    kept = sorted(set(seeds_of_flows))
    while True:
        count = sum(seed in kept for seed in seeds_of_flows) * _CURVES
        # base64 makes 4 characters of 3 bytes, and a value has 4 bytes.
        points = int(CURVE_BYTES * 3 / 4 / 4 / max(count, 1))
        if points >= LEAST_POINTS or len(kept) <= 1:
            return set(kept), max(min(points, MOST_POINTS) // 2 * 2, 200)
        kept = kept[:-1]


def _cell(cell: CellData, verdict: str, point: int, duration: float, points: int) -> dict[str, Any]:
    def values(curve: Curve) -> str:
        if not len(curve):
            return ""
        return _base64(envelope(curve.t, curve.y, 0, duration, points // 2)[1].astype("<f4"))

    flows = []
    for name, view in cell.flows.items():
        bins = cell.recording.flow("goodput", view.label)
        rate = rebinned(bins, duration, _GOODPUT_BINS)[1]
        flows.append(
            {
                "name": name,
                "goodput": _base64((rate / 1e6).astype("<f4")),
                "cwnd": values(view.cwnd),
                "ssthresh": values(view.ssthresh),
                "srtt": values(view.srtt_ms),
                "ca": _states(view, duration),
            }
        )
    for stage in stages(cell.recording)[:1] if flows else []:
        flows[0]["queue"] = values(queue(cell.recording, stage))
    marks = [[s.start_s, s.stop_s, s.text] for s in cell.shades]
    seed = cell.result.seed
    made = {"label": cell.result.label, "seed": seed, "point": point, "verdict": verdict}
    return {**made, "intervals": marks, "flows": flows}


def _states(view: FlowView, duration: float) -> str:
    """The worst CA state within each of 1000 equal intervals, one byte each."""
    if not len(view.recording.flow("states", view.label)["t_s"]):
        return ""
    worst = np.zeros(_RIBBON_CELLS, dtype=np.uint8)
    for stay in view.stays(0.0, duration):
        first = int(stay.start_s / duration * _RIBBON_CELLS)
        last = int(stay.stop_s / duration * _RIBBON_CELLS)
        part = worst[first : last + 1]
        np.maximum(part, CA_STATES.index(stay.state) if stay.state in CA_STATES else 0, out=part)
    return _base64(worst)


def _base64(values: Array) -> str:
    return base64.b64encode(values.tobytes()).decode()
