"""The ``airlab`` command."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ccscope.completion import answer
from ccscope.errors import CcscopeError

from airlab import __version__, completion, paths
from airlab.model import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE

if TYPE_CHECKING:
    from airlab.campaign import Options
    from airlab.engines.choose import Choice

_DESCRIPTION = """\
TCP experiments on real Linux kernels in virtual time: the same scenario, seed,
kernel and QEMU give the same packets, to the last bit."""

_EPILOG = """\
examples:
  airlab run demo                          TCP-J beside its rivals on a lossy path
  airlab run tcp-j-fig9 --cc j,reno --seeds 2 --set links.air.ber=1e-6,4e-6
  airlab grid testbed/grids/acceptance.toml --jobs 2   many scenarios and points, resumable
  airlab show demo                         the topology and the commands to build it by hand
  airlab verify tcp-j-fig9-table2          a published figure again, judged claim by claim
  airlab verify results/demo               run a finished cell again and compare the bits
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status.

    0: all well.  1: something measured or judged failed.  2: wrong use or broken
    set-up.  130: interrupted.
    """
    words, extra = _split(sys.argv[1:] if argv is None else list(argv))
    parser = _parser()
    answer(parser)
    args = parser.parse_args(words)
    if extra and args.handler is not _grid:
        parser.error(f"only `airlab grid` hands words on after --: {' '.join(extra)}")
    args.extra = extra
    # Shells start background jobs with SIGINT ignored, and then Ctrl-C's twin, a plain kill -INT or
    # -TERM, would leave the campaign running.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    handler: Callable[[argparse.Namespace], int] = args.handler
    try:
        return handler(args)
    # AirlabError is one of them.
    except CcscopeError as error:
        print(f"airlab: error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("airlab: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_OK


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The words before and after ``--``."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "airlab", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=raw
    )
    parser.add_argument("--version", action="version", version=f"airlab {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_grid(commands)
    _add_list(commands)
    _add_show(commands)
    _add_verify(commands)
    _add_report(commands)
    _add_shell(commands)
    _add_doctor(commands)
    _add_host_clean(commands)
    _add_kernels(commands)
    _add_cell(commands)
    _add_setup(commands)
    return parser


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser("run", help="run a scenario: every algorithm, point and seed")
    completion.scenario(
        sub.add_argument("scenario", metavar="SCENARIO", help="a name of `airlab list`, or a file")
    )
    _add_choice(sub)
    _add_engine(sub, "vm")
    _add_place(sub)
    sub.add_argument("--keep-pcap", action="store_true", help="keep each run's packet capture")
    sub.add_argument("--no-trace", action="store_true", help="run without kernel tracepoints")
    sub.add_argument("--no-page", action="store_true", help="make no plots and no HTML page")
    sub.set_defaults(handler=_run)


_GRID = """\
Runs a grid file (scenarios x algorithms x parameters x seeds) as a Snakemake workflow. A cell is
kept in a store under a name made from all that decides its bits; a finished one is never run
again, also not by another grid. The same command goes on after an interruption."""

_GRID_EPILOG = """\
examples:
  airlab grid testbed/grids/acceptance.toml --jobs 2
  airlab grid FILE --jobs 100 -- --executor slurm    words after -- are Snakemake's own
  airlab grid FILE --print-command                   what to type to run it with Snakemake alone
