"""How soon a transfer is over, how soon the path is full, what arrived twice.

*Full* is judged at the receiver: the first stretch as long as the path's round trip (five bins at
least, so that a burst does not count) in which it got :data:`FULL` of what the slowest link can
carry.
"""

from __future__ import annotations

import numpy as np
from ccscope.ftrace import Columns

from airlab.audit import Raw
from airlab.model import CellPlan, FlowPlan, PathProbe
from airlab.units import TCP_HEADER_BYTES

FULL = 0.9
_LEAST_BINS = 5
_DUPLICATES = ("TcpExt.TCPDSACKOldSent", "TcpExt.TCPDSACKOfoSent")


def finished_s(raw: Raw, flow: FlowPlan) -> float | None:
    """Seconds from the sender's start, handshake included, until the last byte was there.

    None for a flow of no given size, and for one that did not arrive whole.
    """
    sender, receiver = raw.sender(flow) or {}, raw.receiver(flow) or {}
    if flow.size_bytes is None or receiver.get("bytes") != flow.size_bytes:
        return None
    if "start_ns" not in sender or "last_ns" not in receiver:
        return None
    return float(receiver["last_ns"] - sender["start_ns"]) / 1e9


def full_s(
    bins: Columns, start: float, probe: PathProbe, mss_bytes: int, family: int
) -> float | None:
    """Seconds from a flow's start until the path was full; None if it never was.

    Args:
        bins: the receiver's bins, ``t_s`` and ``bytes``, those without data included.
        start: when the flow started, in the bins' time.
        probe: the path.
        mss_bytes: payload of a full segment.
        family: 4 or 6.
    """
    times, got = bins["t_s"], bins["bytes"]
    if len(times) < _LEAST_BINS + 1 or not probe.rate_bps:
        return None
    width = float(np.median(np.diff(times)))
    span = max(_LEAST_BINS, int(np.ceil(probe.rtt_us / 1e6 / width)))
    if len(got) < span:
        return None
    share = mss_bytes / (mss_bytes + TCP_HEADER_BYTES[family])
    enough = FULL * probe.rate_bps / 8 * share * width * span
    sums = np.convolve(got, np.ones(span), "valid")
    found = np.flatnonzero((sums >= enough) & (times[: len(sums)] >= start))
    return float(times[found[0]] - start) if len(found) else None


def duplicates(raw: Raw, plan: CellPlan) -> int | None:
    """Segments that measured flows' receivers had already, by the DSACKs they sent.

    None where DSACKs cannot tell: without SACK, or with other TCP traffic to the same hosts.
    """
    hosts = {f.dst for f in plan.flows if f.role == "measured"}
    if any(f.dst in hosts for f in plan.flows if f.role != "measured"):
        return None
    ends = hosts | {f.src for f in plan.flows if f.role == "measured"}
    if any(_without_sack(raw, node) for node in ends):
        return None
    if any(_DUPLICATES[0] not in raw.counters(1, host) for host in hosts):
        return None
    return sum(raw.counted(host, name) for host in hosts for name in _DUPLICATES)


def _without_sack(raw: Raw, node: str) -> bool:
    lines = (raw.text(f"sysctl.{node}") or "").splitlines()
    wanted = {"net.ipv4.tcp_sack", "net.ipv4.tcp_dsack"}
    for line in lines:
        key, _, value = line.replace("=", " ").partition(" ")
        if key.replace("/", ".") in wanted and value.strip() == "0":
            return True
    return False


def supplement_metrics(raw: Raw, plan: CellPlan) -> dict[str, float]:
    """What TCP-Cherry's measured senders did, in segments; empty without its module.

    ``resent_segs`` is what was sent more than once as data; ``retransmissions`` counts the first
    transmission of skipped segments as well.
    """
    hosts = {f.src for f in plan.flows if f.role == "measured"}
    counts = [raw.supplements(host) for host in hosts]
    if not any(counts) or any(f.src in hosts for f in plan.flows if f.role != "measured"):
        return {}
    names = {"supplement_segs": "SupplementsSent", "supplement_acked_segs": "SupplementsAcked"}
    made = {ours: float(sum(c.get(name, 0) for c in counts)) for ours, name in names.items()}
    return made | {"resent_segs": float(sum(raw.repeated(host) for host in hosts))}


def duplicate_metrics(raw: Raw, plan: CellPlan) -> dict[str, float]:
    """``duplicate_segs``, and ``overhead_pct``: these in percent of the segments that were new."""
    count = duplicates(raw, plan)
    if count is None:
        return {}
    made = {"duplicate_segs": float(count)}
    new = 0.0
    for flow in (f for f in plan.flows if f.role == "measured"):
        mss = ((raw.sender(flow) or {}).get("final") or {}).get("mss_bytes")
        if not mss:
            return made
        new += int((raw.receiver(flow) or {}).get("bytes", 0)) / mss
    if new:
        made["overhead_pct"] = 100 * count / new
    return made
