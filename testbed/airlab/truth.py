"""What was left of a bottleneck, and how near a measurement and a flow came to it.

Where one TCP flow shares its bottleneck with UDP traffic of known rates, the available bandwidth A
is known: the bottleneck's rate less that traffic.  The time between two changes of A is a
*stretch*; its first quarter (``SETTLING``) is left to the flow to find the new A, numbers are of
the rest.  Rates count layer 2, as the module's do.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from ccscope.ftrace import Array, Columns

from airlab.afilter import FILTERS, filtered
from airlab.model import CellPlan, FlowPlan
from airlab.sawtooth import SETTLING
from airlab.units import FULL_FRAME_BYTES, TCP_HEADER_BYTES

PAYLOAD = (FULL_FRAME_BYTES - TCP_HEADER_BYTES[4]) / FULL_FRAME_BYTES
"""Share of a full frame that is payload (IPv4, time stamps)."""

REACHED = 0.2
"""A step is followed when a result is nearer to the new A than this share of the step."""


@dataclass(frozen=True)
class Stretch:
    """A time in s in which A did not change."""

    start: float
    stop: float
    avail_bps: float

    @property
    def settled(self) -> float:
        """When its numbers begin."""
        return self.start + SETTLING * (self.stop - self.start)


@dataclass(frozen=True)
class Truth:
    """A bottleneck's capacity and what was left of it."""

    capacity_bps: float
    stretches: tuple[Stretch, ...]


def truth_of(plan: CellPlan) -> tuple[FlowPlan, Truth] | None:
    """The flow whose A is known, and A; None where it is not: no or several flows, no UDP."""
    if len(plan.flows) != 1 or not plan.cross:
        return None
    (flow,) = plan.flows
    rates = [p.rate_bps for p in plan.probes if (p.src, p.dst) == (flow.src, flow.dst)]
    if len(rates) != 1 or rates[0] is None:
        return None
    start, stop = flow.start_us, min(flow.stop_us, plan.duration_us)
    rivals = [c for c in plan.cross if c.dst == flow.dst]
    inner = {t for c in rivals for t in (c.start_us, c.stop_us) if start < t < stop}
    edges = [start, *sorted(inner), stop]
    stretches = []
    for begin, end in itertools.pairwise(edges):
        taken = sum(c.rate_bps for c in rivals if c.start_us <= begin < c.stop_us)
        stretches.append(Stretch(begin / 1e6, end / 1e6, float(rates[0] - taken)))
    return flow, Truth(float(rates[0]), tuple(stretches))


def measurement_metrics(results: Columns, truth: Truth) -> dict[str, float]:
    """How right the results of an inline measurement are.

    Args:
        results: columns ``t_s``, ``avail_kbps``, ``capacity_kbps``, ``srtt_us`` of one flow.
        truth: what they should say.

    Returns:
        For stretch N, from 1: ``results_N``, their number; ``avail_bias_N``, ``avail_error_N`` and
        ``capacity_bias_N``: mean and mean absolute relative error of single results, and the mean
        of C's; ``avail_FILTER_error_N`` of the filtered series; ``result_rtts_N``: median
        distance of two results in smoothed RTTs; ``step_s_N`` and ``step_FILTER_s_N`` for N from 2:
        time from the change until a result is within a fifth of it.  Without N: means over the
        stretches.  What cannot be told is left out.
    """
    series = {"": results["avail_kbps"].astype(float)}
    found, capacities = results["avail_kbps"].tolist(), results["capacity_kbps"].tolist()
    for name in FILTERS:
        series[f"{name}_"] = np.array(filtered(found, name, capacities), dtype=float)
    made: dict[str, float] = {}
    before: Stretch | None = None
    for number, stretch in enumerate(truth.stretches, 1):
        found = _accuracy(results, series, stretch, truth.capacity_bps)
        if before is not None:
            found |= _reaction(results["t_s"], series, before, stretch)
        made |= {f"{name}_{number}": value for name, value in found.items()}
        before = stretch
    return made | _means(made)


