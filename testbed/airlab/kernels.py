"""Lab kernels: stock Debian kernels, fetched as packages and unpacked in the cache.

Nothing is installed on the host.  The compressed image is unpacked once to the ELF file
inside it, which QEMU starts directly (PVH): that saves the decompression at every boot.
"""

from __future__ import annotations

import json
import lzma
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from airlab import paths
from airlab.host import exclusive, run
from airlab.labroot import GUEST_SUITE, ensure_root
from airlab.mirrors import find_mirrors
from airlab.model import AirlabError

TRACKS = {"6.1": "bookworm", "6.12": GUEST_SUITE, "7": "trixie-backports"}
"""Kernel series that can be had, and the Debian suite each comes from."""

DEFAULT_TRACK = "6.12"

DEBUG_NAMES = ("debug-kasan", "debug-kcsan")
"""Kernels with detectors, built by :mod:`airlab.debugkernels`; found by these names only."""

GUEST_MODULES = (
    "veth",
    "sch_netem",
    "sch_plug",
    "sch_ingress",
    "sch_fq",
    "sch_codel",
    "sch_red",
    "sch_htb",
    "sch_tbf",
    "sch_prio",
    "sch_cake",
    "cls_matchall",
    "cls_bpf",
    "act_mirred",
    "act_gact",
    "tcp_bbr",
    "tcp_bic",
    "tcp_cdg",
    "tcp_dctcp",
    "tcp_htcp",
    "tcp_highspeed",
    "tcp_hybla",
    "tcp_illinois",
    "tcp_lp",
    "tcp_nv",
    "tcp_scalable",
    "tcp_vegas",
    "tcp_veno",
    "tcp_westwood",
    "tcp_yeah",
    "tcp_diag",
    "inet_diag",
)
"""Distribution modules that the guest image carries (with what they depend on)."""

_DECOMPRESSORS = {
    b"\x28\xb5\x2f\xfd": ("zstd", "-dcq"),
    b"\xfd7zXZ\x00": ("xz", "-dcq"),
    b"\x02\x21\x4c\x18": ("lz4", "-dcq"),
    b"\x1f\x8b\x08": ("gzip", "-dcq"),
}
"""How a compressed kernel image begins, and what unpacks it."""

_ELF = b"\x7fELF"


@dataclass(frozen=True)
class LabKernel:
    """An unpacked kernel: ``vmlinux``, ``config`` and its modules, uncompressed."""

    release: str
    suite: str
    path: Path

    @property
    def vmlinux(self) -> Path:
        """The ELF image."""
        return self.path / "vmlinux"

    @property
    def modules(self) -> Path:
        """The folder with ``*.ko`` files by module name."""
        return self.path / "modules"

    @property
    def debug(self) -> str | None:
        """Which debug kernel this is, None for a kernel as its distributor made it."""
        return next((name for name in DEBUG_NAMES if self.release.endswith(f"-{name}")), None)

    def means(self, wanted: str) -> bool:
        """Whether a person who asks for a release, a series or a debug kernel gets this one."""
        if wanted == self.release:
            return True
        return self.debug == wanted if self.debug else _in_series(self.release, wanted)

    def info(self) -> dict[str, str]:
        """Package name and version, as recorded when it was fetched."""
        data: dict[str, str] = json.loads((self.path / "package.json").read_text())
        return data


def installed() -> list[LabKernel]:
    """The kernels in the cache, by release."""
    found = []
    for record in sorted(paths.kernels().glob("*/package.json")):
        data = json.loads(record.read_text())
        found.append(LabKernel(data["release"], data["suite"], record.parent))
    return found


def find(name: str | None) -> LabKernel:
    """The kernel a person means: a release, a series (``6.12``), a debug kernel, or the default.

    Raises:
        AirlabError: it is not in the cache; the message says how to get it.
    """
    wanted = name or DEFAULT_TRACK
    matches = [k for k in installed() if k.means(wanted)]
    if matches:
        return matches[-1]
    there = ", ".join(k.release for k in installed()) or "none"
    can = ", ".join([*TRACKS, *DEBUG_NAMES])
    raise AirlabError(
        f"--kernel {wanted}: no such lab kernel (there: {there}); "
        f"`airlab kernels --fetch NAME` gets one of: {can}"
    )


def fetch(track: str) -> LabKernel:
    """Get the newest kernel of a series, unless it is there already."""
    if track not in TRACKS:
        raise AirlabError(f"no kernel series {track!r}; known: {', '.join(TRACKS)}")
    with exclusive(paths.cache() / "setup.lock"):
        return _fetch(track, TRACKS[track])


