"""`ccscope explain` against forced limits, on a real kernel in virtual time.

Each sender has a path of its own on which one thing limits it by construction: 4 Mbit/s, 40 ms,
10 s.  TCP_INFO is polled by ``ss`` beside the per-ACK trace, for the kernel's own account.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ccscope.explain import Explanation, explain
from ccscope.explain.words import text
from ccscope.imports import import_file
from ccscope.rawtrace import read_raw
from ccscope.recording import Recording, Writer
from guestlab import Files, Lab, View, schedule
from test_ccscope_causes import _edit as edit_causes
from test_ccscope_causes import _scenario as causes_scenario

pytestmark = pytest.mark.guest

KINDS = ("app", "pause", "rwnd", "sndbuf", "loss", "outage", "free")
POLLED = ("app", "rwnd", "sndbuf")
LENGTH_S = 10
# What must be named, and for how much of the time at least.
WANTED = {
    "app": ("application", 0.9),
    "pause": ("idle", 0.2),
    "rwnd": ("receiver window", 0.9),
    "sndbuf": ("send buffer", 0.9),
    "loss": ("cwnd", 0.95),
    "outage": ("cwnd", 0.9),
    "free": ("cwnd", 0.95),
}
FLOWS = {
    "app": 'app_rate = "1Mbit"',
    "pause": 'pause = [{ at = "5s", for = "3s" }]',
    "rwnd": 'recv_buffer = "12kB"',
    "sndbuf": 'send_buffer = "8kB"',
}
LINKS = {"loss": 'loss = "1%"\ndirection = "forward"'}
POLL = b"""n=0
while [ $n -lt 11 ]; do
	n=$((n + 1))
	read -r up _ </proc/uptime
	echo "uptime $up"
	ss -tinmOH
	sleep 0.9
