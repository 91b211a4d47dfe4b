"""A kernel that the modules are not made for is refused with words, before anything is built."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from airlab import paths

RANGE = dict(
    line.split()
    for line in (paths.MODULES_SOURCE / "KERNELS").read_text().splitlines()
    if not line.startswith("#")
)


def _check(kdir: Path, **env: str) -> subprocess.CompletedProcess[str]:
    script = paths.MODULES_SOURCE / "scripts" / "check-kernel.sh"
    command = ["sh", str(script), str(kdir)]
    clean = {k: v for k, v in os.environ.items() if k != "AIRTCP_ANY_KERNEL"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=clean | env)


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    """A build directory without a kernel release yet."""
    (tmp_path / "Makefile").touch()
    (tmp_path / "include" / "config").mkdir(parents=True)
    return tmp_path


def _release(headers: Path, release: str) -> Path:
    (headers / "include" / "config" / "kernel.release").write_text(release + "\n")
    return headers


@pytest.mark.parametrize(
    "release", ["5.15.0-30-amd64", "6.0.19", "6.0", "8.0.0-rc1", "8.1.2+deb14-amd64", "10.1.0"]
)
def test_kernels_below_and_above_are_refused(headers: Path, release: str) -> None:
    done = _check(_release(headers, release))
    assert done.returncode == 1
    assert f"kernel {release} is outside the range" in done.stderr
    assert f"from {RANGE['min']} to {RANGE['max']}" in done.stderr
    assert "AIRTCP_ANY_KERNEL=1" in done.stderr


@pytest.mark.parametrize(
    "release", ["6.1.0-56-cloud-amd64", "6.1", "6.12.117+deb13-amd64", "7.0.0-rc2", "7.19.3"]
)
def test_kernels_between_are_taken(headers: Path, release: str) -> None:
    done = _check(_release(headers, release))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_person_can_insist(headers: Path) -> None:
    done = _check(_release(headers, "8.0.0"), AIRTCP_ANY_KERNEL="1")
    assert (done.returncode, done.stderr) == (0, "")


def test_missing_headers_are_named(tmp_path: Path) -> None:
    done = _check(tmp_path / "nowhere")
    assert done.returncode == 1
    assert "linux-headers-RELEASE" in done.stderr and str(tmp_path / "nowhere") in done.stderr


def test_a_tree_that_is_not_configured_is_named(headers: Path) -> None:
    done = _check(headers)
    assert done.returncode == 1
    assert "modules_prepare" in done.stderr


def test_make_stops_there(headers: Path) -> None:
    command = ["make", "-C", str(paths.MODULES_SOURCE), f"KDIR={_release(headers, '8.0.0')}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "kernel 8.0.0 is outside the range" in done.stderr
    assert "CC [M]" not in done.stdout
