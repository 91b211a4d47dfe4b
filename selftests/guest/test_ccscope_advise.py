"""``ccscope advise``: its commands in a guest, and its search against an exhaustive sweep."""

from __future__ import annotations

from pathlib import Path

import pytest
from ccscope.advise.lab import Lab as WindowLab
from ccscope.advise.search import find, objective
from ccscope.advise.settings import Setting, rounded, scale_of, settings
from guestlab import Lab, ScriptView
from guestprograms import INSTALL, TWO_HOSTS, programs
from windowsweep import grid, plan_of, trials_of

pytestmark = pytest.mark.guest

WINDOW, MSS = 70_001, 1448
WAYS = settings(WINDOW, MSS, "10.0.0.1", "10.0.0.2")
BUFFER, CLAMP, RMEM, ROUTE, CWND = WAYS


def _typed(lines: tuple[str, ...], node: str) -> str:
    """The printed commands as they are typed: the peers are neighbours, there is no gateway."""
    made = []
    for line in lines:
        command = line.replace("[via GATEWAY] ", "").replace("dev DEVICE", "dev v")
        command = command.replace("THE THREE NUMBERS", "$before")
        made.append(f"ip netns exec {node} {command}\n")
    return "".join(made)


def _do(setting: Setting, node: str) -> str:
    return _typed(setting.do, node)


def _undo(setting: Setting, node: str) -> str:
    return _typed(setting.undo, node)


# a sends to b over 10 ms each way without loss; what b offered and what cwnd a had at most.
SCRIPT = (
    INSTALL
    + TWO_HOSTS.replace(" loss 1%", "")
    + r"""
ip netns exec b sysctl -q -w net.ipv4.tcp_no_metrics_save=1
before=$(ip netns exec b sysctl -n net.ipv4.tcp_rmem)
port=6000
# flow NAME [OPTION...]: a transfer; /out/json/NAME.json has the sender's polls.
flow() {
	name=$1 port=$((port + 1))
	shift
	ip netns exec b airflow recv --port $port --family 4 "$@" --json /out/json/$name.recv.json &
	sleep 0.1
	ip netns exec a airflow send --to 10.0.0.2 --port $port --cc reno --seconds 2.5 --sample-ms 20 \
		--close fin --json /out/json/$name.json &
	sender=$!
	sleep 2
	fact "$name" $(ip netns exec a ss -tinOH "dport = $port")
	wait $sender
	sleep 0.2
}
mkdir -p /out/json
flow plain
"""
    + f"{_do(ROUTE, 'b')}flow route\n{_undo(ROUTE, 'b')}flow unrouted\n"
    + f"{_do(RMEM, 'b')}flow rmem\n{_undo(RMEM, 'b')}flow unset\n"
    + f"flow buffer --rcvbuf {BUFFER.do[0].rpartition(' ')[2].rstrip(')')}\n"
    + f"{_do(CWND, 'a')}flow first\nflow cwnd\n{_undo(CWND, 'a')}flow uncapped\n"
    + f"""
ip netns exec b winclamp 7000 {WINDOW} 16000000 >/tmp/clamps &
clamps=$!
sleep 0.1
ip netns exec a airflow send --to 10.0.0.2 --port 7000 --cc reno --bytes 24000000 --sample-ms 20 \\
	--close fin --json /out/json/clamp.json &
sender=$!
n=0
while kill -0 $sender 2>/dev/null && [ $n -lt 200 ]; do
	n=$((n + 1))
	set -- $(ip netns exec a ss -tinOH 'dport = 7000')
	for word; do case $word in snd_wnd:*) echo "${{word#snd_wnd:}}" >>/tmp/offered ;; esac; done
	sleep 0.02
done
wait $sender $clamps
fact clamps $(cat /tmp/clamps)
fact offered $(cat /tmp/offered)
"""
)


@pytest.fixture(scope="module")
def said(lab: Lab) -> ScriptView:
    return lab.script(SCRIPT, programs(), modules="veth sch_netem")


def _number(said: ScriptView, flow: str, name: str) -> float:
    words = dict(w.split(":", 1) for w in said.facts[flow].split() if ":" in w)
    return float(words[name])


def test_without_settings_the_window_is_large(said: ScriptView) -> None:
    assert _number(said, "plain", "snd_wnd") > 2 * WINDOW
    assert _number(said, "plain", "cwnd") > 2 * WINDOW / MSS


def test_the_route_bounds_the_window_by_its_scale_and_its_undo_restores(said: ScriptView) -> None:
    assert _number(said, "route", "snd_wnd") == 65535 << scale_of(WINDOW)
    assert str(65535 << scale_of(WINDOW)) in ROUTE.reach
    assert _number(said, "unrouted", "snd_wnd") > 10 * WINDOW


def test_the_lock_caps_cwnd_from_the_second_connection_on(said: ScriptView) -> None:
    segments = rounded(WINDOW) // MSS
    assert _number(said, "first", "cwnd") > 2 * segments
    assert _number(said, "cwnd", "cwnd") == segments
    assert _number(said, "uncapped", "cwnd") > 2 * segments


def test_buffers_come_out_as_said(said: ScriptView) -> None:
    asked = float(BUFFER.do[0].rpartition(" ")[2].rstrip(")"))
    assert 1.0 <= _number(said, "buffer", "snd_wnd") / asked <= 1.3
    asked = 2 * rounded(WINDOW)
    assert 0.49 <= _number(said, "rmem", "snd_wnd") / asked <= 0.8
    assert _number(said, "unset", "snd_wnd") > 2 * WINDOW


def test_the_clamp_works_at_once_and_its_undo_restores(said: ScriptView) -> None:
    before, clamped, after = (int(n) for n in said.facts["clamps"].split())
    assert clamped == WINDOW
    assert before == after > 2 * WINDOW
    offered = [int(n) for n in said.facts["offered"].split()]
    held = [n for n in offered if WINDOW <= n <= WINDOW + 256]
    assert held, offered
    assert max(offered[: offered.index(held[0])]) > 2 * WINDOW
    assert offered[-1] > 2 * WINDOW


# Scenario; of the sweep the smallest value, the ratio and the number.
PATHS = [
    ("advise-wlan", (16_800, 1.08, 14)),
    ("advise-two-hop", (40_000, 1.08, 14)),
    ("advise-wired", (27_000, 1.1, 12)),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "steps"), PATHS)
def test_the_search_finds_what_all_windows_show(
    lab: Lab, tmp_path: Path, name: str, steps: tuple[int, float, int]
) -> None:
    values = grid(*steps)
    swept = trials_of(lab.run(plan_of(name, values)).folder / "cell", values)
    best = objective(swept)
    tried = WindowLab(name, tmp_path)
    found = find(
        tried.run,
        8192,
        400_000,
        hint=tried.hint,
        least_step=lambda: tried.segment_bytes / 2,
    )
    print(f"\n{name}: all {len(swept)}: {best}\nsearch, {len(found.trials)} runs: {found.best}")
    assert best.held
    assert found.held
    assert found.best.window_bytes == pytest.approx(best.window_bytes, rel=0.10)
    assert len(found.trials) <= 12
