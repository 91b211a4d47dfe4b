"""Debian roots of the lab: where modules and guest tools are built, and where the guest's
programs come from.  A root is made once per suite with mmdebstrap and kept in the cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from airlab import paths
from airlab.host import run, run_root
from airlab.mirrors import find_mirrors

GUEST_SUITE = "trixie"
"""The guest's user space always comes from this suite, whatever the kernel."""

_BUILD_PACKAGES = ("make", "gcc", "libc6-dev", "linux-headers-cloud-amd64", "sparse", "perl-base")
_GUEST_PACKAGES = (
    "libbpf-dev",
    "libelf-dev",
    "zlib1g-dev",
    "gcc-bpf",
    "iproute2",
    "ethtool",
    "iperf3",
    "tcpdump",
    "busybox-static",
    "dash",
)


@dataclass(frozen=True)
class LabRoot:
    """A Debian root in the cache."""

    suite: str
    path: Path

    def chroot(self, argv: Sequence[str], *, what: str) -> str:
        """Run a program inside, with its own mount and process namespaces and ``/proc``."""
        inner = 'mount -t proc proc /proc && exec "$@"'
        words = ["unshare", "--mount", "--pid", "--fork", f"--root={self.path}"]
        words += ["/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"]
        return run_root([*words, "/bin/sh", "-c", inner, "sh", *argv], what=what)

    def headers(self) -> list[str]:
        """Kernel releases whose headers are installed, newest last."""
        found = (self.path / "usr/lib/modules").glob("*/build")
        return sorted(link.parent.name for link in found)


def package_names(suite: str) -> list[str]:
    """The Debian packages a root of this suite holds beyond the essential ones."""
    return [*_BUILD_PACKAGES, *(_GUEST_PACKAGES if suite == GUEST_SUITE else ())]


def ensure_root(suite: str = GUEST_SUITE) -> LabRoot:
    """The root of a suite, made if it is not there or if its package list changed."""
    root = LabRoot(suite, paths.roots() / suite)
    wanted = package_names(suite)
    stamp = paths.roots() / f"{suite}.json"
    recipe = hashlib.sha256("\n".join(wanted).encode()).hexdigest()
    made = root.path.is_dir() and stamp.is_file()
    if made and json.loads(stamp.read_text())["recipe"] == recipe:
        return root
    _make_root(root, wanted)
    listing = run(
        [
            "dpkg-query",
            f"--admindir={root.path}/var/lib/dpkg",
            "-W",
            "-f",
            "${Package} ${Version}\n",
        ],
        what=f"listing the packages of the {suite} root",
    )
    stamp.write_text(json.dumps({"recipe": recipe, "packages": listing.splitlines()}, indent=1))
    return root


def _make_root(root: LabRoot, packages: Sequence[str]) -> None:
    print(f"airlab: making the Debian {root.suite} root (about a minute)", flush=True)
    paths.roots().mkdir(parents=True, exist_ok=True)
    if root.path.exists():
        run_root(["rm", "-rf", "--one-file-system", root.path], what="removing the old root")
    partial = root.path.with_suffix(".partial")
    run_root(["rm", "-rf", "--one-file-system", partial], what="removing a half-made root")
    include = ",".join(packages)
    if root.suite.endswith("-backports"):
        include = include.replace(
            "linux-headers-cloud-amd64", f"linux-headers-cloud-amd64/{root.suite}"
        )
    run_root(
        [
            "mmdebstrap",
            "--mode=root",
            "--variant=essential",
            f"--include={include}",
            root.suite.removesuffix("-backports"),
            partial,
            *find_mirrors().sources(root.suite),
        ],
        what=f"making the Debian {root.suite} root with mmdebstrap",
        remedy="check that this machine's apt can reach its mirror (`apt-get update`), then "
        "run `make setup` again",
    )
    run_root(["mv", partial, root.path], what="putting the new root in place")


def copy_tree_into(root: LabRoot, source: Path, name: str) -> Path:
    """Copy a source folder to ``/build/NAME`` of a root; returns the folder on the host."""
    target = root.path / "build" / name
    run_root(["rm", "-rf", "--one-file-system", target], what=f"clearing {name}")
    run_root(["mkdir", "-p", target.parent], what=f"making room for {name}")
    run_root(["cp", "-r", "--no-preserve=ownership", source, target], what=f"copying {name}")
    return target


def tree_digest(*folders: Path) -> str:
    """SHA-256 over the names and contents of all files below some folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted(p for p in folder.rglob("*") if p.is_file()):
            if "__pycache__" in file.parts:
                continue
            digest.update(str(file.relative_to(folder)).encode() + b"\0")
            digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()
