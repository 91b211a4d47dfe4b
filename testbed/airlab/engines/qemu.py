"""What the engines that boot a guest share: QEMU from its command line to its results.

A :class:`Profile` says which machine: accelerator, clock, processors, memory.  The rest is the same
for all: a stock kernel with its root in RAM, no device that is used while the measurement
runs, a console that is read for the guest's stages, and results that leave through a stretch of
guest memory which the kernel does not manage and which is read here from the
memory's backing file after power-off.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import struct
import subprocess
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from airlab import cpio, paths
from airlab.engines import complaints
from airlab.engines.base import Availability, EngineError, RawRun, Watch
from airlab.engines.console import (
    ConsoleReader,
    Marks,
    refuse_failed_step,
    tail,
    virtual_seconds,
)
from airlab.image import Image
from airlab.kernels import LabKernel
from airlab.model import AirlabError, CellPlan

QEMU = "qemu-system-x86_64"

SHIP_BASE = 512 << 20
# On q35 guest-physical addresses below 2 GB are offsets in the memory's backing file, whatever
# its size, so a range up to there serves every memory that reaches beyond it with room for the
# initrd.
_INITRD_MB = 128
_MOST_SHIP_MB = 2048 - (SHIP_BASE >> 20) - _INITRD_MB
# Of the memory of a usual guest, what its traces and capture may fill; and what else it ships.
_USUAL_TRACES_MB = 390
_OTHER_RESULTS_MB = 64
_SHIP_HEADER = struct.Struct("<8sQQI")
_SHIP_HEADER_BYTES = 64


@dataclass(frozen=True)
class Profile:
    """A machine for a guest; ``dataclasses.replace`` makes variants.

    Attributes:
        name: the engine's name in manifests.
        accel: QEMU's ``-accel``.
        clock: QEMU's flags for clocks.
        cpu: the processor model.
        kernel_args: the kernel's command line, without what a plan or the way out adds.
        smp: virtual processors.
        ram_mb: memory in MB; 1024 at least.
        ship_mb: the part of it through which results leave.
        hang_wall_s: wall seconds without a word from the guest after which it counts as hung,
            not counting those in which the host did not let it run.
        exact: equal runs give equal bits: counted instructions, lockstep, one host processor.
        gips: 10^9 instructions a second of an exact guest; more than 1 needs lockstep.
    """

    name: str
    accel: str
    clock: tuple[str, ...]
    cpu: str
    kernel_args: tuple[str, ...]
    smp: int = 1
    ram_mb: int = 1024
    ship_mb: int = 384
    hang_wall_s: float = 240.0
    exact: bool = False
    gips: int = 1

    def __post_init__(self) -> None:
        """Refuse a memory that has no room for the results (ValueError)."""
        least = (SHIP_BASE >> 20) + self.ship_mb + _INITRD_MB
        if self.ram_mb < least:
            raise ValueError(f"ram_mb={self.ram_mb}: results need at least {least} MB")

    def holding(self, results_mb: int) -> Profile:
        """The machine with memory for that many MB of traces and capture, or for the most.

        What may be recorded is seldom recorded: a run that turns out to have more than can leave
        the guest fails with both numbers.
        """
        held_mb = min(results_mb, _MOST_SHIP_MB - _OTHER_RESULTS_MB)
        ship_mb = max(self.ship_mb, held_mb + _OTHER_RESULTS_MB)
        # Twice: the ring that was traced into is still there when its copy is made.
        more = max(0, 2 * held_mb - _USUAL_TRACES_MB)
        return replace(self, ship_mb=ship_mb, ram_mb=self.ram_mb + ship_mb - self.ship_mb + more)

    @property
    def machine_flags(self) -> list[str]:
        """QEMU's flags that shape the machine, as manifests name them."""
        return [
            *("-accel", self.accel),
            *self.clock,
            # Without the built-in devices that no guest here has a driver for.
            *("-M", "q35,memory-backend=ram,sata=off,smbus=off,usb=off"),
            *("-cpu", self.cpu),
            *("-smp", str(self.smp)),
            *("-m", f"{self.ram_mb}M"),
            *("-nodefaults", "-display", "none", "-no-reboot"),
            # The lockstep library knows the processor's thread by its name.
            *("-name", "airlab,debug-threads=on"),
        ]

    @property
    def boot_args(self) -> list[str]:
        """The kernel's command line that all guests of this profile share."""
        clock = (
            # Delays of the boot count the clock's cycles: lpj is a tick's, at HZ=250.
            [f"tsc_early_khz={self.gips * 10**6}", f"lpj={self.gips * 4 * 10**6}"]
            if self.gips > 1
            else []
        )
        ship = (
            f"memmap={self.ship_mb}M${SHIP_BASE:#x}",
            f"airlab.ship={SHIP_BASE:#x},{self.ship_mb << 20}",
        )
        return [*self.kernel_args, *clock, *ship]


