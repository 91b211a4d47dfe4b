"""Grid files: which scenarios, algorithms, parameters and seeds make a campaign.

A grid is a TOML file of blocks; each block is a scenario (or a figure) with overrides, as one
``airlab run`` would be.  The models here are the reference of the language; the JSON schema in
``testbed/schema/`` is generated from them (``python -m airlab.gridfile``).
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from airlab import paths
from airlab.campaign import Options, Request
from airlab.figure import set_texts
from airlab.model import AirlabError, Scalar
from airlab.scenario import Slug, Strict, read_toml, validate

SCHEMA_PATH = paths.TESTBED / "schema" / "grid.schema.json"


# Engine host changes the machine it runs on, as root: nothing for a scheduler to start.
GridEngine = Literal["vm", "kvm"]


class Block(Strict):
    """A scenario or a figure, crossed with algorithms, parameters and seeds."""

    name: Slug | None = Field(
        None, description="folder of its results; default: the scenario's or figure's name"
    )
    scenario: str | None = Field(
        None, description="name from `airlab list`, or a file, relative to the grid's folder"
    )
    figure: str | None = Field(None, description="in place of scenario: its runs and its claims")
    cc: Annotated[list[str], Field(min_length=1)] | None = Field(
        None, description="algorithms; default: the scenario's"
    )
    seeds: (
        Annotated[int, Field(ge=1, le=10000)]
        | Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
        | None
    ) = Field(None, description="a count (1 to N) or a list; default: the scenario's")
    kernel: str | None = Field(None, description="lab kernel; default: the grid's")
    set: dict[str, Scalar | Annotated[list[Scalar], Field(min_length=1)]] = Field(
        default_factory=dict, description="overrides as by --set; a list is a sweep"
    )


class Grid(Strict):
    """A whole grid file; :func:`load_grid` makes one."""

    schema_: Literal[1] = Field(alias="schema")
    name: Slug
    title: str
    kernel: str | None = Field(None, description="lab kernel: a release or a series (6.12)")
    engine: GridEngine = Field(
        "vm", description="vm repeats to the bit; kvm runs in real time, one cell at a time"
    )
    block: Annotated[list[Block], Field(min_length=1)]


def load_grid(path: Path | str) -> Grid:
    """Read and check a grid file.

    Raises:
        AirlabError: a line for each fault: file, dotted key, remedy.
    """
    grid = validate(Grid, read_toml(Path(path)), str(path))
    faults = [
        f"block.{number}: give exactly one of scenario and figure"
        for number, block in enumerate(grid.block)
        if (block.scenario is None) == (block.figure is None)
    ]
    if faults:
        raise AirlabError("\n".join(f"{path}: {fault}" for fault in faults))
    return grid


def requests(
    grid: Grid,
    path: Path,
    out: Path,
    *,
    kernel: str | None = None,
    engine: GridEngine | None = None,
) -> dict[str, Request]:
    """What each block asks for, by the block's name; results go to ``out/BLOCK``.

    ``kernel`` replaces the grid's own and its blocks', ``engine`` the grid's.

    Raises:
        AirlabError: a block's scenario, keys or algorithms are wrong, or a name is used twice.
    """
    made: dict[str, Request] = {}
    for number, block in enumerate(grid.block):
        try:
            request = _request(
                block,
                path.parent,
                out,
                kernel=kernel or block.kernel or grid.kernel,
                engine=engine or grid.engine,
            )
        except AirlabError as error:
            raise AirlabError(f"{path}: block.{number}: {error}") from None
        counts = Counter(cell.slug for cell in request.cells)
        if twice := [slug for slug, count in counts.items() if count > 1]:
            raise AirlabError(
                f"{path}: block.{number}: a run is there twice: {twice[0]}; remove what is "
                "repeated in cc, seeds or a list of set"
            )
        name = request.out.name
        if name in made:
            raise AirlabError(
                f"{path}: block.{number}.name: {name!r} is used twice; give the block a name"
            )
        made[name] = request
    return made


def _request(
    block: Block, folder: Path, out: Path, *, kernel: str | None, engine: GridEngine
) -> Request:
    source = block.scenario or block.figure or ""
    options = Options(
        sets=[f"{key}={text}" for key, text in set_texts(block.set).items()],
        cc=",".join(block.cc) if block.cc else None,
        seeds=block.seeds,
        kernel=kernel,
        engine=engine,
        out=out / (block.name or Path(source).stem),
    )
    beside = folder / source
    found = str(beside) if beside.is_file() else source
    if block.figure:
        return Request.of_figure(found, options)
    return Request.of_scenario(found, options)


def json_schema() -> str:
    """The grid language as JSON schema, as published in ``testbed/schema/``."""
    schema = Grid.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    SCHEMA_PATH.write_text(json_schema())
