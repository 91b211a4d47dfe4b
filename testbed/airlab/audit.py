"""The substrate audit: was the link what the scenario says it was?

Each cell is checked before its numbers count.  A failed check of severity ``veto`` keeps the
cell out of every average (it stays listed); one of severity ``warn`` is shown beside them.

Files of the raw folder beyond docs/lab-internals.md section 6:

* ``json/LABEL.json`` is a flow's sender, ``json/LABEL.recv.json`` its receiver;
* ``json/PHASE.PROBE.KIND.json`` is a probe: PHASE ``before`` or ``after``, KIND ``ping``
  (airflow ping), ``rate`` (udp-recv of a stream faster than the link) or ``burst`` (udp-recv
  of ``burst_pkts`` frames sent at once).
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from airlab.model import AirlabError, CellPlan, CrossPlan, FlowPlan, PathProbe, StagePlan
from airlab.stats import frame_loss, loss_bounds, median

Severity = Literal["veto", "warn"]
PHASES = ("before", "after")

TOLERANCE = 0.01  # of rate and round-trip time (R10)
RTT_SLACK_US = 100.0  # CPU time of two end hosts and the hops of a path, both ways
BURST_SEND_US = 20.0  # CPU time to send one frame of a burst: bounds what drains meanwhile
# Probability that a right channel passes.  Outside the first a run is worth a look; in a
# campaign of hundreds that happens to sound channels, too, so only the second is a veto.
LOSS_LEVEL = 0.999
LOSS_VETO_LEVEL = 1 - 1e-6
TICK_NS = 10**7  # of /proc/stat
CPU_WARN, CPU_VETO = 0.10, 0.50  # busy part of the processor during the experiment
STEAL_WARN, STEAL_VETO = 0.001, 0.01  # part of it that a hypervisor gave to somebody else
DATA_FRAME_BYTES = 500  # a stage with a larger mean frame carries data, not only ACKs

_ETHERNET_UDP = {4: 14 + 20 + 8, 6: 14 + 40 + 8}


@dataclass(frozen=True)
class Check:
    """One question to the substrate and its answer."""

    name: str
    expected: str
    measured: str
    tolerance: str
    ok: bool
    severity: Severity

    def to_json(self) -> dict[str, Any]:
        """The check as stored in ``cell.json``."""
        return asdict(self)


def verdict(checks: Iterable[Check]) -> Literal["ok", "warn", "veto"]:
    """The worst severity among the checks that failed."""
    failed = {c.severity for c in checks if not c.ok}
    return "veto" if "veto" in failed else "warn" if failed else "ok"


@dataclass(frozen=True)
class Raw:
    """The raw output folder of a run; readers give None for a file that is not there."""

    folder: Path

    def text(self, name: str) -> str | None:
        """A file's text."""
        path = self.folder / name
        return path.read_text(errors="replace") if path.is_file() else None

    def json(self, name: str) -> Any:  # noqa: ANN401 - JSON has any shape
        """A JSON file's content.

        Raises:
            AirlabError: the file is not JSON (the program that writes it was cut off).
        """
        text = self.text(name)
        if text is None:
            return None
        try:
            return json.loads(text)
        except ValueError as error:
            raise AirlabError(f"{self.folder / name}: not JSON: {error}") from None

    def sender(self, flow: FlowPlan | CrossPlan) -> dict[str, Any] | None:
        """What the sender of a flow or of a UDP stream reported."""
        return self._report(f"{flow.label}.json")

    def receiver(self, flow: FlowPlan | CrossPlan) -> dict[str, Any] | None:
        """What the receiver of a flow or of a UDP stream reported."""
        return self._report(f"{flow.label}.recv.json")

    def probe(self, phase: str, label: str, kind: str) -> dict[str, Any] | None:
        """What a calibration probe reported."""
        return self._report(f"{phase}.{label}.{kind}.json")

    def _report(self, name: str) -> dict[str, Any] | None:
        report = self.json(f"json/{name}")
        return report if isinstance(report, dict) else None

    @cached_property
    def t0_ns(self) -> int:
        """Start of the experiment, CLOCK_MONOTONIC.

        Raises:
            AirlabError: there is no ``t0``, so the experiment did not start.
        """
        text = self.text("t0")
        if not text or not text.split()[0].isdigit():
            raise AirlabError(f"{self.folder / 't0'}: missing or damaged; did the run start?")
        return int(text.split()[0])

    @property
    def elapsed_ns(self) -> int:
        """From the experiment's start to its end; 0 when that was not noted."""
        words = (self.text("tend") or "").split()
        return int(words[0]) - self.t0_ns if words and words[0].isdigit() else 0

    @property
    def t0_realtime_ns(self) -> int | None:
        """The same moment on CLOCK_REALTIME, which captures use; None when it was not noted."""
        words = (self.text("t0") or "").split()
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else None

    def qdisc(self, when: int, netns: str, dev: str, handle: str) -> dict[str, Any] | None:
        """Counters of a queue discipline before (0) or after (1) the experiment."""
        rows = self.json(f"tc{when}.{netns}.json") or []
        wanted = (dev, handle.rstrip(":"))
        for row in rows:
            if (row.get("dev"), str(row.get("handle", "")).rstrip(":")) == wanted:
                return dict(row)
        return None

    def counters(self, when: int, netns: str) -> dict[str, int]:
        """SNMP counters of a node, ``Group.Name`` to value; empty when not recorded."""
        lines = (self.text(f"nstat{when}.{netns}") or "").splitlines()
        values: dict[str, int] = {}
        for names, numbers in zip(lines[::2], lines[1::2], strict=False):
            group = names.partition(":")[0]
            pairs = zip(names.split()[1:], numbers.split()[1:], strict=False)
            values.update({f"{group}.{name}": int(number) for name, number in pairs})
        return values

    def counted(self, netns: str, name: str) -> int:
        """How much a node's counter grew during the experiment."""
        after, before = self.counters(1, netns), self.counters(0, netns)
        return after.get(name, 0) - before.get(name, 0)

    def supplements(self, netns: str) -> dict[str, int]:
        """How much the counters of TCP-Cherry grew in a node; empty without its module."""
        before, after = (
            {words[0]: int(words[1]) for words in map(str.split, text.splitlines())}
            for text in (self.text(f"cherry{when}.{netns}") or "" for when in (0, 1))
        )
        return {name: value - before.get(name, 0) for name, value in after.items()}

    def repeated(self, netns: str) -> int:
        """Segments that a node sent once more.

        The first transmission of what TCP-Cherry skipped counts as a retransmission in the stack.
        Below zero by what it has skipped and not sent yet.
        """
        counts = self.supplements(netns)
        skipped = counts.get("ClaimedSegs", 0) - counts.get("SupplementsSent", 0)
        return self.counted(netns, "Tcp.RetransSegs") - skipped


