"""Routes with an algorithm of their own.

A route with ``congctl NAME`` gives NAME to every connection that is opened through it.  Ours are
copies of routes that exist, preferred to them, and marked by a protocol number, so that they can
be told from all others and be taken away without a trace.
"""

from __future__ import annotations

import errno
import ipaddress
import itertools
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airtcp_tools.system import ToolError, ensure_algorithm, run

PROTOCOL = 206
"""Marks our routes (``proto 206``); iproute2's lists give the number to nobody."""

# What `ip route show` prints and a copy must not have: with a value, and without.
_DROPPED_PAIRS = {"proto", "metric", "expires", "error", "table", "users", "age"}
_DROPPED_FLAGS = {
    "dead", "linkdown", "pervasive", "offload", "offload_failed", "trap", "rt_offload", "rt_trap",
    "rt_offload_failed", "notify", "unresolved", "cache",
}  # fmt: skip

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Original:
    """A route to copy: its prefix, metric, and the words that say where it leads."""

    prefix: str
    metric: int
    words: tuple[str, ...]


def parse_prefix(text: str, family: int | None) -> Network:
    """A prefix as people write it; ``default`` is IPv4's unless the family says 6.

    Raises:
        ToolError: it is none, or of the other family.
    """
    if text == "default":
        text = "::/0" if family == 6 else "0.0.0.0/0"
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise ToolError(
            f"PREFIX {text!r}: {error}; write for example 198.51.100.0/24 or 2001:db8::/32"
        ) from error
    if family and network.version != family:
        raise ToolError(f"PREFIX {text}: not an IPv{family} prefix; leave out -{family}")
    return network


def parse_shown(line: str) -> Original | None:
    """One line of ``ip -N -o route show``; None for what is not a way to somewhere.

    Raises:
        ToolError: the line is not understood.
    """
    words = line.replace("\\", " ").split()
    # A number in front is a type other than unicast: unreachable, blackhole...
    if not words or words[0].isdigit():
        return None
    prefix, rest = words[0], words[1:]
    metric, kept = 0, []
    by_object = "nhid" in rest
    position = 0
    while position < len(rest):
        word = rest[position]
        value = rest[position + 1] if position + 1 < len(rest) else ""
        if word in _DROPPED_FLAGS:
            position += 1
        elif word == "congctl":
            position += 3 if value == "lock" else 2
        elif word in _DROPPED_PAIRS or (by_object and word in {"dev", "weight"}):
            metric = int(value) if word == "metric" else metric
            position += 2
        elif by_object and word == "via":
            # `via inet6 ADDRESS` has three words.
            position += 3 if value in {"inet", "inet6"} else 2
        elif by_object and word == "nexthop":
            position += 1
        else:
            kept.append(word)
            position += 1
    return Original(prefix, metric, tuple(kept))


def best_original(lines: Sequence[str], network: Network) -> Original | None:
    """The route to copy: the longest prefix that holds ``network``, then the lowest metric."""
    found = []
    for line in lines:
        route = None if _is_ours(line) else parse_shown(line)
        if route is None:
            continue
        holder = parse_prefix(route.prefix, network.version)
        if holder.prefixlen <= network.prefixlen and network.subnet_of(holder):  # type: ignore[arg-type]
            found.append((-holder.prefixlen, route.metric, route))
    return min(found, key=lambda item: item[:2])[2] if found else None


def copy_words(
    original: Original, network: Network, algorithm: str, *, lock: bool, table: str
) -> list[str]:
    """What to tell ``ip`` to make our copy, which wins over the original.

    Raises:
        ToolError: the original has the best metric there is.
    """
    same = parse_prefix(original.prefix, network.version) == network
    metric = original.metric - 1 if same and original.metric else original.metric
    if same and network.version == 6 and metric < 1:
        raise ToolError(
            f"{network}: its route has metric {original.metric}, and none can be better; "
            "give that route a higher metric first (`ip -6 route`)"
        )
    # Next hops are the last that `ip` reads.
    hops_at = original.words.index("nexthop") if "nexthop" in original.words else None
    way, hops = original.words[:hops_at], original.words[hops_at:] if hops_at is not None else ()
    return [
        # Where metrics are equal, which only IPv4 allows, the first in the list wins.
        *("ip", f"-{network.version}", "route", "prepend" if network.version == 4 else "add"),
        *(str(network), *way, "proto", str(PROTOCOL), "table", table),
        *(("metric", str(metric)) if metric else ()),
        *("congctl", *(("lock",) if lock else ()), algorithm),
        *hops,
    ]


