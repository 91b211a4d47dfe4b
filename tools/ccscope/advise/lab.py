"""Tries windows in the laboratory: one cell of a scenario for each, kept and reused."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ccscope.advise.path import Path as NetPath
from ccscope.advise.path import measure
from ccscope.advise.search import Hint, Trial
from ccscope.errors import CcscopeError
from ccscope.explain.from_acks import gather
from ccscope.recording import Recording

if TYPE_CHECKING:
    from airlab.scenario import Scenario

DEFAULT_KEY = "flows.0.recv_buffer"


class Lab:
    """Runs cells of one scenario that differ in one key.

    Args:
        scenario: name or file.
        key: dotted key that holds the window, or a buffer that decides it.
        out: result folder; finished cells in it are taken over.
        cc: algorithm; by default the scenario's first.
        seeds: cells for each window; means are taken over them.
        sets: ``KEY=VALUE`` overrides.
        kernel: lab kernel; by default the usual one.
        flow: label of the flow that is looked at.

    Raises:
        CcscopeError: airlab is not installed, or the scenario cannot be used.
    """

    def __init__(
        self,
        scenario: str,
        out: Path,
        *,
        key: str = DEFAULT_KEY,
        cc: str | None = None,
        seeds: int = 1,
        sets: Sequence[str] = (),
        kernel: str | None = None,
        flow: str = "f1",
    ) -> None:
        try:
            from airlab.campaign import find_scenario, parse_sets
            from airlab.engines.choose import choose
            from airlab.plan import build_plan, cells
            from airlab.scenario import load_scenario
        except ImportError as error:
            raise CcscopeError(
                "--sweep runs airlab, which is not installed here: run it in a checkout of airtcp, "
                "after `make setup`"
            ) from error
        quiet = {"trace.queue": "false", "trace.capture": "false", "trace.modules": "false"}
        self.scenario: Scenario = load_scenario(
            find_scenario(scenario), {**quiet, **parse_sets(sets)}
        )
        self.key, self.out, self.flow, self.seeds = key, out, flow, seeds
        self.cc = cc or self.scenario.cc[0]
        self.paths: dict[int, NetPath] = {}
        first = cells(self.scenario, [self.cc], 1, {key: ["65536B"]})[0]
        self._engine = choose(
            "vm", plans=[build_plan(self.scenario, first)], kernel=kernel, fast=False
        )

        self.segment_bytes = 1.0

    def run(self, asked: int) -> Trial:
        """Try one value of the key, in bytes.

        Raises:
            CcscopeError: a cell failed or its result is not to be trusted.
        """
        from airlab.model import Cell
        from airlab.plan import build_plan
        from airlab.runner import Campaign

        value = f"{asked}B"
        made = [Cell(self.cc, seed, ((self.key, value),)) for seed in range(1, self.seeds + 1)]
        plans = [build_plan(self.scenario, cell) for cell in made]
        self.out.mkdir(parents=True, exist_ok=True)
        outcome = Campaign(plans, self._engine, self.out, jobs=1).run()
        if outcome.interrupted:
            raise KeyboardInterrupt
        if outcome.failed:
            raise CcscopeError(f"{self.key}={value}: {outcome.failed[0].message}")
        paths = [self._measure(cell.slug) for cell in made]
        self.paths[asked] = paths[0]
        self.segment_bytes = paths[0].mss_bytes
        return trial_of(asked, paths)

    def _measure(self, slug: str) -> NetPath:
        recording = Recording.open(self.out / "cells" / slug)
        return measure(recording, self.flow, gather(recording, self.flow))

    def hint(self) -> Hint:
        """What the run with the largest window suggests."""
        asked = max(self.paths)
        return hint_of(asked, self.paths[asked])


def trial_of(asked: int, paths: Sequence[NetPath]) -> Trial:
    """A trial from the paths that its runs saw; losses are those of the worst run."""
    states = [p.steady for p in paths]
    return Trial(
        asked=asked,
        window_bytes=statistics.mean(p.window_bytes for p in paths),
        goodput_bps=8 * statistics.mean(s.goodput_Bps for s in states),
        srtt_s=statistics.mean(s.srtt_s for s in states),
        cwnd_cv=statistics.mean(s.cwnd_cv for s in states),
        cwnd_segs=statistics.mean(s.cwnd_segs for s in states),
        losses=max(s.losses for s in states),
    )


def hint_of(asked: int, path: NetPath) -> Hint:
    """Knee and collapse as values of the key, which is taken for proportional to the window."""
    ratio = path.window_bytes / asked
    ratio = ratio if 0.5 <= ratio <= 2 else 1.0  # a window that is not used up may not have grown
    collapse = None if path.collapse_bytes is None else round(path.collapse_bytes / ratio)
    return Hint(round(path.knee_bytes / ratio), collapse)