_QUIET_ARGS = (
    "cryptomgr.notests",
    # Self-tests and certificate parsing of subsystems that no guest here uses.
    "initcall_blacklist=jent_mod_init,load_system_certificate_list",
    "audit=0",
    "apparmor=0",
)
_STRICT_ARGS = (
    "mitigations=off",
    "panic=-1",
    "panic_on_warn=1",
    "oops=panic",
    # Warnings must reach the console: they are what panic_on_warn is explained by.
    "loglevel=5",
)

VIRTUAL_TIME = Profile(
    name="vm",
    accel="tcg,thread=single",
    clock=("-icount", "shift=0,sleep=off", "-rtc", "base=2026-01-01,clock=vm"),
    # A plain model: no RDRAND or RDSEED, through which host randomness would leak in.
    cpu="qemu64",
    kernel_args=(
        "console=ttyS0",
        "nokaslr",
        "random.trust_cpu=off",
        *_STRICT_ARGS,
        # The local APIC's timer is calibrated against the clock in a busy loop that
        # costs 2.6 s of wall time under emulation; the HPET needs none.
        "noapictimer",
        "tsc=reliable",
        "no_timer_check",
        "lpj=4000000",
        *_QUIET_ARGS,
    ),
    exact=True,
)
"""Counted instructions: a run takes the same course whatever the host is doing."""

REAL_TIME = Profile(
    name="tcg",
    accel="tcg,thread=multi",
    clock=("-rtc", "base=utc,clock=host"),
    cpu="qemu64",
    # Several emulated processors that wait for one another need more patience than one.
    kernel_args=("console=ttyS0", *_STRICT_ARGS, "no_timer_check", *_QUIET_ARGS),
    smp=2,
    hang_wall_s=600.0,
)
"""QEMU's emulator in real time, several processors truly at once: for tests of races."""


_DEBUG_RAM_MB = 3072
_DEBUG_SLOWER = 4
_DEBUG_ARGS = {
    # An emulated processor with all detectors on may hold another one up for long.
    "debug-kasan": ("watchdog_thresh=60",),
    # A race in the kernel's own code is reported and does not end the run (complaints.py).
    "debug-kcsan": ("watchdog_thresh=60", "panic_on_warn=0"),
}


def fit(profile: Profile, kernel: LabKernel) -> Profile:
    """The profile with what a debug kernel needs: memory for shadows, patience, arguments."""
    if kernel.debug is None:
        return profile
    return replace(
        profile,
        ram_mb=max(profile.ram_mb, _DEBUG_RAM_MB),
        hang_wall_s=profile.hang_wall_s * _DEBUG_SLOWER,
        kernel_args=(*profile.kernel_args, *_DEBUG_ARGS[kernel.debug]),
    )


