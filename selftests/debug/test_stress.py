"""Everything at once: flows that come, go and change algorithm, ss in loops, parameters written.

On the KASAN kernel in virtual time, and on the KCSAN kernel with two processors in real time, where
the readers of ``get_info`` and of the parameters truly run beside the ACK path.
"""

from __future__ import annotations

from collections import Counter

import pytest
from airlab.engines.complaints import races
from debuglab import Labs
from guestlab import ScriptView
from guestprograms import BAD_VALUES, INSTALL, Algorithm, filled, network, programs

pytestmark = pytest.mark.guest

SECONDS = {"debug-kasan": 20, "debug-kcsan": 90}
MODEST = {"maxcwnd": "4 8192 8"}
"""Values of parameters here; the last one holds most of the time.

With the default 512 on an RTT of 6 ms supplements are due 20 us apart, which takes the one
processor of debug-kasan longer than that: 2 polls in 20 s, and 32 sessions where others have 190.
"""

SCRIPT = (
    INSTALL
    + r"""
seconds=@SECONDS@
stage() { echo "stress: $*" >/dev/console; }
par=/sys/module/@MODULE@/parameters
modprobe @MODULE@
for n in c d; do ip netns add $n; done
ip link add w netns c type veth peer name w netns d
for n in c d; do
	[ $n = c ] && i=1 || i=2
	ip -n $n link set lo up
	ip -n $n addr add 10.0.1.$i/24 dev w
	ip -n $n link set w up
	tc -n $n qdisc add dev w root netem delay 3ms loss 1% limit 200
done
until ip netns exec c ping -c 1 -W 1 10.0.1.2; do :; done >/dev/null 2>&1

ccstorm --from a --to b --seconds $seconds --seed 1 own:@CC@:10.0.0.2 child:@CC@:10.0.0.2 \
	switch:@CC@:10.0.0.2 own:@CC@:10.0.0.2 >/tmp/storm1 2>&1 &
one=$!
ccstorm --from c --to d --seconds $seconds --seed 2 own:@CC@:10.0.1.2 switch:@CC@:10.0.1.2 \
	>/tmp/storm2 2>&1 &
two=$!
flow --seconds $seconds --json /out/json/long.json &
three=$!

# A loop each, until the storms are over; a file says how often it went round. No program is
# started but ss: on one slow processor that is what the time goes into.
over() { [ -e /tmp/over ]; }
cat >/tmp/polls.sh <<'END'
count=0 seen=0
until [ -e /tmp/over ]; do
	ss -tin >/tmp/ss.$1
	count=$((count + 1))
	while read -r line; do
		case $line in '@CC@ wscale'*) seen=$((seen + 1)); break ;; esac
	done </tmp/ss.$1
done
echo "polls.$1 $count" >/tmp/count.polls.$1
echo "seen.$1 $seen" >>/tmp/count.polls.$1
END
writes() {
	count=0 refused=0
	until over; do
		count=$((count + 1))
		while read -r p good; do
			for value in $good; do
				echo $value >$par/$p
				read -r value <$par/$p
			done
			for bad in @BAD@; do
				{ echo $bad >$par/$p; } 2>/dev/null || refused=$((refused + 1))
			done
		done </tmp/knobs
	done
	echo "writes $count" >/tmp/count.writes
	echo "refused $refused" >>/tmp/count.writes
}
cat >/tmp/knobs <<'END'
@KNOBS@
END
ip netns exec a sh /tmp/polls.sh a &
four=$!
ip netns exec c sh /tmp/polls.sh c &
five=$!
writes &
six=$!
stage storms
wait $one
fact storm1 $? $(cat /tmp/storm1)
wait $two
fact storm2 $? $(cat /tmp/storm2)
stage long flow
wait $three
fact long $?
touch /tmp/over
stage polls and writes
wait $four $five $six
cat /tmp/count.* >>/out/facts
stage unload
unload unloaded
stage receivers
kill $recv4 $recv6
wait $recv4 $recv6 || :
"""
)


@pytest.fixture(scope="module", params=sorted(SECONDS))
def storm(labs: Labs, alg: Algorithm, request: pytest.FixtureRequest) -> ScriptView:
    knobs = "\n".join(f"{k} {MODEST.get(k, values)}" for k, values in alg.knobs.items())
    text = filled(SCRIPT, alg).replace("@BAD@", BAD_VALUES)
    text = text.replace("@KNOBS@", knobs).replace("@SECONDS@", str(SECONDS[request.param]))
    text = network(alg) + text
    return labs.on(request.param).script(text, programs(), modules="veth sch_netem")


def test_the_storm_was_one(storm: ScriptView, alg: Algorithm) -> None:
    facts = storm.facts
    for name in ("storm1", "storm2"):
        assert facts[name].startswith("0"), facts[name]
    assert facts["long"] == "0"
    # a has a long flow; c has short ones only, which few of the polls meet.
    assert int(facts["seen.a"]) > 10 and int(facts["seen.c"]) >= 1
    writes, bad = int(facts["writes"]), len(BAD_VALUES.split())
    assert writes > 10
    assert int(facts["refused"]) == writes * bad * len(alg.knobs)
    assert facts["unloaded"].split()[0] == "no"


def test_races_lie_in_the_kernels_own_code(
    storm: ScriptView, alg: Algorithm, record_property: pytest.RecordProperty
) -> None:
    """The engine has refused any other; these are listed, by number of reports."""
    found = Counter(race.title for race in races(storm.console))
    for title, times in found.most_common():
        record_property("race", f"{times} x {title}")
    assert not any(alg.module in race.modules for race in races(storm.console))
