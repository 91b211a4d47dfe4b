"""Engines: the places a plan can run in.  Scenarios, runner and plots know only this seam."""

from airlab.engines.base import Availability, Engine, EngineError, RawRun, Watch
from airlab.engines.vm import VmEngine

__all__ = ["Availability", "Engine", "EngineError", "RawRun", "VmEngine", "Watch"]
