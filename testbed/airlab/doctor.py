"""What works on this machine, what does not, what that costs, and which engine is used."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airlab import image, kernels, paths, undo
from airlab.engines.host import HostEngine
from airlab.engines.kvm import DEVICE, KvmEngine
from airlab.engines.qemu import QEMU, VIRTUAL_TIME
from airlab.plan import build_plan, cells
from airlab.scenario import load_scenario


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report."""

    ok: bool
    subject: str
    text: str
    needed: bool = True


def examine() -> list[Finding]:
    """All findings, most important first; needs no root and leaves nothing but the answer of the
    KVM probe, which boots a guest once."""
    checks: list[Callable[[], Finding]] = [
        _qemu,
        _pinning,
        _memory,
        _disk,
        _builder,
        _kernel,
        _root,
        _kvm,
        _host,
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
    jobs = free // VIRTUAL_TIME.ram_mb
    text = f"{free} MB free: room for {jobs} guests of {VIRTUAL_TIME.ram_mb} MB at once"
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
    if not DEVICE.exists():
        return Finding(True, "KVM", f"no {DEVICE}; not needed", needed=False)
    there = [made for kernel in kernels.installed() if (made := image.existing(kernel))]
    if not there:
        text = f"{DEVICE} is there; not tried, since there is no guest image yet (`make setup`)"
        return Finding(True, "KVM", text, needed=False)
    found = KvmEngine(there[-1]).availability()
    use = "--engine kvm can be had (real time)" if found.ok else "it is not used"
    return Finding(found.ok, "KVM", f"{use}: {found.reason}", needed=False)


def _host() -> Finding:
    """What any scenario needs of this machine's own kernel, and what killed runs left there."""
    left = undo.leftovers()
    if left:
        text = f"{len(left)} journal(s) in {undo.STATE}: a cell is running, or `airlab host-clean`"
        return Finding(False, "host engine", text, needed=False)
    scenario = load_scenario(paths.SCENARIOS / "demo.toml")
    plan = build_plan(scenario, cells(scenario)[0])
    found = HostEngine([plan]).availability()
    use = "--engine host can be had (real time)" if found.ok else "cannot be used"
    return Finding(found.ok, "host engine", f"{use}: {found.reason}", needed=False)
