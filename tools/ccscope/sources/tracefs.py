"""Kernel tracepoints and kprobe events through tracefs, in an instance of our own.

The instance ``ccscope_PID_START`` (START is the process's start time, so that a reused PID is not
mistaken) has its own buffer, clock and filters: whatever else traces on the host is neither seen
nor disturbed.  A small guardian process, tied to the recorder by a pipe, removes instance and
probes when the recorder ends, however it ends; should it be killed too, the next start does it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ccscope import btf, symbols
from ccscope.errors import CcscopeError
from ccscope.flows import Selection
from ccscope.sources.probes import AFTER, STATE, UNDO, Probe, again, probes
from ccscope.spool import PAGES, Sink

_PLACES = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
_PREFIX = "ccscope_"
_NAME = re.compile(r"^ccscope_(\d+)_(\d+)(_t)?$")
PAGE_BYTES = 4096
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000
_RETRANSMIT = "tcp/tcp_retransmit_skb"
_GROUP = "GROUP"  # stands for the recorder's name
_WATCHED = {"loss": "cong_state == 4", "cwr": "cong_state == 2"}


@dataclass
class Offer:
    """What the source can give on this host, and what not and why."""

    root: Path | None = None
    events: list[str] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    again: str = ""
    symbols: list[tuple[int, str]] = field(default_factory=list)
    gives: list[str] = field(default_factory=list)
    cannot: list[str] = field(default_factory=list)


def find() -> Path:
    """The mounted tracefs; mounted for this process alone if the host has not mounted it.

    Raises:
        CcscopeError: no tracefs, or no right to it.
    """
    for place in _PLACES:
        if os.access(place / "instances", os.W_OK):
            return place
    if os.geteuid():
        raise CcscopeError("tracefs: only root may trace; run as root, or use --source sockdiag")
    libc = ctypes.CDLL(None, use_errno=True)
    where = os.fsencode(_PLACES[0])
    failed = (
        libc.unshare(_CLONE_NEWNS)
        or libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
        or libc.mount(b"tracefs", where, b"tracefs", 0, None)
    )
    if failed or not os.access(_PLACES[0] / "instances", os.W_OK):
        reason = os.strerror(ctypes.get_errno())
        raise CcscopeError(f"tracefs: {_PLACES[0]} cannot be mounted: {reason}")
    return _PLACES[0]


def offer(root: Path, *, per_ack: bool) -> Offer:
    """Probe each tracepoint and function for existence; nothing is switched on."""
    made = Offer(root)
    wanted = ["tcp/tcp_probe", "tcp/tcp_cong_state_set", _RETRANSMIT]
    wanted += ["sock/inet_sock_set_state"]
    for event in wanted:
        if event == "tcp/tcp_probe" and not per_ack:
            continue
        if (root / "events" / event).is_dir():
            made.events.append(event)
        else:
            made.cannot.append(f"{event}: this kernel has no such tracepoint")
    made.events += _module_events(root)
    made.symbols, functions = symbols.running_kernel(
        lambda f: f in (*AFTER, STATE) or f.endswith(UNDO)
    )
    if not made.symbols:
        made.cannot.append("causes: /proc/kallsyms hides the addresses (kernel.kptr_restrict)")
    _offer_probes(made, functions, per_ack)
    if made.probes and any(p.event == "after" for p in made.probes):
        # Two rows an ACK would double the cost; the one after the ACK says all and more.
        made.events = [e for e in made.events if e != "tcp/tcp_probe"]
        made.gives.append("acks: the state after each ACK, with all of the socket's counters")
    elif "tcp/tcp_probe" in made.events:
        made.gives.append("acks: the state before each ACK (tcp_probe), ssthresh as current")
    made.gives += ["states with causes" if made.symbols else "states", "retransmits", "life"]
    return made


def _offer_probes(made: Offer, functions: set[str], per_ack: bool) -> None:
    assert made.root is not None
    if not (made.root / "kprobe_events").exists():
        made.cannot.append(
            "state after the ACK, lost, delivered, pacing; undos that leave the state as it is: "
            "this kernel has no kprobe events (CONFIG_KPROBE_EVENTS)"
        )
        return
    try:
        types = btf.running_kernel()
        made.probes = probes(types, functions, per_ack=per_ack)
        if _RETRANSMIT in made.events and (made.root / "dynamic_events").exists():
            made.again = again(types, _GROUP)
    except CcscopeError as error:
        made.cannot.append(f"state after the ACK, undos: {error}")


def _module_events(root: Path) -> list[str]:
    """Tracepoints of congestion-control modules that bring their own (our tcp_j: ``j``)."""
    try:
        loaded = {line.split()[0] for line in Path("/proc/modules").read_text().splitlines()}
    except OSError:
        return []
    names = loaded | {name.removeprefix("tcp_") for name in loaded if name.startswith("tcp_")}
    systems = [root / "events" / n for n in sorted(names) if (root / "events" / n).is_dir()]
    ours = [s for s in systems if f"tcp_{s.name}" in loaded or s.name == "imtcp"]
    return [f"{s.name}/{e.name}" for s in ours for e in sorted(s.iterdir()) if e.is_dir()]


def _start_time(pid: int) -> str:
    """A process's start time in clock ticks since boot; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def stale(root: Path) -> list[str]:
    """Names of instances and probe groups whose recorder is gone."""
    names = {p.name for p in (root / "instances").glob(_PREFIX + "*")}
    with contextlib.suppress(OSError):
        lines = _defined(root).read_text().splitlines()
        names |= {m[1] for line in lines if (m := re.match(r"[pre]\d*:(ccscope_\w+)/", line))}
    found = []
    for name in sorted(names):
        match = _NAME.match(name)
        if match and _start_time(int(match[1])) != match[2]:
            found.append(name)
    return found


