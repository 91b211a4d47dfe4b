"""The chain from raw folders to pictures and the page, and the page in a browser."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from airlab import charts, pictures, plots, report, results
from airlab.collect import collect
from airlab.figure import Picture, Plot
from airlab.model import AirlabError, Interval
from ccscope.draw import curves, look

sys.path.insert(0, str(Path(__file__).parent))
import conftest_results as synth

MARKS = (
    Interval(3_000_000, 3_500_000, "outage", "outage </script>"),
    Interval(5_000_000, 5_000_000, "handoff", "handoff"),
)
LABELS = ("j", "reno")
BROWSER = shutil.which("chromium")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("result")
    plans = [
        synth.make_plan(cc, seed, ber, 6.0, MARKS)
        for ber in (1e-6, 1e-5)
        for cc in LABELS
        for seed in (1, 2)
    ]
    for plan in plans:
        raw = synth.write_raw(root / "raw" / plan.cell.slug, plan)
        if plan == plans[-1]:
            synth.change(raw, "chan.airf.json", exhausted=1)
        out = root / "cells" / plan.cell.slug
        out.mkdir(parents=True)
        collect(raw, plan, out)
        (out / "plan.json").write_text(json.dumps(plan.to_json()))
    expect = {"id": "g", "claim": "j > reno", "metric": "goodput_bps", "of": "j", "over": "reno"}
    summary = results.summarise(
        "wlan-ber",
        [results.load_cell(root / "cells" / plan.cell.slug) for plan in plans],
        baseline="reno",
        expects=[{**expect, "min": 1.1}],
        planned=[plan.cell for plan in plans],
    )
    manifest = {
        "question": "Does <j> gain?",
        "scenario": {"title": "A lossy link"},
        "commit": "abc123",
        "provenance": {
            "engine": "vm",
            "qemu": "QEMU 7.2",
            "config": "x" * 99,
            "flags": ["-icount"],
        },
    }
    # A run of an earlier campaign in the same folder, not part of this one.
    other = root / "cells" / "cubic_s1"
    shutil.copytree(root / "cells" / plans[0].cell.slug, other)
    results.write_result(root, summary, manifest)
    plots.draw_all(root, summary, paper={"j": {1e-6: 4e6}})
    report.write_report(root, summary, manifest)
    return root


@pytest.fixture(scope="module")
def page(result: Path) -> str:
    return (result / "report.html").read_text()


def test_all_pictures_are_drawn_and_repeatable(result: Path) -> None:
    folder = result / "figures"
    stems = {"goodput", "goodput-ber", "goodput-time", "cwnd", "sequence", "queue"}
    assert {p.stem for p in folder.iterdir()} == stems
    assert {p.suffix for p in folder.iterdir()} == {".svg", ".png"}
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    plots.draw_all(result, results.load_summary(result), paper={"j": {1e-6: 4e6}})
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert not any(b"<dc:date>" in data for name, data in before.items() if name.endswith("svg"))


def test_vetoed_cells_are_no_example(result: Path) -> None:
    summary = results.load_summary(result)
    cells = plots.example_cells(result, summary)
    assert {(c.result.label, c.result.seed) for c in cells} == {("j", 1), ("reno", 1)}


def test_axis_of_texts_is_an_error(result: Path) -> None:
    summary = results.load_summary(result)
    with pytest.raises(AirlabError, match="no row"):
        charts.lines(charts.goodput(summary), "link.air.delay", charts.GOODPUT, "t")
    texts = [replace(spot, params={"kind": "a"}) for spot in charts.goodput(summary)]
    with pytest.raises(AirlabError, match="text"):
        charts.lines(texts, "kind", charts.GOODPUT, "t")


def test_charts_that_a_figure_asks_for(result: Path, tmp_path: Path) -> None:
    shutil.copytree(result, tmp_path / "r")
    asked = [
        Plot(name="rtt", title="RTT", y="f1:rtt_mean_us", x="link.air.ber"),
        Plot(name="rtos", title="Timeouts", y="rtos", values={"1e-06": "good"}, x_label="channel"),
        Plot(name="nothing", title="t", y="no_such_metric"),
        Plot(name="not-swept", title="t", y="rtos", x="link.air.delay"),
    ]
    summary = results.load_summary(result)
    made, left = plots.draw_asked(tmp_path / "r", summary, results.load_cells(result), asked)
    assert {p.name for p in made} == {"rtt.svg", "rtt.png", "rtos.svg", "rtos.png"}
    assert left == ["nothing", "not-swept"]
    rtos = (tmp_path / "r" / "figures" / "rtos.svg").read_text()
    assert all(f">{text}<" in rtos for text in ("good", "ber 1e-05", "channel", "rtos"))
    assert ">rtt mean, ms<" in (tmp_path / "r" / "figures" / "rtt.svg").read_text()


def test_a_picture_of_a_figure_has_its_title_on_the_page_and_comes_first(
    result: Path, tmp_path: Path
) -> None:
    shutil.copytree(result, tmp_path / "r")
    for stem in ("rtt", "cherry-shadow"):
        shutil.copy(result / "figures" / "cwnd.svg", tmp_path / "r" / "figures" / f"{stem}.svg")
    asked = {"rtt": "RTT & more", "cherry-shadow": "A shadow", "left-out": "Not drawn"}
    summary = results.load_summary(result)
    page = report.write_report(tmp_path / "r", summary, {}, asked).read_text()
    captions = re.findall("<figcaption>(.*?)</figcaption>", page)
    assert captions[:4] == [
        "RTT &amp; more",
        "A shadow",
        "Goodput by algorithm and point, 95 % intervals.",
        "Goodput over ber.",
    ]
    assert len(captions) == 8


def test_numbers_of_a_chart_are_those_of_the_counted_runs(result: Path) -> None:
    summary = results.load_summary(result)
    cells = [results.load_cell(result / "cells" / line.slug) for line in summary.cells]
    assert charts.spots(summary, cells, "goodput_bps") == charts.goodput(summary)
    vetoed = next(spot for row, spot in zip(summary.rows, charts.goodput(summary), strict=True)
                  if row.vetoed)  # fmt: skip
    assert vetoed.value.n == 1


@pytest.mark.parametrize(
    ("metric", "noun", "text", "scale"),
    [
        ("goodput_bps", None, "goodput, Mbit/s", 1e-6),
        ("f1:finished_s", "time", "time, s", 1.0),
        ("rtt_mean_us", None, "rtt mean, ms", 1e-3),
        ("rtos", None, "rtos", 1.0),
    ],
)
def test_a_metric_tells_its_unit(metric: str, noun: str | None, text: str, scale: float) -> None:
    assert charts.Axis.of(metric, noun) == charts.Axis(text, scale)


def test_envelope_keeps_extremes_and_holds_values() -> None:
    t = np.array([1.0, 1.1, 1.2, 5.0])
    y = np.array([5.0, 9.0, 1.0, 4.0])
    times, values = curves.envelope(t, y, 0, 8, 8)
    assert len(times) == len(values) == 16
    assert np.isnan(values[:2]).all()
    assert values[2:4].tolist() == [9.0, 1.0]
    assert (values[4:10] == 1.0).all()
    assert (values[10:] == 4.0).all()
    assert np.isnan(curves.envelope(t[:0], y[:0], 0, 1, 2)[1]).all()


def test_rebinning_keeps_the_bytes() -> None:
    bins = {"t_s": np.array([0.0, 0.1, 0.2]), "bytes": np.array([100, 200, 300])}
    _, rate = curves.rebinned(bins, 1.0, 10)
    assert (rate * 0.1 / 8).sum() == pytest.approx(600)
    assert curves.rebinned({}, 1.0, 4)[1].tolist() == [0, 0, 0, 0]


def test_styles_differ_without_colour() -> None:
    looks = look.styles([f"cc{i}" for i in range(9)])
    assert len({look["marker"] for look in looks.values()}) == 9
    assert len({look["color"] for look in looks.values()}) == 8


def test_cells_without_trace_can_be_drawn(tmp_path: Path) -> None:
    plan = replace(synth.make_plan("cubic", 1, 1e-6, 2.0), trace=False)
    out = tmp_path / "cells" / plan.cell.slug
    out.mkdir(parents=True)
    collect(synth.write_raw(tmp_path / "raw", plan), plan, out)
    summary = results.summarise("x", results.load_cells(tmp_path))
    made = {p.stem for p in plots.draw_all(tmp_path, summary)}
    assert made == {"goodput", "goodput-time", "cwnd", "sequence"}
    text = report.write_report(tmp_path, summary, {}).read_text()
    (cell,) = embedded(text)["cells"]
    assert cell["flows"][0]["cwnd"]
    assert not cell["flows"][0]["ca"]


def embedded(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    assert len(page) < 3_000_000
    assert "default-src 'none'" in page
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert page.count("<figure>") == 6
    assert "Does &lt;j&gt; gain?" in page
    assert "outage <\\/script>" in page
    for text in (
        "srcversion 1A2B3C4D",
        "6.12.0-test",
        "not judged",
        "vetoed by the audit",
        "7 ok, 1 veto",
    ):
        assert text in page


def test_curves_in_the_page_are_those_of_the_cells(page: str, result: Path) -> None:
    data = embedded(page)
    assert data["labels"] == list(LABELS)
    cell = data["cells"][0]
    values = np.frombuffer(base64.b64decode(cell["flows"][0]["cwnd"]), dtype="<f4")
    source = plots.load_cell_data(result / "cells" / "j_ber=1e-06_s1")
    assert np.nanmax(values) == source.recording.table("acks")["cwnd_segs"].max()
    assert len(values) == report.MOST_POINTS
    states = np.frombuffer(base64.b64decode(cell["flows"][0]["ca"]), dtype=np.uint8)
    assert set(states) == {0, 3, 4}
    assert cell["intervals"][0][:2] == [3.0, 3.5]


def test_big_campaigns_keep_fewer_curves() -> None:
    assert report._budget([1, 2, 3]) == ({1, 2, 3}, report.MOST_POINTS)
    seeds, points = report._budget([s for s in range(1, 6) for _ in range(56)])
    assert seeds == {1}
    assert report.LEAST_POINTS <= points < report.MOST_POINTS
    assert report._budget([1] * 5000) == ({1}, 200)
    assert report._budget([])[1] == report.MOST_POINTS


DRIVER = """
<script>
addEventListener("load", () => {
  const seen = {};
  const panels = () => document.querySelectorAll("#panels .panel").length;
  const legend = () => document.querySelectorAll("#panels .u-series").length;
  const key = (k) => document.querySelector(".panel").dispatchEvent(
    new KeyboardEvent("keydown", { key: k, bubbles: true }));
  const axis = () => [...document.querySelectorAll("#panels canvas")].map((c) => c.toDataURL());
  seen.panels = panels();
  seen.series = legend();
  const before = axis();
  key("+");
  setTimeout(() => {
    const after = axis();
    seen.zoomed = after.every((picture, i) => picture !== before[i]);
    document.getElementById("reset").click();
    setTimeout(() => {
      seen.reset = axis().every((picture, i) => picture === before[i]);
      document.querySelector("#labels input").click();
      seen.fewer = legend();
      const point = document.getElementById("point");
      point.value = "1";
      point.dispatchEvent(new Event("change"));
      seen.seeds = document.getElementById("seed").options.length;
      document.title = "SEEN" + JSON.stringify(seen);
    }, 300);
  }, 300);
});
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed")
def test_the_page_works_in_a_browser(page: str, tmp_path: Path) -> None:
    driven = page.replace("</body>", DRIVER + "</body>")
    (tmp_path / "page.html").write_text(driven)
    flags = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-sync", "--disable-background-networking", "--disable-component-update"),
        *("--enable-logging=stderr", "--virtual-time-budget=4000", "--window-size=1000,900"),
        "--dump-dom",
    ]
    command = [str(BROWSER), *flags, f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*command, (tmp_path / "page.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    found = re.search(r"<title>SEEN(.*?)</title>", done.stdout)
    assert found, done.stderr[-2000:]
    assert json.loads(found[1]) == {
        "panels": 4,
        "series": 10,  # four panels of two curves, one with two ssthresh more
        "zoomed": True,
        "reset": True,
        "fewer": 5,
        "seeds": 2,
    }


def _picture(kind: str, **more: object) -> Picture:
    fields = {"name": f"p-{kind}", "title": f"A {kind}", "kind": kind, "of": "j"}
    return Picture.model_validate({**fields, "points": [{"link.air.ber": 1e-6}], **more})


def test_pictures_of_single_runs(result: Path) -> None:
    summary = results.load_summary(result)
    asked = [_picture(kind) for kind in ("cwnd", "flight", "sequence", "throughput")]
    both = [{"link.air.ber": 1e-6}, {"link.air.ber": 1e-6, "cc": "reno"}]
    asked.append(_picture("cwnd", name="two", points=both, span=["1s", "4s"]))
    made, left = pictures.draw(result, summary, asked)
    assert left == []
    assert [path.name for path in made if path.suffix == ".svg"] == [
        "p-cwnd.svg", "p-flight.svg", "p-sequence.svg", "p-throughput.svg", "two.svg",
    ]  # fmt: skip
    text = (result / "figures" / "two.svg").read_text()
    assert "reno, 1e-06" in text
    assert "loss shown by ACKs" in text
    first = [path.read_bytes() for path in made]
    pictures.draw(result, summary, asked)
    assert [path.read_bytes() for path in made] == first


def test_marks_are_the_reductions_in_the_span(result: Path) -> None:
    summary = results.load_summary(result)
    line = next(c for c in summary.cells if (c.label, c.seed) == ("j", 1) and c.verdict == "ok")
    table = pq.read_table(result / "cells" / line.slug / "states.parquet")
    states = np.asarray(table["state"].to_pylist())
    whole = pictures.marks(pictures._run(result, line, _picture("cwnd")))
    assert 0 < len(whole) <= int(np.isin(states, ("Recovery", "Loss")).sum())
    half = pictures.marks(pictures._run(result, line, _picture("cwnd", span=["0s", "3s"])))
    assert half == [mark for mark in whole if mark[1] <= 3]


def test_pictures_of_runs_that_are_missing_or_vetoed_are_named(result: Path) -> None:
    summary = results.load_summary(result)
    vetoed = next(line for line in summary.cells if line.verdict == "veto")
    absent = _picture("cwnd", name="absent", points=[{"link.air.ber": 1e-9}])
    bad = _picture("cwnd", name="bad", of=vetoed.label, seed=vetoed.seed, points=[vetoed.params])
    assert pictures.draw(result, summary, [absent, bad]) == ([], ["absent", "bad"])
