"""What the hooks of an algorithm cost, in instructions (cycles of the virtual clock) per ACK."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from guestlab import Files, Lab, path, schedule, swap

pytestmark = pytest.mark.guest

TARGETS = ("reno", "cubic", "westwood", "bbr", "j")
LENGTH_S = 20
SLOT_S = LENGTH_S + 1
LIMIT = 1.5

FLOWS = "".join(
    f"""
[[flows]]
from = "a"
to = "b"
start = "{i * SLOT_S}s"
stop = "{i * SLOT_S + LENGTH_S}s"
cc = "reno"
"""
    for i in range(len(TARGETS))
)
NO_TRACE = "[trace]\nacks = false\nqueue = false\nmodules = false\ncapture = false\n"

# One flow after the other, each with the meter on another algorithm.
METER = """
cat /sys/module/ccmeter/parameters/report || exit
[ $# = 0 ] && exit
n=0
until rmmod ccmeter; do
	n=$((n + 1))
	[ $n = 50 ] && exit 1
	sleep 0.01
done
modprobe ccmeter target=$1
"""


def _metered(files: Files) -> None:
    swap(files, "main.tsv", "--cc reno", "--cc meter")
    files["meter.sh"] = METER.encode()
    files["setup.sh"] += b"modprobe tcp_j\nmodprobe tcp_westwood\nmodprobe tcp_bbr\n"
    files["setup.sh"] += f"modprobe ccmeter target={TARGETS[0]}\n".encode()
    for i, name in enumerate(TARGETS):
        after = " ".join(TARGETS[i + 1 : i + 2])
        at_us = (i * SLOT_S + LENGTH_S) * 1_000_000 + 500_000
        argv = f"sh /lab/meter.sh {after}".rstrip()
        schedule(files, min(at_us, _END_US), "-", f"meter.{name}", argv)


_END_US = (len(TARGETS) * SLOT_S - 1) * 1_000_000 + 400_000


def _parse(text: str) -> dict[str, float]:
    """The report of ccmeter: ACKs, cycles of each hook per ACK, and their sum."""
    head, *hooks = [line.split() for line in text.splitlines()]
    assert head[0::2] == ["target", "overhead", "acks"], text
    acks = int(head[5])
    per_ack = {name: int(cycles) / acks for name, _calls, cycles in hooks}
    return {"acks": acks, "total": sum(per_ack.values()), **per_ack}


def test_j_costs_at_most_half_as_much_again_as_westwood(lab: Lab) -> None:
    link = 'buffer = "30pkt"\nber = 1e-6'
    duration = f"{len(TARGETS) * SLOT_S - 1}s"
    text = path("cost", duration, link=link, rest=FLOWS + NO_TRACE)
    view = lab.cell(text, cc="reno", edit=_metered)
    table = {}
    for name in TARGETS:
        report = (view.raw / "proc" / f"meter.{name}.out").read_text()
        assert report.split()[1] == name, report
        table[name] = _parse(report)
        assert table[name]["acks"] > 1000
    _show(table)
    assert table["j"]["total"] <= LIMIT * table["westwood"]["total"]


def _show(table: dict[str, dict[str, float]]) -> None:
    print(f"\n{'':10} {'ACKs':>6} {'instr/ACK':>10}  hooks")
    for name, row in table.items():
        hooks = {k: v for k, v in row.items() if k not in ("acks", "total")}
        said = " ".join(f"{k} {v:.1f}" for k, v in hooks.items())
        print(f"{name:10} {row['acks']:6.0f} {row['total']:10.1f}  {said}")
    target = os.environ.get("AIRTCP_COST_JSON")
    if target:
        Path(target).write_text(json.dumps(table, indent=1) + "\n")
