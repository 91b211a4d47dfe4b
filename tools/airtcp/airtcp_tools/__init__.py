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


def version() -> str:
    """airtcp's version: the file VERSION that was installed here, or the checkout's."""
    here = Path(__file__).resolve()
    installed = here.with_name("VERSION")
    file = installed if installed.is_file() else here.parents[3] / "modules" / "VERSION"
    return file.read_text().strip()
