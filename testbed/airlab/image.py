"""The guest's initial RAM file system: a few Debian programs, our tools, the modules.

It is made once per kernel and cached; what differs between cells (the plan's files) is a
second small archive that the engine puts behind it.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airlab import cpio, modules, paths
from airlab.host import exclusive, run
from airlab.kernels import LabKernel
from airlab.labroot import GUEST_SUITE, LabRoot, copy_tree_into, ensure_root, tree_digest

PROGRAMS = (
    "/usr/sbin/ip",
    "/usr/sbin/tc",
    "/usr/bin/ss",
    "/usr/sbin/ethtool",
    "/usr/bin/tcpdump",
    "/usr/bin/dash",
)
"""Debian programs that every guest has."""

EXTRA_PROGRAMS = ("/usr/bin/iperf3",)
"""Programs of the bigger image for shells and tests: they cost boot time."""

# Opened by glibc at run time (pthread_exit and cancel), so ldd does not name it.
_RUNTIME_LIBRARIES = ("/usr/lib/x86_64-linux-gnu/libgcc_s.so.1",)
_TOOLS = ("airflow", "airsched", "airship", "airchan")
_SCRIPTS = ("init", "cell.sh", "host-init")
_NOT_APPLETS = {"ip", "tc", "sh", "busybox", "init", "ss"}


@dataclass(frozen=True)
class Image:
    """A kernel with the archive that boots it."""

    kernel: LabKernel
    initrd: Path
    digest: str


def ensure_image(kernel: LabKernel, *, extra: bool = False) -> Image:
    """The image of a kernel, rebuilt when modules, tools or the root changed."""
    with exclusive(paths.cache() / "setup.lock"):
        return _make_image(kernel, extra)


def _make_image(kernel: LabKernel, extra: bool) -> Image:
    built = modules.build(kernel)
    tools = build_tools()
    root = ensure_root(GUEST_SUITE)
    stamp_source = (paths.roots() / f"{GUEST_SUITE}.json").read_text()
    recipe = tree_digest(built, tools, kernel.modules)
    digest = _short_digest(recipe + stamp_source + Path(__file__).read_text() + str(extra))
    name = f"{kernel.release}{'-extra' if extra else ''}-{digest}.cpio"
    initrd = paths.images() / name
    if initrd.is_file():
        return _image(kernel, initrd)
    paths.images().mkdir(parents=True, exist_ok=True)
    entries = [*_user_space(root, tools, extra=extra)]
    entries.append(cpio.regular("init", (tools / "init").read_bytes(), 0o755))
    entries += _kernel_modules(kernel, built)
    buffer = io.BytesIO()
    cpio.write(buffer, entries)
    for old in paths.images().glob(
        f"{kernel.release}{'-extra' if extra else ''}-????????????????.cpio"
    ):
        old.unlink()
    partial = initrd.with_suffix(".partial")
    partial.write_bytes(buffer.getvalue())
    partial.rename(initrd)
    return _image(kernel, initrd)


def ensure_user_space(*, extra: bool = False) -> Path:
    """The guest's user space as a folder, for cells on a real host; made again when it changed."""
    tools = build_tools()
    root = ensure_root(GUEST_SUITE)
    stamp_source = (paths.roots() / f"{GUEST_SUITE}.json").read_text()
    recipe = tree_digest(tools) + stamp_source + Path(__file__).read_text() + str(extra)
    kind = "user-space-extra" if extra else "user-space"
    folder = paths.images() / f"{kind}-{_short_digest(recipe)}"
    if folder.is_dir():
        return folder
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    first = cpio.regular("usr/lib/airlab/host-init", (tools / "host-init").read_bytes(), 0o755)
    for entry in (*_user_space(root, tools, extra=extra), first):
        _put(entry, partial / entry.path)
    for old in paths.images().glob(f"{kind}-????????????????"):
        shutil.rmtree(old)
    partial.rename(folder)
    return folder


def _put(entry: cpio.Entry, target: Path) -> None:
    """Make a file, folder or link of an archive on disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISDIR(entry.mode):
        target.mkdir(exist_ok=True)
    elif stat.S_ISLNK(entry.mode):
        target.unlink(missing_ok=True)
        target.symlink_to(entry.data.decode())
    else:
        target.unlink(missing_ok=True)
        target.write_bytes(entry.data)
        target.chmod(stat.S_IMODE(entry.mode))


def _user_space(root: LabRoot, tools: Path, *, extra: bool) -> Iterator[cpio.Entry]:
    programs = [*PROGRAMS, *(EXTRA_PROGRAMS if extra else ())]
    yield from _skeleton()
    yield from _programs(root, programs)
    yield from _applets(root)
    yield from _tools(tools)


def existing(kernel: LabKernel) -> Image | None:
    """The kernel's image if one was built; builds nothing and does not ask if it is up to date."""
    found = sorted(paths.images().glob(f"{kernel.release}-????????????????.cpio"))
    return _image(kernel, found[-1]) if found else None


