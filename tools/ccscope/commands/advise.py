"""``ccscope advise``: the receive window that holds cwnd just below its collapse."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ccscope.errors import EXIT_OK, CcscopeError

_ABOUT = """\
Finds the receive window that holds cwnd just below its collapse: the smallest window whose goodput
is within 1 % (--tolerance) of the best, with no loss and a cwnd that varies by 5 % at most in the
steady state. From a recording it is an estimate by the flow's own path; with --sweep it is measured
in the laboratory, in fewer runs than all windows need. Says how to set it and how to undo it;
changes nothing itself."""

_EPILOG = """\
examples:
  ccscope advise RECORDING
  ccscope advise --sweep advise-wlan
  ccscope advise --sweep wlan-direct --key flows.0.recv_buffer --low 8000 --high 6480000
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    sub = commands.add_parser(
        "advise",
        help="find the receive window that holds cwnd just below its collapse",
        description=_ABOUT,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.add_argument("recording", type=Path, nargs="?", metavar="RECORDING")
    sub.add_argument(
        "--flow", metavar="LABEL", help="only this flow (default: the 20 largest; of a sweep f1)"
    )
    sub.add_argument("--json", action="store_true", help="as JSON")
    sweep = sub.add_argument_group("in the laboratory")
    sweep.add_argument("--sweep", metavar="SCENARIO", help="search in this scenario of airlab")
    sweep.add_argument(
        "--key",
        default="flows.0.recv_buffer",
        help="what is varied, in bytes (default: %(default)s)",
    )
    sweep.add_argument("--low", type=int, default=8192, metavar="BYTES", help="(%(default)s)")
    sweep.add_argument("--high", type=int, default=1 << 20, metavar="BYTES", help="(%(default)s)")
    sweep.add_argument("--tolerance", type=float, default=1.0, metavar="PERCENT", help="(1)")
    sweep.add_argument("--runs", type=int, default=20, metavar="N", help="windows at most (20)")
    sweep.add_argument("--cc", help="algorithm (default: the scenario's first)")
    sweep.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of each window (1)")
    sweep.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a scenario key"
    )
    sweep.add_argument("--kernel", metavar="RELEASE", help="lab kernel")
    sweep.add_argument("--out", type=Path, metavar="DIR", help="results (results/advise-SCENARIO)")
    sub.set_defaults(handler=_advise)


def _advise(args: argparse.Namespace) -> int:
    if (args.recording is None) == (args.sweep is None):
        raise CcscopeError("give either a RECORDING or --sweep SCENARIO")
    return _sweep(args) if args.sweep else _recorded(args)


def _recorded(args: argparse.Namespace) -> int:
    from ccscope.advise.path import measure
    from ccscope.advise.report import from_recording, recording_text
    from ccscope.explain import MOST_FLOWS, explain, largest
    from ccscope.recording import Recording

    recording = Recording.open(args.recording)
    labels, left = ([args.flow], 0) if args.flow else largest(recording, MOST_FLOWS)
    if not labels:
        raise CcscopeError(f"{args.recording} holds no flow")
    values, texts, failed = [], [], []
    for label in labels:
        try:
            evidence = explain(recording, label).evidence
            path = measure(recording, label, evidence)
        except CcscopeError as error:
            failed.append(str(error))
            continue
        flow = recording.flows.get(label, {})
        values.append(from_recording(label, path, flow))
        texts.append(recording_text(label, path, flow))
    if not values:
        raise CcscopeError("; ".join(failed))
    print(json.dumps(values, indent=1) if args.json else "\n\n".join(texts))
    if left:
        print(
            f"ccscope: {left} smaller flows are left out; --flow LABEL names one", file=sys.stderr
        )
    for problem in [*recording.problems, *failed]:
        print(f"ccscope: {problem}", file=sys.stderr)
    return EXIT_OK


def _sweep(args: argparse.Namespace) -> int:
    from ccscope.advise.lab import Lab
    from ccscope.advise.report import from_sweep, sweep_text, trial_line
    from ccscope.advise.search import Trial, find
    from ccscope.advise.settings import settings

    _check(args)
    out = args.out or Path("results") / f"advise-{Path(args.sweep).stem}"
    lab = Lab(
        args.sweep,
        out,
        key=args.key,
        cc=args.cc,
        seeds=args.seeds,
        sets=args.set,
        kernel=args.kernel,
        flow=args.flow or "f1",
    )
    print(trial_line(None), file=sys.stderr)

    def run(asked: int) -> Trial:
        trial = lab.run(asked)
        print(trial_line(trial), file=sys.stderr, flush=True)
        return trial

    found = find(
        run,
        args.low,
        args.high,
        hint=lab.hint,
        tolerance=args.tolerance / 100,
        max_runs=args.runs,
        least_step=lambda: lab.segment_bytes / 2,
    )
    ways = settings(found.best.window_bytes, lab.segment_bytes, "SENDER", "RECEIVER")
    if args.json:
        print(json.dumps(from_sweep(found, ways), indent=1))
    else:
        print(sweep_text(found, args.key, args.tolerance / 100, ways))
        print(f"\nruns: {out}/cells")
    return EXIT_OK


def _check(args: argparse.Namespace) -> None:
    if not 2048 <= args.low < args.high:
        raise CcscopeError(
            f"--low {args.low} --high {args.high}: 2048 at least, and low below high"
        )
    if not 0 < args.tolerance < 50:
        raise CcscopeError(f"--tolerance {args.tolerance:g}: more than 0 and less than 50 percent")
    if args.runs < 3 or args.seeds < 1:
        raise CcscopeError("--runs: 3 at least; --seeds: 1 at least")
