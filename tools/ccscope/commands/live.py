"""``ccscope live``: the curves while they happen, in the terminal or a browser."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ccscope.commands import options
from ccscope.errors import EXIT_OK, CcscopeError

if TYPE_CHECKING:
    from ccscope.live.feeds import Feed


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    sub = commands.add_parser(
        "live",
        help="curves and events in real time, in the terminal or a browser",
        description="Shows cwnd, ssthresh, in-flight, events by cause and throughput as they "
        "happen. Keys: space pause, n/b and f flows, +/- zoom, arrows pan, 0 now, q quit.",
    )
    options.add_selection(sub)
    add_source(sub)
    sub.add_argument("--replay", type=Path, metavar="DIR", help="play a recording or airlab cell")
    sub.add_argument("--speed", type=_speed, help="of --replay, like 4x or max (default 1x)")
    sub.add_argument("--follow", type=Path, metavar="DIR", help="a recording that is being made")
    sub.add_argument(
        "--span", type=options.seconds, default=30.0, help="time shown at first (default 30s)"
    )
    sub.add_argument("--web", action="store_true", help="in a browser of this host")
    sub.add_argument(
        "--web-port", type=int, default=0, metavar="N", help="of --web (default: a free one)"
    )
    sub.set_defaults(handler=_live)


def add_source(sub: argparse.ArgumentParser) -> None:
    """Options that choose the source and what it gives."""
    sub.add_argument("--source", choices=options.SOURCES, default="auto")
    sub.add_argument(
        *("--per", "-p"), default="ack", help="ack (default), change, or an interval like 100ms"
    )
    sub.add_argument("--buffer", type=int, default=8192, metavar="KB", help="of each CPU's ring")


def _speed(text: str) -> float:
    if text == "max":
        return float("inf")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x?", text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no speed; write 1x, 0.5x, 10x or max")
    return float(match[1])


def feed(args: argparse.Namespace) -> Feed:
    """The feed that the options of :func:`add_source` and the selection ask for.

    Raises:
        CcscopeError: the source cannot be had.
    """
    from ccscope.live.feeds import HostFeed
    from ccscope.recorder import Options

    per = args.per if args.per in ("ack", "change") else "sample"
    return HostFeed(
        Options(
            folder=Path(),
            selection=options.selection(args),
            source=args.source,
            per=per,
            interval_s=options.interval(args.per) if per == "sample" else 0.1,
            buffer_kb=args.buffer,
        )
    )


def _feed(args: argparse.Namespace) -> Feed:
    if args.replay and args.follow:
        raise CcscopeError("--replay plays what is finished, --follow what is not: give one")
    if args.speed and not args.replay:
        raise CcscopeError("--speed is for --replay")
    if args.replay:
        from ccscope.live.feeds import ReplayFeed
        from ccscope.recording import Recording

        return ReplayFeed(Recording.open(args.replay), args.speed or 1.0)
    if args.follow:
        from ccscope.live.feeds import FollowFeed

        return FollowFeed(args.follow)
    return feed(args)


def _live(args: argparse.Namespace) -> int:
    source = _feed(args)
    if args.web:
        from ccscope.live import web

        return web.run(source, port=args.web_port, span_s=args.span)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CcscopeError("live: this is no terminal; use a terminal, or --web")
    from ccscope.live import terminal

    return terminal.run(source, span_s=args.span) or EXIT_OK