@dataclass(frozen=True)
class TraceFacts:
    """What the collector found out about the trace; None without a trace."""

    count: int
    lost: int


def audit(raw: Raw, plan: CellPlan, trace: TraceFacts | None) -> list[Check]:
    """All checks of a cell, in a fixed order."""
    checks = [_finished(raw), *_flows(raw, plan)]
    for phase in PHASES:
        for probe in plan.probes:
            checks.extend(_probe(raw, plan, phase, probe))
    for stage in plan.stages:
        if stage.channel is not None:
            checks.extend(_channel(raw, stage, stage.channel))
    checks.extend(_losses(raw, plan))
    checks.extend(_processor(raw))
    if plan.trace:
        checks.append(_trace(trace))
    if plan.capture:
        checks.append(_capture(raw))
    return checks


def _finished(raw: Raw) -> Check:
    code = (raw.text("rc") or "missing").strip()
    return Check("guest finished", "0", code, "exact", code == "0", "veto")


def _flows(raw: Raw, plan: CellPlan) -> Iterator[Check]:
    for flow in plan.flows:
        sender, receiver = raw.sender(flow), raw.receiver(flow)
        problem = _flow_problem(sender, receiver)
        yield Check(
            f"flow {flow.label}", "no error", problem or "no error", "exact", not problem, "veto"
        )
        cc = str((sender or {}).get("cc"))
        yield Check(f"algorithm {flow.label}", flow.cc, cc, "exact", cc == flow.cc, "veto")


def _flow_problem(sender: dict[str, Any] | None, receiver: dict[str, Any] | None) -> str:
    if sender is None:
        return "no report of the sender"
    if receiver is None:
        return "no report of the receiver"
    if receiver.get("verified") is False:
        return f"data differ at byte {receiver.get('mismatch_at')}"
    return str(sender.get("error") or receiver.get("error") or "")


def _probe(raw: Raw, plan: CellPlan, phase: str, probe: PathProbe) -> Iterator[Check]:
    yield _rtt(raw.probe(phase, probe.label, "ping"), phase, probe)
    if probe.rate_bps is not None:
        yield _rate(raw.probe(phase, probe.label, "rate"), phase, probe, plan)
    if probe.buffer_pkts is not None and probe.rate_bps is not None:
        yield _buffer(raw.probe(phase, probe.label, "burst"), phase, probe)


