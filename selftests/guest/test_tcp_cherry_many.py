"""2,000 connections in Fast-Forward Start at the same moment, and what each of them costs."""

from __future__ import annotations

import pytest
from airlab.kernels import LabKernel
from guestlab import Lab, ScriptView
from guestprograms import INSTALL, counters, programs

pytestmark = [pytest.mark.guest, pytest.mark.long]

FLOWS = 2000
BYTES = 40_000
STATE_BYTES = 256
"""What kmalloc() gives for struct cherry, which has 240 bytes."""

# A round trip must be longer than it takes to give all of them their data, and shorter than the
# first retransmission timeout of a SYN, 1 s.
SCRIPT = r"""
ip link set lo mtu 1500 up
tc qdisc add dev lo root netem delay 450ms limit 400000
# All data of all connections at once, on its way and received.
sysctl -q -w net.ipv4.tcp_mem='100000 120000 140000' net.ipv4.tcp_wmem='4096 131072 8388608'
many() {
	ccmany --count @FLOWS@ --bytes @BYTES@ --module tcp_cherry --to 127.0.0.1 "$@" || exit 1
}
modprobe tcp_cherry maxcwnd=31
# Once for the caches, then to compare with.
many --port 5001 --cc reno >/dev/null
many --port 5002 --cc reno | sed 's/^/reno./' >>/out/facts
many --port 5003 --cc cherry_plus >/tmp/many &
many=$!
while kill -0 $many 2>/dev/null; do
	echo $(cat /proc/net/tcp_cherry) >>/out/polls
	sleep 0.05
done
wait $many || exit 1
cat /tmp/many >>/out/facts
try unload rmmod tcp_cherry
"""


@pytest.fixture(scope="module")
def many(lab: Lab) -> ScriptView:
    text = SCRIPT.replace("@FLOWS@", str(FLOWS)).replace("@BYTES@", str(BYTES))
    return lab.script(INSTALL + text, programs(), modules="sch_netem")


def _polls(view: ScriptView) -> list[dict[str, int]]:
    return [counters(line) for line in (view.out / "polls").read_text().splitlines()]


def test_all_bytes_arrive_and_the_module_goes(many: ScriptView) -> None:
    assert int(many.facts["verified"]) == FLOWS * BYTES
    assert int(many.facts["references.connected"]) == FLOWS
    assert many.facts["references.closed"] == "0"
    assert many.facts["unload"] == "0"


def test_all_were_in_fast_forward_start_at_once(many: ScriptView, kernel: LabKernel) -> None:
    """All had begun and sent supplements before the first ACK of one was there."""
    polls = _polls(many)
    print(polls[-1])
    assert polls[-1]["SupplementsSent"] > FLOWS
    if kernel.debug:
        pytest.skip(f"{kernel.debug} is too slow for all to begin within a round trip")
    assert any(
        p["FastForwardStarts"] >= FLOWS
        and p["SupplementsSent"] > FLOWS
        and p["SupplementsAcked"] == p["SupplementsLost"] == p["PlainSlowStarts"] == 0
        for p in polls
    )


def test_memory_of_a_socket(many: ScriptView, kernel: LabKernel) -> None:
    """Beside what a connection of reno has there is one struct cherry, and nothing else."""
    used = {
        cc: int(many.facts[f"{cc}objects_kB.connected"]) - int(many.facts[f"{cc}objects_kB.before"])
        for cc in ("reno.", "")
    }
    each = (used[""] - used["reno."]) * 1024 / FLOWS
    print(f"{FLOWS} sockets: {each:.0f} bytes each more than reno's {used}")
    if not kernel.debug:
        assert each == pytest.approx(STATE_BYTES, rel=0.25)
