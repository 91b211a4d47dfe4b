"""A campaign from the command line: find the scenario, run its cells, sum up, draw."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airlab import __version__, paths
from airlab.algorithms import BUILTIN
from airlab.engines.choose import Choice, choose
from airlab.figure import Figure, PaperTable, load_figure
from airlab.model import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, AirlabError, Cell, CellPlan
from airlab.plan import build_plan, cells
from airlab.results import Summary
from airlab.runner import Campaign, Outcome
from airlab.scenario import Scenario, load_scenario
from airlab.show import render

_CONSOLE_LINES = 30


@dataclass(frozen=True)
class Options:
    """What the command line says about a campaign beside its scenario or figure."""

    sets: Sequence[str] = ()
    cc: str | None = None
    seeds: int | Sequence[int] | None = None
    jobs: int = 2
    kernel: str | None = None
    engine: Choice = "vm"
    out: Path | None = None
    trace: bool = True
    keep_pcap: bool = False
    page: bool = True

    def overrides(self) -> dict[str, str]:
        """All overrides of scenario keys."""
        made = parse_sets(self.sets)
        if not self.trace:
            made |= {"trace.acks": "false", "trace.queue": "false", "trace.modules": "false"}
        if self.keep_pcap:
            made["trace.keep_pcap"] = "true"
        return made


@dataclass(frozen=True)
class Request:
    """What a person asked for."""

    scenario: Scenario
    cells: tuple[Cell, ...]
    out: Path
    jobs: int
    kernel: str | None
    engine: Choice
    page: bool
    figure: Figure | None = field(default=None)

    @classmethod
    def of_scenario(cls, name: str, options: Options) -> Request:
        """Load a scenario with all overrides and expand its cells."""
        scenario = load_scenario(find_scenario(name), options.overrides())
        made = cells(scenario, split(options.cc), options.seeds)
        return cls._made(scenario, made, options, scenario.name)

    @classmethod
    def of_figure(cls, name: str, options: Options) -> Request:
        """Load a figure and its scenario; the command line overrides the figure."""
        figure = load_figure(find_figure(name))
        overrides = figure.overrides() | options.overrides()
        scenario = load_scenario(find_scenario(figure.scenario), overrides)
        made = cells(scenario, split(options.cc) or figure.cc, options.seeds or figure.seeds)
        return cls._made(scenario, made, options, figure.name, figure)

    @classmethod
    def _made(
        cls,
        scenario: Scenario,
        made: Sequence[Cell],
        options: Options,
        name: str,
        figure: Figure | None = None,
    ) -> Request:
        out = options.out or Path("results") / name
        return cls(
            scenario=scenario,
            cells=tuple(made),
            out=out,
            jobs=options.jobs,
            kernel=options.kernel,
            engine=options.engine,
            page=options.page,
            figure=figure,
        )


def parse_sets(sets: Sequence[str]) -> dict[str, str]:
    """``KEY=VALUE`` words as a dict.

    Raises:
        AirlabError: a word has no equals sign.
    """
    made = {}
    for word in sets:
        key, sign, value = word.partition("=")
        if not sign or not key:
            raise AirlabError(f"--set {word}: give KEY=VALUE, such as links.air.ber=1e-6")
        made[key.strip()] = value.strip()
    return made


def split(text: str | None) -> list[str] | None:
    """A comma list from the command line; None stays None."""
    return [part.strip() for part in text.split(",") if part.strip()] if text else None


def find_scenario(name: str) -> Path:
    """A scenario by name or by file.

    Raises:
        AirlabError: there is none.
    """
    return _find(name, paths.SCENARIOS, "scenario")


def find_figure(name: str) -> Path:
    """A figure by name or by file.

    Raises:
        AirlabError: there is none.
    """
    return _find(name, paths.FIGURES, "figure")


def _find(name: str, folder: Path, what: str) -> Path:
    for candidate in (folder / f"{name}.toml", Path(name)):
        if candidate.is_file():
            return candidate
    known = ", ".join(sorted(p.stem for p in folder.glob("*.toml")))
    raise AirlabError(f"no {what} named {name!r} and no such file; known: {known}")


def listing() -> str:
    """Scenarios, figures and algorithms with their titles."""
    lines = ["scenarios (airlab run NAME):"]
    for path in sorted(paths.SCENARIOS.glob("*.toml")):
        scenario = load_scenario(path)
        count = len(cells(scenario))
        length = count * scenario.duration / 1e6
        lines.append(f"  {path.stem:<20} {scenario.title} ({count} runs, {length:.0f} virtual s)")
    lines.append("figures (airlab verify NAME):")
    for path in sorted(paths.FIGURES.glob("*.toml")):
        lines.append(f"  {path.stem:<20} {load_figure(path).title}")
    lines.append("algorithms (--cc):")
    lines.append("  " + ", ".join(sorted(BUILTIN)))
    return "\n".join(lines)


def show_scenario(name: str, *, sets: Sequence[str], cc: str | None) -> str:
    """The drawing and the commands of a scenario's first cell."""
    scenario = load_scenario(find_scenario(name), parse_sets(sets))
    cell = cells(scenario, split(cc), 1)[0]
    return render(scenario, build_plan(scenario, cell))


