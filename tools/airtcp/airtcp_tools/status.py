"""What a host has of airtcp, and what stands in its way."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from airtcp_tools import MODULES, version
from airtcp_tools.routes import list_routes
from airtcp_tools.system import PROC_NET, available, read

_SECURE_BOOT = Path("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c")


def secure_boot() -> str:
    """``on``, ``off``, ``no EFI`` or ``unknown``."""
    if not Path("/sys/firmware/efi").is_dir():
        return "no EFI"
    try:
        # Four bytes of attributes, then the value.
        return "on" if _SECURE_BOOT.read_bytes()[4:5] == b"\1" else "off"
    except FileNotFoundError:
        return "off"
    except OSError:
        return "unknown"


def _lockdown() -> str:
    """The word in brackets of ``[none] integrity confidentiality``."""
    text = read(Path("/sys/kernel/security/lockdown")) or ""
    return text.partition("[")[2].partition("]")[0] or "unknown"


def _modinfo(module: str, what: str) -> str | None:
    """A field of the module that ``modprobe`` would load; None without one."""
    try:
        done = subprocess.run(
            ["modinfo", "-F", what, module], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None


def _module(algorithm: str, module: str) -> dict[str, Any]:
    loaded = Path("/sys/module") / module
    return {
        "algorithm": algorithm,
        "module": module,
        "loaded": loaded.is_dir(),
        "loaded_version": read(loaded / "version"),
        "installed_version": _modinfo(module, "version"),
        # Versions may be equal where the code is not, and the code where versions are not: the
        # version is no part of the sources that srcversion is the sum of.
        "loaded_is_installed": all(
            read(loaded / name) == _modinfo(module, name) for name in ("version", "srcversion")
        ),
        "file": _modinfo(module, "filename"),
        "signer": _modinfo(module, "signer"),
    }


def status() -> dict[str, Any]:
    """All of it as plain values."""
    return {
        "airtcp": version(),
        "kernel": os.uname().release,
        "modules": [_module(*pair) for pair in MODULES.items()],
        "default": read(PROC_NET / "tcp_congestion_control"),
        "available": available(),
        "allowed": (read(PROC_NET / "tcp_allowed_congestion_control") or "").split(),
        "secure_boot": secure_boot(),
        "lockdown": _lockdown(),
        "signatures_enforced": read(Path("/sys/module/module/parameters/sig_enforce")) == "Y",
        "routes": list_routes(),
    }


def as_text(found: dict[str, Any]) -> str:
    """For people."""
    lines = [f"airtcp {found['airtcp']}, kernel {found['kernel']}"]
    for module in found["modules"]:
        lines.append(f"{module['algorithm']}: {_module_text(module)}")
    lines += [
        f"default algorithm: {found['default']}",
        f"loaded or built in: {' '.join(found['available'])}",
        f"allowed to everybody: {' '.join(found['allowed'])}",
        f"Secure Boot: {found['secure_boot']}; lockdown: {found['lockdown']}; "
        f"unsigned modules: {'refused' if found['signatures_enforced'] else 'accepted'}",
        f"routes of airtcp: {len(found['routes'])}",
    ]
    return "\n".join(lines)


def _module_text(module: dict[str, Any]) -> str:
    installed = module["installed_version"]
    there = f"{module['module']} {installed}, {module['file']}" if installed else "no module file"
    signed = f", signed by {module['signer']}" if module["signer"] else ""
    if not module["loaded"]:
        return f"not loaded; installed: {there}{signed}"
    text = f"loaded, version {module['loaded_version']}; installed: {there}{signed}"
    if installed and not module["loaded_is_installed"]:
        text += "; the loaded one is another build: `airtcp unload` it, then load it again"
    return text
