"""What engine host says about a kernel before it touches it, and how it reads a plan."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from airlab import paths
from airlab.engines import hostkernel
from airlab.engines.choose import choose
from airlab.engines.host import HostEngine, split_settings
from airlab.model import AirlabError

SCRIPT = """\
set -e
sysctl -q -w \\
    net.core.rmem_max=1000000 \\
    net.core.wmem_max=1000000

ip netns exec a sysctl -q -w \\
    net.ipv4.tcp_sack=1 \\
    'net.ipv4.tcp_rmem=4096 131072 6291456'
"""


def test_host_wide_settings_are_told_from_those_of_a_namespace() -> None:
    values, rest = split_settings(SCRIPT)
    assert values == {"net.core.rmem_max": "1000000", "net.core.wmem_max": "1000000"}
    assert "rmem_max" not in rest
    assert "ip netns exec a sysctl -q -w" in rest
    assert "6291456" in rest


@pytest.mark.parametrize(
    ("module", "option"),
    [
        ("sch_netem", "CONFIG_NET_SCH_NETEM"),
        ("cls_matchall", "CONFIG_NET_CLS_MATCHALL"),
        ("tcp_westwood", "CONFIG_TCP_CONG_WESTWOOD"),
        ("tcp_highspeed", "CONFIG_TCP_CONG_HSTCP"),
        ("veth", "CONFIG_VETH"),
    ],
)
def test_modules_are_known_by_their_option(module: str, option: str) -> None:
    assert hostkernel.option(module) == option


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A kernel with veth, without netem, that modprobe knows nothing about."""
    monkeypatch.setattr(hostkernel, "config", lambda: "CONFIG_VETH=y\n# CONFIG_X is not set\n")
    monkeypatch.setattr(hostkernel, "release", lambda: "1.2.3-test")
    monkeypatch.setattr(hostkernel, "can_be_loaded", lambda _name: False)
    monkeypatch.setenv("AIRTCP_CACHE", str(tmp_path))
    return monkeypatch


def test_a_kernel_without_modules_says_what_it_lacks(bare: pytest.MonkeyPatch) -> None:
    bare.setattr(hostkernel, "has_module_support", lambda: False)
    said = hostkernel.problems(["veth", "sch_no_such", "tcp_j"])
    assert len(said) == 1
    assert "lacks sch_no_such (CONFIG_NET_SCH_NO_SUCH), tcp_j" in said[0]
    assert "no module support (CONFIG_MODULES)" in said[0]
    assert "veth" not in said[0]


def test_missing_headers_are_named(bare: pytest.MonkeyPatch) -> None:
    bare.setattr(hostkernel, "has_module_support", lambda: True)
    said = hostkernel.problems(["veth", "tcp_j"])
    assert said == [
        "tcp_j: neither installed nor can it be built, since /lib/modules/1.2.3-test/build is "
        "missing: install linux-headers-1.2.3-test, or the airtcp-dkms package"
    ]
    # What was built once needs no headers.
    folder = paths.cache() / "host-modules" / "1.2.3-test"
    folder.mkdir(parents=True)
    (folder / hostkernel.STAMP).write_text(hostkernel.tree_digest(paths.MODULES_SOURCE))
    assert hostkernel.problems(["veth", "tcp_j"]) == []


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("modprobe: ERROR: could not insert 'x': Key was rejected by service", "Secure Boot"),
        ("insmod: ERROR: could not insert module x: Operation not permitted", "lockdown"),
        ("insmod: ERROR: could not insert module x: Invalid module format", "another kernel"),
    ],
)
def test_a_refused_module_is_explained(bare: pytest.MonkeyPatch, said: str, hint: str) -> None:
    bare.setattr(hostkernel, "can_be_loaded", lambda _name: True)
    failed = subprocess.CompletedProcess(["modprobe"], 1, "", said + "\n")
    bare.setattr(hostkernel.subprocess, "run", lambda *_args, **_kw: failed)
    with pytest.raises(AirlabError, match=hint) as error:
        hostkernel.load("sch_no_such")
    assert said in str(error.value)


def test_nobody_but_root_gets_the_host(bare: pytest.MonkeyPatch) -> None:
    bare.setattr("os.geteuid", lambda: 1000)
    found = HostEngine([]).availability()
    assert not found.ok
    assert "needs root" in found.reason


def test_the_host_runs_its_own_kernel_only() -> None:
    with pytest.raises(AirlabError, match=r"--kernel 6\.1: engine host runs on this machine's own"):
        choose("host", plans=[], kernel="6.1", fast=False)
