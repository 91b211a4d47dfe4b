"""The records that pass between airlab's parts.

A scenario is turned into one :class:`CellPlan` for each cell (one algorithm, one
parameter point, one seed).  An engine runs a plan and leaves a folder of raw
output; the collector turns that folder into a cell result.  Nothing in a plan
knows which engine will run it.

Units are in the names: ``_us`` microseconds, ``_ns`` nanoseconds, ``_bps`` bits per
second, ``_bytes``, ``_pkts``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from ccscope.errors import CcscopeError

from .units import FULL_FRAME_BYTES

Scalar = str | int | float | bool

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Cell:
    """One point of a campaign: an algorithm label, parameter values, a seed."""

    cc: str
    seed: int
    params: tuple[tuple[str, Scalar], ...] = ()

    @property
    def point(self) -> dict[str, Scalar]:
        """The swept parameters of this cell by dotted key."""
        return dict(self.params)

    @property
    def slug(self) -> str:
        """A file-system name, unique within a campaign."""
        parts = [f"{key.split('.')[-1]}={value}" for key, value in self.params]
        text = "_".join([self.cc, *parts, f"s{self.seed}"])
        return "".join(c if c.isalnum() or c in "=_.+-" else "-" for c in text)


@dataclass(frozen=True)
class FlowPlan:
    """A TCP flow as the plan runs it; ``label`` names its files in the raw output."""

    label: str
    cc: str
    src: str
    dst: str
    dst_addr: str
    port: int
    family: int
    start_us: int
    stop_us: int
    role: str = "measured"  # or "cross"
    sample_ms: int = 100
    size_bytes: int | None = None  # what it sends, instead of sending until stop_us


@dataclass(frozen=True)
class StagePlan:
    """One direction of an emulated link: rate and buffer, then delay and channel.

    ``own_handle`` is set when frames wait on a node's own device: the queue below its root, whose
    drops count.  ``refuses`` says that this node is the one that sends into the direction, so that
    its own sockets are told of a drop; ``frame_bytes`` is what each frame costs besides its bits.
    """

    name: str
    link: str
    src: str
    dst: str
    rate_ns: str
    rate_dev: str
    rate_handle: str
    rate_bps: int | None
    buffer_pkts: int | None
    buffer_bytes: int | None
    qdisc: str
    delay_ns: str
    delay_dev: str
    delay_us: int
    channel: str | None
    ber: float
    loss: float
    drop: tuple[int, ...]
    constant: bool
    own_handle: str | None = None
    refuses: bool = False
    frame_bytes: int = 0

    @property
    def counted_handle(self) -> str:
        """The queue discipline whose counters tell the drops."""
        return self.own_handle or self.rate_handle

    @property
    def full_frames_bps(self) -> int | None:
        """The rate that full frames can have, which is the rate unless frames cost more."""
        if self.rate_bps is None:
            return None
        return self.rate_bps * FULL_FRAME_BYTES // (FULL_FRAME_BYTES + self.frame_bytes)


@dataclass(frozen=True)
class PathProbe:
    """What the substrate audit measures for one flow path while the channel is off."""

    label: str
    src: str
    dst: str
    rtt_us: int
    rate_bps: int | None
    buffer_pkts: int | None
    burst_pkts: int
    burst_frame_bytes: int


@dataclass(frozen=True)
class CrossPlan:
    """UDP cross traffic as the plan runs it; ``rate_bps`` counts layer 2."""

    label: str
    src: str
    dst: str
    rate_bps: int
    start_us: int
    stop_us: int


@dataclass(frozen=True)
class Interval:
    """A shaded stretch or instant of a plot: an outage, a handoff, a rate change."""

    start_us: int
    end_us: int
    kind: str
    text: str


@dataclass(frozen=True)
class CellPlan:
    """Everything an engine needs to run one cell, and everything the audit expects.

    ``results_mb`` is what traces and capture take at most, for which the guest needs memory. It
    follows from the rest, so it is neither stored nor part of the key.
    """

    scenario: str
    cell: Cell
    cc: str
    duration_us: int
    flows: tuple[FlowPlan, ...]
    stages: tuple[StagePlan, ...]
    probes: tuple[PathProbe, ...]
    intervals: tuple[Interval, ...]
    nodes: tuple[str, ...]
    modules: tuple[str, ...]
    kernel_args: tuple[str, ...]
    capture: bool
    trace: bool
    keep_pcap: bool
    notes: tuple[str, ...] = ()
    cross: tuple[CrossPlan, ...] = ()
    gips: int = 1
    results_mb: int = 0
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """SHA-256 over the whole plan: equal keys mean equal experiments."""
        digest = hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode())
        for path in sorted(self.files):
            digest.update(f"\0{path}\0{len(self.files[path])}\0".encode())
            digest.update(self.files[path])
        return digest.hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The plan without its files, as stored in ``plan.json``."""
        left_out = ("files", "results_mb")
        names = [f.name for f in dataclasses.fields(self) if f.name not in left_out]
        # What is as it always was stays out, so that such plans keep their keys.
        usual = {"cross": (), "gips": 1}
        kept = [name for name in names if getattr(self, name) != usual.get(name)]
        return {name: _plain(getattr(self, name)) for name in kept}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CellPlan:
        """Read back what :meth:`to_json` wrote (the files stay behind)."""
        made = dict(data)
        cell = data["cell"]
        made["cell"] = Cell(cell["cc"], cell["seed"], tuple((k, v) for k, v in cell["params"]))
        for name, kind in _RECORDS.items():
            made[name] = tuple(kind(**_frozen(row)) for row in data.get(name, ()))
        for name in ("nodes", "modules", "kernel_args", "notes"):
            made[name] = tuple(data[name])
        return cls(**made)


_RECORDS = {
    "flows": FlowPlan,
    "stages": StagePlan,
    "probes": PathProbe,
    "intervals": Interval,
    "cross": CrossPlan,
}


def _frozen(row: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in row.items()}


def _plain(value: Any) -> Any:  # noqa: ANN401 - any field of a record
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


class AirlabError(CcscopeError):
    """An error for the person at the keyboard: what is wrong, where, and the remedy."""
