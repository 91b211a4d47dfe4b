"""ccscope's recorder on a real machine: what it records, and that nothing of it stays.

One boot does everything (scope_driver.py), without numpy there, as on an operator's server; the
recordings are read here. `make check-packaging` runs this (minutes; on a busy machine much more).
"""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from airlab import kernels, modules, paths
from ccscope.pcapfile import Segment, packets, segment
from ccscope.recording import Recording
from machine import Machine

pytestmark = pytest.mark.machine

HERE = Path(__file__).resolve().parent
PACKAGES = (
    *("bpftrace", "iproute2", "kmod", "mount", "procps", "python3", "tcpdump", "util-linux"),
)
CLEAN = {"probes": [], "instances": [], "events": [], "bpf": []}
TIMEOUT_S = 3600.0
SCRIPT = """\
set -e
mkdir /opt/tools
tar -x -f tools.tar -C /opt/tools
export PYTHONPATH=/opt/tools PYTHONDONTWRITEBYTECODE=1
python3 scope_driver.py
"""


class Done:
    """What the driver brought back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())

    def facts(self, part: str) -> dict[str, Any]:
        """What a part found."""
        made: dict[str, Any] = self._facts[part]
        assert "error" not in made, made["error"]
        return made

    def recording(self, name: str) -> Recording:
        """A recording, from its spool."""
        return Recording.open(self.folder / name)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    # One processor: with two, QEMU's emulator at times runs code that the kernel is just patching
    # (Oops: int3 in __schedule), which tracing makes it do.
    machine = Machine("trixie", PACKAGES, memory_mb=2048, cpus=1)
    kernel = kernels.find(None)
    if kernel.release != machine.release():
        pytest.skip(f"the machine runs {machine.release()}, the modules are for {kernel.release}")
    tools = io.BytesIO()
    with tarfile.open(fileobj=tools, mode="w") as tar:
        tar.add(
            paths.REPO / "tools" / "ccscope",
            "ccscope",
            filter=lambda item: None if "__pycache__" in item.name else item,
        )
    result = machine.run(
        SCRIPT,
        {
            "tools.tar": tools.getvalue(),
            "scope_driver.py": (HERE / "scope_driver.py").read_bytes(),
            "tcp_j.ko": (modules.build(kernel) / "tcp_j.ko").read_bytes(),
        },
        TIMEOUT_S,
    ).check()
    print(result.stdout)
    folder = tmp_path_factory.mktemp("scope")
    for name, data in result.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return Done(folder)


# ---- how it ends ----


@pytest.mark.parametrize("how", ["int", "term", "kill", "both", "two"])
def test_nothing_stays(done: Done, how: str) -> None:
    assert done.facts("endings")[how]["left"] == CLEAN


@pytest.mark.parametrize("how", ["int", "term", "kill"])
def test_there_was_something_to_remove(done: Done, how: str) -> None:
    during = done.facts("endings")[how]["during"]
    assert len(during["probes"]) > 3
    assert len(during["instances"]) == 1
    recording = done.recording(f"end-{how}")
    assert len(recording.table("acks")["t_s"]) > 20
    assert recording.meta["complete"] == (how != "kill")


def test_after_the_guardians_death_the_next_start_cleans_up(done: Done) -> None:
    both = done.facts("endings")["both"]
    (name,) = both["orphaned"]["instances"]
    assert f"removed by the next record: ['{name}']" in both["doctor"]
    assert both["next"]["status"] == 0
    assert any("cut off" in p for p in done.recording("end-both").problems)


def test_two_recorders_do_not_disturb_each_other(done: Done) -> None:
    facts = done.facts("endings")["two"]
    assert len(facts["one"]["instances"]) == 1
    assert facts["first"]["status"] == 0
    times = done.recording("end-first").table("acks")["t_s"]
    second = done.recording("end-second")
    offset = 1e-9 * (
        second.meta["start_monotonic_ns"]
        - done.recording("end-first").meta["start_monotonic_ns"]
    )  # fmt: skip
    # It went on when the other one's probes were removed.
    assert times[-1] > offset + second.duration_s + 0.2


# ---- what is recorded ----


def _segments(recording: Recording) -> list[tuple[int, Segment]]:
    assert recording.capture is not None
    made = [(p.t_ns, segment(p)) for p in packets(recording.capture)]
    return [(t_ns, s) for t_ns, s in made if s is not None]


def test_the_capture_and_the_tables_have_one_clock(done: Done) -> None:
    assert done.facts("captured")["left"] == CLEAN
    recording = done.recording("pcap")
    start = recording.meta["start_realtime_ns"]
    (label,) = [n for n, f in recording.flows.items() if f["dport"] == 5001]
    acks = recording.flow("acks", label)
    times = [t_ns for t_ns, s in _segments(recording) if s.sport == 5001 and s.flags & 16]
    captured = (np.array(times) - start) / 1e9
    assert len(captured) > 50
    # tcpdump sees an ACK, then TCP has processed it: each row follows a packet closely.
    before = np.searchsorted(captured, acks["t_s"]) - 1
    delay = acks["t_s"][before >= 0] - captured[before[before >= 0]]
    assert np.median(delay) < 0.02
    assert (delay >= 0).all()


def test_retransmissions_tell_their_bytes_and_connections_their_life(done: Done) -> None:
    recording = done.recording("pcap")
    (label,) = [n for n, f in recording.flows.items() if f["dport"] == 5001]
    again = recording.flow("retransmits", label)
    assert len(again["t_s"]) > 0
    assert not np.isnan(again["seq_bytes"]).any()
    assert (again["seq_bytes"] >= 0).all()
    acks = recording.flow("acks", label)
    assert again["seq_bytes"].max() <= acks["una_bytes"].max()
    # What is sent again is not yet acknowledged.
    place = np.searchsorted(acks["t_s"], again["t_s"]) - 1
    assert (again["seq_bytes"] >= acks["una_bytes"][place]).all()
    sent = Counter(s.seq for _, s in _segments(recording) if s.dport == 5001 and s.length)
    first = recording.flows[label]["una0_seq"]
    for offset in again["seq_bytes"].astype(int).tolist():
        assert sent[(first + offset) % (1 << 32)] >= 1
    life = recording.flow("life", label)["new"].tolist()
    assert life[0] == "ESTABLISHED"
    assert life[-1] in ("CLOSE", "FIN_WAIT2")


@pytest.mark.parametrize(
    ("how", "which"), [("pid", 0), ("cc", 0), ("netns", 2), ("addr", 2), ("cgroup", 3)]
)
def test_selections(done: Done, how: str, which: int) -> None:
    facts = done.facts("selections")
    assert facts[how]["status"] == 0
    recording = done.recording(f"select-{how}")
    port = facts["ports"][which]
    ends = {(f["sport"], f["dport"]) for f in recording.flows.values()}
    assert ends
    assert all(port in end for end in ends), ends
    assert len(recording.table("acks")["t_s"]) > 20


@pytest.mark.parametrize("what", ["loss", "cwr", "stall"])
def test_triggers_of_the_flight_recorder(done: Done, what: str) -> None:
    facts = done.facts("triggers")[what]
    assert facts["status"] == 0
    recording = done.recording(f"ring-{what}")
    trigger = recording.meta["trigger"]
    forced = (facts["forced_ns"] - recording.meta["start_monotonic_ns"]) / 1e9
    assert trigger["t_s"] > forced
    number = {"loss": "cong_state=4", "cwr": "cong_state=2", "stall": "stall of"}[what]
    assert number in trigger["what"]
    # The ring began before the trigger, and recording went on for the second that was asked for.
    assert recording.table("acks")["t_s"][0] < trigger["t_s"]
    assert recording.duration_s >= trigger["t_s"] + 0.9
    state = {"loss": "Loss", "cwr": "CWR"}.get(what)
    if state:
        assert state in recording.table("states")["state"].tolist()


def test_events_of_our_module(done: Done) -> None:
    assert done.facts("module")["status"] == 0
    recording = done.recording("module")
    samples = recording.table("j_j_abe")
    assert len(samples["t_s"]) > 10
    (label,) = [n for n, f in recording.flows.items() if f["dport"] == 5001]
    assert recording.flows[label]["cc"] == "j"
    assert set(samples["flow"].tolist()) == {label}


def test_another_user_than_root(done: Done) -> None:
    facts = done.facts("unprivileged")
    assert facts["status"] == 0
    assert "recording by sockdiag" in facts["said"]
    assert "sockdiag cannot give: single ACKs" in facts["said"]
    for source in ("tracefs", "bpftrace"):
        status, said = facts["asked"][source]
        assert status == 2
        assert "only root may trace" in said
        assert "sockdiag" in said
    assert "sockdiag: usable" in facts["doctor"]
    assert len(done.recording("nobody/rec").table("samples")["t_s"]) > 0


@pytest.mark.parametrize("how", ["ack", "poll"])
def test_ten_thousand_flows_in_bounded_memory(done: Done, how: str) -> None:
    facts = done.facts("many")[how]
    print(f"{how}: peak of the recorder {facts['peak_kb']} kB")
    assert facts["status"] == 0, facts["said"]
    assert facts["peak_kb"] < 100_000
    recording = done.recording(f"many-{how}")
    if how == "ack":
        lost = recording.meta["lost"]["tracefs"]
        assert len(recording.table("acks")["t_s"]) + lost >= 40_000
    assert len(recording.flows) >= 10_000


# ---- bpftrace ----


def test_bpftrace_gives_the_same_tables(done: Done) -> None:
    facts = done.facts("bpf")
    assert facts["recorded"]["status"] == 0, facts["recorded"]["said"]
    assert "recording by bpftrace" in facts["recorded"]["said"]
    assert facts["during"]["probes"] == []
    recording = done.recording("bpf")
    assert recording.meta["lost"] == {"bpftrace": 0}
    (label,) = [n for n, f in recording.flows.items() if f["dport"] == 5001]
    acks = recording.flow("acks", label)
    assert len(acks["t_s"]) > 50
    assert (np.diff(acks["t_s"]) >= 0).all()
    assert set(acks["phase"]) == {"after"}
    assert 0 < acks["srtt_us"].max() < 10e6
    causes = set(recording.flow("states", label)["cause"].tolist())
    assert "rto" in causes
    assert causes & {"sack", "rack"}
    evidence = " ".join(recording.flow("states", label)["evidence"].tolist())
    assert "tcp_retransmit_timer" in evidence  # from the stack
    again = recording.flow("retransmits", label)
    assert "rto" in again["kind"].tolist()
    assert not np.isnan(again["seq_bytes"]).any()
    assert "ESTABLISHED" in recording.flow("life", label)["new"].tolist()


@pytest.mark.parametrize("how", ["recorded", "killed"])
def test_nothing_stays_of_bpftrace(done: Done, how: str) -> None:
    assert done.facts("bpf")[how]["left"] == CLEAN
