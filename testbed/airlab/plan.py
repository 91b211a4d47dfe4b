"""The compiler: a scenario and a cell become a :class:`CellPlan`.

Same scenario text, same cell: byte-identical plan.  All randomness is derived from the cell's
seed and the name of what uses it, never from the algorithm, so that algorithms are compared on
the same channel and the same start times.

Names of the raw output a plan asks for: ``json/f1.json`` and ``json/f1.recv.json`` for each TCP
flow, ``json/x1.json`` and ``json/x1.recv.json`` for UDP cross traffic, and
``json/PHASE.p1.KIND.json`` (PHASE before, after; KIND ping, rate, burst) for calibration.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from .algorithms import Algorithm, parameter_file
from .model import (
    AirlabError,
    Cell,
    CellPlan,
    CrossPlan,
    FlowPlan,
    Interval,
    PathProbe,
    Scalar,
    StagePlan,
)
from .patterns import BITS, NO_LOSS, PACKETS, ChannelSpec, Gilbert, derive_seed, make_pattern
from .scenario import (
    MAX_UDP_BYTES,
    Capture,
    Event,
    Flow,
    GilbertModel,
    Scenario,
    event_end,
)
from .topology import (
    Stage,
    Topology,
    build_topology,
    delay_words,
    holds_frames,
    kernel_modules,
    loses_frames,
    needs_delay,
    netem_seed,
    plug_words,
    rate_words,
    setup_script,
    side_events,
)
from .units import FULL_FRAME_BYTES, format_rate, format_time

LAB = "/lab"
OUT = "/out/json"
ARM_US = -30_000
RECEIVERS_US = -40_000
PING_COUNT = 5
PING_BYTES = 64
RATE_FRAMES = 80
MAX_BURST_PKTS = 4000
PCAP_RECORD_BYTES = 16
TX_DELAY_MS = 10_000
"""TCP_TX_DELAY of sockets without TCP Small Queues: these then allow 20 s of the pacing rate."""
FAST_UNLIMITED_BPS = 10**9
"""What a link without a rate is taken for where a scenario says ``allow_fast``."""


@dataclass(frozen=True)
class Line:
    """A line of a schedule: time in us, namespace or ``-``, label, command."""

    at_us: int
    netns: str
    label: str
    argv: str


def cells(
    scenario: Scenario,
    cc: Sequence[str] | None = None,
    seeds: int | Sequence[int] | None = None,
    sweep: dict[str, Sequence[Scalar]] | None = None,
) -> list[Cell]:
    """All cells of a campaign: points, then seeds, then algorithms.

    ``seeds`` is a count (1 to N) or explicit numbers; ``sweep`` replaces or adds swept keys.
    Raises AirlabError for unknown labels and impossible points.
    """
    labels = list(cc) if cc else list(scenario.cc)
    for label in labels:
        scenario.algorithm(label)
    numbers = scenario.seeds if seeds is None else seeds
    numbers = range(1, numbers + 1) if isinstance(numbers, int) else numbers
    swept: dict[str, Sequence[Scalar]] = {**scenario.sweep, **(sweep or {})}
    points = [
        tuple(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())
    ]
    for point in points:
        scenario.at_point(dict(point))
    return [Cell(label, seed, point) for point in points for seed in numbers for label in labels]


def build_plan(scenario: Scenario, cell: Cell) -> CellPlan:
    """Compile one cell; raises AirlabError when the scenario cannot be run at this point."""
    return _Builder(scenario.at_point(cell.point), cell).build()


def _jittered(scenario: Scenario, seed: int) -> Scenario:
    """The scenario with the events of each link as late as this seed has them."""

    def moved(event: Event) -> Event:
        late = derive_seed(seed, "jitter", event.link) % (event.jitter + 1)
        return event.model_copy(update={"at": event.at + late})

    return scenario.model_copy(update={"events": [moved(event) for event in scenario.events]})


class _Builder:
    """Holds what the parts of a plan share; :meth:`build` puts them together."""

    def __init__(self, scenario: Scenario, cell: Cell) -> None:
        self.scenario = scenario = _jittered(scenario, cell.seed)
        self.cell = cell
        self.algorithm = scenario.algorithm(cell.cc)
        self.topology: Topology = build_topology(scenario)
        self.stages = list(self.topology.stages.values())
        self.flows = self._expand()
        self.senders = self._senders()
        self.probes = self._probes()

    def build(self) -> CellPlan:
        """The plan with all its files."""
        scenario, topology = self.scenario, self.topology
        files = {
            "setup.sh": self._setup().encode(),
            "trace.events": self._trace_events().encode(),
            **{f"patterns/{name}.bin": data for name, data in self._patterns().items()},
        }
        if self._causes():
            rule = f"stacktrace if {self._our_ports()}"
            files["trace.triggers"] = f"tcp/tcp_cong_state_set\t{rule}\n".encode()
        before, before_end = self._calibration("before", 100_000)
        after, after_end = self._after()
        main_end = self._main_end()
        files["before.tsv"] = _schedule(before)
        files["main.tsv"] = _schedule(self._main())
        files["after.tsv"] = _schedule(after)
        files["env"] = self._env(before_end, main_end, after_end).encode()
        return CellPlan(
            scenario=scenario.name,
            cell=self.cell,
            cc=self.algorithm.kernel_cc,
            duration_us=scenario.duration,
            flows=tuple(plan for _, plan in self.flows),
            stages=tuple(self._stage_plan(stage) for stage in self.stages),
            probes=tuple(self.probes),
            intervals=tuple(self._intervals()),
            nodes=topology.namespaces,
            modules=self._modules(),
            kernel_args=(f"rep={self.cell.seed}",),
            capture=self._capture() is not None,
            trace=bool(self._trace_lines()),
            keep_pcap=scenario.trace.keep_pcap,
            notes=tuple(self._notes()),
            cross=tuple(self._cross()),
            gips=self.scenario.gips,
            results_mb=self._trace_kb() + self._capture_kb() >> 10,
            files=files,
        )

    # Flows -----------------------------------------------------------------------------------

    def _expand(self) -> list[tuple[Flow, FlowPlan]]:
        rows: list[tuple[Flow, FlowPlan]] = []
        for spec in self.scenario.flows:
            for copy_ in range(spec.count):
                number = len(rows) + 1
                rows.append((spec, self._flow(spec, copy_, f"f{number}", 5000 + number)))
        return rows

    def _flow(self, spec: Flow, copy_: int, label: str, port: int) -> FlowPlan:
        jitter = derive_seed(self.cell.seed, "start", label) % (spec.jitter + 1)
        algorithm = self.scenario.algorithm(spec.cc or self.cell.cc)
        return FlowPlan(
            label=label,
            cc=algorithm.kernel_cc,
            src=spec.from_,
            dst=spec.to,
            dst_addr=self.topology.address(spec.to, spec.from_),
            port=port,
            family=self.scenario.ip,
            start_us=spec.start + copy_ * spec.spacing + jitter,
            stop_us=self.scenario.duration if spec.stop is None else spec.stop,
            role=spec.role,
            sample_ms=max(1, spec.sample // 1000),
            size_bytes=spec.size,
        )

    def _senders(self) -> dict[str, list[Algorithm]]:
        """The algorithms each node sends with; their sysctls must agree, they are per host."""
        chosen: dict[str, list[Algorithm]] = {}
        for spec, _ in self.flows:
            labels = [spec.cc or self.cell.cc, *(item.cc for item in spec.switch)]
            chosen.setdefault(spec.from_, []).extend(map(self.scenario.algorithm, labels))
        for node, algorithms in chosen.items():
            settings = {algorithm.sysctls for algorithm in algorithms}
            if len(settings) > 1:
                labels = sorted({a.label for a in algorithms})
                raise AirlabError(
                    f"{self.scenario.source}: nodes.{node}: sends with {', '.join(labels)}, whose "
                    "sysctls differ; these are per host: give each algorithm a host of its own"
                )
        return chosen

    def _algorithms(self) -> list[Algorithm]:
        return list(dict.fromkeys(a for algorithms in self.senders.values() for a in algorithms))

    def _modules(self) -> tuple[str, ...]:
        names = [*kernel_modules(self.topology)]
        for algorithm in self._algorithms():
            names += algorithm.modules
        return tuple(dict.fromkeys(names))

    # Set-up and patterns ---------------------------------------------------------------------

    def _setup(self) -> str:
        sizes = [s for f in self.scenario.flows for s in (f.recv_buffer, f.send_buffer) if s]
        text = setup_script(self.topology, self.senders, max(sizes, default=0))
        lines = [
            f"echo {value} >{parameter_file(algorithm, name)}"
            for algorithm in self._algorithms()
            for name, value in algorithm.params
            if algorithm.modules or "." in name
        ]
        lines += [
            f"airchan attach --name {stage.channel} --netns {stage.delay_ns} "
            f"--dev {stage.delay_dev} --pattern {LAB}/patterns/{stage.channel}.bin"
            for stage in self.stages
            if stage.channel
        ]
        return text + "".join(line + "\n" for line in ["", *lines] if lines)

    def _patterns(self) -> dict[str, bytes]:
        made: dict[str, bytes] = {}
        for stage in self.stages:
            if stage.channel:
                spec = channel_spec(self.scenario, stage)
                pattern = make_pattern(spec, self.cell.seed, stage.link, stage.side)
                made[stage.channel] = pattern.to_bytes()
        return made

    def _stage_plan(self, stage: Stage) -> StagePlan:
        changing = side_events(self.scenario, stage.link, stage.side)
        return StagePlan(
            name=stage.name,
            link=stage.link,
            src=stage.src,
            dst=stage.dst,
            rate_ns=stage.rate_ns,
            rate_dev=stage.rate_dev,
            rate_handle=stage.rate_handle,
            rate_bps=stage.rate_bps,
            buffer_pkts=stage.buffer_pkts,
            buffer_bytes=stage.buffer_bytes,
            qdisc=stage.qdisc,
            delay_ns=stage.delay_ns,
            delay_dev=stage.delay_dev,
            delay_us=stage.delay_us,
            channel=stage.channel,
            ber=stage.ber if stage.gilbert is None else stage.gilbert.good_ber or 0.0,
            loss=stage.loss if stage.gilbert is None else stage.gilbert.good_loss or 0.0,
            drop=stage.drop,
            constant=all(e.outage is not None and not holds_frames(e) for e in changing),
            own_handle=None if stage.queue == "wire" else stage.leaf_handle,
            refuses=stage.queue != "wire" and stage.rate_ns == stage.src,
            frame_bytes=stage.frame_bytes,
        )

    # The experiment --------------------------------------------------------------------------

    def _main(self) -> list[Line]:
        lines = [
            Line(
                ARM_US, "-", f"{s.channel}.arm", f"airchan arm --name {s.channel} --t0-file /out/t0"
            )
            for s in self.stages
            if s.channel
        ]
        for stage in self.stages:
            if stage.has_extras:
                words = delay_words(stage, seed=netem_seed(self.cell.seed, stage, 0))
                lines.append(self._change_delay(stage, ARM_US, f"{stage.name}.extras", words))
        for spec, plan in self.flows:
            lines += [self._receiver(spec, plan), self._sender(spec, plan)]
        lines += self._cross_lines()
        for stage in self.stages:
            lines += self._event_lines(stage)
        return lines

    def _receiver(self, spec: Flow, plan: FlowPlan) -> Line:
        words = ["airflow recv", f"--port {plan.port} --family {plan.family}"]
        words += [f"--rcvbuf {spec.recv_buffer}"] if spec.recv_buffer else []
        words += [self._verify(plan)] if spec.verify else []
        words.append(f"--json {OUT}/{plan.label}.recv.json")
        return Line(RECEIVERS_US, plan.dst, f"{plan.label}.recv", " ".join(words))

    def _verify(self, plan: FlowPlan) -> str:
        return f"--verify {derive_seed(self.cell.seed, 'verify', plan.label)}"

    def _sender(self, spec: Flow, plan: FlowPlan) -> Line:
        words = [f"airflow send --to {plan.dst_addr} --port {plan.port} --cc {plan.cc}"]
        if spec.size is not None:
            words.append(f"--bytes {spec.size} --close fin")
        else:
            # A reset discards what is still unsent, so nothing trickles into what comes after.
            words.append(f"--seconds {(plan.stop_us - plan.start_us) / 1e6:.6f} --close rst")
        words += [f"--sndbuf {spec.send_buffer}"] if spec.send_buffer else []
        if not self.scenario.algorithm(spec.cc or self.cell.cc).small_queues:
            words.append(f"--tx-delay-ms {TX_DELAY_MS}")
        words.append(f"--sample-ms {plan.sample_ms}")
        words += [self._verify(plan)] if spec.verify else []
        for pause in sorted(spec.pause, key=lambda p: p.at):
            words.append(f"--pause {pause.at // 1000}:{max(1, pause.length // 1000)}")
        for item in sorted(spec.switch, key=lambda s: s.at):
            kernel_cc = self.scenario.algorithm(item.cc).kernel_cc
            words.append(f"--switch {item.at // 1000}:{kernel_cc}")
        words += [f"--app-rate {spec.app_rate}"] if spec.app_rate else []
        words.append(f"--json {OUT}/{plan.label}.json")
        return Line(plan.start_us, plan.src, f"{plan.label}.send", " ".join(words))

    def _cross(self) -> list[CrossPlan]:
        return [
            CrossPlan(
                label=f"x{number}",
                src=spec.from_,
                dst=spec.to,
                rate_bps=spec.rate,
                start_us=spec.start,
                stop_us=self.scenario.duration if spec.stop is None else spec.stop,
            )
            for number, spec in enumerate(self.scenario.cross, 1)
        ]

    def _cross_lines(self) -> list[Line]:
        lines: list[Line] = []
        for number, (spec, plan) in enumerate(
            zip(self.scenario.cross, self._cross(), strict=True), 1
        ):
            label, port = plan.label, 6000 + number
            seconds = (plan.stop_us - plan.start_us) / 1e6
            seed = derive_seed(self.cell.seed, "cross", label)
            to = self.topology.address(spec.to, spec.from_)
            receive = f"airflow udp-recv --port {port} --family {self.scenario.ip}"
            send = (
                f"airflow udp-send --to {to} --port {port} --size {spec.size} --rate {spec.rate} "
                f"--dist {spec.dist} --seed {seed} --seconds {seconds:.6f}"
            )
            out = f"--json {OUT}/{label}"
            lines.append(Line(RECEIVERS_US, spec.to, f"{label}.recv", f"{receive} {out}.recv.json"))
            lines.append(Line(spec.start, spec.from_, f"{label}.send", f"{send} {out}.json"))
        return lines

    def _main_end(self) -> int:
        """The scenario's end, one round trip, the queues, and half a second for reports."""
        drain = max((_drain_us(stage, self.scenario) for stage in self.stages), default=0)
        return self.scenario.duration + self._longest_rtt() + drain + 500_000

    def _longest_rtt(self) -> int:
        moved = [
            delay
            for e in self.scenario.events
            for delay in (e.delay, e.handoff.delay if e.handoff else None)
            if delay
        ]
        rtts = [self.topology.rtt_us(plan.src, plan.dst) for _, plan in self.flows]
        return max(rtts) + 2 * max(moved, default=0)

    # Events ----------------------------------------------------------------------------------

    def _event_lines(self, stage: Stage) -> list[Line]:
        lines: list[Line] = []
        now = _Link(stage)
        for number, event in enumerate(side_events(self.scenario, stage.link, stage.side), 1):
            name = f"{stage.name}.e{number}"
            end = event_end(event)
            if holds_frames(event):
                lines.append(self._tc(stage, event.at, f"{name}.block", plug_words(stage, "block")))
            change = event.handoff or event
            when = end
            if event.handoff is not None and event.handoff.inflight == "drop":
                when = event.at
            elif holds_frames(event):
                when = max(event.at + 1000, end - 2000)  # in place before frames move again
            if change.rate is not None or (event.handoff and when == event.at):
                flush = event.handoff is not None and event.handoff.inflight == "drop"
                words = now.change_rate(change.rate, flush)
                if words:
                    lines.append(self._tc(stage, when, f"{name}.rate", words))
            if change.delay is not None:
                seed = netem_seed(self.cell.seed, stage, number) if stage.has_extras else None
                words = delay_words(stage, change.delay, seed)
                lines.append(self._change_delay(stage, when, f"{name}.delay", words))
            if holds_frames(event):
                words = plug_words(now.stage, "release_indefinite")
                lines.append(self._tc(stage, end, f"{name}.release", words))
        return lines

    def _tc(self, stage: Stage, at: int, label: str, words: str) -> Line:
        return Line(at, "-", label, f"tc -n {stage.rate_ns} {words}")

    def _change_delay(self, stage: Stage, at: int, label: str, words: str) -> Line:
        place = f"qdisc change dev {stage.delay_dev} root handle {stage.delay_handle}"
        return Line(at, "-", label, f"tc -n {stage.delay_ns} {place} {words}")

    def _restore(self, stage: Stage) -> list[Line]:
        """Back to the initial parameters, so that both calibrations expect the same link."""
        events = side_events(self.scenario, stage.link, stage.side)
        lines: list[Line] = []
        moved = any(
            e.delay is not None or (e.handoff and e.handoff.delay is not None) for e in events
        )
        if needs_delay(stage, self.scenario) and (moved or stage.has_extras):
            words = delay_words(stage)
            lines.append(self._change_delay(stage, 0, f"{stage.name}.restore.delay", words))
        if any(e.rate is not None or e.handoff is not None for e in events):
            words = _Link(stage).restore_words(events)
            if words:
                lines.append(self._tc(stage, 0, f"{stage.name}.restore.rate", words))
        return lines

    def _intervals(self) -> list[Interval]:
        rows: list[Interval] = []
        for event in self.scenario.events:
            text, kind = _describe(event)
            rows.append(Interval(event.at, event_end(event), kind, text))
        return sorted(rows, key=lambda i: i.start_us)

    # Calibration -----------------------------------------------------------------------------

    def _probes(self) -> list[PathProbe]:
        made: dict[tuple[str, str], PathProbe] = {}
        for _, plan in self.flows:
            pair = (plan.src, plan.dst)
            if pair not in made:
                made[pair] = self._probe(f"p{len(made) + 1}", *pair)
        return list(made.values())

    def _probe(self, label: str, src: str, dst: str) -> PathProbe:
        rated = [s for s in self.topology.path_stages(src, dst) if s.rate_bps is not None]
        slowest = min(rated, key=_full_frames_bps, default=None)
        depth: int | None = None
        if slowest is not None and slowest is rated[0] and slowest.qdisc == "droptail":
            depth = slowest.buffer_pkts or slowest.queue_bytes // FULL_FRAME_BYTES
        burst = 0 if depth is None else math.ceil(1.3 * depth) + 4
        if burst > MAX_BURST_PKTS:
            depth, burst = None, 0
        return PathProbe(
            label=label,
            src=src,
            dst=dst,
            rtt_us=self.topology.rtt_us(src, dst) + self._ping_us(src, dst),
            rate_bps=None if slowest is None else _full_frames_bps(slowest),
            buffer_pkts=depth,
            burst_pkts=burst,
            burst_frame_bytes=FULL_FRAME_BYTES,
        )

    def _ping_us(self, src: str, dst: str) -> int:
        """How long a ping's frame takes to serialise there and back, on netem's stages.

        A token bucket lets a single frame pass at once; the answer of a shared medium waits for
        what the question cost more than the bucket holds.
        """
        headers = FULL_FRAME_BYTES - MAX_UDP_BYTES[self.scenario.ip]
        both = self.topology.path_stages(src, dst) + self.topology.path_stages(dst, src)
        rates = [stage.rate_bps for stage in both if stage.rate_bps and stage.kind == "netem"]
        waits = [
            max(0, PING_BYTES + headers + stage.frame_bytes - FULL_FRAME_BYTES)
            * 8e6
            / stage.rate_bps
            for stage in self.topology.path_stages(src, dst)
            if stage.queue == "shared" and stage.rate_bps
        ]
        return round(sum(8e6 * (PING_BYTES + headers) / rate for rate in rates) + sum(waits))

    def _calibration(self, phase: str, start: int) -> tuple[list[Line], int]:
        """The probes of all paths one after another, and when they are over."""
        lines: list[Line] = []
        now = start
        for number, probe in enumerate(self.probes):
            port = 7000 + 10 * number
            for kind in ("ping", "rate", "burst"):
                made, took = self._probe_lines(phase, probe, kind, port, now)
                lines += made
                now += took
                port += 1
        return lines, now + 200_000

    def _probe_lines(
        self, phase: str, probe: PathProbe, kind: str, port: int, now: int
    ) -> tuple[list[Line], int]:
        """A probe's server and client, and how long it takes in us."""
        name = f"{phase}.{probe.label}.{kind}"
        out = f"--json {OUT}/{name}.json"
        to = self.topology.address(probe.dst, probe.src)
        family = self.scenario.ip
        client = f"--to {to} --port {port}"
        rest = 2 * probe.rtt_us + 100_000
        if kind == "ping":
            gap = max(20, math.ceil(1.2 * probe.rtt_us / 1000))
            server = f"airflow echo --port {port} --family {family}"
            command = (
                f"airflow ping {client} --size {PING_BYTES} --count {PING_COUNT} "
                f"--interval-ms {gap} {out}"
            )
            took = PING_COUNT * gap * 1000 + rest
        elif kind == "rate" and probe.rate_bps is not None:
            frame_us = 8e6 * FULL_FRAME_BYTES / probe.rate_bps
            length = max(50_000, math.ceil(RATE_FRAMES * frame_us))
            server = f"airflow udp-recv --port {port} --family {family} {out}"
            command = (
                f"airflow udp-send {client} --size {MAX_UDP_BYTES[family]} "
                f"--rate {math.ceil(1.2 * probe.rate_bps)} --seconds {length / 1e6:.6f}"
            )
            took = length + rest + self._path_drain_us(probe)
        elif kind == "burst" and probe.buffer_pkts is not None:
            server = (
                f"airflow udp-recv --port {port} --family {family} --keep {probe.burst_pkts} {out}"
            )
            size = MAX_UDP_BYTES[family]
            command = f"airflow burst {client} --size {size} --count {probe.burst_pkts}"
            took = rest + self._path_drain_us(probe)
        else:
            return [], 0
        lines = [
            Line(now, probe.dst, f"{name}.server", server),
            Line(now + 20_000, probe.src, f"{name}.client", command),
        ]
        return lines, took + 20_000

    def _path_drain_us(self, probe: PathProbe) -> int:
        stages = self.topology.path_stages(probe.src, probe.dst)
        return sum(_drain_us(stage, self.scenario) for stage in stages)

    def _after(self) -> tuple[list[Line], int]:
        """Restore what events changed, let the queues drain, calibrate again."""
        lines = [line for stage in self.stages for line in self._restore(stage)]
        drain = sum(_drain_us(stage, self.scenario) for stage in self.stages)
        more, end = self._calibration("after", 200_000 + drain + self._longest_rtt())
        return lines + more, end

    # Trace, capture, environment -------------------------------------------------------------

    def _trace_lines(self) -> list[tuple[str, str]]:
        trace, rows = self.scenario.trace, list[tuple[str, str]]()
        if trace.acks:
            ours = self._our_ports()
            names = ("tcp_probe", "tcp_cong_state_set", "tcp_retransmit_skb")
            rows += [(f"tcp/{name}", ours) for name in names]
        roots = dict.fromkeys(s.rate_handle for s in self.stages if s.kind != "none")
        handles = [int(root[:-1], 16) << 16 for root in roots]
        if trace.queue and handles:
            chosen = " || ".join(f"handle == {handle}" for handle in handles)
            rows += [("qdisc/qdisc_enqueue", chosen), ("qdisc/qdisc_dequeue", chosen)]
        if trace.queue and self.stages:
            rows.append(("skb/kfree_skb", ""))
        if trace.modules:
            rows += [(name, "") for a in self._algorithms() for name in a.events]
        return list(dict.fromkeys(rows))

    def _our_ports(self) -> str:
        return f"dport >= 5001 && dport <= {5000 + len(self.flows)}"

    def _causes(self) -> bool:
        return self.scenario.trace.causes and self.scenario.trace.acks

    def _trace_events(self) -> str:
        return "".join(f"{name}\t{rule}\n" for name, rule in self._trace_lines())

    def _trace_kb(self) -> int:
        """Room in the ring buffer: events a packet times packets, with as much again."""
        if not self._trace_lines():
            return 0
        trace = self.scenario.trace
        per_packet = 160 * trace.acks + 220 * trace.queue
        per_packet += 120 * trace.modules * any(a.events for a in self._algorithms())
        most_kb = 1 << 20
        return min(max(2048, math.ceil(2 * self._packets() * per_packet / 1024)), most_kb)

    def _capture_kb(self) -> int:
        """Room for what is captured, there and back."""
        capture = self._capture()
        if capture is None:
            return 0
        length = min(capture.snaplen, FULL_FRAME_BYTES) + PCAP_RECORD_BYTES
        return math.ceil(2 * self._packets() * length / 1024)

    def _packets(self) -> float:
        """Full frames that all paths carry at most."""
        rates = [probe.rate_bps or _unlimited(self.scenario) for probe in self.probes]
        return sum(rates) / (8 * FULL_FRAME_BYTES) * self.scenario.duration / 1e6

    def _capture(self) -> Capture | None:
        choice = self.scenario.trace.capture
        if choice is False:
            return None
        if isinstance(choice, Capture):
            return choice
        plan = next(p for _, p in self.flows if p.role == "measured")
        link, _ = self.topology.path(plan.src, plan.dst)[-1]
        return Capture(node=plan.dst, link=link)

    def _env(self, before_end: int, main_end: int, after_end: int) -> str:
        channels = " ".join(stage.channel for stage in self.stages if stage.channel)
        capture = self._capture()
        rows = {
            "TRACE": "1" if self._trace_lines() else "0",
            "TRACE_KB": str(self._trace_kb()),
            "CAPTURE": f"{capture.node}:{capture.link}:{capture.snaplen}" if capture else "",
            "NODES": '"' + " ".join(self.topology.namespaces) + '"',
            "CHANNELS": f'"{channels}"',
            "MODULES": '"' + " ".join(self._modules()) + '"',
            "BEFORE_END_US": str(before_end),
            "MAIN_END_US": str(main_end),
            "AFTER_END_US": str(after_end),
        }
        return "".join(f"{key}={value}\n" for key, value in rows.items())

    def _notes(self) -> list[str]:
        notes = [f"{a.label}: {a.notes}" for a in self._algorithms() if a.notes]
        jitters = [
            f"{plan.label} starts {format_time(plan.start_us)} after t0" for _, plan in self.flows
        ]
        notes += jitters
        if self.scenario.gips > 1:
            notes.append(f"gips {self.scenario.gips}: a virtual processor that much faster (vm)")
        if any(stage.corrupt for stage in self.stages):
            notes.append("netem's corrupt: which bit is flipped comes from the kernel, not a seed")
        return notes


