"""Engine host in a guest that plays the real machine: equal before and after, however it ends.

One boot runs all endings (host_driver.py); the tests judge what it found. The laboratory, its
Python packages and its user space come on a disk of their own, read-only, under ``/lab-disk``.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airlab import image, kernels, modules, paths
from airlab.engines.hostkernel import STAMP
from airlab.host import run
from airlab.labroot import tree_digest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from host_driver import ENDINGS  # noqa: E402
from machine import Machine  # noqa: E402

pytestmark = pytest.mark.host_engine

TIMEOUT_S = 3 * 3600.0
"""All endings take some minutes on a quiet machine, and much longer on a busy one."""

PACKAGES = ("iproute2", "kmod", "mount", "python3")
PYTHON = "3.13"
"""Of the suite that the guest is made of."""

SITE = (
    *("numpy", "scipy", "pyarrow", "pydantic", "pydantic_core", "typing_extensions"),
    *("typing-inspection", "annotated-types"),
)
"""What airlab imports when it makes no page."""

SCRIPT = """\
set -e
mkdir -p /lab-disk
mount -t ext4 -o ro /dev/vdc /lab-disk
export PYTHONPATH=/lab-disk/checkout/testbed:/lab-disk/checkout/tools:/lab-disk/site
export PYTHONDONTWRITEBYTECODE=1
export AIRTCP_CACHE=/lab-disk/cache
python3 host_driver.py
python3 -m airlab doctor >out/doctor || true
"""


@pytest.fixture(scope="session")
def machine() -> Machine:
    return Machine("trixie", PACKAGES, memory_mb=3072, cpus=2)


def _site() -> Path:
    """The Python packages for the guest's Python, as pinned for ours."""
    pins = (paths.REPO / "requirements.txt").read_text().splitlines()
    wanted = [line for line in pins if line.split("==")[0] in SITE]
    assert len(wanted) == len(SITE)
    key = hashlib.sha256("\n".join([PYTHON, *wanted]).encode()).hexdigest()[:16]
    target = paths.cache() / "machines" / f"site-{key}"
    if not target.is_dir():
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        pip += ["--no-deps", "--only-binary=:all:", "--implementation", "cp"]
        pip += ["--python-version", PYTHON, "--target", str(partial)]
        run([*pip, *wanted], what=f"fetching Python {PYTHON} packages")
        partial.rename(target)
    return target


def _cache(target: Path, release: str) -> None:
    """A cache in which everything a cell on this kernel needs is there, built."""
    kernel = kernels.find(None)
    if kernel.release != release:
        pytest.skip(f"the machine runs {release}, the lab's modules are for {kernel.release}")
    user_spaces = [image.ensure_user_space(extra=extra) for extra in (False, True)]
    for name in ("images", "roots/trixie", f"host-modules/{release}"):
        (target / name).mkdir(parents=True)
    for folder in user_spaces:
        shutil.copytree(folder, target / "images" / folder.name, symlinks=True)
    shutil.copytree(paths.cache() / "guest-tools", target / "guest-tools")
    shutil.copy(paths.roots() / "trixie.json", target / "roots")
    built = target / "host-modules" / release
    shutil.copy(modules.build(kernel) / "tcp_j.ko", built)
    (built / STAMP).write_text(tree_digest(paths.MODULES_SOURCE))


