"""Boots guests for tests and gives their results as plain values.

A :class:`Lab` runs cells (a scenario text, compiled, booted and collected as ``airlab run`` does)
and scripts (a guest that runs one shell script).  Equal cells are run once a session, also when
pytest-xdist spreads the tests over workers.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from airlab.collect import collect
from airlab.engines import REAL_TIME, QemuEngine, VmEngine, Watch
from airlab.image import Image
from airlab.model import Cell, CellPlan
from airlab.plan import build_plan
from airlab.scenario import Scenario, parse_scenario

Column = npt.NDArray[Any]
Table = dict[str, Column]
Files = dict[str, bytes]
Edit = Callable[[Files], None]

PATH = """
schema = 1
name = "{name}"
title = "A test"
purpose = "Does it hold?"
duration = "{duration}"
cc = ["j"]
{head}
[nodes.a]
{sender}
[nodes.r]
role = "router"
[nodes.b]
{receiver}
[links.lan]
between = ["a", "r"]
[links.air]
between = ["r", "b"]
rate = "5Mbit"
delay = "25ms"
{link}
{rest}
"""

FLOW = """
[[flows]]
from = "a"
to = "b"
"""

SCRIPT_HEAD = r"""
# fact NAME VALUE...: a line for the test to judge.
fact() { echo "$*" >>/out/facts; }
# try NAME COMMAND...: the fact is the exit status and what the command said.
try() {
	name=$1
	shift
	"$@" >/tmp/said 2>&1
	fact "$name" $? $(cat /tmp/said)
}
loaded() { [ -d /sys/module/tcp_j ] && echo yes || echo no; }
"""


def path(
    name: str,
    duration: str,
    *,
    link: str = 'buffer = "30pkt"',
    head: str = "",
    sender: str = "",
    receiver: str = "",
    rest: str = FLOW,
) -> str:
    """A scenario: host a, router r, host b; 5 Mbit/s and 50 ms between r and b."""
    return PATH.format(
        name=name, duration=duration, link=link, head=head, sender=sender, receiver=receiver,
        rest=rest,
    )  # fmt: skip


def schedule(files: Files, at_us: int, netns: str, label: str, argv: str) -> None:
    """Add a line to the experiment's schedule."""
    files["main.tsv"] += f"{at_us}\t{netns}\t{label}\t{argv}\n".encode()


def swap(files: Files, name: str, old: str, new: str) -> None:
    """Replace a text that must be there."""
    text = files[name].decode()
    assert old in text, f"{name} has no {old!r}"
    files[name] = text.replace(old, new).encode()


@dataclass(frozen=True)
class View:
    """What a cell left behind."""

    folder: Path
    plan: CellPlan

    @property
    def raw(self) -> Path:
        """The raw folder of docs/lab-internals.md section 6."""
        return self.folder / "out"

    @property
    def cell(self) -> dict[str, Any]:
        """``cell.json``."""
        data: dict[str, Any] = json.loads((self.folder / "cell" / "cell.json").read_text())
        return data

    @property
    def console(self) -> str:
        """The kernel's console."""
        return (self.folder / "console.log").read_text(errors="replace")

    def flow(self, label: str = "f1") -> dict[str, Any]:
        """A flow's row of ``cell.json``."""
        return next(dict(f) for f in self.cell["flows"] if f["label"] == label)

    def report(self, name: str) -> dict[str, Any]:
        """What airflow wrote into ``json/NAME.json``."""
        data: dict[str, Any] = json.loads((self.raw / "json" / f"{name}.json").read_text())
        return data

    def table(self, name: str, flow: str | None = None) -> Table:
        """A Parquet table as numpy columns, rows in order of time; one flow's rows if named."""
        file = self.folder / "cell" / f"{name}.parquet"
        if not file.is_file():
            return {"t_s": np.zeros(0)}
        read = pq.read_table(file)
        columns = {n: read[n].to_numpy(zero_copy_only=False) for n in read.column_names}
        if flow is not None and "flow" in columns:
            mine = columns["flow"] == flow
            columns = {n: c[mine] for n, c in columns.items()}
        order = np.argsort(columns["t_s"], kind="stable")
        return {n: c[order] for n, c in columns.items()}

    def failed_checks(self) -> list[str]:
        """Names of the audit's failed checks."""
        return [c["name"] for c in self.cell["audit"]["checks"] if not c["ok"]]

    def counter(self, node: str, name: str) -> int:
        """How much an SNMP counter (``Group.Name``) of a node grew."""
        return _snmp(self.raw / f"nstat1.{node}", name) - _snmp(self.raw / f"nstat0.{node}", name)


