"""Machines other than the default one."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest
from airlab.engines import REAL_TIME, VIRTUAL_TIME, QemuEngine
from airlab.engines.base import Watch
from airlab.engines.qemu import SHIP_BASE, lockstep_library
from airlab.image import Image
from guestlab import SCRIPT_HEAD, Lab, View, path

pytestmark = pytest.mark.guest

MACHINE = """
fact processors $(grep -c ^processor /proc/cpuinfo)
while read -r key value _; do
	[ "$key" = MemTotal: ] && fact memory_kb "$value"
done </proc/meminfo
read -r before _ </proc/uptime
sleep 1
read -r after _ </proc/uptime
fact slept $before $after
head -c 50000000 /dev/zero >/out/big
"""


@pytest.mark.long  # QEMU's emulator of several processors now and then trips over patched code.
def test_a_real_time_guest_has_the_processors_and_memory_asked_for(lab: Lab, image: Image) -> None:
    profile = dataclasses.replace(REAL_TIME, smp=3, ram_mb=3072)
    shared = lab.scratch("real-time")
    shared.mkdir()
    view = Lab(QemuEngine(image, profile), shared, lab.slot).script(MACHINE)
    assert view.facts["processors"] == "3"
    # Two thirds at least: the way out takes 384 MB, the kernel some.
    assert int(view.facts["memory_kb"]) > 2000 * 1024
    before, after = map(float, view.facts["slept"].split())
    assert 1.0 <= after - before < 60.0
    assert (view.out / "big").stat().st_size == 50_000_000, "results did not come out whole"


def _late_ns(view: View) -> float:
    """What the processor adds to an unloaded round trip."""
    (probe,) = view.plan.probes
    rtts = view.report("before.p1.ping")["rtts_ns"]
    return float(min(rtts)) - probe.rtt_us * 1000


def test_gips_make_the_processor_faster_and_leave_the_clock_right(lab: Lab) -> None:
    """The path's delays stay what they are; what instructions add to them shrinks."""
    if not lab.engine.profile.exact:
        pytest.skip("the kernel that looks for races runs in real time")
    usual, fast = (lab.cell(path("gips", "2s", head=head)) for head in ("", "gips = 8"))
    dmesg = (fast.raw / "dmesg").read_text(errors="replace")
    assert "tsc: Detected 8000.000 MHz processor" in dmesg
    assert "64-bit 800.000000 MHz counter" in dmesg, "timers and the clock disagree"
    assert fast.failed_checks() == []
    assert 0 < _late_ns(fast) < _late_ns(usual) / 4


@pytest.mark.parametrize(
    ("asked", "says"),
    [("3", "a divisor of 10^7 up to 16"), ("32", "a divisor"), ("x", "a divisor"), ("2", "QEMU")],
)
def test_lockstep_refuses_a_clock_that_it_cannot_make(asked: str, says: str) -> None:
    """The last one is no QEMU, so it has no HPET."""
    env = {"LD_PRELOAD": str(lockstep_library()), "LOCKSTEP_GIPS": asked}
    done = subprocess.run(["/bin/true"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert says in done.stderr


def test_a_guest_has_memory_for_what_its_plan_may_trace(lab: Lab) -> None:
    """More results than the usual way out and the usual memory hold come out whole."""
    scratch = lab.scratch("many-results")
    fill = "head -c 420000000 /dev/zero >/out/big\n"
    lab.engine.boot(
        scratch=scratch,
        files={"test.sh": (SCRIPT_HEAD + fill).encode()},
        kernel_args=("airlab.mode=test", "rep=1"),
        watch=Watch(),
        slot=lab.slot,
        results_mb=500,
    )
    assert (scratch / "out" / "big").stat().st_size == 420_000_000


def test_memory_grows_only_where_it_must_and_the_way_out_stays_below_2_gb() -> None:
    assert VIRTUAL_TIME.holding(195) == VIRTUAL_TIME
    assert VIRTUAL_TIME.holding(500).ram_mb > VIRTUAL_TIME.ram_mb + 500
    huge = VIRTUAL_TIME.holding(100_000)
    assert SHIP_BASE + (huge.ship_mb << 20) < 2 << 30
    assert huge.ram_mb < 8192


def test_too_little_memory_for_the_results_is_refused() -> None:
    with pytest.raises(ValueError, match="ram_mb=512"):
        dataclasses.replace(VIRTUAL_TIME, ram_mb=512)
