"""One version number, and one range of kernels, everywhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from airlab import kernels, modules, paths
from airtcp_tools import MODULES

REPO = paths.REPO
VERSION = (REPO / "modules" / "VERSION").read_text().strip()


def said(*argv: str | Path) -> str:
    return subprocess.run([str(a) for a in argv], capture_output=True, text=True, check=True).stdout


def dkms_conf(kernels_file: str, folder: Path) -> str:
    """What DKMS would read, were this modules/KERNELS."""
    shutil.copytree(REPO / "packaging", folder / "packaging")
    (folder / "modules").mkdir()
    for name in ("VERSION", "Kbuild"):
        shutil.copy(REPO / "modules" / name, folder / "modules")
    (folder / "modules" / "KERNELS").write_text(kernels_file)
    return said(folder / "packaging" / "dkms-conf.sh")


def value(conf: str, name: str) -> str:
    found = re.search(rf'^{re.escape(name)}="(.*)"$', conf, re.M)
    assert found, f"{name} is not in dkms.conf"
    return found.group(1)


def test_every_part_says_the_same_version() -> None:
    built = modules.build(kernels.find(None))
    pyproject = tomllib.loads((REPO / "pyproject.toml").read_text())
    ccscope = tomllib.loads((REPO / "tools" / "pyproject.toml").read_text())
    citation = re.search(r"^version: (\S+)$", (REPO / "CITATION.cff").read_text(), re.M)
    changelog = re.match(r"airtcp \((\S+)\) ", (REPO / "debian" / "changelog").read_text())
    versions = {
        "dkms.conf": value(said(REPO / "packaging" / "dkms-conf.sh"), "PACKAGE_VERSION"),
        "debian/changelog": changelog and changelog.group(1),
        "airtcp --version": said(REPO / "tools" / "airtcp" / "airtcp", "--version").split()[1],
        "pyproject.toml": pyproject["project"]["version"],
        "tools/pyproject.toml": ccscope["project"]["version"],
        "ccscope --version": said(sys.executable, "-m", "ccscope", "--version").split()[1],
        "CITATION.cff": citation and citation.group(1),
        **{
            f"modinfo {name}": said("/sbin/modinfo", "-F", "version", built / f"{name}.ko").strip()
            for name in MODULES.values()
        },
    }
    assert versions == dict.fromkeys(versions, VERSION)


def test_every_part_knows_the_same_modules() -> None:
    named = re.findall(r"^obj-m \+= (\w+)/$", (REPO / "modules" / "Kbuild").read_text(), re.M)
    conf = said(REPO / "packaging" / "dkms-conf.sh")
    assert named == list(dict.fromkeys(MODULES.values()))
    assert named == re.findall(r'^BUILT_MODULE_NAME\[\d+\]="(.*)"$', conf, re.M)
    prerm = (REPO / "debian" / "airtcp-dkms.prerm").read_text()
    removed = re.search(r"^for module in ([\w ]+); do$", prerm, re.M)
    assert removed and sorted(removed[1].split()) == sorted(named)


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        (
            "min 6.1\nmax 7\n",
            ("6.1.0-13-amd64", "6.12.117+deb13-cloud-amd64", "6.19", "7.0-rc1", "7.3.1"),
            ("6.0.19", "5.19.0", "5.10.0-6.1", "8.0", "61.1.0", "70.1"),
        ),
        ("# both\nmin 6.6\nmax 6.12\n", ("6.6.1", "6.12.9"), ("6.5.1", "6.13.0", "7.0", "6.120")),
        ("min 5.15\nmax 7.2\n", ("5.15.1", "6.0.1", "7.0", "7.2.9"), ("5.4.1", "7.3", "7.20")),
    ],
)
def test_dkms_skips_what_check_kernel_refuses(
    bounds: str, inside: tuple[str, ...], outside: tuple[str, ...], tmp_path: Path
) -> None:
    conf = dkms_conf(bounds, tmp_path)
    pattern = value(conf, "BUILD_EXCLUSIVE_KERNEL")
    # Bash takes it as an extended regular expression; so does this.
    taken = [
        release
        for release in (*inside, *outside)
        if subprocess.run(
            ["bash", "-c", '[[ $1 =~ $2 ]]', "bash", release, pattern], check=False
        ).returncode == 0
    ]  # fmt: skip
    assert taken == list(inside)
    # The same by the script that the build itself asks.
    (tmp_path / "modules" / "scripts").mkdir()
    script = shutil.copy(REPO / "modules/scripts/check-kernel.sh", tmp_path / "modules/scripts")
    accepted = []
    for release in (*inside, *outside):
        kdir = tmp_path / "kdir" / release
        (kdir / "include" / "config").mkdir(parents=True)
        (kdir / "Makefile").touch()
        (kdir / "include" / "config" / "kernel.release").write_text(release + "\n")
        if subprocess.run([script, kdir], capture_output=True, check=False).returncode == 0:
            accepted.append(release)
    assert accepted == list(inside)


def test_a_maximum_without_a_minor_is_no_bound_for_minors(tmp_path: Path) -> None:
    """DKMS compares versions with zeros in front, as text: 7.2 comes after 7."""
    assert value(dkms_conf("min 6.1\nmax 7\n", tmp_path), "BUILD_EXCLUSIVE_KERNEL_MAX") == "7.999"


def test_kernels_without_bounds_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        dkms_conf("min 6.1\n", tmp_path)
    assert "modules/KERNELS" in caught.value.stderr
