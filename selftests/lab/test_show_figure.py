"""The drawing and the figure files."""

from __future__ import annotations

from pathlib import Path

import pytest
from airlab.figure import load_figure
from airlab.model import AirlabError
from airlab.plan import build_plan, cells
from airlab.scenario import load_scenario
from airlab.show import render

ROOT = Path(__file__).resolve().parents[2] / "testbed"
FIGURES = sorted((ROOT / "figures").glob("*.toml"))


def _shown(name, **sets):
    s = load_scenario(ROOT / "scenarios" / f"{name}.toml", sets)
    return render(s, build_plan(s, cells(s)[0]))


def test_a_chain_is_drawn_with_its_numbers_and_commands():
    text = _shown("demo")
    rows = text.splitlines()
    middle = next(i for i, row in enumerate(rows) if "│ cn │" in row)
    assert len({len(row) for row in rows[middle - 1 : middle + 2]}) == 1
    assert "air 5 Mbit/s" in text
    assert "30 ms, 30pkt, BER 1e-06" in text
    assert "qdisc add dev wire root handle 10: netem rate 5000000bit limit 30" in text
    assert "airflow send --to 10.2.0.2" in text


def test_a_star_is_listed():
    text = _shown("fairness")
    assert "[router0] ── shared 10 Mbit/s: 25 ms, 30pkt ── [router1]" in text
    assert "f3: cn4 → cn5" in text


def test_events_are_told():
    assert "5 s: air loses everything for 50 ms" in _shown("outage")


@pytest.mark.parametrize("path", FIGURES, ids=lambda p: p.stem)
def test_published_figures_agree_with_their_scenarios(path):
    figure = load_figure(path)
    scenario = load_scenario(ROOT / "scenarios" / f"{figure.scenario}.toml", figure.overrides())
    assert cells(scenario, figure.cc, figure.seeds)
    texts = {str(v) for values in scenario.sweep.values() for v in values}
    for plot in figure.plots:
        assert plot.x is None or plot.x in scenario.sweep
        assert plot.values.keys() <= texts
    known = set(figure.cc or scenario.cc)
    for claim in figure.expect:
        assert {claim.of, claim.over} - {None} <= known
        for key, value in (claim.where | claim.against).items():
            assert value in scenario.sweep[key]
    for picture in figure.pictures:
        for point in picture.points:
            assert point.pop("cc", picture.of) in known
            assert all(value in scenario.sweep[key] for key, value in point.items())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('span = ["2s", "1s"]', "pictures.a.span: ends before it begins"),
        ('[[pictures]]\nname = "a"\ntitle = "t"\nkind = "cwnd"\nof = "j"', "'a' is used twice"),
        ("pionts = [{}]", "pictures.0.pionts: unknown key; did you mean 'points'?"),
    ],
)
def test_a_wrong_picture_is_named(tmp_path, text, says):
    path = tmp_path / "f.toml"
    head = '[[pictures]]\nname = "a"\ntitle = "t"\nkind = "cwnd"\nof = "j"\n'
    path.write_text(f"{BASE}{head}{text}\n")
    with pytest.raises(AirlabError) as caught:
        load_figure(path)
    assert says in str(caught.value)


def test_published_values_and_damaged_cells():
    table = load_figure(ROOT / "figures" / "tcp-j-fig9-table2.toml").paper_table
    assert table is not None
    assert table.value("j", 4e-6) == 1.91
    assert table.value("westwood", 4e-6) is None
    assert table.value("bbr", 4e-6) is None
    assert table.value("j", 1e-8) is None


BASE = """schema = 1
name = "f"
title = "t"
paper = "p"
scenario = "demo"
[[plots]]
name = "rtt"
title = "t"
x = "links.air.ber"
y = "rtt_mean_us"
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('y = "rtt_mean_us"', "", "plots.0.y: "),
        ('x = "links.air.ber"', 'xx = "y"', "plots.0.xx: unknown key"),
        ("[[plots]]", '[[pictures]]\nname="rtt"\ntitle="t"\nkind="cwnd"\nof="j"\n[[plots]]',
         "plots, pictures: 'rtt' is used twice"),
        ('name = "rtt"', 'name = "cwnd"', "'cwnd' is the name of a picture of every result"),
        ('name = "rtt"', 'name = "goodput-ber"', "'goodput-ber' is the name of a picture"),
        ('paper = "p"', 'paper = "p"\ncc = ["nope"]', "cc: unknown congestion control"),
        ("[[plots]]", '[paper_table]\nsource="s"\nparam="p"\nx=[1]\nrows={j=[1,2]}\n[[plots]]',
         "paper_table.rows.j: 2 values for 1 points"),
        ("[[plots]]", '[[expect]]\nid="e"\nclaim="c"\nof="j"\nmin=2\nmax=1\n[[plots]]',
         "expect.e: min (2) is more than max (1)"),
    ],
)  # fmt: skip
def test_bad_figures(tmp_path, old, new, says):
    path = tmp_path / "f.toml"
    path.write_text(BASE.replace(old, new, 1))
    with pytest.raises(AirlabError) as caught:
        load_figure(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_overrides_of_a_figure(tmp_path):
    path = tmp_path / "f.toml"
    path.write_text(
        BASE.replace("[[plots]]", "[set]\nduration='9s'\n'links.air.ber'=[1e-6,2e-6]\n[[plots]]")
    )
    assert load_figure(path).overrides() == {"duration": "9s", "links.air.ber": "1e-06,2e-06"}
