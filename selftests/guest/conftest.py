"""Fixtures of the guest tests: one image and one engine a session.

Parallel runs (``-n 2`` of pytest-xdist) put each worker's guests on a processor of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "testbed")]

from airlab.image import Image, ensure_image  # noqa: E402
from airlab.kernels import LabKernel  # noqa: E402
from guestlab import Lab, engine_for  # noqa: E402


def _worker() -> str:
    return os.environ.get("PYTEST_XDIST_WORKER", "")


@pytest.fixture(scope="session")
def image(kernel: LabKernel) -> Image:
    return ensure_image(kernel)


@pytest.fixture(scope="session")
def lab(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if _worker() else base
    return Lab(engine_for(image), shared, int(_worker().removeprefix("gw") or 0))


@pytest.fixture
def exact(kernel: LabKernel) -> None:
    """For claims about the link or about times: a kernel with detectors is too slow for them."""
    if kernel.debug:
        pytest.skip(f"times and rates are not judged on {kernel.debug}")
