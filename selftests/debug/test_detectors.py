"""The detectors work: each planted bug is found, by the kernel that is there for it, by name.

Without this a silent run of the other tests would prove nothing.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest
from airlab.engines import EngineError
from airlab.engines.complaints import races
from airlab.host import run_root
from airlab.kernels import LabKernel
from airlab.labroot import copy_tree_into, ensure_root
from debuglab import Labs
from guestlab import Lab

pytestmark = pytest.mark.guest

SOURCE = Path(__file__).resolve().parents[1] / "modules" / "planted"
SCRIPT = "insmod /lab/planted.ko bug={bug} 2>&1 || exit 1\nfact loaded yes\n"

CAUGHT = [
    ("debug-kasan", "leak", r"unreferenced object 0x", "planted_leak"),
    ("debug-kasan", "use_after_free", r"KASAN: slab-use-after-free in planted_use_after_free", ""),
    ("debug-kasan", "out_of_bounds", r"KASAN: slab-out-of-bounds in planted_out_of_bounds", ""),
    ("debug-kasan", "lock_inversion", r"possible circular locking dependency", "second_lock"),
    ("debug-kasan", "sleep_in_atomic", r"sleeping function called from invalid context",
     "planted_sleep_in_atomic"),
    ("debug-kasan", "rcu", r"suspicious RCU usage", "planted_rcu"),
    ("debug-kasan", "shift", r"UBSAN: shift-out-of-bounds in \S*planted\.c", ""),
    ("debug-kasan", "bounds", r"UBSAN: array-index-out-of-bounds in \S*planted\.c", ""),
    ("debug-kasan", "timer", r"ODEBUG: free active .*timer_list", "planted_timer"),
    ("debug-kcsan", "race", r"KCSAN: data-race in planted_racer", ""),
]  # fmt: skip


@cache
def _planted(kernel: LabKernel) -> bytes:
    root = ensure_root(kernel.suite)
    folder = copy_tree_into(root, SOURCE, f"planted-{kernel.debug}-{os.getpid()}")
    build = f"/lib/modules/{kernel.release}/build"
    try:
        words = ["make", "-C", build, f"M=/build/{folder.name}", "W=1", "modules"]
        root.chroot(words, what="building planted")
        root.chroot(
            ["strip", "--strip-debug", f"/build/{folder.name}/planted.ko"], what="stripping"
        )
        return (folder / "planted.ko").read_bytes()
    finally:
        run_root(["rm", "-rf", folder], what="clearing planted")


def _boot(lab: Lab, bug: str) -> None:
    lab.script(SCRIPT.format(bug=bug), {"planted.ko": _planted(lab.engine.image.kernel)})


@pytest.mark.parametrize(
    ("kernel", "bug", "report", "where"), CAUGHT, ids=[f"{k}-{b}" for k, b, _, _ in CAUGHT]
)
def test_a_planted_bug_is_caught(
    labs: Labs, kernel: str, bug: str, report: str, where: str
) -> None:
    with pytest.raises(EngineError) as caught:
        _boot(labs.on(kernel), bug)
    said = f"{caught.value}\n{caught.value.console}"
    assert caught.value.kind in ("panic", "warning"), said
    assert re.search(report, said), said
    assert where in said, said


@pytest.mark.parametrize("kernel", ["debug-kasan", "debug-kcsan"])
def test_a_module_without_a_bug_passes(labs: Labs, kernel: str) -> None:
    lab = labs.on(kernel)
    view = lab.script(SCRIPT.format(bug="none"), {"planted.ko": _planted(lab.engine.image.kernel)})
    assert view.facts["loaded"] == "yes"
    assert not any("planted" in race.modules for race in races(view.console))
