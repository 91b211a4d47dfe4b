"""Programs that only the guest tests need, built like the guest's own and shipped as test files.

They are no part of the image: its digest, hence every measurement, stays what it is.
"""

from __future__ import annotations

import fcntl
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from airlab import paths
from airlab.labroot import copy_tree_into, ensure_root, tree_digest

SOURCE = Path(__file__).resolve().parent / "programs"
NAMES = ("cctl", "ccstorm", "ccmany", "winclamp", "hostilepeer")
_FLAGS = ("-O2", "-s", "-static", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wshadow",
          "-Wno-missing-field-initializers")  # fmt: skip

INSTALL = (
    "".join(f"cp /lab/{name} /usr/bin/{name} && chmod 755 /usr/bin/{name}\n" for name in NAMES)
    + r"""
# A guest that says nothing counts as hung, and these scripts may be long on a slow kernel.
(
	n=0
	while [ $n -lt 1000 ] && sleep 5; do
		n=$((n + 1))
		echo "@T $((n * 5))" >/dev/console
	done
) &
"""
)
"""Shell lines with which a test's script makes the programs its own and stays in touch."""

_PAIR = r"""
ip netns add a
ip netns add b
ip link add v netns a type veth peer name v netns b
for n in a b; do
	[ $n = a ] && i=1 || i=2
	ip -n $n link set lo up
	ip -n $n addr add 10.0.0.$i/24 dev v
	ip -n $n addr add fd00::$i/64 dev v nodad
	ip -n $n link set v up
	tc -n $n qdisc add dev v root netem @NETEM@
done
in_a() { ip netns exec a "$@"; }
in_b() { ip netns exec b "$@"; }
until in_a ping -c 1 -W 1 10.0.0.2 && in_a ping -6 -c 1 -W 1 fd00::2; do :; done >/dev/null 2>&1
"""


def pair(netem: str) -> str:
    """Shell lines: hosts a and b, netem on both their ends; ready when pings have come back."""
    return _PAIR.replace("@NETEM@", netem)


TWO_HOSTS = (
    pair("delay 10ms loss 1% limit 1000")
    + r"""
# b has a second address for routes of its own.
ip -n b addr add 10.0.0.3/24 dev v
ip -n b addr add fd00::3/64 dev v nodad
"""
)


@dataclass(frozen=True)
class Algorithm:
    """A congestion control and the module it lives in.

    ``knobs`` are the module's parameters with good values, the default last; ``shown`` is what
    ``ss -ti`` prints of it.
    """

    cc: str
    module: str
    shown: str
    knobs: dict[str, str]


ALGORITHMS = [
    Algorithm(
        cc="j",
        module="tcp_j",
        shown="bbr:(bw:",
        knobs={
            "alpha_permille": "0 500 999 900",
            "min_interval_us": "0 1000000 1000",
            "clamp_decrease": "0 1",
        },
    ),
    Algorithm(
        cc="symbiosis",
        module="tcp_symbiosis",
        shown="bbr:(bw:",
        knobs={
            "gamma_permille": "0 999 900",
            "eps_permille": "1 10000 1950",
            "filter": "none ewma robust",
            "time_unit": "rtt_min sec",
            "max_age_ms": "3600000 0",
            "max_burst_gain": "0 1000 2",
        },
    ),
    Algorithm(
        cc="imtcp",
        module="imtcp",
        shown="bbr:(bw:",
        knobs={
            "packets": "4 16 10",
            "head": "0 8 4",
            "streams": "2 8 4",
            "trend": "either both net",
            "estimate": "fit middle balance",
            "store": "full none need",
            "range_min_permille": "1 1000 100",
            "overhead_bytes": "0 256 14",
            "capacity_kbps": "100000000 0",
            "capacity_every": "1 65535 16",
            "bg_gamma_permille": "1 1000 120",
            "bg_delta_permille": "1000 10000 1300",
        },
    ),
    Algorithm(
        cc="cherry",
        module="tcp_cherry",
        shown="bbr:(bw:",
        knobs={
            "maxcwnd": "4 8192 512",
            "max_supplements": "0 8193 513",
            "dscp": "0 63 1",
            "far_full_pct": "1 101 75",
            "cycle_max_s": "0 3600 60",
        },
    ),
]
"""What the tests of life and privilege are run for."""

LIFE_PARAMS = [
    ALGORITHMS[0],
    *(pytest.param(alg, marks=pytest.mark.long) for alg in ALGORITHMS[1:]),
]
"""The same for fixtures: make check runs them for the first, make check-long for all."""

BAD_VALUES = "x -1 4294967296 1e3"
"""Values that no parameter of a module takes."""

_NETWORK = r"""
in_b airflow recv --port 5001 --family 4 --count 100000 --json /out/json/recv4.json &
recv4=$!
in_b airflow recv --port 5002 --family 6 --count 100000 --json /out/json/recv6.json &
recv6=$!
until in_b ss -tln | grep -q :5001 && in_b ss -tln | grep -q :5002; do sleep 0.01; done
flow() { in_a airflow send --to 10.0.0.2 --port 5001 --cc @CC@ "$@"; }
loaded() { [ -d /sys/module/@MODULE@ ] && echo yes || echo no; }
unload() {
	# Sockets that were closed live on for a moment.
	n=0
	until rmmod @MODULE@ 2>/tmp/rmmod || [ $n = 600 ]; do n=$((n + 1)); sleep 0.1; done
	fact "$1" "$(loaded)" $n
}
"""


def network(alg: Algorithm) -> str:
    """Shell lines: hosts a and b with receivers at b, and what flows and unloads an algorithm."""
    return pair("delay 10ms loss 2% limit 200") + filled(_NETWORK, alg)


def filled(text: str, alg: Algorithm) -> str:
    """A script with the names of an algorithm and of its module put in."""
    return text.replace("@CC@", alg.cc).replace("@MODULE@", alg.module)


def counters(text: str) -> dict[str, int]:
    """Names and values by turns, as ``/proc/net/tcp_cherry`` has them."""
    words = text.split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


@cache
def programs() -> dict[str, bytes]:
    """The built programs by name, as files below ``/lab``; built again when a source changed."""
    target = paths.cache() / "guest-test-programs"
    stamp = target / "sources.sha256"
    digest = tree_digest(SOURCE, paths.GUEST_SOURCE)
    target.mkdir(parents=True, exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.is_file() or stamp.read_text() != digest:
            _build(target)
            stamp.write_text(digest)
    return {name: (target / name).read_bytes() for name in NAMES}


def _build(target: Path) -> None:
    root = ensure_root()
    shared = copy_tree_into(root, paths.GUEST_SOURCE, "guest-shared")
    folder = copy_tree_into(root, SOURCE, "guest-test-programs")
    include = f"/build/{shared.name}"
    for name in NAMES:
        there = f"/build/{folder.name}/{name}"
        root.chroot(
            ["gcc", *_FLAGS, f"-I{include}", "-o", there, f"{there}.c", f"{include}/util.c", "-lm"],
            what=f"building {name}",
        )
        shutil.copy(folder / name, target / name)
