"""The page of one recording."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from ccscope import __version__
from ccscope.draw import look
from ccscope.draw.curves import Curve
from ccscope.draw.flowview import FlowView, queue, shades, span, stages, views
from ccscope.metrics import FlowMetrics, metrics
from ccscope.page import ASSETS, VENDOR, shared_script, shared_style
from ccscope.page.pack import Packer
from ccscope.recording import Array, Recording
from ccscope.schema import CA_STATES, CAUSES

MOST_FLOWS = 20  # with curves in the page; the others are named
SHOWN_FLOWS = 6  # at first
_FAR = 2.5
_NS, _MB = 1e-9, 1e-6
_DASHES: tuple[list[int], ...] = (
    [],
    [9, 4],
    [9, 3, 2, 3],
    [2, 3],
    [6, 2, 2, 2, 2, 2],
    [14, 4],
    [4, 8],
)


def page(recording: Recording, labels: Sequence[str] = (), title: str = "") -> str:
    """The whole page as HTML.

    Args:
        recording: what to show.
        labels: flows to show; empty for the busiest.
        title: default: the name of the recording.

    Raises:
        CcscopeError: there is no flow to show, or a label is unknown.
    """
    found = views(recording, labels)
    shown = found if labels else found[:MOST_FLOWS]
    duration = span(recording, shown)
    numbers = [metrics(view, duration) for view in shown]
    packer = Packer()
    data = _data(recording, shown, duration, packer)
    name = title or str(recording.meta.get("title") or recording.path.resolve().name)
    values = {
        "title": _text(name),
        "facts": _facts(recording, duration),
        "problems": _problems(recording),
        "flows": _flows(shown, numbers),
        "left_out": _left_out(found, shown),
        "sources": _sources(recording),
        "meta": _text(json.dumps(recording.meta, indent=1)),
        "made": _text(f"Made by ccscope {__version__}"),
        "data": json.dumps(data, separators=(",", ":")).replace("</", "<\\/"),
        "columns": "\n".join(
            f'<script type="text/plain" id="{key}">{text}</script>'
            for key, text in packer.texts.items()
        ),
        "css": shared_style() + (ASSETS / "report.css").read_text(),
        "js": shared_script() + (ASSETS / "report.js").read_text(),
        "vendor_css": (VENDOR / "uPlot.min.css").read_text(),
        "vendor_js": (VENDOR / "uPlot.iife.min.js").read_text(),
    }
    return Template((ASSETS / "report.html").read_text()).substitute(values)


def _text(value: object) -> str:
    return html.escape(str(value))


# ---- curves ----


def _data(
    recording: Recording, flows: Sequence[FlowView], duration: float, packer: Packer
) -> dict[str, Any]:
    evidence: dict[str, int] = {"": 0}
    made = [_flow(view, i, packer, evidence) for i, view in enumerate(flows)]
    counts = [len(view.sequence.t) for view in flows]
    return {
        "duration": duration,
        "flows": made,
        "focus": flows[int(np.argmax(counts))].label,
        "most": SHOWN_FLOWS,
        "evidence": list(evidence),
        "causes": CAUSES,
        "states": look.STATE_COLOURS,
        "marks": {
            kind: {"text": m.text, "colour": m.colour, "shape": m.shape}
            for kind, m in look.MARKS.items()
        },
        "colours": {
            **{"edge": look.EDGE, "acked": look.ACKED, "again": look.AGAIN, "sack": look.SACKED},
            "queue": look.COLOURS[6],
        },
        "intervals": [[s.start_s, s.stop_s, s.text] for s in shades(recording)],
        "queue": _queue(recording, packer),
        "columns": packer.heads,
    }


def _flow(view: FlowView, place: int, packer: Packer, evidence: dict[str, int]) -> dict[str, Any]:
    mss = view.mss
    window = Curve(view.cwnd.t, view.cwnd.y * mss) if mss > 0 else Curve(*np.zeros((2, 0)))
    curves = {
        "cwnd": _pair(packer, view.cwnd),
        "ssthresh": _pair(packer, view.ssthresh),
        "flight": _pair(packer, view.inflight_segs, 1e-3),
        "inflight": _pair(packer, view.inflight_bytes, 1e-3, per=1e3),
        "window": _pair(packer, window, 1e-3, per=1e3),
        "rwnd": _pair(packer, view.rwnd_bytes, 1e-3, per=1e3),
        "srtt": _pair(packer, view.srtt_ms, 1e-3),
        "min_rtt": _pair(packer, view.min_rtt_ms, 1e-3),
        "rtt": _pair(packer, view.rtt_samples_ms, 1e-6),
        "total": _pair(packer, view.delivered_bytes),
        "acked": None if view.goodput_of == "acked" else _pair(packer, view.acked_bytes),
    }
    name = " ".join(filter(None, (view.label, view.info.get("cc"))))
    return {
        "label": view.label,
        "name": name,
        "colour": look.FLOW_COLOURS[place % len(look.FLOW_COLOURS)],
        "dash": _DASHES[place % len(_DASHES)],
        "curves": curves,
        "bin": view.least_bin_s,
        "goodput": {"acked": "acknowledged"}.get(view.goodput_of, "goodput"),
        "far": _is_far(view),
        "states": _states(view, packer),
        "events": [
            [m.t_s, m.kind, m.cause, evidence.setdefault(m.evidence, len(evidence))]
            for m in view.marks
        ],
        "sequence": _sequence(view, packer),
    }


def _pair(packer: Packer, curve: Curve, scale: float = 1.0, per: float = 1.0) -> list[int] | None:
    """The numbers of a curve's two columns; None when it has no value."""
    if not curve.known:
        return None
    return [packer.add(curve.t, _NS), packer.add(curve.y / per, scale)]


