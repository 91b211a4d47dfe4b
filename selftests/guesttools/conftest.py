"""Builds the guest's programs for the host, with sanitizers, once per session."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builttools import Tools

HERE = Path(__file__).resolve().parent
GUEST = HERE.parents[1] / "testbed" / "guest"
WARNINGS = ["-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CC", "cc")
    if not shutil.which("make") or not shutil.which(compiler):
        pytest.skip("needs make and a C compiler")
    out = tmp_path_factory.mktemp("build")
    make = ["make", "-s", "-C", str(GUEST), "host", f"OUT={out}", "SAN=1", f"CC={compiler}"]
    subprocess.run(make, check=True)
    sources = [HERE / "chan_harness.c", GUEST / "pattern.c", GUEST / "util.c"]
    command = [compiler, *WARNINGS, *SANITIZE, f"-I{GUEST}", "-o", out / "chan_harness"]
    subprocess.run([*map(str, [*command, *sources]), "-lm"], check=True)
    return out


@pytest.fixture
def tools(build: Path, tmp_path: Path) -> Iterator[Tools]:
    made = Tools(build, tmp_path)
    yield made
    for proc in made.running:
        if proc.poll() is None:
            proc.kill()
        proc.communicate()


def _bindable(family: socket.AddressFamily, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


@pytest.fixture(params=[4, 6], ids=["ipv4", "ipv6"])
def family(request: pytest.FixtureRequest) -> int:
    if request.param == 6 and not _bindable(socket.AF_INET6, "::1"):
        pytest.skip("no ::1 here")
    return int(request.param)


def _bound(port: int, udp: bool) -> bool:
    """Looks without touching: a trial connection would count as one."""
    wanted = f":{port:04X}"
    kind = "udp" if udp else "tcp"
    for table in (Path(f"/proc/net/{kind}"), Path(f"/proc/net/{kind}6")):
        if not table.exists():
            continue
        for line in table.read_text().splitlines()[1:]:
            columns = line.split()
            if columns[1].endswith(wanted) and columns[3] in ("0A", "07"):
                return True
    return False


@pytest.fixture
def wait_bound() -> Callable[..., None]:
    def wait(proc: subprocess.Popen[str], port: int, udp: bool = False) -> None:
        while not _bound(port, udp):
            if proc.poll() is not None:
                raise AssertionError(f"server ended: {proc.communicate()}")

    return wait


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
