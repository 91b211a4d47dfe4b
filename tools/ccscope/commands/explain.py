"""``ccscope explain``: what limited a flow and when, in words."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ccscope.errors import EXIT_OK, CcscopeError

_ABOUT = """\
Says what limited a flow and when: the program, the send buffer, the receiver's window, cwnd (slow
start, growing back after a loss, recovery, timeout, pacing) or nothing to send; which losses and
recoveries there were by cause, and what each cost. Says its evidence and what it cannot tell."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    sub = commands.add_parser(
        "explain",
        help="say what limited a flow and when, and what its losses cost",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.add_argument("recording", type=Path, metavar="RECORDING", help="recording or airlab cell")
    sub.add_argument("--flow", metavar="LABEL", help="only this flow (default: the 20 largest)")
    sub.add_argument(
        "--resolution",
        type=float,
        metavar="SECONDS",
        help="length of the cells that phases are made of (default: two round trips or polls)",
    )
    sub.add_argument("--json", action="store_true", help="as JSON, with every event")
    sub.set_defaults(handler=_explain)


def _explain(args: argparse.Namespace) -> int:
    from ccscope.explain import MOST_FLOWS, explain, largest
    from ccscope.explain.words import text
    from ccscope.recording import Recording

    if args.resolution is not None and not 0.001 <= args.resolution <= 3600:
        raise CcscopeError(f"--resolution {args.resolution:g}: 0.001 to 3600 seconds")
    recording = Recording.open(args.recording)
    labels, left = ([args.flow], 0) if args.flow else largest(recording, MOST_FLOWS)
    if not labels:
        raise CcscopeError(f"{args.recording} holds no flow")
    made, failed = [], []
    for label in labels:
        try:
            made.append(explain(recording, label, args.resolution))
        except CcscopeError as error:
            if args.flow:
                raise
            failed.append(str(error))
    if not made:
        raise CcscopeError("; ".join(failed))
    if args.json:
        print(json.dumps([found.to_json() for found in made], indent=1))
    else:
        pages = [text(found, recording.flows.get(found.label, {})) for found in made]
        print("\n\n".join(pages))
    if left:
        print(
            f"ccscope: {left} smaller flows are left out; --flow LABEL names one", file=sys.stderr
        )
    for problem in [*recording.problems, *failed]:
        print(f"ccscope: {problem}", file=sys.stderr)
    return EXIT_OK
