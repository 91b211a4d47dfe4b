"""The kernel matrix: its table, and what it takes over from an earlier run."""

from __future__ import annotations

from pathlib import Path

import pytest
from airlab import kernels, labroot, matrix
from airlab.matrix import ENTRIES, Guest, Row

JUNIT = """<testsuites><testsuite>
<testcase classname="selftests.guest.test_a" name="good" time="1"/>
<testcase classname="selftests.guest.test_a" name="bad"><failure message="assert 1 == 2&#10;more"/></testcase>
<testcase classname="selftests.guest.test_b" name="broken"><error message="no guest"/></testcase>
<testcase classname="selftests.guest.test_b" name="left"><skipped message="6.12 only: why"/></testcase>
</testsuite></testsuites>"""  # noqa: E501


def _row(name: str = "6.1", **changes: object) -> Row:
    data = {
        "release": "6.1.0-1", "date": "2026-01-02", "sources": matrix.sources_digest(),
        "compiler": "gcc 12.2.0", "build": "ok", "sparse": "ok",
        "answers": {"TSO_SEGS": 0, "B": 1},
    }  # fmt: skip
    return Row(name, **{**data, **changes})  # type: ignore[arg-type]


def test_entries_name_roots_and_kernels_that_exist() -> None:
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)
    for entry in ENTRIES:
        assert labroot.package_names(entry.root)
        assert entry.track in ("", *kernels.TRACKS)
    assert {entry.track for entry in ENTRIES} >= set(kernels.TRACKS)


def test_a_report_is_counted_and_failures_are_named() -> None:
    guest = matrix.read_report(JUNIT, 12.3)
    assert (guest.passed, guest.failed, guest.skipped, guest.seconds) == (1, 2, 1, 12)
    assert guest.notes == [
        "FAILED test_a::bad: assert 1 == 2",
        "FAILED test_b::broken: no guest",
        "skipped test_b::left: 6.12 only: why",
    ]


def test_green_is_only_what_failed_nowhere() -> None:
    assert _row().green
    assert _row(guest=Guest(passed=3, skipped=1)).green
    assert not _row(guest=Guest(passed=3, failed=1)).green
    assert not _row(build="building modules failed (exit 2)").green
    assert not _row(sparse="-").green


def test_the_table_says_it_all() -> None:
    rows = [_row(guest=Guest(30, 1, 2, 99.0, ["FAILED x::y: z"])), _row("i386", answers={"B": 0})]
    text = matrix.document(rows)
    assert (
        "| 6.1 | 6.1.0-1 | gcc 12.2.0 | ok | ok | 30 passed, **1 failed**, 2 skipped | 99 "
        "| 2026-01-02 |" in text
    )
    assert "| build | `b` | `tso_segs` |" in text
    assert "| 6.1 | yes | no |" in text and "| i386 | no | - |" in text
    assert "* 6.1: FAILED x::y: z" in text


def test_a_row_is_taken_over_only_from_the_same_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRTCP_CACHE", str(tmp_path))
    row = _row("6.12 clang", guest=Guest(passed=1))
    matrix._save(row)
    assert matrix.load("6.12 clang") == row
    matrix._save(_row("6.12 clang", sources="another"))
    assert matrix.load("6.12 clang") is None
    assert matrix.load("7") is None


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (b"..\0GCC: (Debian 14.2.0-19) 14.2.0\0..", "gcc 14.2.0"),
        (b"..\0Debian clang version 19.1.7 (3+b1)\0", "clang 19.1.7"),
        (b"..", "unknown"),
    ],
)
def test_compilers_are_recognised(module: bytes, name: str) -> None:
    assert matrix.compiler_of(module) == name


def test_an_unknown_entry_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert matrix.main(["--only", "5.10"]) == 2
    said = capsys.readouterr().err
    assert "--only 5.10" in said and "6.12 clang" in said
