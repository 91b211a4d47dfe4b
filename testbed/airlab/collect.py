"""Turns the raw output of a run into a cell folder: ``cell.json`` and Parquet tables.

Times in the tables are seconds since the start of the experiment (``t0``).  Each column says
its unit and meaning in the Parquet field's metadata (keys ``unit`` and ``about``).
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from ccscope.assemble import Assembler
from ccscope.ftrace import Array, Columns, Trace, read_trace, trace_parts
from ccscope.pcapfile import read_capture
from ccscope.recording import arrow_column, arrow_table, complete
from ccscope.schema import CA_STATES
from ccscope.symbols import Symbols
from ccscope.symbols import parse as parse_symbols

from airlab.algorithms import module_systems
from airlab.audit import Check, Raw, TraceFacts, audit, channel_drops, verdict
from airlab.model import CellPlan, CrossPlan, FlowPlan, StagePlan
from airlab.results import (
    AuditResult,
    CellResult,
    CheckResult,
    FlowResult,
    Hashes,
    ModuleResult,
    StageResult,
    TraceResult,
    write_json,
)
from airlab.sawtooth import drop_metrics, window_metrics
from airlab.stats import jain_index
from airlab.transfers import duplicate_metrics, finished_s, full_s, supplement_metrics
from airlab.truth import flow_metrics, measurement_metrics, truth_of, udp_metrics

_SAMPLES = (
    *("cwnd_segs", "ssthresh_segs", "srtt_us", "min_rtt_us", "unacked_segs", "sacked_segs"),
    *("lost_segs", "retrans_total", "ca_state", "delivery_rate_Bps", "bytes_acked", "rto_us"),
    "mss_bytes",
)


@dataclass(frozen=True)
class FlowEvents:
    """A flow's part of the trace; times in s since t0."""

    acks: Columns
    states: Columns
    retransmits: Columns