def _is_far(view: FlowView) -> bool:
    """Whether the receiver's window would press all other curves to the ground."""
    if not (view.rwnd_bytes.known and view.inflight_bytes.known):
        return False
    return bool(np.nanmedian(view.rwnd_bytes.y) > _FAR * np.nanmax(view.inflight_bytes.y))


def _states(view: FlowView, packer: Packer) -> list[int] | None:
    stays = view.stays(0.0, np.inf)
    if not stays:
        return None
    numbers = [CA_STATES.index(s.state) if s.state in CA_STATES else 0 for s in stays]
    t = np.array([s.start_s for s in stays])
    return [packer.add(t, _NS), packer.add(np.array(numbers, dtype=float))]


def _sequence(view: FlowView, packer: Packer) -> dict[str, Any] | None:
    graph = view.sequence
    if not len(graph):
        return None

    def part(t: Array, low: Array, high: Array) -> list[int] | None:
        if not len(t):
            return None
        return [packer.add(t, _NS), packer.add(low * _MB, _MB), packer.add((high - low) * _MB, _MB)]

    again = graph.again
    return {
        "source": graph.source,
        "data": part(graph.t[~again], graph.low[~again], graph.high[~again]),
        "again": part(graph.t[again], graph.low[again], graph.high[again]),
        "sack": part(graph.sack_t, graph.sack_low, graph.sack_high),
        "acked": _pair(packer, graph.acked, _MB, per=1e6),
        "edge": _pair(packer, graph.edge, _MB, per=1e6),
    }


def _queue(recording: Recording, packer: Packer) -> dict[str, Any] | None:
    for stage in stages(recording)[:1]:
        return {"stage": stage, "curve": _pair(packer, queue(recording, stage))}
    return None


# ---- tables ----


def _facts(recording: Recording, duration: float) -> str:
    meta = recording.meta
    lost: dict[str, int] = meta.get("lost", {})
    packets = len(recording.table("packets")["t_s"])
    clock = str(meta.get("clock", ""))
    facts = {
        "Length": f"{duration:.3f} s" + (" of virtual time" if meta.get("virtual_time") else ""),
        "Host": ", ".join(f"{v}" for v in meta.get("host", {}).values() if v),
        "Made by": meta.get("tool", ""),
        "Sources": ", ".join(str(s.get("name", "")) for s in meta.get("sources", [])),
        "Packets": f"{packets:,}" if packets else "",
        "Clock": clock,
        "Events lost": ", ".join(f"{n} by {name}" for name, n in lost.items()) or "not counted",
        "Complete": "" if meta.get("complete", False) else "no: the recording was cut off",
    }
    shown = ((name, value) for name, value in facts.items() if value)
    return "".join(f"<dt>{_text(n)}</dt><dd>{_text(v)}</dd>" for n, v in shown)


