"""A scenario as text: its topology drawn, what happens when, and the exact commands."""

from __future__ import annotations

from .model import CellPlan, StagePlan
from .scenario import Link, Scenario
from .units import format_rate, format_size, format_time


def render(scenario: Scenario, plan: CellPlan) -> str:
    """The drawing, the flows, the events and every command of a plan's files.

    ``plan`` is one cell of the scenario; commands depend on its algorithm and seed.
    """
    at = scenario.at_point(plan.cell.point)
    parts = [_head(at, plan), *_chain(at), *_links(at, plan), *_flows(plan), *_events(plan)]
    parts += _notes(plan)
    parts += _file(plan, "setup.sh", "Set-up: commands as run, by sh")
    parts += _file(plan, "before.tsv", "Calibration before (time us, namespace, name, command)")
    parts += _file(plan, "main.tsv", "Experiment")
    parts += _file(plan, "after.tsv", "Calibration after")
    parts += _file(plan, "trace.events", "Tracepoints and their filters")
    return "\n".join(parts)


def _head(scenario: Scenario, plan: CellPlan) -> str:
    point = "".join(f", {key} = {value}" for key, value in plan.cell.params)
    return "\n".join(
        [
            f"{scenario.name}: {scenario.title}",
            f"  {scenario.purpose.strip()}",
            *([f"  paper: {scenario.paper}"] if scenario.paper else []),
            f"  shown: {plan.cell.cc}, seed {plan.cell.seed}{point}, "
            f"{format_time(scenario.duration)}, IPv{scenario.ip}",
            "",
        ]
    )


def _order(scenario: Scenario) -> list[str] | None:
    """The nodes along a simple chain, or None when the topology is not one."""
    links = [link.between for link in scenario.links.values()]
    degree = {n: sum(n in pair for pair in links) for n in scenario.nodes}
    tips = [n for n in scenario.nodes if degree[n] == 1]
    if len(tips) != 2 or max(degree.values()) > 2 or len(links) != len(scenario.nodes) - 1:
        return None
    order, left = [tips[0]], list(links)
    while left:
        pair = next((p for p in left if order[-1] in p), None)
        if pair is None:
            return None
        left.remove(pair)
        order.append(pair[1] if pair[0] == order[-1] else pair[0])
    return order


def _between(scenario: Scenario, a: str, b: str) -> tuple[str, Link]:
    return next((n, k) for n, k in scenario.links.items() if set(k.between) == {a, b})


def _chain(scenario: Scenario) -> list[str]:
    order = _order(scenario)
    if order is None:
        return [_star(scenario)]
    rows = ["", "", ""]
    for i, node in enumerate(order):
        rows[0] += f"┌{'─' * (len(node) + 2)}┐"
        rows[1] += f"│ {node} │"
        rows[2] += f"└{'─' * (len(node) + 2)}┘"
        if i + 1 < len(order):
            name, link = _between(scenario, node, order[i + 1])
            above, below = _short(name, link)
            width = max(len(above), len(below)) + 2
            rows[0] += above.center(width)
            rows[1] += "─" * width
            rows[2] += below.center(width)
    return [*(f"  {row}" for row in rows), ""]


def _short(name: str, link: Link) -> tuple[str, str]:
    """What stands above and below a link of the drawing."""
    rate = format_rate(link.rate) if link.rate is not None else ""
    above = " ".join(filter(None, [name, rate]))
    words = [format_time(link.delay)] if link.delay else []
    words += [str(link.buffer)] if link.buffer else []
    words += [f"BER {link.ber:g}"] if link.ber is not None else []
    words += [f"loss {link.loss:g}"] if link.loss is not None else []
    words += ["Gilbert-Elliott"] if link.gilbert else []
    return above, ", ".join(words)


def _star(scenario: Scenario) -> str:
    rows = []
    for name, link in scenario.links.items():
        above, below = _short(name, link)
        text = ": ".join(filter(None, [above, below]))
        rows.append(f"  [{link.between[0]}] ── {text} ── [{link.between[1]}]")
    return "\n".join([*rows, ""])


def _links(scenario: Scenario, plan: CellPlan) -> list[str]:
    lines = ["Links (each direction: rate and buffer at one device, channel and delay at the next)"]
    for name, link in scenario.links.items():
        a, b = link.between
        stages = [stage for stage in plan.stages if stage.link == name]
        if not stages:
            lines += [f"  {name}: [{a}] ══ veth ══ [{b}], plain, no emulation", ""]
            continue
        lines.append(f"  {name}: [{a}] ══ [w{name}a] ══ [w{name}b] ══ [{b}]")
        lines += [_stage(stage) for stage in stages]
        lines.append("")
    return lines


def _stage(stage: StagePlan) -> str:
    rate = "no rate limit"
    if stage.rate_bps is not None:
        room = (
            format_size(stage.buffer_bytes)
            if stage.buffer_bytes is not None
            else f"{stage.buffer_pkts} packets"
        )
        rate = f"{format_rate(stage.rate_bps)}, {stage.qdisc} {room}"
        rate += f" ({stage.rate_ns}:{stage.rate_dev} {stage.rate_handle})"
    channel = f"channel {stage.channel}" if stage.channel else "no channel"
    channel += f" BER {stage.ber:g}" if stage.ber else ""
    channel += f" loss {stage.loss:g}" if stage.loss else ""
    delay = f"{format_time(stage.delay_us)} ({stage.delay_ns}:{stage.delay_dev})"
    return f"    {stage.src} → {stage.dst}: {rate}; {channel}; {delay}"


def _flows(plan: CellPlan) -> list[str]:
    lines = ["Flows"]
    for flow in plan.flows:
        lines.append(
            f"  {flow.label}: {flow.src} → {flow.dst} ({flow.dst_addr}:{flow.port}), {flow.cc}, "
            f"{flow.role}, {format_time(flow.start_us)} to {format_time(flow.stop_us)}"
        )
    for probe in plan.probes:
        rtt, rate = format_time(probe.rtt_us), probe.rate_bps
        room = f", buffer {probe.buffer_pkts} packets" if probe.buffer_pkts is not None else ""
        limit = f", {format_rate(rate)}" if rate is not None else ""
        lines.append(
            f"  {probe.label}: audit expects {probe.src} → {probe.dst} RTT {rtt}{limit}{room}"
        )
    return [*lines, ""]


def _events(plan: CellPlan) -> list[str]:
    if not plan.intervals:
        return []
    rows = [f"  {format_time(i.start_us)}: {i.text}" for i in plan.intervals]
    return ["Events", *rows, ""]


def _notes(plan: CellPlan) -> list[str]:
    return ["Notes", *(f"  {note}" for note in plan.notes), ""] if plan.notes else []


def _file(plan: CellPlan, name: str, title: str) -> list[str]:
    text = plan.files.get(name, b"").decode()
    return [f"── {title} ({name}) ──", text] if text else []
