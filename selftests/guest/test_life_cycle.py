"""Modules that come and go under traffic: what holds them, what they leave behind, and many flows.

Each test is run for every algorithm of ``guestprograms.ALGORITHMS``.
"""

from __future__ import annotations

from collections import Counter

import pytest
from airlab.kernels import LabKernel
from guestlab import Lab, ScriptView
from guestprograms import BAD_VALUES, INSTALL, LIFE_PARAMS, TWO_HOSTS, Algorithm, programs

pytestmark = pytest.mark.guest

DEFAULT = "/proc/sys/net/ipv4/tcp_congestion_control"
ALLOWED = "/proc/sys/net/ipv4/tcp_allowed_congestion_control"


@pytest.fixture(scope="module", params=LIFE_PARAMS, ids=lambda alg: alg.cc)
def alg(request: pytest.FixtureRequest) -> Algorithm:
    found: Algorithm = request.param
    return found


def _script(lab: Lab, text: str, alg: Algorithm, **values: object) -> ScriptView:
    """Run a script in which ``@CC@``, ``@MODULE@`` and ``@NAME@`` of ``values`` are put in."""
    words = {"cc": alg.cc, "module": alg.module, "default": DEFAULT, "allowed": ALLOWED, **values}
    for name, value in words.items():
        text = text.replace(f"@{name.upper()}@", str(value))
    return lab.script(INSTALL + text, programs(), modules="veth sch_netem")


# What holds a module --------------------------------------------------------------------------

CONNECT = """
netns b
socket l
listen l 10.0.0.2 5001
netns a
socket s
set s @CC@
connect s 10.0.0.2 5001
accept p l
close l
"""

HOLDERS = (
    TWO_HOSTS
    + r"""
steps() { cctl >>/out/facts || exit 1; }
steps <<'END'
load @MODULE@
free: refs @MODULE@

socket s
set s @CC@
unconnected: refs @MODULE@
unconnected.unload: unload @MODULE@
close s
unconnected.after: refs @MODULE@
"""
    + CONNECT
    + r"""
connected: refs @MODULE@
connected.client: get s
connected.server: get p
connected.unload: unload @MODULE@
send s 20000
recv p 20000
close s
eof p
close p
connected.after: until 0 refs @MODULE@

netns b
socket l
set l @CC@
listen l 10.0.0.2 5001
listener: refs @MODULE@
listener.unload: unload @MODULE@
netns a
socket s
connect s 10.0.0.2 5001
accept p l
child: get p
child.refs: refs @MODULE@
close l
child.alone: refs @MODULE@
child.unload: unload @MODULE@
send p 20000
recv s 20000
close s
eof p
close p
child.after: until 0 refs @MODULE@
"""
    + CONNECT
    + r"""
fill s
sleep 1
fill s
sleep 1
fill s
sleep 1
fill s
close s
orphan: refs @MODULE@
orphan.unload: unload @MODULE@
sleep 3
orphan.later: refs @MODULE@
eof p
close p
orphan.after: until 0 refs @MODULE@
"""
    + CONNECT
    + r"""
set s reno
switched: refs @MODULE@
switched.unload: unload @MODULE@
switched.gone: refs @MODULE@
load @MODULE@
set s @CC@
reset s
reset.after: until 0 refs @MODULE@
close p
"""
    + CONNECT
    + r"""
close s
eof p
close p
time_wait.refs: until 0 refs @MODULE@
END
fact time_wait $(ip netns exec a ss -tanH state time-wait | wc -l)
ip netns add x
steps <<'END'
time_wait.unload: unload @MODULE@

load @MODULE@
write @ALLOWED@ reno cubic @CC@
netns x
write @DEFAULT@ @CC@
default: refs @MODULE@
default.unload: unload @MODULE@
netns init
END
ip netns del x
steps <<'END'
default.after: until 0 refs @MODULE@
write @DEFAULT@ @CC@
initial: refs @MODULE@
initial.unload: unload @MODULE@
END
ip netns add y
steps <<'END'
inherited: refs @MODULE@
write @DEFAULT@ cubic
inherited.alone: refs @MODULE@
inherited.unload: unload @MODULE@
netns y
socket s
inherited.socket: get s
inherited.sockets: refs @MODULE@
close s
netns init
END
ip netns del y
steps <<'END'
inherited.after: until 0 refs @MODULE@
unload @MODULE@
END
"""
)

