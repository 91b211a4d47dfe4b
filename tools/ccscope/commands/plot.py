"""``ccscope plot``: figures for print."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ccscope.errors import EXIT_OK, CcscopeError

if TYPE_CHECKING:
    from ccscope.draw.panels import Track
    from ccscope.recording import Recording

_KINDS = {  # as ccscope.draw.timeline.KINDS, which needs matplotlib
    "cwnd": "cwnd, ssthresh, in flight, events by cause",
    "inflight": "bytes in flight under cwnd and the receiver's window",
    "throughput": "goodput",
    "rtt": "round-trip times",
    "sequence": "packet time-sequence graph, from the capture or else the trace",
    "states": "CA states",
    "acked": "bytes acknowledged, retransmissions",
    "queue": "the bottleneck's queue (lab cells)",
}
_DEFAULT = ("cwnd", "throughput", "rtt")
_MOST_FLOWS = 6


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    sub = commands.add_parser(
        "plot",
        help="draw a recording for print: SVG, PDF or PNG",
        description="Draws a recording. Panels: "
        + "; ".join(f"{name}: {about}" for name, about in _KINDS.items())
        + ".",
    )
    sub.add_argument("recording", type=Path, metavar="RECORDING", help="or an airlab cell")
    sub.add_argument(
        *("-k", "--kind"),
        nargs="+",
        choices=_KINDS,
        default=list(_DEFAULT),
        help=f"panels from top to bottom (default: {' '.join(_DEFAULT)})",
    )
    sub.add_argument(
        *("-f", "--flow"),
        action="append",
        default=[],
        help=f"label of a flow, may be repeated (default: the {_MOST_FLOWS} busiest)",
    )
    sub.add_argument("--from", dest="start", type=float, default=0.0, metavar="S", help="seconds")
    sub.add_argument("--to", dest="stop", type=float, metavar="S", help="default: the end")
    sub.add_argument("--title", help="default: name of the recording; '' for none")
    sub.add_argument("--width", type=float, default=7.6, metavar="INCHES", help="default 7.6")
    sub.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help=".svg, .pdf or .png (default: NAME.svg)"
    )
    sub.set_defaults(handler=_plot)


def _plot(args: argparse.Namespace) -> int:
    from ccscope.draw import timeline
    from ccscope.draw.flowview import span
    from ccscope.recording import Recording

    out: Path = args.out or Path(f"{args.recording.resolve().name}.svg")
    kind = out.suffix.lstrip(".").lower()
    if kind not in timeline.FORMATS:
        raise CcscopeError(f"-o {out}: the name must end in .svg, .pdf or .png")
    if not 2 <= args.width <= 40:
        raise CcscopeError(f"--width {args.width:g}: 2 to 40 inches")
    recording = Recording.open(args.recording)
    tracks = tracks_of(recording, args.flow)
    whole = span(recording, [t.view for t in tracks])
    stop = whole if args.stop is None else args.stop
    if args.start >= whole:
        raise CcscopeError(f"--from {args.start:g}: the recording ends at {whole:g} s")
    if not 0 <= args.start < stop:
        raise CcscopeError(
            f"--from {args.start:g} --to {stop:g}: needs 0 <= from < to; the recording has "
            f"{whole:g} s"
        )
    for name in args.kind:
        require(recording, tracks, name)
    title = name_of(recording) if args.title is None else args.title
    figure = timeline.timeline(args.kind, tracks, (args.start, stop), title, args.width)
    try:
        out.write_bytes(timeline.render(figure, kind))
    except OSError as error:
        raise CcscopeError(f"-o {out}: {error.strerror}") from error
    for problem in recording.problems:
        print(f"ccscope: {problem}", file=sys.stderr)
    print(out)
    return EXIT_OK


def name_of(recording: Recording) -> str:
    """A title for the recording."""
    return str(recording.meta.get("title") or recording.path.resolve().name)


def tracks_of(recording: Recording, labels: list[str]) -> list[Track]:
    """The flows to draw; says on stderr which were left out.

    Raises:
        CcscopeError: a flow is unknown, or there is nothing to draw.
    """
    from ccscope.draw.flowview import shades, views
    from ccscope.draw.look import FLOW_COLOURS, styles
    from ccscope.draw.panels import Track

    found = views(recording, labels)
    shown = found if labels else found[:_MOST_FLOWS]
    if len(shown) < len(found):
        left = ", ".join(v.label for v in found[_MOST_FLOWS:][:10])
        print(
            f"ccscope: drawing the {_MOST_FLOWS} busiest of {len(found)} flows; others by --flow: "
            f"{left}{', ...' if len(found) > _MOST_FLOWS + 10 else ''}",
            file=sys.stderr,
        )
    names = {v.label: " ".join(filter(None, (v.label, v.info.get("cc")))) for v in shown}
    looks = styles(list(names), FLOW_COLOURS)
    shaded = shades(recording)
    return [Track(v, names[v.label], looks[v.label], names[v.label], shaded) for v in shown]


def require(recording: Recording, tracks: list[Track], kind: str) -> None:
    """Refuse a panel for which the recording has nothing.

    Raises:
        CcscopeError: says what is missing.
    """
    has = {
        "cwnd": any(t.view.cwnd.known for t in tracks),
        "inflight": any(t.view.inflight_bytes.known for t in tracks),
        "throughput": any(len(t.view.delivered_bytes) for t in tracks),
        "rtt": any(t.view.srtt_ms.known or len(t.view.rtt_samples_ms) for t in tracks),
        "sequence": any(len(t.view.sequence) for t in tracks),
        "states": any(t.view.state_rows or t.view.source for t in tracks),
        "acked": any(len(t.view.acked_bytes) for t in tracks),
        "queue": bool(len(recording.table("queue")["t_s"])),
    }
    if not has[kind]:
        able = ", ".join(name for name, there in has.items() if there) or "nothing"
        raise CcscopeError(
            f"--kind {kind}: {recording.path} has no data for it; it can show: {able}"
        )
