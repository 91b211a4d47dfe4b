"""Secure Boot as docs/install.md tells it, followed in a guest: refused, enrolled, loaded.

`make check-packaging` runs this.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import secureboot
from builddebs import build, firmware_root
from machine import Result
from secureboot import DOWN, ENTER, Answer, Firmware
from test_package import GUEST, MACHINE, OLD, TIMEOUT_S, Boot, boot

pytestmark = pytest.mark.packaging

# What a person sees in MokManager, and types.
ENROL = (
    Answer(r"Press any key to perform MOK management", ENTER),
    Answer(r"Enroll MOK", DOWN + ENTER),
    Answer(r"View key 0", DOWN + ENTER),
    # The question stands above, but comes in pieces.
    Answer(r"No.*Yes", DOWN + ENTER),
    Answer(r"Password:", "airtcp" + ENTER),
    Answer(r"Reboot", ENTER),
)


class Bench:
    """A machine with the packages on a disk of its own, and firmware that remembers."""

    def __init__(self, disk: Path, folder: Path) -> None:
        self.disk = disk
        self.variables = folder / "variables.fd"
        self.firmware = Firmware(firmware_root())
        self.firmware.fresh_variables(self.variables)

    def start(self, script: str, answers: tuple[Answer, ...] = ()) -> tuple[Result | None, str]:
        """Boot through the firmware."""
        return secureboot.boot(
            MACHINE,
            self.firmware,
            variables=self.variables,
            script=script,
            files={path.name: path.read_bytes() for path in GUEST.iterdir()},
            disk=self.disk,
            timeout_s=TIMEOUT_S,
            answers=answers,
        )

    def facts(self, name: str) -> Boot:
        """Boot, and what a script found out."""
        result, screen = self.start(f"exec ./{name}.sh")
        assert "UEFI Secure Boot is enabled" in screen
        assert result is not None
        return Boot(result)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("secureboot")
    build(MACHINE.suite, folder, OLD)
    debs = {path.name: path.read_bytes() for path in folder.glob("*.deb")}
    with MACHINE.disk() as disk:
        boot("prepare", disk)
        boot("install", disk, debs)
        yield Bench(disk, folder)


@pytest.fixture(scope="module")
def refused(bench: Bench) -> Boot:
    return bench.facts("sb-import")


@pytest.fixture(scope="module")
def enrolled(bench: Bench, refused: Boot) -> Boot:
    bench.start("exit 1", ENROL)
    return bench.facts("sb-enrolled")


def test_an_unknown_key_is_refused(refused: Boot) -> None:
    assert "SecureBoot enabled" in refused.did("sb_state")
    assert "Key was rejected by service" in refused.failed("own")
    refused.did("debian")
    assert "Secure Boot: on" in refused.did("status")


def test_the_key_waits_for_the_next_boot(refused: Boot) -> None:
    refused.did("import")
    assert "DKMS module signing key" in refused.did("pending")


def test_an_enrolled_key_is_accepted_and_no_signature_is_not(enrolled: Boot) -> None:
    assert "SecureBoot enabled" in enrolled.did("sb_state")
    assert "is already enrolled" in enrolled.facts["enrolled"]
    enrolled.did("own")
    assert enrolled["loaded"] == "yes"
    assert "Key was rejected by service" in enrolled.failed("unsigned")
    enrolled.did("sign")
    enrolled.did("signed")
    loaded = {m["algorithm"]: m["loaded"] for m in enrolled.json("status.json")["modules"]}
    assert [name for name in loaded if loaded[name]] == ["j"]
