"""TCP-Cherry when the segments become smaller while supplements are out, in five ways."""

from __future__ import annotations

from itertools import product

import pytest
from guestlab import Lab, ScriptView

pytestmark = pytest.mark.guest

BYTES = 2_000_000
MTU = 1300
# router: it says so with an ICMP message.  route, device: the sender's own.  probing: nobody says
# anything, frames just vanish, and the sender finds out by timeouts (tcp_mtu_probing).
WAYS = ("router", "route", "device", "probing")
CCS = ("cherry", "cherry_plus")
CASES = [(way, cc, ip) for way, cc, ip in product(WAYS, CCS, (4, 6)) if (way, ip) != ("probing", 6)]

NETWORK = r"""
for n in a r b; do ip netns add $n; done
ip link add v netns a type veth peer name a netns r
ip link add v netns b type veth peer name b netns r
for net in a:1 b:2; do
	n=${net%:*} i=${net#*:}
	for end in $n:v:2 r:$n:1; do
		set -- $(echo $end | tr : ' ')
		ip -n $1 addr add 10.0.$i.$3/24 dev $2
		ip -n $1 addr add fd0$i::$3/64 dev $2 nodad
		# Single segments: a packet of several would pass the device that is too small.
		ip -n $1 link set dev $2 gso_max_segs 1 up
	done
	ip -n $n route add default via 10.0.$i.1
	ip -n $n route add default via fd0$i::1
	# So long that a kernel with detectors, too, has time for the supplements of a round trip.
	tc -n r qdisc add dev $n root netem delay 250ms limit 2000
done
ip netns exec r sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip netns exec a sysctl -q -w net.ipv4.tcp_wmem='4096 16384 8388608' net.ipv4.tcp_no_metrics_save=1 \
	net.ipv4.tcp_mtu_probing=1
ip netns exec b sysctl -q -w net.ipv4.tcp_rmem='4096 4194304 8388608'
until ip netns exec a ping -c 1 -W 1 10.0.2.2 && ip netns exec a ping -6 -c 1 -W 1 fd02::2; do
	:
done >/dev/null 2>&1
# Until supplements are out, or the sender has ended; how many were sent and acknowledged then.
# No program is started for a look: those are slow on a kernel with detectors.
supplements_out() {
	ip netns exec a sh -c '
	while kill -0 "$1"; do
		while read -r name value; do
			case $name in
			SupplementsSent) sent=$value ;;
			SupplementsAcked) acked=$value ;;
			esac
		done </proc/net/tcp_cherry
		[ "$sent" -le 40 ] || break
		sleep 0.01
	done
	echo "$sent $acked"' sh "$1" 2>/dev/null
}
# smaller WAY, wider WAY: the path with the new MTU and as it was.
smaller() {
	case $1 in
	router) ip -n r link set dev b mtu @MTU@ ;;
	route)
		ip -n a route replace default via 10.0.1.1 mtu @MTU@
		ip -n a -6 route replace default via fd01::1 mtu @MTU@
		;;
	device) ip -n a link set dev v mtu @MTU@ ;;
	probing) ip -n b link set dev v mtu @MTU@ ;;
	esac
}
wider() {
	ip -n r link set dev b mtu 1500
	ip -n a link set dev v mtu 1500
	ip -n b link set dev v mtu 1500
	ip -n a route replace default via 10.0.1.1
	ip -n a -6 route replace default via fd01::1
	ip -n a route flush cache
	ip -n a -6 route flush cache
}
# run WAY CC FAMILY ADDRESS
run() {
	case=$1.$2.$3
	echo "@T $case" >/dev/console
	modprobe tcp_cherry maxcwnd=128
	ip netns exec b airflow recv --port 5001 --family $3 --verify 1 \
		--json /out/json/got.$case.json &
	got=$!
	until ip netns exec b ss -tln | grep -q :5001; do sleep 0.01; done
	ip netns exec a airflow send --to $4 --port 5001 --cc $2 --bytes @BYTES@ --verify 1 \
		--close fin --json /out/json/sent.$case.json &
	sent=$!
	fact then.$case $(supplements_out $sent)
	smaller $1
	wait $sent
	fact sent.$case $?
	wait $got
	fact counters.$case $(ip netns exec a cat /proc/net/tcp_cherry)
	try gone.$case rmmod tcp_cherry
	wider
}
"""


def _script() -> str:
    head = NETWORK.replace("@BYTES@", str(BYTES)).replace("@MTU@", str(MTU))
    to = {4: "10.0.2.2", 6: "fd02::2"}
    runs = [f"run {way} {cc} {ip} {to[ip]}" for way, cc, ip in CASES]
    return head + "\n".join(runs) + "\nexit 0\n"


@pytest.fixture(scope="module")
def mtu(lab: Lab) -> ScriptView:
    return lab.script(_script(), modules="veth sch_netem")


@pytest.mark.parametrize(("way", "cc", "ip"), CASES)
def test_smaller_segments_in_mid_phase(mtu: ScriptView, way: str, cc: str, ip: int) -> None:
    name = f"{way}.{cc}.{ip}"
    sent, acked = map(int, mtu.facts[f"then.{name}"].split())
    print(name, sent, acked, mtu.facts[f"counters.{name}"])
    assert sent > max(40, acked), "no supplements were out when the MTU changed"
    assert mtu.facts[f"sent.{name}"] == "0"
    got = mtu.report(f"got.{name}")
    assert (got["bytes"], got["verified"]) == (BYTES, True)
    assert mtu.report(f"sent.{name}")["final"]["mss_bytes"] < MTU, "the segments did not change"
    assert mtu.facts[f"gone.{name}"] == "0", "the module was held"