class _Link:
    """The rate stage of one direction as events change it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.rate = stage.rate_bps
        self.spare = False

    def change_rate(self, rate: int | None, flush: bool) -> str:
        """``tc`` words for a new rate; ``flush`` empties the queue (a fresh qdisc, in one step)."""
        self.rate = rate or self.rate
        stage = self.stage
        if stage.kind in ("none", "plug"):
            return ""
        if flush and (stage.kind == "netem" or (stage.kind == "tbf" and not stage.hold)):
            self.spare = not self.spare
            return f"qdisc replace dev {stage.rate_dev} root handle {self._root} {self._words}"
        if stage.kind == "htb":
            root = stage.rate_handle
            return f"class change dev {stage.rate_dev} parent {root} classid {root}1 {self._words}"
        return f"qdisc change dev {stage.rate_dev} root handle {self._root} {self._words}"

    def restore_words(self, events: list[Event]) -> str:
        """``tc`` words that bring the first qdisc and rate back after these events."""
        for event in events:
            if event.handoff is not None and event.handoff.inflight == "drop":
                self.change_rate(event.handoff.rate, True)
        if not self.spare:
            self.rate = self.stage.rate_bps
            return self.change_rate(None, False)
        return self.change_rate(self.stage.rate_bps, True)

    @property
    def _root(self) -> str:
        return self.stage.spare_handle if self.spare else self.stage.rate_handle

    @property
    def _words(self) -> str:
        return rate_words(self.stage, self.rate)


def _unlimited(scenario: Scenario) -> int:
    """Bound for what a link without a rate carries; running out of its pattern vetoes the run."""
    return max(scenario.fast_bps, FAST_UNLIMITED_BPS if scenario.allow_fast else 0)


def channel_spec(scenario: Scenario, stage: Stage) -> ChannelSpec:
    """What the pattern of one direction depends on, besides the seed."""
    events = side_events(scenario, stage.link, stage.side)
    rates = [e.rate or (e.handoff.rate if e.handoff else None) or 0 for e in events]
    bound = _unlimited(scenario)
    rate = max([stage.rate_bps, *rates]) if stage.rate_bps is not None else bound
    unit, share = NO_LOSS, 0.0
    if stage.ber:
        unit, share = BITS, stage.ber
    elif stage.loss:
        unit, share = PACKETS, stage.loss
    outages = [(e.at * 1000, event_end(e) * 1000) for e in events if loses_frames(e)]
    return ChannelSpec(
        rate_bps=rate,
        stop_ns=scenario.duration * 1000,
        unit=unit,
        rate=share,
        gilbert=None if stage.gilbert is None else _gilbert(stage.gilbert),
        drops=stage.drop,
        min_len=stage.min_len,
        outages=tuple(outages),
    )


def _gilbert(law: GilbertModel) -> Gilbert:
    unit_bad = BITS if law.bad_ber is not None else PACKETS
    unit_good = NO_LOSS
    if law.good_ber:
        unit_good = BITS
    elif law.good_loss:
        unit_good = PACKETS
    return Gilbert(
        good_ns=law.good * 1000,
        bad_ns=law.bad * 1000,
        unit_bad=unit_bad,
        rate_bad=(law.bad_ber if law.bad_ber is not None else law.bad_loss) or 0.0,
        unit_good=unit_good,
        rate_good=law.good_ber or law.good_loss or 0.0,
    )


def _drain_us(stage: Stage, scenario: Scenario) -> int:
    """How long a full queue takes to empty at the slowest rate it ever has."""
    if stage.rate_bps is None:
        return 0
    events = side_events(scenario, stage.link, stage.side)
    rates = [e.rate or (e.handoff.rate if e.handoff else None) for e in events]
    slowest = min([stage.rate_bps, *(r for r in rates if r)])
    frames = math.ceil(stage.queue_bytes / FULL_FRAME_BYTES) + 1
    more = frames * stage.frame_bytes
    return math.ceil(8e6 * (stage.queue_bytes + FULL_FRAME_BYTES + more) / slowest)


def _full_frames_bps(stage: Stage) -> int:
    """The rate that full frames can have on a stage with a rate."""
    return (stage.rate_bps or 0) * FULL_FRAME_BYTES // (FULL_FRAME_BYTES + stage.frame_bytes)


def _describe(event: Event) -> tuple[str, str]:
    where = event.link if event.direction == "both" else f"{event.link} ({event.direction})"
    if event.outage is not None:
        verb = "loses" if event.mode == "drop" else "holds"
        return f"{where} {verb} everything for {format_time(event.outage)}", "outage"
    if event.rate is not None:
        return f"{where} changes to {format_rate(event.rate)}", "rate"
    if event.handoff is None:
        return f"{where} changes to {format_time(event.delay or 0)} one way", "delay"
    handoff = event.handoff
    news = [format_rate(handoff.rate)] if handoff.rate is not None else []
    news += [format_time(handoff.delay)] if handoff.delay is not None else []
    to = f" to {', '.join(news)}" if news else ""
    gap = format_time(handoff.gap)
    return f"{where} hands off{to} (gap {gap}, in flight: {handoff.inflight})", "handoff"


def _schedule(lines: list[Line]) -> bytes:
    ordered = sorted(lines, key=lambda line: line.at_us)
    rows = [f"{line.at_us}\t{line.netns}\t{line.label}\t{line.argv}\n" for line in ordered]
    return "".join(rows).encode()