REFUSED = "EAGAIN"
"""What delete_module(2) says of a module that is in use; rmmod prints "is in use"."""


@pytest.fixture(scope="module")
def holders(lab: Lab, alg: Algorithm) -> dict[str, str]:
    return _script(lab, HOLDERS, alg).facts


@pytest.mark.parametrize(
    ("what", "references"),
    [
        ("unconnected", "1"),
        ("connected", "1"),
        ("listener", "1"),
        ("child", "cc"),
        ("orphan", "1"),
        ("default", "1"),
        ("initial", "1"),
        ("inherited", "2"),
    ],
)
def test_what_holds_a_module(
    holders: dict[str, str], alg: Algorithm, what: str, references: str
) -> None:
    assert holders["free"] == "0"
    assert holders[what] == (alg.cc if references == "cc" else references)
    assert holders[f"{what}.unload"] == REFUSED
    after = holders.get(f"{what}.after", "ok")
    assert after in ("ok", "0"), f"it was not let go: {after}"


def test_children_inherit_from_a_listener(holders: dict[str, str]) -> None:
    assert (holders["child.refs"], holders["child.alone"]) == ("2", "1")
    assert holders["connected.server"] == "cubic", "the listener had not asked for anything"


def test_an_orphan_holds_until_its_data_are_read(holders: dict[str, str]) -> None:
    assert holders["orphan.later"] == "1"


def test_a_socket_that_changed_its_mind_holds_nothing(holders: dict[str, str]) -> None:
    assert (holders["switched"], holders["switched.unload"]) == ("0", "ok")
    assert holders["switched.gone"] == "none"
    assert holders["reset.after"] == "ok"


def test_time_wait_holds_nothing(holders: dict[str, str]) -> None:
    assert int(holders["time_wait"]) > 0, "there was no socket in TIME_WAIT"
    assert (holders["time_wait.refs"], holders["time_wait.unload"]) == ("ok", "ok")


def test_a_namespace_holds_its_default(holders: dict[str, str], alg: Algorithm) -> None:
    assert holders["inherited.alone"] == "1"
    assert holders["inherited.socket"] == alg.cc
    assert holders["inherited.sockets"] == "2"


# Routes across a reload -----------------------------------------------------------------------

ROUTES = (
    TWO_HOSTS
    + r"""
modprobe @MODULE@
ip -n a route add 10.0.0.2/32 dev v congctl @CC@
there() { fact route.$1 $(ip -n a route show 10.0.0.2); }
pair() {
	cctl >>/out/facts <<END || exit 1
netns b
socket l
listen l 10.0.0.2 5001
netns a
socket s
connect s 10.0.0.2 5001
accept p l
close l
client.$1: get s
server.$1: get p
refs.$1: refs @MODULE@
set.$1: set s cubic
send s 20000
recv p 20000
reset s
close p
END
}
there loaded
pair loaded
rmmod @MODULE@
there absent
pair absent
modprobe @MODULE@
there again
pair again

ip -n a route replace 10.0.0.2/32 dev v congctl lock @CC@
there locked
pair locked
ip -n a route replace 10.0.0.2/32 dev v
pair plain
# The way back is the server's.
ip -n b route add 10.0.0.1/32 dev v congctl @CC@
pair back
ip -n b route del 10.0.0.1/32
try unknown ip -n a route add 10.0.1.0/24 dev v congctl nosuch
fact unknown.there "[$(ip -n a route show 10.0.1.0/24)]"
rmmod @MODULE@
try by_name ip -n a route add 10.0.2.0/24 dev v congctl @CC@
fact by_name.loaded $([ -d /sys/module/@MODULE@ ] && echo yes || echo no)
fact by_name.refs $(cat /sys/module/@MODULE@/refcnt)
"""
)


