"""The host engine: the same plan on the real kernel of a real machine, as root.

A cell runs in mount, process, network and IPC namespaces of its own, on a root file system in
memory with the guest's user space (read-only) and the guest's own sequence of steps
(testbed/guest/cell.sh).  The network namespaces of the scenario are named in a ``/run/netns`` that
only the cell sees, BPF programs are pinned in a file system that only the cell sees: whoever
else uses the same names, or runs another cell, is not met.  When the cell's first process ends, by
itself or by any signal, the kernel ends all others and takes everything in the namespaces away.

What a cell changes outside its namespaces is in the journal of :mod:`airlab.undo`: modules,
their parameters, the limits of socket buffers, a tracing instance.  The host's own trace buffer,
its network namespace, and its panic settings are never touched.

Real time: results do not repeat bit by bit, and one cell runs at a time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import selectors
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from airlab import image, paths, undo
from airlab.engines import complaints, hostkernel
from airlab.engines.base import Availability, EngineError, RawRun, Watch
from airlab.engines.console import ConsoleReader, refuse_failed_step, tail
from airlab.labroot import tree_digest
from airlab.model import AirlabError, CellPlan

TRACING = Path("/sys/kernel/tracing")
HANG_WALL_S = 60.0
"""Seconds without a word from the cell, which says something every ten."""

_PROGRAMS = (
    *("unshare", "setpriv", "taskset", "mount", "umount", "pivot_root"),
    *("modprobe", "insmod", "rmmod"),
)

# The first process of the cell, before it becomes host-init: arguments are the new root (an empty
# folder), the user space, the plan's files, where results go, the tracing instance or "", the mode.
_STAGE = r"""
set -eu
root=$1 user_space=$2 lab=$3 deliver=$4 tracing=$5 mode=$6
mount -t tmpfs -o mode=0755,size=75% airlab "$root"
cd "$root"
mkdir usr proc sys dev run tmp out lab etc root deliver old
chmod 1777 tmp
for name in bin sbin lib; do ln -s "usr/$name" "$name"; done
[ ! -d "$user_space/usr/lib64" ] || ln -s usr/lib64 lib64
mount --bind "$user_space/usr" usr
mount -o remount,bind,ro usr
cp -R "$user_space/etc/." etc
cp -R "$lab/." lab
mount --bind "$deliver" deliver
mount -t proc proc proc
mount -t sysfs sys sys
mount -t bpf bpf sys/fs/bpf
[ -z "$tracing" ] || mount --bind "$tracing" sys/kernel/tracing
mkdir -p out/proc out/json run/netns
for name in null zero full random urandom; do
	: >"dev/$name"
	mount --bind "/dev/$name" "dev/$name"
