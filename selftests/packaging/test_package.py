"""The packages in a guest that plays a real machine: installed, used, upgraded, purged.

One disk goes through these boots, each a fixture that the next one needs; a copy of it is purged
while the module is in use.  `make check-packaging` runs this (many minutes: DKMS builds the
modules in an emulated machine).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airlab.paths import REPO
from airtcp_tools import MODULES
from builddebs import build
from machine import Machine, Result, files_on

pytestmark = pytest.mark.packaging

GUEST = Path(__file__).resolve().parent / "guest"
MACHINE = Machine(
    "trixie",
    ("iproute2", "python3", "dkms", "gcc", "make", "openssl", "mokutil"),
    headers=True,
)
OLD = (REPO / "modules" / "VERSION").read_text().strip()
NEW = "99.0.0"
TIMEOUT_S = 3600.0
KEY = "DKMS module signing key"


class Boot:
    """What a script left: facts by name, each the words behind it; files; the raw result."""

    def __init__(self, result: Result) -> None:
        self.result = result.check()
        lines = result.files["facts"].decode(errors="replace").splitlines()
        self.facts = {name: value.strip() for name, _, value in (x.partition(" ") for x in lines)}

    def __getitem__(self, name: str) -> str:
        return self.facts[name]

    def did(self, name: str) -> str:
        """What a command said that must have succeeded."""
        status, _, said = self.facts[name].partition(" ")
        assert status == "0", f"{name}: {self.facts[name]}\n{self.result.stdout}"
        return said

    def failed(self, name: str, status: str = "") -> str:
        """What a command said that must have failed (with a certain status)."""
        got, _, said = self.facts[name].partition(" ")
        assert got == status if status else got != "0", f"{name}: {self.facts[name]}"
        return said

    def json(self, name: str) -> Any:
        """A JSON file."""
        return json.loads(self.result.files[name])


def boot(
    script: str,
    disk: Path,
    debs: dict[str, bytes] | None = None,
    *,
    keep: bool = True,
    kernel_args: tuple[str, ...] = (),
) -> Boot:
    """Boot from a disk, run a script of the folder guest, return what it found out."""
    files = {path.name: path.read_bytes() for path in GUEST.iterdir()} | (debs or {})
    result = MACHINE.run(
        f"exec ./{script}.sh", files, TIMEOUT_S, disk=disk, keep=keep, kernel_args=kernel_args
    )
    return Boot(result)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("debs")
    return folder, build(MACHINE.suite, folder, OLD, NEW)


def debs(built: tuple[Path, str], version: str) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in built[0].glob(f"*_{version}_all.deb")}
    assert len(found) == 2
    return found


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    with MACHINE.disk() as path:
        yield path


@pytest.fixture(scope="module")
def prepared(disk: Path) -> Boot:
    return boot("prepare", disk)


@pytest.fixture(scope="module")
def before(disk: Path, prepared: Boot) -> dict[str, str]:
    return files_on(disk)


@pytest.fixture(scope="module")
def installed(disk: Path, before: dict[str, str], built: tuple[Path, str]) -> Boot:
    return boot("install", disk, debs(built, OLD))


@pytest.fixture(scope="module")
def used(disk: Path, installed: Boot) -> Boot:
    return boot("use", disk)


@pytest.fixture(scope="module")
def skips(disk: Path, installed: Boot) -> Boot:
    return boot("skips", disk, keep=False)


@pytest.fixture(scope="module")
def enforced(disk: Path, used: Boot) -> Boot:
    return boot("enforce", disk, keep=False, kernel_args=("module.sig_enforce=1",))


@pytest.fixture(scope="module")
def purged_in_use(disk: Path, used: Boot) -> Boot:
    return boot("purge-held", disk, keep=False)


@pytest.fixture(scope="module")
def asides(skips: Boot, enforced: Boot, purged_in_use: Boot) -> None:
    """The boots that leave the disk as it was: they must come before it is upgraded."""


@pytest.fixture(scope="module")
def upgraded(disk: Path, asides: None, built: tuple[Path, str]) -> Boot:
    return boot("upgrade", disk, debs(built, NEW))


@pytest.fixture(scope="module")
def purged(disk: Path, upgraded: Boot) -> Boot:
    return boot("purge", disk)


def test_lintian_finds_nothing_but_the_address_that_we_have_not(built: tuple[Path, str]) -> None:
    said = [line for line in built[1].splitlines() if line[:2] in {"E:", "W:"}]
    assert [line for line in said if "bogus-mail-host" not in line] == []


def test_packaging_leaves_the_interpreters_options_in_place(built: tuple[Path, str]) -> None:
    """dh_python3 drops them when it may: then the command leaves byte code behind when purged."""
    for deb in built[0].glob("airtcp-tools_*.deb"):
        tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], capture_output=True, check=True)
        words = ["tar", "-xO", "./usr/sbin/airtcp"]
        script = subprocess.run(words, input=tar.stdout, capture_output=True, check=True).stdout
        assert script.splitlines()[0] == b"#!/usr/bin/python3 -IB"


def test_without_the_module_everything_says_so_and_nothing_else_happens(prepared: Boot) -> None:
    assert "No such file or directory" in prepared.failed("absent_sysctl")
    assert "errno 2 No such file or directory" in prepared.failed("absent_socket")
    assert "Unknown tcp congestion algorithm" in prepared.failed("absent_route")
    assert prepared["absent_default"] == "cubic"


def test_dkms_builds_for_the_running_kernel_with_our_probes(installed: Boot) -> None:
    installed.did("install")
    assert f"airtcp/{OLD}, {MACHINE.release()}, x86_64: installed" in installed.did("dkms_status")
    assert "/updates/dkms/tcp_j.ko" in installed.did("modinfo_file")
    assert installed["installed_loaded"] == "no"
    assert "not loaded; installed: tcp_j" in installed.did("status_before")
    log = installed.result.files["make.log"].decode()
    assert f"KDIR=/lib/modules/{MACHINE.release()}/build" in log
    assert "warning: " not in log.replace("warning: the compiler differs", "")


@pytest.mark.parametrize("name", ["modinfo_version", "conf_version"])
def test_installed_parts_say_the_version(installed: Boot, name: str) -> None:
    assert installed.did(name) == OLD


def test_installed_tools_say_the_version(installed: Boot) -> None:
    assert installed.did("tools_version") == f"airtcp {OLD}"
    assert installed.did("package_versions") == f"{OLD} {OLD}"


def test_dkms_hands_llvm_to_kbuild(skips: Boot) -> None:
    skips.failed("clang")
    log = skips.result.files["clang.log"].decode()
    assert "LLVM=1" in log
    assert "clang: not found" in log or "clang: No such file" in log


@pytest.mark.parametrize("name", ["no_inet", "build_5.10.0-1-amd64", "build_8.0.1-amd64"])
def test_dkms_refuses_a_kernel_that_is_not_for_us(skips: Boot, name: str) -> None:
    # 77 is DKMS's "not for this kernel", which an automatic installation passes over.
    assert "BUILD_EXCLUSIVE" in skips.failed(name, "77")


@pytest.mark.parametrize("release", ["5.10.0-1-amd64", "8.0.1-amd64"])
def test_installing_such_a_kernel_does_not_fail(skips: Boot, release: str) -> None:
    skips.did(f"autoinstall_{release}")


def test_the_name_loads_the_module(used: Boot) -> None:
    assert used["boot_loaded"] == "no"
    used.did("sysctl")
    assert (used["sysctl_loaded"], used["sysctl_default"]) == ("yes", "j")
    assert used["sysctl_new_socket"] == "j"
    assert "tcp_j is unloaded" in used.did("unload_1")
    assert used["unload_1_loaded"] == "no"
    assert used.did("socket") == "done"
    assert used["socket_loaded"] == "yes"


def test_routes_give_the_algorithm_to_their_prefixes_only(used: Boot) -> None:
    for name in ("route_set", "route_set_static", "route_set_default", "route_again",
                 "route_set_6", "route_set_6_more"):  # fmt: skip
        used.did(name)
    assert used["route_loaded"] == "yes"
    inside = ("198.51.100.7", "203.0.113.7", "8.8.8.8", "2001:db8:1::7", "2001:4860::7")
    for address in inside:
        assert used[f"by_route_{address}"] == "j"
        assert "a socket that connects" in used.did(f"check_{address}")
    for address in ("192.0.2.7", "2001:db8::7"):
        assert used[f"by_route_{address}"] == "cubic"
        used.failed(f"check_{address}", "1")
    assert "errno 1 " in used.failed("lock")
    assert used.did("no_lock") == "done"
    # Metrics of the original come along.
    assert "mtu 1400" in used.did("route_get")


def test_our_routes_are_listed_and_no_others(used: Boot) -> None:
    rows = {(row["prefix"], row["algorithm"], row["lock"]) for row in used.json("routes.json")}
    assert rows == {
        ("198.51.100.0/24", "j", False),
        ("203.0.113.0/24", "j", False),
        ("0.0.0.0/0", "j", True),
        ("::/0", "j", False),
        ("2001:db8:1::/48", "j", True),
    }
    assert len(used.json("routes.json")) == len(rows)
    assert "0.0.0.0/0 j lock gateway 192.0.2.2 device d0" in used.did("route_list")


def test_what_cannot_be_done_is_refused_with_words(used: Boot) -> None:
    assert "route show table 77" in used.failed("route_none", "2")
    assert "loading the algorithm nosuch" in used.failed("route_unknown", "2")
    assert "no route of airtcp" in used.failed("route_del_again", "2")


def test_flushing_takes_our_routes_and_leaves_the_rest_as_it_was(used: Boot) -> None:
    used.did("route_del")
    assert used.did("route_flush") == "4 routes taken away"
    assert "congctl j" in used["foreign"]
    used.did("routes_equal")


def test_a_route_alone_holds_nothing(used: Boot) -> None:
    said = used.did("unload_route")
    assert "is unloaded" in said
    assert "note: a route names j" in said


def test_next_hop_objects_and_many_next_hops_are_copied(used: Boot) -> None:
    used.did("copy_nhid")
    used.did("copy_multipath")
    assert used["multipath"].count("nexthop via") == 2
    assert "weight 2" in used["multipath"]
    used.did("check_nhid")
    used.did("check_multipath")


def test_holders_are_named(used: Boot) -> None:
    found = used.json("holders.json")
    assert sorted(s["state"] for s in found["sockets"]) == ["ESTAB", "ESTAB", "LISTEN"]
    assert all(s["users"][0].startswith("python3 (pid ") for s in found["sockets"])
    assert [space["label"] for space in found["defaults"]] == ["namespace blue"]
    # The socket that is neither connected nor listening is in no list of the kernel's.
    assert found["unseen"] == 1
    assert found["references"] == 5
    assert used["dry_run_status"] == "1"
    said = used.failed("held", "1")
    assert "tcp_j is held 5 times" in said
    assert "listener 127.0.0.1:5555" in said
    assert "default algorithm of namespace blue" in said
    assert "in use" in used.failed("held_modprobe")


def test_unloading_resets_defaults_when_asked_and_waits_for_sockets(used: Boot) -> None:
    assert "held 4 times" in used.failed("reset", "1")
    assert used["blue_default"] == "cubic"
    assert "tcp_j is unloaded" in used.did("unload_wait")
    assert used["unload_wait_loaded"] == "no"


@pytest.mark.parametrize("name", [name for name in MODULES if name != "j"])
def test_every_name_loads_its_module(used: Boot, name: str) -> None:
    assert name in used.did(f"other_{name}")
    assert f"{MODULES[name]} is unloaded" in used.did(f"other_unload_{name}")


def test_status_says_what_is_there(used: Boot) -> None:
    found = used.json("status.json")
    assert found["airtcp"] == OLD
    assert found["kernel"] == MACHINE.release()
    assert (found["secure_boot"], found["signatures_enforced"]) == ("no EFI", False)
    assert [module["algorithm"] for module in found["modules"]] == list(MODULES)
    for module in found["modules"]:
        state = (module["loaded"], module["installed_version"], module["signer"])
        assert state == (False, OLD, KEY), module["module"]
    assert "default algorithm: cubic" in used.did("status")


def test_a_key_that_is_not_enrolled_is_refused_where_signatures_are_enforced(
    enforced: Boot,
) -> None:
    assert enforced.did("own_signer") == KEY
    assert "Key was rejected by service" in enforced.failed("own")
    assert "No such file or directory" in enforced.failed("own_sysctl")
    assert "Key was rejected by service" in enforced.failed("unsigned")
    assert enforced.did("debian_signer")
    enforced.did("debian")
    assert "unsigned modules: refused" in enforced.did("status")


def test_purging_while_in_use_breaks_nothing(purged_in_use: Boot) -> None:
    assert "tcp_j is in use and stays loaded" in purged_in_use.did("purge")
    assert (purged_in_use["default"], purged_in_use["new_socket"]) == ("j", "j")
    purged_in_use.did("rmmod")
    assert purged_in_use["loaded"] == "no"


def test_an_upgrade_replaces_the_file_and_a_reload_the_module(upgraded: Boot) -> None:
    upgraded.did("upgrade")
    assert upgraded["old"] == upgraded["still_loaded"] == OLD
    assert upgraded.did("modinfo_version") == NEW
    assert "the loaded one is another build" in upgraded.did("status")
    upgraded.did("unload")
    upgraded.did("reload")
    assert upgraded["new"] == NEW
    assert upgraded.did("tools_version") == f"airtcp {NEW}"
    assert OLD not in upgraded.did("dkms_status")
    assert upgraded.did("sources") == f"/usr/src/airtcp-{NEW}"


# Not part of what is installed, and why.
RECORDS = {
    "var/log": "logs of dpkg and the system",
    "var/lib/dpkg/status": "dpkg's table; the packages in it are compared by name",
    "var/lib/dpkg/status-old": "its former version",
    "var/lib/dpkg/lock": "locks, made at dpkg's first run",
    "var/lib/dpkg/lock-frontend": "as above",
    "var/lib/dpkg/triggers": "triggers that wait; dpkg's scratch",
    "var/cache/ldconfig": "a cache of the dynamic linker",
}


def told(files: dict[str, str]) -> dict[str, str]:
    """The files without records."""
    return {
        path: what
        for path, what in files.items()
        if not any(path == record or path.startswith(f"{record}/") for record in RECORDS)
    }


def test_purging_leaves_nothing_behind(disk: Path, before: dict[str, str], purged: Boot) -> None:
    purged.did("route")
    purged.did("purge")
    after = files_on(disk)
    assert len(told(before)) > 10_000
    changed = set(told(before).items()) ^ set(told(after).items())
    assert sorted(changed) == []


def test_purging_takes_away_what_was_in_memory(purged: Boot) -> None:
    assert (purged["purge_loaded"], purged["purged_loaded"]) == ("yes", "no")
    assert "j" not in purged["available"].split()
    assert purged["default"] == "cubic"
    purged.did("routes_equal")
    purged.failed("packages")
