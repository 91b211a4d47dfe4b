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

DEBUG_SUITE = f"{GUEST_SUITE}-debug"
"""The root in which debug kernels are built, and modules for them."""

KERNEL_SOURCE = "linux-source-6.12"
"""The package with the source of the debug kernels, in the guest's suite."""

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

_KERNEL_PACKAGES = (
    *("make", "gcc", "libc6-dev", "libelf-dev", "bison", "flex", "bc", "kmod", "cpio"),
    *("xz-utils", "bzip2", "sparse", "perl-base", KERNEL_SOURCE),
)


@dataclass(frozen=True)
class Variant:
    """A root of a suite with other packages than usual, for another way to build modules.

    Attributes:
        suite: the Debian suite.
        packages: what it holds beyond the essential packages.
        foreign: a second architecture whose packages may be named, ``""`` for none.
    """

    suite: str
    packages: tuple[str, ...]
    foreign: str = ""


VARIANTS = {
    "trixie-clang": Variant(
        "trixie",
        ("clang", "lld", "llvm", *(name for name in _BUILD_PACKAGES if name != "gcc")),
    ),
    "bookworm-i386": Variant(
        "bookworm",
        tuple(n.replace("cloud-amd64", "686-pae:i386") for n in _BUILD_PACKAGES),
        "i386",
    ),
    DEBUG_SUITE: Variant(GUEST_SUITE, _KERNEL_PACKAGES),
}
"""Roots that are not a suite's usual one, by name."""


@dataclass(frozen=True)
class LabRoot:
    """A Debian root in the cache; ``suite`` is also the name of a :class:`Variant`."""

    suite: str
    path: Path

    def chroot(self, argv: Sequence[str], *, what: str) -> str:
        """Run a program inside, with its own mount and process namespaces and ``/proc``."""
        return run_root(self.words(argv), what=what)

    def words(self, argv: Sequence[str]) -> list[str]:
        """The command that does that, to be run as root; all its processes end with it."""
        # The host's mount: not every root has one.
        inner = 'mount -t proc proc "$1/proc" && exec chroot "$@"'
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        words += ["/bin/sh", "-c", inner, "sh"]
        words += [str(self.path.resolve()), "/usr/bin/env", "-i"]
        words += ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"]
        return [*words, *argv]

    def headers(self) -> list[str]:
        """Kernel releases whose headers are installed, newest last."""
        # The links may be absolute and so lead nowhere outside the root: only their names count.
        found = (self.path / "usr/lib/modules").iterdir()
        return sorted(p.name for p in found if (p / "build").is_symlink())


def package_names(suite: str) -> list[str]:
    """The Debian packages a root of this suite holds beyond the essential ones."""
    if suite in VARIANTS:
        return list(VARIANTS[suite].packages)
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
    variant = VARIANTS.get(root.suite, Variant(root.suite, ()))
    sources = find_mirrors().sources(variant.suite)
    foreign = []
    if variant.foreign:
        # Mirrors that serve one architecture only have stale updates of the others.
        sources = sources[:1]
        foreign = [f"--architectures={_host_architecture()},{variant.foreign}"]
    if root.suite.endswith("-backports"):
        include = include.replace(
            "linux-headers-cloud-amd64", f"linux-headers-cloud-amd64/{root.suite}"
        )
    run_root(
        [
            # What it mounts must be gone even if it is killed, or nothing could be removed.
            *("unshare", "--mount"),
            "mmdebstrap",
            "--mode=root",
            "--variant=essential",
            *foreign,
            f"--include={include}",
            variant.suite.removesuffix("-backports"),
            partial,
            *sources,
        ],
        what=f"making the Debian {root.suite} root with mmdebstrap",
        remedy="check that this machine's apt can reach its mirror (`apt-get update`), then "
        "run `make setup` again",
    )
    run_root(["mv", partial, root.path], what="putting the new root in place")


def _host_architecture() -> str:
    return run(["dpkg", "--print-architecture"], what="asking for the architecture").strip()


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
