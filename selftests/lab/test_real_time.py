"""Results of engines in real time: compared by what they measured, never by their bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from airlab import verify
from airlab.model import EXIT_FAILED, EXIT_OK, AirlabError
from airlab.results import AuditResult, CellResult, CheckResult, Hashes
from airlab.stats import prediction


def cell(goodput: float, seed: int = 1, verdict: str = "ok") -> CellResult:
    checks = []
    if verdict == "veto":
        row = {"name": "processor stolen", "expected": "", "measured": "", "tolerance": ""}
        checks = [CheckResult.model_validate({**row, "ok": False, "severity": "veto"})]
    return CellResult(
        scenario="s", slug=f"j_s{seed}", label="j", seed=seed, params={}, plan_key="k",
        duration_s=1.0, flows=[], stages=[], metrics={"goodput_bps": goodput},
        audit=AuditResult.model_validate({"verdict": verdict, "checks": checks}),
        hashes=Hashes(
            pcap_sha256=str(goodput), pcap_packets=1, trace_sha256=None
        ),
        trace=None, kernel="", modules=[],
    )  # fmt: skip


SEEDS = [cell(g, s) for s, g in enumerate((4.0e6, 4.1e6, 4.05e6, 3.95e6), 1)]


@pytest.mark.parametrize(
    ("again", "seeds", "status", "said"),
    [
        (cell(4.02e6), SEEDS, EXIT_OK, "as expected: "),
        (cell(2.0e6), SEEDS, EXIT_FAILED, "NOT as expected"),
        (cell(2.0e6), SEEDS[:2], EXIT_OK, "too few to say what to expect"),
        (cell(4.02e6, verdict="veto"), SEEDS, EXIT_FAILED, "VETO of the new run: processor stolen"),
    ],
)
def test_another_run_is_judged_by_the_seeds(
    capsys: pytest.CaptureFixture[str],
    again: CellResult,
    seeds: list[CellResult],
    status: int,
    said: str,
) -> None:
    assert verify._compare_real_time("kvm", seeds, SEEDS[0], again) == status
    out = capsys.readouterr().out
    assert said in out
    assert "DIFFERENT" not in out
    assert json.loads(out.splitlines()[-1])["identical"] is None


def test_a_vetoed_seed_says_nothing_about_what_to_expect() -> None:
    assert prediction([1.0, 2.0]) is None
    low, high = prediction([1.0, 2.0, 3.0]) or (0.0, 0.0)
    assert low < 1.0
    assert high > 3.0


def test_a_result_is_not_run_again_on_another_engine(tmp_path: Path) -> None:
    manifest = {
        "provenance": {"engine": "kvm", "exact": False, "kernel": "6.12"},
        "cells": [{"cc": "j", "seed": 1, "params": {}}],
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(AirlabError, match=r"--engine vm: .* was made by engine kvm"):
        verify.repeat_cell(tmp_path, cell=None, jobs=1, engine="vm")
