"""Pages: one HTML file each, that needs no network and no server.

``assets/panels.js`` and ``assets/page.css`` are shared with airlab's page of a campaign.
"""

from __future__ import annotations

from pathlib import Path

ASSETS = Path(__file__).with_name("assets")
VENDOR = ASSETS / "vendor/uplot"


def shared_script() -> str:
    """The panels over time; defines ``panels``."""
    return (ASSETS / "panels.js").read_text()


def shared_style() -> str:
    """The style sheet of all pages."""
    return (ASSETS / "page.css").read_text()
