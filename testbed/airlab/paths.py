"""Where things are: the checkout, and the cache that ``make setup`` fills."""

from __future__ import annotations

import os
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
TESTBED = REPO / "testbed"
SCENARIOS = TESTBED / "scenarios"
FIGURES = TESTBED / "figures"
GRIDS = TESTBED / "grids"
GUEST_SOURCE = TESTBED / "guest"
MODULES_SOURCE = REPO / "modules"
TEST_MODULES_SOURCE = REPO / "selftests" / "modules"
METER_SOURCE = TEST_MODULES_SOURCE / "ccmeter"
TSOFLOOR_SOURCE = TEST_MODULES_SOURCE / "tsofloor"


def cache() -> Path:
    """The folder for everything fetched or built (``AIRTCP_CACHE``, else ``.airtcp``)."""
    return Path(os.environ.get("AIRTCP_CACHE") or REPO / ".airtcp")


def roots() -> Path:
    """Debian roots in which modules and guest tools are built."""
    return cache() / "roots"


def kernels() -> Path:
    """Unpacked lab kernels, a folder a release."""
    return cache() / "kernels"


def images() -> Path:
    """Initial RAM file systems, a file a kernel release."""
    return cache() / "images"
