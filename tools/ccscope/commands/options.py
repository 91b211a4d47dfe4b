"""Options that several commands have: which flows, and times."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ccscope.errors import CcscopeError
from ccscope.flows import Selection

SOURCES = ("auto", "tracefs", "bpftrace", "sockdiag")

_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def add_selection(sub: argparse.ArgumentParser) -> None:
    """Options that :func:`selection` reads."""
    chosen = sub.add_argument_group("flows (all must hold; without any: every flow)")
    chosen.add_argument("--port", type=int, action="append", default=[], help="local or remote")
    chosen.add_argument("--addr", action="append", default=[], help="address or network")
    chosen.add_argument("--cc", action="append", default=[], help="congestion-control algorithm")
    chosen.add_argument("--pid", type=int, action="append", default=[], help="process")
    chosen.add_argument("--cgroup", action="append", default=[], help="folder of a cgroup")
    chosen.add_argument("--netns", action="append", default=[], help="network namespace (ip netns)")


def selection(args: argparse.Namespace) -> Selection:
    """The flows that were asked for.

    Raises:
        CcscopeError: a value is out of range or names nothing.
    """
    return Selection(
        *(tuple(args.port), tuple(args.addr), tuple(args.cc), tuple(args.pid)),
        *(tuple(args.cgroup), tuple(_netns(name) for name in args.netns)),
    )


def seconds(text: str) -> float:
    """A time like 100ms, for argparse."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s|m|min|h)?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 100ms, 30s or 5m")
    return float(match[1]) * _UNIT_S[match[2] or "s"]


def interval(text: str) -> float:
    """The time between polls that ``--per`` names, in seconds.

    Raises:
        CcscopeError: no time, or too short.
    """
    try:
        made = seconds(text)
    except argparse.ArgumentTypeError as error:
        raise CcscopeError(f"--per {text}: ack, change, or a time like 100ms") from error
    if made < 0.001:
        raise CcscopeError(f"--per {text}: polls need 1 ms at least")
    return made


def _netns(name: str) -> int:
    path = Path(name) if "/" in name else Path("/run/netns") / name
    try:
        return path.stat().st_ino
    except OSError as error:
        raise CcscopeError(f"--netns {name}: {path}: {error.strerror}") from error