def collect(
    raw: Path, plan: CellPlan, out: Path, *, times: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Read a raw folder, audit it, and write the cell's files into ``out``.

    Args:
        raw: the folder of docs/lab-internals.md section 6.
        plan: what was run.
        out: an existing folder; receives ``cell.json``, ``acks``, ``states``, ``retransmits``
            and ``queue`` (with a trace), ``goodput``, ``samples`` and ``j_*`` Parquet files,
            and ``cap.pcap`` when the plan keeps it.
        times: wall and virtual seconds of the run, if known.

    Returns:
        The content of ``cell.json``.

    Raises:
        AirlabError: the raw folder cannot be read.  A run that can be read but is not to be
            trusted does not raise: it gets the verdict ``veto``.
    """
    source = Raw(raw)
    trace = read_trace(raw) if plan.trace else None
    functions = Symbols(parse_symbols((source.text("kallsyms") or "").splitlines()))
    events = _flow_events(trace, plan, source.t0_ns, functions) if trace else {}
    _write_tables(source, plan, out, trace, events)
    facts = TraceFacts(trace.count, trace.lost) if trace else None
    checks = audit(source, plan, facts)
    flows = [_flow_result(source, plan, flow, events.get(flow.label)) for flow in plan.flows]
    stages = [_stage_result(source, stage) for stage in plan.stages]
    result = CellResult(
        scenario=plan.scenario,
        slug=plan.cell.slug,
        label=plan.cell.cc,
        seed=plan.cell.seed,
        params=plan.cell.point,
        plan_key=plan.key,
        duration_s=plan.duration_us / 1e6,
        start_realtime_ns=source.t0_realtime_ns,
        flows=flows,
        stages=stages,
        metrics=_metrics(flows)
        | _late_fairness(source, plan)
        | _window_metrics(plan, events)
        | _truth_metrics(source, plan, trace, events)
        | drop_metrics(_drops(plan, stages))
        | duplicate_metrics(source, plan)
        | supplement_metrics(source, plan),
        audit=_audit_result(checks),
        hashes=_hashes(source, plan, out),
        trace=TraceResult(events=trace.count, lost=trace.lost) if trace else None,
        kernel=(source.text("uname") or "").strip(),
        modules=_modules(source),
        times=dict(times or {}),
        notes=[*plan.notes, *_queue_notes(plan)],
    )
    data = result.model_dump()
    write_json(out / "cell.json", data)
    return data


def _audit_result(checks: Sequence[Check]) -> AuditResult:
    made = [CheckResult.model_validate(check.to_json()) for check in checks]
    return AuditResult(verdict=verdict(checks), checks=made)


# ---- the trace ----


def _flow_events(trace: Trace, plan: CellPlan, t0_ns: int, names: Symbols) -> dict[str, FlowEvents]:
    """Each flow's rows at its sender (the receiver's socket fires the same events).

    ``names`` are those of the kernel's functions, for the causes of states; may be empty.
    Nothing for a trace of queues or of a module alone: it says nothing of states and windows.
    """
    if "tcp:tcp_probe" not in trace.events:
        return {}
    ends = {(ipaddress.ip_address(f.dst_addr), f.port): f.label for f in plan.flows}

    def label(info: Mapping[str, Any]) -> dict[str, str]:
        found = ends.get((ipaddress.ip_address(info["dst"]), info["dport"]))
        return {"label": found} if found else {}

    maker = Assembler(t0_ns, names, wanted=lambda info: bool(label(info)), known=label)
    events = {name: c for name, c in trace.events.items() if name.startswith(("tcp:", "ftrace:"))}
    tables = maker.tables(events)
    whole = [tables.get(n) or complete(n, {}) for n in ("acks", "states", "retransmits")]

    def of(flow: str) -> FlowEvents:
        return FlowEvents(*({n: c[t["flow"] == flow] for n, c in t.items()} for t in whole))

    return {flow.label: of(flow.label) for flow in plan.flows}


def handle_number(handle: str) -> int:
    """A queue discipline's handle as the kernel counts it: ``"10:"`` is 0x100000."""
    major, _, minor = handle.partition(":")
    return (int(major, 16) << 16) | int(minor or "0", 16)


def _queue_stages(plan: CellPlan) -> list[StagePlan]:
    """Stages whose queue the trace shows: those whose handle names one queue only.

    A shared medium is one queue of both directions, shown as the forward one's.
    """
    stages = [s for s in plan.stages if s.rate_bps is not None]
    firsts = {(s.rate_ns, s.rate_dev, s.rate_handle): s for s in reversed(stages)}
    handles = [handle for _, _, handle in firsts]
    return [s for s in stages if s in firsts.values() and handles.count(s.rate_handle) == 1]


def _queue_notes(plan: CellPlan) -> list[str]:
    seen = _queue_stages(plan)
    shown = {(s.rate_ns, s.rate_handle) for s in seen}
    rated = [s for s in plan.stages if s.rate_bps is not None]
    hidden = [s.name for s in rated if (s.rate_ns, s.rate_handle) not in shown]
    return [f"queue of {name} not shown: its handle is not unique" for name in hidden]


def queue_occupancy(trace: Trace, handle: int, t0_ns: int) -> Columns:
    """Packets in a queue after each change: ``t_s`` and ``packets``.

    An enqueue counts when the queue accepted the packet.  The kernel also reports dequeue
    attempts that found nothing to send; they have no packet address and are left out.
    """
    ins = trace.events.get("qdisc:qdisc_enqueue")
    outs = trace.events.get("qdisc:qdisc_dequeue")
    if ins is None or outs is None:
        return {"t_s": np.zeros(0), "packets": np.zeros(0, dtype=np.int32)}
    in_rows = ins["handle"] == handle
    out_rows = (outs["handle"] == handle) & (outs["skbaddr"] != 0)
    times = np.concatenate([ins["t_ns"][in_rows], outs["t_ns"][out_rows]])
    steps = np.concatenate([np.ones(int(in_rows.sum())), -outs["packets"][out_rows]])
    order = np.argsort(times, kind="stable")
    level = np.cumsum(steps[order]).astype(np.int32)
    # What was queued before the trace began leaves during it: raise the level by as much.
    level -= min(int(level.min()), 0) if len(level) else 0
    return {"t_s": (times[order] - t0_ns) / 1e9, "packets": level}