@pytest.fixture(scope="session")
def disk(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ext4 image with checkout, Python packages and cache."""
    top = tmp_path_factory.mktemp("lab-disk")
    content = top / "content"
    content.mkdir()
    listed = subprocess.run(
        ["git", "-C", str(paths.REPO), "ls-files", "-z", "testbed", "modules", "tools"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        target = content / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(paths.REPO / name, target)
    shutil.copytree(_site(), content / "site")
    _cache(content / "cache", machine.release())
    shutil.copy(HERE / "host.toml", content)
    file = top / "lab.ext4"
    run(["mke2fs", "-q", "-t", "ext4", "-d", content, file, "1G"], what="packing the lab's disk")
    shutil.rmtree(content)
    return file


@pytest.fixture(scope="session")
def endings(machine: Machine, disk: Path) -> dict[str, Any]:
    """What the driver found, by ending."""
    result = machine.run(
        SCRIPT,
        {"host_driver.py": (HERE / "host_driver.py").read_bytes()},
        TIMEOUT_S,
        qemu_args=("-drive", f"file={disk},format=raw,if=virtio,read-only=on"),
    )
    print(result.stdout)
    found: dict[str, Any] = json.loads(result.check().files["endings.json"])
    found["doctor"] = result.files["doctor"].decode()
    return found


def _facts(endings: dict[str, Any], name: str) -> dict[str, Any]:
    facts: dict[str, Any] = endings[name]["facts"]
    assert "error" not in facts, facts
    return facts


@pytest.mark.parametrize("name", list(ENDINGS))
def test_the_machine_is_as_it_was(endings: dict[str, Any], name: str) -> None:
    _facts(endings, name)
    assert endings[name]["left"] == {}


def test_a_normal_cell_gives_a_result(endings: dict[str, Any]) -> None:
    facts = _facts(endings, "normal")
    assert list(facts["cells"]) == ["j_s1"], facts["said"]
    cell = facts["cells"]["j_s1"]
    (flow,) = cell["flows"]
    assert flow["cc"] == "j"
    assert flow["bytes"] > 50_000
    assert {"name": "tcp_j"}.items() <= next(
        m for m in cell["modules"] if m["name"] == "tcp_j"
    ).items()
    # Only the substrate of an emulated machine may be at fault, and that is found.
    exact = {"guest finished", "flow f1", "algorithm f1", "trace events lost"}
    assert [c["name"] for c in cell["audit"]["checks"] if not c["ok"] and c["name"] in exact] == []
    assert "real time; not repeatable bit by bit" in facts["said"]


def test_while_it_runs_only_modules_a_tracing_instance_and_limits_differ(
    endings: dict[str, Any],
) -> None:
    """The network of the machine does not see the cell, nor its namespaces of the same names."""
    facts = _facts(endings, "normal")
    during = facts["during"]
    assert set(during) <= {"modules", "parameters", "tracing", "sysctls", "processes", "run"}
    assert "tcp_j" in during["modules"]["new"]
    assert [name.startswith("airlab-") for name in during["tracing"]["instances"][1]] == [True]
    assert set(during["tracing"]) == {"instances"}, "the machine's own trace buffer was touched"
    limits = {f"/proc/sys/net/core/{kind}mem_max" for kind in "rw"}
    assert limits <= set(during["sysctls"])
    others = set(during["sysctls"]) - limits
    assert all("congestion_control" in name for name in others), others
    assert facts["other"] == {}, "somebody's namespace of the same name was touched"


@pytest.mark.parametrize("name", ["interrupted", "terminated"])
def test_a_signal_ends_the_cell_in_order(endings: dict[str, Any], name: str) -> None:
    facts = _facts(endings, name)
    assert facts["status"] == 130, facts["said"]


def test_a_killed_airlab_leaves_it_to_its_guardian(endings: dict[str, Any]) -> None:
    assert _facts(endings, "killed")["status"] == -9


@pytest.mark.parametrize("name", ["all_killed_then_cleaned", "all_killed_then_run_again"])
def test_when_all_are_killed_the_next_one_tidies_up(endings: dict[str, Any], name: str) -> None:
    facts = _facts(endings, name)
    # The test would prove nothing if there were nothing to tidy up.
    assert {"modules", "tracing", "sysctls", "run"} <= set(facts["left"])
    assert "processes" not in facts["left"], "processes outlived the one they must die with"
    assert not {"netns", "links", "mounts", "bpf", "qdiscs"} & set(facts["left"])
    assert facts["status"] in (0, 1), facts["said"]


def test_a_failing_set_up_is_told(endings: dict[str, Any]) -> None:
    facts = _facts(endings, "failed")
    assert facts["status"] == 1
    assert "FAILED bad_s1 (step)" in facts["said"]


def test_a_shell_is_in_the_cell(endings: dict[str, Any]) -> None:
    facts = _facts(endings, "shell")
    assert facts["status"] == 7, facts["said"]
    (line,) = [x for x in facts["said"].splitlines() if x.startswith("NETNS")]
    assert {"a", "r", "b", "waira", "wairb"} <= set(line.split())


def test_two_at_once_take_turns(endings: dict[str, Any]) -> None:
    assert _facts(endings, "two_at_once")["cells"] == [["j_s1"], ["j_s1"]]


def test_the_operators_module_stays_as_it_was_set(endings: dict[str, Any]) -> None:
    assert _facts(endings, "module_of_the_operator")["other"] == {}


def test_the_doctor_knows_the_engine(endings: dict[str, Any]) -> None:
    (line,) = [x for x in endings["doctor"].splitlines() if "host engine" in x]
    assert "--engine host can be had" in line
