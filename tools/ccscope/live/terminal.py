"""The view in a terminal: curves, marks, throughput; good at 80 columns and 24 lines.

Nothing is cleared between frames: Textual sends only what has changed, as one synchronised update.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from rich.markup import escape
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static
from textual_hires_canvas import HiResMode
from textual_plot import NumericAxisFormatter, PlotWidget

from ccscope.live.feeds import Feed
from ccscope.live.model import KINDS, Array, Flow, Model, outline
from ccscope.live.pump import Pump

FRAME_S = 0.2
"""Time between frames; data are taken as often."""

COLOURS = {"cwnd": "#5fd7ff", "ssthresh": "#d7875f", "inflight": "#87af5f"}
MARK_COLOURS = {
    **{"cwr": "#ffd75f", "recovery": "#5fafff", "loss": "#ff5f5f"},
    **{"ecn": "#d787ff", "undo": "#5fff87"},
}
OTHERS = ("#5fd7ff", "#ffaf5f", "#afff5f", "#ff87d7", "#d7d7ff", "#ffff5f")
_RATE = "#bcbcbc"
_GRID = "#585858"
_SHORTEST_S, _LONGEST_S = 0.05, 3600.0
_ZOOM = 1.6
_TOP = 1.15


@dataclass
class View:
    """The part of time that is shown.

    Attributes:
        span_s: its length.
        end_s: its end; None follows the newest data.
    """

    span_s: float
    end_s: float | None = None

    def limits(self, now_s: float) -> tuple[float, float]:
        """First and last second shown; while there is little to see, from 0 on."""
        end = now_s if self.end_s is None else self.end_s
        if self.end_s is None and 0 < end < self.span_s:
            return 0.0, self.span_s
        return end - self.span_s, end

    def zoom(self, factor: float, now_s: float) -> None:
        """Show a shorter or longer time; the middle stays, or the end while it follows."""
        span = min(max(self.span_s / factor, _SHORTEST_S), _LONGEST_S)
        if self.end_s is not None:
            self.end_s += (span - self.span_s) / 2
            self.end_s = min(self.end_s, max(now_s, span))
        self.span_s = span

    def pan(self, share: float, now_s: float) -> None:
        """Move by a share of what is shown; at the newest data it follows again."""
        _, end = self.limits(now_s)
        end += share * self.span_s
        self.end_s = None if end >= now_s and share > 0 else max(end, self.span_s / 10)


class Ticks(NumericAxisFormatter):
    """Ticks at round numbers, not more than there is room for."""

    def __init__(self) -> None:
        super().__init__()
        self.room = 5

    def get_ticks(self, min_: float, max_: float, max_ticks: int = 8) -> list[float]:
        """The multiples of 1, 2 or 5 times a power of ten in the range."""
        least = (max_ - min_) / max(min(self.room, max_ticks), 1)
        power = 10.0 ** np.floor(np.log10(least))
        step = next(n * power for n in (1, 2, 5, 10) if n * power >= least * 0.999)
        first = int(np.ceil(min_ / step - 1e-9))
        return [float(n * step) for n in range(first, int(max_ / step + 1e-9) + 1)]


class Graph(PlotWidget, can_focus=False):
    """A plot whose time axis the app moves."""

    def __init__(self, name: str, unit: str) -> None:
        super().__init__(id=name)
        self._unit = unit
        self._across, self._up = Ticks(), Ticks()

    def on_mount(self) -> None:
        """Set what needs the canvases."""
        self.margin_left, self.margin_top, self.margin_bottom = 7, 1, 1
        self.set_ylabel(self._unit)
        self.set_x_formatter(self._across)
        self.set_y_formatter(self._up)

    def limits(self, across: tuple[float, float], highest: float) -> None:
        """Show this time, and values from 0 to a little above the highest."""
        self._across.room = max((self.size.width - self.margin_left) // 11, 2)
        self._up.room = max((self.size.height - 4) // 2, 1)
        self.set_xlimits(*across)
        self.set_ylimits(0.0, highest * _TOP)

    def row(self, number: int) -> float:
        """The value of a row inside the frame, from 1 at its top, where the marks are."""
        return float(self.get_coordinate_from_pixel(1, number)[1])


class FlowList(ModalScreen[str | None]):
    """Chooses a flow: Enter shows it, Space lays its window over the others'."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f,q", "dismiss", "Back"),
        Binding("space", "overlay", "Compare"),
    ]
    CSS = """
    FlowList { align: center middle; }
    FlowList Vertical { width: 96%; height: 80%; border: round $primary; background: $surface; }
    FlowList DataTable { height: 1fr; }
    FlowList #hint { height: 1; color: $text-muted; padding: 0 1; }
    """

    def __init__(self, model: Model, shown: str, compared: list[str]) -> None:
        super().__init__()
        self._model, self._shown, self._compared = model, shown, compared

    def compose(self) -> ComposeResult:
        """Build the widgets."""
        with Vertical():
            yield DataTable(cursor_type="row", zebra_stripes=True)
            yield Static("Enter shows   Space compares   Esc goes back", id="hint")

    def on_mount(self) -> None:
        """Fill the table."""
        table = self.query_one(DataTable)
        for name in ("", "flow", "ends", "cc", "Mbit/s", "cwnd", "events", "again"):
            table.add_column(name, key=name)
        for flow in self._model.busiest():
            table.add_row(*self._row(flow), key=flow.label)
        if self._shown in self._model.flows:
            table.move_cursor(row=table.get_row_index(self._shown))
        table.focus()
        self.set_interval(1.0, self._renew)

    def _row(self, flow: Flow) -> list[str]:
        events = " ".join(f"{KINDS[k][0]}{n}" for k, n in flow.counts.items() if k in KINDS)
        return [
            "\u2022" if flow.label in self._compared else " ",
            *(flow.label, flow.ends, flow.cc),
            f"{flow.rate_bps(self._model.now_s, 5.0) / 1e6:.2f}",
            f"{flow.last().get('cwnd', float('nan')):.0f}",
            *(events, str(flow.counts["retransmits"])),
        ]

    def _renew(self) -> None:
        table = self.query_one(DataTable)
        for flow in list(self._model.flows.values()):
            if flow.label in table.rows:
                for column, text in zip(table.columns, self._row(flow), strict=True):
                    table.update_cell(flow.label, column, text)
            else:
                table.add_row(*self._row(flow), key=flow.label)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter: show this flow."""
        self.dismiss(event.row_key.value)

    def action_overlay(self) -> None:
        """Space: compare this flow, or no more."""
        table = self.query_one(DataTable)
        if not table.row_count:
            return
        label = str(table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value)
        if label in self._compared:
            self._compared.remove(label)
        elif len(self._compared) < len(OTHERS):
            self._compared.append(label)
        self._renew()


class LiveApp(App[int]):
    """The view of one feed."""

    TITLE = "ccscope live"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: #121212; layout: vertical; }
    .line { height: 1; padding: 0 1; }
    #title { background: #303030; }
    Graph > .plot--axis { color: #585858; }
    Graph > .plot--tick { color: #a8a8a8; text-style: none; }
    Graph > .plot--label { color: #a8a8a8; text-style: none; }
    #window { height: 1fr; }
    #rate { height: 35%; max-height: 12; }
    Footer { background: #303030; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c,ctrl+q", "quit", "Quit", priority=True, key_display="q"),
        Binding("space,p", "hold", "Pause", key_display="space"),
        Binding("n,tab,down", "next(1)", "Next", key_display="n"),
        Binding("b,shift+tab,up", "next(-1)", "Back", show=False),
        Binding("f", "flows", "Flows"),
        Binding("plus,equals_sign", "zoom(1)", "Zoom", key_display="+/-"),
        Binding("minus", "zoom(-1)", "Zoom out", show=False),
        Binding("left", "pan(-1)", "Pan", key_display="\u2190\u2192"),
        Binding("right", "pan(1)", "Pan", show=False),
        Binding("0,home,end", "follow", "Now", key_display="0"),
        Binding("s", "series", "Curves"),
    ]

    def __init__(self, feed: Feed, *, span_s: float = 30.0) -> None:
        super().__init__()
        self.feed, self.model = feed, Model()
        self.view = View(span_s)
        self.shown = ""
        self.compared: list[str] = []
        self.held = False
        self.frames = 0
        self._hidden = 0
        self._now_s = 0.0
        self._drawn: tuple[float, int, Size] | None = None
        self.pump = Pump(
            feed,
            self.model,
            every_s=FRAME_S / 2,
            failed=lambda: self.call_from_thread(self.exit, 2),
        )

    def compose(self) -> ComposeResult:
        """Build the widgets."""
        yield Static(id="title", classes="line")
        yield Static(id="legend", classes="line")
        yield Graph("window", "segments")
        yield Graph("rate", "Mbit/s")
        yield Static(id="values", classes="line")
        yield Static(id="event", classes="line")
        yield Footer()

    def on_mount(self) -> None:
        """Start to take data and to draw."""
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                loop.add_signal_handler(number, self.exit, 130)
        self.set_interval(FRAME_S, self._draw)

    # ---- keys ----

    def action_hold(self) -> None:
        """Hold the picture; data are still taken, but a replay stands still."""
        self.held = not self.held
        self.feed.pause(self.held)
        self._draw(force=True)

    def action_next(self, step: int) -> None:
        """Show the next flow."""
        with self.pump.lock:
            labels = list(self.model.flows)
        if labels:
            place = labels.index(self.shown) if self.shown in labels else -step
            self.shown = labels[(place + step) % len(labels)]
        self._draw(force=True)

    def action_flows(self) -> None:
        """List the flows."""

        def chosen(label: str | None) -> None:
            self.shown = label or self.shown
            self._draw(force=True)

        self.push_screen(FlowList(self.model, self.shown, self.compared), chosen)

    def action_zoom(self, direction: int) -> None:
        """Show a shorter or longer time."""
        self.view.zoom(_ZOOM if direction > 0 else 1 / _ZOOM, self._now_s)
        self._draw(force=True)

    def action_pan(self, direction: int) -> None:
        """Move in time."""
        self.view.pan(direction * 0.25, self._now_s)
        self._draw(force=True)

    def action_follow(self) -> None:
        """Show the newest data again."""
        self.view.end_s = None
        self._draw(force=True)

    def action_series(self) -> None:
        """Show all three curves, without in-flight, or cwnd alone."""
        self._hidden = (self._hidden + 1) % 3
        self._draw(force=True)

    def on_plot_widget_scale_changed(self, event: PlotWidget.ScaleChanged) -> None:
        """The mouse moved or zoomed a graph: only its time counts."""
        span = min(max(event.x_max - event.x_min, _SHORTEST_S), _LONGEST_S)
        self.view.span_s, self.view.end_s = span, event.x_max
        self._draw(force=True)

    # ---- drawing ----

    def _draw(self, force: bool = False) -> None:
        # Nothing new: nothing is drawn.
        news = (self.model.now_s, self.model.version, self.size)
        if not force and (self.held or news == self._drawn):
            return
        if len(self.screen_stack) > 1:
            return
        self._drawn = news
        with self.pump.lock:
            if not self.held:
                self._now_s = self.model.now_s
            if self.shown not in self.model.flows and self.model.flows:
                self.shown = self.model.busiest()[0].label
            flow = self.model.flows.get(self.shown)
            limits = self.view.limits(self._now_s)
            self._lines(flow)
            self._window(flow, limits)
            self._rates(flow, limits)
        self.frames += 1

    def _others(self) -> list[Flow]:
        found = [self.model.flows.get(label) for label in self.compared]
        return [f for f in found if f is not None]

    def _window(self, flow: Flow | None, limits: tuple[float, float]) -> None:
        graph = self.query_one("#window", Graph)
        edges = np.linspace(*limits, max(graph.size.width - graph.margin_left, 10) * 2)
        graph.clear()
        highest = 0.0
        others = self._others()
        for other, colour in zip(others, OTHERS, strict=False):
            points = other.points.between(*limits)
            times, values = outline(points["t"], points["cwnd"], edges)
            highest = max(highest, _highest(values))
            graph.plot(times, values, line_style=colour, hires_mode=HiResMode.BRAILLE)
        if flow is not None and not others:
            points = flow.points.between(*limits)
            for name in ("inflight", "ssthresh", "cwnd")[self._hidden :]:
                times, values = outline(points["t"], points[name], edges)
                if name == "ssthresh":
                    # Thresholds far above the window say "none" and would hide the rest.
                    ceiling = 4 * max(_highest(points["cwnd"]), 10)
                    values = np.where(values > ceiling, np.nan, values)
                highest = max(highest, _highest(values))
                times, values = _steps(times, values) if name == "ssthresh" else (times, values)
                if len(times):
                    graph.plot(
                        times, values, line_style=COLOURS[name], hires_mode=HiResMode.BRAILLE
                    )
        graph.limits(limits, max(highest, 4.0))
        if flow is not None:
            self._marks(graph, flow, limits)

    def _marks(self, graph: Graph, flow: Flow, limits: tuple[float, float]) -> None:
        first, last = limits
        for kind, (letter, _) in KINDS.items():
            times = np.array(
                [m.t_s for m in flow.marks if m.kind == kind and first <= m.t_s < last]
            )
            if len(times):
                style = f"bold {MARK_COLOURS[kind]}"
                # An undo follows closely what it undoes, and must not hide it.
                level = np.full(len(times), graph.row(2 if kind == "undo" else 1))
                graph.scatter(times, level, marker=letter, marker_style=style)

    def _rates(self, flow: Flow | None, limits: tuple[float, float]) -> None:
        graph = self.query_one("#rate", Graph)
        graph.clear()
        highest = 0.0
        columns = max(graph.size.width - graph.margin_left - 2, 10)
        bins = max(min(columns, int((limits[1] - limits[0]) / 0.05)), 10)
        # Edges that stay where they are while time goes on, so that bars do not dance.
        width = (limits[1] - limits[0]) / bins
        edges = np.arange(np.floor(limits[0] / width), np.ceil(self._end(limits) / width)) * width
        pairs = list(zip(self._others(), OTHERS, strict=False))
        if not pairs and flow is not None:
            pairs = [(flow, _RATE)]
        for shown, colour in pairs if len(edges) > 1 else []:
            rates = shown.rates(edges) / 1e6
            middles = (edges[1:] + edges[:-1]) / 2
            highest = max(highest, _highest(rates))
            graph.plot(middles, rates, line_style=colour, hires_mode=HiResMode.BRAILLE)
        graph.limits(limits, max(highest, 0.01))
        if flow is not None and flow.retransmits:
            times = np.array([t for t in flow.retransmits if limits[0] <= t < limits[1]])
            if len(times):
                level = np.full(len(times), graph.row(1))
                graph.scatter(times, level, marker="\u00d7", marker_style=MARK_COLOURS["loss"])

    def _end(self, limits: tuple[float, float]) -> float:
        return min(limits[1], max(self._now_s, limits[0]))

    def _lines(self, flow: Flow | None) -> None:
        self.query_one("#title", Static).update(self._title(flow))
        self.query_one("#legend", Static).update(self._legend())
        values, event = "waiting for a flow", ""
        if flow is not None:
            gap = "   " if self.size.width >= 100 else " "
            values, event = _values(flow, self._now_s, gap), self._event(flow)
        self.query_one("#values", Static).update(values)
        self.query_one("#event", Static).update(event)

    def _title(self, flow: Flow | None) -> Text:
        left = Text("ccscope live", "bold")
        if flow is not None:
            left = Text.assemble((flow.label, "bold"), f"  {flow.ends}  ", (flow.cc, "bold"))
            if len(self.model.flows) > 1:
                place = list(self.model.flows).index(flow.label) + 1
                left.append(f"  ({place} of {len(self.model.flows)})")
        right = Text(self.feed.source.split(" (")[0], "#a8a8a8")
        if self.model.lost:
            right = Text(f"{self.model.lost} events lost", f"bold {MARK_COLOURS['loss']}")
        if self.held:
            right = Text(" PAUSED ", f"bold black on {MARK_COLOURS['cwr']}")
        elif self.view.end_s is not None:
            right = Text(" LOOKING BACK ", f"bold black on {MARK_COLOURS['recovery']}")
        elif self.model.over:
            right.append("  ended", "bold")
        width = self.size.width - 2
        right.truncate(max(width - 30, 10), overflow="ellipsis")
        left.truncate(width - right.cell_len - 1, overflow="ellipsis", pad=True)
        return Text.assemble(left, " ", right)

    def _legend(self) -> str:
        others = self._others()
        if others:
            curves = [
                f"[{c}]\u2501 {escape(f.label)} {escape(f.cc)}[/]"
                for f, c in zip(others, OTHERS, strict=False)
            ]
        else:
            names = {"cwnd": "cwnd", "ssthresh": "ssthresh", "inflight": "in flight"}
            hidden = ("inflight", "ssthresh")[: self._hidden]
            curves = [f"[{COLOURS[n]}]\u2501 {t}[/]" for n, t in names.items() if n not in hidden]
        words = ("CWR", "Recovery", "Loss", "ECN", "undo")
        marks = [
            f"[b {MARK_COLOURS[k]}]{letter}[/] {word}"
            for (k, (letter, _)), word in zip(KINDS.items(), words, strict=True)
        ]
        again = f"[{MARK_COLOURS['loss']}]\u00d7[/] again"
        return " ".join(curves) + "  " + " ".join([*marks, again])

    def _event(self, flow: Flow) -> str:
        first, last = self.view.limits(self._now_s)
        mark = next((m for m in reversed(flow.marks) if first <= m.t_s <= last), None)
        if mark is None:
            return "[#a8a8a8]no event in what is shown[/]"
        text = f"[{MARK_COLOURS[mark.kind]}]{mark.t_s:.3f} s  {escape(mark.text)}[/]"
        counts = " ".join(f"{KINDS[k][0]} {flow.counts[k]}" for k in KINDS if flow.counts[k])
        return f"{text}   [#a8a8a8]in all {counts}[/]"


def _highest(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else 0.0


def _steps(times: Array, values: Array) -> tuple[Array, Array]:
    """A curve that jumps instead of sloping."""
    if len(times) < 2:
        return times, values
    return np.repeat(times, 2)[1:], np.repeat(values, 2)[:-1]


def _values(flow: Flow, now_s: float, gap: str) -> str:
    last = flow.last()
    if not last:
        return f"{flow.state}"

    def number(name: str, form: str, nothing: str = "-") -> str:
        value = last[name]
        return format(value, form) if np.isfinite(value) else nothing

    bold: dict[str, Any] = {
        "cwnd": number("cwnd", ".0f"),
        "ssthresh": number("ssthresh", ".0f", "none"),
        "in flight": number("inflight", ".0f"),
    }
    made = [f"{name} [b]{value}[/b]" for name, value in bold.items()]
    made.append(f"srtt [b]{number('srtt_ms', '.1f')}[/b] ms")
    made.append(f"[b]{flow.rate_bps(now_s) / 1e6:.2f}[/b] Mbit/s")
    made.append(f"[b]{'closed' if flow.closed else flow.state}[/b]")
    made.append(f"again [b]{flow.counts['retransmits']}[/b]")
    return gap.join(made)


def run(feed: Feed, *, span_s: float) -> int:
    """Show a feed until the user quits; returns the exit status.

    Raises:
        CcscopeError: the source failed.
    """
    app = LiveApp(feed, span_s=span_s)
    with feed, app.pump:
        status = app.run()
    if app.pump.error is not None:
        raise app.pump.error
    return status or 0
