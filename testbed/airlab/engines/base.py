"""What every engine offers, and how it reports."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from airlab.model import AirlabError, CellPlan


class EngineError(AirlabError):
    """A run that gave no result: the guest panicked, hung, or a step in it failed.

    Attributes:
        kind: ``panic``, ``warning``, ``hang``, ``step``, ``lost`` or ``cancelled``.
        console: the end of the kernel log, to be shown to the person.
    """

    def __init__(self, kind: str, message: str, console: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.console = console


@dataclass(frozen=True)
class Availability:
    """Whether an engine works on this machine, and why (not)."""

    ok: bool
    reason: str


@dataclass(frozen=True)
class RawRun:
    """The raw output of a plan: the folder described in docs/lab-internals.md section 6."""

    out: Path
    console: Path
    wall_s: float
    boot_wall_s: float
    setup_wall_s: float
    main_wall_s: float
    virtual_s: float


@dataclass
class Watch:
    """How a run reports progress and is told to stop.

    ``progress`` is called with the virtual seconds of the experiment that have passed.
    ``said`` gets every line of the console.  ``silence_s`` replaces the engine's own patience
    with a guest that says nothing, and ``limit_s`` bounds the whole run; both are in wall
    seconds and may be changed meanwhile.
    """

    progress: Callable[[float], None] = field(default=lambda _seconds: None)
    said: Callable[[str], None] = field(default=lambda _line: None)
    cancel: threading.Event = field(default_factory=threading.Event)
    silence_s: float | None = None
    limit_s: float | None = None


class Engine(Protocol):
    """A place to run plans."""

    @property
    def name(self) -> str:
        """As manifests and ``--engine`` say it."""
        ...

    @property
    def parallel(self) -> bool:
        """Whether runs at the same time leave each other alone."""
        ...

    def availability(self) -> Availability:
        """Whether this engine can be used here; must not leave anything behind."""
        ...

    def provenance(self) -> dict[str, Any]:
        """What a result's manifest says about kernel, engine and flags."""
        ...

    def interactive(self, plan: CellPlan) -> int:
        """A shell on this terminal in the plan's network; returns the exit status."""
        ...

    def run(self, plan: CellPlan, scratch: Path, watch: Watch, slot: int) -> RawRun:
        """Run a plan; everything it writes is below ``scratch``.

        ``slot`` numbers the parallel runs from 0, for engines that pin processors.

        Raises:
            EngineError: there is no result.
        """
        ...
