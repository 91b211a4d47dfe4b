"""The KVM engine: the same image, init and plan as the virtual-time engine, in real time.

``/dev/kvm`` being there says nothing: hosts exist whose KVM aborts QEMU or lets the guest hang in
early boot.  So the engine is available only after a small guest has booted in it, has slept
seconds that were seconds out here, too, and has handed over its results, all before a deadline.
The answer is kept for as long as nothing it depends on changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from airlab import paths
from airlab.engines.base import Availability, EngineError, Watch
from airlab.engines.qemu import QEMU, REAL_TIME, QemuEngine, qemu_version
from airlab.image import Image

DEVICE = Path("/dev/kvm")
DEADLINE_S = 10.0
"""Wall seconds for the probe; with a KVM that works it takes about five, most of it asleep."""

SLEEP_S, SLEEPS = 0.8, 5
CLOCK_RATIO = 1.5
"""How far a sleep in the guest may be from the same sleep out here; of five the median counts, so
that a busy host that looks at the console too late now and then is not taken for a bad clock."""
UPTIME_GRAIN_S = 0.01
"""The guest says its time in hundredths of a second, cut off: two of them differ by up to one less
than the time between, and their difference is no exact number in a computer."""

KVM_PROFILE = dataclasses.replace(
    REAL_TIME,
    name="kvm",
    accel="kvm",
    cpu="host",
    # One, as in virtual time: equal plans see equal machines, and one ring buffer has it all.
    smp=1,
    hang_wall_s=60.0,
)

FORGET_S = 3600.0
"""A refusal is tried again after an hour: the host may only have been too busy to answer."""

_PROBE = f"""\
mark() {{
	read -r up _ </proc/uptime
	echo "PROBE $up" >/dev/console
}}
mark
for _ in $(seq {SLEEPS}); do
	sleep {SLEEP_S}
	mark
done
""".encode()


@dataclass(frozen=True)
class Verdict:
    """The probe's answer; ``wall_s`` is how long it took."""

    ok: bool
    reason: str
    wall_s: float


class KvmEngine(QemuEngine):
    """Runs plans in a guest under KVM."""

    def __init__(self, image: Image, deadline_s: float = DEADLINE_S) -> None:
        super().__init__(image, KVM_PROFILE)
        self._deadline_s = deadline_s

    def availability(self) -> Availability:
        """Whether a guest boots in KVM here; found out once, then remembered."""
        there = super().availability()
        if not there.ok:
            return there
        if not os.access(DEVICE, os.R_OK | os.W_OK):
            what = "may not be opened by this user" if DEVICE.exists() else "is not there"
            return Availability(False, f"{DEVICE} {what}")
        found = self.verdict()
        return Availability(found.ok, found.reason)

    def verdict(self) -> Verdict:
        """The remembered answer of the probe, or a new one."""
        record = paths.cache() / "kvm-probe.json"
        key = self._key()
        with _alone(record.with_suffix(".lock")):
            with contextlib.suppress(OSError, ValueError):
                known = json.loads(record.read_text())
                fresh = known["ok"] or 0 <= time.time() - record.stat().st_mtime < FORGET_S
                if known["key"] == key and fresh:
                    return Verdict(known["ok"], known["reason"], known["wall_s"])
            found = self.probe()
            record.write_text(json.dumps({"key": key, **dataclasses.asdict(found)}, indent=1))
            return found

    def probe(self) -> Verdict:
        """Boot a guest, now."""
        start = time.monotonic()
        clock = ProbeClock()
        watch = Watch(said=clock.take, silence_s=self._deadline_s, limit_s=self._deadline_s)
        with tempfile.TemporaryDirectory(prefix="airlab-kvm-") as scratch:
            try:
                self.boot(
                    scratch=Path(scratch),
                    files={"test.sh": _PROBE},
                    kernel_args=("airlab.mode=test",),
                    watch=watch,
                    slot=0,
                )
            except EngineError as error:
                why = " ".join(str(error).split())
                return Verdict(False, f"no guest ran in it: {why}", time.monotonic() - start)
        wall_s = time.monotonic() - start
        return Verdict(*clock.judge(), wall_s)

    def _key(self) -> str:
        """What the answer depends on: this boot of the host, its kernel, QEMU, the image."""
        program = Path(shutil.which(QEMU) or QEMU).resolve()
        stat = program.stat()
        parts = (
            Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            os.uname().release,
            qemu_version(),
            str((program, stat.st_size, stat.st_mtime_ns)),
            self.image.digest,
            str(self._deadline_s),
        )
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass
class ProbeClock:
    """Compares the guest's seconds with ours."""

    guest: list[float] = field(default_factory=list)
    here: list[float] = field(default_factory=list)

    def take(self, line: str) -> None:
        """Note the instants of the probe's marks."""
        if line.startswith("PROBE "):
            self.guest.append(float(line.split()[1]))
            self.here.append(time.monotonic())

    def judge(self) -> tuple[bool, str]:
        """Whether the clock runs right, and the reason."""
        if len(self.guest) != SLEEPS + 1:
            return False, f"the guest gave {len(self.guest)} of {SLEEPS + 1} signs of life"
        inside = [b - a for a, b in itertools.pairwise(self.guest)]
        outside = [b - a for a, b in itertools.pairwise(self.here)]
        ratio = statistics.median(o / i for i, o in zip(inside, outside, strict=True))
        text = f"its seconds took {ratio:.2f} s"
        if min(inside) < SLEEP_S - 1.5 * UPTIME_GRAIN_S:
            return False, f"its clock is wrong: a sleep of {SLEEP_S} s took {min(inside):.3f} s"
        if not 1 / CLOCK_RATIO <= ratio <= CLOCK_RATIO:
            return False, f"its clock is wrong: {text}"
        return True, f"a guest booted in it; {text}"


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
