"""Imports the text of ftrace: ``tcp_probe``, ``tcp_cong_state_set``, ``tcp_retransmit_skb``.

That is what ``trace``, ``trace_pipe``, ``trace-cmd report`` and ``perf script`` print; other
lines are left out and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ccscope import schema
from ccscope.assemble import Assembler, mapped_address
from ccscope.errors import CcscopeError
from ccscope.recording import Columns

_LINE = re.compile(
    r"\s(?P<t>\d+\.\d+):\s+(?:tcp:)?(?P<event>tcp_probe|tcp_cong_state_set|tcp_retransmit_skb):"
    r"\s+(?P<rest>.*)$"
)
_PAIR = re.compile(r"(\w+)=(\S+)")
_ENDS = re.compile(r"^\[?(?P<address>[0-9a-fA-F.:]+?)\]?:(?P<port>\d+)$")
_STATES = {name: number for number, name in enumerate(schema.TCP_STATES) if name}


def read_text(path: Path) -> tuple[dict[str, Any], dict[str, Columns]]:
    """Tables and the content of recording.json.

    Raises:
        CcscopeError: the file cannot be read or holds none of the events.
    """
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise CcscopeError(f"{path} cannot be read: {error.strerror}") from error
    rows, problems = _rows(lines)
    if not rows:
        raise CcscopeError(f"{path} holds no line of tcp_probe, tcp_cong_state_set or the like")
    rows.sort(key=lambda row: row[0])
    events = {
        f"tcp:{name}": _columns([r for r in rows if r[1] == name], name)
        for name in sorted({r[1] for r in rows})
    }
    maker = Assembler(rows[0][0])
    tables = maker.tables(events)
    meta = {
        "duration_s": (rows[-1][0] - rows[0][0]) / 1e9,
        "start_monotonic_ns": rows[0][0],
        "clock": "as the trace was made (set trace_clock to mono for CLOCK_MONOTONIC)",
        "sources": [{"name": "ftrace text", "gives": sorted(events), "cannot": ["causes"]}],
        "flows": maker.info(),
        "problems": problems,
    }
    return meta, tables


def _rows(lines: Iterable[str]) -> tuple[list[tuple[int, str, dict[str, str]]], list[str]]:
    rows, bad = [], 0
    for line in lines:
        match = _LINE.search(line)
        if match is None:
            bad += bool(line.strip()) and not line.startswith("#")
            continue
        seconds, _, part = match["t"].partition(".")
        t_ns = int(seconds) * 10**9 + int(part.ljust(9, "0")[:9])
        rows.append((t_ns, match["event"], dict(_PAIR.findall(match["rest"]))))
    return rows, [f"{bad} lines are of other events or damaged"] if bad else []


def _columns(rows: list[tuple[int, str, dict[str, str]]], event: str) -> Columns:
    count = len(rows)
    ends = [_ends(row[2]) for row in rows]
    made: Columns = {
        "t_ns": np.array([row[0] for row in rows], dtype=np.int64),
        "common_at": np.arange(count, dtype=np.int64),
        "sport": np.array([e[1] for e in ends], dtype=np.uint16),
        "dport": np.array([e[3] for e in ends], dtype=np.uint16),
    }
    for name, addresses in (("saddr_v6", [e[0] for e in ends]), ("daddr_v6", [e[2] for e in ends])):
        raw = b"".join(mapped_address(address) for address in addresses)
        made[name] = np.frombuffer(raw, dtype=np.uint8).reshape(count, 16)
    wanted = {
        "tcp_probe": ("snd_nxt", "snd_una", "snd_cwnd", "ssthresh", "snd_wnd", "srtt", "rcv_wnd"),
        "tcp_cong_state_set": ("cong_state",),
        "tcp_retransmit_skb": ("state",),
    }[event]
    for name in wanted:
        values = [_number(row[2].get(name, "0")) for row in rows]
        if any(name in row[2] for row in rows):
            made[name] = np.array(values, dtype=np.int64).astype(np.uint32)
    return made


def _ends(pairs: dict[str, str]) -> tuple[str, int, str, int]:
    if "src" in pairs:
        found = [_ENDS.match(pairs.get(name, "")) for name in ("src", "dest")]
        if all(found):
            ours, theirs = ((m["address"], int(m["port"])) for m in found if m)
            return (*ours, *theirs)
    six = pairs.get("family") == "AF_INET6"
    source, target = (pairs.get(n + ("v6" if six else ""), "0.0.0.0") for n in ("saddr", "daddr"))
    return source, int(pairs.get("sport", 0)), target, int(pairs.get("dport", 0))


def _number(text: str) -> int:
    if text.startswith("TCP_"):
        return _STATES.get(text.removeprefix("TCP_"), 0)
    try:
        return int(text.rstrip(","), 0)
    except ValueError:
        return 0