class QemuEngine:
    """Boots guests of one profile; needs neither root nor KVM (unless its accelerator does)."""

    def __init__(self, image: Image, profile: Profile) -> None:
        self.image = image
        self.profile = fit(profile, image.kernel)
        # Held in memory: a rebuild beside a running campaign replaces the file.
        self._base = image.initrd.read_bytes()

    @property
    def name(self) -> str:
        """The engine's name in manifests."""
        return self.profile.name

    @property
    def parallel(self) -> bool:
        """In virtual time nothing outside a guest has a say in it."""
        return self.profile.exact

    def availability(self) -> Availability:
        """QEMU is there: that is all that emulation needs."""
        if shutil.which(QEMU) is None:
            return Availability(False, f"{QEMU} is not installed; run `make setup`")
        return Availability(True, "QEMU's emulator")

    def provenance(self) -> dict[str, Any]:
        """Kernel, QEMU and every flag that shapes the guest's clock."""
        made: dict[str, Any] = {
            "engine": self.name,
            "qemu": qemu_version(),
            "qemu_flags": self.profile.machine_flags,
            "kernel": self.image.kernel.release,
            "kernel_package": self.image.kernel.info()["package"],
            "kernel_args": self.profile.boot_args,
            "image": self.image.digest,
        }
        if self.profile.exact:
            made["lockstep"] = _digest(lockstep_library())
        else:
            made["exact"] = False
        return made

    def run(self, plan: CellPlan, scratch: Path, watch: Watch, slot: int) -> RawRun:
        """Run one cell; see :class:`airlab.engines.base.Engine`."""
        return self.boot(
            scratch=scratch,
            files=plan.files,
            kernel_args=("airlab.mode=cell", *plan.kernel_args),
            watch=watch,
            slot=slot,
            gips=plan.gips,
            results_mb=plan.results_mb,
        )

    def boot(
        self,
        *,
        scratch: Path,
        files: dict[str, bytes],
        kernel_args: tuple[str, ...],
        watch: Watch,
        slot: int,
        gips: int = 1,
        results_mb: int = 0,
    ) -> RawRun:
        """Boot a guest with files below ``/lab`` and wait until it has powered off.

        Args:
            scratch: folder for the console and the results.
            files: contents by path below ``/lab``.
            kernel_args: added to the profile's.
            watch: told of progress; may cancel.
            slot: chooses the host processor.
            gips: speed of the virtual processor, :attr:`Profile.gips`; in real time the
                processor is as fast as it is.
            results_mb: traces and capture at most, :attr:`CellPlan.results_mb`.

        Raises:
            EngineError: panic, warning, hang, a failed step, or cancelled.
        """
        profile = self.profile.holding(results_mb)
        profile = replace(profile, gips=gips) if profile.exact else profile
        scratch.mkdir(parents=True, exist_ok=True)
        console = scratch / "console.log"
        console.touch()
        with _nameless(profile.ram_mb) as ram, _nameless(profile.ram_mb) as initrd:
            _fill_initrd(initrd, self._base, files)
            backing = f"size={profile.ram_mb}M,mem-path=/proc/self/fd/{ram.fileno()},share=on"
            command = [
                *_keeper(profile, slot),
                QEMU,
                *profile.machine_flags,
                *("-object", f"memory-backend-file,id=ram,{backing}"),
                *("-kernel", str(self.image.kernel.vmlinux)),
                *("-initrd", f"/proc/self/fd/{initrd.fileno()}"),
                *("-append", " ".join([*profile.boot_args, *kernel_args])),
                *("-serial", f"file:{console}"),
            ]
            fds = (ram.fileno(), initrd.fileno())
            marks = _attend(command, fds, console, watch, self.profile.hang_wall_s)
            log = console.read_text(errors="replace")
            complaints.refuse(log, {m.stem for m in self.image.kernel.modules.glob("*.ko")})
            out = scratch / "out"
            _unship(ram, profile.ship_mb << 20, out, log)
        refuse_failed_step(out, log)
        return RawRun(
            out=out,
            console=console,
            wall_s=marks.done - marks.start,
            boot_wall_s=marks.booted - marks.start,
            setup_wall_s=marks.ready - marks.booted,
            main_wall_s=marks.end - marks.main,
            virtual_s=virtual_seconds(log),
        )

    def interactive(self, plan: CellPlan) -> int:
        """A guest on this terminal; returns QEMU's exit status."""
        boot_args = self.profile.boot_args
        with _nameless(self.profile.ram_mb) as initrd:
            _fill_initrd(initrd, self._base, plan.files)
            command = [
                *(QEMU, "-accel", self.profile.accel, "-M", "q35", "-cpu", self.profile.cpu),
                *("-m", f"{self.profile.ram_mb}", "-nodefaults", "-no-reboot", "-nographic"),
                *("-serial", "mon:stdio", "-kernel", str(self.image.kernel.vmlinux)),
                *("-initrd", f"/proc/self/fd/{initrd.fileno()}"),
                *("-append", " ".join([*boot_args, "airlab.mode=shell", *plan.kernel_args])),
            ]
            return subprocess.run(command, check=False, pass_fds=(initrd.fileno(),)).returncode