@pytest.fixture(scope="module")
def routes(lab: Lab, alg: Algorithm) -> dict[str, str]:
    return _script(lab, ROUTES, alg).facts


def test_a_route_survives_a_reload(routes: dict[str, str], alg: Algorithm) -> None:
    named = f"congctl {alg.cc}"
    assert named in routes["route.loaded"] and named in routes["route.again"]
    assert "congctl" not in routes["route.absent"]
    used = [routes[f"client.{when}"] for when in ("loaded", "absent", "again")]
    assert used == [alg.cc, "cubic", alg.cc]
    assert routes["refs.loaded"] == routes["refs.again"] == "1"
    assert routes["server.loaded"] == "cubic"
    assert routes["set.loaded"] == "ok"


def test_a_locked_route_has_the_last_word(routes: dict[str, str], alg: Algorithm) -> None:
    assert f"congctl lock {alg.cc}" in routes["route.locked"]
    assert (routes["client.locked"], routes["set.locked"]) == (alg.cc, "EPERM")
    assert (routes["client.plain"], routes["set.plain"]) == ("cubic", "ok")


def test_the_accepted_socket_takes_its_own_route(routes: dict[str, str], alg: Algorithm) -> None:
    assert (routes["client.back"], routes["server.back"]) == ("cubic", alg.cc)


def test_a_route_needs_a_known_name(routes: dict[str, str]) -> None:
    assert routes["unknown"].startswith("2 ")
    assert "Unknown tcp congestion algorithm" in routes["unknown"]
    assert routes["unknown.there"] == "[]"
    assert routes["by_name"].startswith("0") and routes["by_name.loaded"] == "yes"
    assert routes["by_name.refs"] == "0", "a route holds a name, not the module"


# Loading and unloading under traffic ----------------------------------------------------------

WORKERS = """own:@CC@:10.0.0.2 own:@CC@:fd00::2 child:@CC@:10.0.0.2 route:@CC@:10.0.0.3
route:@CC@:fd00::3 switch:@CC@:10.0.0.2 own:reno:10.0.0.2 own:reno:fd00::2"""

CYCLES = (
    TWO_HOSTS
    + r"""
modprobe @MODULE@
ip -n a route add 10.0.0.3/32 dev v congctl @CC@
ip -n a route add fd00::3/128 dev v congctl @CC@
# Nothing of the storm is left: TIME_WAIT lasts 60 s, and no timer here runs longer.
state() {
	sleep 200
	# Twice: what the first lets go may have held more.
	for i in 1 2; do
		echo 3 >/proc/sys/vm/drop_caches
		for cache in /sys/kernel/slab/*/shrink; do
			echo 1 >$cache
		done
		sleep 1
	done
	while read -r name value _; do
		case $name in VmallocUsed: | Percpu:) fact $1.${name%:} $value ;; esac
	done </proc/meminfo
	cat /proc/slabinfo >/out/slab.$1
	# Free pages lie in the zones and, some MB at times, in the processors' lists.
	fact $1.free $(awk '$1 == "pages" && $2 == "free" { n += $3 }
		$1 == "count:" { n += $2 } END { print n * 4 }' /proc/zoneinfo)
	for n in a b; do
		fact $1.sockets.$n $(ip netns exec $n grep ^TCP: /proc/net/sockstat)
	done
	fact $1.timers $(grep -c '\[@MODULE@\]' /proc/timer_list)
	fact $1.symbols $(grep -c '\[@MODULE@\]' /proc/kallsyms)
	fact $1.events $(ls /sys/kernel/tracing/events | grep -cx @CC@)
	fact $1.regions $(wc -l </proc/vmallocinfo)
}
storm() {
	ccstorm --from a --to b --module @MODULE@ --gap-ms 300 "$@" @WORKERS@ >>/out/facts || exit 1
}
storm --cycles @WARM@ --seed 1
rmmod @MODULE@ 2>/dev/null
state before
storm --cycles @CYCLES@ --seed 2
rmmod @MODULE@ 2>/dev/null
state after
"""
)

