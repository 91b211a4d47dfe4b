"""What no compiler sees: hooks whose meaning differs between kernels (modules/include/airtcp)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from airlab import modules, paths
from airlab.kernels import LabKernel
from airlab.labroot import ensure_root
from guestlab import Files, Lab, ScriptView

pytestmark = pytest.mark.guest

NETWORK = r"""
ip netns add a
ip netns add b
ip link add v netns a type veth peer name v netns b
for n in a b; do
	[ $n = a ] && i=1 || i=2
	ip -n $n link set lo up
	ip -n $n addr add 10.0.0.$i/24 dev v
	ip -n $n link set v up
	tc -n $n qdisc add dev v root netem delay 10ms limit 2000
done
in_a() { ip netns exec a "$@"; }
in_b() { ip netns exec b "$@"; }
until in_a ping -c 1 -W 1 10.0.0.2 >/dev/null 2>&1; do :; done
in_b airflow recv --port 5001 --family 4 --count 100000 --json /out/json/recv.json &
recv=$!
until in_b ss -tln | grep -q :5001; do sleep 0.01; done
flow() { in_a airflow send --to 10.0.0.2 --port 5001 "$@" || fact failed "$@"; }
finish() { kill $recv; wait; }
"""

# TX start -------------------------------------------------------------------------------------

LONE_BPS = 100_000
LONE_S = 4
MSS = 1448

# Every segment of the slow flow is sent with nothing in flight, 116 ms after the one before: later
# than its delayed ACK, sooner than a retransmission timeout. So each is a TX start, and a sample
# that an ACK opened is void before another ACK could close it.
TX_START_SCRIPT = (
    NETWORK
    + rf"""
T=/sys/kernel/tracing
lone() {{ flow --app-rate {LONE_BPS} --seconds {LONE_S} "$@"; }}
events() {{ grep -c " $1: " $T/trace; }}
modprobe tcp_j
echo 1 >$T/events/j/j_abe/enable
lone --cc j --json /out/json/lone.json
fact lone_samples $(events j_abe)
echo >$T/trace
flow --cc j --bytes 1000000
fact full_samples $(events j_abe)
echo 0 >$T/events/j/j_abe/enable
modprobe ccmeter target=j
lone --cc meter --json /out/json/metered.json
fact report $(cat /sys/module/ccmeter/parameters/report)
finish
"""
)


@pytest.fixture(scope="module")
def starts(lab: Lab) -> ScriptView:
    return lab.script(TX_START_SCRIPT, modules="veth sch_netem")


def _segments(view: ScriptView, name: str) -> int:
    """Segments that a slow flow sent, from what its application wrote."""
    report = view.report(name)
    assert not report["error"], report
    sent: int = report["bytes"] // MSS
    assert sent > 0.8 * LONE_BPS * LONE_S / 8 / MSS, "the flow was not what the test needs"
    return sent


def test_every_tx_start_reaches_the_handler(starts: ScriptView) -> None:
    assert "failed" not in starts.facts
    words = starts.facts["report"].split()
    assert words[:2] == ["target", "j"], words
    calls = dict(zip(words[6::3], map(int, words[7::3]), strict=True))
    sent = _segments(starts, "metered")
    assert 0.9 * sent <= calls.get("cwnd_event_tx_start", 0) <= sent + 1, (calls, sent)


def test_tx_start_voids_the_open_sample(starts: ScriptView) -> None:
    _segments(starts, "lone")
    assert int(starts.facts["full_samples"]) >= 3, "the trace shows no samples at all"
    assert starts.facts["lone_samples"] == "0", "a sample spans idle time"


# The floor of bursts --------------------------------------------------------------------------

# build, its parameters, pacing rate in byte/s, floor in segments.
BURSTS = {
    "fast": ("stock", "", 20_000_000, 2),
    "fast_bbr3": ("bbr3", "", 20_000_000, 2),
    "fast_naive": ("bbr3", "naive=1", 20_000_000, 2),
    "slow": ("stock", "", 1_000_000, 2),
    "slow_bbr3": ("bbr3", "", 1_000_000, 2),
    "slow_floor": ("stock", "", 1_000_000, 5),
    "slow_floor_bbr3": ("bbr3", "", 1_000_000, 5),
}
# 2^-10 s of 20 MB/s are 13 segments, of 1 MB/s less than one.
FAST = (20_000_000 >> 10) // MSS

BURST_SCRIPT = (
    NETWORK
    + r"""