def qemu_version() -> str:
    """The first line of ``--version``."""
    done = subprocess.run([QEMU, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def _keeper(profile: Profile, slot: int) -> list[str]:
    """Words before QEMU: it must die with us, and in virtual time stay on one processor.

    Under counted instructions QEMU's two threads take turns at every idle moment;
    on one processor that hand-over is cheap (measured: a run takes 0.7 of the time).
    """
    words = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    if not profile.exact:
        return words
    cores = sorted(os.sched_getaffinity(0))
    if shutil.which("taskset"):
        words += ["taskset", "-c", str(cores[slot % len(cores)])]
    if lockstep_library().is_file():
        words += ["env", f"LD_PRELOAD={lockstep_library()}"]
        words += [f"LOCKSTEP_GIPS={profile.gips}"] if profile.gips > 1 else []
    elif profile.gips > 1:
        raise AirlabError(f"gips = {profile.gips} needs {lockstep_library()}; run `make setup`")
    return words


def lockstep_library() -> Path:
    """Where ``make setup`` builds testbed/lockstep, which closes a race in QEMU's clock."""
    return paths.cache() / "lockstep.so"


@contextlib.contextmanager
def _nameless(room_mb: int) -> Iterator[BinaryIO]:
    """A file without a name, in RAM where there is room: it is gone when nobody has it open.

    QEMU gets the descriptor and opens it through /proc, so not even a killed airlab leaves
    anything behind.
    """
    shared = Path("/dev/shm")
    room = shared.is_dir() and shutil.disk_usage(shared).free > 2 * (room_mb << 20)
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


def _attend(
    command: list[str], fds: tuple[int, ...], console: Path, watch: Watch, hang_wall_s: float
) -> Marks:
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
    reader = ConsoleReader(console, watch)
    last_word, starved_s = start, 0.0
    try:
        while process.poll() is None:
            if watch.cancel.wait(0.05):
                raise EngineError("cancelled", "the run was cancelled")
            reader.poll()
            now = time.monotonic()
            if reader.last_word != last_word:
                last_word, starved_s = reader.last_word, _starved_s(process.pid)
            silence_s = watch.silence_s or hang_wall_s
            # What the host did not let it run is not the guest's silence.  A process that is
            # just ending has no threads any more, hence was never starved.
            waited_s = max(_starved_s(process.pid) - starved_s, 0.0)
            if now - last_word > silence_s + waited_s:
                why = f"the guest said nothing for {silence_s:.0f} s of wall time"
                raise EngineError("hang", why, tail(console.read_text(errors="replace")))
            if watch.limit_s is not None and now - start > watch.limit_s:
                why = f"the guest was not done after {watch.limit_s:.0f} s of wall time"
                raise EngineError("hang", why, tail(console.read_text(errors="replace")))
    finally:
        if process.poll() is None:
            process.kill()
        said, _ = process.communicate()
    if process.returncode != 0:
        text = said.decode(errors="replace").strip()
        raise EngineError("lost", f"QEMU ended with status {process.returncode}: {text}")
    reader.poll()
    return reader.marks(start)


def _starved_s(pid: int) -> float:
    """Seconds that a process's most delayed thread was ready and waited for a processor."""
    waited_ns = [0]
    # Threads end meanwhile, and not every kernel keeps these statistics.
    with contextlib.suppress(OSError, IndexError, ValueError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            waited_ns.append(int((task / "schedstat").read_text().split()[1]))
    return max(waited_ns) / 1e9


def _unship(memory: BinaryIO, most: int, out: Path, log: str) -> None:
    """Unpack the tar that the guest left in its reserved memory."""
    memory.seek(SHIP_BASE)
    magic, length, _flags, crc = _SHIP_HEADER.unpack(memory.read(_SHIP_HEADER.size))
    if magic != b"AIRSHIP1" or length > most:
        raise EngineError("lost", "the guest powered off without leaving its results", tail(log))
    memory.seek(SHIP_BASE + _SHIP_HEADER_BYTES)
    payload = memory.read(length)
    if zlib.crc32(payload) != crc:
        raise EngineError("lost", "the guest's results are damaged (checksum)", tail(log))
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
