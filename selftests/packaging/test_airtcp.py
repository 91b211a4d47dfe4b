"""The command airtcp where it needs no kernel: what it reads, and what it would say to `ip`."""

from __future__ import annotations

import subprocess

import pytest
from airlab import paths
from airtcp_tools import MODULES, algorithms_of, module_of
from airtcp_tools.holders import Holders, Namespace, Socket, parse_sockets
from airtcp_tools.routes import (
    PROTOCOL,
    Original,
    best_original,
    copy_words,
    parse_own,
    parse_prefix,
    parse_shown,
)
from airtcp_tools.system import ToolError

AIRTCP = paths.REPO / "tools" / "airtcp" / "airtcp"

ROUTES = [
    "default via 192.0.2.1 dev wlan0 proto 16 src 192.0.2.9 metric 600 ",
    "default via 198.51.100.1 dev eth0 proto 16 metric 100 mtu lock 1400 ",
    f"default via 198.51.100.1 dev eth0 proto {PROTOCOL} metric 99 congctl j ",
    "192.0.2.0/24 dev wlan0 proto 2 scope 253 src 192.0.2.9 metric 600 ",
    "7 203.0.113.0/24 proto 4 ",
]


@pytest.mark.parametrize(
    ("line", "prefix", "metric", "words"),
    [
        (ROUTES[0], "default", 600, "via 192.0.2.1 dev wlan0 src 192.0.2.9"),
        (ROUTES[1], "default", 100, "via 198.51.100.1 dev eth0 mtu lock 1400"),
        (
            "10.0.0.0/8 via 192.0.2.1 dev eth0 proto 4 metric 5 linkdown congctl lock bbr ",
            "10.0.0.0/8", 5, "via 192.0.2.1 dev eth0",
        ),
        (
            "2001:db8:9::/48 via fe80::1 dev eth0 proto 9 metric 1024 expires 1700sec mtu 1400 "
            "hoplimit 64 pref medium",
            "2001:db8:9::/48", 1024, "via fe80::1 dev eth0 mtu 1400 hoplimit 64 pref medium",
        ),
        ("198.51.100.0/25 nhid 7 via 192.0.2.3 dev d0 proto 3 ", "198.51.100.0/25", 0, "nhid 7"),
        (
            "10.1.0.0/16 proto 3 \\\tnexthop via 192.0.2.4 dev d0 weight 2 "
            "\\\tnexthop via 192.0.2.5 dev d0 weight 1 dead linkdown ",
            "10.1.0.0/16", 0,
            "nexthop via 192.0.2.4 dev d0 weight 2 nexthop via 192.0.2.5 dev d0 weight 1",
        ),
        (
            "10.2.0.0/16 nhid 9 proto 3 \\\tnexthop via 192.0.2.4 dev d0 weight 2 "
            "\\\tnexthop via inet6 fe80::5 dev d0 weight 1 ",
            "10.2.0.0/16", 0, "nhid 9",
        ),
    ],
)  # fmt: skip
def test_a_route_is_read_without_what_is_its_own(
    line: str, prefix: str, metric: int, words: str
) -> None:
    assert parse_shown(line) == Original(prefix, metric, tuple(words.split()))


def test_no_way_is_not_copied() -> None:
    assert parse_shown(ROUTES[4]) is None
    assert parse_shown("") is None


@pytest.mark.parametrize(
    ("prefix", "device"),
    [("0.0.0.0/0", "eth0"), ("198.18.0.0/15", "eth0"), ("192.0.2.64/26", "wlan0")],
)
def test_the_nearest_and_preferred_route_is_copied_and_never_our_own(
    prefix: str, device: str
) -> None:
    found = best_original(ROUTES, parse_prefix(prefix, None))
    assert found is not None
    assert found.words[found.words.index("dev") + 1] == device
    assert found.metric in {100, 600}


def test_nothing_to_copy() -> None:
    assert best_original(ROUTES[3:], parse_prefix("203.0.113.0/24", None)) is None


@pytest.mark.parametrize(
    ("original", "prefix", "lock", "command"),
    [
        (
            Original("default", 0, ("via", "192.0.2.1", "dev", "eth0")), "default", False,
            "ip -4 route prepend 0.0.0.0/0 via 192.0.2.1 dev eth0 proto 206 table main congctl j",
        ),
        (
            Original("default", 100, ("dev", "eth0")), "default", True,
            "ip -4 route prepend 0.0.0.0/0 dev eth0 proto 206 table main metric 99 congctl lock j",
        ),
        (
            Original("default", 100, ("dev", "eth0")), "10.0.0.0/8", False,
            "ip -4 route prepend 10.0.0.0/8 dev eth0 proto 206 table main metric 100 congctl j",
        ),
        (
            Original("10.0.0.0/8", 0, ("mtu", "1400", "nexthop", "via", "192.0.2.4", "dev", "d0")),
            "10.1.0.0/16", False,
            "ip -4 route prepend 10.1.0.0/16 mtu 1400 proto 206 table main congctl j "
            "nexthop via 192.0.2.4 dev d0",
        ),
        (
            Original("2001:db8::/32", 1024, ("dev", "eth0")), "2001:db8::/32", False,
            "ip -6 route add 2001:db8::/32 dev eth0 proto 206 table main metric 1023 congctl j",
        ),
    ],
)  # fmt: skip
def test_the_copy_wins_over_its_original(
    original: Original, prefix: str, lock: bool, command: str
) -> None:
    words = copy_words(original, parse_prefix(prefix, None), "j", lock=lock, table="main")
    assert " ".join(words) == command


