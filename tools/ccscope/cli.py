"""The ``ccscope`` command."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ccscope import __version__
from ccscope.commands import advise, diff, explain, live, options, plot, report, serve
from ccscope.completion import answer
from ccscope.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, CcscopeError

_DESCRIPTION = "See what TCP does on a running Linux host, and why."


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status.

    0: all well.  1: something measured or judged failed.  2: wrong use, or a right or tool
    is missing.  130: interrupted.
    """
    parser = _parser()
    answer(parser)
    args = parser.parse_args(argv)
    # Shells start background jobs with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    handler: Callable[[argparse.Namespace], int] = args.handler
    try:
        return handler(args)
    except CcscopeError as error:
        print(f"ccscope: error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("ccscope: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("ccscope", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"ccscope {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_record(commands)
    _add_finish(commands)
    _add_import(commands)
    _add_export(commands)
    _add_doctor(commands)
    _add_info(commands)
    _add_schema(commands)
    plot.add(commands)
    report.add(commands)
    diff.add(commands)
    live.add(commands)
    serve.add(commands)
    advise.add(commands)
    explain.add(commands)
    return parser


def _add_record(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser(
        "record",
        help="record what TCP does on this host",
        description="Records until Ctrl-C, the end of COMMAND, or --for.",
    )
    sub.add_argument("-o", "--out", type=Path, metavar="DIR", help="default: ccscope-DATE-TIME")
    options.add_selection(sub)
    sub.add_argument("--source", choices=options.SOURCES, default="auto")
    sub.add_argument(
        *("--per", "-p"),
        default="ack",
        help="ack (default), change (states and retransmissions only) or an interval like 100ms",
    )
    sub.add_argument(
        "--for", dest="for_s", type=options.seconds, default=0.0, help="end after, like 30s"
    )
    sub.add_argument(
        "--ring", type=options.seconds, default=0.0, help="keep this long before a trigger"
    )
    sub.add_argument(
        "--trigger",
        action="append",
        default=[],
        choices=("loss", "cwr", "stall"),
        help="ends it; stall: 3 s without progress",
    )
    sub.add_argument(
        "--after", type=options.seconds, default=5.0, help="go on this long (default 5s)"
    )
    sub.add_argument("--pcap", action="store_true", help="tcpdump's capture beside it")
    sub.add_argument("--snaplen", type=int, default=128, help="bytes of each packet (default 128)")
    sub.add_argument("--buffer", type=int, default=8192, metavar="KB", help="of each CPU's ring")
    sub.add_argument("command", nargs="*", metavar="-- COMMAND", help="record while it runs")
    sub.set_defaults(handler=_record)


def _record(args: argparse.Namespace) -> int:
    from ccscope.recorder import Options, Session

    if bool(args.ring) != bool(args.trigger):
        raise CcscopeError("--ring and --trigger belong together: what to keep, and when to stop")
    per = args.per if args.per in ("ack", "change") else "sample"
    wanted = Options(
        folder=args.out or Path(time.strftime("ccscope-%Y%m%d-%H%M%S")),
        selection=options.selection(args),
        source=args.source,
        per=per,
        interval_s=options.interval(args.per) if per == "sample" else 0.1,
        ring_s=args.ring,
        triggers=tuple(args.trigger),
        after_s=args.after,
        for_s=args.for_s,
        pcap=args.pcap,
        snaplen=args.snaplen,
        buffer_kb=args.buffer,
        command=tuple(args.command),
    )
    return Session(wanted).run()


def _add_finish(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser("finish", help="make the tables of a recording that was cut off")
    sub.add_argument("recording", type=Path, metavar="DIR")
    sub.set_defaults(handler=_finish)


def _finish(args: argparse.Namespace) -> int:
    from ccscope.decode import finish

    meta = finish(args.recording)
    for problem in meta["problems"]:
        print(f"problem: {problem}")
    print(f"{args.recording}: " + ", ".join(f"{n} {c} rows" for n, c in meta["tables"].items()))
    return EXIT_OK


def _add_import(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser("import", help="make a recording of what another tool wrote")
    sub.add_argument(
        "source",
        type=Path,
        metavar="FILE",
        help="pcap or pcapng, `ss -tin` log, ftrace text, or a folder with raw trace pages",
    )
    sub.add_argument("-o", "--out", type=Path, required=True, metavar="DIR")
    sub.add_argument(
        "--format", choices=("pcap", "ss", "ftrace", "raw"), help="default: by content"
    )
    sub.set_defaults(handler=_import)


def _import(args: argparse.Namespace) -> int:
    from ccscope.imports import import_file

    meta = import_file(args.source, args.out, args.format)
    for problem in meta["problems"]:
        print(f"problem: {problem}")
    print(f"{args.out}: " + ", ".join(f"{n} {c} rows" for n, c in meta["tables"].items()))
    return EXIT_OK


def _add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser("export", help="write a recording for another tool")
    sub.add_argument("recording", type=Path, metavar="DIR")
    sub.add_argument(
        *("--format", "-f"),
        required=True,
        choices=("csv", "jsonl", "pcapng", "perfetto", "qlog", "xplot"),
    )
    sub.add_argument(
        *("-o", "--out"),
        type=Path,
        required=True,
        metavar="PATH",
        help="a file (jsonl, pcapng, perfetto) or a folder (csv, qlog, xplot)",
    )
    sub.set_defaults(handler=_export)


def _export(args: argparse.Namespace) -> int:
    from ccscope.export import export
    from ccscope.recording import Recording

    recording = Recording.open(args.recording)
    for path in export(recording, args.format, args.out):
        print(path)
    for problem in recording.problems:
        print(f"ccscope: {problem}", file=sys.stderr)
    return EXIT_OK


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser("doctor", help="say which sources this host allows, what each gives")
    sub.set_defaults(handler=_doctor)


def _doctor(_: argparse.Namespace) -> int:
    from ccscope.sources import bpftrace, sockdiag, tracefs

    try:
        offered = tracefs.offer(tracefs.find(), per_ack=True)
        print(f"tracefs: usable at {offered.root}")
        _list(offered.gives, offered.cannot)
        left = tracefs.stale(offered.root) if offered.root else []
        if left:
            print(f"  left by recorders that are gone, removed by the next record: {left}")
    except CcscopeError as error:
        print(f"tracefs: not usable: {error}")
    try:
        able = bpftrace.offer(per_ack=True)
        print(f"bpftrace: usable, {able.program} {'.'.join(map(str, able.version))}; --source auto")
        print("  prefers tracefs, which costs less, counts each CPU's losses and needs no compiler")
        _list(able.gives, able.cannot)
    except CcscopeError as error:
        print(f"bpftrace: not usable: {str(error).removeprefix('bpftrace: ')}")
    try:
        count = sum(1 for piece in sockdiag.Poller().dump() for _ in sockdiag.sockets(piece))
        print(f"sockdiag: usable, {count} connections now")
        _list(["samples: TCP_INFO, congestion control, SACK"], sockdiag.CANNOT)
    except CcscopeError as error:
        print(f"sockdiag: not usable: {error}")
    return EXIT_OK


def _list(gives: Sequence[str], cannot: Sequence[str]) -> None:
    for text in gives:
        print(f"  gives {text}")
    for text in cannot:
        print(f"  cannot give {text}")


def _add_info(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser("info", help="say what a recording holds")
    sub.add_argument("recording", type=Path, metavar="DIR", help="a recording or airlab cell")
    sub.set_defaults(handler=_info)


def _info(args: argparse.Namespace) -> int:
    from ccscope.recording import Recording

    recording = Recording.open(args.recording)
    print(f"{recording.path}: {recording.kind}, {recording.duration_s:.3f} s")
    for source in recording.meta.get("sources", []):
        print(f"source {source['name']}: {source.get('why', '')}".rstrip(": "))
        for missing in source.get("cannot", []):
            print(f"  cannot: {missing}")
    for label, flow in recording.flows.items():
        ends = f"{flow['src']}:{flow['sport']} -> {flow['dst']}:{flow['dport']}"
        print(f"flow {label}: {ends} {flow.get('cc', '')}".rstrip())
    for name in recording.tables():
        columns = recording.table(name)
        print(f"table {name}: {len(columns['t_s'])} rows")
    for name, count in recording.meta.get("lost", {}).items():
        print(f"lost by {name}: {count} events")
    for problem in recording.problems:
        print(f"problem: {problem}")
    return EXIT_OK


def _add_schema(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser("schema", help="tables and columns with units and meanings")
    sub.add_argument("--json", action="store_true", help="the JSON schema of recording.json")
    sub.set_defaults(handler=_schema)


def _schema(args: argparse.Namespace) -> int:
    from ccscope import schema

    if args.json:
        print(json.dumps(schema.json_schema(), indent=1))
        return EXIT_OK
    for table in schema.TABLES.values():
        print(f"{table.name}: {table.about}")
        for column in table.columns:
            unit = f" [{column.unit}]" if column.unit else ""
            print(f"  {column.name}{unit}: {column.about}")
    return EXIT_OK
