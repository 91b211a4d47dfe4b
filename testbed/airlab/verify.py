"""``airlab verify``: a published figure judged claim by claim, or a cell run again bit by bit."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airlab import results
from airlab.campaign import (
    Options,
    Request,
    plan_of,
    run_campaign,
)
from airlab.collect import collect
from airlab.engines import Watch
from airlab.engines.choose import Choice, choose
from airlab.figure import PaperTable
from airlab.model import EXIT_FAILED, EXIT_OK, AirlabError, Cell
from airlab.scenario import parse_scenario
from airlab.stats import prediction

_HASHES = ("pcap_sha256", "trace_sha256")


def judge_figure(name: str, options: Options) -> int:
    """Run a figure's scenario and judge its claims; 0 when every one is reproduced."""
    request = Request.of_figure(name, options)
    status = run_campaign(request)
    table = request.figure.paper_table if request.figure else None
    if table and (request.out / "summary.json").is_file():
        text = beside_paper(results.load_summary(request.out), table)
        results.write_text(request.out / "paper.md", f"# {request.scenario.title}\n\n{text}\n")
        print(text)
    return status


def beside_paper(summary: results.Summary, table: PaperTable) -> str:
    """Measured gains beside the published ones, as a Markdown table in percent."""
    lines = [
        f"Gain over {table.gain_over} in %: measured, mean and 95 % interval, beside "
        f"the paper's ({table.source}).",
        "",
        "| " + " | ".join([table.param.split(".")[-1], *_headings(table)]) + " |",
        "|" + "---|" * (1 + len(_headings(table))),
    ]
    for place, x in enumerate(table.x):
        cells_text = []
        for label, published in table.rows.items():
            cells_text += [
                _measured(summary, label, table.param, x),
                _published(table, label, place, published),
            ]
        lines.append("| " + " | ".join([f"{x:g}", *cells_text]) + " |")
    if table.note:
        lines += ["", f"(*) {table.note}"]
    return "\n".join(lines)


def _headings(table: PaperTable) -> list[str]:
    return [text for label in table.rows for text in (label, f"{label}, paper")]


def _measured(summary: results.Summary, label: str, param: str, x: float) -> str:
    for row in summary.rows:
        if (
            row.label == label
            and row.params.get(param) == x
            and row.gain
            and row.gain.mean is not None
        ):
            half = f" ± {row.gain.half * 100:.0f}" if row.gain.half is not None else ""
            return f"{row.gain.mean * 100:+.0f}{half}"
    return "-"


def _published(table: PaperTable, label: str, place: int, row: Sequence[Any]) -> str:
    value = row[place]
    if not isinstance(value, float | int):
        return "?"
    mark = " (*)" if table.x[place] in table.damaged.get(label, []) else ""
    return f"{value * 100:+.4g}{mark}"


def repeat_cell(result: Path, *, cell: str | None, jobs: int, engine: Choice | None = None) -> int:
    """Run one cell of a result again on its engine and compare.

    In virtual time capture and trace are compared bit by bit; in real time, where no two runs are
    equal, goodput is compared with what the seeds of the result lead to expect.

    Raises:
        AirlabError: the cell is not there, or the plan, kernel or image is another now.
    """
    manifest = results.read_json(result / "manifest.json")
    provenance = manifest["provenance"]
    place: Choice = provenance["engine"]
    if engine not in (None, "auto", place):
        raise AirlabError(
            f"--engine {engine}: {result} was made by engine {place}; another engine's run is "
            "another experiment: run the scenario there and compare the two results"
        )
    planned = [Cell(c["cc"], c["seed"], tuple(c["params"].items())) for c in manifest["cells"]]
    slug = cell or next((c.slug for c in planned if (result / "cells" / c.slug).is_dir()), "")
    before = results.load_cell(result / "cells" / slug)
    scenario = parse_scenario(manifest["scenario"]["as_run"], manifest["scenario"]["source"])
    plan = plan_of(scenario, slug, planned)
    kernel = None if place == "host" else provenance["kernel"]
    chosen = choose(place, plans=[plan], kernel=kernel, fast=scenario.allow_fast)
    _same_experiment(provenance, chosen.provenance(), plan.key, before.plan_key)
    with tempfile.TemporaryDirectory(prefix="airlab-verify-") as scratch:
        raw = chosen.run(plan, Path(scratch), Watch(), slot=jobs - 1 if chosen.parallel else 0)
        again_folder = Path(scratch) / "cell"
        again_folder.mkdir()
        collect(raw.out, plan, again_folder)
        again = results.load_cell(again_folder)
    if provenance.get("exact", True):
        return _compare(slug, before, again)
    siblings = [
        results.load_cell(result / "cells" / other.slug)
        for other in planned
        if (other.cc, other.params) == (before.label, tuple(before.params.items()))
        and (result / "cells" / other.slug / "cell.json").is_file()
    ]
    return _compare_real_time(place, siblings, before, again)


def _same_experiment(
    old: Mapping[str, Any], new: Mapping[str, Any], key: str, old_key: str
) -> None:
    differs = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    if key != old_key:
        differs.append("the plan (airlab or the scenario changed)")
    if differs:
        raise AirlabError(
            "this is not the same experiment any more, so equal bits cannot be expected; "
            f"different now: {', '.join(differs)}. Run it afresh to compare results"
        )


def _compare(slug: str, before: results.CellResult, again: results.CellResult) -> int:
    old, new = before.hashes.model_dump(), again.hashes.model_dump()
    verdict: dict[str, Any] = {"cell": slug, "identical": True}
    for name in _HASHES:
        if old[name] is None and new[name] is None:
            continue
        same = old[name] == new[name]
        verdict["identical"] = verdict["identical"] and same
        verdict[name] = {"before": old[name], "again": new[name]}
        print(f"{name:<14} {'identical' if same else 'DIFFERENT'}  {old[name]}")
        if not same:
            print(f"{'':<14}            {new[name]}")
    print(json.dumps(verdict))
    return EXIT_OK if verdict["identical"] else EXIT_FAILED


def _compare_real_time(
    engine: str,
    siblings: Sequence[results.CellResult],
    before: results.CellResult,
    again: results.CellResult,
) -> int:
    """Say that bits are not compared, and judge the goodput by that of the same cell's seeds."""
    name = "goodput_bps"
    old, new = before.metrics[name], again.metrics[name]
    counted = [cell.metrics[name] for cell in siblings if cell.counted]
    expected = prediction(counted)
    inside = None if expected is None else expected[0] <= new <= expected[1]
    print(f"engine {engine} runs in real time: no two runs are equal, so bits are not compared")
    print(f"{name:<14} before {old:.0f}, again {new:.0f} ({new / old - 1:+.2%})" if old else name)
    if expected is None:
        print(f"{'':<14} {len(counted)} seed(s) that count: too few to say what to expect (3)")
    else:
        word = "as expected" if inside else "NOT as expected"
        print(f"{'':<14} {word}: {expected[0]:.0f} to {expected[1]:.0f} from {len(counted)} seeds")
    if not again.counted:
        failed = [c.name for c in again.audit.checks if not c.ok and c.severity == "veto"]
        print(f"{'audit':<14} VETO of the new run: {', '.join(failed)}")
    verdict = {
        "cell": before.slug,
        "identical": None,
        "engine": engine,
        name: {"before": old, "again": new, "expected": expected, "inside": inside},
        "audit": again.audit.verdict,
    }
    print(json.dumps(verdict))
    return EXIT_OK if again.counted and inside is not False else EXIT_FAILED
