"""Says an explanation in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ccscope.explain import Explanation, level
from ccscope.explain.classes import (
    ABOUT,
    AFTER_LOSS,
    APPLICATION,
    CLASSES,
    CWND,
    IDLE,
    PACING,
    RECEIVER,
    RECOVERY,
    SENDER,
    SLOW_START,
    SNDBUF,
    TIMEOUT,
)
from ccscope.explain.classify import Phase
from ccscope.explain.episodes import KINDS, RULE, Cost

_LISTED = 5


def text(found: Explanation, flow: dict[str, Any]) -> str:
    """A page about one flow."""
    return "\n".join(
        [
            *_head(found, flow),
            "",
            *_table(found),
            "",
            f"When (cells of {_time(found.resolution_s)}; a phase begins at 60 % of a cell and "
            "holds down to 40 %)",
            *(f"  {_phase(found, phase)}" for phase in found.phases),
            "",
            *_losses(found),
            *_kernel(found),
            *_evidence(found),
        ]
    )


def _head(found: Explanation, flow: dict[str, Any]) -> list[str]:
    ends = f"{flow.get('src', '?')}:{flow.get('sport', '?')} -> "
    ends += f"{flow.get('dst', '?')}:{flow.get('dport', '?')} {flow.get('cc', '')}"
    line = f"{found.label}: {ends.strip()}, {found.duration_s:.1f} s"
    line += f", {found.goodput_bps / 1e6:.3g} Mbit/s acknowledged"
    if found.evidence.srtt_s:
        line += f", srtt {_time(found.evidence.srtt_s)}"
    biggest = max(found.limits().items(), key=lambda item: item[1])
    share = biggest[1] / found.duration_s
    return [line, f"Mostly limited by: {biggest[0]} ({share:.0%} of the time)"]


def _table(found: Explanation) -> list[str]:
    lines = ["What limited it                                                     s    share"]
    for name in CLASSES:
        seconds = found.seconds.get(name, 0.0)
        if seconds:
            about = ABOUT[name].partition(" (")[0]
            lines.append(f"  {about:<62} {seconds:8.2f}  {seconds / found.duration_s:6.1%}")
    total = sum(found.seconds.values())
    lines.append(f"  {'total':<62} {total:8.2f}  {total / found.duration_s:6.1%}")
    return lines


def _phase(found: Explanation, phase: Phase) -> str:
    when = f"{phase.start_s:.1f}-{phase.end_s:.1f} s"
    return f"{when:<14} {_about_phase(found, phase)}"


def _about_phase(found: Explanation, phase: Phase) -> str:
    def of(name: str) -> float | None:
        return level(found.evidence, phase, name)

    share = f"{phase.share(phase.name):.0%} of the time"
    flight = f"{_size(of('inflight_bytes'))} in flight"
    cwnd = f"cwnd {of('cwnd_segs'):.0f}" if of("cwnd_segs") is not None else "cwnd not seen"
    if phase.name == RECEIVER:
        return f"the receiver's window ({_size(of('rwnd_bytes'))}) was full {share}; {cwnd}"
    if phase.name == CWND:
        whole = phase.share(CWND, AFTER_LOSS, RECOVERY)
        parts = [
            (phase.share(CWND), "at or above its size before the last loss"),
            (phase.share(AFTER_LOSS), "growing back after a loss"),
            (phase.share(RECOVERY), "in recovery"),
        ]
        said = ", ".join(f"{part:.0%} {name}" for part, name in parts if part >= 0.005)
        if of("cwnd_segs") is None:
            return f"a window of the sender's (cwnd or its send buffer) was full {whole:.0%}"
        events = [c for c in found.costs if phase.start_s <= c.event.t_s < phase.end_s]
        return f"cwnd was full {whole:.0%} of the time ({said}); {cwnd}, {len(events)} reductions"
    words = {
        SLOW_START: f"slow start; {cwnd}",
        APPLICATION: f"the program gave no more data {share}; {flight}, {cwnd}",
        SNDBUF: f"the send buffer was full {share}; {flight}, {cwnd}",
        SENDER: f"the windows had room {share} (program, send buffer or pacing); {flight}, {cwnd}",
        PACING: f"pacing {share}; {flight}, {cwnd}",
        TIMEOUT: "timeout: waiting for it and repairing after it",
        IDLE: f"idle {share}",
    }
    return words.get(phase.name, "no evidence")


def _losses(found: Explanation) -> Iterator[str]:
    sent = found.evidence.retransmits
    again = "" if sent is None else f" ({sent} segments sent again)"
    if not found.costs:
        yield f"Losses and reductions: none seen{again}"
        return
    yield f"Losses and reductions{again}"
    for kind in KINDS:
        mine = [c for c in found.costs if c.event.kind == kind]
        if mine:
            yield f"  {_sum(kind, mine)}"
            yield from (f"    {_one(c)}" for c in _worst(mine))
    total = sum(c.lost_s for c in found.costs)
    part = total / found.duration_s
    lost = _size(sum(c.lost_bytes for c in found.costs))
    yield f"  together they cost {total:.2f} s, {part:.0%} of the time ({lost}), by estimate"
    yield f"  ({RULE})"


def _sum(kind: str, mine: list[Cost]) -> str:
    inside = sum(c.event.end_s - c.event.t_s + c.event.silent_s for c in mine)
    cost = sum(c.lost_s for c in mine)
    needless = sum(c.event.spurious for c in mine)
    undone = f", {needless} of them spurious (undone)" if needless else ""
    return f"{len(mine)} x {KINDS[kind][0]}{undone}: {inside:.2f} s in them, cost {cost:.2f} s"


def _worst(mine: list[Cost]) -> list[Cost]:
    worst = sorted(mine, key=lambda c: -c.lost_s)[:_LISTED]
    return sorted((c for c in worst if c.lost_s > 0), key=lambda c: c.event.t_s)


def _one(cost: Cost) -> str:
    event = cost.event
    silent = f" after {_time(event.silent_s)} of silence" if event.silent_s else ""
    undone = ", spurious" if event.spurious else ""
    return (
        f"at {event.t_s:.3f} s{silent}: {_time(event.end_s - event.t_s)} long{undone}, cost "
        f"{_time(cost.lost_s)} ({_size(cost.lost_bytes)}) against {cost.before_bps / 1e6:.3g} "
        f"Mbit/s before, followed until {cost.until_s:.3f} s"
    )


def _kernel(found: Explanation) -> Iterator[str]:
    account = found.evidence.kernel
    if account is None:
        return
    span = found.evidence.slices.seconds(account["start_s"], account["end_s"])
    whole = account["end_s"] - account["start_s"]
    ours = (whole - span.get(IDLE, 0.0), span.get(RECEIVER, 0.0), span.get(SNDBUF, 0.0))
    yield ""
    yield f"The kernel's own account over {whole:.1f} s (TCP_INFO), and ours"
    names = (("busy", "busy"), ("receiver", "rwnd_limited"), ("sndbuf", "sndbuf_limited"))
    for (name, shown), mine in zip(names, ours, strict=True):
        yield f"  {shown:<16} {account[name]:8.2f} s   ours {mine:8.2f} s"


def _evidence(found: Explanation) -> Iterator[str]:
    yield ""
    yield f"Evidence ({found.source}): " + "; ".join(found.evidence.says)
    for missing in found.evidence.cannot:
        yield f"Cannot tell: {missing}"


def _time(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def _size(count: float | None) -> str:
    if count is None:
        return "unknown size"
    if count < 1000:
        return f"{count:.0f} B"
    if count < 1e6:
        return f"{count / 1e3:.3g} kB"
    return f"{count / 1e6:.3g} MB"
