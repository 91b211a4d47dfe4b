"""The virtual-time engine: a stock kernel under QEMU's emulator with counted instructions.

One instruction is one nanosecond, or the part of one that a scenario's ``gips`` says, and idle
time is skipped, so a run takes the same virtual course whatever the host is doing.  What
makes it exact (docs/lab-internals.md, section 7): one virtual processor without a random
number instruction, a clock that only the instruction count drives, a root in RAM, and no
device that is used while the measurement runs.
"""

from __future__ import annotations

from airlab.engines.base import Availability
from airlab.engines.qemu import VIRTUAL_TIME, QemuEngine
from airlab.image import Image


class VmEngine(QemuEngine):
    """Runs plans in virtual time; needs neither root nor KVM."""

    def __init__(self, image: Image) -> None:
        super().__init__(image, VIRTUAL_TIME)

    def availability(self) -> Availability:
        """QEMU is there: that is all this engine needs."""
        found = super().availability()
        return (
            Availability(True, f"{found.reason}, virtual time by instruction count")
            if found.ok
            else found
        )
