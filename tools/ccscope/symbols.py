"""Names of kernel functions by address, from ``/proc/kallsyms``."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_WANTED = re.compile(r"^_?_?(tcp|inet|dctcp|bbr|bictcp|trace_event_raw_event_tcp)_")


class Symbols:
    """Finds the function an address is in; unknown addresses give ``?``."""

    def __init__(self, pairs: Iterable[tuple[int, str]]) -> None:
        ordered = sorted(pairs)
        self._starts = [start for start, _ in ordered]
        self._names = [name for _, name in ordered]

    def __len__(self) -> int:
        return len(self._starts)

    def name(self, address: int) -> str:
        """The function's name without compiler suffixes such as ``.constprop.0``."""
        at = bisect.bisect_right(self._starts, address) - 1
        return self._names[at].partition(".")[0] if at >= 0 else "?"

    def names(self, addresses: Iterable[int]) -> list[str]:
        """The names for a stack."""
        return [self.name(address) for address in addresses]


def parse(lines: Iterable[str]) -> list[tuple[int, str]]:
    """The functions of TCP in the text of kallsyms, with a ``?`` where each run of them ends.

    An empty list means that the reader may not see addresses (kernel.kptr_restrict).
    """
    rows = []
    for line in lines:
        parts = line.split()
        if len(parts) >= 3 and parts[1] in "tTwW":
            rows.append((int(parts[0], 16), parts[2]))
    if not any(start for start, _ in rows):
        return []
    made: list[tuple[int, str]] = []
    # Several names may share an address; one that is wanted wins.
    for start, name in sorted(rows, key=lambda r: (r[0], not _WANTED.match(r[1]))):
        if made and made[-1][0] == start:
            continue
        kept = name if _WANTED.match(name) else "?"
        if kept != "?" or (made and made[-1][1] != "?"):
            made.append((start, kept))
    return made


def running_kernel(
    wanted: Callable[[str], bool], path: Path = Path("/proc/kallsyms")
) -> tuple[list[tuple[int, str]], set[str]]:
    """The functions of TCP in the running kernel, and the names of the functions asked for.

    The first is empty when addresses are hidden from us.
    """
    names: set[str] = set()

    def noting(lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            parts = line.split()
            if len(parts) >= 3 and parts[1] in "tTwW" and wanted(parts[2]):
                names.add(parts[2])
            yield line

    try:
        with open(path) as file:
            return parse(noting(file)), names
    except OSError:
        return [], names
