"""Machines other than the default one."""

from __future__ import annotations

import dataclasses

import pytest
from airlab.engines import REAL_TIME, VIRTUAL_TIME, QemuEngine
from airlab.image import Image
from guestlab import Lab

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


def test_too_little_memory_for_the_results_is_refused() -> None:
    with pytest.raises(ValueError, match="ram_mb=512"):
        dataclasses.replace(VIRTUAL_TIME, ram_mb=512)
