"""Debug kernels by name, their machine, and their configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from airlab import paths
from airlab.debugkernels import build, unmet
from airlab.engines.qemu import VIRTUAL_TIME, fit
from airlab.kernels import DEBUG_NAMES, LabKernel
from airlab.model import AirlabError

STOCK = LabKernel("6.12.117+deb13-cloud-amd64", "trixie", Path("/nowhere"))
KASAN = LabKernel("6.12.117-debug-kasan", "trixie-debug", Path("/nowhere"))


def test_a_debug_kernel_is_meant_by_its_name_only() -> None:
    assert KASAN.means("debug-kasan") and KASAN.means("6.12.117-debug-kasan")
    assert not KASAN.means("6.12") and not KASAN.means("debug-kcsan")
    assert STOCK.means("6.12") and not STOCK.means("debug-kasan")


def test_a_debug_kernel_gets_memory_and_patience() -> None:
    assert fit(VIRTUAL_TIME, STOCK) is VIRTUAL_TIME
    fitted = fit(VIRTUAL_TIME, KASAN)
    assert fitted.ram_mb >= 2 * VIRTUAL_TIME.ram_mb
    assert fitted.hang_wall_s > VIRTUAL_TIME.hang_wall_s
    assert fitted.machine_flags != VIRTUAL_TIME.machine_flags


def test_lines_that_do_not_hold_are_named() -> None:
    fragment = "# a comment\nCONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=m\n# CONFIG_D is not set\n"
    assert unmet(fragment, "CONFIG_A=y\nCONFIG_C=m\n# CONFIG_D is not set\n") == []
    assert unmet(fragment, "CONFIG_B=y\nCONFIG_C=y\n") == [
        "CONFIG_A=y",
        "# CONFIG_B is not set",
        "CONFIG_C=m",
    ]


def test_an_unknown_debug_kernel_is_refused_with_the_known_ones() -> None:
    with pytest.raises(AirlabError, match="debug-kasan, debug-kcsan"):
        build("debug-everything")


@pytest.mark.parametrize("name", DEBUG_NAMES)
def test_the_configuration_names_the_kernel(name: str) -> None:
    text = (paths.TESTBED / "kernels" / f"{name}.config").read_text()
    assert f'CONFIG_LOCALVERSION="-{name}"\n' in text