NOISE_KB = 400
"""How much a settled guest's memory differs after equal work (28 to 220 kB seen: fragments)."""

NOISE_OBJECTS = 100
"""How many objects more a cache may hold; in many cycles one each is too much (71 seen)."""

CYCLES_QUICK = 20
CYCLES_LONG = 200


def _cycles(lab: Lab, alg: Algorithm, cycles: int) -> ScriptView:
    text = CYCLES.replace("@WORKERS@", " ".join(WORKERS.split()))
    return _script(lab, text, alg, cycles=cycles, warm=5)


def _objects(view: ScriptView, when: str) -> Counter[str]:
    """Objects in use in each of the kernel's caches."""
    lines = (view.out / f"slab.{when}").read_text().splitlines()[2:]
    return Counter({words[0]: int(words[1]) for words in map(str.split, lines)})


def _check_cycles(view: ScriptView, cycles: int, debug: str | None) -> None:
    facts = view.facts
    number = {k: int(v) for k, v in facts.items() if v.isdigit()}
    assert number["unloaded"] == cycles
    assert number["refused"] >= cycles, "it was hardly ever in use: nothing was tried"
    assert 0 < number["by_modprobe"] < cycles, "it was loaded in one way only"
    assert number["used"] > 2 * cycles and number["not_used"] > 0
    for what in ("switches", "resets", "orphans"):
        assert number[what] > cycles // 4, what
    for what in ("timers", "symbols", "events"):
        assert number[f"after.{what}"] == 0, f"{what} of the module are left"
    for host in "ab":
        words = facts[f"after.sockets.{host}"].split()
        counts = dict(zip(words[1::2], words[2::2], strict=True))
        left = {name: counts[name] for name in ("inuse", "orphan", "tw", "mem")}
        assert set(left.values()) == {"0"}, f"sockets are left at {host}: {left}"
    assert number["after.regions"] - number["before.regions"] < cycles // 2
    if debug:
        # The detectors keep what was freed; kmemleak has looked for what nobody points to.
        return
    lost_kb = {"free": number["before.free"] - number["after.free"]}
    for what in ("VmallocUsed", "Percpu"):
        lost_kb[what] = number[f"after.{what}"] - number[f"before.{what}"]
    gained = (_objects(view, "after") - _objects(view, "before")).most_common(5)
    print(f"{cycles} cycles: kB lost {lost_kb}; objects gained {gained}")
    assert max(cycles, NOISE_OBJECTS) > max([n for _, n in gained], default=0), gained
    assert max(lost_kb.values()) < NOISE_KB, f"kB lost in {cycles} cycles: {lost_kb}"


def test_cycles_under_traffic(lab: Lab, alg: Algorithm, kernel: LabKernel) -> None:
    _check_cycles(_cycles(lab, alg, CYCLES_QUICK), CYCLES_QUICK, kernel.debug)


@pytest.mark.long
def test_200_cycles_under_traffic(lab: Lab, alg: Algorithm, kernel: LabKernel) -> None:
    _check_cycles(_cycles(lab, alg, CYCLES_LONG), CYCLES_LONG, kernel.debug)


# Polling and writing parameters, all the while ------------------------------------------------

POLLED = (
    TWO_HOSTS
    + r"""
modprobe @MODULE@
ip -n a route add 10.0.0.3/32 dev v congctl @CC@
ip -n a route add fd00::3/128 dev v congctl @CC@
ccstorm --from a --to b --seconds @SECONDS@ --gap-ms 300 --bytes 300000 --seed 3 @WORKERS@ \
	>>/out/facts &
storm=$!
put() { echo "$2" >/sys/module/@MODULE@/parameters/$1; }
polls=0 seen=0 good=0 bad=0
while kill -0 $storm 2>/dev/null; do
	for n in a b; do
		ip netns exec $n ss -tin >/tmp/ss || exit 1
		polls=$((polls + 1))
		grep -qF '@SHOWN@' /tmp/ss && seen=$((seen + 1))
	done
@WRITES@
	# Not without a pause: the guest has one processor, and the flows need it, too.
	sleep 0.1
done
wait $storm || exit 1
fact polls $polls
fact seen $seen
fact good $good
fact bad $bad
# Sockets that were closed live on for a moment.
echo 'gone: until ok unload @MODULE@' | cctl >>/out/facts
"""
)


