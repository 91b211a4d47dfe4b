"""A connection that nobody owns any more and that nobody answers: how long it keeps its namespace.

Two pairs of namespaces, one sends with reno, one with cherry_plus.  The way is cut, the senders are
killed with data out, their namespaces deleted: what the orphans still hold goes with the last of
them, and then the device in the other namespace goes, too.
"""

from __future__ import annotations

import pytest
from guestlab import Lab, ScriptView

pytestmark = pytest.mark.guest

SCRIPT = r"""
modprobe tcp_cherry
say() { echo "@T $1" >/dev/console; }
now() { cut -d' ' -f1 /proc/uptime | tr -d .; }
for n in reno cherry_plus; do
	ip netns add b$n
	ip netns exec b$n sysctl -q -w net.ipv4.tcp_rmem='4096 4194304 8388608'
	ip netns add a$n
	ip link add v netns a$n type veth peer name v netns b$n
	for side in a b; do
		[ $side = a ] && i=1 || i=2
		ip -n $side$n link set lo up
		ip -n $side$n addr add 10.0.0.$i/24 dev v
		ip -n $side$n link set v up
		tc -n $side$n qdisc add dev v root netem delay 100ms limit 2000
	done
	until ip netns exec a$n ping -c 1 -W 1 10.0.0.2 >/dev/null 2>&1; do :; done
	ip netns exec b$n airflow recv --port 5001 --family 4 --json /out/json/recv.$n.json &
	receivers="$receivers $!"
	until ip netns exec b$n ss -tln | grep -q :5001; do sleep 0.01; done
done
for n in reno cherry_plus; do
	ip netns exec a$n airflow send --to 10.0.0.2 --port 5001 --cc $n --seconds 60 --close fin &
	eval sender_$n=$!
done
sleep 2
for n in reno cherry_plus; do
	tc -n a$n qdisc change dev v root netem delay 100ms loss 100% limit 2000
done
count() { ip netns exec acherry_plus sed -n "s/^$1 //p" /proc/net/tcp_cherry; }
n=0
until [ "$(count SupplementsSentAgain)" -gt 100 ] || [ $n = 3000 ]; do
	n=$((n + 1))
	sleep 0.01
done
fact cycles $(count NewFastForwardStarts) $(count SupplementsSentAgain)
for n in reno cherry_plus; do
	eval kill -9 \$sender_$n
	eval wait \$sender_$n
done
sleep 0.5
for n in reno cherry_plus; do
	try orphan.$n ip netns exec a$n ss -tinoH
	ip netns del a$n
done
from=$(now)
# Without an orphan a namespace is gone within a second or two.
watch() {
	ip netns exec b$1 sh -c 'n=0; while [ -e /sys/class/net/v ] && [ $n -lt 600 ]; do
		n=$((n + 1)); sleep 1; done'
	fact gone.$1 $(($(now) - from))
}
watch reno &
watch_reno=$!
watch cherry_plus &
watch_plus=$!
wait $watch_reno $watch_plus
kill $receivers
wait $receivers
rmmod tcp_cherry
fact unloaded $?
exit 0
"""


@pytest.fixture(scope="module")
def orphans(lab: Lab) -> ScriptView:
    return lab.script(SCRIPT, modules="veth sch_netem")


def test_supplements_were_cycling(orphans: ScriptView) -> None:
    starts, again = map(int, orphans.facts["cycles"].split())
    assert starts >= 1
    assert again > 100


@pytest.mark.parametrize("cc", ["reno", "cherry_plus"])
def test_an_orphan_was_there(orphans: ScriptView, cc: str) -> None:
    assert orphans.facts[f"orphan.{cc}"].startswith("0 FIN-WAIT-1")


def test_the_namespace_is_kept_as_long_as_with_reno(orphans: ScriptView) -> None:
    """Until the stack gives the orphan up (tcp_orphan_retries), to within one of its timeouts."""
    reno, plus = (int(orphans.facts[f"gone.{cc}"]) / 100 for cc in ("reno", "cherry_plus"))
    assert plus == pytest.approx(reno, rel=0.1)


def test_the_module_goes_then(orphans: ScriptView) -> None:
    assert orphans.facts["unloaded"] == "0"