def test_nothing_is_better_than_the_best_metric() -> None:
    original = Original("2001:db8::/32", 1, ("dev", "eth0"))
    with pytest.raises(ToolError, match="higher metric first"):
        copy_words(original, parse_prefix("2001:db8::/32", 6), "j", lock=False, table="main")


@pytest.mark.parametrize(
    ("version", "line", "row"),
    [
        (
            4, "default via 192.0.2.2 dev d0 mtu 1400 congctl lock j ",
            ("0.0.0.0/0", "192.0.2.2", "d0", 0, "main", "j", True),
        ),
        (
            6, "2001:db8:1::/48 via 2001:db8::2 dev d0 table 77 metric 512 congctl j pref medium",
            ("2001:db8:1::/48", "2001:db8::2", "d0", 512, "77", "j", False),
        ),
        (
            4, "198.51.101.0/24 congctl j \\\tnexthop via inet6 fe80::4 dev d0 weight 2 ",
            ("198.51.101.0/24", "fe80::4", "d0", 0, "main", "j", False),
        ),
        (
            4, "198.51.100.7 dev d0 scope 253 metric 3 congctl j ",
            ("198.51.100.7/32", None, "d0", 3, "main", "j", False),
        ),
    ],
)  # fmt: skip
def test_our_routes_are_read(version: int, line: str, row: tuple[object, ...]) -> None:
    assert tuple(parse_own(version, line).values()) == (version, *row)


@pytest.mark.parametrize(
    ("text", "family", "message"),
    [
        ("198.51.100.7/24", None, "host bits"),
        ("2001:db8::/32", 4, "leave out -4"),
        ("example.org", None, "PREFIX 'example.org'"),
    ],
)
def test_a_bad_prefix_is_named(text: str, family: int | None, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        parse_prefix(text, family)


SS = """\
LISTEN 0 128 127.0.0.1:5555 0.0.0.0:* users:(("odd name) j",pid=7,fd=3)) j cwnd:10
ESTAB 0 0 127.0.0.1:5555 127.0.0.1:40000 users:(("a",pid=7,fd=4),("b",pid=8,fd=4)) ts sack j rto:9
FIN-WAIT-1 0 9 [::1]:5555 [::1]:40001 ts sack ecn j wscale:7,7 rto:204
ESTAB 0 0 127.0.0.1:22 127.0.0.1:40002 users:(("j",pid=9,fd=4)) ts sack cubic wscale:7,7
TIME-WAIT 0 0 127.0.0.1:22 127.0.0.1:40003
"""


def test_sockets_are_told_by_their_algorithm_and_not_by_names() -> None:
    found = parse_sockets(SS, ("j",), "this namespace")
    assert [s.state for s in found] == ["LISTEN", "ESTAB", "FIN-WAIT-1"]
    assert found[0].users == ("odd name) j (pid 7)",)
    assert found[1].users == ("a (pid 7)", "b (pid 8)")
    assert found[2] == Socket("this namespace", "FIN-WAIT-1", "[::1]:5555", "[::1]:40001", ())
    assert [s.local for s in parse_sockets(SS, ("cubic",), "x")] == ["127.0.0.1:22"]


@pytest.mark.parametrize(
    ("name", "module", "all_names"),
    [
        ("j", "tcp_j", ("j",)),
        ("imtcp_bg", "imtcp", ("imtcp", "imtcp_bg")),
        ("cherry_plus", "tcp_cherry", ("cherry", "cherry_plus")),
        ("bbr", "tcp_bbr", ("bbr",)),
    ],
)
def test_a_module_is_held_through_each_of_its_names(
    name: str, module: str, all_names: tuple[str, ...]
) -> None:
    assert module_of(name) == module
    assert algorithms_of(module) == all_names
    lines = "".join(f"ESTAB 0 0 a:{i} b:1 {cc} rto:204\n" for i, cc in enumerate(all_names))
    assert len(parse_sockets(lines + "ESTAB 0 0 a:9 b:1 reno rto:204", all_names, "x")) == len(
        all_names
    )


def test_the_modules_are_those_of_the_tree() -> None:
    made = {
        line.split()[-1] for line in (paths.REPO / "modules" / "Kbuild").open() if "obj-" in line
    }
    assert {module.strip("/") for module in made} == set(MODULES.values())


def test_what_is_not_seen_is_counted() -> None:
    sockets = tuple(parse_sockets(SS, ("j",), "x"))
    found = Holders(
        "j", "tcp_j", loaded=True, references=6, sockets=sockets, defaults=(Namespace("a", "b"),)
    )
    assert found.unseen == 2
    assert found.as_json()["unseen"] == 2


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(AIRTCP), *words], capture_output=True, text=True, check=False)


def test_help_names_every_command() -> None:
    said = command("--help")
    assert said.returncode == 0
    assert all(word in said.stdout for word in ("status", "route", "unload"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nosuch",), "nosuch"),
        (("route",), "required: VERB"),
        (("route", "check", "nowhere"), "ADDRESS 'nowhere'"),
        (("route", "check", "127.0.0.1", "--port", "0"), "between 1 and 65535"),
        (("unload", "j", "--wait", "-1"), "between 0 and 86400"),
    ],
)
def test_wrong_use_is_said_and_is_an_error(words: tuple[str, ...], message: str) -> None:
    said = command(*words)
    assert said.returncode == 2
    assert message in said.stderr
