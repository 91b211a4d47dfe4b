"""The view in a browser: one page without outside parts, fed by server-sent events.

``GET /TOKEN/`` gives the page, ``GET /TOKEN/events?flow=f1`` the events:

- ``hello``: source, what it cannot give, kinds of marks.
- ``frame``: time, all flows with their numbers, and for the flows that were asked for (or the
  busiest) the points, rates, marks and retransmissions since the frame before.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ccscope.errors import EXIT_OK
from ccscope.live.feeds import Feed
from ccscope.live.httpd import LOOPBACK, Answer, Server
from ccscope.live.model import KINDS, Array, Flow, Model, outline
from ccscope.live.pump import Pump

_ASSETS = Path(__file__).parent / "assets"
_UPLOT = Path(__file__).parents[1] / "page" / "assets" / "vendor" / "uplot"
_FRAME_S = 0.25
_QUIET_S = 5.0
_BIN_S = 0.2
_HISTORY = 4000
_FLOWS = 6
_LISTED = 200


def page() -> tuple[bytes, str]:
    """The page, and the Content-Security-Policy that allows it and nothing else."""
    script = f"{(_UPLOT / 'uPlot.iife.min.js').read_text()}\n{(_ASSETS / 'live.js').read_text()}"
    style = f"{(_UPLOT / 'uPlot.min.css').read_text()}\n{(_ASSETS / 'live.css').read_text()}"
    html = (_ASSETS / "live.html").read_text().replace("/*STYLE*/", style)
    html = html.replace("/*SCRIPT*/", script)

    def hashed(text: str) -> str:
        digest = hashlib.sha256(text.encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode()}'"

    rules = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        f"connect-src 'self'; img-src data:; script-src {hashed(script)}; "
        f"style-src {hashed(style)}"
    )
    return html.encode(), rules


@dataclass
class _Sent:
    """How far a client knows a flow."""

    t_s: float = -np.inf
    bin: int | None = None
    mark_s: float = -np.inf
    again_s: float = -np.inf


class Events:
    """What one client gets."""

    def __init__(self, feed: Feed, pump: Pump, flows: list[str], span_s: float) -> None:
        self._feed, self._pump = feed, pump
        self._asked = flows[:_FLOWS]
        self._span_s = span_s
        self._sent: dict[str, _Sent] = {}

    def stream(self) -> Iterator[bytes]:
        """Events until the client goes or the feed fails."""
        yield _event("hello", self._hello())
        known, last = -1, 0.0
        while self._pump.error is None:
            model = self._pump.model
            now = time.monotonic()
            with self._pump.lock:
                frame = None
                if model.version != known or not model.over or now - last > _QUIET_S:
                    frame = self.frame(model)
                known = model.version
            if frame is not None:
                last = now
                yield _event("frame", frame)
            time.sleep(_FRAME_S)
        yield _event("failed", {"why": str(self._pump.error)})

    def _hello(self) -> dict[str, Any]:
        kinds = [{"kind": k, "letter": letter, "about": a} for k, (letter, a) in KINDS.items()]
        return {
            "source": self._feed.source,
            "cannot": self._feed.cannot,
            "kinds": kinds,
            "span_s": self._span_s,
        }

    def frame(self, model: Model) -> dict[str, Any]:
        """What the client does not have yet; hold the lock."""
        busiest = model.busiest()
        if not self._asked and busiest:
            self._asked = [busiest[0].label]
        # In the order of appearance, so that rows do not dance.
        place = {label: i for i, label in enumerate(model.flows)}
        listed = sorted(busiest[:_LISTED], key=lambda flow: place[flow.label])
        shown = [model.flows[label] for label in self._asked if label in model.flows]
        return {
            "now": round(model.now_s, 4),
            "over": model.over,
            "lost": model.lost,
            "forgotten": model.forgotten,
            "flows": [_numbers(f, model.now_s) for f in listed],
            "shown": {flow.label: self._news(flow, model.now_s) for flow in shown},
        }

    def _news(self, flow: Flow, now_s: float) -> dict[str, Any]:
        sent = self._sent.setdefault(flow.label, _Sent())
        times = flow.points.column("t")
        first = int(np.searchsorted(times, sent.t_s, side="right"))
        made: dict[str, Any] = {"points": _points(flow, first)}
        if first < len(times):
            sent.t_s = float(times[-1])
        made["rate"] = _rates(flow, sent, now_s)
        marks = [m for m in flow.marks if m.t_s > sent.mark_s]
        made["marks"] = [[round(m.t_s, 6), m.kind, m.text] for m in marks]
        again = [t for t in flow.retransmits if t > sent.again_s]
        made["again"] = [round(t, 6) for t in again]
        sent.mark_s = marks[-1].t_s if marks else sent.mark_s
        sent.again_s = again[-1] if again else sent.again_s
        return made


def _points(flow: Flow, first: int) -> dict[str, list[float | None]]:
    """The curves from a row on; long ones thinned to what a screen can show."""
    times = flow.points.column("t")[first:]
    names = ("cwnd", "ssthresh", "inflight", "srtt_ms")
    keep = np.arange(len(times))
    if len(times) > _HISTORY:
        edges = np.linspace(times[0], times[-1], _HISTORY // 4)
        kept = [outline(times, flow.points.column(n)[first:], edges)[0] for n in names[::2]]
        keep = np.unique(np.searchsorted(times, np.concatenate(kept)))
    made = {"t": [round(t, 6) for t in times[keep].tolist()]}
    for name in names:
        made[name] = _plain(flow.points.column(name)[first:][keep])
    return made


def _plain(values: Array) -> list[float | None]:
    return [round(v, 3) if np.isfinite(v) else None for v in values.tolist()]


def _rates(flow: Flow, sent: _Sent, now_s: float) -> dict[str, list[float]]:
    """Rates in the bins that are over."""
    times = flow.points.column("t")
    last = int(now_s / _BIN_S) - 1  # the newest bin may still get ACKs that are on their way
    if not len(times):
        return {"t": [], "bps": []}
    start = sent.bin if sent.bin is not None else int(max(times[0], 0.0) / _BIN_S)
    start = max(start, last - _HISTORY)
    if last <= start:
        return {"t": [], "bps": []}
    sent.bin = last
    edges = np.arange(start, last + 1) * _BIN_S
    middles = (edges[1:] + edges[:-1]) / 2
    return {
        "t": [round(t, 3) for t in middles.tolist()],
        "bps": [round(r) for r in flow.rates(edges).tolist()],
    }


def _numbers(flow: Flow, now_s: float) -> dict[str, Any]:
    last = flow.last()
    return {
        "label": flow.label,
        "ends": flow.ends,
        "cc": flow.cc,
        "state": "closed" if flow.closed else flow.state,
        "bps": round(flow.rate_bps(now_s)),
        **{n: _plain(np.array([last.get(n, np.nan)]))[0] for n in ("cwnd", "ssthresh", "srtt_ms")},
        "counts": dict(flow.counts),
    }


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def serve(feed: Feed, pump: Pump, *, port: int, span_s: float) -> Server:
    """The server of the page, not yet running.

    Raises:
        CcscopeError: the port cannot be had.
    """
    html, rules = page()

    def handle(path: str, query: Mapping[str, list[str]]) -> Answer | None:
        if path == "":
            return Answer("text/html; charset=utf-8", html, {"Content-Security-Policy": rules})
        if path == "events":
            events = Events(feed, pump, query.get("flow", []), span_s)
            return Answer("text/event-stream", events.stream())
        return None

    return Server(LOOPBACK, port, handle, token=secrets.token_urlsafe(16))


def run(feed: Feed, *, port: int, span_s: float) -> int:
    """Serve until Ctrl-C; returns the exit status.

    Raises:
        CcscopeError: the port cannot be had, or the source has failed.
    """
    with feed, Pump(feed, Model()) as pump, serve(feed, pump, port=port, span_s=span_s) as server:
        print(server.url, flush=True)
        print(f"ccscope: {feed.source}; Ctrl-C ends it", file=sys.stderr)
        try:
            while pump.error is None:
                time.sleep(0.2)
        except KeyboardInterrupt:
            return EXIT_OK
    raise pump.error
