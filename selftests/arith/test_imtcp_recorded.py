# SPDX-License-Identifier: GPL-2.0
"""Trend test and regression on streams that were recorded in the laboratory.

``recorded_streams.csv`` holds departures and arrivals of 300 streams and what the module made of
them in the kernel (``record_streams.py`` says how).  References are in imtcpreference.py.  Runs
``imtcp_paper_*`` measure as published (the variant of that name), the others as by default; loads
are 20, 80 and 50 % of the rate in the name.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from arithharness import Harness
from imtcpreference import BITS, both, either, fit_kbps, flat, trend_of


@dataclass(frozen=True)
class Recorded:
    """A stream: packets as (index, departure, arrival) in ns since the first departure."""

    run: str
    head: int
    verdict: int
    pct: int
    pdt: int
    growth_ns: int
    packets: tuple[tuple[int, ...], ...]

    @property
    def behind(self) -> list[tuple[int, int]]:
        """Departures and arrivals of what trend and regression look at: the head's last and on."""
        return [(s, r) for index, s, r in self.packets if index >= self.head - 1]


def _load() -> list[Recorded]:
    path = Path(__file__).with_name("recorded_streams.csv")
    with path.open(encoding="ascii") as text:
        return [
            Recorded(
                run=row["run"],
                head=int(row["head"]),
                verdict=int(row["verdict"]),
                pct=int(row["pct_permille"]),
                pdt=int(row["pdt_permille"]),
                growth_ns=int(row["growth_ns"]),
                packets=tuple(tuple(map(int, p.split(":"))) for p in row["packets"].split()),
            )
            for row in csv.DictReader(text)
        ]


STREAMS = _load()


def test_the_recording_is_whole() -> None:
    assert list(Counter(stream.run for stream in STREAMS).values()) == [60] * 5
    for run in {stream.run for stream in STREAMS}:
        verdicts = {stream.verdict for stream in STREAMS if stream.run == run}
        assert {1, -1} <= verdicts, f"{run}: all its streams have the same trend"


@pytest.mark.parametrize("run", sorted({stream.run for stream in STREAMS}))
def test_the_trend_of_recorded_streams(imtcp: Harness, run: str) -> None:
    """The kernel's numbers, the harness's and the reference's are the same."""
    for stream in (s for s in STREAMS if s.run == run):
        points = stream.behind
        share, drift, growth = trend_of(points)
        pct, pdt = math.floor(share * 1000), math.trunc(drift * 1000)
        trends = [either(pct, pdt), both(pct, pdt)]
        got = imtcp.ask("T", len(points), *flat(points))
        assert got == [len(points) - 1, pct, pdt, growth, *trends]
        assert (stream.pct, stream.pdt) == (pct, pdt)
        (_, s0, r0), (_, s1, r1) = stream.packets[0], stream.packets[-1]
        assert stream.growth_ns == (r1 - s1) - (r0 - s0)
        if run.startswith("imtcp_paper"):
            assert stream.verdict == trends[0]


def test_the_regression_of_recorded_streams(imtcp: Harness) -> None:
    """Rates are rounded to 1/2047 of the largest, which may decide a close split otherwise."""
    same = 0
    for stream in STREAMS:
        points = stream.behind
        got = imtcp.one("X", BITS, len(points), *flat(points))
        same += abs(got - fit_kbps(points, BITS)) <= 1
    assert same >= 0.95 * len(STREAMS), f"{same} of {len(STREAMS)} have the reference's knee"
