"""Builds airtcp's Debian packages in a root of the suite that they are for."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

from airlab import paths
from airlab.host import run, run_root
from airlab.labroot import LabRoot
from airlab.mirrors import find_mirrors

_PACKAGES = (
    "build-essential",
    "debhelper",
    "dh-dkms",
    "dh-python",
    "dpkg-dev",
    "lintian",
    "make",
    "man-db",
    "mount",
    "python3",
)


_FIRMWARE = ("ovmf", "shim-signed", "shim-helpers-amd64-signed", "grub-efi-amd64-signed")


def build_root(suite: str) -> LabRoot:
    """A Debian root with what `packaging/deb.sh` needs, made once."""
    return LabRoot(suite, _root(suite, "deb", _PACKAGES))


def firmware_root() -> Path:
    """A Debian root that holds firmware and boot loaders, made once."""
    return _root("trixie", "firmware", _FIRMWARE)


def _root(suite: str, name: str, packages: tuple[str, ...]) -> Path:
    recipe = hashlib.sha256("\n".join((suite, *packages)).encode()).hexdigest()[:16]
    home = paths.cache() / "machines" / f"{name}-{suite}-{recipe}"
    home.parent.mkdir(parents=True, exist_ok=True)
    with open(home.parent / f"{home.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.is_dir():
            partial = home.with_suffix(".partial")
            run_root(["rm", "-rf", "--one-file-system", partial], what="clearing")
            run_root(
                [
                    *("unshare", "--mount", "mmdebstrap", "--mode=root", "--variant=essential"),
                    *(f"--include={','.join(packages)}", suite, partial),
                    *find_mirrors().sources(suite),
                ],
                what=f"making the {name} root of {suite}",
                remedy="check that this machine's apt can reach its mirror (`apt-get update`)",
            )
            run_root(["mv", partial, home], what="putting the root in place")
    return home


def source() -> bytes:
    """A tar of what git tracks or would, as it is now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=paths.REPO,
        capture_output=True,
        check=True,
    ).stdout.split(b"\0")
    names = [name.decode() for name in listed if name and (paths.REPO / name.decode()).is_file()]
    return subprocess.run(
        ["tar", "-c", "-C", str(paths.REPO), "--", *names], capture_output=True, check=True
    ).stdout


def build(suite: str, target: Path, *versions: str) -> str:
    """Build the packages in some versions, all into one folder; returns what lintian said."""
    root = build_root(suite)
    work = root.path / "build" / f"airtcp-{target.parent.name}-{target.name}"
    inner = f"/build/{work.name}"
    run_root(["mkdir", "-p", work / "repo"], what="making room")
    tarball = target / "source.tar"
    tarball.write_bytes(source())
    run_root(["tar", "-x", "--no-same-owner", "-C", work / "repo", "-f", tarball], what="unpacking")
    try:
        for version in versions:
            root.chroot(
                [f"{inner}/repo/packaging/deb.sh", f"{inner}/out", version],
                what=f"building the packages, version {version}",
            )
        script = f"cd {inner}/out && exec lintian --allow-root --fail-on none *.changes"
        said = root.chroot(["sh", "-c", script], what="lintian")
        for file in (work / "out").iterdir():
            shutil.copy(file, target)
    finally:
        run_root(["rm", "-rf", "--one-file-system", work], what="clearing")
    run(["sh", "-c", 'ls "$1"/*.deb', "sh", target], what="looking at the packages")
    return said
