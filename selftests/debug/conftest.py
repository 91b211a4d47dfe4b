"""Fixtures of the tests that name a debug kernel (``make check-debug``; docs/debug-kernels.md).

pytest does not come here by itself (``norecursedirs``): these tests take long.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "guest"), str(HERE.parents[1] / "testbed")]

from debuglab import Labs  # noqa: E402
from guestprograms import ALGORITHMS, Algorithm  # noqa: E402


def _worker() -> str:
    return os.environ.get("PYTEST_XDIST_WORKER", "")


@pytest.fixture(scope="session")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Labs:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if _worker() else base
    return Labs(shared, int(_worker().removeprefix("gw") or 0))


@pytest.fixture(scope="module", params=ALGORITHMS, ids=lambda alg: alg.cc)
def alg(request: pytest.FixtureRequest) -> Algorithm:
    found: Algorithm = request.param
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which data races were found in the kernel's own code, beside the tests' results."""
    reports = terminalreporter.getreports("passed")
    found = [text for r in reports for name, text in r.user_properties if name == "race"]
    if found:
        terminalreporter.section("data races in the kernel's own code")
        for text in found:
            terminalreporter.write_line(str(text))
