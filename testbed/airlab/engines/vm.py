"""The virtual-time engine: a stock kernel under QEMU's emulator with counted instructions.

One instruction is one nanosecond and idle time is skipped, so a run takes the same virtual
course whatever the host is doing.  What makes it exact (docs/lab-internals.md, section 7): one
virtual processor without a random number instruction, a clock that only the instruction
count drives, a root in RAM, and no device that is used while the measurement runs.  Results
leave through a stretch of guest memory that the guest's kernel does not manage and that the
host reads from the memory's backing file after power-off.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import struct
import subprocess
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from airlab import cpio, paths
from airlab.engines.base import Availability, EngineError, RawRun, Watch
from airlab.image import Image
from airlab.model import CellPlan

QEMU = "qemu-system-x86_64"

RAM_MB = 1024
SHIP_BASE = 512 << 20
SHIP_BYTES = 384 << 20
_SHIP_HEADER = struct.Struct("<8sQQI")
_SHIP_HEADER_BYTES = 64

HANG_WALL_S = 240.0
"""Wall seconds without a word from the guest after which it counts as hung."""

_TROUBLE = re.compile(
    r"Kernel panic|BUG:|Oops:|WARNING: (?!CPU features)|"
    r"rcu: INFO: rcu_\w+ (?:self-)?detected stall|general protection fault|"
    r"Unable to handle|soft lockup|hung_task"
)
_CONSOLE_TAIL = 60

KERNEL_ARGS = (
    "console=ttyS0",
    "nokaslr",
    "random.trust_cpu=off",
    "mitigations=off",
    "panic=-1",
    "panic_on_warn=1",
    "oops=panic",
    # Warnings must reach the console: they are what panic_on_warn is explained by.
    "loglevel=5",
    # The local APIC's timer is calibrated against the clock in a busy loop that
    # costs 2.6 s of wall time under emulation; the HPET needs none.
    "noapictimer",
    "tsc=reliable",
    "no_timer_check",
    "lpj=4000000",
    "cryptomgr.notests",
    # Self-tests and certificate parsing of subsystems that no guest here uses.
    "initcall_blacklist=jent_mod_init,load_system_certificate_list",
    "audit=0",
    "apparmor=0",
    f"memmap={SHIP_BYTES >> 20}M${SHIP_BASE:#x}",
    f"airlab.ship={SHIP_BASE:#x},{SHIP_BYTES}",
)


@dataclass(frozen=True)
class _Marks:
    """Wall-clock instants at which the guest announced its stages."""

    start: float
    ready: float
    booted: float
    main: float
    end: float
    done: float


class VmEngine:
    """Runs plans in QEMU; needs neither root nor KVM."""

    name = "vm"

    def __init__(self, image: Image) -> None:
        self.image = image
        # Held in memory: a rebuild beside a running campaign replaces the file.
        self._base = image.initrd.read_bytes()

    def availability(self) -> Availability:
        """QEMU is there: that is all this engine needs."""
        if shutil.which(QEMU) is None:
            return Availability(False, f"{QEMU} is not installed; run `make setup`")
        return Availability(True, "QEMU's emulator, virtual time by instruction count")

    def provenance(self) -> dict[str, Any]:
        """Kernel, QEMU and every flag that shapes the guest's clock."""
        version = subprocess.run(
            [QEMU, "--version"], capture_output=True, text=True, check=True
        ).stdout.splitlines()[0]
        return {
            "engine": self.name,
            "qemu": version,
            "qemu_flags": _machine_flags(),
            "lockstep": _digest(lockstep_library()),
            "kernel": self.image.kernel.release,
            "kernel_package": self.image.kernel.info()["package"],
            "kernel_args": list(KERNEL_ARGS),
            "image": self.image.digest,
        }

    def run(self, plan: CellPlan, scratch: Path, watch: Watch, slot: int) -> RawRun:
        """Run one cell; see :class:`airlab.engines.base.Engine`."""
        return self.boot(
            scratch=scratch,
            files=plan.files,
            kernel_args=("airlab.mode=cell", *plan.kernel_args),
            watch=watch,
            slot=slot,
        )

    def boot(
        self,
        *,
        scratch: Path,
        files: dict[str, bytes],
        kernel_args: tuple[str, ...],
        watch: Watch,
        slot: int,
    ) -> RawRun:
        """Boot a guest with files below ``/lab`` and wait until it has powered off.

        Raises:
            EngineError: panic, warning, hang, a failed step, or cancelled.
        """
        scratch.mkdir(parents=True, exist_ok=True)
        console = scratch / "console.log"
        console.touch()
        with _nameless() as ram, _nameless() as initrd:
            _fill_initrd(initrd, self._base, files)
            backing = f"size={RAM_MB}M,mem-path=/proc/self/fd/{ram.fileno()},share=on"
            command = [
                *_guardian(slot),
                QEMU,
                *_machine_flags(),
                *("-object", f"memory-backend-file,id=ram,{backing}"),
                *("-kernel", str(self.image.kernel.vmlinux)),
                *("-initrd", f"/proc/self/fd/{initrd.fileno()}"),
                *("-append", " ".join([*KERNEL_ARGS, *kernel_args])),
                *("-serial", f"file:{console}"),
            ]
            marks = _attend(command, (ram.fileno(), initrd.fileno()), console, watch)
            log = console.read_text(errors="replace")
            _refuse_trouble(log)
            out = scratch / "out"
            _unship(ram, out, log)
        _refuse_failed_step(out, log)
        return RawRun(
            out=out,
            console=console,
            wall_s=marks.done - marks.start,
            boot_wall_s=marks.booted - marks.start,
            setup_wall_s=marks.ready - marks.booted,
            main_wall_s=marks.end - marks.main,
            virtual_s=_virtual_seconds(log),
        )

    def interactive(self, files: dict[str, bytes], kernel_args: tuple[str, ...]) -> int:
        """A guest on this terminal; returns QEMU's exit status."""
        with _nameless() as initrd:
            _fill_initrd(initrd, self._base, files)
            command = [
                *(QEMU, "-accel", "tcg,thread=single", "-M", "q35", "-cpu", _CPU),
                *("-m", f"{RAM_MB}", "-nodefaults", "-no-reboot", "-nographic"),
                *("-serial", "mon:stdio", "-kernel", str(self.image.kernel.vmlinux)),
                *("-initrd", f"/proc/self/fd/{initrd.fileno()}"),
                *("-append", " ".join([*KERNEL_ARGS, "airlab.mode=shell", *kernel_args])),
            ]
            return subprocess.run(command, check=False, pass_fds=(initrd.fileno(),)).returncode


