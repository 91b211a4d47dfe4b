"""Every single allocation of a step fails once: the step fails cleanly or works, nothing is left.

TCP-J allocates nothing itself, so what is tested is what a failure around it does: the module's
registration, sockets that come and change their algorithm, ss, parameters. The others keep their
state in memory of their own and must do without it, as plain Reno, where there is none.
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest
from airlab.labroot import copy_tree_into, ensure_root
from debuglab import Labs
from guestlab import ScriptView
from guestprograms import Algorithm, filled, network

pytestmark = pytest.mark.guest

PROGRAMS = Path(__file__).resolve().parent / "programs"
_FLAGS = ("-O2", "-s", "-static", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wshadow")

# What fails only now and then, in a task that asks for it.
RARELY = r"""
rarely() {
	for f in failslab fail_page_alloc; do
		echo Y >$D/$f/task-filter
		echo -1 >$D/$f/times
		echo 3 >$D/$f/probability
	done
	sh -c 'echo 1 >/proc/self/make-it-fail && exec "$@"' sh "$@"
	echo 0 >$D/failslab/probability
	echo 0 >$D/fail_page_alloc/probability
}
"""
SCRIPT = (
    RARELY
    + r"""
cp /lab/faults /usr/bin/faults && chmod 755 /usr/bin/faults
D=/sys/kernel/debug
[ -d $D/failslab ] || mount -t debugfs debug $D
for f in failslab fail_page_alloc; do
	echo 0 >$D/$f/verbose
	echo N >$D/$f/ignore-gfp-wait
done
# The tracing core itself warns when it cannot add a module's events: its allocations are spared.
set -- $(grep -A1 -w event_create_dir /proc/kallsyms)
for f in failslab fail_page_alloc; do
	echo 0x$1 >$D/$f/reject-start
	echo 0x$4 >$D/$f/reject-end
	echo 32 >$D/$f/stacktrace-depth
done
echo N >$D/fail_page_alloc/ignore-gfp-highmem
echo 0 >$D/fail_page_alloc/min-order
par=/sys/module/@MODULE@/parameters
module=/usr/lib/modules/$(uname -r)/@MODULE@.ko

# What it stands on, which insmod does not load.
modprobe @MODULE@ && rmmod @MODULE@
faults load $module @MODULE@ >>/out/facts || exit 1
fact load.left $(loaded)
in_a faults autoload @CC@ @MODULE@ >>/out/facts || exit 1
fact autoload.left $(loaded)
modprobe @MODULE@
in_a faults open 10.0.0.2 5001 @CC@ >>/out/facts || exit 1
in_a faults switch 10.0.0.2 5001 @CC@ >>/out/facts || exit 1
flow --seconds 20 &
sender=$!
until in_a ss -tin | grep -q ' @CC@ wscale'; do sleep 0.05; done
in_a faults dump >>/out/facts || exit 1
faults write $par/@KNOB@ @VALUE@ >>/out/facts || exit 1
fact write.value $(cat $par/@KNOB@)
wait $sender
fact flow $?

rarely ip netns exec a airflow churn --to 10.0.0.2 --port 5001 --cc @CC@ --count 60 --seed 3 \
	--parallel 10 --json /out/json/rarely.json >/tmp/rarely 2>&1
fact rarely $? $(cat /tmp/rarely)
flow --bytes 300000 --json /out/json/after.json
fact after $?
unload unloaded
kill $recv4 $recv6
wait
"""
)


@cache
def _program() -> bytes:
    root = ensure_root()
    folder = copy_tree_into(root, PROGRAMS, "debug-programs")
    there = f"/build/{folder.name}/faults"
    root.chroot(["gcc", *_FLAGS, "-o", there, f"{there}.c"], what="building faults")
    made = (folder / "faults").read_bytes()
    shutil.rmtree(folder)
    return made


def _knob(alg: Algorithm) -> tuple[str, str]:
    """One of its parameters, and a good value of it."""
    name, values = next(iter(alg.knobs.items()))
    return name, values.split()[1]


@pytest.fixture(scope="module")
def faults(labs: Labs, alg: Algorithm) -> ScriptView:
    knob, value = _knob(alg)
    text = filled(SCRIPT, alg)
    text = network(alg) + text.replace("@KNOB@", knob).replace("@VALUE@", value)
    return labs.on("debug-kasan").script(text, {"faults": _program()}, modules="veth sch_netem")


@pytest.mark.parametrize(
    ("step", "least"),
    [("load", 20), ("autoload", 5), ("open", 5), ("dump", 3), ("write", 2)],
)
def test_every_allocation_of_a_step_may_fail(faults: ScriptView, step: str, least: int) -> None:
    """``least``: allocations that the step has at least; fewer would mean that none failed."""
    tries, failed = int(faults.facts[f"{step}.tries"]), int(faults.facts[f"{step}.failed"])
    assert tries > least
    assert failed <= tries
    if step == "load":
        assert failed > 10, "loading a module survived faults that it cannot survive"


def test_a_socket_gets_its_algorithm_without_memory(faults: ScriptView, alg: Algorithm) -> None:
    """TCP-J's state lies in the socket; without memory for theirs the others do as Reno does."""
    assert faults.facts["switch.failed"] == "0"
    if alg.cc == "j":
        assert faults.facts["switch.tries"] == "1", "an allocation that is not known of"
    else:
        assert int(faults.facts["switch.tries"]) > 1, "no allocation failed"


def test_what_failed_left_nothing_behind(faults: ScriptView, alg: Algorithm) -> None:
    facts = faults.facts
    assert facts["load.left"] == facts["autoload.left"] == "no"
    assert facts["write.value"] == _knob(alg)[1]
    assert facts["flow"] == "0"
    assert facts["after"] == "0"
    assert faults.report("after")["bytes"] == 300_000
    assert facts["unloaded"].split()[0] == "no"
