"""TCP-Cherry through the life of a socket, of a namespace and of the module, timers running."""

from __future__ import annotations

import errno
import os

import pytest
from guestlab import Lab, ScriptView
from guestprograms import pair

pytestmark = pytest.mark.guest

# 100 ms each way: at maxcwnd 512 a Fast-Forward Start's timer runs for 200 ms, 0.4 ms apart.
NETWORK = (
    pair("delay 100ms limit 2000")
    + r"""
in_b sysctl -q -w net.ipv4.tcp_rmem='4096 4194304 8388608'
here() { [ -d /sys/module/tcp_cherry ] && echo yes || echo no; }
in_b airflow recv --port 5001 --family 4 --count 100000 --json /out/json/recv4.json &
recv4=$!
in_b airflow recv --port 5002 --family 6 --count 100000 --json /out/json/recv6.json &
recv6=$!
until in_b ss -tln | grep -q :5001 && in_b ss -tln | grep -q :5002; do sleep 0.01; done
flow() { in_a airflow send --to 10.0.0.2 --port 5001 "$@"; }
# What a namespace's counter says.
count() { in_a sed -n "s/^$1 //p" /proc/net/tcp_cherry; }
# until_above COUNTER LEVEL: wait for it, 30 s at most.  It speaks: a silent guest counts as hung.
until_above() {
	n=0
	until [ "$(count $1)" -gt $2 ] || [ $n = 3000 ]; do
		n=$((n + 1))
		[ $((n % 500)) != 0 ] || say "$1 $n"
		sleep 0.01
	done
	[ $n -lt 3000 ] || fact late "$1 $(count $1)"
}
say() { echo "@T $1" >/dev/console; }
unload() {
	n=0
	until rmmod tcp_cherry 2>/tmp/rmmod || [ $n = 3000 ]; do n=$((n + 1)); sleep 0.1; done
	fact "$1" "$(here)" $n
}
"""
)

SCRIPT = (
    NETWORK
    + r"""
modprobe tcp_cherry
fact available $(cat /proc/sys/net/ipv4/tcp_available_congestion_control)
rmmod tcp_cherry
modprobe tcp_cherry_plus
say 1
fact alias $(here)

# rmmod is refused in mid-phase, and allowed soon after the socket has gone.
flow --cc cherry --seconds 5 --close rst --json /out/json/held.json &
sender=$!
until_above SupplementsSent 10
try refuse rmmod tcp_cherry
wait $sender
unload unload_after_rst

# Killed in mid-phase: reset, and closed with data on its way.
modprobe tcp_cherry
say 2
for close in rst fin; do
	was=$(count SupplementsSent)
	# No function here: $! is to be the sender, not a shell that waits for it.
	ip netns exec a airflow send --to fd00::2 --port 5002 --cc cherry_plus --seconds 5 \
		--close $close &
	until_above SupplementsSent $((was + 10))
	kill -9 $!
	wait $!
done
unload unload_after_kill

# Another algorithm takes over in mid-phase, gap and supplements out; and back.
modprobe tcp_cherry
say 3
for cc in reno cubic bbr; do
	for at in 250 300 380 450; do
		say $at
		in_b airflow recv --port 5003 --family 4 --verify 1 --json /out/json/got.$cc.$at.json &
		got=$!
		until in_b ss -tln | grep -q :5003; do sleep 0.01; done
		try switch.$cc.$at in_a airflow send --to 10.0.0.2 --port 5003 --cc cherry \
			--bytes 3000000 --verify 1 --close fin \
			--switch $at:$cc --switch 900:cherry_plus --json /out/json/switch.$cc.$at.json
		wait $got
	done
done
unload unload_after_switch

say 4
# The knob: no supplements at all.
modprobe tcp_cherry max_supplements=0
try none flow --cc cherry --bytes 1000000 --json /out/json/none.json
fact none_sent $(count SupplementsSent)
fact none_plain $(count PlainSlowStarts)
unload unload_after_none
try insert_bad modprobe tcp_cherry dscp=64
fact after_bad $(here)

# The way is cut: New Fast-Forward Start cycles, and is closed, and its namespace goes.
modprobe tcp_cherry
say 5
ip netns exec a airflow send --to 10.0.0.2 --port 5001 --cc cherry_plus --seconds 60 \
	--close fin &
sender=$!
until_above SupplementsSent 10
# Until there is room in the receiver's window, which 6.1 opens by two segments for each that
# comes in order: without room there is nothing to send ahead.
sleep 3
tc -n a qdisc change dev v root netem delay 100ms loss 100% limit 2000
until_above SupplementsSentAgain 1000
fact cycles $(count NewFastForwardStarts)
kill -9 $sender
wait $sender
sleep 1
say 6
try ss_orphan in_a ss -tinoH
ip netns del a
unload unload_after_netns
kill $recv4 $recv6
wait
"""
)


@pytest.fixture(scope="module")
def life(lab: Lab) -> ScriptView:
    return lab.script(SCRIPT, modules="veth sch_netem tcp_bbr")


def test_supplements_were_out_whenever_something_happened(life: ScriptView) -> None:
    assert "late" not in life.facts, life.facts.get("late")


def test_both_names_come_with_the_module(life: ScriptView) -> None:
    names = life.facts["available"].split()
    assert {"cherry", "cherry_plus"} <= set(names)
    assert life.facts["alias"] == "yes"


def test_rmmod_in_mid_phase(life: ScriptView) -> None:
    status, _, said = life.facts["refuse"].partition(" ")
    assert status != "0" and os.strerror(errno.EAGAIN) in said
    assert life.facts["unload_after_rst"].split()[0] == "no"


def test_sockets_that_die_in_mid_phase_leave_nothing(life: ScriptView) -> None:
    assert life.facts["unload_after_kill"].split()[0] == "no"


@pytest.mark.parametrize("cc", ["reno", "cubic", "bbr"])
def test_another_algorithm_takes_over_in_mid_phase(life: ScriptView, cc: str) -> None:
    for at in (250, 300, 380, 450):
        assert life.facts[f"switch.{cc}.{at}"].startswith("0"), life.facts[f"switch.{cc}.{at}"]
        got = life.report(f"got.{cc}.{at}")
        assert (got["bytes"], got["verified"]) == (3_000_000, True)
    assert life.facts["unload_after_switch"].split()[0] == "no"


def test_a_namespace_goes_while_supplements_cycle(life: ScriptView) -> None:
    assert int(life.facts["cycles"]) >= 1
    assert life.facts["unload_after_netns"].split()[0] == "no"


def test_without_supplements_it_is_slow_start(life: ScriptView) -> None:
    assert life.facts["none"].startswith("0")
    assert life.facts["none_sent"] == "0"
    assert int(life.facts["none_plain"]) >= 1


def test_a_bad_parameter_is_refused(life: ScriptView) -> None:
    assert not life.facts["insert_bad"].startswith("0")
    assert life.facts["after_bad"] == "no"


def test_the_kernel_had_nothing_to_complain_of(life: ScriptView) -> None:
    for word in ("WARNING", "BUG", "Call Trace"):
        assert word not in life.console
