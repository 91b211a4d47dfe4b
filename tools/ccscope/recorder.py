"""``ccscope record``: runs sources, keeps what they give in a spool, says what it cost.

Only the standard library; the spool becomes tables at the end where pyarrow is installed.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ccscope import __version__
from ccscope.errors import EXIT_FAILED, EXIT_OK, CcscopeError
from ccscope.flows import Selection, flow_key
from ccscope.sources import bpftrace, sockdiag, tracefs
from ccscope.sources.sockdiag import Socket
from ccscope.spool import SAMPLE, Sink, SpoolWriter

_DRAIN_S = 0.1
_LOOK_UP_S = 1.0
_TOLD_MAX = 100_000
_STALL_S = 3.0


@dataclass
class Options:
    """What ``record`` was asked for; times in seconds.

    Attributes:
        folder: the recording; must not hold one.
        selection: which flows.
        source: ``auto``, ``tracefs``, ``bpftrace`` or ``sockdiag``.
        per: ``ack``, ``change`` or ``sample``.
        interval_s: time between polls.
        ring_s: flight recorder: keep this much before a trigger; 0 keeps everything.
        triggers: ``loss``, ``cwr``, ``stall`` (3 s without progress; the ring counts from where
            they began).
        after_s: go on for this long once a trigger has fired.
        for_s: end after this long; 0 means until Ctrl-C (or the command's end).
        pcap: whether tcpdump writes a capture beside it.
        snaplen: bytes of each packet in it.
        buffer_kb: ring buffer of each CPU.
        command: started once recording runs.
    """

    folder: Path
    selection: Selection = field(default_factory=Selection)
    source: str = "auto"
    per: str = "ack"
    interval_s: float = 0.1
    ring_s: float = 0.0
    triggers: tuple[str, ...] = ()
    after_s: float = 5.0
    for_s: float = 0.0
    pcap: bool = False
    snaplen: int = 128
    buffer_kb: int = 8192
    command: tuple[str, ...] = ()

    @property
    def kept_s(self) -> float:
        """How much the ring holds, in seconds; 0 is everything."""
        return self.ring_s + _STALL_S if self.ring_s and "stall" in self.triggers else self.ring_s


Tracer = tracefs.Recorder | bpftrace.Recorder


@dataclass
class Choice:
    """Which sources are used and why."""

    trace: tracefs.Offer | bpftrace.Offer | None
    poll: bool
    why: str


def choose(options: Options) -> Choice:
    """Choose the sources that this host and user allow.

    Raises:
        CcscopeError: the source that was asked for cannot be had.
    """
    if options.source == "sockdiag":
        return Choice(None, True, "asked for")
    if options.source == "auto" and options.per == "sample" and os.geteuid():
        return Choice(None, True, "sampling needs no more, and only root may trace")
    if options.source == "bpftrace":
        return Choice(
            bpftrace.offer(per_ack=options.per == "ack"), options.per == "sample", "asked for"
        )
    try:
        root = tracefs.find()
        offered = tracefs.offer(root, per_ack=options.per == "ack")
    except CcscopeError as error:
        if options.source == "tracefs":
            raise
        return Choice(None, True, f"sock_diag as the fall-back: {error}")
    if not offered.events:
        return Choice(None, True, "sock_diag as the fall-back: this kernel has no TCP tracepoints")
    why = "asked for" if options.source == "tracefs" else "tracefs is writable"
    return Choice(offered, options.per == "sample", why)


class Session:
    """One run of ``record``."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.choice = choose(options)
        self.selection = options.selection
        self.started_ns = 0
        self.reason = ""
        self._slowest = 0.0
        self._gap = 0.0
        self._pollers: list[sockdiag.Poller] = []
        self._told: dict[bytes, bool] = {}
        self._cgroups: set[int] = set()
        self._stalled: dict[tuple[str, int, str, int], tuple[int, float]] = {}

    def run(self) -> int:
        """Record; returns the exit status."""
        with contextlib.ExitStack() as stack:
            trace = self.open(stack)
            spool = SpoolWriter(
                self.options.folder / "spool",
                self.head(trace),
                segment_s=min(max(self.options.ring_s / 10, 1.0), 10.0),
                keep_s=self.options.kept_s or None,
            )
            stack.callback(spool.close)
            capture = stack.enter_context(_capture(self.options))
            status = self._record(trace, spool, capture)
        self._close(spool)
        return status

    @property
    def tracer(self) -> str:
        """Name of the source that traces."""
        return "bpftrace" if isinstance(self.choice.trace, bpftrace.Offer) else "tracefs"

    # ---- parts of run(), which live views use, too ----

    def open(self, stack: contextlib.ExitStack) -> Tracer | None:
        """Set the sources up; ``stack`` takes them down again."""
        self._pollers = _pollers(self.choice, self.selection.netns)
        for poller in self._pollers:
            stack.callback(poller.close)
        for folder in self.selection.cgroups:
            self._cgroups |= sockdiag.cgroup_ids(folder)
        if self.choice.trace is None:
            return None
        if isinstance(self.choice.trace, bpftrace.Offer):
            return stack.enter_context(bpftrace.Recorder(self.choice.trace, self.selection))
        return stack.enter_context(
            tracefs.Recorder(self.choice.trace, self.selection, buffer_kb=self.options.buffer_kb)
        )

    def head(self, trace: Tracer | None) -> dict[str, Any]:
        """The content of ``head.json``; from now on time counts."""
        self.started_ns = time.monotonic_ns()
        head: dict[str, Any] = {
            "format": "ccscope-spool",
            "tool": f"ccscope {__version__}",
            "start_monotonic_ns": self.started_ns,
            "start_realtime_ns": time.time_ns(),
            "host": {
                **{"name": socket.gethostname(), "kernel": platform.release()},
                **{"machine": platform.machine(), "version": platform.version()},
            },
            "selection": self.selection.to_json(),
            "per": self.options.per,
            "sources": self.sources(),
        }
        if trace is not None:
            head["formats"] = trace.formats
            head["symbols"] = trace.offer.symbols
        return head

    def sources(self) -> list[dict[str, Any]]:
        """What is recorded by which source, and what each cannot give."""
        made = []
        trace = self.choice.trace
        if trace is not None:
            made.append({"name": self.tracer, "gives": trace.gives, "cannot": trace.cannot})
        if self.choice.poll:
            gives = [f"samples of TCP_INFO every {self.options.interval_s:g} s"]
            made.append({"name": "sockdiag", "gives": gives, "cannot": sockdiag.CANNOT})
        return [{**source, "why": self.choice.why} for source in made]

    def _record(
        self,
        trace: Tracer | None,
        spool: SpoolWriter,
        capture: subprocess.Popen[bytes] | None,
    ) -> int:
        if trace is not None:
            trace.watch(self.options.triggers)
        self._say(trace)
        began = _usage()
        command = None
        try:
            self.begin(trace, spool)
            if self.options.command:
                command = _start(self.options.command)
            self.loop(trace, spool, command)
        except KeyboardInterrupt:
            self.reason = "Ctrl-C"
        finally:
            # Whatever ended it, what was recorded is brought home; a second Ctrl-C must not tear.
            previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                self._wind_up(trace, spool, began)
            finally:
                _stop(command)
                _stop(capture)
                signal.signal(signal.SIGINT, previous)
        return EXIT_FAILED if command is not None and command.returncode else EXIT_OK

    def begin(self, trace: Tracer | None, spool: Sink) -> None:
        """Let events flow; a poll tells the algorithms of connections that exist already."""
        if trace is not None:
            trace.start()
        self._poll(spool, keep=True, tick=_nothing)

    def loop(
        self,
        trace: Tracer | None,
        spool: Sink,
        command: subprocess.Popen[bytes] | None,
    ) -> None:
        """Record until ``reason`` is set: by time, the command's end, or from outside."""
        now = time.monotonic()
        end = now + self.options.for_s if self.options.for_s else float("inf")
        step = self.options.interval_s if self.choice.poll else _LOOK_UP_S
        next_poll = next_drain = now

        def drain() -> None:
            nonlocal next_drain
            here = time.monotonic()
            if trace is not None and here >= next_drain:
                self._gap = max(self._gap, here - next_drain + _DRAIN_S)
                next_drain = here + _DRAIN_S
                trace.drain(spool)

        while not self.reason:
            if command is not None and command.poll() is not None:
                self.reason = "the command ended"
            now = time.monotonic()
            if now >= end:
                self.reason = self.reason or "time is over"
            drain()
            if now >= next_poll:
                began = time.process_time()
                self._poll(spool, keep=self.choice.poll, tick=drain)
                # However many sockets there are, looking at them takes a twentieth of a CPU.
                least = 20 * (time.process_time() - began)
                self._slowest = max(self._slowest, least if least > step else 0.0)
                next_poll = max(next_poll + step, now + least)
            fired = self._fired(trace)
            if fired and end > now + self.options.after_s:
                spool.note({"trigger": fired, "t_ns": time.monotonic_ns()}, now)
                spool.keep_s = None
                end = now + self.options.after_s
                print(f"ccscope: triggered by {fired}", file=sys.stderr)
                self.options.triggers = ()
            wake = min(next_poll, end, next_drain if trace is not None else end)
            select.select([], [], [], max(min(wake - time.monotonic(), _LOOK_UP_S), 0.001))

    def _fired(self, trace: Tracer | None) -> str:
        if not self.options.triggers:
            return ""
        line = trace.fired() if trace is not None else ""
        now = time.monotonic()
        stalled = [k for k, (_, since) in self._stalled.items() if now - since > _STALL_S]
        return line or (
            f"stall of {stalled[0]}" if "stall" in self.options.triggers and stalled else ""
        )

    def _wanted(self, sock: Socket, inodes: set[int]) -> bool:
        chosen = self.selection
        if not chosen.ends(sock.flow):
            return False
        if chosen.cc and sock.flow.get("cc") not in chosen.cc:
            return False
        if chosen.pids and sock.inode not in inodes:
            return False
        return not chosen.cgroups or sock.cgroup in self._cgroups

    def _poll(self, spool: Sink, *, keep: bool, tick: Callable[[], None]) -> None:
        """Dump the sockets; tell the spool of new ones that are wanted, keep samples if asked.

        Whether a socket is wanted is decided when it is seen first.  ``tick`` is called between
        pieces: with many sockets a dump takes long, and the ring buffer must not fill meanwhile.
        """
        if len(self._told) > _TOLD_MAX:
            self._told.clear()
        inodes = {i for pid in self.selection.pids for i in sockdiag.inodes_of(pid)}
        stall = "stall" in self.options.triggers
        for piece in (piece for poller in self._pollers for piece in poller.dump()):
            new: list[dict[str, Any]] = []

            def wanted(
                key: bytes, read: Callable[[], Socket], new: list[dict[str, Any]] = new
            ) -> bool:
                known = self._told.get(key)
                if known is None or (known and stall):
                    sock = read()
                    if known is None:
                        known = self._told[key] = self._wanted(sock, inodes)
                        if known:
                            mss = sock.info.get("mss_bytes", 0)
                            new.append({**sock.flow, "sack": sock.sack, "mss": mss})
                    if known and stall:
                        self._watch_stall(flow_key(sock.flow), sock)
                return known

            kept = sockdiag.select(piece, wanted)
            now = time.monotonic()
            if new:
                spool.note({"flows": new}, now)
            if kept and keep:
                spool.append(SAMPLE, sockdiag.pack(kept), now)
            tick()

    def _watch_stall(self, key: tuple[str, int, str, int], sock: Socket) -> None:
        acked = sock.info.get("bytes_acked", 0)
        # With the peer's window closed nothing is outstanding, but there is something to send.
        if not (sock.info.get("unacked_segs") or sock.info.get("notsent_bytes")):
            self._stalled.pop(key, None)
        elif self._stalled.get(key, (-1, 0.0))[0] != acked:
            self._stalled[key] = (acked, time.monotonic())

    def _wind_up(
        self, trace: Tracer | None, spool: SpoolWriter, began: tuple[float, float]
    ) -> None:
        lost = {}
        if trace is not None:
            trace.stop()
            trace.drain(spool)
            lost[self.tracer] = trace.lost()
            if lost[self.tracer]:
                print(f"ccscope: events were lost: {trace.why_lost()}", file=sys.stderr)
        self._poll(spool, keep=True, tick=_nothing)
        used, wall = (now - then for now, then in zip(_usage(), began, strict=True))
        overhead = {
            "cpu_s": round(used, 4),
            "wall_s": round(wall, 4),
            "cpu_share": round(used / wall, 5) if wall else 0.0,
            "spool_bytes": float(spool.written),
            "longest_gap_s": round(self._gap, 3),
        }
        end: dict[str, Any] = {"lost": lost, "overhead": overhead, "reason": self.reason}
        end["t_ns"] = time.monotonic_ns()
        if self._slowest and self.choice.poll:
            overhead["slowest_poll_s"] = round(self._slowest, 3)
            print(
                f"ccscope: polls were as much as {self._slowest:.1f} s apart: there are so many "
                "sockets that more would have cost more than 5 % of a CPU",
                file=sys.stderr,
            )
        spool.note({"end": end}, time.monotonic())
        print(
            f"ccscope: {self.reason or 'ended'} after {wall:.1f} s; the recorder used "
            f"{100 * overhead['cpu_share']:.2f} % of one CPU; {spool.written} bytes; "
            f"lost events: {sum(lost.values())}",
            file=sys.stderr,
        )

    def _close(self, spool: SpoolWriter) -> None:
        spool.close()
        folder = self.options.folder
        try:
            from ccscope.decode import finish
        except ImportError as error:
            print(
                f"ccscope: {error.name} is not installed here: `ccscope finish {folder}` on a host "
                "that has it makes the tables",
                file=sys.stderr,
            )
            return
        meta = finish(folder)
        rows = ", ".join(f"{n} {c}" for n, c in meta["tables"].items()) or "nothing was seen"
        print(f"ccscope: {folder}: {len(meta['flows'])} flows; rows: {rows}", file=sys.stderr)

    def _say(self, trace: Tracer | None) -> None:
        names = " and ".join(s["name"] for s in self.sources())
        print(f"ccscope: recording by {names} ({self.choice.why})", file=sys.stderr)
        for source in self.sources():
            for missing in source["cannot"]:
                print(f"ccscope: {source['name']} cannot give: {missing}", file=sys.stderr)
        if self.options.triggers and trace is None:
            print("ccscope: without tracefs only the trigger stall works", file=sys.stderr)


def _nothing() -> None:
    pass


def _pollers(choice: Choice, netns: Sequence[int]) -> list[sockdiag.Poller]:
    """Pollers of the namespaces that were asked for; of our own without any."""
    own = Path("/proc/self/ns/net").stat().st_ino
    made: list[sockdiag.Poller] = []
    try:
        for inode in netns or (own,):
            made.append(sockdiag.Poller(0 if inode == own else inode))
    except CcscopeError:
        for poller in made:
            poller.close()
        if choice.poll:
            raise
        return []
    return made


def _usage() -> tuple[float, float]:
    """CPU seconds of this process (user and system) and CLOCK_MONOTONIC."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, time.monotonic()


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command)
    except OSError as error:
        raise CcscopeError(f"{command[0]} cannot be started: {error.strerror}") from error


def _stop(process: subprocess.Popen[bytes] | None) -> None:
    """End a process we started, if it still runs."""
    if process is None or process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _entering(netns: Sequence[int]) -> list[str]:
    """The words before a command that run it in the selected network namespace."""
    own = Path("/proc/self/ns/net").stat().st_ino
    if not netns or tuple(netns) == (own,):
        return []
    if len(netns) > 1:
        raise CcscopeError("--pcap: tcpdump captures one network namespace; give one --netns")
    place = sockdiag.netns_place(netns[0])
    if place is None:
        raise CcscopeError(f"--pcap: network namespace {netns[0]} has gone")
    return ["nsenter", f"--net={place}"]


@contextlib.contextmanager
def _capture(options: Options) -> Any:  # noqa: ANN401 - a context of a process or None
    """tcpdump beside the recording; on CLOCK_REALTIME, whose offset the recording knows."""
    if not options.pcap:
        yield None
        return
    if shutil.which("tcpdump") is None:
        raise CcscopeError("--pcap: tcpdump is not installed: `apt-get install tcpdump`")
    options.folder.mkdir(parents=True, exist_ok=True)
    rule = " or ".join(f"port {p}" for p in options.selection.ports)
    command = [
        *_entering(options.selection.netns),
        "tcpdump",
        "-i",
        "any",
        "-n",
        "-p",
        "-U",
        "-s",
        str(options.snaplen),
    ]
    command += ["--time-stamp-precision=nano", "-w", str(options.folder / "capture.pcap")]
    command.append(f"tcp and ({rule})" if rule else "tcp")
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        line = process.stderr.readline().decode(errors="replace")
        while "listening" not in line and line:
            last, line = line, process.stderr.readline().decode(errors="replace")
            if not line:
                raise CcscopeError(f"--pcap: tcpdump ended: {last.strip()}")
        try:
            yield process
        finally:
            _stop(process)