def _image(kernel: LabKernel, initrd: Path) -> Image:
    """Names the image by its content: equal archives are the same experiment."""
    return Image(kernel, initrd, hashlib.sha256(initrd.read_bytes()).hexdigest()[:16])


def build_tools() -> Path:
    """Build the guest's own tools in the root; returns the folder that holds them."""
    target = paths.cache() / "guest-tools"
    stamp = target / "sources.sha256"
    digest = tree_digest(paths.GUEST_SOURCE)
    if stamp.is_file() and stamp.read_text() == digest:
        return target
    print("airlab: building the guest tools", flush=True)
    root = ensure_root(GUEST_SUITE)
    folder = copy_tree_into(root, paths.GUEST_SOURCE, "guest")
    make = ["make", "-C", "/build/guest", "OUT=/build/guest/out"]
    root.chroot(make, what="building the guest tools")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in _TOOLS:
        shutil.copy(folder / "out" / name, target / name)
    for name in _SCRIPTS:
        shutil.copy(paths.GUEST_SOURCE / name, target / name)
    stamp.write_text(digest)
    return target


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _skeleton() -> Iterator[cpio.Entry]:
    for name in ("dev", "proc", "sys", "tmp", "run", "out", "etc", "lab", "root"):
        yield cpio.folder(name)
    for name, target in (
        ("bin", "usr/bin"),
        ("sbin", "usr/sbin"),
        ("lib", "usr/lib"),
        ("lib64", "usr/lib64"),
    ):
        yield cpio.link(name, target)
    yield cpio.regular("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
    yield cpio.regular("etc/group", b"root:x:0:\ntcpdump:x:100:\n")
    yield cpio.regular("etc/nsswitch.conf", b"passwd: files\nhosts: files\n")


def _programs(root: LabRoot, programs: list[str]) -> Iterator[cpio.Entry]:
    # airchan is the one tool of ours that is linked dynamically.
    linked = [*programs, "/build/guest/out/airchan"]
    listing = root.chroot(["ldd", *linked], what="listing the guest's libraries")
    libraries = re.findall(r"(/\S+\.so\S*) \(0x", listing)
    for name in sorted({*programs, *libraries, *_RUNTIME_LIBRARIES}):
        file = root.path / name.lstrip("/")
        target = name if name.startswith("/usr") else "/usr" + name
        yield cpio.regular(target.lstrip("/"), file.read_bytes(), 0o755)
    yield cpio.link("usr/bin/sh", "dash")


def _applets(root: LabRoot) -> Iterator[cpio.Entry]:
    yield cpio.regular("usr/bin/busybox", (root.path / "usr/bin/busybox").read_bytes(), 0o755)
    for name in root.chroot(["busybox", "--list"], what="listing busybox's applets").split():
        if name not in _NOT_APPLETS:
            yield cpio.link(f"usr/bin/{name}", "busybox")
    # The kernel starts /sbin/modprobe when a congestion control is asked for by name.
    yield cpio.link("usr/sbin/modprobe", "../bin/busybox")


def _tools(folder: Path) -> Iterator[cpio.Entry]:
    for name in _TOOLS:
        yield cpio.regular(f"usr/bin/{name}", (folder / name).read_bytes(), 0o755)
    yield cpio.regular("usr/lib/airlab/cell.sh", (folder / "cell.sh").read_bytes())


def _kernel_modules(kernel: LabKernel, built: Path) -> Iterator[cpio.Entry]:
    files = sorted([*kernel.modules.glob("*.ko"), *built.glob("*.ko")])
    with tempfile.TemporaryDirectory(prefix="airlab-depmod-") as scratch:
        folder = Path(scratch) / "lib/modules" / kernel.release
        folder.mkdir(parents=True)
        for file in files:
            shutil.copy(file, folder / file.name)
        (folder / "modules.order").touch()
        (folder / "modules.builtin").touch()
        (folder / "modules.builtin.modinfo").touch()
        run(["/sbin/depmod", "-b", scratch, kernel.release], what="listing module dependencies")
        for name in ("modules.dep", "modules.alias", "modules.symbols", "modules.softdep"):
            data = (folder / name).read_bytes()
            yield cpio.regular(f"usr/lib/modules/{kernel.release}/{name}", data)
    for file in files:
        yield cpio.regular(f"usr/lib/modules/{kernel.release}/{file.name}", file.read_bytes())
