"""Channel patterns: what is refused, and the walk against a plain reference."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from builttools import Tools

HEADER = struct.Struct("<8s6IQ")
HIT, EXHAUSTED, OVERRUN = 1, 2, 4
NEVER = 1 << 62


@dataclass
class Pattern:
    unit_good: int = 1
    unit_bad: int = 0
    good: list[int] = field(default_factory=lambda: [NEVER])
    bad: list[int] = field(default_factory=list)
    windows: list[tuple[int, int, int, int]] = field(default_factory=list)
    magic: bytes = b"AIRCHAN1"
    tail: bytes = b""

    def write(self, path: Path) -> Path:
        counts = (len(self.good), len(self.bad), len(self.windows))
        head = HEADER.pack(self.magic, self.unit_good, self.unit_bad, *counts, 0, 0)
        gaps = struct.pack(f"<{len(self.good) + len(self.bad)}Q", *self.good, *self.bad)
        windows = b"".join(struct.pack("<QQII", *w) for w in self.windows)
        path.write_bytes(head + gaps + windows + self.tail)
        return path


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        (Pattern(magic=b"AIRCHAN2"), "magic"),
        (Pattern(unit_good=3), "unit_good"),
        (Pattern(unit_bad=7, bad=[1]), "unit_bad"),
        (Pattern(good=[]), "n_good"),
        (Pattern(unit_bad=1), "n_bad"),
        (Pattern(unit_good=0), "n_good"),
        (Pattern(tail=b"x"), "size"),
        (Pattern(windows=[(0, 5, 3, 0)]), "kind"),
        (Pattern(windows=[(0, 5, 1, 9)]), "reserved"),
        (Pattern(windows=[(5, 5, 1, 0)]), "end_ns"),
        (Pattern(windows=[(0, 5, 1, 0), (4, 9, 2, 0)]), "window 1: start_ns"),
    ],
)
def test_malformed_files_are_refused(tools: Tools, pattern: Pattern, named: str) -> None:
    done = tools.run("chan_harness", pattern.write(tools.work / "p.bin"))
    assert done.returncode == 2 and named in done.stderr


def test_short_and_missing_files_are_refused(tools: Tools) -> None:
    (tools.work / "short").write_bytes(b"AIRCHAN1")
    assert "header" in tools.run("chan_harness", "short").stderr
    assert tools.run("chan_harness", "missing").returncode == 2


class Reference:
    """The text of docs/lab-internals.md section 4, with unbounded loops and lists."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.tables = {0: list(pattern.good), 2: list(pattern.bad)}
        self.units = {0: pattern.unit_good, 2: pattern.unit_bad}

    def frame(self, t: int, length: int) -> tuple[int, int]:
        kind = next((w[2] for w in self.pattern.windows if w[0] <= t < w[1]), 0)
        if kind == 1 or not self.units[kind]:
            return kind, 0
        table = self.tables[kind]
        n = length * 8 if self.units[kind] == 1 else 1
        result = 0
        while table and table[0] < n:
            result = HIT
            n -= table.pop(0) + 1
        if not table:
            return kind, result | EXHAUSTED
        table[0] -= n
        return kind, result


def walk(tools: Tools, pattern: Pattern, frames: list[tuple[int, int]]) -> list[tuple[int, int]]:
    stdin = "".join(f"{t} {length}\n" for t, length in frames)
    done = tools.run("chan_harness", pattern.write(tools.work / "p.bin"), stdin=stdin)
    assert done.returncode == 0, done.stderr
    pairs = [line.split() for line in done.stdout.splitlines()]
    return [(int(kind), int(result)) for kind, result in pairs]


@pytest.mark.parametrize("seed", range(12))
def test_walk_equals_reference(tools: Tools, seed: int) -> None:
    rng = random.Random(seed)
    ber = 10 ** rng.uniform(-6, -3.2)
    gaps = [int(rng.expovariate(ber)) for _ in range(rng.choice((40, 4000)))]
    pattern = Pattern(
        unit_good=rng.choice((1, 1, 2)),
        unit_bad=rng.choice((1, 2)),
        good=gaps if seed % 3 else [0, 0, 1, 0, *gaps],
        bad=[rng.randrange(20000) for _ in range(500)],
    )
    at = 0
    for _ in range(rng.randrange(400)):
        at += rng.choice((0, rng.randrange(1, 10_000_000)))
        end = at + rng.randrange(1, 20_000_000)
        pattern.windows.append((at, end, rng.choice((1, 2)), 0))
        at = end
    frames, t = [], 0
    for _ in range(3000):
        # Now and then a silence in which many windows pass.
        t += rng.choice((0, 1000, 1_200_000, 1_200_000, rng.randrange(400_000_000)))
        frames.append((t, rng.choice((66, 78, 1514, 1514))))
    # Edges of windows, exactly.
    frames += [(edge, 1514) for w in pattern.windows for edge in w[:2] if edge > t]
    reference = Reference(pattern)
    assert walk(tools, pattern, frames) == [reference.frame(*f) for f in frames]


def test_frame_with_too_many_hits_is_dropped_and_told(tools: Tools) -> None:
    pattern = Pattern(good=[0] * 64 + [NEVER])
    assert walk(tools, pattern, [(0, 8)]) == [(0, HIT)]  # 64 bits, 64 hits
    pattern = Pattern(good=[0] * 100 + [NEVER])
    got = walk(tools, pattern, [(0, 12), (0, 4), (0, 1000)])
    # 64 of 96 bits are walked; the rest of the frame is left out, 36 gaps remain.
    assert got == [(0, HIT | OVERRUN), (0, HIT), (0, HIT)]


def test_used_up_table_drops_nothing_more(tools: Tools) -> None:
    got = walk(tools, Pattern(unit_good=2, good=[1, 0]), [(0, 100)] * 5)
    assert got == [(0, 0), (0, HIT), (0, HIT | EXHAUSTED), (0, EXHAUSTED), (0, EXHAUSTED)]
