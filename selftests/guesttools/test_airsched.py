"""airsched: order, times, ends and what it refuses."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from builttools import Tools


def schedule(tools: Tools, *lines: tuple[object, ...]) -> Path:
    path = tools.work / "s.tsv"
    path.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
    return path


def run(
    tools: Tools, *lines: tuple[object, ...], end_us: int = 300_000, args: tuple[object, ...] = ()
) -> subprocess.CompletedProcess[str]:
    path = schedule(tools, *lines)
    return tools.run(
        "airsched", path, "--end-us", end_us, "--lead-ms", 100, "--proc-dir", "proc", *args
    )


def rc(tools: Tools, label: str) -> str:
    return (tools.work / "proc" / f"{label}.rc").read_text().strip()


def test_order_times_and_outputs(tools: Tools) -> None:
    stamp = "date +%s%N"
    done = run(
        tools,
        (200_000, "-", "late", stamp),
        (-50_000, "-", "early", stamp),
        (0, "-", "zero", stamp),
        (0, "-", "words", "printf %s-%s-%s a  b"),
        args=("--t0-file", "t0", "--tend-file", "tend"),
    )
    assert done.returncode == 0, done.stderr
    mono, real = map(int, (tools.work / "t0").read_text().split())
    for label, at in (("early", -50_000_000), ("zero", 0), ("late", 200_000_000)):
        stamp_ns = int((tools.work / "proc" / f"{label}.out").read_text())
        assert 0 <= stamp_ns - real - at < 90_000_000
        assert rc(tools, label) == "0"
    # Single spaces separate: two of them are an empty argument.
    assert (tools.work / "proc" / "words.out").read_text() == "a--b"
    end_mono, end_real = map(int, (tools.work / "tend").read_text().split())
    assert 300e6 <= end_mono - mono < 500e6
    assert abs((end_real - real) - (end_mono - mono)) < 5e6


def test_failure_is_named(tools: Tools) -> None:
    done = run(tools, (0, "-", "good", "true"), (0, "-", "broken", "false"))
    assert done.returncode == 1
    assert "broken" in done.stderr and "good" not in done.stderr
    assert rc(tools, "good") == "0"


def test_status_and_signal_are_told_apart(tools: Tools) -> None:
    (tools.work / "seven").write_text("#!/bin/sh\necho oops >&2\nexit 7\n")
    (tools.work / "suicide").write_text("#!/bin/sh\nkill -11 $$\n")
    for name in ("seven", "suicide"):
        (tools.work / name).chmod(0o755)
    done = run(
        tools,
        (0, "-", "a", tools.work / "seven"),
        (0, "-", "b", tools.work / "suicide"),
    )
    assert done.returncode == 1
    assert "a (" in done.stderr and "ended with 7" in done.stderr
    assert rc(tools, "a") == "7" and rc(tools, "b") == "139"
    assert (tools.work / "proc" / "a.err").read_text() == "oops\n"


def test_what_runs_at_the_end_is_ended(tools: Tools) -> None:
    (tools.work / "stubborn").write_text("#!/bin/sh\ntrap '' TERM\nsleep 50\nsleep 50\n")
    (tools.work / "stubborn").chmod(0o755)
    began = time.monotonic()
    done = run(
        tools,
        (0, "-", "soft", "sleep 50"),
        (0, "-", "hard", tools.work / "stubborn"),
    )
    assert done.returncode == 0, done.stderr
    assert rc(tools, "soft") == "term" and rc(tools, "hard") == "kill"
    assert 1.3 < time.monotonic() - began < 3


def test_progress(tools: Tools) -> None:
    done = run(tools, end_us=1_100_000, args=("--progress-s", 1, "--console", "/dev/stderr"))
    assert done.returncode == 0
    assert done.stderr == "@T 1\n"


GOOD = (0, "-", "ok", "touch started")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ((1.5, "-", "x", "true"), "at_us"),
        (("", "-", "x", "true"), "at_us"),
        ((-200_000, "-", "x", "true"), "--lead-ms"),
        ((400_000, "-", "x", "true"), "--end-us"),
        ((0, "-", "x"), "4 columns"),
        ((0, "-", "x", "true", "more"), "4 columns"),
        ((0, "-", "", "true"), "label"),
        ((0, "-", "../x", "true"), "label"),
        ((0, "-", "ok", "true"), "twice"),
        ((0, "-", "x", ""), "argv"),
        ((0, "-", "x", "no-such-program-here"), "no such program"),
        ((0, "no-such-netns-here", "x", "true"), "no such network namespace"),
        ((0, "../etc", "x", "true"), "network namespace"),
    ],
)
def test_bad_lines_are_found_before_anything_starts(
    tools: Tools, line: tuple[object, ...], why: str
) -> None:
    done = run(tools, GOOD, line)
    assert done.returncode == 2
    assert "s.tsv:2:" in done.stderr and why in done.stderr
    assert not (tools.work / "started").exists()


def test_bad_arguments(tools: Tools) -> None:
    path = schedule(tools, GOOD)
    assert "usage" in tools.run("airsched", path).stderr
    assert tools.run("airsched", path, "--end-us", "soon").returncode == 2
    assert tools.run("airsched", "missing.tsv", "--end-us", 1).returncode == 2
