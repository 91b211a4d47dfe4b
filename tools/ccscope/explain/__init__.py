"""What limited a flow, when, and what its losses cost, with the evidence.

:func:`explain` gives numbers (:class:`Explanation`); :mod:`ccscope.explain.words` says them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ccscope.errors import CcscopeError
from ccscope.explain import from_acks, from_packets, from_samples
from ccscope.explain.classes import ABOUT, CLASSES, LIMIT
from ccscope.explain.classify import Phase, phases
from ccscope.explain.episodes import KINDS, RULE, Cost, costs
from ccscope.explain.evidence import Evidence
from ccscope.recording import Recording

MOST_PHASES = 20
MOST_FLOWS = 20
_SOURCES: tuple[tuple[str, Callable[[Recording, str], Evidence]], ...] = (
    ("acks", from_acks.gather),
    ("samples", from_samples.gather),
    ("packets", from_packets.gather),
)
_LEAST_ROWS = 2


@dataclass
class Explanation:
    """The answer for one flow.

    Attributes:
        label: the flow.
        source: the table that the answer rests on: ``acks``, ``samples`` or ``packets``.
        evidence: what was found in it.
        resolution_s: length of the cells that phases are made of.
        seconds: seconds of each class; their sum is the flow's duration.
        phases: stretches of one limit each; together they are the duration.
        costs: each reduction with its cost.
    """

    label: str
    source: str
    evidence: Evidence
    resolution_s: float
    seconds: dict[str, float]
    phases: list[Phase]
    costs: list[Cost] = field(default_factory=list)

    @property
    def duration_s(self) -> float:
        """The flow's life within the recording."""
        return self.evidence.slices.end_s - self.evidence.slices.start_s

    @property
    def goodput_bps(self) -> float:
        """Acknowledged payload over the duration, bit/s."""
        slices = self.evidence.slices
        if not len(self.evidence.progress.t_s) or self.duration_s <= 0:
            return 0.0
        moved = self.evidence.progress.between(slices.start_s, slices.end_s)
        return moved * 8 / self.duration_s

    def limits(self) -> dict[str, float]:
        """Seconds by limit: application, receiver window, send buffer, cwnd, idle, ..."""
        made: dict[str, float] = {}
        for name, value in self.seconds.items():
            made[LIMIT[name]] = made.get(LIMIT[name], 0.0) + value
        return made

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        evidence = self.evidence
        return {
            "flow": self.label,
            "source": self.source,
            "start_s": evidence.slices.start_s,
            "duration_s": self.duration_s,
            "goodput_bps": self.goodput_bps,
            "resolution_s": self.resolution_s,
            "srtt_s": evidence.srtt_s,
            "mss_bytes": evidence.mss_bytes,
            "evidence": evidence.says,
            "cannot_tell": evidence.cannot,
            "seconds": self.seconds,
            "limits": self.limits(),
            "phases": [
                {
                    **{"start_s": p.start_s, "end_s": p.end_s, "class": p.name},
                    **{"limit": LIMIT[p.name], "seconds": p.seconds},
                    **{name: level(evidence, p, name) for name in _LEVELS},
                }
                for p in self.phases
            ],
            "cost_rule": RULE,
            "events": [
                {
                    **{"t_s": c.event.t_s, "end_s": c.event.end_s, "kind": c.event.kind},
                    **{"state": KINDS[c.event.kind][1], "spurious": c.event.spurious},
                    **{"silent_s": c.event.silent_s, "before_bps": c.before_bps},
                    **{"until_s": c.until_s, "lost_bytes": c.lost_bytes, "lost_s": c.lost_s},
                }
                for c in self.costs
            ],
            "kernel": evidence.kernel,
            "retransmits": evidence.retransmits,
        }


_LEVELS = ("cwnd_segs", "rwnd_bytes", "inflight_bytes", "srtt_us")


def level(evidence: Evidence, phase: Phase, name: str) -> float | None:
    """The median of cwnd, window, bytes in flight or srtt in a phase; None where not known."""
    times = evidence.levels["t_s"]
    low, high = np.searchsorted(times, [phase.start_s, phase.end_s])
    values = evidence.levels[name][low:high]
    values = values[~np.isnan(values)]
    return float(np.median(values)) if len(values) else None


def explain(recording: Recording, label: str, resolution_s: float | None = None) -> Explanation:
    """Explain one flow by the best table there is.

    Args:
        recording: an open recording.
        label: one of its flows.
        resolution_s: length of a cell; by default two round trips or observations, 50 ms at least.

    Raises:
        CcscopeError: there is no such flow, or nothing was recorded of it.
    """
    if label not in recording.flows and label not in flows_of(recording):
        known = ", ".join(flows_of(recording)) or "none"
        raise CcscopeError(f"{recording.path}: no flow {label!r}; it has {known}")
    source, gather = _source(recording, label)
    evidence = gather(recording, label)
    cell = resolution_s or evidence.resolution_s
    length = evidence.slices.end_s - evidence.slices.start_s
    if length <= 0:
        raise CcscopeError(f"{recording.path}: flow {label} has no length in time")
    made = phases(evidence.slices, cell, least_s=max(2 * cell, length / 100), most=MOST_PHASES)
    seconds = evidence.slices.seconds()
    return Explanation(
        *(label, source, evidence, cell, seconds, made, costs(evidence, cell)),
    )


def _source(recording: Recording, label: str) -> tuple[str, Callable[[Recording, str], Evidence]]:
    for name, gather in _SOURCES:
        if len(recording.flow(name, label).get("t_s", ())) >= _LEAST_ROWS:
            return name, gather
    raise CcscopeError(
        f"{recording.path}: flow {label} has neither ACKs, polls nor packets to explain it by; "
        "record it with `ccscope record` (per ACK) or `--per 100ms`"
    )


def largest(recording: Recording, most: int) -> tuple[list[str], int]:
    """The flows with the most rows, in the recording's order, and how many are left out."""
    labels = flows_of(recording)
    if len(labels) <= most:
        return labels, 0
    rows: dict[str, int] = {}
    for name, _ in _SOURCES:
        found, counts = np.unique(recording.table(name)["flow"].astype(str), return_counts=True)
        for label, count in zip(found.tolist(), counts.tolist(), strict=True):
            rows[label] = rows.get(label, 0) + count
    kept = set(sorted(labels, key=lambda label: -rows.get(label, 0))[:most])
    return [label for label in labels if label in kept], len(labels) - most


def flows_of(recording: Recording) -> list[str]:
    """Labels of the flows that can be explained."""
    made = list(recording.flows)
    for name, _ in _SOURCES:
        made += [str(f) for f in np.unique(recording.table(name)["flow"].astype(str))]
    return list(dict.fromkeys(made))


__all__ = ["ABOUT", "CLASSES", "Explanation", "explain", "flows_of", "largest", "level"]
