"""What the host is asked, and told: programs, files of /proc and /sys."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

PROC_NET = Path("/proc/sys/net/ipv4")


class ToolError(Exception):
    """Something that the person at the keyboard can mend; its text says how."""


def run(argv: Sequence[str], *, what: str, remedy: str = "") -> str:
    """Run a program and return its standard output.

    Raises:
        ToolError: it is not installed or ended with a status other than 0.
    """
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    except FileNotFoundError as error:
        raise ToolError(f"{what}: the program {argv[0]} is not installed") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        hint = f"\n{remedy}" if remedy else ""
        raise ToolError(f"{what}: `{shlex.join(argv)}` said: {said}{hint}")
    return done.stdout


def read(file: Path) -> str | None:
    """The text of a file without white space around it; None if there is none to read."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return None


def write_sysctl(name: str, value: str) -> None:
    """Set a value below net.ipv4.

    Raises:
        ToolError: the kernel refused.
    """
    try:
        (PROC_NET / name).write_text(value)
    except OSError as error:
        raise ToolError(f"net.ipv4.{name}: cannot write {value!r}: {error.strerror}") from error


def available() -> list[str]:
    """The algorithms that are loaded or built in."""
    return (read(PROC_NET / "tcp_available_congestion_control") or "").split()


def ensure_algorithm(name: str) -> None:
    """Load the module of an algorithm, unless the kernel has it already.

    Raises:
        ToolError: there is no such module, or it cannot be loaded.
    """
    if name in available():
        return
    run(
        ["modprobe", f"tcp_{name}"],
        what=f"loading the algorithm {name}",
        remedy="Is the module built for this kernel (`dkms status`, `uname -r`)? With Secure Boot "
        "it must be signed by a key the machine knows: see `airtcp status`.",
    )
    if name not in available():
        raise ToolError(f"module tcp_{name} is loaded, and the kernel has no algorithm {name!r}")
