"""The command line of ``airtcp``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airtcp_tools import algorithms_of, holders, module_of, routes, version
from airtcp_tools.status import as_text, status
from airtcp_tools.system import ToolError, ensure_algorithm, run

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_HELD = 1
_TROUBLE = 2


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit status: 0 done, 1 no (held, other), 2 trouble."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.root and os.geteuid():
            raise ToolError("this needs root; use sudo")
        code: int = arguments.do(arguments)
        return code
    except ToolError as error:
        print(f"airtcp: {error}", file=sys.stderr)
        return _TROUBLE
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="airtcp",
        description="airtcp's congestion control on this host: state, routes, unloading.",
        epilog="airtcp(8) says more.",
    )
    parser.add_argument("--version", action="version", version=f"airtcp {version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_status(commands)
    _add_route(commands)
    _add_unload(commands)
    return parser


def _add_status(commands: Commands) -> None:
    one = commands.add_parser("status", help="modules, default, allowed list, Secure Boot")
    one.add_argument("--json", action="store_true", help="for programs")
    one.set_defaults(do=_status, root=False)


def _add_route(commands: Commands) -> None:
    route = commands.add_parser("route", help="an algorithm for the connections to a prefix")
    verbs = route.add_subparsers(required=True, metavar="VERB")

    one = verbs.add_parser("set", help="copy the route to PREFIX, with an algorithm")
    _add_prefix(one)
    one.add_argument("algorithm", metavar="NAME", help="for example j")
    one.add_argument("--lock", action="store_true", help="sockets cannot choose another one")
    one.set_defaults(do=_route_set, root=True)

    one = verbs.add_parser("del", help="take airtcp's route to PREFIX away")
    _add_prefix(one)
    one.set_defaults(do=_route_del, root=True)

    one = verbs.add_parser("list", help="airtcp's routes")
    one.add_argument("--json", action="store_true", help="for programs")
    one.set_defaults(do=_route_list, root=False)

    one = verbs.add_parser("flush", help="take all of airtcp's routes away, and no other")
    one.set_defaults(do=_route_flush, root=True)

    one = verbs.add_parser("check", help="the algorithm of a new connection; sends a SYN")
    one.add_argument("address", metavar="ADDRESS")
    one.add_argument("--port", type=_port, default=9, help="default: 9 (discard)")
    one.add_argument("--expect", metavar="NAME", help="exit with 1 if it is another one")
    one.set_defaults(do=_route_check, root=False)


def _add_prefix(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prefix", metavar="PREFIX", help="198.51.100.0/24, 2001:db8::/32, default")
    family = parser.add_mutually_exclusive_group()
    family.add_argument("-4", dest="family", action="store_const", const=4)
    family.add_argument("-6", dest="family", action="store_const", const=6)
    parser.add_argument("--table", default="main", help="routing table (default: main)")


def _add_unload(commands: Commands) -> None:
    one = commands.add_parser("unload", help="unload an algorithm, or say what holds it")
    one.add_argument("algorithm", metavar="NAME", help="for example j")
    one.add_argument("--dry-run", action="store_true", help="only say what holds it")
    one.add_argument(
        "--reset-defaults", metavar="OTHER", help="give namespaces that have NAME as default OTHER"
    )
    one.add_argument("--flush-routes", action="store_true", help="take airtcp's routes away first")
    one.add_argument(
        "--wait", type=_seconds, default=0, metavar="SECONDS", help="for sockets to close"
    )
    one.add_argument("--json", action="store_true", help="for programs")
    one.set_defaults(do=_unload, root=True)


def _port(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError("a port is between 1 and 65535")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 86400:
        raise argparse.ArgumentTypeError("between 0 and 86400 seconds")
    return number


def _status(arguments: argparse.Namespace) -> int:
    found = status()
    print(json.dumps(found, indent=1) if arguments.json else as_text(found))
    return 0


def _route_set(arguments: argparse.Namespace) -> int:
    network = routes.parse_prefix(arguments.prefix, arguments.family)
    command = routes.set_route(
        network, arguments.algorithm, lock=arguments.lock, table=arguments.table
    )
    print(" ".join(command))
    return 0


def _route_del(arguments: argparse.Namespace) -> int:
    routes.delete_route(routes.parse_prefix(arguments.prefix, arguments.family), arguments.table)
    return 0


def _route_list(arguments: argparse.Namespace) -> int:
    rows = routes.list_routes()
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        way = " ".join(f"{key} {row[key]}" for key in ("gateway", "device") if row[key])
        lock = " lock" if row["lock"] else ""
        print(f"{row['prefix']} {row['algorithm']}{lock} {way} metric {row['metric']}")
    return 0


def _route_flush(_: argparse.Namespace) -> int:
    print(f"{routes.flush_routes()} routes taken away")
    return 0


def _route_check(arguments: argparse.Namespace) -> int:
    found = routes.check(arguments.address, arguments.port)
    print(f"{arguments.address}: {found.algorithm}, according to {found.how}")
    return _HELD if arguments.expect not in (None, found.algorithm) else 0


def _unload(arguments: argparse.Namespace) -> int:
    name = arguments.algorithm
    module = module_of(name)
    other = arguments.reset_defaults
    if other in algorithms_of(module):
        raise ToolError(f"--reset-defaults {other}: name an algorithm that is not in {module}")
    if not arguments.dry_run:
        _let_go(arguments, name)
    found = holders.find(name)
    unloaded = False
    if not arguments.dry_run:
        found = _wait(found, arguments.wait)
        unloaded = found.loaded and not found.references
        if unloaded:
            run(["modprobe", "-r", module], what=f"unloading {module}")
    if arguments.json:
        print(json.dumps({**found.as_json(), "unloaded": unloaded}, indent=1))
    else:
        print(_unload_text(found, unloaded=unloaded))
    return _HELD if found.references else 0


def _let_go(arguments: argparse.Namespace, name: str) -> None:
    """Undo what is safe to undo: defaults and our own routes, if asked to."""
    if arguments.flush_routes:
        routes.flush_routes()
    if arguments.reset_defaults:
        ensure_algorithm(arguments.reset_defaults)
        for space in holders.find(name).defaults:
            holders.reset_default(space, arguments.reset_defaults)


def _wait(found: holders.Holders, seconds: float) -> holders.Holders:
    """Look again each second until nothing holds the module or the time is over."""
    end = time.monotonic() + seconds
    while found.references and time.monotonic() < end:
        time.sleep(min(1.0, max(0.0, end - time.monotonic())))
        found = holders.find(found.algorithm)
    return found


def _unload_text(found: holders.Holders, *, unloaded: bool) -> str:
    if not found.loaded:
        return f"{found.module} is not loaded"
    lines = []
    for socket in found.sockets:
        users = ", ".join(socket.users) or "no process (still closing)"
        kind = "listener" if socket.state == "LISTEN" else f"socket {socket.state}"
        lines.append(f"{kind} {socket.local} - {socket.peer}, {users}, in {socket.namespace}")
    lines += [f"default algorithm of {space.label}" for space in found.defaults]
    lines += [f"module {module}" for module in found.modules]
    if found.unseen:
        lines.append(
            f"{found.unseen} more that cannot be seen: sockets that are neither connected nor "
            "listening, or namespaces without process and name"
        )
    if lines:
        lines.insert(0, f"{found.module} is held {found.references} times:")
    elif unloaded:
        lines.append(f"{found.module} is unloaded")
    else:
        lines.append(f"nothing holds {found.module}")
    names = " or ".join(algorithms_of(found.module))
    lines += [f"note: a route names {names}: {route}" for route in found.routes]
    return "\n".join(lines)