# ---- tables ----


def _write_tables(
    raw: Raw, plan: CellPlan, out: Path, trace: Trace | None, events: Mapping[str, FlowEvents]
) -> None:
    reports = {flow.label: raw.receiver(flow) or {} for flow in plan.flows}
    bins = {label: _bins(report, raw.t0_ns) for label, report in reports.items()}
    _write(out / "goodput.parquet", "flow", bins)
    _write(out / "samples.parquet", "flow", {f.label: _samples(raw, f) for f in plan.flows})
    if trace is None:
        return
    for name in ("acks", "states", "retransmits") if events else ():
        _write(out / f"{name}.parquet", "flow", {k: getattr(e, name) for k, e in events.items()})
    queues = {
        s.name: queue_occupancy(trace, handle_number(s.rate_handle), raw.t0_ns)
        for s in _queue_stages(plan)
    }
    # Without the queue's events there is nothing to draw.
    if any(len(changes["t_s"]) for changes in queues.values()):
        _write(out / "queue.parquet", "stage", queues)
    for event, columns in trace.events.items():
        system, _, name = event.partition(":")
        if system in module_systems():
            made = _module_event(columns, plan, raw.t0_ns)
            _write_table(out / f"{system}_{name}.parquet", made)


def _write(path: Path, key: str, parts: Mapping[str, Columns]) -> None:
    """Write tables of equal columns one after the other; ``key`` names the part."""
    columns: dict[str, Any] = {}
    names = next(iter(parts.values())).keys() if parts else ["t_s"]
    for name in names:
        if name == key:
            continue
        values = np.concatenate([p[name] for p in parts.values()] or [np.zeros(0)])
        typed = path.stem in ("acks", "states", "retransmits")
        columns[name] = arrow_column(path.stem, name, values) if typed else pa.array(values)
        if name == "t_s":
            owners = [np.full(len(p["t_s"]), k, dtype=object) for k, p in parts.items()]
            texts = pa.array(np.concatenate(owners or [np.zeros(0, dtype=object)]), pa.string())
            columns[key] = texts.dictionary_encode()
    _write_table(path, columns)


def _write_table(path: Path, columns: Mapping[str, Any]) -> None:
    pq.write_table(arrow_table(path.stem, columns), path, compression="zstd")


def _bins(report: Mapping[str, Any], t0_ns: int) -> Columns:
    """The receiver's bins, those without data included."""
    rows = np.array(report.get("bins") or np.zeros((0, 2)), dtype=np.int64).reshape(-1, 2)
    if not len(rows):
        return {"t_s": np.zeros(0), "bytes": rows[:, 1], "goodput_bps": np.zeros(0)}
    width = _bin_ns(rows[:, 0])
    place = (rows[:, 0] - rows[0, 0]) // width
    filled = np.zeros(int(place[-1]) + 1, dtype=np.int64)
    np.add.at(filled, place, rows[:, 1])
    times = rows[0, 0] + width * np.arange(len(filled)) - t0_ns
    return {"t_s": times / 1e9, "bytes": filled, "goodput_bps": filled * 8e9 / width}


def _bin_ns(starts: Array) -> int:
    """Length of a bin: bins are aligned, so it divides all distances."""
    return int(np.gcd.reduce(np.diff(starts))) if len(starts) > 1 else 100_000_000


def _samples(raw: Raw, flow: FlowPlan) -> Columns:
    samples = (raw.sender(flow) or {}).get("samples") or {}
    times = np.array(samples.get("t_ns", []), dtype=np.int64)
    columns: Columns = {"t_s": (times - raw.t0_ns) / 1e9}
    for name in _SAMPLES:
        columns[name] = np.array(samples.get(name, [0] * len(times)), dtype=np.int64)
    return columns


