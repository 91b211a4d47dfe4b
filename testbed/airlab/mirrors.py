"""Debian mirrors: taken from the host's own apt configuration, never written down here."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from airlab.host import run
from airlab.model import AirlabError

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True)
class Mirrors:
    """Base addresses of the main and the security archive."""

    main: str
    security: str

    def sources(self, suite: str) -> list[str]:
        """``sources.list`` lines of a suite, with its security updates where it has some."""
        signed = f"[signed-by={KEYRING}]"
        if suite == "sid":
            return [f"deb {signed} {self.main} sid main"]
        base = suite.removesuffix("-backports")
        lines = [
            f"deb {signed} {self.main} {base} main",
            f"deb {signed} {self.main} {base}-updates main",
            f"deb {signed} {self.security} {base}-security main",
        ]
        if suite.endswith("-backports"):
            lines.append(f"deb {signed} {self.main} {suite} main")
        return lines


def find_mirrors() -> Mirrors:
    """The mirrors this host uses (``AIRTCP_MIRROR``, ``AIRTCP_SECURITY_MIRROR`` override).

    Raises:
        AirlabError: apt names no Debian archive.
    """
    main = os.environ.get("AIRTCP_MIRROR", "")
    security = os.environ.get("AIRTCP_SECURITY_MIRROR", "")
    if not (main and security):
        listing = run(
            [
                "apt-get",
                "indextargets",
                "--format",
                "$(REPO_URI)|$(CODENAME)",
                "Created-By: Packages",
            ],
            what="reading apt's sources",
        )
        for line in listing.splitlines():
            uri, _, codename = line.partition("|")
            if re.fullmatch(r"[a-z]+-security", codename):
                security = security or uri
            elif re.fullmatch(r"bookworm|trixie|forky|sid", codename):
                main = main or uri
    if not main:
        raise AirlabError(
            "apt knows no Debian archive (bookworm, trixie or sid); run `apt-get update`, or set "
            "AIRTCP_MIRROR and AIRTCP_SECURITY_MIRROR to the addresses of a Debian mirror"
        )
    return Mirrors(main, security or re.sub(r"/debian/?$", "/debian-security/", main))
