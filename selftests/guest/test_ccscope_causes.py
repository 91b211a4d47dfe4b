"""Causes of CA states against a scripted ground truth, on a real kernel.

Each sender has a path of its own on which one kind of event is forced; the kernel's own counters
of the sender's namespace say how often each thing happened.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from airlab import kernels
from ccscope import btf
from ccscope.rawtrace import read_raw
from ccscope.recording import Columns
from ccscope.sources.probes import probes
from guestlab import Files, Lab, View, schedule

pytestmark = pytest.mark.guest

KINDS = ("sack", "dupack", "rto", "ecn", "local", "held", "reorder", "quiet")
# Forced: what must be found, and the causes that may follow from it.
WANTED = {
    "sack": ({"disorder", "sack", "done"}, {"sack"}),
    "dupack": ({"disorder", "dupack", "done"}, {"dupack"}),
    "rto": ({"disorder", "rto", "done"}, {"rto"}),
    "ecn": ({"ecn", "done"}, {"ecn"}),
    "local": ({"local", "done"}, {"local"}),
    "held": ({"rto", "undo", "disorder", "done"}, {"rto", "undo"}),
    "reorder": ({"disorder", "sack", "undo", "done"}, {"sack", "undo"}),
    "quiet": (set(), set()),
}
COUNTERS = {
    "sack": ("TCPSackRecovery",),
    "dupack": ("TCPRenoRecovery",),
    "rto": ("TCPTimeouts",),
    "undo": ("TCPFullUndo", "TCPPartialUndo", "TCPDSACKUndo", "TCPLossUndo"),
    "tlp": ("TCPLossProbeRecovery",),
}


def _scenario() -> str:
    lines = ['schema = 1\nname = "causes"\ntitle = "Causes of states"\npurpose = "Are they told?"']
    lines.append('duration = "8s"\ncc = ["reno"]\n[trace]\nqueue = false\ncapture = false')
    extra = {
        "sack": "drop = [300]\nmin_len = 1000\ndirection = 'forward'",
        "dupack": "drop = [300]\nmin_len = 1000\ndirection = 'forward'",
        "ecn": "qdisc = 'codel'\necn = true",
        "reorder": "",
    }
    # The kernel takes the second time-out of an outage for spurious, by time stamps: not here.
    sysctl = {
        "dupack": '"net.ipv4.tcp_sack" = 0',
        "ecn": '"net.ipv4.tcp_ecn" = 1',
        "rto": '"net.ipv4.tcp_timestamps" = 0, "net.ipv4.tcp_frto" = 0',
    }
    for kind in KINDS:
        delay = "60ms" if kind == "reorder" else "20ms"
        setting = f"sysctl = {{ {sysctl[kind]} }}" if kind in sysctl else ""
        lines.append(f"[nodes.a{kind}]\n{setting}\n[nodes.b{kind}]\n{setting}\n")
        lines.append(f'[links.l{kind}]\nbetween = ["a{kind}", "b{kind}"]\nrate = "5Mbit"')
        lines.append(f'delay = "{delay}"\nbuffer = "200pkt"\n{extra.get(kind, "")}')
    lines.append('[[events]]\nat = "4s"\nlink = "lrto"\noutage = "600ms"\nmode = "drop"')
    lines.append('[[events]]\nat = "4s"\nlink = "lheld"\noutage = "600ms"\nmode = "hold"')
    lines.append('[[events]]\nat = "4s"\nlink = "lreorder"\ndelay = "20ms"')
    for kind in KINDS:
        # A window that the queue has room for: nothing is lost but by force.
        lines.append(f'[[flows]]\nfrom = "a{kind}"\nto = "b{kind}"\nrecv_buffer = "60kB"')
    return "\n".join(lines)


def _edit(files: Files) -> None:
    kernel = kernels.find(None)
    types = btf.of_vmlinux(kernel.vmlinux)
    found = probes(types, types.functions - {"tcp_check_space"}, per_ack=True)
    files["kprobe_events"] = "".join(p.line("ccscope") + "\n" for p in found).encode()
    ours = "".join(f"ccscope/{event}\t\n" for event in sorted({p.event for p in found}))
    files["trace.events"] += b"sock/inet_sock_set_state\t\n" + ours.encode()
    files["trace.triggers"] = b"ccscope/ca\tstacktrace\n"
    # Two rows an ACK at eight senders and eight receivers.
    files["env"] = re.sub(rb"TRACE_KB=\d+", b"TRACE_KB=65536", files["env"])
    # The sender's own queue: one packet, for 300 ms slow, so that it refuses what TCP sends.
    tbf = "tc -n alocal qdisc {} dev llocal root handle 77: tbf rate {} burst 1600 limit {}"
    schedule(files, 10_000, "-", "own0", tbf.format("add", "1gbit", 100000))
    schedule(files, 4_000_000, "-", "own1", tbf.format("change", "500kbit", 1600))
    schedule(files, 4_300_000, "-", "own2", tbf.format("change", "1gbit", 100000))


@pytest.fixture(scope="module")
def view(lab: Lab) -> View:
    return lab.cell(_scenario(), cc="reno", edit=_edit)


@pytest.fixture(scope="module")
def tables(view: View) -> dict[str, Columns]:
    ports = {flow.port: flow for flow in view.plan.flows}

    def known(info: Any) -> dict[str, Any]:
        return {"name": ports[info["dport"]].src} if info["dport"] in ports else {}

    meta, made = read_raw(view.raw, wanted=lambda f: f["dport"] in ports, known=known)
    names = {label: flow["name"].removeprefix("a") for label, flow in meta["flows"].items()}
    assert set(names.values()) == set(KINDS)
    assert meta["lost"] == {"tracefs": 0}
    for columns in made.values():
        columns["kind"] = [names.get(f) for f in columns["flow"]]
    return made


def _causes(tables: dict[str, Columns], kind: str) -> Counter[str]:
    states = tables["states"]
    return Counter(c for c, k in zip(states["cause"], states["kind"], strict=True) if k == kind)


@pytest.mark.parametrize("kind", KINDS)
def test_each_forced_event_has_its_cause_and_nothing_else(
    tables: dict[str, Columns], kind: str
) -> None:
    allowed, needed = WANTED[kind]
    causes = _causes(tables, kind)
    assert needed <= set(causes) <= allowed


@pytest.mark.parametrize("kind", KINDS)
def test_counts_equal_the_kernels_own(view: View, tables: dict[str, Columns], kind: str) -> None:
    causes = _causes(tables, kind)
    for cause, names in COUNTERS.items():
        counted = sum(view.counter(f"a{kind}", f"TcpExt.{name}") for name in names)
        assert causes[cause] == counted, (cause, causes)


def test_forced_events_happened(view: View) -> None:
    assert (Path(view.raw) / "proc/own2.rc").read_text().strip() == "0"


def test_the_state_after_each_ack_is_seen(tables: dict[str, Columns]) -> None:
    acks = tables["acks"]
    phases = Counter(zip(acks["phase"], acks["kind"], strict=True))
    for kind in KINDS:
        # Handshake and close also bring ACKs, on another path than tcp_probe's; and ACKs that were
        # overtaken (PAWS) are seen by tcp_probe and never processed.
        assert abs(phases["after", kind] - phases["before", kind]) <= 5
