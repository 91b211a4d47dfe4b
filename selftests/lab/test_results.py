"""The result folder: sums, tables, schemas, whole files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from airlab import results
from airlab.model import AirlabError, Cell
from airlab.results import AuditResult, CellResult, CheckResult, Hashes

SCHEMAS = Path(__file__).parents[2] / "testbed" / "schema"


def cell(
    label: str, seed: int, goodput: float, ber: float = 1e-6, verdict: str = "ok"
) -> CellResult:
    check = CheckResult(
        name="rate", expected="5", measured="4", tolerance="1%", ok=verdict == "ok", severity="veto"
    )
    return CellResult(
        scenario="x",
        slug=f"{label}-{seed}",
        label=label,
        seed=seed,
        params={"link.air.ber": ber},
        plan_key="k",
        duration_s=1,
        flows=[],
        stages=[],
        metrics={"goodput_bps": goodput, "retransmissions": 3, "rtt_mean_us": 50_000},
        audit=AuditResult.model_validate({"verdict": verdict, "checks": [check]}),
        hashes=Hashes(pcap_sha256="ab", pcap_packets=1, trace_sha256=None),
        trace=None,
        kernel="6.12",
        modules=[],
    )


CELLS = [
    *(cell("reno", s, 1e6 * s) for s in (1, 2, 3)),
    *(cell("j", s, 2e6 * s) for s in (1, 2, 3)),
]


def test_published_schemas_are_current() -> None:
    for name, schema in results.schemas().items():
        assert json.loads((SCHEMAS / name).read_text()) == schema, "run results.write_schemas"


def test_rows() -> None:
    summary = results.summarise("x", CELLS, baseline="reno")
    reno, j = summary.rows
    assert (reno.label, reno.n, reno.gain) == ("reno", 3, None)
    assert j.goodput_bps.mean == 4e6
    assert j.gain is not None
    assert j.gain.mean == pytest.approx(1.0)
    assert j.gain.half == pytest.approx(0.0)
    assert j.rtos.mean is None


def test_vetoed_and_missing_cells_are_listed_but_not_averaged() -> None:
    cells = [*CELLS[:5], cell("j", 3, 99e6, verdict="veto")]
    planned = [
        Cell(c.label, s, (("link.air.ber", 1e-6),)) for c in CELLS[::3] for s in (1, 2, 3, 4)
    ]
    summary = results.summarise("x", cells, baseline="reno", planned=planned)
    j = summary.rows[1]
    assert (j.n, j.vetoed, j.missing) == (2, 1, 1)
    assert j.goodput_bps.mean == 3e6
    lines = {(c.label, c.seed): c for c in summary.cells}
    assert lines["j", 3].verdict == "veto"
    assert lines["j", 3].reasons == ["rate: 4, expected 5 (1%)"]
    assert lines["reno", 4].verdict == "missing"
    assert "2 (1 vetoed, 1 missing)" in results.text_table(summary)


def test_points_are_sorted_by_value_and_labels_keep_their_order() -> None:
    cells = [cell(c, 1, 1e6, b) for b in (1e-5, 1e-7, 1e-6) for c in ("westwood", "j")]
    rows = results.summarise("x", cells).rows
    assert [r.params["link.air.ber"] for r in rows] == [1e-7, 1e-7, 1e-6, 1e-6, 1e-5, 1e-5]
    assert [r.label for r in rows[:2]] == ["westwood", "j"]


def test_tables() -> None:
    summary = results.summarise("x", CELLS, baseline="reno")
    text = results.text_table(summary).splitlines()
    assert text[0].split() == " ".join(results.HEADINGS).split()
    assert text[2].split()[:2] == ["ber", "1e-06"]
    assert "+100.0 ± 0.0" in text[3]
    assert "50.0 ± 0.0" in text[3]
    assert "| ber 1e-06 | reno |" in results.markdown_table(summary)


def test_one_seed_has_no_interval_and_no_cells_no_numbers() -> None:
    summary = results.summarise("x", [CELLS[0]])
    assert summary.rows[0].goodput_bps.half is None
    assert "±" not in results.text_table(summary)
    empty = results.summarise("x", [], planned=[Cell("j", 1)])
    assert empty.rows[0].goodput_bps.mean is None
    assert "one point" in results.text_table(empty)
    assert results.text_table(results.summarise("x", []))


def test_round_trip(tmp_path: Path) -> None:
    expect = {"id": "g", "claim": "faster", "metric": "goodput_bps", "of": "j", "over": "reno"}
    summary = results.summarise("x", CELLS, baseline="reno", expects=[{**expect, "min": 1.5}])
    results.write_result(tmp_path, summary, {"scenario": "x"})
    assert results.load_summary(tmp_path) == summary
    assert json.loads((tmp_path / "claims.json").read_text())[0]["verdict"] == "reproduced"
    assert "REPRODUCED" in (tmp_path / "table.md").read_text()
    folder = tmp_path / "cells" / "a"
    results.write_json(folder / "cell.json", CELLS[0].model_dump())
    results.write_json(folder / "times.json", {"wall_s": 2.0})
    assert results.load_cells(tmp_path)[0].times == {"wall_s": 2.0}
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    results.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match=r"NaN|nan|Out of range"):
        results.write_json(path, {"a": math.nan})
    assert results.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_bad_folders_are_errors(tmp_path: Path) -> None:
    with pytest.raises(AirlabError, match="no such file"):
        results.load_summary(tmp_path)
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(AirlabError, match="not JSON"):
        results.load_summary(tmp_path)
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(AirlabError, match="scenario"):
        results.load_summary(tmp_path)
    (tmp_path / "cell.json").write_text("{}")
    with pytest.raises(AirlabError, match=r"cell\.json"):
        results.load_cell(tmp_path)