done
"""


def _scenario() -> str:
    lines = ['schema = 1\nname = "limits"\ntitle = "Forced limits"\npurpose = "Are they named?"']
    lines.append(f'duration = "{LENGTH_S}s"\ncc = ["reno"]')
    lines.append("[trace]\nqueue = false\nkeep_pcap = true")
    lines.append('capture = { node = "aoutage", link = "loutage" }')
    for kind in KINDS:
        lines.append(f"[nodes.a{kind}]\n[nodes.b{kind}]\n")
        lines.append(f'[links.l{kind}]\nbetween = ["a{kind}", "b{kind}"]\nrate = "4Mbit"')
        lines.append(f'delay = "20ms"\nbuffer = "30pkt"\n{LINKS.get(kind, "")}')
    for at in ("4s", "8s"):
        lines.append(f'[[events]]\nat = "{at}"\nlink = "loutage"\noutage = "700ms"')
    for kind in KINDS:
        lines.append(f'[[flows]]\nfrom = "a{kind}"\nto = "b{kind}"\n{FLOWS.get(kind, "")}')
    return "\n".join(lines)


def _edit(files: Files) -> None:
    files["env"] = re.sub(rb"TRACE_KB=\d+", b"TRACE_KB=65536", files["env"])
    files["poll.sh"] = POLL
    for kind in POLLED:
        schedule(files, 20_000, f"a{kind}", f"ss.{kind}", "sh /lab/poll.sh")


@pytest.fixture(scope="module")
def view(lab: Lab) -> View:
    return lab.cell(_scenario(), cc="reno", edit=_edit)


def _recording(view: View, kind: str, into: Path) -> Recording:
    """A kind's per-ACK trace and, where it was polled, ss's samples on the same clock."""
    flow = next(f for f in view.plan.flows if f.src == f"a{kind}")
    known = {"label": kind, "cc": flow.cc}
    port = flow.port
    meta, tables = read_raw(view.raw, wanted=lambda f: f["dport"] == port, known=lambda _: known)
    out = view.raw / "proc" / f"ss.{kind}.out"
    if kind in POLLED:
        mono, real = (int(n) for n in (view.raw / "t0").read_text().split())
        # Uptime is CLOCK_BOOTTIME, which is CLOCK_MONOTONIC where nothing suspends.
        lines = [
            f"{(real - mono) / 1e9 + float(line.split()[1]):.6f}"
            if line.startswith("uptime")
            else line
            for line in out.read_text().splitlines()
        ]
        (into / f"{kind}.log").write_text("\n".join(lines) + "\n")
        polled = import_file(into / f"{kind}.log", into / f"{kind}.ss")
        table = Recording.open(into / f"{kind}.ss").table("samples")
        table = {name: values for name, values in table.items() if name != "flow"}
        table["t_s"] = table["t_s"] + (polled["start_realtime_ns"] - real) / 1e9
        tables["samples"] = {**table, "flow": np.full(len(table["t_s"]), kind, dtype=object)}
    with Writer(into / kind) as writer:
        for name, columns in tables.items():
            writer.add(name, columns)
        writer.finish(meta)
    return Recording.open(into / kind)


@pytest.fixture(scope="module")
def found(view: View, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Explanation]:
    into = tmp_path_factory.mktemp("explain")
    made = {}
    for kind in KINDS:
        recording = _recording(view, kind, into)
        made[kind] = explain(recording, kind)
        print("\n" + text(made[kind], recording.flows[kind]))
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_the_forced_limit_is_named(found: dict[str, Explanation], kind: str) -> None:
    limit, least = WANTED[kind]
    explained = found[kind]
    limits = explained.limits()
    assert limits[limit] >= least * explained.duration_s, limits
    if kind != "pause":
        assert limit == max(limits, key=lambda name: limits[name])


@pytest.mark.parametrize("kind", KINDS)
def test_classes_and_phases_are_the_whole_time(found: dict[str, Explanation], kind: str) -> None:
    explained = found[kind]
    assert sum(explained.seconds.values()) == pytest.approx(explained.duration_s)
    bounds = [(p.start_s, p.end_s) for p in explained.phases]
    assert [b for _, b in bounds[:-1]] == [a for a, _ in bounds[1:]]
    assert bounds[-1][1] - bounds[0][0] == pytest.approx(explained.duration_s)


def test_idleness_lies_where_the_program_paused(found: dict[str, Explanation]) -> None:
    """It pauses from 5 to 8 s; what is queued goes on for a while."""
    idle = [p for p in found["pause"].phases if p.name == "idle"]
    assert len(idle) == 1
    assert 5.0 < idle[0].start_s < 6.2
    assert idle[0].end_s == pytest.approx(8.0, abs=0.25)


def test_outages_are_timeouts_with_their_cost(found: dict[str, Explanation]) -> None:
    """Two outages of 0.7 s: at least that long is lost, and not twice as much as was silent."""
    timeouts = [c for c in found["outage"].costs if c.event.kind == "rto"]
    assert [round(c.event.t_s - c.event.silent_s) for c in timeouts] == [4, 8]
    for cost in timeouts:
        assert 0.7 < cost.lost_s < 2.0
    assert found["free"].evidence.cannot, "states without causes must be said"
    assert not any(c.event.kind == "rto" for c in found["free"].costs)


def test_our_seconds_are_the_kernels(found: dict[str, Explanation]) -> None:
    """Where the receiver limits, TCP_INFO counts the same time as the ACKs show."""
    for kind in POLLED:
        explained = found[kind]
        account = explained.evidence.kernel
        assert account is not None
        ours = explained.evidence.slices.seconds(account["start_s"], account["end_s"])
        whole = account["end_s"] - account["start_s"]
        assert ours.get("receiver", 0.0) == pytest.approx(account["receiver"], abs=0.02 * whole)
        assert whole - ours.get("idle", 0.0) == pytest.approx(account["busy"], abs=0.02 * whole)


@pytest.mark.parametrize("kind", POLLED)
def test_polls_alone_name_the_limit(view: View, tmp_path: Path, kind: str) -> None:
    recording = _recording(view, kind, tmp_path)
    only = Recording.open(tmp_path / f"{kind}.ss")
    explained = explain(only, next(iter(only.flows)))
    assert explained.source == "samples"
    limits = explained.limits()
    assert max(limits, key=lambda name: limits[name]) == WANTED[kind][0], limits
    assert limits[WANTED[kind][0]] >= 0.85 * explained.duration_s
    assert recording.flows


def test_a_capture_alone_shows_the_timeouts(view: View, tmp_path: Path) -> None:
    import_file(view.raw / "cap.pcap", tmp_path / "r")
    recording = Recording.open(tmp_path / "r")
    label = next(n for n, f in recording.flows.items() if 5001 <= f["dport"] <= 5099)
    explained = explain(recording, label)
    print("\n" + text(explained, recording.flows[label]))
    assert explained.source == "packets"
    assert sum(c.event.kind == "rto" for c in explained.costs) == 2
    limits = explained.limits()
    assert limits["cwnd"] >= 0.8 * explained.duration_s, limits
    assert any("cwnd" in missing for missing in explained.evidence.cannot)


# What is forced in test_ccscope_causes, and what it must be called; spurious where it was undone.
EVENTS = {
    "sack": {("sack", False)},
    "dupack": {("dupack", False)},
    "rto": {("rto", False)},
    "ecn": {("ecn", False)},
    "local": {("local", False)},
    "held": {("rto", True)},
    "reorder": {("sack", True)},
    "quiet": set(),
}


def test_events_are_named_by_their_cause(lab: Lab, tmp_path: Path) -> None:
    view = lab.cell(causes_scenario(), cc="reno", edit=edit_causes)
    ports = {flow.port: flow.src.removeprefix("a") for flow in view.plan.flows}

    def known(info: Any) -> dict[str, Any]:
        return {"label": ports[info["dport"]], "cc": "reno"}

    meta, tables = read_raw(view.raw, wanted=lambda f: f["dport"] in ports, known=known)
    with Writer(tmp_path / "r") as writer:
        for name, columns in tables.items():
            writer.add(name, columns)
        writer.finish(meta)
    recording = Recording.open(tmp_path / "r")
    for kind, wanted in EVENTS.items():
        explained = explain(recording, kind)
        named = {(c.event.kind, c.event.spurious) for c in explained.costs}
        assert named == wanted, kind