def _module_event(columns: Columns, plan: CellPlan, t0_ns: int) -> dict[str, Any]:
    """A module's event with all its fields; ``flow`` from the destination port if it has one."""
    made: dict[str, Any] = {"t_s": pa.array((columns["t_ns"] - t0_ns) / 1e9)}
    if "dport" in columns:
        labels = {f.port: f.label for f in plan.flows}
        flows = [labels.get(int(port), "") for port in columns["dport"]]
        made["flow"] = pa.array(flows, pa.string()).dictionary_encode()
    for name, values in columns.items():
        if name == "t_ns" or name.startswith("common_"):
            continue
        made[name] = pa.array(values if values.ndim == 1 else list(values))
    return made


# ---- numbers ----


def _flow_result(raw: Raw, plan: CellPlan, flow: FlowPlan, events: FlowEvents | None) -> FlowResult:
    sender, receiver = raw.sender(flow) or {}, raw.receiver(flow) or {}
    final = sender.get("final") or {}
    start, stop = flow.start_us / 1e6, flow.stop_us / 1e6
    samples = _samples(raw, flow)
    rtts, source = _rtts(events, samples, start, stop)
    mean, p50, p95, p99 = _percentiles(rtts)
    return FlowResult(
        label=flow.label,
        role=flow.role,
        cc=str(sender.get("cc") or ""),
        cc_end=sender.get("cc_end"),
        port=flow.port,
        src=flow.src,
        dst=flow.dst,
        start_s=start,
        stop_s=stop,
        bytes=int(receiver.get("bytes", 0)),
        goodput_bps=_goodput(_bins(receiver, raw.t0_ns), start, stop),
        retransmissions=final.get("retrans_total"),
        rtos=_timeouts(raw, plan, flow, events),
        rtt_mean_us=mean,
        rtt_p50_us=p50,
        rtt_p95_us=p95,
        rtt_p99_us=p99,
        rtt_min_us=final.get("min_rtt_us"),
        rtt_source=source,
        cwnd_mean_segs=_mean_over_time(events.acks if events else samples, start, stop),
        ca_state_s=_state_times(events, start, stop),
        verified=receiver.get("verified"),
        finished_s=finished_s(raw, flow),
        full_s=_full(raw, plan, flow),
    )


def _full(raw: Raw, plan: CellPlan, flow: FlowPlan) -> float | None:
    """When the flow's path was full, from what the receiver got of this flow alone."""
    path = next((p for p in plan.probes if (p.src, p.dst) == (flow.src, flow.dst)), None)
    mss = ((raw.sender(flow) or {}).get("final") or {}).get("mss_bytes")
    if path is None or not mss:
        return None
    bins = _bins(raw.receiver(flow) or {}, raw.t0_ns)
    return full_s(bins, flow.start_us / 1e6, path, mss, flow.family)


def _goodput(bins: Columns, start: float, stop: float) -> float:
    """Bytes received within [start, stop]; a bin at an edge counts by its share in it."""
    if not bins["bytes"].any() or stop <= start:
        return 0.0
    width = float(bins["bytes"].sum() * 8 / bins["goodput_bps"].sum())
    begin, end = bins["t_s"], bins["t_s"] + width
    inside = np.minimum(end, stop) - np.maximum(begin, start)
    share = np.clip(inside / width, 0.0, 1.0)
    return float((bins["bytes"] * share).sum() * 8 / (stop - start))


def _rtts(
    events: FlowEvents | None, samples: Columns, start: float, stop: float
) -> tuple[Array, Any]:
    if events is not None and len(events.acks["t_s"]):
        columns, source = events.acks, "acks"
    else:
        columns, source = samples, "samples"
    inside = (columns["t_s"] >= start) & (columns["t_s"] <= stop) & (columns["srtt_us"] > 0)
    values = columns["srtt_us"][inside]
    return values, source if len(values) else "none"