def interactive(
    name: str, *, sets: Sequence[str], kernel: str | None, engine: Choice = "vm"
) -> int:
    """A guest on this terminal, with a scenario's network set up."""
    scenario = load_scenario(find_scenario(name), parse_sets(sets))
    plan = build_plan(scenario, cells(scenario, None, 1)[0])
    chosen = choose(engine, plans=[plan], kernel=kernel, fast=scenario.allow_fast, extra=True)
    return chosen.interactive(plan)


def run_campaign(request: Request) -> int:
    """Run, sum up and draw; returns the exit status.

    Everything that was measured stays in the output folder whatever fails later.
    """
    plans = [build_plan(request.scenario, cell) for cell in request.cells]
    engine = choose(
        request.engine,
        plans=plans,
        kernel=request.kernel,
        fast=request.scenario.allow_fast,
    )
    jobs = request.jobs if engine.parallel else 1
    manifest = manifest_of(request, engine.provenance())
    write_scenario(request)
    outcome = Campaign(plans, engine, request.out, jobs=jobs).run()
    _tell(outcome, request.out)
    if not outcome.run and not outcome.reused:
        return EXIT_INTERRUPTED if outcome.interrupted else EXIT_FAILED
    status = finish_result(request.out, page=request.page, manifest=manifest)
    if outcome.interrupted:
        print(f"airlab: interrupted; run the same command again to go on ({request.out})")
        return EXIT_INTERRUPTED
    return EXIT_FAILED if outcome.failed else status


def finish_result(result: Path, *, page: bool, manifest: Mapping[str, Any] | None = None) -> int:
    """Sum up what a result folder holds: table, claims, plots, page.

    Returns 1 when a cell was vetoed or a claim was judged and does not hold.
    """
    from airlab import results

    known: Mapping[str, Any] = manifest or results.read_json(result / "manifest.json")
    planned = [Cell(c["cc"], c["seed"], tuple(c["params"].items())) for c in known["cells"]]
    wanted = {cell.slug for cell in planned}
    there = [
        results.load_cell(result / "cells" / slug)
        for slug in sorted(wanted)
        if (result / "cells" / slug / "cell.json").is_file()
    ]
    summary = results.summarise(
        known["scenario"]["name"],
        there,
        baseline=known["baseline"],
        expects=known["expect"],
        planned=planned,
    )
    results.write_result(result, summary, known)
    print()
    print(results.text_table(summary))
    if not known["provenance"].get("exact", True):
        print(f"engine {known['provenance']['engine']}: real time; not repeatable bit by bit")
    if summary.claims:
        print(results.claims_text(summary))
    vetoed = [line for line in summary.cells if line.verdict == "veto"]
    for line in vetoed:
        print(f"VETOED {line.slug}: {'; '.join(line.reasons)}")
    if page:
        from airlab import pictures, plots, report

        figure = load_figure(find_figure(known["figure"])) if known["figure"] else None
        table = figure.paper_table if figure else None
        drawn = plots.draw_all(result, summary, paper=_paper_values(table, summary))
        if figure:
            charts, without = plots.draw_asked(result, summary, there, figure.plots)
            more, missing = pictures.draw(result, summary, figure.pictures)
            drawn += charts + more
            left = without + missing
            if left:
                print(
                    f"not drawn, as their runs, metric or parameter are missing: {', '.join(left)}"
                )
        asked = figure.titles() if figure else {}
        target = report.write_report(result, summary, known, asked)
        print(f"plots: {drawn[0].parent}/  page: {target}")
    failed = any(claim.verdict != "reproduced" for claim in summary.claims)
    return EXIT_FAILED if vetoed or failed else EXIT_OK


