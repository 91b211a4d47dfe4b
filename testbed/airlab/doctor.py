"""What works on this machine, what does not, what that costs, and which engine is used."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airlab import kernels, paths
from airlab.engines.vm import QEMU, RAM_MB


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report."""

    ok: bool
    subject: str
    text: str
    needed: bool = True


def examine() -> list[Finding]:
    """All findings, most important first; changes nothing and needs no root."""
    checks: list[Callable[[], Finding]] = [
        _qemu,
        _pinning,
        _memory,
        _disk,
        _builder,
        _kernel,
        _root,
        _kvm,
    ]
    return [check() for check in checks]


def report(findings: list[Finding]) -> str:
    """The findings as text, ending with the engine's choice and its reason."""
    lines = []
    for finding in findings:
        mark = "ok  " if finding.ok else ("MISS" if finding.needed else "note")
        lines.append(f"{mark}  {finding.subject:<22} {finding.text}")
    lines.append("")
    if healthy(findings):
        lines.append(
            "engine: vm (QEMU's emulator, virtual time): it needs neither root nor KVM, and the\n"
            "only one that gives the same result twice, to the last bit."
        )
    else:
        lines.append("engine: none yet; mend what is marked MISS (`make setup` does most of it).")
    return "\n".join(lines)


def healthy(findings: list[Finding]) -> bool:
    """Whether experiments can be run."""
    return all(f.ok for f in findings if f.needed)


def _qemu() -> Finding:
    if shutil.which(QEMU) is None:
        return Finding(False, "QEMU", f"{QEMU} is not installed; `make setup` installs it")
    done = subprocess.run([QEMU, "--version"], capture_output=True, text=True, check=False)
    version = done.stdout.splitlines()[0] if done.stdout else "no version"
    return Finding(done.returncode == 0, "QEMU", version)


def _pinning() -> Finding:
    ok = shutil.which("taskset") is not None and shutil.which("setpriv") is not None
    text = (
        "guests are pinned and die with airlab"
        if ok
        else (
            "taskset or setpriv (util-linux) is missing: runs take about 1.4 times as long, and a "
            "killed airlab leaves its guests running"
        )
    )
    return Finding(ok, "taskset, setpriv", text, needed=False)


def _memory() -> Finding:
    pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    free = pages * size >> 20
    jobs = free // RAM_MB
    text = f"{free} MB free: room for {jobs} guests of {RAM_MB} MB at once"
    return Finding(jobs >= 1, "memory", text)


def _disk() -> Finding:
    folder = paths.cache() if paths.cache().exists() else paths.REPO
    free = shutil.disk_usage(folder).free >> 20
    return Finding(free > 2000, "disk", f"{free} MB free at {folder} (2 GB are needed once)")


def _builder() -> Finding:
    names = ("mmdebstrap", "unshare", "depmod", "zstd", "dpkg-deb")
    missing = [n for n in names if shutil.which(n) is None and not Path("/sbin", n).exists()]
    if missing:
        return Finding(False, "build programs", f"missing: {', '.join(missing)}; run `make setup`")
    return Finding(True, "build programs", ", ".join(names))


def _kernel() -> Finding:
    there = kernels.installed()
    if not there:
        return Finding(False, "lab kernels", "none yet; `make setup` fetches one")
    return Finding(True, "lab kernels", ", ".join(k.release for k in there))


def _root() -> Finding:
    if os.geteuid() == 0:
        return Finding(True, "root", "we are root; only building needs it", needed=False)
    if shutil.which("sudo"):
        return Finding(True, "root", "by sudo, for building; running needs none", needed=False)
    return Finding(
        False, "root", "neither root nor sudo: what is built works, building does not", needed=False
    )


def _kvm() -> Finding:
    node = Path("/dev/kvm")
    if not node.exists():
        return Finding(True, "KVM", "no /dev/kvm; not needed", needed=False)
    return Finding(
        True,
        "KVM",
        "/dev/kvm is there, which does not prove that a guest boots in it; not used: real time "
        "cannot repeat a run exactly",
        needed=False,
    )
