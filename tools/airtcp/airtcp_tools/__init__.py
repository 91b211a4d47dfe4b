"""airtcp's congestion control on a host: its routes, its modules, what holds them."""

from __future__ import annotations

from pathlib import Path

MODULES = {
    "j": "tcp_j",
    "imtcp": "imtcp",
    "imtcp_bg": "imtcp",
    "symbiosis": "tcp_symbiosis",
    "cherry": "tcp_cherry",
    "cherry_plus": "tcp_cherry",
}
"""airtcp's algorithms and the modules they are in."""


def module_of(algorithm: str) -> str:
    """The module of an algorithm; of one that is not airtcp's, by the kernel's rule for names."""
    return MODULES.get(algorithm, f"tcp_{algorithm}")


def algorithms_of(module: str) -> tuple[str, ...]:
    """All algorithms of a module: a socket with any of them holds it."""
    ours = tuple(name for name, its in MODULES.items() if its == module)
    return ours or (module.removeprefix("tcp_"),)


def version() -> str:
    """airtcp's version: the file VERSION that was installed here, or the checkout's."""
    here = Path(__file__).resolve()
    installed = here.with_name("VERSION")
    file = installed if installed.is_file() else here.parents[3] / "modules" / "VERSION"
    return file.read_text().strip()
