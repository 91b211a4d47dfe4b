"""Runs in the guest that plays a real machine: ccscope's recorder, used and ended in every way.

Standard library only, as the recorder itself. Writes ``out/facts.json``; the recordings, which are
spools here, come back in ``out`` and are read by the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

OUT = Path("out").resolve()
TRACING = Path("/sys/kernel/tracing")
CCSCOPE = [sys.executable, "-m", "ccscope"]
SENDER, RECEIVER = "10.9.0.1", "10.9.0.2"
FOREVER_S = 1e6
WAIT_S = 900.0
"""Patience: a busy machine emulates the guest slowly."""

SERVE = """
import socket, sys, threading
def drain(s):
    while s.recv(1 << 16): pass
    s.close()
server = socket.create_server(("0.0.0.0", int(sys.argv[1])), backlog=4096)
print("up", flush=True)
while True:
    threading.Thread(target=drain, args=(server.accept()[0],), daemon=True).start()
"""
SEND = """
import socket, sys, time
address, port, cc = sys.argv[1], int(sys.argv[2]), sys.argv[3]
seconds, rest = float(sys.argv[4]), float(sys.argv[5])
s = socket.socket()
if cc != "-": s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, cc.encode())
s.connect((address, port))
print(s.getsockname()[1], flush=True)
end = time.monotonic() + seconds
while time.monotonic() < end:
    s.sendall(bytes(1 << 14)); time.sleep(rest)
s.close()
"""
MANY = """
import resource, socket, sys, time
count, port = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (3 * count, 3 * count))
server = socket.create_server(("127.0.0.1", port), backlog=4096)
pairs = []
for _ in range(count):
    c = socket.create_connection(("127.0.0.1", port))
    pairs.append((c, server.accept()[0]))
print("up", flush=True)
sys.stdin.readline()
for _ in range(2):
    for c, s in pairs:
        c.send(bytes(3000)); s.recv(3000)
print("sent", flush=True)
sys.stdin.readline()
"""


def tracing() -> dict[str, Any]:
    """What a recorder could leave in the kernel."""
    return {
        "probes": [
            line
            for name in ("kprobe_events", "dynamic_events")
            for line in (TRACING / name).read_text().splitlines()
        ],
        "instances": sorted(p.name for p in (TRACING / "instances").iterdir()),
        "events": (TRACING / "set_event").read_text().split(),
        "bpf": [p for p in _processes() if "bpftrace" in p or "ccscope" in p],
    }


def _processes() -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
    return found


CLEAN = {"probes": [], "instances": [], "events": [], "bpf": []}


def wait_for(what: Callable[[], Any], why: str) -> Any:
    """Wait until something is true, and return it."""
    end = time.monotonic() + WAIT_S
    while not (made := what()):
        if time.monotonic() > end:
            raise TimeoutError(why)
        time.sleep(0.1)
    return made


def clean() -> dict[str, Any]:
    """What is left when nothing changes any more."""
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: tracing() == CLEAN, "clean")
    return tracing()


def run(*argv: str) -> str:
    """Run a program that must succeed; its output."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{argv}: {done.stdout}{done.stderr}")
    return done.stdout


def words(text: str) -> str:
    """The same, of words without spaces in them."""
    return run(*text.split())


