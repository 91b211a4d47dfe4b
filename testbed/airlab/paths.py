"""Where things are: the checkout, and the cache that ``make setup`` fills."""

from __future__ import annotations

import os
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
TESTBED = REPO / "testbed"
SCENARIOS = TESTBED / "scenarios"
FIGURES = TESTBED / "figures"
GUEST_SOURCE = TESTBED / "guest"
MODULES_SOURCE = REPO / "modules"
METER_SOURCE = REPO / "selftests" / "modules" / "ccmeter"


def cache() -> Path:
    """The folder for everything fetched or built (``AIRTCP_CACHE``, else ``.airtcp``)."""
    return Path(os.environ.get("AIRTCP_CACHE", REPO / ".airtcp"))


def roots() -> Path:
    """Debian roots in which modules and guest tools are built."""
    return cache() / "roots"


def kernels() -> Path:
    """Unpacked lab kernels, a folder a release."""
    return cache() / "kernels"


def images() -> Path:
    """Initial RAM file systems, a file a kernel release."""
    return cache() / "images"
