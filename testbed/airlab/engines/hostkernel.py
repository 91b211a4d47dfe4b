"""What the kernel of a real host has, and how it gets what a cell needs beyond that."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from airlab import paths
from airlab.host import run
from airlab.labroot import tree_digest
from airlab.model import AirlabError
from airlab.undo import loaded_modules

AUTOLOADED = (
    *("veth", "af_packet", "sch_ingress", "cls_bpf", "cls_matchall", "act_mirred"),
    *("act_gact", "sch_fq", "sch_fq_codel", "sch_codel"),
)
"""What the kernel may load by itself when a cell's programs ask for a device, queue or socket."""

STAMP = "sources.sha256"

_OPTIONS = {
    "tcp_highspeed": "TCP_CONG_HSTCP",
    "af_packet": "PACKET",
    "sch_htb": "NET_SCH_HTB",
}
_FAMILIES = {"sch_": "NET_SCH_", "cls_": "NET_CLS_", "act_": "NET_ACT_", "tcp_": "TCP_CONG_"}

_REFUSALS = (
    (
        ("Key was rejected by service", "Required key not available"),
        "Secure Boot accepts only signed modules: sign it with a key that this machine trusts "
        "(mokutil), or install the airtcp-dkms package, whose build signs",
    ),
    (
        ("Operation not permitted",),
        "the kernel's lockdown or kernel.modules_disabled forbids loading modules",
    ),
    (
        ("Invalid module format", "Exec format error"),
        "it was built for another kernel: remove it, so that it is built anew",
    ),
)


def release() -> str:
    """The running kernel's release."""
    return os.uname().release


def _folder() -> Path:
    return Path("/lib/modules") / release()


def has_module_support() -> bool:
    """Whether this kernel can load modules at all."""
    return Path("/proc/modules").exists()


@cache
def config() -> str | None:
    """The kernel's configuration, wherever it is to be had."""
    packed = Path("/proc/config.gz")
    if packed.exists():
        return gzip.decompress(packed.read_bytes()).decode()
    for file in (Path(f"/boot/config-{release()}"), _folder() / "config"):
        if file.is_file():
            return file.read_text()
    return None


def option(module: str) -> str:
    """The kernel's name for what a module holds: ``sch_netem`` is ``CONFIG_NET_SCH_NETEM``."""
    for prefix, group in _FAMILIES.items():
        if module.startswith(prefix) and module not in _OPTIONS:
            return f"CONFIG_{group}{module.removeprefix(prefix).upper()}"
    return f"CONFIG_{_OPTIONS.get(module, module.upper())}"


def is_there(module: str) -> bool:
    """Whether the kernel has it already, loaded or built in."""
    if (Path("/sys/module") / module).exists():
        return True
    builtin = _folder() / "modules.builtin"
    if builtin.is_file() and re.search(_file_of(module), builtin.read_text(), re.MULTILINE):
        return True
    return f"\n{option(module)}=y\n" in f"\n{config() or ''}\n"


def _file_of(module: str) -> str:
    return rf"/{module.replace('_', '[-_]')}\.ko"


def can_be_loaded(module: str) -> bool:
    """Whether modprobe knows it (a distribution's, or installed by our package)."""
    if not has_module_support() or shutil.which("modprobe") is None:
        return False
    words = ["modprobe", "-n", "-q", module]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def is_ours(module: str) -> bool:
    """Whether its source is in this checkout."""
    return (paths.MODULES_SOURCE / module).is_dir()


def problems(modules: Iterable[str]) -> list[str]:
    """Why this kernel cannot run cells that need these modules; empty when it can."""
    found = []
    missing: list[str] = []
    ours: list[str] = []
    for name in modules:
        if not is_there(name) and not can_be_loaded(name):
            (ours if is_ours(name) and has_module_support() else missing).append(name)
    if missing:
        options = ", ".join(f"{name} ({option(name)})" for name in missing)
        how = (
            "install the package of the kernel's modules (linux-modules-extra on Ubuntu)"
            if has_module_support()
            else "this kernel has no module support (CONFIG_MODULES), so nothing can be added"
        )
        found.append(f"kernel {release()} lacks {options}: {how}")
    build = _folder() / "build"
    if ours and _is_built():
        return found
    if ours and not build.is_dir():
        found.append(
            f"{', '.join(ours)}: neither installed nor can it be built, since {build} is missing: "
            f"install linux-headers-{release()}, or the airtcp-dkms package"
        )
    elif ours and shutil.which("make") is None:
        found.append(f"{', '.join(ours)}: make and gcc are needed to build it")
    return found


def _built() -> Path:
    return paths.cache() / "host-modules" / release()


def _is_built() -> bool:
    stamp = _built() / STAMP
    return stamp.is_file() and stamp.read_text() == tree_digest(paths.MODULES_SOURCE)


def build_ours() -> Path:
    """Build our modules for this kernel, unless that was done; the folder with ``*.ko``.

    Raises:
        AirlabError: the build failed; the message carries the compiler's last lines.
    """
    source, target = paths.MODULES_SOURCE, _built()
    if _is_built():
        return target
    print(f"airlab: building the modules for this host's kernel {release()}", flush=True)
    shutil.rmtree(target, ignore_errors=True)
    work = target / "source"
    shutil.copytree(source, work, ignore=shutil.ignore_patterns("*.o", "*.ko", "generated"))
    words = ["make", "-C", str(work), f"KDIR={_folder() / 'build'}"]
    run(words, what=f"building the modules for {release()}")
    for module in work.rglob("*.ko"):
        shutil.copy(module, target / module.name)
    shutil.rmtree(work)
    (target / STAMP).write_text(tree_digest(source))
    return target


def closure(modules: Iterable[str]) -> list[str]:
    """These modules, those they need, and those that the kernel may load for a cell by itself."""
    names: dict[str, None] = {}
    for module in (*modules, *AUTOLOADED):
        names[module] = None
        if shutil.which("modprobe") and has_module_support():
            words = ["modprobe", "--show-depends", module]
            said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
            for file in re.findall(r"^insmod (\S+)", said, re.MULTILINE):
                names[Path(file).name.split(".ko")[0].replace("-", "_")] = None
    return list(names)


def load(module: str) -> None:
    """Load a module unless the kernel has it.

    Raises:
        AirlabError: the kernel or its policy refuses it; says what to do.
    """
    if is_there(module) or module in loaded_modules():
        return
    if can_be_loaded(module):
        words = ["modprobe", module]
    else:
        words = ["insmod", str(build_ours() / f"{module}.ko")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        why = next((hint for texts, hint in _REFUSALS if any(t in said for t in texts)), "")
        raise AirlabError(f"loading {module} failed: {said}" + (f"; {why}" if why else ""))
