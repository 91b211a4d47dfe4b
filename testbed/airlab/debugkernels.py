"""Debug kernels: built here, once, from the source that Debian packages, with detectors on.

A debug kernel is a lab kernel like any other: the same layout in the cache, found by its name.  Its
build directory is made small by the kernel's own script for external modules and stays in
the root in which the modules are built for it; sources and objects are removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from airlab import paths
from airlab.host import root_prefix, run, run_root
from airlab.kernels import DEBUG_NAMES, GUEST_MODULES, LabKernel, find, installed
from airlab.labroot import DEBUG_SUITE, KERNEL_SOURCE, LabRoot, ensure_root
from airlab.model import AirlabError

_CONFIGS = paths.TESTBED / "kernels"
_COMMON = _CONFIGS / "common.config"
_SOURCE = f"/usr/src/{KERNEL_SOURCE}"
_REPORT_EVERY_S = 20.0
_TAIL_LINES = 25
# QEMU enters the kernel by its PVH entry, which calls memcmp() before there is any shadow memory
# or per-processor data; instrumented, it ends in a triple fault (6.12 with gcc).
_UNINSTRUMENTED = ("KASAN_SANITIZE_string.o=n", "KCSAN_SANITIZE_string.o=n")
_EXTMOD = "${srctree}/scripts/package/install-extmod-build"


@dataclass(frozen=True)
class _Build:
    """One debug kernel on its way."""

    name: str
    root: LabRoot
    recipe: str

    @property
    def objects(self) -> str:
        """The folder of the objects, inside the root."""
        return f"/usr/src/{self.name}"

    @property
    def tree(self) -> Path:
        """The same seen from outside."""
        return self.root.path / self.objects.lstrip("/")

    @property
    def make(self) -> list[str]:
        """``make`` in that folder."""
        return ["make", "-C", self.objects, *_UNINSTRUMENTED]


def build(name: str) -> LabKernel:
    """Build a debug kernel, unless it is there with this source, configuration and compiler.

    An interrupted build is taken up where it stopped.

    Raises:
        AirlabError: no such debug kernel, or a step of the build failed.
    """
    if name not in DEBUG_NAMES:
        raise AirlabError(f"no debug kernel {name!r}; known: {', '.join(DEBUG_NAMES)}")
    root = ensure_root(DEBUG_SUITE)
    job = _Build(name, root, _recipe(name, root))
    there = _current(job)
    if there:
        return there
    log = paths.cache() / f"{name}.log"
    print(f"airlab: building kernel {name} (10 to 60 minutes); log: {log}", flush=True)
    _unpack_source(root)
    _configure(job)
    _compile(job, log)
    kernel = _collect(job)
    _tidy(job)
    return kernel


def _recipe(name: str, root: LabRoot) -> str:
    """SHA-256 of all that makes the kernel: source and compiler by version, configuration."""
    packages = json.loads((paths.roots() / f"{root.suite}.json").read_text())["packages"]
    tools = [p for p in packages if re.match(rf"({re.escape(KERNEL_SOURCE)}|gcc-\d+|binutils) ", p)]
    parts = [*tools, *_UNINSTRUMENTED, _fragment(name)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _fragment(name: str) -> str:
    return _COMMON.read_text() + (_CONFIGS / f"{name}.config").read_text()


def _current(job: _Build) -> LabKernel | None:
    """The kernel in the cache, if it was made by this recipe and modules can be built for it."""
    if not any(k.debug == job.name for k in installed()):
        return None
    kernel = find(job.name)
    whole = kernel.release in job.root.headers()
    return kernel if whole and kernel.info()["recipe"] == job.recipe else None


def _unpack_source(root: LabRoot) -> None:
    if (root.path / _SOURCE.lstrip("/")).is_dir():
        return
    partial = f"{_SOURCE}.partial"
    root.chroot(["rm", "-rf", partial], what="removing half-unpacked sources")
    root.chroot(["mkdir", partial], what="making room for the kernel's source")
    words = ["tar", "-xf", f"{_SOURCE}.tar.xz", "-C", partial, "--strip-components=1"]
    root.chroot(words, what="unpacking the kernel's source")
    root.chroot(["mv", partial, _SOURCE], what="unpacking the kernel's source")


def _configure(job: _Build) -> None:
    """``make allnoconfig`` with our lines; all of them must hold afterwards."""
    run_root(["mkdir", "-p", job.tree], what="making room for objects")
    wanted = paths.cache() / f"{job.name}.config"
    wanted.write_text(_fragment(job.name))
    run_root(["cp", wanted, job.tree / "airtcp.config"], what="copying the configuration")
    words = ["make", "-s", "-C", _SOURCE, f"O={job.objects}", "allnoconfig"]
    words.append(f"KCONFIG_ALLCONFIG={job.objects}/airtcp.config")
    job.root.chroot(words, what=f"configuring {job.name}")
    lost = unmet(wanted.read_text(), (job.tree / ".config").read_text())
    wanted.unlink()
    if lost:
        raise AirlabError(
            f"{_CONFIGS}/{job.name}.config: the kernel's configuration does not take "
            f"{', '.join(lost)}; remove these lines, or add what they depend on"
        )


def unmet(fragment: str, config: str) -> list[str]:
    """The lines of a fragment that a finished configuration does not have."""
    lines = set(config.splitlines())
    # An option that is off may have no line at all: its menu is not shown.
    on = {line.partition("=")[0] for line in lines if line.startswith("CONFIG_")}
    lost = []
    for line in fragment.splitlines():
        off = re.fullmatch(r"# (CONFIG_\w+) is not set", line)
        wrong = off[1] in on if off else line.startswith("CONFIG_") and line not in lines
        if wrong:
            lost.append(line)
    return lost


def _compile(job: _Build, log: Path) -> None:
    """``make vmlinux modules`` with a line of progress every 20 s."""
    jobs = len(os.sched_getaffinity(0))
    words = job.root.words(["nice", "-n", "10", *job.make, f"-j{jobs}", "vmlinux", "modules"])
    start = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*root_prefix(), *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
        try:
            while True:
                try:
                    status = process.wait(_REPORT_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    _report(job.name, log, time.monotonic() - start)
        finally:
            # The compiler's processes die with their process namespace.
            process.kill()
            process.wait()
    if status:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
        raise AirlabError(f"building {job.name} failed (make ended with {status}); {log}:\n{tail}")


def _report(name: str, log: Path, seconds: float) -> None:
    files = log.read_bytes().count(b"\n  CC")
    minutes, rest = divmod(int(seconds), 60)
    print(f"{name}: {files} files compiled in {minutes}:{rest:02}", file=sys.stderr, flush=True)


def _collect(job: _Build) -> LabKernel:
    """Put the kernel into the cache and its build directory into the root."""
    words = ["make", "-s", "-C", job.objects, "kernelrelease"]
    release = job.root.chroot(words, what="asking for the release").strip().splitlines()[-1]
    _install_build_directory(job, release)
    kernel = LabKernel(release, DEBUG_SUITE, paths.kernels() / release)
    partial = kernel.path.with_name(release + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "modules").mkdir(parents=True)
    # Symbols are in the kernel's own table; the file's are only weight at every boot.
    run(["strip", "-s", "-o", partial / "vmlinux", job.tree / "vmlinux"], what="stripping vmlinux")
    shutil.copy(job.tree / ".config", partial / "config")
    for module in job.tree.rglob("*.ko"):
        target = partial / "modules" / module.name.replace("-", "_")
        run(["strip", "--strip-debug", "-o", target, module], what=f"stripping {module.name}")
    lost = [m for m in GUEST_MODULES if not (partial / "modules" / f"{m}.ko").is_file()]
    if lost:
        raise AirlabError(f"{_COMMON}: no option builds the modules {', '.join(lost)}; add them")
    for old in installed():
        if old.debug == job.name:
            shutil.rmtree(old.path)
    # Last, since it is what makes a folder a kernel.
    _record(job, kernel, partial / "package.json")
    partial.rename(kernel.path)
    return kernel


def _tidy(job: _Build) -> None:
    """Remove the objects, and the sources unless another kernel is being built from them."""
    run_root(["rm", "-rf", "--one-file-system", job.tree], what="removing objects")
    if not any((job.root.path / "usr/src" / name).is_dir() for name in DEBUG_NAMES):
        source = job.root.path / _SOURCE.lstrip("/")
        run_root(["rm", "-rf", "--one-file-system", source], what="removing sources")


def _install_build_directory(job: _Build, release: str) -> None:
    headers = f"/usr/src/linux-headers-{release}"
    modules = job.root.path / "usr/lib/modules" / release
    job.root.chroot(["rm", "-rf", headers], what="removing an old build directory")
    words = [*job.make, "run-command", f"KBUILD_RUN_COMMAND={_EXTMOD} {headers}"]
    job.root.chroot(words, what="making the build directory for modules")
    run_root(["mkdir", "-p", modules], what="making the modules' folder")
    run_root(["ln", "-sfn", headers, modules / "build"], what="linking the build directory")


def _record(job: _Build, kernel: LabKernel, file: Path) -> None:
    packages = json.loads((paths.roots() / f"{job.root.suite}.json").read_text())["packages"]
    source = next(p for p in packages if p.startswith(f"{KERNEL_SOURCE} "))
    record = {
        "release": kernel.release,
        "suite": kernel.suite,
        "package": f"{source.replace(' ', '_')} with {job.name}.config",
        "recipe": job.recipe,
    }
    file.write_text(json.dumps(record, indent=1))
