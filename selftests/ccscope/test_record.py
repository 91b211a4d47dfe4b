"""``ccscope record`` on this host: polls always, tracing where the host allows it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from ccscope.cli import main
from ccscope.decode import finish
from ccscope.errors import CcscopeError
from ccscope.flows import Selection
from ccscope.recording import Recording

TOOLS = Path(__file__).parents[2] / "tools"
TRANSFER = """
import socket, sys, threading, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
def receive():
    other, _ = server.accept()
    while other.recv(1 << 16):
        pass
thread = threading.Thread(target=receive)
thread.start()
client = socket.create_connection(server.getsockname())
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    client.sendall(bytes(1 << 14))
    time.sleep(0.001)
client.close()
thread.join()
"""

# In a namespace of its own: looking must not leave a mount on the host.
LOOK = "from ccscope.sources import tracefs; import os; r = tracefs.find(); "


def _in_child(code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", LOOK + code],
        env={**os.environ, "PYTHONPATH": str(TOOLS)},
        capture_output=True,
        text=True,
        check=False,
    )
    return run.stdout.strip() if run.returncode == 0 else ""


def _can_trace() -> bool:
    return _in_child("print(tracefs.offer(r, per_ack=True).events)") not in ("", "[]")


needs_tracefs = pytest.mark.skipif(not _can_trace(), reason="this host or user may not trace")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _record(out: Path, *options: str, seconds: float = 1.0) -> tuple[list[str], int]:
    port = _free_port()
    transfer = [sys.executable, "-c", TRANSFER, str(port), str(seconds)]
    command = [sys.executable, "-m", "ccscope", "record", "--port", str(port), "-o", str(out)]
    return [*command, *options, "--", *transfer], port


def _run(out: Path, *options: str, seconds: float = 1.0) -> tuple[Recording, str]:
    command, _ = _record(out, *options, seconds=seconds)
    environment = {**os.environ, "PYTHONPATH": str(TOOLS)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return Recording.open(out), run.stderr


def _left() -> str:
    """What recorders have left: instances and probe groups."""
    return _in_child("print([p.name for p in (r / 'instances').iterdir()], tracefs.stale(r))")


def test_polls_need_no_right(tmp_path: Path) -> None:
    recording, said = _run(tmp_path / "r", "--source", "sockdiag", "--per", "20ms")
    assert "recording by sockdiag (asked for)" in said
    samples = recording.flow("samples", "f1")
    assert len(samples["t_s"]) > 5
    assert (np.diff(samples["t_s"]) > 0).all()
    assert samples["cwnd_segs"].min() > 0
    assert samples["bytes_acked"].max() > 0 or recording.flow("samples", "f2")["bytes_acked"].max()
    assert recording.flows["f1"]["cc"]
    assert recording.meta["complete"]
    assert recording.meta["overhead"]["cpu_share"] < 0.5
    assert "single ACKs" in recording.meta["sources"][0]["cannot"][0]


@needs_tracefs
def test_tracepoints_show_every_ack(tmp_path: Path) -> None:
    recording, said = _run(tmp_path / "r")
    assert "recording by tracefs" in said
    assert recording.meta["lost"] == {"tracefs": 0}
    assert len(recording.flows) == 2
    acks = recording.table("acks")
    assert len(acks["t_s"]) > 50
    assert (np.diff(acks["t_s"]) >= 0).all()
    assert 0 <= acks["t_s"][0] < acks["t_s"][-1] <= recording.duration_s
    life = recording.table("life")
    assert {"ESTABLISHED", "CLOSE"} <= set(life["new"])
    assert _left() == "[] []"


@needs_tracefs
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind(tmp_path: Path, number: signal.Signals) -> None:
    command, _ = _record(tmp_path / "r", seconds=20)
    environment = {**os.environ, "PYTHONPATH": str(TOOLS)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        _wait_for(lambda: len(list((tmp_path / "r" / "spool").glob("*.seg"))) > 0)
        time.sleep(1.0)
        assert str(process.pid) in _left()
        children = _children(process.pid)
        os.kill(process.pid, number)
        process.wait(20)
    _wait_for(lambda: _left() == "[] []")
    if number == signal.SIGKILL:
        # The command was the user's own, and outlives us then; the guardian must not.
        for pid in children:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if TRANSFER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        assert (tmp_path / "r" / "spool").is_dir()
        before = Recording.open(tmp_path / "r")
        assert before.kind == "spool"
        assert "cut off" in before.problems[-1]
        assert main(["finish", str(tmp_path / "r")]) == 0
    recording = Recording.open(tmp_path / "r")
    assert recording.kind == "recording"
    assert len(recording.table("acks")["t_s"]) > 10
    assert recording.meta["complete"] == (number != signal.SIGKILL)


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def _wait_for(condition: object) -> None:
    assert callable(condition)
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


@needs_tracefs
def test_what_dead_recorders_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    _in_child("os.mkdir(r / 'instances' / 'ccscope_4194305_1')")
    assert "ccscope_4194305_1" in _left()
    _run(tmp_path / "r", "--per", "change", seconds=0.2)
    assert _left() == "[] []"


def test_selection_by_process_and_algorithm(tmp_path: Path) -> None:
    port = _free_port()
    with socket.create_server(("127.0.0.1", port)) as server:
        client = socket.create_connection(("127.0.0.1", port))
        other, _ = server.accept()
        with client, other:
            argv = ["record", "--source", "sockdiag", "--per", "20ms", "--for", "200ms"]
            name = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            wanted = ["--pid", str(os.getpid()), "--port", str(port)]
            mine = _ours([*argv, *wanted, "--cc", name.split(b"\0")[0].decode()], tmp_path / "a")
            assert {f["sport"] for f in mine.flows.values()} == {port, client.getsockname()[1]}
            none = _ours([*argv, *wanted, "--cc", "nosuch"], tmp_path / "b")
            assert none.flows == {}


def _ours(argv: list[str], out: Path) -> Recording:
    environment = {**os.environ, "PYTHONPATH": str(TOOLS)}
    command = [sys.executable, "-m", "ccscope", *argv, "-o", str(out)]
    subprocess.run(command, env=environment, capture_output=True, check=True)
    return Recording.open(out)


def test_a_stall_ends_a_flight_recorder(tmp_path: Path) -> None:
    port = _free_port()
    server = socket.create_server(("127.0.0.1", port))
    client = socket.create_connection(("127.0.0.1", port))
    other, _ = server.accept()
    # The peer reads nothing: its window closes with data outstanding or a probe on the way.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    client.setblocking(False)
    stop = threading.Event()

    def fill() -> None:
        while not stop.is_set():
            try:
                client.send(bytes(1 << 16))
            except BlockingIOError:
                stop.wait(0.05)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        options = ["--ring", "3s", "--trigger", "stall", "--after", "200ms", "--for", "30s"]
        argv = ["record", "--source", "sockdiag", "--per", "50ms", "--port", str(port), *options]
        recording = _ours(argv, tmp_path / "r")
    finally:
        stop.set()
        thread.join()
        for sock in (client, other, server):
            sock.close()
    assert recording.duration_s < 25
    assert recording.meta["trigger"]["what"].startswith("stall of")
    times = recording.table("samples")["t_s"]
    # The ring, the stall until it counts as one, the time after it, and what is left of a segment.
    assert times[-1] - times[0] < 3 + 3 + 0.2 + 2


def test_wrong_use_names_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "r")
    for argv, text in [
        (["--port", "70000"], "a port is 1 to 65535"),
        (["--addr", "nonsense"], "--addr nonsense"),
        (["--netns", "nosuch"], "--netns nosuch"),
        (["--per", "often"], "ack, change, or a time"),
        (["--per", "10us"], "1 ms at least"),
        (["--ring", "5s"], "belong together"),
        (["--source", "sockdiag", "--cgroup", "no/such"], "--cgroup no/such"),
        (["--source", "sockdiag", "--", "/no/such/program"], "cannot be started"),
    ]:
        assert main(["record", "-o", out, *argv]) == 2
        assert text in capsys.readouterr().err


def test_kernel_filters() -> None:
    chosen = Selection(ports=(5001,), netns=(4026531840,))
    fields = {"sport", "dport"}
    assert chosen.kernel_filter(fields) == "(sport == 5001 || dport == 5001)"
    assert chosen.kernel_filter({"handle"}) == ""
    ours = chosen.kernel_filter({"sport", "dporthi", "dportlo", "netns"})
    assert "dporthi == 19 && dportlo == 137" in ours
    assert ours.endswith("&& (netns == 4026531840)")
    assert Selection.from_json(chosen.to_json()) == chosen
    flow = {"src": "10.0.0.1", "dst": "10.0.0.9", "sport": 5001, "dport": 7}
    assert Selection(addresses=("10.0.0.8/30",)).ends(flow)
    assert not Selection(addresses=("10.0.0.4/30", "fe80::/10")).ends(flow)
    assert not Selection(ports=(8,)).ends(flow)


def test_finish_can_be_done_again(tmp_path: Path) -> None:
    with pytest.raises(CcscopeError, match="cannot be read"):
        finish(tmp_path)
    recording, _ = _run(tmp_path / "r", "--source", "sockdiag", "--per", "20ms", seconds=0.3)
    with pytest.raises(CcscopeError):
        finish(tmp_path / "r")
    assert json.loads((recording.path / "recording.json").read_text())["tables"]["samples"] > 0


def test_doctor_says_what_each_source_gives(capsys: pytest.CaptureFixture[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "ccscope", "doctor"],
        env={**os.environ, "PYTHONPATH": str(TOOLS)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "sockdiag: usable" in run.stdout
    assert "tracefs:" in run.stdout
    assert "cannot give" in run.stdout
