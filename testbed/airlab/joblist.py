"""The list of a grid's cells, from which any process, on any machine, can run one of them.

``airlab grid`` writes it, assets/Snakefile reads the names, ``airlab cell`` runs one.  It holds the
scenarios as they were when the grid was started: a file that is edited meanwhile changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airlab import cellstore, paths, results
from airlab.cellstore import CellStore
from airlab.engines import Watch
from airlab.engines.choose import choose
from airlab.model import EXIT_FAILED, EXIT_OK, AirlabError, Cell
from airlab.plan import build_plan
from airlab.runner import Failure
from airlab.scenario import parse_scenario

NAME = "cells.json"


@dataclass(frozen=True)
class Entry:
    """A cell of a grid: its name in the store, and what it is."""

    id: str
    block: str
    cell: Cell
    virtual_s: float

    def to_json(self) -> dict[str, Any]:
        """As it is in the list."""
        cell = self.cell
        return {
            "id": self.id,
            "block": self.block,
            "cc": cell.cc,
            "seed": cell.seed,
            "params": cell.params,
            "virtual_s": self.virtual_s,
        }


@dataclass(frozen=True)
class JobList:
    """All cells of a grid and the scenarios of its blocks.

    Attributes:
        path: the file; receipts of finished cells are beside it in ``done/``.
        store: where the cells are.
        blocks: for each block ``as_run`` and ``source`` of its scenario, and ``provenance``.
        entries: the cells, in the order of the grid; equal ones may be in several blocks.
    """

    path: Path
    store: Path
    blocks: Mapping[str, Mapping[str, Any]]
    entries: tuple[Entry, ...]

    def write(self) -> None:
        """Write the list for Snakemake and its jobs."""
        data = {
            "store": str(self.store),
            "cache": str(paths.cache().resolve()),
            "python": sys.executable,
            "blocks": self.blocks,
            "cells": [entry.to_json() for entry in self.entries],
        }
        results.write_json(self.path, data)

    def distinct(self) -> Iterator[Entry]:
        """Each cell once."""
        seen: set[str] = set()
        for entry in self.entries:
            if entry.id not in seen:
                seen.add(entry.id)
                yield entry

    @property
    def receipts(self) -> Path:
        """The folder of all receipts."""
        return self.path.parent / "done"

    def receipt(self, name: str) -> Path:
        """The file by which Snakemake knows that a cell is finished."""
        return self.receipts / name

    def leave_receipt(self, name: str, *, computed: bool) -> None:
        """Tell Snakemake, and the report, how a cell came to be finished."""
        results.write_text(self.receipt(name), "computed\n" if computed else "reused\n")


def read(path: Path) -> JobList:
    """Read a list.

    Raises:
        AirlabError: there is none, or it is damaged.
    """
    data = results.read_json(path)
    try:
        entries = tuple(
            Entry(
                row["id"],
                row["block"],
                Cell(row["cc"], row["seed"], tuple((k, v) for k, v in row["params"])),
                row["virtual_s"],
            )
            for row in data["cells"]
        )
        return JobList(path.resolve(), Path(data["store"]), data["blocks"], entries)
    except (KeyError, TypeError, ValueError) as error:
        raise AirlabError(f"{path}: not a list of cells by `airlab grid` ({error!r})") from None


def run_listed(path: Path, name: str) -> int:
    """Run one cell of a list unless it is there, and leave its receipt (``airlab cell``).

    Returns:
        1 when the cell failed, now or before.

    Raises:
        AirlabError: the cell is not in the list, or this machine would make another one of it.
    """
    jobs = read(path)
    entry = next((entry for entry in jobs.entries if entry.id == name), None)
    if entry is None:
        raise AirlabError(f"{path}: no cell {name!r}; the list names {len(jobs.entries)} cells")
    if cellstore.is_there(jobs.store, name):
        jobs.leave_receipt(name, computed=False)
        return EXIT_OK
    block = jobs.blocks[entry.block]
    scenario = parse_scenario(block["as_run"], block["source"])
    plan = build_plan(scenario, entry.cell)
    made_by = block["provenance"]
    engine = choose(
        made_by["engine"], plans=[plan], kernel=made_by["kernel"], fast=scenario.allow_fast
    )
    store = CellStore(jobs.store, engine)
    if store.id(plan) != name:
        raise AirlabError(_difference(path, entry, made_by, store.provenance))
    made = store.run_once(plan, Watch())
    if isinstance(made, Failure):
        print(f"airlab: {entry.block}/{entry.cell.slug} failed: {made.kind}: {made.message}")
        return EXIT_FAILED
    jobs.leave_receipt(name, computed=made == "computed")
    return EXIT_OK


def _difference(path: Path, entry: Entry, there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    differs = [key for key in sorted({*there, *here}) if there.get(key) != here.get(key)]
    what = (
        ", ".join(f"{key} (list: {there.get(key)}, here: {here.get(key)})" for key in differs)
        or "airlab itself, which makes another plan"
    )
    return (
        f"{path}: {entry.block}/{entry.cell.slug} would be another cell here; different: {what}. "
        "Use the same checkout, `make setup` and QEMU everywhere, and run `airlab grid` again"
    )