def _family(plan: CellPlan, probe: PathProbe) -> int:
    ends = {probe.src, probe.dst}
    return next((f.family for f in plan.flows if {f.src, f.dst} == ends), 4)


def _rtt(report: dict[str, Any] | None, phase: str, probe: PathProbe) -> Check:
    """Median idle round-trip time within 1 % and the slack for CPU time."""
    rtts = [] if report is None else [t for t in report.get("rtts_ns", []) if t > 0]
    measured = median(rtts) / 1e3
    allowed = TOLERANCE * probe.rtt_us + RTT_SLACK_US
    return Check(
        f"{phase} rtt {probe.label}",
        f"{probe.rtt_us} us",
        f"{measured:.0f} us" if rtts else "not measured",
        f"± {allowed:.0f} us",
        bool(rtts) and abs(measured - probe.rtt_us) <= allowed,
        "veto",
    )


def _rate(report: dict[str, Any] | None, phase: str, probe: PathProbe, plan: CellPlan) -> Check:
    """Layer-2 rate of a stream that keeps the bottleneck busy, first frame to last.

    A token bucket lets one frame through at once, so its stream may be one frame early.
    """
    measured = math.nan if report is None else _stream_rate(report, _family(plan, probe))
    expected = probe.rate_bps or 0
    early = 0.0
    if report is not None and any(
        _has_bucket(s) for s in plan.stages if s.full_frames_bps == expected
    ):
        early = 1 / max(int(report.get("datagrams", 0)) - 1, 1)
    return Check(
        f"{phase} rate {probe.label}",
        f"{expected} bit/s",
        "not measured" if math.isnan(measured) else f"{measured:.0f} bit/s",
        f"-{TOLERANCE:.1%} +{TOLERANCE + early:.1%}",
        -TOLERANCE <= measured / expected - 1 <= TOLERANCE + early if expected else False,
        "veto",
    )


def _has_bucket(stage: StagePlan) -> bool:
    """Whether the rate stage is a token bucket (htb, tbf) and not netem."""
    own = stage.own_handle is not None
    return own or stage.qdisc != "droptail" or stage.buffer_bytes is not None


def _stream_rate(report: dict[str, Any], family: int) -> float:
    count = int(report.get("datagrams", 0))
    span_ns = int(report.get("last_ns", 0)) - int(report.get("first_ns", 0))
    if count < 2 or span_ns <= 0:
        return math.nan
    frame = report["bytes"] / count + _ETHERNET_UDP[family]
    return float((count - 1) * frame * 8e9 / span_ns)


def _buffer(report: dict[str, Any] | None, phase: str, probe: PathProbe) -> Check:
    """Frames of a burst that survive: the buffer, and what drains while the burst is sent.

    Sending takes at most ``burst_pkts * BURST_SEND_US``; in that time the link sends at most
    ``ceil(rate * time / frame)`` frames, which make room for as many more.
    """
    depth, rate = probe.buffer_pkts or 0, probe.rate_bps or 0
    sending_s = probe.burst_pkts * BURST_SEND_US / 1e6
    drain = math.ceil(rate * sending_s / (8 * probe.burst_frame_bytes))
    got = None if report is None else int(report.get("datagrams", 0))
    upper = min(depth + drain, probe.burst_pkts)
    return Check(
        f"{phase} buffer {probe.label}",
        f"{depth} packets",
        "not measured" if got is None else f"{got} packets",
        f"{min(depth, upper)}..{upper}",
        got is not None and min(depth, upper) <= got <= upper,
        "veto",
    )


def _channel(raw: Raw, stage: StagePlan, name: str) -> Iterator[Check]:
    report = raw.json(f"chan.{name}.json")
    if report is None:
        yield Check(f"channel {name}", "statistics", "missing", "exact", False, "veto")
        return
    armed = bool(report.get("armed"))
    yield Check(f"channel {name} armed", "yes", "yes" if armed else "no", "exact", armed, "veto")
    for counter in ("exhausted", "gso"):
        # A frame of several segments would be one frame to the channel, but many in the air.
        count = int(report.get(counter, 0))
        yield Check(f"channel {name} {counter}", "0", str(count), "exact", count == 0, "veto")
    yield _channel_losses(report, stage, name)