def _show(version: int, *words: str) -> list[str]:
    argv = ["ip", "-N", "-o", f"-{version}", "route", "show", *words]
    return [line for line in run(argv, what="reading the routes").splitlines() if line.strip()]


def set_route(
    network: Network, algorithm: str, *, lock: bool = False, table: str = "main"
) -> list[str]:
    """Give new connections to a prefix an algorithm; returns the command that did it.

    A route of ours for the same prefix is replaced.

    Raises:
        ToolError: no module, no route to copy, or the kernel refused; nothing has changed then.
    """
    # The kernel refuses a route with an algorithm that it does not know (EINVAL).
    ensure_algorithm(algorithm)
    original = best_original(_show(network.version, "table", table), network)
    if original is None:
        raise ToolError(
            f"{network}: table {table} has no route to it that could be copied; "
            f"see `ip -{network.version} route show table {table}`"
        )
    command = copy_words(original, network, algorithm, lock=lock, table=table)
    old = _own_lines(network, table)
    for _ in old:
        _delete(network, table)
    try:
        run(command, what=f"adding the route to {network}")
    except ToolError:
        for line in old:
            verb = "prepend" if network.version == 4 else "add"
            words = [f"-{network.version}", "route", verb, *line.split(), "table", table]
            run(["ip", *words], what="putting the former route back")
        raise
    return command


def _is_ours(line: str) -> bool:
    return f" proto {PROTOCOL} " in f"{line} "


def _own_lines(network: Network, table: str) -> list[str]:
    shown = _show(network.version, "exact", str(network), "table", table)
    return [line for line in shown if _is_ours(line)]


def _delete(network: Network, table: str) -> None:
    run(
        ["ip", f"-{network.version}", "route", "del", str(network), "proto", str(PROTOCOL),
         "table", table],
        what=f"deleting our route to {network}",
    )  # fmt: skip


def delete_route(network: Network, table: str = "main") -> None:
    """Take our route to a prefix away.

    Raises:
        ToolError: there is none.
    """
    if not _own_lines(network, table):
        raise ToolError(f"{network}: table {table} has no route of airtcp; see `airtcp route list`")
    _delete(network, table)


def list_routes() -> list[dict[str, Any]]:
    """All our routes: family, prefix, gateway, device, metric, table, algorithm, lock.

    ``ip`` says nothing of algorithms in its JSON, hence the text.
    """
    return [
        parse_own(version, line)
        for version in (4, 6)
        for line in _show(version, "table", "all", "proto", str(PROTOCOL))
    ]


def parse_own(version: int, line: str) -> dict[str, Any]:
    """One of our routes from a line of ``ip -N -o route show table all proto 206``."""
    words = line.replace("\\", " ").split()
    after = dict(itertools.pairwise(words))
    algorithm = after.get("congctl")
    lock = algorithm == "lock"
    if lock:
        algorithm = words[words.index("congctl") + 2]
    gateway = after.get("via")
    if gateway in {"inet", "inet6"}:
        gateway = words[words.index("via") + 2]
    return {
        "family": version,
        "prefix": str(parse_prefix(words[0], version)),
        "gateway": gateway,
        "device": after.get("dev"),
        "metric": int(after.get("metric", "0")),
        "table": after.get("table", "main"),
        "algorithm": algorithm,
        "lock": lock,
    }


def flush_routes() -> int:
    """Take all our routes away, in all tables; returns how many there were."""
    routes = list_routes()
    for route in routes:
        _delete(ipaddress.ip_network(route["prefix"]), route["table"])
    return len(routes)


@dataclass(frozen=True)
class Checked:
    """What a connection would get, and how that was found out."""

    algorithm: str
    how: str


def check(address: str, port: int) -> Checked:
    """The algorithm that a connection to an address gets, asked from a real socket.

    The kernel decides when it sends the SYN, so nobody needs to answer (loopback has refused it
    by then); where not even that can be sent, the route's own word is returned.

    Raises:
        ToolError: no such address, or no route to it.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError as error:
        raise ToolError(f"ADDRESS {address!r}: {error}") from error
    family = socket.AF_INET6 if ip.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        code = probe.connect_ex((address, port))
        if code in (0, errno.EINPROGRESS, errno.ECONNREFUSED):
            name = probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            return Checked(name.rstrip(b"\0").decode(), f"a socket that connects to port {port}")
    words = run(
        ["ip", "-o", f"-{ip.version}", "route", "get", address],
        what=f"looking up the route to {address}",
    ).split()
    if "congctl" not in words:
        raise ToolError(f"{address}: no connection can be opened, and its route names no algorithm")
    name_at = words.index("congctl") + 1
    name_at += words[name_at] == "lock"
    return Checked(words[name_at], "the route (no connection could be opened)")
