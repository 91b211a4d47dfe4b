"""Engines: the places a plan can run in.  Scenarios, runner and plots know only this seam."""

from airlab.engines.base import Availability, Engine, EngineError, RawRun, Watch
from airlab.engines.qemu import REAL_TIME, VIRTUAL_TIME, Profile, QemuEngine
from airlab.engines.vm import VmEngine

__all__ = [
    "REAL_TIME",
    "VIRTUAL_TIME",
    "Availability",
    "Engine",
    "EngineError",
    "Profile",
    "QemuEngine",
    "RawRun",
    "VmEngine",
    "Watch",
]
