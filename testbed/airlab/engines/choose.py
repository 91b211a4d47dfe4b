"""Which engine runs: the person's choice, or the rules of ``auto``.

``vm`` is the default everywhere: it needs neither root nor KVM and is the only engine whose results
repeat to the bit.  ``auto`` leaves it for one reason only: a scenario that says ``allow_fast`` has
rates at which the emulated processor, which carries about 0.7 Gbit/s, may shape the traffic itself.
Then ``kvm`` is taken, if a guest really ran in it here.  ``host`` acts on the machine, as root:
nobody gets it without having asked for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

from airlab import kernels
from airlab.engines.base import Engine
from airlab.engines.host import HostEngine
from airlab.engines.kvm import KvmEngine
from airlab.engines.vm import VmEngine
from airlab.image import ensure_image
from airlab.model import AirlabError, CellPlan

Choice = Literal["vm", "kvm", "host", "auto"]


def choose(
    choice: Choice,
    *,
    plans: Sequence[CellPlan],
    kernel: str | None,
    fast: bool,
    extra: bool = False,
) -> Engine:
    """The engine to run on, ready to use.

    Args:
        choice: what the person asked for.
        plans: what is to be run.
        kernel: lab kernel, for the engines that boot one.
        fast: the scenario says ``allow_fast``.
        extra: with the bigger user space, for shells.

    Raises:
        AirlabError: the engine that was asked for does not work here; says why.
    """
    if choice == "host":
        if kernel is not None:
            raise AirlabError(f"--kernel {kernel}: engine host runs on this machine's own kernel")
        return _ready(HostEngine(plans, extra=extra))
    image = ensure_image(kernels.find(kernel), extra=extra)
    if choice == "auto":
        return _auto(VmEngine(image), KvmEngine(image) if fast else None)
    return _ready(VmEngine(image) if choice == "vm" else KvmEngine(image))


def _ready(engine: Engine) -> Engine:
    there = engine.availability()
    if not there.ok:
        hint = "" if engine.name == "vm" else "\n--engine vm needs none of this"
        raise AirlabError(f"--engine {engine.name} does not work here: {there.reason}{hint}")
    return engine


def _auto(vm: VmEngine, kvm: KvmEngine | None) -> Engine:
    if kvm is None:
        reason = "it repeats to the bit, and the scenario is not too fast for it"
        print(f"airlab: engine vm: {reason}", file=sys.stderr)
        return vm
    there = kvm.availability()
    if there.ok:
        print(f"airlab: engine kvm: the scenario says allow_fast; {there.reason}", file=sys.stderr)
        return kvm
    print(f"airlab: engine vm: kvm does not work here: {there.reason}", file=sys.stderr)
    return vm
