"""The option ``--kernel``: on which lab kernel the tests run that need one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testbed"))

from airlab import kernels


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kernel",
        default=kernels.DEFAULT_TRACK,
        metavar="RELEASE|SERIES",
        help="lab kernel to test on; a series is fetched when it is not there (%(default)s)",
    )


@pytest.fixture(scope="session")
def kernel(request: pytest.FixtureRequest) -> kernels.LabKernel:
    """The lab kernel that ``--kernel`` names."""
    name: str = request.config.getoption("--kernel")
    return kernels.fetch(name) if name in kernels.TRACKS else kernels.find(name)