def _writes(alg: Algorithm) -> str:
    """Shell lines that write each good and each bad value of each parameter once."""
    lines = []
    for knob, values in alg.knobs.items():
        for value in values.split():
            lines.append(f"\tput {knob} {value} || exit 1; good=$((good + 1))")
        for value in BAD_VALUES.split():
            lines.append(f"\tput {knob} {value} 2>/dev/null && exit 1; bad=$((bad + 1))")
    return "\n".join(lines)


SLOWER = {"debug-kasan": 16, "debug-kcsan": 60}
"""How many times as long a debug kernel polls, to have asked as often.

In real time it is the host's: with one core for both processors ss is asked 8 times a minute.
"""


def _polled(lab: Lab, alg: Algorithm, seconds: int) -> dict[str, str]:
    text = POLLED.replace("@WRITES@", _writes(alg))
    text = text.replace("@WORKERS@", " ".join(WORKERS.split()))
    return _script(lab, text, alg, seconds=seconds, shown=alg.shown).facts


def _check_polled(facts: dict[str, str], seconds: int) -> None:
    number = {k: int(v) for k, v in facts.items() if v.isdigit()}
    assert number["polls"] > 5 * seconds, "ss was hardly ever asked"
    assert number["seen"] > seconds, "ss hardly ever showed the algorithm"
    assert number["good"] > 5 * seconds and number["bad"] > 5 * seconds
    assert number["sessions"] > seconds and number["switches"] > 5 * seconds
    assert number["absent"] == number["busy"] == number["not_used"] == 0
    assert facts["gone"] == "ok", "a closed socket kept a reference"


def test_polled_while_parameters_change(lab: Lab, alg: Algorithm, kernel: LabKernel) -> None:
    seconds = 4 * SLOWER.get(kernel.debug or "", 1)
    _check_polled(_polled(lab, alg, seconds), 4)


@pytest.mark.long
def test_polled_for_a_minute(lab: Lab, alg: Algorithm) -> None:
    _check_polled(_polled(lab, alg, 60), 60)


# Many -----------------------------------------------------------------------------------------

MANY = r"""
ip link set lo mtu 1500 up
tc qdisc add dev lo root netem delay 20ms limit 200000
# A guest's usual 48 MB are less than 10,000 connections have under way here: some would be reset.
echo 60000 80000 100000 >/proc/sys/net/ipv4/tcp_mem
modprobe @MODULE@
ccmany --count @COUNT@ --bytes 4096 --rounds 3 --cc @CC@ --module @MODULE@ --to 127.0.0.1 \
	--port 5001 >>/out/facts || exit 1
echo 'unload: unload @MODULE@' | cctl >>/out/facts
"""

FLOWS = 10_000
FLOW_KB = 10
"""What one idle connection may cost, both ends: sockets, files, inodes (8.1 kB seen)."""

MEASURING_KB = 4
"""What imtcp's state takes more: it is larger than 2 kB, and kmalloc gives a page."""


@pytest.mark.long
def test_10000_flows_at_once(lab: Lab, alg: Algorithm) -> None:
    facts = _script(lab, MANY, alg, count=FLOWS).facts
    number = {k: int(v) for k, v in facts.items() if v.isdigit()}
    assert number["references.connected"] == FLOWS
    assert number["sockets.sending"] >= 2 * FLOWS
    assert number["verified"] == FLOWS * 4096 * 3
    used_kb = number["free_kB.before"] - number["free_kB.idle"]
    print(f"{FLOWS} flows: {used_kb / FLOWS:.1f} kB each, both ends")
    most = FLOW_KB + (MEASURING_KB if alg.cc in ("imtcp", "symbiosis") else 0)
    assert 0 < used_kb / FLOWS < most
    assert number["references.closed"] == 0
    assert facts["unload"] == "ok"
