"""bpftrace as a source: the same fields as our probe events, where only BPF is allowed.

The script is made from BTF like the probe events; every event is a line of numbers.  bpftrace's
programs belong to its process, and the kernel kills that when ours dies, so nothing can stay.
Lost events are counted by bpftrace.  It costs more than tracefs: a line of text an ACK.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from ccscope import btf, symbols
from ccscope.btf import Btf
from ccscope.errors import CcscopeError
from ccscope.flows import Selection
from ccscope.sources.probes import (
    AFTER,
    STATE,
    UNDO,
    Value,
    after_values,
    ca_values,
    common_values,
    sequence_place,
)
from ccscope.spool import LINES, Sink

_OLDEST = (0, 17)
_CLOCKS = (0, 18)  # from here on nsecs() must be told which clock
_TICK_MS = 200
_ATTACH_S = 120.0
_PR_SET_PDEATHSIG = 1
_WATCHED = {"loss": "4", "cwr": "2"}
_STACK = 16


@dataclass
class Offer:
    """What the source can give on this host.

    Attributes:
        program: path of bpftrace.
        version: of bpftrace.
        types: the kernel's.
        functions: those of them that the kernel has.
        per_ack: whether each ACK is wanted.
        symbols: for stacks.
        gives, cannot: for people.
    """

    program: str
    version: tuple[int, ...]
    types: Btf
    functions: set[str]
    per_ack: bool
    symbols: list[tuple[int, str]]
    gives: list[str] = field(default_factory=list)
    cannot: list[str] = field(default_factory=list)


def offer(*, per_ack: bool) -> Offer:
    """Whether bpftrace can be used here.

    Raises:
        CcscopeError: it is not installed, too old, or we have no right to BPF.
    """
    program = shutil.which("bpftrace")
    if program is None:
        raise CcscopeError("bpftrace: not installed: `apt-get install bpftrace`")
    if os.geteuid():
        raise CcscopeError("bpftrace: only root may trace; use --source sockdiag")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"v(\d+)\.(\d+)", said.stdout)
    version = tuple(map(int, found.groups())) if found else (0, 0)
    if version < _OLDEST:
        raise CcscopeError(f"bpftrace: {said.stdout.strip()} is too old; 0.17 is needed")
    names, functions = symbols.running_kernel(lambda f: f in (*AFTER, STATE) or f.endswith(UNDO))
    made = Offer(program, version, btf.running_kernel(), functions, per_ack, names)
    if per_ack:
        made.gives.append("acks: the state after each ACK, with all of the socket's counters")
    made.gives += ["states with causes" if names else "states", "retransmits", "life"]
    made.cannot.append("events of modules of congestion control (j:*)")
    if not names:
        made.cannot.append("causes: /proc/kallsyms hides the addresses (kernel.kptr_restrict)")
    return made


# ---- the script ----


def fields(types: Btf) -> dict[str, list[str]]:
    """The names of a line's numbers, by the line's first letter; the time is always the first."""
    common = [v.name for v in common_values(types)]
    return {
        "A": ["t_ns", *common, *(v.name for v in after_values(types))],
        "C": ["t_ns", *common, "cong_state", *(v.name for v in ca_values(types))],
        "U": ["t_ns", *common],
        "R": ["t_ns", *common, "seq", "state"],
        "L": ["t_ns", *common, "protocol", "oldstate", "newstate"],
        "T": ["t_ns"],
    }


def script(what: Offer, selection: Selection) -> str:
    """The bpftrace program."""
    types = what.types
    now = "nsecs(monotonic)" if what.version >= _CLOCKS else "nsecs"
    common = common_values(types)
    rule = _rule(selection, common)

    def block(letter: str, sock: str, more: Sequence[str], *, text: str = "") -> str:
        values = [now, *(_read(v) for v in common), *more]
        form = " ".join([letter, *["%llu"] * len(values), *(["%s"] if text else [])])
        last = f", {text}" if text else ""
        print_it = f'printf("{form}\\n", {", ".join(f"(uint64){v}" for v in values)}{last});'
        return f"{{ $s = (uint64){sock};\n  {rule}\n  {{ {print_it} }} }}\n"

    parts = []
    if what.per_ack:
        after = [_read(v) for v in after_values(types)]
        if AFTER[0] in types.functions:
            first = "args.sk" if what.version >= (0, 20) else "args->sk"
            kind = "fexit" if what.version >= (0, 21) else "kretfunc"
            parts.append(f"{kind}:tcp_ack " + block("A", first, after))
        else:
            parts.append(f"kprobe:{AFTER[1]} " + block("A", "arg0", after))
    changes = ["arg1 & 255", *(_read(v) for v in ca_values(types))]
    parts.append(f"kprobe:{STATE} " + block("C", "arg0", changes, text=f"kstack(raw, {_STACK})"))
    undo = sorted(f for f in what.functions if f.endswith(UNDO))
    if undo:
        parts.append(",\n".join(f"kprobe:{f}" for f in undo) + " " + block("U", "arg0", []))
    dot = "args." if what.version >= (0, 20) else "args->"
    seq = f"*(uint32 *)((uint64){dot}skbaddr + {sequence_place(types)})"
    parts.append(
        "tracepoint:tcp:tcp_retransmit_skb " + block("R", f"{dot}skaddr", [seq, f"{dot}state"])
    )
    life = [f"{dot}protocol", f"{dot}oldstate", f"{dot}newstate"]
    parts.append("tracepoint:sock:inet_sock_set_state " + block("L", f"{dot}skaddr", life))
    # Attached last; all that was before a tick has come soon after it.
    parts.append(f'interval:ms:{_TICK_MS} {{ printf("T %llu\\n", (uint64){now}); }}\n')
    return "".join(parts)


def _read(value: Value) -> str:
    """The number at a place of the socket."""
    base = "$s"
    for offset in value.through:
        base = f"*(uint64 *)({base} + {offset})"
    read = f"*(uint{8 * value.size} *)({base} + {value.offset})"
    if not value.bits:
        return read
    return f"(({read} >> {value.bit}) & {(1 << value.bits) - 1})"


def _rule(selection: Selection, common: Sequence[Value]) -> str:
    """The condition on ports and namespaces; without one it is always true."""
    read = {value.name: _read(value) for value in common}
    parts = []
    if selection.ports:
        theirs = f"({read['dporthi']} * 256 + {read['dportlo']})"
        mine = [f"{end} == {p}" for p in selection.ports for end in (read["sport"], theirs)]
        parts.append("(" + " || ".join(mine) + ")")
    if selection.netns:
        parts.append("(" + " || ".join(f"{read['netns']} == {n}" for n in selection.netns) + ")")
    return f"if ({' && '.join(parts)})" if parts else "if (1)"


# ---- the recorder ----


class Recorder:
    """Runs bpftrace and hands its lines to a sink; use as a context manager.

    It is what sources.tracefs.Recorder is for tracefs.
    """

    def __init__(self, what: Offer, selection: Selection) -> None:
        self.offer, self.selection = what, selection
        self.formats: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._on = False
        self._lost = 0
        self._fired = ""
        self._watched: set[str] = set()
        self._errors = b""
        self._kept: list[str] = []

    def __enter__(self) -> Recorder:
        names = {"fields": fields(self.offer.types)}
        self.formats = {"bpftrace": json.dumps(names)}
        with tempfile.NamedTemporaryFile("w", suffix=".bt") as file:
            file.write(script(self.offer, self.selection))
            file.flush()
            self._process = subprocess.Popen(
                [self.offer.program, "-f", "json", "-B", "line", file.name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Ctrl-C is for us alone; and it must not outlive us, however we end.
                start_new_session=True,
                preexec_fn=_die_with_parent(os.getpid()),  # noqa: PLW1509 - no threads yet
                env={**os.environ, "BPFTRACE_STRLEN": "64"},
            )
            try:
                self._attached()
            except BaseException:
                self.__exit__(None, None, None)
                raise
        return self

    def _attached(self) -> None:
        assert self._process is not None
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        end = time.monotonic() + _ATTACH_S
        while not any(line.startswith("T ") for line in self._lines()):
            if self._process.poll() is not None or time.monotonic() > end:
                said = self._errors.decode(errors="replace").strip().splitlines()
                told = [line for line in said if "ERROR" in line] or said or ["it said nothing"]
                raise CcscopeError(f"bpftrace: {told[0]}; use --source tracefs or sockdiag")
            time.sleep(0.05)

    def _lines(self) -> list[str]:
        """The script's new lines; what bpftrace itself says is counted or kept."""
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._errors = (self._errors + _read_all(self._process.stderr.fileno()))[-8192:]
        *whole, self._rest = (self._rest + _read_all(self._process.stdout.fileno())).split(b"\n")
        made = []
        for text in whole:
            try:
                said = json.loads(text)
            except ValueError:
                continue
            if said.get("type") == "printf":
                made.append(said["data"].rstrip("\n"))
            elif said.get("type") == "lost_events":
                self._lost += int(said["data"]["events"])
        return made

    def start(self) -> None:
        """Let events flow."""
        self._lines()
        self._on = True

    def stop(self) -> None:
        """End bpftrace; what it has said is still there for :meth:`drain`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        end = time.monotonic() + 10
        while self._process.poll() is None and time.monotonic() < end:
            self._kept += self._lines()  # or it could not write the rest
            time.sleep(0.02)

    def watch(self, triggers: Sequence[str]) -> None:
        """Arm triggers: ``loss``, ``cwr``."""
        self._watched = {_WATCHED[t] for t in triggers if t in _WATCHED}

    def fired(self) -> str:
        """What fired a trigger; empty when nothing did."""
        return self._fired

    def drain(self, spool: Sink) -> int:
        """Move all lines to the spool; returns how many."""
        lines, self._kept = [*self._kept, *self._lines()], []
        if not lines or not self._on:
            return 0
        now = time.monotonic()
        spool.append(LINES, "\n".join(lines).encode(), now)
        ticks = [int(line[2:]) for line in lines if line.startswith("T ")]
        if ticks:
            # Lines of other processors may come a little later than a tick that is newer.
            spool.note({"drained": ticks[-1] - _TICK_MS * 1_000_000}, now)
        if self._watched and not self._fired:
            self._fired = next((x for x in lines if x[:2] == "C " and self._wanted(x)), "")[:80]
        return len(lines)

    def _wanted(self, line: str) -> bool:
        place = 1 + fields(self.offer.types)["C"].index("cong_state")
        return line.split(None, place + 1)[place] in self._watched

    def lost(self) -> int:
        """Events that bpftrace says it lost."""
        return self._lost

    def why_lost(self) -> str:
        """What was lost how."""
        return f"{self._lost} by bpftrace's own count (a narrower selection helps)"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.communicate()


def _read_all(pipe: int) -> bytes:
    parts: list[bytes] = []
    while True:
        try:
            data = os.read(pipe, 1 << 20)
        except BlockingIOError:
            data = b""
        if not data:
            return b"".join(parts)
        parts.append(data)


def _die_with_parent(parent: int) -> Callable[[], None]:
    """For a child, before it becomes another program: be killed when the parent dies."""
    libc = ctypes.CDLL(None)

    def set_it() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return set_it