# A plain model: no RDRAND or RDSEED, through which host randomness would leak in.
_CPU = "qemu64"


def _machine_flags() -> list[str]:
    return [
        *("-accel", "tcg,thread=single"),
        *("-icount", "shift=0,sleep=off"),
        *("-rtc", "base=2026-01-01,clock=vm"),
        # Without the built-in devices that no guest here has a driver for.
        *("-M", "q35,memory-backend=ram,sata=off,smbus=off,usb=off"),
        *("-cpu", _CPU),
        *("-smp", "1"),
        *("-m", f"{RAM_MB}M"),
        *("-nodefaults", "-display", "none", "-no-reboot"),
        # The lockstep library knows the processor's thread by its name.
        *("-name", "airlab,debug-threads=on"),
    ]


def _guardian(slot: int) -> list[str]:
    """Words before QEMU: it must die with us, and stay on one processor.

    Under counted instructions QEMU's two threads take turns at every idle moment;
    on one processor that hand-over is cheap (measured: a run takes 0.7 of the time).
    """
    words = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    cores = sorted(os.sched_getaffinity(0))
    if shutil.which("taskset"):
        words += ["taskset", "-c", str(cores[slot % len(cores)])]
    if lockstep_library().is_file():
        words += ["env", f"LD_PRELOAD={lockstep_library()}"]
    return words


def lockstep_library() -> Path:
    """Where ``make setup`` builds testbed/lockstep, which closes a race in QEMU's clock."""
    return paths.cache() / "lockstep.so"


@contextlib.contextmanager
def _nameless() -> Iterator[BinaryIO]:
    """A file without a name, in RAM where there is room: it is gone when nobody has it open.

    QEMU gets the descriptor and opens it through /proc, so not even a killed airlab leaves
    anything behind.
    """
    shared = Path("/dev/shm")
    room = shared.is_dir() and shutil.disk_usage(shared).free > 2 * (RAM_MB << 20)
    with tempfile.TemporaryFile(dir=shared if room else None) as file:
        yield file


def _fill_initrd(out: BinaryIO, base: bytes, files: dict[str, bytes]) -> None:
    """The image's archive with a second one behind it that holds the plan's files."""
    out.write(base)
    overlay = io.BytesIO()
    cpio.write(overlay, (cpio.regular(f"lab/{name}", data) for name, data in sorted(files.items())))
    out.write(overlay.getvalue())
    out.flush()


def _digest(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else None


def _attend(command: list[str], fds: tuple[int, ...], console: Path, watch: Watch) -> _Marks:
    """Start QEMU and watch its console until it ends.

    It gets a process group of its own: a Ctrl-C is for airlab, which then ends the guest.
    """
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=fds,
        process_group=0,
    )
    reader = _ConsoleReader(console, watch)
    try:
        while process.poll() is None:
            if watch.cancel.wait(0.05):
                raise EngineError("cancelled", "the run was cancelled")
            reader.poll()
            if time.monotonic() - reader.last_word > HANG_WALL_S:
                raise EngineError(
                    "hang",
                    f"the guest said nothing for {HANG_WALL_S:.0f} s of wall time",
                    _tail(console.read_text(errors="replace")),
                )
    finally:
        if process.poll() is None:
            process.kill()
        said, _ = process.communicate()
    if process.returncode != 0:
        text = said.decode(errors="replace").strip()
        raise EngineError("lost", f"QEMU ended with status {process.returncode}: {text}")
    reader.poll()
    return reader.marks(start)