def _paper_values(table: PaperTable | None, summary: Summary) -> dict[str, dict[float, float]]:
    """The paper's gains, applied to what the baseline measured here, for the plot."""
    if table is None or table.gain_over is None:
        return {}
    base = {
        row.params.get(table.param): row.goodput_bps.mean
        for row in summary.rows
        if row.label == table.gain_over
    }
    made: dict[str, dict[float, float]] = {}
    for label, gains in table.rows.items():
        for x, gain in zip(table.x, gains, strict=True):
            mean = base.get(x)
            usable = isinstance(gain, int | float) and x not in table.damaged.get(label, [])
            if usable and mean is not None:
                made.setdefault(label, {})[x] = mean * (1 + float(gain))
    return made


def manifest_of(request: Request, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What ``manifest.json`` says: the scenario as run, versions, the engine, planned cells."""
    scenario = request.scenario
    expect = request.figure.expect if request.figure else scenario.expect
    return {
        "airlab": __version__,
        "commit": _commit(),
        "question": scenario.purpose,
        "scenario": {
            "name": scenario.name,
            "title": scenario.title,
            "purpose": scenario.purpose,
            "paper": scenario.paper,
            "source": scenario.source,
            "as_run": scenario.raw,
        },
        "figure": request.figure.name if request.figure else None,
        "baseline": _baseline(request),
        "expect": [
            item.model_dump(by_alias=True) | {"where": scenario.unmet(item.where)}
            for item in expect
            if _applies(item.of, request)
        ],
        "provenance": dict(provenance),
        "seeds": sorted({cell.seed for cell in request.cells}),
        "cells": [{"cc": c.cc, "seed": c.seed, "params": c.point} for c in request.cells],
    }


def _baseline(request: Request) -> str | None:
    """The scenario's baseline, if it is among the algorithms that were asked for."""
    wanted = request.scenario.baseline
    return wanted if any(cell.cc == wanted for cell in request.cells) else None


def _applies(label: str, request: Request) -> bool:
    """A claim about an algorithm that was not asked for is not part of this run."""
    return any(cell.cc == label for cell in request.cells)


def _commit() -> str:
    git = ["git", "-C", str(paths.REPO), "describe", "--always", "--dirty", "--abbrev=12"]
    if shutil.which("git") is None:
        return "unknown"
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def write_scenario(request: Request) -> None:
    """Make the result folder, with a copy of the scenario's file."""
    request.out.mkdir(parents=True, exist_ok=True)
    source = Path(request.scenario.source)
    if source.is_file():
        shutil.copy(source, request.out / "scenario.toml")


def _tell(outcome: Outcome, out: Path) -> None:
    if outcome.reused:
        print(f"airlab: {len(outcome.reused)} finished runs taken over from {out}")
    for failure in outcome.failed:
        print(f"\nFAILED {failure.slug} ({failure.kind}): {failure.message}", file=sys.stderr)
        for line in failure.console.splitlines()[-_CONSOLE_LINES:]:
            print(f"  | {line}", file=sys.stderr)
        print(f"  kernel log: {out}/failed/{failure.slug}/console.log", file=sys.stderr)


def plan_of(scenario: Scenario, slug: str, labels: Sequence[Cell]) -> CellPlan:
    """The plan of one cell of a campaign by its folder name.

    Raises:
        AirlabError: there is no such cell.
    """
    for cell in labels:
        if cell.slug == slug:
            return build_plan(scenario, cell)
    known = ", ".join(cell.slug for cell in labels[:5])
    raise AirlabError(f"no cell {slug!r}; cells are {known}, ...")