@contextlib.contextmanager
def process(*argv: str, ready: str = "", netns: str = "") -> Iterator[subprocess.Popen[str]]:
    """A program that runs meanwhile; with ``ready`` once it has said so."""
    inside = ["ip", "netns", "exec", netns] if netns else []
    with subprocess.Popen(
        [*inside, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as made:
        try:
            assert made.stdout is not None
            if ready:
                assert made.stdout.readline().startswith(ready)
            yield made
        finally:
            made.kill()


def serve(port: int, netns: str = "") -> Any:
    """A server that swallows."""
    return process(sys.executable, "-c", SERVE, str(port), ready="up", netns=netns)


def send(  # one connection
    address: str, port: int, *, cc: str = "-", seconds: float = 3.0, rest: float = 0.01,
    netns: str = "", say: bool = True,
) -> Any:  # fmt: skip
    """A sender; the first line it says is its port."""
    words = [sys.executable, "-c", SEND, address, str(port), cc, str(seconds), str(rest)]
    return process(*words, netns=netns)


class Recorder:
    """A recorder that has said that it records."""

    def __init__(self, name: str, *options: str) -> None:
        self._said = OUT / f"{name}.said"
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [*CCSCOPE, "record", "-o", str(OUT / name), *options], stderr=said
            )
        wait_for(lambda: "recording by" in self._said.read_text() or self.over, f"{name} records")
        time.sleep(0.5)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    def end(self, number: int | None = signal.SIGINT) -> dict[str, Any]:
        """Stop it (or wait for its end); how it went."""
        if number is not None:
            self.process.send_signal(number)
        status = self.process.wait(WAIT_S)
        return {"status": status, "said": self._said.read_text()}


# ---- how it ends ----


def endings() -> dict[str, Any]:
    """Every way a recorder can end, and what is left."""
    facts: dict[str, Any] = {}
    with serve(5001), send("127.0.0.1", 5001, seconds=FOREVER_S):
        for name, number in (
            ("int", signal.SIGINT),
            ("term", signal.SIGTERM),
            ("kill", signal.SIGKILL),
        ):
            made = Recorder(f"end-{name}", "--port", "5001")
            time.sleep(1.5)
            during = tracing()
            facts[name] = {**made.end(number), "during": during, "left": clean()}
        made = Recorder("end-both", "--port", "5001")
        time.sleep(1.5)
        children = (
            Path(f"/proc/{made.process.pid}/task/{made.process.pid}/children").read_text().split()
        )
        for pid in [int(c) for c in children]:
            os.kill(pid, signal.SIGKILL)
        facts["both"] = made.end(signal.SIGKILL)
        time.sleep(1.0)
        facts["both"]["orphaned"] = tracing()
        facts["both"]["doctor"] = run(*CCSCOPE, "doctor")
        made = Recorder("end-next", "--port", "5001", "--for", "1s")
        facts["both"]["next"] = made.end(None)
        facts["both"]["left"] = clean()
        # Of two at once, each keeps what is its own.
        first = Recorder("end-first", "--port", "5001")
        second = Recorder("end-second", "--port", "5001")
        time.sleep(1.0)
        second.end()
        facts["two"] = {"one": tracing(), "first": first.end(), "left": clean()}
    return facts


# ---- what it records ----


@contextlib.contextmanager
def path() -> Iterator[None]:
    """Namespaces a and b with a veth pair between them: 20 Mbit/s, 20 ms."""
    for name in "ab":
        run("ip", "netns", "add", name)
    words("ip link add va netns a type veth peer name vb netns b")
    for name, address in (("a", SENDER), ("b", RECEIVER)):
        run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", f"v{name}")
        run("ip", "-n", name, "link", "set", f"v{name}", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        words(f"tc -n {name} qdisc add dev v{name} root netem delay 10ms rate 20mbit limit 200")
    try:
        yield
    finally:
        for name in "ab":
            run("ip", "netns", "del", name)


def netem(rule: str) -> None:
    """Change the sender's direction."""
    words(f"tc -n a qdisc change dev va root netem delay 10ms rate 20mbit limit 200 {rule}")


def outage(seconds: float) -> None:
    """Nothing passes for a while: the retransmission timer runs out."""
    netem("loss 100%")
    time.sleep(seconds)
    netem("loss 0%")


def captured() -> dict[str, Any]:
    """A capture beside the tables, with losses, so that segments are sent again."""
    with serve(5001, "b"):
        made = Recorder("pcap", "--pcap", "--port", "5001", "--netns", "a")
        with send(RECEIVER, 5001, netns="a", seconds=4.0) as sender:
            time.sleep(1.5)
            netem("loss 3%")
            time.sleep(1.0)
            netem("loss 0%")
            sender.wait(WAIT_S)
        time.sleep(0.5)
        return {**made.end(), "left": clean()}


def selections() -> dict[str, Any]:
    """One of two flows, by cgroup, network namespace, process and algorithm."""
    facts: dict[str, Any] = {}
    group = Path("/sys/fs/cgroup/scope")
    group.mkdir(exist_ok=True)
    with serve(5002), serve(5001, "b"):
        with (
            send("127.0.0.1", 5002, cc="reno", seconds=FOREVER_S) as one,
            send("127.0.0.1", 5002, seconds=FOREVER_S) as two,
            send(RECEIVER, 5001, netns="a", seconds=FOREVER_S) as three,
        ):
            ports = [int(p.stdout.readline()) for p in (one, two, three)]
            for name, options in (
                ("pid", ["--pid", str(one.pid)]),
                ("cc", ["--cc", "reno"]),
                ("netns", ["--netns", "a"]),
                ("addr", ["--addr", "10.9.0.0/24"]),
            ):
                made = Recorder(f"select-{name}", *options, "--for", "2s")
                facts[name] = made.end(None)
            script = f'echo $$ >{group}/cgroup.procs; exec "$@"'
            words = [sys.executable, "-c", SEND, "127.0.0.1", "5002", "-", str(FOREVER_S), "0.01"]
            with process("sh", "-c", script, "sh", *words) as four:
                ports.append(int(four.stdout.readline()))
                made = Recorder("select-cgroup", "--cgroup", "scope", "--for", "2s")
                facts["cgroup"] = made.end(None)
        facts["ports"] = ports
    return facts


def triggers() -> dict[str, Any]:
    """The flight recorder: loss, cwr and stall."""
    facts: dict[str, Any] = {}
    ring = ["--ring", "3s", "--after", "1s", "--for", "600s", "--netns", "a", "--port", "5001"]
    with serve(5001, "b"):
        for name, force in (("loss", lambda: outage(2.0)), ("cwr", choke), ("stall", stop)):
            made = Recorder(f"ring-{name}", *ring, "--trigger", name)
            # A third of the link's rate: no queue overflows before it is made to.
            with send(RECEIVER, 5001, netns="a", seconds=FOREVER_S, rest=0.02):
                time.sleep(5.0)
                forced = time.monotonic_ns()
                force()
                facts[name] = {**made.end(None), "forced_ns": forced}
                netem("loss 0%")
    return facts


def choke() -> None:
    """The sender's own queue refuses packets."""
    words("tc -n a qdisc replace dev va root tbf rate 500kbit burst 1600 limit 1600")
    time.sleep(1.5)
    words("tc -n a qdisc replace dev va root netem delay 10ms rate 20mbit limit 200")


def stop() -> None:
    """Nothing passes for so long that it is a stall."""
    netem("loss 100%")


def module() -> dict[str, Any]:
    """A congestion control with tracepoints of its own."""
    run("insmod", "tcp_j.ko")
    with serve(5001, "b"):
        made = Recorder("module", "--port", "5001", "--netns", "a")
        with send(RECEIVER, 5001, netns="a", cc="j", seconds=3.0, rest=0.002) as sender:
            sender.wait(WAIT_S)
        facts = made.end()
    run("rmmod", "tcp_j")
    return facts


def unprivileged() -> dict[str, Any]:
    """Another user than root."""
    folder = OUT / "nobody"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    with serve(5002), send("127.0.0.1", 5002, seconds=FOREVER_S):
        words = [*drop, *CCSCOPE, "record", "-o", str(folder / "rec"), "--port", "5002"]
        auto = subprocess.run(
            [*words, "--per", "50ms", "--for", "2s"], capture_output=True, text=True, check=False
        )
        words[words.index(str(folder / "rec"))] = str(folder / "no")
        asked = {
            source: subprocess.run(
                [*words, "--source", source, "--for", "1s"],
                capture_output=True,
                text=True,
                check=False,
            )
            for source in ("tracefs", "bpftrace")
        }
        doctor = subprocess.run(
            [*drop, *CCSCOPE, "doctor"], capture_output=True, text=True, check=False
        )
    return {
        "status": auto.returncode,
        "said": auto.stderr,
        "asked": {name: [done.returncode, done.stderr] for name, done in asked.items()},
        "doctor": doctor.stdout,
    }


def many() -> dict[str, Any]:
    """10,000 connections (20,000 sockets), most of the time quiet."""
    facts: dict[str, Any] = {}
    run("sysctl", "-q", "-w", "net.core.somaxconn=4096")
    with process(sys.executable, "-c", MANY, "10000", "5003", ready="up") as flows:
        assert flows.stdin is not None and flows.stdout is not None
        for name, options in (
            ("ack", ["--per", "ack"]),
            ("poll", ["--source", "sockdiag", "--per", "1s"]),
        ):
            made = Recorder(f"many-{name}", "--port", "5003", *options)
            if name == "ack":
                flows.stdin.write("go\n")
                flows.stdin.flush()
                assert flows.stdout.readline() == "sent\n"
            else:
                time.sleep(10.0)
            status = Path(f"/proc/{made.process.pid}/status").read_text()
            peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
            facts[name] = {"peak_kb": int(peak.split()[1]), **made.end()}
    return facts


def bpf() -> dict[str, Any]:
    """The source bpftrace: what it gives, and that nothing of it stays."""
    facts: dict[str, Any] = {}
    with serve(5001, "b"):
        made = Recorder(
            "bpf", "--source", "bpftrace", "--port", "5001", "--netns", "a", "--netns", "b"
        )
        if not made.over:
            with send(RECEIVER, 5001, netns="a", seconds=FOREVER_S, rest=0.005):
                time.sleep(2.0)
                netem("loss 5%")
                time.sleep(3.0)
                outage(2.0)
                time.sleep(2.0)
                facts["during"] = tracing()
            time.sleep(1.0)
        facts["recorded"] = {**made.end(), "left": clean()}
        with send(RECEIVER, 5001, netns="a", seconds=FOREVER_S):
            made = Recorder("bpf-kill", "--source", "bpftrace", "--port", "5001")
            time.sleep(1.0)
            facts["killed"] = {**made.end(signal.SIGKILL), "left": clean()}
    return facts


PARTS = (endings, captured, selections, triggers, module, unprivileged, many, bpf)


def main() -> None:
    """Run the parts that are named, or all."""
    facts: dict[str, Any] = {}
    names = sys.argv[1:] or [part.__name__ for part in PARTS]
    with path():
        facts["doctor"] = run(*CCSCOPE, "doctor")
        for part in PARTS:
            if part.__name__ not in names:
                continue
            began = time.monotonic()
            try:
                facts[part.__name__] = part()
            except Exception as error:  # the other parts are of use, too
                facts[part.__name__] = {"error": repr(error)}
            print(f"{part.__name__}: {time.monotonic() - began:.0f} s", flush=True)
            (OUT / "facts.json").write_text(json.dumps(facts, indent=1))
    run("chmod", "-R", "a+rX", str(OUT))


if __name__ == "__main__":
    main()