class _ConsoleReader:
    """Follows the console file: stage marks and virtual-time ticks."""

    def __init__(self, console: Path, watch: Watch) -> None:
        self._console = console
        self._watch = watch
        self._offset = 0
        self._partial = b""
        self._seen: dict[str, float] = {}
        self.last_word = time.monotonic()

    def poll(self) -> None:
        """Take in what was written since the last call."""
        with open(self._console, "rb") as file:
            file.seek(self._offset)
            new = file.read()
        if not new:
            return
        self._offset += len(new)
        self.last_word = time.monotonic()
        *lines, self._partial = (self._partial + new).split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace").strip())

    def _take(self, line: str) -> None:
        if line.startswith("@T "):
            with contextlib.suppress(ValueError):
                self._watch.progress(float(line[3:]))
        elif line.startswith("AIRLAB-"):
            self._seen.setdefault(line.split(maxsplit=1)[0], time.monotonic())

    def marks(self, start: float) -> _Marks:
        """The stages' instants; a stage that never came is taken at the end."""
        now = time.monotonic()
        at = self._seen.get
        return _Marks(
            start=start,
            booted=at("AIRLAB-BOOTED", now),
            ready=at("AIRLAB-READY", now),
            main=at("AIRLAB-START", now),
            end=at("AIRLAB-END", now),
            done=now,
        )


def _tail(log: str) -> str:
    return "\n".join(log.replace("\r", "").splitlines()[-_CONSOLE_TAIL:])


def _refuse_trouble(log: str) -> None:
    """A kernel that complained makes no result, whatever else it delivered."""
    found = _TROUBLE.search(log)
    if not found:
        return
    kind = "warning" if found.group().startswith("WARNING") else "panic"
    line = log[log.rfind("\n", 0, found.start()) + 1 :].splitlines()[0].strip()
    # A WARN() says its piece between this mark and the line that we found.
    cut = log.rfind("[ cut here ]", 0, found.start())
    start = log.rfind("\n", 0, cut if cut >= 0 else found.start()) + 1
    shown = "\n".join(log[start:].replace("\r", "").splitlines()[:_CONSOLE_TAIL])
    raise EngineError(kind, f"the guest's kernel complained: {line}", shown)


def _unship(memory: BinaryIO, out: Path, log: str) -> None:
    """Unpack the tar that the guest left in its reserved memory."""
    memory.seek(SHIP_BASE)
    magic, length, _flags, crc = _SHIP_HEADER.unpack(memory.read(_SHIP_HEADER.size))
    if magic != b"AIRSHIP1" or length > SHIP_BYTES:
        raise EngineError("lost", "the guest powered off without leaving its results", _tail(log))
    memory.seek(SHIP_BASE + _SHIP_HEADER_BYTES)
    payload = memory.read(length)
    if zlib.crc32(payload) != crc:
        raise EngineError("lost", "the guest's results are damaged (checksum)", _tail(log))
    _unpack(payload, out)


def _unpack(payload: bytes, out: Path) -> None:
    """Unpack plain files only: what a guest sends must stay below ``out``.

    (``extractall(filter=...)`` would do, but bookworm's Python does not have it.)
    """
    top = out.resolve()
    with tarfile.open(fileobj=io.BytesIO(payload)) as tar:
        for member in tar:
            target = (top / member.name).resolve()
            source = tar.extractfile(member) if member.isfile() else None
            if source is None or not target.is_relative_to(top):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read())


def _refuse_failed_step(out: Path, log: str) -> None:
    status = (out / "rc").read_text().strip() if (out / "rc").is_file() else "missing"
    if status == "0":
        return
    failed = re.findall(r"^AIRLAB-FAIL (.*)$", log.replace("\r", ""), re.MULTILINE)
    why = failed[0] if failed else f"status {status}"
    said = "".join(f"; {line}" for line in _last_words(out / "proc"))
    raise EngineError("step", f"a step in the guest failed: {why}{said}", _tail(log))


def _last_words(folder: Path) -> list[str]:
    """The last error line of each program of the schedule that failed."""
    made = []
    for status in sorted(folder.glob("*.rc")):
        errors = status.with_suffix(".err")
        lines = errors.read_text(errors="replace").split("\n") if errors.is_file() else []
        said = [line for line in lines if line.strip()]
        if status.read_text().strip() not in ("0", "term", "kill") and said:
            made.append(f"{status.stem}: {said[-1]}")
    return made


def _virtual_seconds(log: str) -> float:
    """Guest uptime at its last word."""
    found = re.findall(r"^AIRLAB-DONE rc=\d+ uptime=([\d.]+)", log.replace("\r", ""), re.MULTILINE)
    if found:
        return float(found[-1])
    stamps = re.findall(r"^\[ *(\d+\.\d+)\]", log, re.MULTILINE)
    return float(stamps[-1]) if stamps else 0.0