def _problems(recording: Recording) -> str:
    rows = "".join(
        f'<li class="problem">{_text(p)}</li>' for p in dict.fromkeys(recording.problems)
    )
    return f"<h2>Problems</h2><ul>{rows}</ul>" if rows else ""


def _sources(recording: Recording) -> str:
    made = []
    for source in recording.meta.get("sources", []):
        parts = [f"<strong>{_text(source.get('name', ''))}</strong>", _text(source.get("why", ""))]
        lists = (("gives", source.get("gives", [])), ("cannot give", source.get("cannot", [])))
        parts += [_text(f"{word}: {'; '.join(texts)}.") for word, texts in lists if texts]
        made.append(f"<p>{' '.join(p for p in parts if p)}</p>")
    return "".join(made) or "<p>The recording names no source.</p>"


def _left_out(found: Sequence[FlowView], shown: Sequence[FlowView]) -> str:
    left = [view.label for view in found[len(shown) :]]
    if not left:
        return ""
    names = ", ".join(left[:30]) + (", ..." if len(left) > 30 else "")
    return (
        f'<p class="note">The page has the {len(shown)} busiest of {len(found)} flows; others by '
        f"<code>ccscope report --flow LABEL</code>: {_text(names)}</p>"
    )


def _number(value: float | None, factor: float = 1.0, digits: int = 2) -> str:
    return "–" if value is None else f"{value * factor:,.{digits}f}"  # noqa: RUF001 - a dash


def _flows(flows: Sequence[FlowView], numbers: Sequence[FlowMetrics]) -> str:
    heads = (
        *("flow", "connection", "algorithm", "goodput, Mbit/s", "cwnd, segments", "CV of cwnd"),
        *("srtt 50 / 95 / 99 %, ms", "lowest RTT, ms", "sent again", "seconds in states"),
        "events by cause",
    )
    names = "".join(f'<th scope="col">{_text(h)}</th>' for h in heads)
    rows = "".join(_flow_row(v, n) for v, n in zip(flows, numbers, strict=True))
    return (
        f'<div class="scroll"><table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody>'
        '</table></div><p class="note">Goodput: bytes delivered from the flow\'s first row to the '
        "end. cwnd: mean over time; CV: its standard deviation over time by that mean. srtt: "
        "quantiles over ACKs or polls.</p>"
    )


def _flow_row(view: FlowView, n: FlowMetrics) -> str:
    info = view.info
    quantiles = " / ".join(_number(v, 1e-3) for v in (n.srtt_p50_us, n.srtt_p95_us, n.srtt_p99_us))
    texts: Iterable[object] = (
        view.label,
        f"{info.get('src', '')}:{info.get('sport', '')} to "
        f"{info.get('dst', '')}:{info.get('dport', '')}",
        info.get("cc", ""),
        f"{_number(n.goodput_bps, 1e-6, 3)}" + (" (acked)" if n.goodput_of == "acked" else ""),
        _number(n.cwnd_mean_segs),
        _number(n.cwnd_cv, digits=3),
        quantiles,
        _number(n.rtt_min_us, 1e-3),
        "–" if n.retransmits is None else n.retransmits,  # noqa: RUF001 - a dash
        ", ".join(f"{s} {t:.2f}" for s, t in n.state_s.items() if t > 0),
        ", ".join(f"{cause} {count}" for cause, count in n.events.items()),
    )
    return "<tr>" + "".join(f"<td>{_text(t)}</td>" for t in texts) + "</tr>"


def write(recording: Recording, out: Path, labels: Sequence[str] = (), title: str = "") -> int:
    """Write the page to ``out``; returns its size in bytes.

    Raises:
        CcscopeError: nothing to show.
        OSError: ``out`` cannot be written.
    """
    data = page(recording, labels, title).encode()
    out.write_bytes(data)
    return len(data)