def remove(root: Path, name: str) -> bool:
    """Remove an instance and the probe group of that name; False when something is left."""
    clean = True
    for folder in (root / "instances" / name, root / "instances" / f"{name}_t"):
        if folder.is_dir():
            try:
                folder.rmdir()
            except OSError:
                clean = False
    events = _defined(root)
    with contextlib.suppress(FileNotFoundError):
        lines = events.read_text().splitlines()
        mine = {m[1] for x in lines if (m := re.match(rf"[pre]\d*:({re.escape(name)}/\w+)", x))}
        for event in sorted(mine):
            try:
                _append(events, f"-:{event}")
            except OSError:
                clean = False
    return clean


def _defined(root: Path) -> Path:
    """The file that lists our probes: with event probes, which only newer kernels have."""
    both = root / "dynamic_events"
    return both if both.exists() else root / "kprobe_events"


def _append(file: Path, text: str) -> None:
    handle = os.open(file, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(handle, text.encode() + b"\n")
    finally:
        os.close(handle)


class Recorder:
    """Records into a spool; use as a context manager."""

    def __init__(self, what: Offer, selection: Selection, *, buffer_kb: int = 8192) -> None:
        assert what.root is not None
        self.root, self.offer, self.selection = what.root, what, selection
        self.buffer_kb = buffer_kb
        self.name = f"{_PREFIX}{os.getpid()}_{_start_time(os.getpid())}"
        self.instance = self.root / "instances" / self.name
        self.formats: dict[str, str] = {}
        self.pages = 0
        self._drained = False
        self._pipes: dict[int, int] = {}
        self._guard = -1
        self._guardian = 0
        self._watch = -1

    def __enter__(self) -> Recorder:
        for name in stale(self.root):
            remove(self.root, name.removesuffix("_t"))
        self._start_guardian()
        try:
            self._prepare()
        except OSError as error:
            self.close()
            raise CcscopeError(
                f"tracefs: {error.filename or self.instance}: {error.strerror}; "
                "use --source sockdiag"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self) -> None:
        self.instance.mkdir()
        self._put("tracing_on", "0")
        self._put("trace_clock", "mono")
        self._put("buffer_size_kb", str(self.buffer_kb))
        defined = self._define_probes()
        for event in self.offer.events:
            # An event probe on the tracepoint says the same and more.
            if event != _RETRANSMIT or "again" not in defined:
                self._switch_on(event)
        self._format("header_page", self.root / "events" / "header_page")
        self._format("ftrace.kernel_stack", self.root / "events/ftrace/kernel_stack/format")
        for folder in sorted((self.instance / "per_cpu").glob("cpu*")):
            pipe = os.open(folder / "trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK)
            self._pipes[int(folder.name[3:])] = pipe

    def _define_probes(self) -> set[str]:
        """Define and enable our probe events; returns their names.

        What the kernel refuses is said and left out.
        """
        refused: dict[str, str] = {}
        defined: set[str] = set()
        for probe in self.offer.probes:
            if probe.event == "after" and "after" in defined:
                continue
            try:
                _append(self.root / "kprobe_events", probe.line(self.name))
                defined.add(probe.event)
            except OSError as error:
                refused[probe.event] = f"{probe.function}: {error.strerror}"
        for event, reason in refused.items():
            if event not in defined:
                self.offer.cannot.append(f"probe {event} on {reason}")
        if self.offer.again:
            try:
                line = self.offer.again.replace(_GROUP, self.name)
                _append(self.root / "dynamic_events", line)
                defined.add("again")
            except OSError:
                self.offer.cannot.append("which bytes are sent again: no event probes (Linux 5.15)")
        for event in sorted(defined):
            self._switch_on(f"{self.name}/{event}")
        if (
            "after" in refused
            and "after" not in defined
            and (self.root / "events/tcp/tcp_probe").is_dir()
        ):
            self.offer.events.append("tcp/tcp_probe")
        return defined

    def _switch_on(self, event: str) -> None:
        folder = self.instance / "events" / event
        system, _, name = event.partition("/")
        key = "ccscope" if system == self.name else system
        text = (folder / "format").read_text()
        self.formats[f"{key}.{name}"] = text
        rule = self.selection.kernel_filter(set(re.findall(r"\b(\w+)(?:\[\w*\])?;\s*offset", text)))
        if rule:
            (folder / "filter").write_text(rule)
        if name in ("ca", "tcp_cong_state_set"):
            # One of the two would do; the stack tells why the state changed.
            with contextlib.suppress(OSError):
                (folder / "trigger").write_text("stacktrace")
        (folder / "enable").write_text("1")

    def _format(self, name: str, path: Path) -> None:
        self.formats[name] = path.read_text()

    def _put(self, name: str, value: str) -> None:
        (self.instance / name).write_text(value)

    def start(self) -> None:
        """Let events flow."""
        self._put("tracing_on", "1")

    def stop(self) -> None:
        """Stop events; what is in the buffer stays for :meth:`drain`."""
        self._put("tracing_on", "0")

    def watch(self, triggers: Sequence[str]) -> None:
        """Arm triggers: ``loss``, ``cwr`` (others are not ours)."""
        rules = [_WATCHED[t] for t in triggers if t in _WATCHED]
        if not rules:
            return
        folder = self.root / "instances" / f"{self.name}_t"
        folder.mkdir()
        event = folder / "events/tcp/tcp_cong_state_set"
        text = (event / "format").read_text()
        fields = set(re.findall(r"\b(\w+)(?:\[\w*\])?;\s*offset", text))
        ports = self.selection.kernel_filter(fields)
        rule = " || ".join(rules)
        (event / "filter").write_text(f"({ports}) && ({rule})" if ports else rule)
        (event / "enable").write_text("1")
        self._watch = os.open(folder / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)

    def fired(self) -> str:
        """The line of the event that fired a trigger; empty when none did."""
        if self._watch < 0:
            return ""
        try:
            return os.read(self._watch, 4096).decode("latin1").splitlines()[0].strip()
        except (BlockingIOError, IndexError):
            return ""

    def drain(self, spool: Sink) -> int:
        """Move all pages to the spool; returns how many.

        Every event before the time in the note that follows the pages has then been read.
        """
        before = time.monotonic_ns()
        count = 0
        for cpu, pipe in self._pipes.items():
            for block in _blocks(pipe):
                spool.append(PAGES, struct.pack("<I", cpu) + block, before / 1e9)
                count += len(block) // PAGE_BYTES
        # Also once after the last pages, whose newest events may be later than ``before``.
        if count or self._drained:
            spool.note({"drained": before}, before / 1e9)
        self._drained = count > 0
        self.pages += count
        return count

    def lost(self) -> int:
        """Events the ring buffer could not keep or a probe missed, by the kernel's own counters."""
        return self._overrun() + self._missed()

    def why_lost(self) -> str:
        """What was lost how, and what helps."""
        made = []
        if overrun := self._overrun():
            made.append(
                f"{overrun} because the ring buffer of {self.buffer_kb} KB a CPU was full "
                "(a larger --buffer or a narrower selection helps)"
            )
        if missed := self._missed():
            made.append(f"{missed} because a probe was hit while it ran")
        return ", ".join(made)

    def _overrun(self) -> int:
        total = 0
        for file in (self.instance / "per_cpu").glob("cpu*/stats"):
            for line in file.read_text().splitlines():
                name, _, value = line.partition(":")
                if name in ("overrun", "commit overrun", "dropped events"):
                    total += int(value)
        return total

    def _missed(self) -> int:
        total = 0
        with contextlib.suppress(OSError):
            for line in (self.root / "kprobe_profile").read_text().splitlines():
                name, _, missed = line.split()
                # Without a group: another recorder's misses count too, which errs on the safe side.
                if name in ("after", "ca", "undo"):
                    total += int(missed)
        return total

    def close(self) -> None:
        """Remove all that was set up."""
        for pipe in [*self._pipes.values(), self._watch]:
            if pipe >= 0:
                os.close(pipe)
        self._pipes, self._watch = {}, -1
        for event in (self.root / "events").glob(f"{self.name}/*/enable"):
            with contextlib.suppress(OSError):
                event.write_text("0")
        remove(self.root, self.name)
        if self._guard >= 0:
            os.close(self._guard)
            self._guard = -1
            os.waitpid(self._guardian, 0)

    # ---- the guardian ----

    def _start_guardian(self) -> None:
        ours, theirs = os.pipe()
        self._guardian = os.fork()
        if self._guardian == 0:
            os.close(theirs)
            self._guard_until_end(ours)
        os.close(ours)
        self._guard = theirs

    def _guard_until_end(self, pipe: int) -> None:
        """In the child: wait until the recorder is gone, however it went, and clean up."""
        try:
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            os.closerange(pipe + 1, 1024)
            os.read(pipe, 1)
            for _ in range(50):
                if remove(self.root, self.name):
                    break
                time.sleep(0.1)  # its last files are still being closed
        finally:
            os._exit(0)


def _blocks(pipe: int) -> Iterator[bytes]:
    """All pages that are ready, at most 256 at a time."""
    pages: list[bytes] = []
    while True:
        try:
            page = os.read(pipe, PAGE_BYTES)
        except BlockingIOError:
            page = b""
        if page:
            pages.append(page)
        if pages and (not page or len(pages) == 256):
            yield b"".join(pages)
            pages = []
        if not page:
            return