def _fetch(track: str, suite: str) -> LabKernel:
    root = ensure_root(suite)
    releases = [r for r in root.headers() if _in_series(r, track)]
    if not releases:
        raise AirlabError(f"the {suite} root holds no headers of a {track} kernel")
    kernel = LabKernel(releases[-1], suite, paths.kernels() / releases[-1])
    if _complete(kernel):
        return kernel
    print(f"airlab: fetching kernel {kernel.release}", flush=True)
    with tempfile.TemporaryDirectory(prefix="airlab-kernel-") as scratch:
        packages = _download(kernel.release, suite, Path(scratch))
        tree = Path(scratch) / "tree"
        for package in packages:
            run(["dpkg-deb", "-x", package, tree], what=f"unpacking {package.name}")
        partial = kernel.path.with_name(kernel.release + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _unpack_image(tree, kernel.release, partial / "vmlinux")
        shutil.copy(_file_of(tree, kernel.release, "config"), partial / "config")
        _unpack_modules(tree, kernel.release, partial / "modules")
        record = {
            "release": kernel.release,
            "suite": suite,
            "package": packages[0].name,
            "modules": " ".join(GUEST_MODULES),
        }
        (partial / "package.json").write_text(json.dumps(record, indent=1))
        shutil.rmtree(kernel.path, ignore_errors=True)
        partial.rename(kernel.path)
    return kernel


def _complete(kernel: LabKernel) -> bool:
    """Whether a kernel is there with the modules asked for today, not those of an older airlab."""
    try:
        return kernel.info().get("modules") == " ".join(GUEST_MODULES)
    except FileNotFoundError:
        return False


def _in_series(release: str, series: str) -> bool:
    return release == series or release.startswith(series + ".")


def _download(release: str, suite: str, scratch: Path) -> list[Path]:
    """Download a kernel's packages with a private apt state; the host's is not touched.

    The first is the one that names the kernel.  From 7.2 on it is empty and the files are in
    the others; which of these exist is for the package lists to say.
    """
    for name in ("lists/partial", "cache/archives/partial", "state"):
        (scratch / name).mkdir(parents=True)
    (scratch / "sources.list").write_text("\n".join(find_mirrors().sources(suite)) + "\n")
    (scratch / "status").touch()
    options = {
        "Dir::Etc::sourcelist": scratch / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State": scratch / "state",
        "Dir::State::lists": scratch / "lists",
        "Dir::State::status": scratch / "status",
        "Dir::Cache": scratch / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    words = [f"-o{key}={value}" for key, value in options.items()]
    apt = ["apt-get", "-qq", *words]
    remedy = "check that this machine's apt can reach its mirror, then run `make setup` again"
    run([*apt, "update"], what=f"reading the {suite} package lists", remedy=remedy)
    known = run(["apt-cache", *words, "pkgnames", "linux-"], what="listing packages").split()
    names = [f"linux-{part}-{release}" for part in ("image", "binary", "modules", "base")]
    made: list[Path] = []
    for name in names:
        if name not in known:
            continue
        command = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(scratch), *apt]
        run([*command, "download", name], what=f"fetching {name}", remedy=remedy)
        made += scratch.glob(f"{name}_*.deb")
    return made


def _file_of(tree: Path, release: str, kind: str) -> Path:
    """A kernel's ``vmlinuz`` or ``config``: in /boot, or with the modules from 7.2 on."""
    places = (
        tree / "boot" / f"{kind}-{release}",
        tree / "usr/lib/modules" / release / kind,
        tree / "lib/modules" / release / kind,
    )
    for place in places:
        if place.is_file():
            return place
    raise AirlabError(f"the packages of kernel {release} hold no {kind}")


def _unpack_image(tree: Path, release: str, target: Path) -> None:
    """Write the ELF kernel that is compressed inside a bzImage."""
    image = _file_of(tree, release, "vmlinuz").read_bytes()
    for magic, program in _DECOMPRESSORS.items():
        start = image.find(magic)
        while start >= 0:
            plain = _decompress(program, image[start:])
            if plain.startswith(_ELF):
                target.write_bytes(plain)
                return
            start = image.find(magic, start + 1)
    raise AirlabError(f"no compressed ELF kernel found inside vmlinuz-{release}")


def _decompress(program: Sequence[str], data: bytes) -> bytes:
    try:
        # The compressed stream is followed by other data: what these programs say of
        # the rest, and their exit status, mean nothing here.
        return subprocess.run(program, input=data, capture_output=True, check=False).stdout
    except FileNotFoundError as error:
        raise AirlabError(
            f"unpacking a kernel: {program[0]} is not installed; run `make setup`"
        ) from error


def _unpack_modules(tree: Path, release: str, target: Path) -> None:
    """Keep the modules the guest needs, and what those need, uncompressed."""
    source = next(
        p
        for p in (tree / "usr/lib/modules" / release, tree / "lib/modules" / release)
        if p.is_dir()
    )
    files = {_module_name(p): p for p in source.rglob("*.ko*")}
    target.mkdir()
    waiting = [name for name in GUEST_MODULES if name in files]
    done: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        done.add(name)
        data = files[name].read_bytes()
        plain = lzma.decompress(data) if files[name].suffix == ".xz" else data
        (target / f"{name}.ko").write_bytes(plain)
        waiting += [need for need in _depends(plain) if need in files]


def _module_name(path: Path) -> str:
    return path.name.split(".ko")[0].replace("-", "_")


def _depends(module: bytes) -> list[str]:
    """The ``depends=`` list of a module's ``.modinfo``."""
    found = re.search(rb"\0depends=([^\0]*)\0", module)
    text = found.group(1).decode() if found else ""
    return [name.replace("-", "_") for name in text.split(",") if name]
