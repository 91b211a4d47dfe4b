"""Reads the lines of the bpftrace source into the columns of our own probe events."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from ccscope.assemble import PROBES
from ccscope.ftrace import Columns

EVENTS = {
    **{"A": f"{PROBES}:after", "C": f"{PROBES}:ca", "U": f"{PROBES}:undo"},
    **{"R": f"{PROBES}:again", "L": "sock:inet_sock_set_state"},
}
_STACK = "ftrace:kernel_stack"
_ADDRESS = re.compile(r"\b[0-9a-f]{12,16}\b")


def parse(
    text: str, fields: Mapping[str, Sequence[str]], first: int = 0
) -> tuple[dict[str, Columns], int]:
    """Columns by event, and how many lines could not be read.

    Args:
        text: lines; a stack goes on over the lines that follow its event.
        fields: names of a line's numbers by its letter.
        first: what ``common_at`` starts from.
    """
    rows: dict[str, list[list[int]]] = {letter: [] for letter in fields}
    places: dict[str, list[int]] = {letter: [] for letter in fields}
    stacks: list[tuple[int, int, tuple[int, ...]]] = []
    bad, letter = 0, ""
    for number, line in enumerate(text.split("\n")):
        head, _, rest = line.partition(" ")
        if head not in fields:
            if letter == "C" and stacks:
                at, t_ns, seen = stacks[-1]
                more = tuple(int(a, 16) for a in _ADDRESS.findall(line))
                stacks[-1] = (at, t_ns, seen + more)
            elif line:
                bad += 1
            continue
        letter = head
        words = rest.split()
        wanted = len(fields[letter])
        try:
            values = [int(word) for word in words[:wanted]]
        except ValueError:
            bad, letter = bad + 1, ""
            continue
        if len(values) < wanted:
            bad, letter = bad + 1, ""
            continue
        rows[letter].append(values)
        places[letter].append(first + 2 * number)
        if letter == "C":
            more = tuple(int(a, 16) for a in words[wanted:] if _ADDRESS.fullmatch(a))
            stacks.append((first + 2 * number + 1, values[0], more))
    made = {
        name: _columns(fields[letter], rows[letter], places[letter])
        for letter, name in EVENTS.items()
        if rows.get(letter)
    }
    if stacks:
        callers = np.empty(len(stacks), dtype=object)
        callers[:] = [s[2] for s in stacks]
        made[_STACK] = {
            "t_ns": np.array([s[1] for s in stacks], dtype=np.int64),
            "common_at": np.array([s[0] for s in stacks], dtype=np.int64),
            "caller": callers,
        }
    return made, bad


def _columns(names: Sequence[str], rows: list[list[int]], places: list[int]) -> Columns:
    table = np.array(rows, dtype=np.uint64)
    order = np.argsort(table[:, 0], kind="stable")
    made: Columns = {}
    for i, name in enumerate(names):
        values = table[order, i]
        wide = name in ("pacing",) or name.startswith(("saddr", "daddr"))
        made[name] = values if wide else values.astype(np.int64)
    made["common_at"] = np.array(places, dtype=np.int64)[order]
    return made
