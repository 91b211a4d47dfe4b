"""Imports a log of ``ss -tin`` polls.

Accepted: the output of ``ss -tin`` (two lines a socket) or ``ss -tinO`` (one), poll after poll.
When each poll was made must be said, in one of two ways:

- a line of its own before each poll: seconds since 1970 (``date +%s.%N``) or ISO 8601
  (``date -Ins``);
- the same at the start of every line (``ss -tinO | ts %.s``).
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ccscope.errors import CcscopeError
from ccscope.recording import Columns

_EPOCH = re.compile(r"^\s*(?P<t>\d{9,11}(?:\.\d+)?)(?:\s+(?P<rest>\S.*))?$")
_ISO = re.compile(r"^\s*(?P<t>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*)(?:\s+(?P<rest>\S.*))?$")
_SOCKET = re.compile(
    r"^(?:tcp\s+)?(?P<state>[A-Z][A-Z0-9-]+)\s+\d+\s+\d+\s+(?P<ours>\S+)\s+(?P<theirs>\S+)(?P<rest>.*)$"
)
_ENDS = re.compile(r"^\[?(?P<address>[0-9a-fA-F.:]+?)\]?(?:%\w+)?:(?P<port>\d+)$")
_RATE = re.compile(r"\b(pacing_rate|delivery_rate)\s+([\d.]+)([KMGT]?)bps")
_MEMORY = re.compile(r"\bskmem:\([^)]*\btb(?P<sndbuf_bytes>\d+)[^)]*\bw(?P<wmem_bytes>\d+)")
_FACTOR = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_PLAIN = {
    **{"cwnd": "cwnd_segs", "ssthresh": "ssthresh_segs", "mss": "mss_bytes"},
    **{"bytes_sent": "bytes_sent", "bytes_acked": "bytes_acked", "bytes_retrans": "bytes_retrans"},
    **{"unacked": "unacked_segs", "lost": "lost_segs", "sacked": "sacked_segs"},
    **{"notsent": "notsent_bytes", "delivered": "delivered_segs", "snd_wnd": "snd_wnd_bytes"},
    **{"delivered_ce": "delivered_ce_segs", "dsack_dups": "dsack_dups", "reord_seen": "reord_seen"},
    "rcv_wnd": "rcv_wnd_bytes",
}
_MILLI = {
    **{"rto": "rto_us", "minrtt": "min_rtt_us", "busy": "busy_us"},
    **{"rwnd_limited": "rwnd_limited_us", "sndbuf_limited": "sndbuf_limited_us"},
}
# What ss leaves out when it is zero, or "none yet".
_ZERO = ("unacked_segs", "lost_segs", "sacked_segs", "notsent_bytes", "retrans_segs")
_NO_THRESHOLD = 0x7FFFFFFF


def read_log(path: Path) -> tuple[dict[str, Any], dict[str, Columns]]:
    """Tables (``samples``) and the content of recording.json.

    Raises:
        CcscopeError: the file cannot be read, has no times, or holds no socket.
    """
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise CcscopeError(f"{path} cannot be read: {error.strerror}") from error
    polls = list(_polls(lines))
    if not polls:
        raise CcscopeError(f"{path} holds no socket with TCP information; make it by `ss -tin`")
    if polls[0][0] is None:
        raise CcscopeError(
            f"{path} does not say when each poll was made: put `date +%s.%N` before each "
            "`ss -tin`, or pipe it through `ts %.s`"
        )
    start = min(t for t, *_ in polls if t is not None)
    flows: dict[tuple[str, int, str, int], str] = {}
    info: dict[str, dict[str, Any]] = {}
    rows = []
    for t_s, ends, values in polls:
        label = flows.setdefault(ends, f"f{len(flows) + 1}")
        row = info.setdefault(label, _flow(ends))
        if "cc" in values:
            row.setdefault("cc", values["cc"])
        rows.append({**values, "t_s": (t_s or start) - start, "flow": label})
    names = sorted({name for row in rows for name in row})
    made: Columns = {}
    for name in names:
        values_of = [row.get(name) for row in rows]
        text = name in ("flow", "cc")
        made[name] = np.array(values_of, dtype=object if text else float)
    order = np.argsort(made["t_s"], kind="stable")
    meta = {
        "duration_s": max(row["t_s"] for row in rows),
        "start_realtime_ns": int(start * 1e9),
        "clock": "CLOCK_REALTIME",
        "sources": [{"name": "sslog", "gives": ["samples"], "cannot": ["acks", "states"]}],
        "flows": info,
        "problems": [],
    }
    return meta, {"samples": {name: values[order] for name, values in made.items()}}


_Poll = tuple[float | None, tuple[str, int, str, int], dict[str, Any]]


def _polls(lines: Iterable[str]) -> Iterator[_Poll]:
    now: float | None = None
    ends: tuple[str, int, str, int] | None = None
    for line in lines:
        then, text = _time(line)
        now = then if then is not None else now
        match = _SOCKET.match(text.strip())
        if match:
            ends = _both(match["ours"], match["theirs"])
            text = match["rest"]
        if ends is not None and "cwnd:" in text:
            yield now, ends, _values(text)
            ends = None


def _time(line: str) -> tuple[float | None, str]:
    match = _EPOCH.match(line)
    if match:
        return float(match["t"]), match["rest"] or ""
    match = _ISO.match(line)
    if match:
        # `date -Ins` writes a comma and nine digits; Python reads six.
        text = re.sub(r"([.,]\d{6})\d*", r"\1", match["t"]).replace(",", ".")
        try:
            return datetime.datetime.fromisoformat(text).timestamp(), match["rest"] or ""
        except ValueError:
            return None, line
    return None, line


def _both(ours: str, theirs: str) -> tuple[str, int, str, int] | None:
    found = [_ENDS.match(end) for end in (ours, theirs)]
    if not all(found):
        return None
    first, second = ((m["address"].removeprefix("::ffff:"), int(m["port"])) for m in found if m)
    return (*first, *second)


def _flow(ends: tuple[str, int, str, int]) -> dict[str, Any]:
    src, sport, dst, dport = ends
    family = 6 if ":" in dst else 4
    return {"src": src, "sport": sport, "dst": dst, "dport": dport, "family": family}


def _values(text: str) -> dict[str, Any]:
    made: dict[str, Any] = dict.fromkeys(_ZERO, 0)
    made["ssthresh_segs"] = _NO_THRESHOLD
    for word in text.split():
        name, colon, value = word.partition(":")
        number = re.match(r"[\d.]+", value)
        if not colon or number is None:
            continue
        if name in _PLAIN:
            made[_PLAIN[name]] = float(number[0])
        elif name in _MILLI:
            made[_MILLI[name]] = round(float(number[0]) * 1000)
        elif name == "rtt":
            rtt, _, deviation = value.partition("/")
            made["srtt_us"] = round(float(rtt) * 1000)
            made["rttvar_us"] = round(float(deviation or 0) * 1000)
        elif name == "retrans" and "/" in value:
            here, _, total = value.partition("/")
            made["retrans_segs"], made["retrans_total"] = int(here), int(total)
    for name, number_text, unit in _RATE.findall(text):
        made[f"{name}_Bps"] = float(number_text) * _FACTOR[unit] / 8
    memory = _MEMORY.search(text)
    if memory:
        made |= {name: float(value) for name, value in memory.groupdict().items()}
    if "busy_us" in made:  # ss leaves the other two out when they are zero
        made = {"rwnd_limited_us": 0, "sndbuf_limited_us": 0} | made
    made["app_limited"] = int("app_limited" in text.split())
    cc = _algorithm(text)
    if cc:
        made["cc"] = cc
    return made


def _algorithm(text: str) -> str:
    """The first word that is neither a number, a pair nor one of the option words."""
    words = ("ts", "sack", "ecn", "ecnseen", "fastopen", "app_limited", "send")
    return next(
        (w for w in text.split() if re.fullmatch(r"[a-z][a-z0-9_]*", w) and w not in words), ""
    )
