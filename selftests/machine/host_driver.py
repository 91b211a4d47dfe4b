"""Runs in the guest that plays a real host: every way a cell can end, and what is left then.

Standard library only. Writes ``out/endings.json``: for each ending, what differs between the state
of the machine before and after (empty is right), and facts for the test to judge.
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

LAB = Path("/lab-disk")
WORK = Path("/run/work")
RUN = Path("/run/airlab")
GUARD_S = 900.0
SETTLE_S = 60.0
"""The kernel dismantles network namespaces some time after their last process."""

State = dict[str, Any]


def output(*words: str) -> str:
    """Standard output of a program."""
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


def lines(*words: str) -> list[str]:
    """The same, in lines."""
    return output(*words).splitlines()


def read(path: Path) -> str:
    """A file's text, or why there is none."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError as error:
        return f"{error.strerror}"


def tree(top: str) -> dict[str, str]:
    """All readable files below a folder with what is in them."""
    return {str(p): read(p) for p in sorted(Path(top).rglob("*")) if p.is_file()}


def processes() -> list[str]:
    """Commands of all processes but kernel threads, this one and those it has just started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if words:
                found.append(words)
    return sorted(found)


def state() -> State:
    """Everything that the issue says must be equal before and after."""
    tracing = Path("/sys/kernel/tracing")
    return {
        "netns": lines("ip", "netns", "list"),
        "netns files": sorted(str(p) for p in Path("/run/netns").glob("*")),
        "links": lines("ip", "-o", "link", "show"),
        "addresses": lines("ip", "-o", "addr", "show"),
        "routes": lines("ip", "route", "show", "table", "all")
        + lines("ip", "-6", "route", "show", "table", "all"),
        "rules": lines("ip", "rule") + lines("ip", "-6", "rule"),
        "qdiscs": lines("tc", "qdisc", "show"),
        "sysctls": tree("/proc/sys/net"),
        "panic": {
            n: read(Path("/proc/sys/kernel") / n) for n in ("panic_on_warn", "panic_on_oops")
        },
        "modules": sorted(line.split()[0] for line in read(Path("/proc/modules")).splitlines()),
        "parameters": {
            str(p): read(p) for p in sorted(Path("/sys/module").glob("tcp_*/parameters/*"))
        },
        "tracing": {
            "instances": sorted(p.name for p in (tracing / "instances").iterdir()),
            **{n: read(tracing / n) for n in ("tracing_on", "set_event", "trace_clock")},
        },
        "mounts": read(Path("/proc/self/mountinfo")).splitlines(),
        "bpf": sorted(str(p) for p in Path("/sys/fs/bpf").rglob("*")),
        "processes": processes(),
        "run": sorted(str(p) for p in RUN.rglob("*") if p.name != "host.lock"),
    }


def difference(before: State, after: State) -> dict[str, Any]:
    """What of a state is not as it was."""
    found: dict[str, Any] = {}
    for name, old in before.items():
        new = after[name]
        if old == new:
            continue
        if isinstance(old, dict):
            found[name] = {
                k: [old.get(k), new.get(k)] for k in {*old, *new} if old.get(k) != new.get(k)
            }
        else:
            found[name] = {
                "gone": [x for x in old if x not in new],
                "new": [x for x in new if x not in old],
            }
    return found


def settled(before: State) -> dict[str, Any]:
    """The difference when nothing changes any more, or after SETTLE_S."""
    end = time.monotonic() + SETTLE_S
    while True:
        left = difference(before, state())
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.5)


class Airlab:
    """One ``airlab run`` on engine host."""

    def __init__(self, name: str, *words: str) -> None:
        self.out = WORK / name
        self._log = (WORK / f"{name}.log").open("w")
        command = [sys.executable, "-m", "airlab", "run", str(LAB / "host.toml")]
        command += ["--engine", "host", "--no-page", "--out", str(self.out), *words]
        self.process = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def said(self) -> str:
        """All it wrote so far."""
        return (WORK / f"{self.out.name}.log").read_text(errors="replace")

    def wait(self) -> int:
        """Its exit status."""
        return self.process.wait(GUARD_S)

    def until_it_runs(self) -> None:
        """Until the experiment has begun."""
        end = time.monotonic() + GUARD_S
        while not any("AIRLAB-START" in read(c) for c in self.out.glob("work/*/console.log")):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.out.name} did not come to its start: {self.said()}")
            time.sleep(0.1)

    def guardian(self) -> int:
        """The process that undoes what a killed airlab leaves."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if b"airlab.undo" in (folder / "cmdline").read_bytes():
                    return int(folder.name)
        raise RuntimeError("there is no guardian")

    def cells(self) -> dict[str, Any]:
        """``cell.json`` of the finished cells."""
        return {
            p.parent.name: json.loads(p.read_text()) for p in self.out.glob("cells/*/cell.json")
        }


ENDINGS: dict[str, Callable[[], dict[str, Any]]] = {}