def _percentiles(values: Array) -> tuple[float | None, ...]:
    if not len(values):
        return (None, None, None, None)
    quantiles = np.percentile(values, [50, 95, 99])
    return (float(values.mean()), *(float(q) for q in quantiles))


def _mean_over_time(columns: Columns, start: float, stop: float) -> float | None:
    inside = (columns["t_s"] >= start) & (columns["t_s"] <= stop)
    times, cwnd = columns["t_s"][inside], columns["cwnd_segs"][inside].astype(float)
    if not len(times):
        return None
    spans = np.diff(np.append(times, stop))
    return float((cwnd * spans).sum() / spans.sum()) if spans.sum() > 0 else float(cwnd.mean())


def _state_times(events: FlowEvents | None, start: float, stop: float) -> dict[str, float] | None:
    """Seconds in each state; a connection begins in Open."""
    if events is None or stop <= start:
        return None
    times = np.clip(events.states["t_s"], start, stop)
    states = np.array(["Open", *events.states["state"]], dtype=object)
    spans = np.diff(np.concatenate([[start], times, [stop]]))
    return {name: float(spans[states == name].sum()) for name in CA_STATES}


def _timeouts(raw: Raw, plan: CellPlan, flow: FlowPlan, events: FlowEvents | None) -> int | None:
    if events is not None:
        return int((events.states["state"] == "Loss").sum())
    alone = sum(other.src == flow.src for other in plan.flows) == 1
    known = "TcpExt.TCPTimeouts" in raw.counters(1, flow.src)
    return raw.counted(flow.src, "TcpExt.TCPTimeouts") if alone and known else None


_MEANS = (
    *("rtt_mean_us", "rtt_p50_us", "rtt_p95_us", "rtt_p99_us", "cwnd_mean_segs"),
    *("finished_s", "full_s"),
)


def _metrics(flows: Sequence[FlowResult]) -> dict[str, float]:
    """Numbers of a cell: sums and means over its measured flows."""
    measured = [f for f in flows if f.role == "measured"]
    rates = [f.goodput_bps for f in measured]
    made: dict[str, float] = {"goodput_bps": sum(rates), "bytes": sum(f.bytes for f in measured)}
    for name in ("retransmissions", "rtos"):
        counts = [getattr(f, name) for f in measured]
        if counts and None not in counts:
            made[name] = sum(counts)
    for name in _MEANS:
        values = [getattr(f, name) for f in measured]
        if values and None not in values:
            made[name] = float(np.mean(values))
    minima = [f.rtt_min_us for f in measured if f.rtt_min_us is not None]
    if minima:
        made["rtt_min_us"] = min(minima)
    made |= _fairness("jain_index", rates)
    if measured and all(f.ca_state_s is not None for f in measured):
        for state in CA_STATES:
            spent = [(f.ca_state_s or {})[state] for f in measured]
            made[f"{state.lower()}_s"] = float(np.mean(spent))
    return made


def _late_fairness(raw: Raw, plan: CellPlan) -> dict[str, float]:
    """Jain's index in the last third, when shares have had time to settle.

    Over the whole of a run two flows that change places look equal.
    """
    rates: list[float] = []
    for flow in (f for f in plan.flows if f.role == "measured"):
        stop = flow.stop_us / 1e6
        bins = _bins(raw.receiver(flow) or {}, raw.t0_ns)
        rates.append(_goodput(bins, stop - plan.duration_us / 3e6, stop))
    return _fairness("jain_index_late", rates)


def _fairness(name: str, rates: Sequence[float]) -> dict[str, float]:
    """Jain's index of several flows, where any of them carried something."""
    index = jain_index(rates)
    return {} if len(rates) < 2 or math.isnan(index) else {name: index}


