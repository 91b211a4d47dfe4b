"""``ccscope report``: one interactive page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ccscope.errors import EXIT_OK, CcscopeError


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    sub = commands.add_parser(
        "report",
        help="make an interactive page of a recording: one HTML file, no network needed",
        description="Makes one HTML file with all curves, packets and events of a recording, to be "
        "zoomed in any browser of 2023 or newer.",
    )
    sub.add_argument("recording", type=Path, metavar="RECORDING", help="or an airlab cell")
    sub.add_argument(
        *("-f", "--flow"),
        action="append",
        default=[],
        help="label of a flow, may be repeated (default: the 20 busiest)",
    )
    sub.add_argument("--title", default="", help="default: name of the recording")
    sub.add_argument("-o", "--out", type=Path, metavar="FILE", help="default: report.html")
    sub.set_defaults(handler=_report)


def _report(args: argparse.Namespace) -> int:
    from ccscope.page.report import write
    from ccscope.recording import Recording

    recording = Recording.open(args.recording)
    out: Path = args.out or Path("report.html")
    try:
        size = write(recording, out, args.flow, args.title)
    except OSError as error:
        raise CcscopeError(f"-o {out}: {error.strerror}") from error
    for problem in dict.fromkeys(recording.problems):
        print(f"ccscope: {problem}", file=sys.stderr)
    print(f"{out} ({size / 1e6:.1f} MB)")
    return EXIT_OK
