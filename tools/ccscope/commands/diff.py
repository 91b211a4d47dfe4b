"""``ccscope diff``: two recordings side by side."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ccscope.errors import EXIT_OK, CcscopeError

if TYPE_CHECKING:
    from ccscope.compare import Comparison


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    sub = commands.add_parser(
        "diff",
        help="compare two recordings flow by flow",
        description="Compares two recordings flow by flow: goodput, window, round-trip times, "
        "retransmissions, CA states, events by cause. Flows are matched by addresses and ports, "
        "else by destination port and algorithm, else by port, else by algorithm, else by order.",
    )
    sub.add_argument("a", type=Path, metavar="A", help="a recording or airlab cell")
    sub.add_argument("b", type=Path, metavar="B", help="the other")
    sub.add_argument("--json", action="store_true", help="numbers as JSON, in basic units")
    sub.add_argument("--flow-a", action="append", default=[], metavar="LABEL", help="flows of A")
    sub.add_argument("--flow-b", action="append", default=[], metavar="LABEL", help="flows of B")
    sub.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw both over one axis of time: windows, goodput, RTT (.svg, .pdf or .png)",
    )
    sub.set_defaults(handler=_diff)


def _diff(args: argparse.Namespace) -> int:
    from ccscope.compare import compare
    from ccscope.recording import Recording

    a, b = Recording.open(args.a), Recording.open(args.b)
    made = compare(a, b, (args.flow_a, args.flow_b))
    if args.plot:
        _draw(made, args.plot)
    print(json.dumps(made.to_json(), indent=1) if args.json else made.text())
    for recording in (a, b):
        for problem in dict.fromkeys(recording.problems):
            print(f"ccscope: {recording.path}: {problem}", file=sys.stderr)
    return EXIT_OK


def _draw(made: Comparison, out: Path) -> None:
    from ccscope.draw import timeline
    from ccscope.draw.flowview import shades, span
    from ccscope.draw.look import FLOW_COLOURS, styles
    from ccscope.draw.panels import Track

    kind = out.suffix.lstrip(".").lower()
    if kind not in timeline.FORMATS:
        raise CcscopeError(f"--plot {out}: the name must end in .svg, .pdf or .png")
    flows = [
        (f"{side} {view.label} {view.info.get('cc') or ''}".rstrip(), view)
        for pair in made.pairs
        for side, view in (("A", pair.a), ("B", pair.b))
    ]
    looks = styles([name for name, _ in flows], FLOW_COLOURS)
    tracks = [Track(view, name, looks[name], name, shades(view.recording)) for name, view in flows]
    able = [
        name
        for name, there in (
            ("cwnd", any(t.view.cwnd.known for t in tracks)),
            ("throughput", any(len(t.view.delivered_bytes) for t in tracks)),
            ("rtt", any(t.view.srtt_ms.known or len(t.view.rtt_samples_ms) for t in tracks)),
        )
        if there
    ]
    if not able:
        raise CcscopeError("--plot: neither recording has a window, a goodput or an RTT to draw")
    stop = max(span(r, [t.view for t in tracks if t.view.recording is r]) for r in (made.a, made.b))
    title = f"A: {made.a.path.resolve().name}   B: {made.b.path.resolve().name}"
    figure = timeline.timeline(able, tracks, (0.0, stop), title)
    try:
        out.write_bytes(timeline.render(figure, kind))
    except OSError as error:
        raise CcscopeError(f"--plot {out}: {error.strerror}") from error