def _window_metrics(plan: CellPlan, events: Mapping[str, FlowEvents]) -> dict[str, float]:
    """Numbers of the window, when one flow is measured: of several they would be a mixture."""
    measured = [f for f in plan.flows if f.role == "measured"]
    if len(measured) != 1 or measured[0].label not in events:
        return {}
    (flow,) = measured
    seen = events[flow.label]
    return window_metrics(seen.acks, seen.states, flow.start_us / 1e6, flow.stop_us / 1e6)


def _truth_metrics(
    raw: Raw, plan: CellPlan, trace: Trace | None, events: Mapping[str, FlowEvents]
) -> dict[str, float]:
    """Numbers that need what the cross traffic left, where that is known."""
    made = udp_metrics([_datagrams(raw, cross) for cross in plan.cross])
    known = truth_of(plan)
    if known is None:
        return made
    flow, truth = known
    if flow.label in events:
        seen = events[flow.label]
        bins = _bins(raw.receiver(flow) or {}, raw.t0_ns)
        made |= flow_metrics(bins, seen.retransmits["t_s"], seen.acks, truth)
    results = (trace.events if trace else {}).get("imtcp:imtcp_result")
    if results is not None:
        times = {"t_s": (results["t_ns"] - raw.t0_ns) / 1e9}
        made |= measurement_metrics({**results, **times}, truth)
    return made


def _datagrams(raw: Raw, cross: CrossPlan) -> tuple[int, int]:
    """Sent and received datagrams of a UDP stream."""
    sent, got = raw.sender(cross) or {}, raw.receiver(cross) or {}
    return int(sent.get("datagrams", 0)), int(got.get("datagrams", 0))


def _drops(
    plan: CellPlan, stages: Sequence[StageResult]
) -> list[tuple[bool, int | None, int | None]]:
    """For each stage: a sender's own device? drops of its queue, of its channel."""
    senders = {flow.src for flow in plan.flows}
    return [
        (planned.refuses and planned.src in senders, seen.queue_drops, seen.channel_drops)
        for planned, seen in zip(plan.stages, stages, strict=True)
    ]


def _stage_result(raw: Raw, stage: StagePlan) -> StageResult:
    channel = raw.json(f"chan.{stage.channel}.json") if stage.channel else None
    return StageResult(
        name=stage.name,
        queue_drops=_queue_drops(raw, stage),
        channel_drops=channel_drops(raw, stage) if channel else None,
        frames=int(channel["frames"]) if channel and "frames" in channel else None,
    )


def _queue_drops(raw: Raw, stage: StagePlan) -> int | None:
    """Drops of the rate stage; None when its counters are missing or began anew in the run."""
    places = (stage.rate_ns, stage.rate_dev, stage.counted_handle)
    after = raw.qdisc(1, *places) if stage.rate_bps is not None else None
    before = raw.qdisc(0, *places) or {} if after else {}
    if not after or int(after.get("packets", 0)) < int(before.get("packets", 0)):
        return None
    return int(after.get("drops", 0)) - int(before.get("drops", 0))


def _modules(raw: Raw) -> list[ModuleResult]:
    rows = [line.split() for line in (raw.text("modules") or "").splitlines() if line.strip()]
    padded = [[*row, "", ""] for row in rows]
    return [ModuleResult(name=r[0], srcversion=r[1], version=r[2]) for r in padded]


def _hashes(raw: Raw, plan: CellPlan, out: Path) -> Hashes:
    capture = raw.folder / "cap.pcap"
    seen = read_capture(capture) if plan.capture and capture.is_file() else None
    if seen and plan.keep_pcap:
        (out / "cap.pcap").write_bytes(capture.read_bytes())
    parts = trace_parts(raw.folder)
    return Hashes(
        pcap_sha256=seen.sha256 if seen else None,
        pcap_packets=seen.packets if seen else None,
        trace_sha256=hashlib.sha256(b"".join(parts)).hexdigest() if parts else None,
    )