done
ln -s /proc/self/fd dev/fd
# Everything the cell says goes to airlab; nothing reaches the machine's own console.
ln -s /proc/1/fd/1 dev/console
pivot_root . old
exec /usr/lib/airlab/host-init "$mode"
"""

_GLOBAL_SYSCTL = re.compile(r"^sysctl -q -w((?:\s+(?:\\\n\s*)?\S+)+?)\n", re.MULTILINE)
_PARAMETER = re.compile(r"^echo \S+ >(/sys/module/\w+/parameters/\w+)$", re.MULTILINE)


def split_settings(script: str) -> tuple[dict[str, str], str]:
    """The host-wide sysctls of a set-up script, and the script without them.

    A cell is in a network namespace of its own, in which they do not exist.
    """
    values: dict[str, str] = {}
    for match in _GLOBAL_SYSCTL.finditer(script):
        for word in shlex.split(match.group(1).replace("\\\n", " ")):
            key, _, value = word.partition("=")
            values[key] = value
    return values, _GLOBAL_SYSCTL.sub("", script)


@dataclass
class _Cell:
    """A cell that is being set up or runs."""

    plan: CellPlan
    scratch: Path
    journal: undo.Journal
    user_space: Path

    @property
    def name(self) -> str:
        """Unique on this machine, also over time."""
        return self.journal.folder.name.replace("host-", "airlab-", 1)


class HostEngine:
    """Runs plans on this machine's own kernel, one at a time."""

    name = "host"
    parallel = False

    def __init__(self, plans: Sequence[CellPlan], *, extra: bool = False) -> None:
        self._modules = tuple(dict.fromkeys(name for plan in plans for name in plan.modules))
        self._traces = any(plan.trace for plan in plans)
        self._extra = extra
        self._mutex = threading.Lock()

    def availability(self) -> Availability:
        """Whether this machine can run the plans; looks only, changes nothing."""
        found = []
        if os.geteuid() != 0:
            found.append("it needs root: run it with sudo")
        missing = [name for name in _PROGRAMS if shutil.which(name) is None]
        if not hostkernel.has_module_support():
            missing = [n for n in missing if n not in ("modprobe", "insmod", "rmmod")]
        if missing:
            found.append(f"{', '.join(missing)} missing: install util-linux, mount and kmod")
        found += hostkernel.problems(self._modules)
        if os.geteuid() == 0 and self._traces and not (TRACING / "instances").is_dir():
            found.append(
                f"no tracefs at {TRACING}: `mount -t tracefs tracefs {TRACING}`, or --no-trace"
            )
        if found:
            return Availability(False, "; ".join(found))
        return Availability(True, f"kernel {hostkernel.release()}, as root, in namespaces")

    def provenance(self) -> dict[str, Any]:
        """The kernel, the machine, and what a cell brings along."""
        names = os.uname()
        return {
            "engine": self.name,
            "exact": False,
            "kernel": names.release,
            "kernel_version": names.version,
            "processor": _processor(),
            "modules_source": tree_digest(paths.MODULES_SOURCE)[:16],
            "user_space": image.ensure_user_space(extra=self._extra).name.rpartition("-")[2],
        }

    def run(self, plan: CellPlan, scratch: Path, watch: Watch, slot: int) -> RawRun:
        """Run one cell; see :class:`airlab.engines.base.Engine`."""
        scratch.mkdir(parents=True, exist_ok=True)
        console, out = scratch / "console.log", scratch / "out"
        console.touch()
        out.mkdir()
        start = time.monotonic()
        with _KernelLog() as log:
            with self._cell(plan, scratch, watch) as cell:
                with _running(self._command(cell, "cell", slot), cell) as process:
                    reader = ConsoleReader(console, watch)
                    _attend(process, console, reader, watch)
                marks = reader.marks(start)
            # What it says while modules are unloaded counts, too.
            said = log.text()
        (out / "dmesg").write_text(said)
        text = console.read_text(errors="replace")
        complaints.refuse(said, own_modules=())
        refuse_failed_step(out, text)
        return RawRun(
            out=out,
            console=console,
            wall_s=marks.done - marks.start,
            boot_wall_s=marks.booted - marks.start,
            setup_wall_s=marks.ready - marks.booted,
            main_wall_s=marks.end - marks.main,
            virtual_s=marks.done - marks.booted,
        )

    def interactive(self, plan: CellPlan) -> int:
        """A shell in the cell's namespaces on this terminal."""
        with self._cell(plan, None, Watch()) as cell:
            (cell.scratch / "out").mkdir()
            return subprocess.run(self._command(cell, "shell", 0), check=False).returncode

    @contextlib.contextmanager
    def _cell(self, plan: CellPlan, scratch: Path | None, watch: Watch) -> Iterator[_Cell]:
        """Everything outside the namespaces, done and undone; without ``scratch`` nothing stays."""
        user_space = image.ensure_user_space(extra=self._extra)
        with self._mutex, undo.turn(_Patience(watch)) as lock:
            for problem in undo.clean():
                print(f"airlab: an earlier run left something behind: {problem}", flush=True)
            folder = undo.STATE / f"host-{os.getpid()}-{secrets.token_hex(4)}"
            (folder / "root").mkdir(parents=True, mode=0o700)
            journal = undo.Journal(folder)
            guardian = undo.guard(folder, lock)
            try:
                (folder / "note").write_text(f"{plan.scenario} {plan.cell.slug}\n")
                cell = _Cell(plan, scratch or folder, journal, user_space)
                self._prepare(cell)
                yield cell
            finally:
                problems = journal.undo()
                if guardian.stdin:
                    guardian.stdin.close()
                guardian.wait()
                for problem in problems:
                    print(f"airlab: not undone: {problem}", flush=True)

    def _prepare(self, cell: _Cell) -> None:
        """Change what has to be changed on the host, each after a note.

        Raises:
            EngineError: something is refused; what was done so far is in the journal.
        """
        plan, journal = cell.plan, cell.journal
        before = undo.loaded_modules()
        mine = [name for name in hostkernel.closure(plan.modules) if name not in before]
        journal.note("modules", names=mine)
        try:
            for name in plan.modules:
                hostkernel.load(name)
        except AirlabError as error:
            raise EngineError("step", str(error)) from error
        files = dict(plan.files)
        values, script = split_settings(files["setup.sh"].decode())
        files["setup.sh"] = script.encode()
        for name in _PARAMETER.findall(script):
            journal.note_value(Path(name))
        for key, value in values.items():
            path = Path("/proc/sys") / key.replace(".", "/")
            journal.note_value(path)
            # A host that allows more already is left as it is.
            if int(path.read_text()) < int(value):
                path.write_text(value)
        if plan.trace:
            instance = TRACING / "instances" / cell.name
            journal.note("instance", path=str(instance))
            instance.mkdir()
        lab = cell.scratch / "lab"
        for name, data in files.items():
            target = lab / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

    def _command(self, cell: _Cell, mode: str, slot: int) -> list[str]:
        cores = sorted(os.sched_getaffinity(0))
        tracing = str(TRACING / "instances" / cell.name) if cell.plan.trace else ""
        return [
            *("setpriv", "--pdeathsig", "KILL"),
            # The last processors: the first ones often have the interrupts.
            *("taskset", "-c", str(cores[-1 - slot % len(cores)])),
            *("unshare", "--mount", "--propagation", "private", "--pid", "--net", "--ipc"),
            *("--fork", "--kill-child=KILL", "sh", "-c", _STAGE, cell.name),
            *(str(cell.journal.folder / "root"), str(cell.user_space)),
            *(str((cell.scratch / "lab").resolve()), str((cell.scratch / "out").resolve())),
            *(tracing, mode),
        ]


