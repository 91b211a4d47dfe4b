"""Reads a raw trace that a lab guest (or anyone with tracefs) saved, into tables.

The folder holds ``trace.raw`` (pages of ``trace_pipe_raw``; of several CPUs as ``trace.raw.N``),
``trace.formats/`` (``header_page`` and ``SYSTEM.EVENT`` files), and may hold ``trace.stats``
(``trace.stats.N``), ``kallsyms`` (for the causes of states) and ``t0`` (CLOCK_MONOTONIC ns and
CLOCK_REALTIME ns at the start).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ccscope import schema, symbols
from ccscope.assemble import Assembler
from ccscope.ftrace import read_trace
from ccscope.recording import Columns


def read_raw(
    folder: Path,
    *,
    wanted: Callable[[Mapping[str, Any]], bool] = lambda _: True,
    known: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {},
) -> tuple[dict[str, Any], dict[str, Columns]]:
    """Tables and the content of recording.json.

    Args:
        folder: as this module describes.
        wanted: tells from a flow's addresses and ports whether it is selected.
        known: what else is known of a flow (``cc``, ``sack``).

    Raises:
        CcscopeError: a part is missing or damaged.
    """
    whole = read_trace(folder)
    ends = [
        (int(c["t_ns"][0]), int(c["t_ns"][-1])) for c in whole.events.values() if len(c["t_ns"])
    ]
    first, last = min((a for a, _ in ends), default=0), max((b for _, b in ends), default=0)
    clocks = (folder / "t0").read_text().split() if (folder / "t0").is_file() else [str(first), "0"]
    named: list[tuple[int, str]] = []
    if (folder / "kallsyms").is_file():
        named = symbols.parse((folder / "kallsyms").read_text().splitlines())
    maker = Assembler(int(clocks[0]), symbols.Symbols(named), wanted, known)
    tables = maker.tables(whole.events)
    meta = {
        "format": schema.FORMAT,
        "version": schema.VERSION,
        "start_monotonic_ns": int(clocks[0]),
        "start_realtime_ns": int(clocks[1]),
        "duration_s": max(last - int(clocks[0]), 0) / 1e9,
        "clock": "CLOCK_MONOTONIC",
        "virtual_time": False,
        "sources": [{"name": "tracefs", "gives": sorted(whole.events), "cannot": []}],
        "flows": maker.info(),
        "lost": {"tracefs": whole.lost},
        "complete": True,
        "problems": [],
    }
    return meta, tables
