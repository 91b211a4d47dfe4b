"""``ccscope serve``: numbers of all flows for the operator's monitoring."""

from __future__ import annotations

import argparse
import ipaddress

from ccscope.commands import options
from ccscope.commands.live import add_source, feed
from ccscope.errors import CcscopeError

_PER_FLOW_MOST = 500


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    sub = commands.add_parser(
        "serve",
        help="metrics of all flows for Prometheus",
        description="Serves histograms of srtt, retransmissions, events by cause and seconds per "
        "CA state, by congestion control, until Ctrl-C.",
    )
    options.add_selection(sub)
    add_source(sub)
    sub.add_argument("--prometheus", action="store_true", required=True, help="the text format")
    sub.add_argument(
        "--listen", default="127.0.0.1:9435", metavar="ADDRESS:PORT", help="default %(default)s"
    )
    sub.add_argument(
        "--allow-remote", action="store_true", help="let --listen be more than this host"
    )
    sub.add_argument(
        *("--per-flow",), type=int, default=0, metavar="N",
        help=f"also numbers of the N busiest flows, as labels (at most {_PER_FLOW_MOST})",
    )  # fmt: skip
    sub.set_defaults(handler=_serve)


def _serve(args: argparse.Namespace) -> int:
    address, port = _listen(args.listen, args.allow_remote)
    if not 0 <= args.per_flow <= _PER_FLOW_MOST:
        raise CcscopeError(
            f"--per-flow {args.per_flow}: 0 to {_PER_FLOW_MOST}; each flow is a label that "
            "Prometheus keeps"
        )
    source = feed(args)
    from ccscope.live import metrics

    return metrics.run(source, address=address, port=port, per_flow=args.per_flow)


def _listen(text: str, remote: bool) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        number = int(port)
        if not 0 <= number < 65536:
            raise ValueError(port)
    except ValueError as error:
        raise CcscopeError(
            f"--listen {text}: an address and a port, like 127.0.0.1:9435 or [::1]:9435"
        ) from error
    if not address.is_loopback and not remote:
        raise CcscopeError(
            f"--listen {text}: other hosts could read it; add --allow-remote if they shall"
        )
    return str(address), number