def clean_host() -> list[str]:
    """Undo what killed runs left on this host; returns what could not be undone.

    Raises:
        AirlabError: we are not root, or a cell is running.
    """
    if os.geteuid() != 0:
        raise AirlabError("cleaning up after engine host needs root: run it with sudo")

    def busy() -> None:
        raise AirlabError("a cell is running on this host; it cleans up after itself")

    with undo.turn(busy):
        return undo.clean()


class _Patience:
    """Waits for another airlab's cell, or for the clean-up after one that was killed."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._told = False

    def __call__(self) -> None:
        if not self._told:
            print("airlab: another cell is running on this host; waiting for its end", flush=True)
        self._told = True
        if self._watch.cancel.wait(0.2):
            raise EngineError("cancelled", "the run was cancelled")


class _KernelLog:
    """What the kernel says from now on; it is everybody's, so nothing is cleared."""

    def __enter__(self) -> _KernelLog:
        self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._fd, 0, os.SEEK_END)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def text(self) -> str:
        """The messages since the start, a line each, as dmesg prints them."""
        lines: list[str] = []
        while True:
            try:
                record = os.read(self._fd, 16384).decode(errors="replace")
            except BlockingIOError:
                return "".join(lines)
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten before it was read
                    lines.append("airlab: kernel messages were lost here\n")
                    continue
                raise
            head, _, message = record.partition(";")
            stamp_us = int(head.split(",")[2])
            lines.append(f"[{stamp_us / 1e6:12.6f}] {message.splitlines()[0]}\n")


@contextlib.contextmanager
def _running(command: list[str], cell: _Cell) -> Iterator[subprocess.Popen[bytes]]:
    """Start a cell's first process and make sure that it and all below it have ended."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    cell.journal.note("process", pid=process.pid, start=undo.start_time(process.pid))
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        # The pipe ends when the last process that could write to it is gone.
        if process.stdout:
            os.set_blocking(process.stdout.fileno(), True)
            while process.stdout.read(65536):
                pass
            process.stdout.close()
        process.wait()


def _attend(
    process: subprocess.Popen[bytes], console: Path, reader: ConsoleReader, watch: Watch
) -> None:
    """Copy what the cell says into a file and follow it, until the cell ends."""
    assert process.stdout is not None
    start = time.monotonic()
    fcntl.fcntl(process.stdout, fcntl.F_SETFL, os.O_NONBLOCK)
    with console.open("ab", buffering=0) as log, selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            selector.select(0.05)
            ended = _copy(process.stdout, log)
            reader.poll()
            if ended:
                break
            _check_patience(start, console, reader, watch)
    status = process.wait()
    if status:
        text = console.read_text(errors="replace")
        raise EngineError("lost", f"the cell's first process ended with {status}", tail(text))


def _copy(source: IO[bytes], log: IO[bytes]) -> bool:
    """Append what there is; true at the end."""
    with contextlib.suppress(BlockingIOError):
        while data := os.read(source.fileno(), 65536):
            log.write(data)
        return True
    return False


def _check_patience(start: float, console: Path, reader: ConsoleReader, watch: Watch) -> None:
    if watch.cancel.is_set():
        raise EngineError("cancelled", "the run was cancelled")
    now = time.monotonic()
    silence_s = watch.silence_s or HANG_WALL_S
    if now - reader.last_word > silence_s:
        why = f"the cell said nothing for {silence_s:.0f} s"
    elif watch.limit_s is not None and now - start > watch.limit_s:
        why = f"the cell was not done after {watch.limit_s:.0f} s"
    else:
        return
    raise EngineError("hang", why, tail(console.read_text(errors="replace")))


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine
