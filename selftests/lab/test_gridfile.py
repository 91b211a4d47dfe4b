"""Grid files: what they mean, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from airlab import gridfile
from airlab.gridfile import load_grid, requests
from airlab.model import AirlabError, Cell

GRIDS = sorted((Path(__file__).resolve().parents[2] / "testbed" / "grids").glob("*.toml"))
GOOD = """schema = 1
name = "g"
title = "t"

[[block]]
scenario = "demo"
cc = ["j", "reno"]
seeds = [3, 5]
[block.set]
duration = "2s"
"links.air.ber" = [1e-6, 4e-6]
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "g.toml"
    path.write_text(text)
    return path


def test_a_block_is_crossed_with_algorithms_points_and_seeds(tmp_path: Path) -> None:
    path = _write(tmp_path, GOOD)
    made = requests(load_grid(path), path, tmp_path / "out")
    assert list(made) == ["demo"]
    request = made["demo"]
    assert request.out == tmp_path / "out" / "demo"
    assert request.scenario.duration == 2_000_000
    points = [(("links.air.ber", ber),) for ber in (1e-6, 4e-6)]
    assert list(request.cells) == [
        Cell(cc, seed, point) for point in points for seed in (3, 5) for cc in ("j", "reno")
    ]


def test_what_a_block_leaves_out_is_the_scenarios(tmp_path: Path) -> None:
    path = _write(tmp_path, GOOD.split("cc =", maxsplit=1)[0])
    request = requests(load_grid(path), path, tmp_path)["demo"]
    assert len(request.cells) == 30


def test_kernels_of_blocks_grid_and_command_line(tmp_path: Path) -> None:
    two = GOOD.replace("[[block]]", 'kernel = "6.12"\n[[block]]', 1)
    two += '[[block]]\nscenario = "lossy"\nkernel = "7"\n'
    path = _write(tmp_path, two)
    made = requests(load_grid(path), path, tmp_path)
    assert {name: r.kernel for name, r in made.items()} == {"demo": "6.12", "lossy": "7"}
    forced = requests(load_grid(path), path, tmp_path, kernel="6.1")
    assert {r.kernel for r in forced.values()} == {"6.1"}


def test_the_engine_is_handed_through(tmp_path: Path) -> None:
    path = _write(tmp_path, GOOD)
    grid = load_grid(path)
    assert requests(grid, path, tmp_path)["demo"].engine == "vm"
    assert requests(grid, path, tmp_path, engine="kvm")["demo"].engine == "kvm"
    path = _write(tmp_path, GOOD.replace("[[block]]", 'engine = "kvm"\n[[block]]', 1))
    assert requests(load_grid(path), path, tmp_path)["demo"].engine == "kvm"


def test_a_scenario_beside_the_grid_and_a_figure(tmp_path: Path) -> None:
    demo = Path(gridfile.paths.SCENARIOS / "demo.toml").read_text()
    (tmp_path / "mine.toml").write_text(demo.replace('name = "demo"', 'name = "mine"'))
    text = GOOD.replace('"demo"', '"mine.toml"')
    path = _write(tmp_path, text + '[[block]]\nfigure = "tcp-j-fig9-table2"\nseeds = 1\n')
    made = requests(load_grid(path), path, tmp_path / "out")
    assert list(made) == ["mine", "tcp-j-fig9-table2"]
    assert made["mine"].scenario.name == "mine"
    figure = made["tcp-j-fig9-table2"]
    assert figure.figure is not None
    assert {cell.seed for cell in figure.cells} == {1}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('title = "t"', 'title = "t"\ntitel = "t"', "titel: unknown key"),
        ("seeds = [3, 5]", "seed = 3", "block.0.seed: unknown key"),
        ("seeds = [3, 5]", "seeds = 0", "block.0.seeds"),
        ("seeds = [3, 5]", "seeds = []", "block.0.seeds"),
        ('scenario = "demo"', "", "block.0: give exactly one of scenario and figure"),
        ('scenario = "demo"', 'scenario = "demo"\nfigure = "f"', "exactly one of scenario and"),
        ('scenario = "demo"', 'scenario = "nope"', "block.0: no scenario named 'nope'"),
        ('"reno"', '"renno"', "unknown congestion control 'renno'"),
        ("duration", "duratoin", "duratoin: unknown key"),
        ("links.air.ber", "links.ari.ber", "links.ari.ber: no 'ari' there"),
        ("schema = 1", "schema = 2", "schema: Input should be 1"),
        ("[[block]]", "[[blocks]]", "blocks: unknown key"),
        ("[[block]]", 'engine = "host"\n[[block]]', "engine: Input should be 'vm' or 'kvm'"),
        ("[3, 5]", "[3, 3]", "block.0: a run is there twice: j_ber=1e-06_s3"),
        ("[block.set]", '[[block]]\nscenario = "demo"\n[block.set]', "'demo' is used twice"),
    ],
)
def test_wrong_grids(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = _write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(AirlabError) as caught:
        requests(load_grid(path), path, tmp_path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("path", GRIDS, ids=lambda p: p.stem)
def test_published_grids_are_right(path: Path) -> None:
    made = requests(load_grid(path), path, Path("out"))
    assert all(request.cells for request in made.values())


def test_the_acceptance_grid_has_48_cells() -> None:
    path = next(p for p in GRIDS if p.stem == "acceptance")
    made = requests(load_grid(path), path, Path("out"))
    assert sum(len(request.cells) for request in made.values()) == 48


def test_schema_is_current() -> None:
    published = gridfile.SCHEMA_PATH.read_text()
    assert published == gridfile.json_schema(), "run: python -m airlab.gridfile (in testbed/)"