"""


def _add_grid(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser(
        "grid",
        help="run a grid file by Snakemake, here or on a cluster",
        description=_GRID,
        epilog=_GRID_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="airlab grid FILE [OPTION...] [-- SNAKEMAKE-OPTION...]",
    )
    sub.add_argument("file", type=Path, metavar="FILE", help="a grid file (TOML)")
    _add_place(sub)
    sub.add_argument("--engine", choices=("vm", "kvm"), help="where to run (the grid's, else vm)")
    sub.add_argument(
        "--store", type=Path, metavar="DIR", help="where cells are kept (store beside --out)"
    )
    sub.add_argument("--retry-failed", action="store_true", help="run cells again that failed")
    sub.add_argument("--no-page", action="store_true", help="make no plots and no HTML pages")
    sub.add_argument(
        "--print-command",
        action="store_true",
        help="prepare all and print the plain snakemake command instead of running it",
    )
    sub.set_defaults(handler=_grid)


def _add_cell(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser(
        "cell",
        help="run one cell of a grid (what Snakemake's jobs do)",
        description="Run one cell of a grid into its store, unless it is there.",
    )
    sub.add_argument("list", type=Path, metavar="LIST", help="cells.json of the grid's results")
    sub.add_argument("id", metavar="ID", help="the cell's name in the list")
    sub.set_defaults(handler=_cell)


def _add_choice(sub: argparse.ArgumentParser) -> None:
    completion.algorithms(
        sub.add_argument("--cc", metavar="A,B,...", help="algorithms (default: the scenario's)")
    )
    sub.add_argument("--seeds", type=_count, metavar="N", help="replicates per point")
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a scenario key by its dotted path; VALUE,VALUE,... sweeps it",
    )


def _add_engine(sub: argparse.ArgumentParser, default: Choice | None) -> None:
    sub.add_argument(
        "--engine",
        choices=("vm", "kvm", "host", "auto"),
        default=default,
        help="where to run: vm repeats to the bit (the default); kvm and host in real time",
    )


def _add_place(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--jobs", type=_count, default=2, metavar="N", help="guests at once (2)")
    completion.kernel(
        sub.add_argument(
            "--kernel", metavar="RELEASE", help="lab kernel: a release or a series (6.12)"
        )
    )
    sub.add_argument("--out", type=Path, metavar="DIR", help="result folder (results/NAME)")


def _add_list(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser("list", help="scenarios, figures and algorithms")
    sub.set_defaults(handler=_list)


def _add_show(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser("show", help="draw a scenario and print its ip/tc/sysctl commands")
    completion.scenario(sub.add_argument("scenario", metavar="SCENARIO"))
    _add_choice(sub)
    sub.set_defaults(handler=_show)


def _add_verify(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser(
        "verify", help="a figure: run it and judge its claims; a result: run a cell again"
    )
    completion.figure_or_result(sub.add_argument("what", metavar="FIGURE|RESULT"))
    sub.add_argument("--cell", metavar="NAME", help="which cell of a result (default: the first)")
    _add_choice(sub)
    # A result is run again where it was made; a figure by default in virtual time.
    _add_engine(sub, None)
    _add_place(sub)
    sub.set_defaults(handler=_verify)


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser("report", help="make table, plots and page of a result again")
    sub.add_argument("result", type=Path, metavar="RESULT")
    sub.set_defaults(handler=_report)


def _add_shell(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser("shell", help="an interactive guest, modules loaded, network set up")
    completion.scenario(sub.add_argument("scenario", nargs="?", default="demo", metavar="SCENARIO"))
    completion.kernel(sub.add_argument("--kernel", metavar="RELEASE"))
    _add_engine(sub, "vm")
    sub.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    sub.set_defaults(handler=_shell)


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser("doctor", help="what works here, and which engine is used")
    sub.set_defaults(handler=_doctor)


def _add_host_clean(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser("host-clean", help="undo what killed runs on engine host left behind")
    sub.set_defaults(handler=_host_clean)


def _add_kernels(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser("kernels", help="lab kernels that are here or can be had")
    completion.track(
        sub.add_argument(
            "--fetch",
            metavar="NAME",
            help="get the newest kernel of a series, or build a debug kernel",
        )
    )
    sub.set_defaults(handler=_kernels)


def _add_setup(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sub = commands.add_parser("setup", help="fetch and build what runs need (`make setup`)")
    sub.add_argument("--only", choices=("modules", "image"), help="just this step")
    sub.set_defaults(handler=_setup)


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def _options(args: argparse.Namespace) -> Options:
    from airlab.campaign import Options

    return Options(
        sets=args.set,
        cc=args.cc,
        seeds=args.seeds,
        jobs=args.jobs,
        kernel=args.kernel,
        engine=args.engine or "vm",
        out=args.out,
        trace=not getattr(args, "no_trace", False),
        keep_pcap=getattr(args, "keep_pcap", False),
        page=not getattr(args, "no_page", False),
    )


def _run(args: argparse.Namespace) -> int:
    from airlab.campaign import Request, run_campaign

    return run_campaign(Request.of_scenario(args.scenario, _options(args)))


def _grid(args: argparse.Namespace) -> int:
    from airlab import grid

    options = grid.GridOptions(
        jobs=args.jobs,
        kernel=args.kernel,
        engine=args.engine,
        out=args.out,
        store=args.store,
        retry_failed=args.retry_failed,
        page=not args.no_page,
        snakemake=args.extra,
    )
    if args.print_command:
        print(grid.command_of(args.file, options))
        return EXIT_OK
    return grid.run_grid(args.file, options)


def _cell(args: argparse.Namespace) -> int:
    from airlab import joblist

    return joblist.run_listed(args.list, args.id)


def _list(_args: argparse.Namespace) -> int:
    from airlab.campaign import listing

    print(listing())
    return EXIT_OK


def _show(args: argparse.Namespace) -> int:
    from airlab.campaign import show_scenario

    print(show_scenario(args.scenario, sets=args.set, cc=args.cc))
    return EXIT_OK


def _verify(args: argparse.Namespace) -> int:
    from airlab import verify

    folder = Path(args.what)
    if (folder / "manifest.json").is_file():
        return verify.repeat_cell(folder, cell=args.cell, jobs=args.jobs, engine=args.engine)
    return verify.judge_figure(args.what, _options(args))


def _report(args: argparse.Namespace) -> int:
    from airlab.campaign import finish_result

    return finish_result(args.result, page=True)


def _shell(args: argparse.Namespace) -> int:
    from airlab.campaign import interactive

    return interactive(args.scenario, sets=args.set, kernel=args.kernel, engine=args.engine)


def _doctor(_args: argparse.Namespace) -> int:
    from airlab import doctor

    findings = doctor.examine()
    print(doctor.report(findings))
    return EXIT_OK if doctor.healthy(findings) else EXIT_FAILED


def _host_clean(_args: argparse.Namespace) -> int:
    from airlab.engines.host import clean_host

    problems = clean_host()
    for problem in problems:
        print(f"airlab: not undone: {problem}", file=sys.stderr)
    if not problems:
        print("airlab: nothing is left of earlier runs on this host")
    return EXIT_FAILED if problems else EXIT_OK


def _kernels(args: argparse.Namespace) -> int:
    from airlab import debugkernels, kernels

    if args.fetch in kernels.DEBUG_NAMES:
        debugkernels.build(args.fetch)
    elif args.fetch:
        kernels.fetch(args.fetch)
    there = kernels.installed()
    for kernel in there:
        print(f"{kernel.release:<36} here, from {kernel.suite}")
    can = {name: f"from {suite}" for name, suite in kernels.TRACKS.items()}
    can |= dict.fromkeys(kernels.DEBUG_NAMES, "built from source")
    for name, origin in can.items():
        if not any(kernel.means(name) for kernel in there):
            print(f"{name:<36} can be had: airlab kernels --fetch {name} ({origin})")
    return EXIT_OK


def _setup(args: argparse.Namespace) -> int:
    from airlab import image, kernels, modules

    kernel = kernels.fetch(kernels.DEFAULT_TRACK)
    if args.only == "modules":
        print(f"modules are in {modules.build(kernel)}")
        return EXIT_OK
    made = image.ensure_image(kernel)
    print(f"airlab: ready (kernel {kernel.release}, image {made.digest}); cache {paths.cache()}")
    return EXIT_OK