def ending(act: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Register a way to end under the function's name."""
    ENDINGS[act.__name__] = act
    return act


@ending
def normal() -> dict[str, Any]:
    """A cell that ends by itself, on a machine that has a namespace of the same name."""
    subprocess.run(["ip", "netns", "add", "a"], check=True)
    try:
        before = state()
        airlab = Airlab("normal")
        airlab.until_it_runs()
        during = difference(before, state())
        status = airlab.wait()
        return {
            "status": status,
            "during": during,
            "other": difference(before, state()),
            "cells": airlab.cells(),
            "said": airlab.said(),
        }
    finally:
        subprocess.run(["ip", "netns", "del", "a"], check=True)


def stopped(name: str, number: int) -> dict[str, Any]:
    """A signal to airlab in the middle of the experiment."""
    airlab = Airlab(name)
    airlab.until_it_runs()
    os.kill(airlab.process.pid, number)
    return {"status": airlab.wait(), "said": airlab.said(), "cells": airlab.cells()}


@ending
def interrupted() -> dict[str, Any]:
    """Ctrl-C."""
    airlab = Airlab("interrupted")
    airlab.until_it_runs()
    os.killpg(airlab.process.pid, signal.SIGINT)
    return {"status": airlab.wait(), "said": airlab.said()}


@ending
def terminated() -> dict[str, Any]:
    """SIGTERM."""
    return stopped("terminated", signal.SIGTERM)


@ending
def killed() -> dict[str, Any]:
    """kill -9 of airlab: its guardian tidies up."""
    return stopped("killed", signal.SIGKILL)


@ending
def all_killed_then_cleaned() -> dict[str, Any]:
    """kill -9 of airlab and of its guardian: something is left, until ``airlab host-clean``."""
    return everything_killed("cleaned", [sys.executable, "-m", "airlab", "host-clean"])


@ending
def all_killed_then_run_again() -> dict[str, Any]:
    """The same; the next run tidies up."""
    words = [sys.executable, "-m", "airlab", "run", str(LAB / "host.toml"), "--engine", "host"]
    return everything_killed("again", [*words, "--no-page", "--out", str(WORK / "after-again")])


def everything_killed(name: str, then: list[str]) -> dict[str, Any]:
    """Kill airlab and its guardian at once, see what is left, run something."""
    before = state()
    airlab = Airlab(name)
    airlab.until_it_runs()
    guardian = airlab.guardian()
    os.kill(guardian, signal.SIGSTOP)
    airlab.process.kill()
    os.kill(guardian, signal.SIGKILL)
    airlab.wait()
    time.sleep(2)
    left = difference(before, state())
    done = subprocess.run(then, capture_output=True, text=True, check=False)
    return {"left": left, "status": done.returncode, "said": done.stdout + done.stderr}


@ending
def failed() -> dict[str, Any]:
    """A cell whose set-up fails: a module parameter out of its range."""
    airlab = Airlab("failed", "--cc", "bad")
    return {"status": airlab.wait(), "said": airlab.said()}


@ending
def shell() -> dict[str, Any]:
    """An interactive cell: it sees its own namespaces, and the machine does not."""
    words = [sys.executable, "-m", "airlab", "shell", str(LAB / "host.toml"), "--engine", "host"]
    asked = "echo NETNS $(ip netns list)\nexit 7\n"
    done = subprocess.run(words, input=asked, capture_output=True, text=True, check=False)
    return {"status": done.returncode, "said": done.stdout + done.stderr}


@ending
def two_at_once() -> dict[str, Any]:
    """Two airlabs at the same time: they take turns."""
    both = [Airlab("first"), Airlab("second")]
    return {"status": [a.wait() for a in both], "cells": [sorted(a.cells()) for a in both]}


@ending
def module_of_the_operator() -> dict[str, Any]:
    """A module that was loaded before stays, with the operator's parameters."""
    module = next((LAB / "cache" / "host-modules").glob("*/tcp_j.ko"))
    subprocess.run(["insmod", str(module)], check=True)
    try:
        before = state()
        airlab = Airlab("operator", "--cc", "tuned")
        status = airlab.wait()
        return {"status": status, "other": settled(before), "said": airlab.said()}
    finally:
        subprocess.run(["rmmod", "tcp_j"], check=True)


@contextlib.contextmanager
def told(name: str) -> Iterator[None]:
    """Say on the script's output how long an ending took."""
    start = time.monotonic()
    yield
    print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)


def main(names: list[str]) -> None:
    """Run the endings asked for (all)."""
    WORK.mkdir(exist_ok=True)
    results: dict[str, Any] = {}
    # What is there for good after the first command of its kind, such as /run/netns, is no trace.
    subprocess.run(["ip", "netns", "add", "warm-up"], check=True)
    subprocess.run(["ip", "netns", "del", "warm-up"], check=True)
    for name in names or list(ENDINGS):
        before = state()
        with told(name):
            try:
                facts = ENDINGS[name]()
            except Exception as error:
                facts = {"error": repr(error)}
            results[name] = {"facts": facts, "left": settled(before)}
        print(json.dumps(results[name], indent=1), flush=True)
        Path("out/endings.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