def _channel_losses(report: dict[str, Any], stage: StagePlan, name: str) -> Check:
    """Losses of the good state within the exact bound for the frames that went through.

    See :func:`airlab.stats.loss_bounds`.  The bad state of a two-state channel and outages
    are counted apart and have no part in this check.
    """
    lengths = {int(length): int(n) for length, n in report.get("lengths", {}).items()}
    if stage.drop:
        return _listed_losses(report, stage, name, sum(lengths.values()))
    low, high = loss_bounds(lengths, stage.ber, stage.loss, LOSS_LEVEL)
    mean = sum(n * frame_loss(length, stage.ber, stage.loss) for length, n in lengths.items())
    dropped = int(report.get("dropped_good", 0))
    lowest, highest = loss_bounds(lengths, stage.ber, stage.loss, LOSS_VETO_LEVEL)
    return Check(
        f"channel {name} losses",
        f"{mean:.1f} of {sum(lengths.values())} frames",
        str(dropped),
        f"{low}..{high} ({LOSS_LEVEL:.1%} Poisson-binomial; veto outside {lowest}..{highest})",
        low <= dropped <= high,
        "warn" if lowest <= dropped <= highest else "veto",
    )


def _listed_losses(report: dict[str, Any], stage: StagePlan, name: str, frames: int) -> Check:
    """A list of frames to drop: exactly those that came by are gone."""
    expected = sum(index < frames for index in stage.drop)
    dropped = int(report.get("dropped_good", 0))
    return Check(
        f"channel {name} losses",
        f"{expected} of {len(stage.drop)} listed frames",
        str(dropped),
        "exact",
        dropped == expected,
        "veto",
    )


def _losses(raw: Raw, plan: CellPlan) -> Iterator[Check]:
    """Frames dropped on the way against retransmissions of the senders.

    Equality cannot be asked for.  Each lost data segment that is later delivered costs at
    least one retransmission, so ``R >= D - O`` with D the drops of the rate stages that carry
    data and O the segments still outstanding at the end: less means that TCP was told of a
    drop in another way than by loss (a drop on its own host).  And R exceeds all drops only
    by retransmissions that were not needed; the kernel's own count of those (DSACK, loss
    probes, spurious timeouts) bounds them when SACK is on, and a go-back-N after a timeout
    or duplicate ACKs without SACK can exceed it, hence only a warning there.

    A supplement of TCP-Cherry that is sent again in its cycle, or was out before, is no
    retransmission to the stack, but its copies are dropped like other frames.  What Cherry has
    claimed and not sent yet is outstanding, too, and missing from R.  And a supplement that data
    overtook for longer than a tick of the timestamps is discarded by its receiver (PAWS), without a
    D-SACK.
    """
    if _datagrams_in(raw, plan):
        return  # datagrams are dropped too, and nobody repeats them
    senders = sorted({flow.src for flow in plan.flows})
    repeated = sum(raw.repeated(node) for node in senders)
    cherry = sum((Counter(raw.supplements(node)) for node in senders), Counter[str]())
    needless = sum(
        raw.counted(node, f"TcpExt.{name}")
        for node in senders
        for name in ("TCPDSACKRecv", "TCPDSACKOfoRecv", "TCPLossProbes", "TCPSpuriousRTOs")
    )
    receivers = sorted({flow.dst for flow in plan.flows})
    overtaken = sum(raw.counted(node, "TcpExt.PAWSEstab") for node in receivers)
    finals = ((raw.sender(flow) or {}).get("final") or {} for flow in plan.flows)
    outstanding = sum(int(final.get("unacked_segs", 0)) for final in finals)
    # What a host's own device refuses is no loss: TCP keeps the segment and sends it again.
    told = [stage for stage in plan.stages if stage.refuses and stage.src in senders]
    queue = sum(_stage_drops(raw, stage) for stage in plan.stages if stage not in told)
    channel = sum(channel_drops(raw, stage) for stage in plan.stages)
    unsent = min(outstanding, cherry["ClaimedSegs"])
    again = cherry["SupplementsSentAgain"] + cherry["SupplementsRepeated"]
    least = queue - outstanding - unsent - again
    most = queue + channel + needless + overtaken + cherry["SupplementsRepeated"]
    yield Check(
        "queue drops seen by TCP",
        f">= {least} retransmissions",
        str(repeated),
        f"{queue} drops, {outstanding} outstanding",
        repeated >= least,
        "veto",
    )
    yield Check(
        "retransmissions explained",
        f"<= {most}",
        str(repeated),
        f"{queue} queue + {channel} channel drops + {needless} needless + {overtaken} overtaken",
        repeated <= most,
        "warn",
    )


def _datagrams_in(raw: Raw, plan: CellPlan) -> bool:
    flows = {f"{flow.label}.json" for flow in plan.flows}
    names = [p.name for p in sorted((raw.folder / "json").glob("*.json"))]
    rest = [n for n in names if n not in flows and n.partition(".")[0] not in PHASES]
    modes = {(raw.json(f"json/{name}") or {}).get("mode") for name in rest}
    return bool(modes & {"udp-send", "burst"})