def _accuracy(
    results: Columns, series: Mapping[str, Array], stretch: Stretch, capacity_bps: float
) -> dict[str, float]:
    inside = (results["t_s"] >= stretch.settled) & (results["t_s"] < stretch.stop)
    made = {"results": float(inside.sum())}
    if not inside.any():
        return made
    for name, values in series.items():
        error = values[inside] * 1e3 / stretch.avail_bps - 1
        made[f"avail_{name}bias"] = float(error.mean())
        made[f"avail_{name}error"] = float(np.abs(error).mean())
    capacity = results["capacity_kbps"][inside] * 1e3 / capacity_bps - 1
    made["capacity_bias"] = float(capacity.mean())
    made["capacity_error"] = float(np.abs(capacity).mean())
    if inside.sum() > 1:
        gaps = np.diff(results["t_s"][inside]) * 1e6 / results["srtt_us"][inside][1:]
        made["result_rtts"] = float(np.median(gaps))
    return made


def _reaction(
    times: Array, series: Mapping[str, Array], before: Stretch, stretch: Stretch
) -> dict[str, float]:
    near = REACHED * abs(stretch.avail_bps - before.avail_bps)
    made = {}
    for name, values in series.items():
        there = np.abs(values * 1e3 - stretch.avail_bps) <= near
        hits = times[there & (times >= stretch.start) & (times < stretch.stop)]
        if near and len(hits):
            made[f"step_{name}s"] = float(hits[0]) - stretch.start
    return made


def flow_metrics(goodput: Columns, resent: Array, rtts: Columns, truth: Truth) -> dict[str, float]:
    """How a flow used what was left.

    Args:
        goodput: the receiver's bins of the flow, ``t_s`` and ``bytes``.
        resent: times of its retransmissions.
        rtts: ``t_s`` and ``srtt_us`` of its ACKs.
        truth: what was left.

    Returns:
        For stretch N, from 1: ``avail_share_N``, goodput over the payload of A; ``goodput_cv_N``,
        coefficient of variation of goodput over whole seconds; ``losses_per_min_N``, segments
        sent again; ``rtt_ms_N``, mean smoothed RTT.  Without N: means over the stretches.
    """
    made: dict[str, float] = {}
    for number, stretch in enumerate(truth.stretches, 1):
        length = stretch.stop - stretch.settled
        inside = (goodput["t_s"] >= stretch.settled) & (goodput["t_s"] < stretch.stop)
        rate = float(goodput["bytes"][inside].sum()) * 8 / length
        made[f"avail_share_{number}"] = rate / (stretch.avail_bps * PAYLOAD)
        edges = stretch.settled + np.arange(int(length) + 1)
        whole, _ = np.histogram(goodput["t_s"], edges, weights=goodput["bytes"])
        if len(whole) > 1 and whole.mean() > 0:
            made[f"goodput_cv_{number}"] = float(whole.std() / whole.mean())
        lost = (resent >= stretch.settled) & (resent < stretch.stop)
        made[f"losses_per_min_{number}"] = float(lost.sum()) * 60 / length
        seen = (rtts["t_s"] >= stretch.settled) & (rtts["t_s"] < stretch.stop)
        if seen.any():
            made[f"rtt_ms_{number}"] = float(rtts["srtt_us"][seen].mean()) / 1e3
    return made | _means(made)


def udp_metrics(counts: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Loss of the UDP traffic, ``udp_loss`` in all and ``udp_loss_N`` of the N-th stream.

    Args:
        counts: datagrams sent and received of each stream.
    """
    made = {
        f"udp_loss_{number}": 1 - got / sent for number, (sent, got) in enumerate(counts, 1) if sent
    }
    total = sum(sent for sent, _ in counts)
    if total:
        made["udp_loss"] = 1 - sum(got for _, got in counts) / total
    return made


def _means(made: Mapping[str, float]) -> dict[str, float]:
    """Means over stretches, of every name that has a number at its end."""
    groups: dict[str, list[float]] = {}
    for name, value in made.items():
        groups.setdefault(name.rpartition("_")[0], []).append(value)
    return {name: float(np.mean(values)) for name, values in groups.items()}