@dataclass(frozen=True)
class ScriptView:
    """What a script guest left behind."""

    out: Path
    console: str

    @property
    def facts(self) -> dict[str, str]:
        """The facts the script stated, in order."""
        file = self.out / "facts"
        lines = file.read_text().splitlines() if file.is_file() else []
        return {name: value for name, _, value in (line.partition(" ") for line in lines)}

    def report(self, name: str) -> dict[str, Any]:
        """What airflow wrote into ``json/NAME.json``."""
        data: dict[str, Any] = json.loads((self.out / "json" / f"{name}.json").read_text())
        return data


def _snmp(file: Path, name: str) -> int:
    group, _, field = name.partition(".")
    lines = file.read_text().splitlines()
    for names, numbers in zip(lines[::2], lines[1::2], strict=False):
        if names.startswith(f"{group}:") and field in names.split():
            return int(numbers.split()[names.split().index(field)])
    raise AssertionError(f"{file.name} has no {name}")


def parse(text: str) -> Scenario:
    """A scenario from TOML text."""
    return parse_scenario(tomllib.loads(text), "test.toml")


def engine_for(image: Image) -> QemuEngine:
    """Virtual time, but for the kernel that looks for races: that needs processors at once."""
    if image.kernel.debug == "debug-kcsan":
        return QemuEngine(image, REAL_TIME)
    return VmEngine(image)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Lab:
    """Runs guests of one engine (``QemuEngine(image, Profile)`` for more memory or processors).

    Each engine needs a ``shared`` folder of its own.  ``slot`` picks the processor, so that
    parallel workers keep apart.
    """

    def __init__(self, engine: QemuEngine, shared: Path, slot: int) -> None:
        self.engine = engine
        self.slot = slot
        self._shared = shared
        self._count = 0

    def plan(
        self, text: str, *, cc: str = "j", seed: int = 1, edit: Edit | None = None
    ) -> CellPlan:
        """A compiled cell, with its files changed by ``edit``."""
        plan = build_plan(parse(text), Cell(cc, seed))
        if edit is None:
            return plan
        files = dict(plan.files)
        edit(files)
        return dataclasses.replace(plan, files=files)

    def cell(
        self,
        text: str,
        *,
        cc: str = "j",
        seed: int = 1,
        edit: Edit | None = None,
        any_link: bool = False,
    ) -> View:
        """Run a cell, unless an equal one was run in this session."""
        return self.run(self.plan(text, cc=cc, seed=seed, edit=edit), any_link=any_link)

    def run(self, plan: CellPlan, watch: Watch | None = None, *, any_link: bool = False) -> View:
        """Run a plan, unless an equal one was run in this session.

        With its detectors on, an emulated processor may be too slow for the links that the
        plan asks for: what the audit then vetoes on a debug kernel is not judged (the test is
        skipped, and says why).  That the kernel ran all of it without a complaint was judged.

        Args:
            plan: what to run.
            watch: told of the guest's progress.
            any_link: what is claimed holds on whatever link there was, so judge it all the same;
                a test among them that does need the link asks for ``exact``.

        Raises:
            EngineError: the guest gave no result, or the kernel complained.
        """
        folder = self._shared / f"cell-{plan.key[:20]}"
        with _locked(folder.with_suffix(".lock")):
            if not (folder / "cell" / "cell.json").is_file():
                raw = self.engine.run(plan, folder, watch or Watch(), self.slot)
                (folder / "cell").mkdir(exist_ok=True)
                collect(raw.out, plan, folder / "cell")
        view = View(folder, plan)
        vetoed = view.cell["audit"]["verdict"] == "veto"
        if self.engine.image.kernel.debug and vetoed and not any_link:
            wrong = ", ".join(view.failed_checks())
            pytest.skip(f"no complaint; not judged, {self.engine.image.kernel.debug}: {wrong}")
        return view

    def script(self, text: str, files: Files | None = None, *, modules: str = "") -> ScriptView:
        """Boot a guest that runs a shell script; its facts are the result.

        Raises:
            EngineError: the script failed or the kernel complained.
        """
        lab: Files = {
            **(files or {}),
            "test.sh": (SCRIPT_HEAD + text).encode(),
            "env": f'MODULES="{modules}"\n'.encode(),
        }
        recipe = b"\0".join(n.encode() + b"\0" + d for n, d in sorted(lab.items()))
        folder = self._shared / f"script-{hashlib.sha256(recipe).hexdigest()[:20]}"
        with _locked(folder.with_suffix(".lock")):
            if not (folder / "done").is_file():
                self.engine.boot(
                    scratch=folder,
                    files=lab,
                    kernel_args=("airlab.mode=test", "rep=1"),
                    watch=Watch(),
                    slot=self.slot,
                )
                (folder / "done").touch()
        return ScriptView(folder / "out", (folder / "console.log").read_text(errors="replace"))

    def scratch(self, name: str) -> Path:
        """A folder of this worker's own that is not there yet."""
        self._count += 1
        return self._shared / f"{name}-{self.slot}-{self._count}"