# burst NAME BUILD RATE FLOOR PARAMETERS: the fact is the largest packet in bytes, before segmentation.
burst() {
	insmod /lab/tsofloor.$2.ko rate_Bps=$3 floor_segs=$4 $5
	# Not by in_a: the signal is for tcpdump, not for a shell around it.
	ip netns exec a tcpdump -n -p -i v -s 100 -B 8192 -Z root 'tcp dst port 5001' \
		>/tmp/packets 2>/tmp/said &
	capture=$!
	until grep -q listening /tmp/said; do sleep 0.01; done
	flow --cc tsofloor --bytes 1000000
	sleep 2
	kill -INT $capture
	wait $capture
	fact $1 $(awk '$NF + 0 > most { most = $NF + 0 } END { print most + 0 }' /tmp/packets)
	n=0
	until rmmod tsofloor 2>/dev/null || [ $n = 600 ]; do n=$((n + 1)); sleep 0.1; done
}
"""  # noqa: E501
    + "".join(
        f"burst {name} {build} {rate} {floor} {parameters}\n"
        for name, (build, parameters, rate, floor) in BURSTS.items()
    )
    + "finish\n"
)


@pytest.fixture(scope="module")
def floors(kernel: LabKernel) -> Iterator[Files]:
    """The test module, built for this kernel and as for a tree with BBRv3."""
    root = ensure_root(kernel.suite)
    tag = f"tso-{os.getpid()}"
    patched = modules.other_headers(root, "bbr3", kernel.release, f"bbr3-{os.getpid()}")
    made: Files = {}
    try:
        for build, kdir in (("stock", modules.headers_of(kernel)), ("bbr3", patched)):
            shop = modules.workshop(root, kdir, f"{tag}-{build}", [paths.TSOFLOOR_SOURCE])
            try:
                shop.make(*modules.STRICT, folders=shop.folders[1:])
                assert shop.answers()["TSO_SEGS"] == (build == "bbr3")
                module = next(m for m in shop.built() if m.stem == "tsofloor")
                root.chroot(["strip", "-g", f"/{module.relative_to(root.path)}"], what="strip")
                made[f"tsofloor.{build}.ko"] = module.read_bytes()
            finally:
                shop.clear()
        yield made
    finally:
        root.chroot(["rm", "-rf", patched, f"{patched}-common"], what="clearing headers")


@pytest.fixture(scope="module")
def bursts(lab: Lab, floors: Files) -> dict[str, int]:
    """The largest burst of each flow, in segments."""
    facts = lab.script(BURST_SCRIPT, floors, modules="veth sch_netem").facts
    assert "failed" not in facts
    return {name: int(facts[name]) // MSS for name in BURSTS}


@pytest.mark.parametrize("build", ["", "_bbr3"])
def test_a_floor_is_no_cap(bursts: dict[str, int], build: str) -> None:
    assert bursts[f"fast{build}"] == FAST, bursts


@pytest.mark.parametrize("build", ["", "_bbr3"])
def test_a_floor_holds_where_the_rate_carries_less(bursts: dict[str, int], build: str) -> None:
    assert bursts[f"slow{build}"] == 2, bursts
    assert bursts[f"slow_floor{build}"] == 5, bursts


def test_the_mistake_would_be_seen(bursts: dict[str, int]) -> None:
    assert bursts["fast_naive"] == 2, bursts
