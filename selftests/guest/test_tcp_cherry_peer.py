"""TCP-Cherry against a receiver that lies: what programs/hostilepeer.c can think of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from guestlab import Lab, ScriptView
from guestprograms import INSTALL, counters, programs

pytestmark = pytest.mark.guest

BYTES = 300_000
MAXCWND = 31
CCS = ("cherry", "cherry_plus")

# The peer's namespace has no address: its kernel answers nothing, not even who has 10.0.0.2.
NETWORK = r"""
ip netns add a
ip netns add b
ip link add v netns a type veth peer name v address 02:00:00:00:00:02 netns b
for n in a b; do
	ip -n $n link set v up
	tc -n $n qdisc add dev v root netem delay 40ms limit 2000
done
ip -n a addr add 10.0.0.1/24 dev v
ip -n a neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev v nud permanent
ip netns exec a sysctl -q -w net.ipv4.tcp_ecn=1 net.ipv4.tcp_wmem='4096 16384 8388608'
# run NAME CC GSO-SEGS VERIFY PEER-OPTIONS...
run() {
	case=$1 cc=$2 segs=$3 stream=$4
	shift 4
	echo "@T $case" >/dev/console
	ip -n a link set v gso_max_segs $segs
	modprobe tcp_cherry maxcwnd=@MAXCWND@
	ip netns exec b hostilepeer --dev v --bytes @BYTES@ --json /out/json/$case.json "$@" &
	peer=$!
	until [ $(ip netns exec b cat /proc/net/packet | wc -l) -gt 1 ]; do sleep 0.01; done
	try sent.$case ip netns exec a airflow send --to 10.0.0.2 --port 5001 --cc $cc \
		--bytes @BYTES@ --verify $stream --close fin --json /tmp/sent.json
	wait $peer
	fact peer.$case $?
	fact counters.$case $(ip netns exec a cat /proc/net/tcp_cherry)
	try gone.$case rmmod tcp_cherry
}
"""


@dataclass(frozen=True)
class Case:
    """How the peer behaves; whether supplements are possible, and whether all bytes must come."""

    name: str
    mode: str
    seed: int = 1
    options: str = ""
    gso: bool = False
    supplements: bool = True
    whole: bool = True


CASES = (
    Case("honest", "honest"),
    # The first window, 65535, ends in a packet of several segments.
    Case("honest_no_ts", "honest", options="--no-ts", gso=True),
    *(Case(f"fuzz{n}", "fuzz", n) for n in (1, 2, 3)),
    # Packets of several segments, which a SACK may cut anywhere.
    *(Case(f"fuzz{n}", "fuzz", n, gso=True) for n in (5, 6)),
    Case("ahead", "ahead", whole=False),
    Case("renege", "renege"),
    Case("renege_gso", "renege", gso=True),
    Case("zero", "zero"),
    Case("shrink", "shrink"),
    Case("small_mss", "fuzz", 20, "--mss 400"),
    Case("tight", "renege", 2, "--window 60000"),
    Case("no_ts", "fuzz", 21, "--no-ts"),
    Case("no_sack", "fuzz", 23, "--no-sack", supplements=False),
)


def _run(case: Case, cc: str) -> str:
    # What befalls one of the two shall not befall the other as well.
    seed = case.seed + 1000 * CCS.index(cc)
    segs = 65535 if case.gso else 1
    return f"run {case.name}.{cc} {cc} {segs} 1 --mode {case.mode} --seed {seed} {case.options}"


def _script() -> str:
    head = NETWORK.replace("@BYTES@", str(BYTES)).replace("@MAXCWND@", str(MAXCWND))
    runs = [_run(case, cc) for case in CASES for cc in CCS]
    # Another stream than the peer expects: does it see that?
    runs.append("run wrong cherry 1 2 --mode honest")
    return INSTALL + head + "\n".join(runs) + "\nexit 0\n"


@pytest.fixture(scope="module")
def peer(lab: Lab) -> ScriptView:
    return lab.script(_script(), programs(), modules="veth sch_netem")


def _counters(view: ScriptView, name: str) -> dict[str, int]:
    return counters(view.facts[f"counters.{name}"])


def _report(view: ScriptView, name: str) -> dict[str, Any]:
    found = view.report(name)
    print(name, found, _counters(view, name))
    return found


def test_the_peer_knows_a_wrong_byte(peer: ScriptView) -> None:
    found = _report(peer, "wrong")
    assert found["right"] == BYTES and found["complete"] is True
    # One byte in 256 is right by chance.
    assert BYTES * 0.99 < found["wrong"] < BYTES


@pytest.mark.parametrize("cc", CCS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_transfer_ends_well(peer: ScriptView, case: Case, cc: str) -> None:
    name = f"{case.name}.{cc}"
    found, counted = _report(peer, name), _counters(peer, name)
    assert found["wrong"] == 0
    assert found["complete"] is True, "stalled"
    assert found["right"] + found["missing"] == BYTES
    assert found["missing"] == 0 or not case.whole
    assert found["beyond"] == 0, "sent beyond the window"
    assert found["twice"] == 0 or case.mode != "honest", "sent twice although nothing was lost"
    assert peer.facts[f"sent.{name}"] == "0"
    assert peer.facts[f"peer.{name}"] == "0"
    assert peer.facts[f"gone.{name}"] == "0", "the module was held"
    assert (counted["SupplementsSent"] > 0) is case.supplements
    assert (found["supplements"] > 0) is case.supplements


def test_the_peer_was_hostile(peer: ScriptView) -> None:
    told: dict[str, int] = {}
    for case in CASES:
        for cc in CCS:
            for name, n in peer.report(f"{case.name}.{cc}")["told"].items():
                told[name] = told.get(name, 0) + n
    assert min(told.values()) > 5, told
    for cc in CCS:
        assert peer.report(f"renege.{cc}")["forgotten"] > 0
        assert peer.report(f"ahead.{cc}")["missing"] > 0
        assert peer.report(f"zero.{cc}")["closed"] > 1
        assert peer.report(f"shrink.{cc}")["closed"] > 1


def test_timeouts_came_one_after_another(peer: ScriptView) -> None:
    """New Fast-Forward Start was in play, which only Cherry+ has."""
    starts = {
        cc: sum(_counters(peer, f"{c.name}.{cc}")["NewFastForwardStarts"] for c in CASES)
        for cc in CCS
    }
    assert starts["cherry"] == 0
    assert starts["cherry_plus"] > 0