def _stage_drops(raw: Raw, stage: StagePlan) -> int:
    """Frames the queue of a stage dropped, if it carries data rather than ACKs."""
    if stage.rate_bps is None:
        return 0
    places = (stage.rate_ns, stage.rate_dev, stage.counted_handle)
    before, after = raw.qdisc(0, *places) or {}, raw.qdisc(1, *places) or {}
    grown = {k: int(after.get(k, 0)) - int(before.get(k, 0)) for k in ("bytes", "packets", "drops")}
    frames = max(grown["packets"], 1)
    return grown["drops"] if grown["bytes"] / frames > DATA_FRAME_BYTES else 0


def channel_drops(raw: Raw, stage: StagePlan) -> int:
    """Frames the channel of a stage dropped, for whatever reason."""
    report = (raw.json(f"chan.{stage.channel}.json") or {}) if stage.channel else {}
    kinds = ("dropped_good", "dropped_bad", "dropped_outage")
    return sum(int(report.get(kind, 0)) for kind in kinds)


def _processor(raw: Raw) -> Iterator[Check]:
    """Busy and stolen parts of the processor that the cell ran on.

    The bottleneck must be the emulated link: above 10 % queueing for the processor begins
    to show in round-trip times (warn); from 50 % the processor shapes the traffic (veto).  In real
    time a processor can also be away: each per mille is a millisecond a second in which every
    timer of the path was late.
    """
    busy, stolen = _shares(raw)
    for name, share, warn, veto in (
        ("processor busy", busy, CPU_WARN, CPU_VETO),
        ("processor stolen", stolen, STEAL_WARN, STEAL_VETO),
    ):
        yield Check(
            name,
            f"<= {warn:g}" if warn < 0.01 else f"<= {warn:.0%}",
            "not measured" if math.isnan(share) else f"{share:.1%}",
            f"veto from {veto:.0%}",
            share <= warn,
            "warn" if share < veto else "veto",
        )


def _shares(raw: Raw) -> tuple[float, float]:
    """Busy and stolen parts between ``stat0`` and ``stat1``; of several processors the worst.

    Idle time is measured, busy time is sampled by the timer's ticks, and a processor that is busy
    for less than a tick at a time is seldom found so: what the ticks miss of the time is busy.
    """
    first, last = (_ticks(raw.text(name) or "") for name in ("stat0", "stat1"))
    used = _listed((raw.text("cpus") or "").strip()) & first.keys() & last.keys()
    shares = []
    for name in used or ({"cpu"} & first.keys() & last.keys()):
        idle, stolen, ticks = (b - a for a, b in zip(first[name], last[name], strict=True))
        processors = max(1, len(first) - 1) if name == "cpu" else 1
        total = max(ticks, processors * raw.elapsed_ns / TICK_NS)
        if total > 0:
            shares.append((1.0 - idle / total, stolen / total))
    if not shares:
        return math.nan, math.nan
    return max(busy for busy, _ in shares), max(stolen for _, stolen in shares)


def _ticks(stat: str) -> dict[str, tuple[int, int, int]]:
    """Ticks by processor (``cpu`` is all): idle with waiting for devices, stolen, total."""
    made = {}
    for line in stat.splitlines():
        name, *words = line.split()
        if re.fullmatch(r"cpu\d*", name):
            numbers = [int(x) for x in words[:8]]
            made[name] = (numbers[3] + numbers[4], numbers[7], sum(numbers))
    return made


def _listed(text: str) -> set[str]:
    """The processors of a list such as ``0,2-3``, as /proc/stat names them."""
    made: set[str] = set()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        made |= {f"cpu{number}" for number in range(int(low), int(high or low) + 1)}
    return made


def _trace(trace: TraceFacts | None) -> Check:
    lost = "no trace" if trace is None else f"{trace.lost} of {trace.count + trace.lost}"
    ok = trace is not None and trace.lost == 0
    return Check("trace events lost", "0", lost, "exact", ok, "veto")


def _capture(raw: Raw) -> Check:
    """What tcpdump says at its end; a hole in the capture makes its hash worthless."""
    told = [
        int(count)
        for path in sorted((raw.folder / "proc").glob("*.err"))
        for count in re.findall(r"(\d+) packets? dropped by (?:kernel|interface)", path.read_text())
    ]
    measured = str(sum(told)) if told else "not reported"
    return Check("capture drops", "0", measured, "exact", bool(told) and sum(told) == 0, "warn")
