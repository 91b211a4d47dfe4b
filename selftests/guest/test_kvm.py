"""KVM is believed only after a guest has answered: QEMUs that lie in every way they can."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from airlab.engines import choose as choosing
from airlab.engines import kvm
from airlab.engines.kvm import KvmEngine
from airlab.engines.qemu import QEMU
from airlab.image import Image
from airlab.model import AirlabError

pytestmark = pytest.mark.guest

PATIENCE_S = 240.0
"""For guests under emulation on a loaded machine, where the real probe gives a KVM ten seconds."""

ABORTS = "echo 'kvm_buf_set_msrs: Assertion failed' >&2; kill -ABRT $$"
HANGS = "exec sleep 1000"
LATE = 'sleep 4; exec "$REAL" "$@"'
# What a KVM that works looks like from here, and one whose clock does not run like ours.
WORKS = 'exec {python} - "$REAL" "$@" <<"EOF"\n{edit}\nEOF'
EDIT = """
import os, sys
words = sys.argv[1:]
words[words.index("kvm")] = "tcg,thread=single"
words[words.index("host")] = "qemu64"
os.execv(words[0], words + {more})
"""
TWISTED = '["-icount", "shift=0,sleep=off"]'

Fake = Callable[[str], None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: Image) -> Fake:
    """Puts a QEMU first on PATH that does what a script says; the probe's memory is empty."""
    real = shutil.which(QEMU)
    assert real and image.initrd.is_file()

    def make(script: str) -> None:
        program = tmp_path / "bin" / QEMU
        program.parent.mkdir(exist_ok=True)
        head = f'#!/bin/sh\nREAL={shlex.quote(real)}\n[ "$1" = --version ] && exec "$REAL" "$1"\n'
        program.write_text(head + script + "\n")
        program.chmod(0o755)

    device = tmp_path / "kvm"
    device.touch()
    monkeypatch.setattr(kvm, "DEVICE", device)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("AIRTCP_CACHE", str(tmp_path / "cache"))
    return make


def _works(more: str = "[]") -> str:
    return WORKS.format(python=sys.executable, edit=EDIT.format(more=more))


def _children() -> list[str]:
    """Commands of the processes that this one has started and that still run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.append(command)
    return found


@pytest.mark.parametrize(
    ("script", "deadline_s", "reason"),
    [
        (ABORTS, 60.0, "ended with status -6: kvm_buf_set_msrs: Assertion failed"),
        (HANGS, 2.0, "2 s of wall time"),
        (LATE, 2.0, "2 s of wall time"),
        (_works(TWISTED), PATIENCE_S, "its clock is wrong: "),
    ],
    ids=["aborts", "hangs", "late", "clock"],
)
def test_a_kvm_that_does_not_work_is_not_used(
    fake: Fake, image: Image, script: str, deadline_s: float, reason: str
) -> None:
    fake(script)
    before = _children()
    found = KvmEngine(image, deadline_s).availability()
    assert (found.ok, reason in found.reason) == (False, True), found
    assert _children() == before, "the probe left a process behind"


def test_a_kvm_that_works_is_found_once(fake: Fake, image: Image, tmp_path: Path) -> None:
    fake(_works())
    engine = KvmEngine(image, PATIENCE_S)
    first = engine.verdict()
    record = tmp_path / "cache" / "kvm-probe.json"
    for _ in range(2):
        # Emulation on a machine with too much to do may fail the clock's test now and then.
        if not first.ok and "clock" in first.reason:
            record.unlink()
            first = engine.verdict()
    assert first.ok, first
    start = time.monotonic()
    assert engine.verdict() == first
    assert time.monotonic() - start < first.wall_s / 2, "the probe ran again"
    # Another QEMU is another question.
    fake(ABORTS)
    assert not engine.verdict().ok


def test_a_refusal_is_forgotten_after_an_hour(fake: Fake, image: Image, tmp_path: Path) -> None:
    fake(f"echo tried >>{tmp_path}/tries; {ABORTS}")
    engine = KvmEngine(image)
    assert not engine.verdict().ok
    assert not engine.verdict().ok
    tries = tmp_path / "tries"
    assert tries.read_text().count("tried") == 1
    record = tmp_path / "cache" / "kvm-probe.json"
    old = record.stat().st_mtime - kvm.FORGET_S - 1
    os.utime(record, (old, old))
    assert not engine.verdict().ok
    assert tries.read_text().count("tried") == 2


def test_this_machine_gets_kvm_only_if_a_guest_ran(image: Image) -> None:
    """Whatever /dev/kvm is here: available means that the probe passes when asked again."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        assert not KvmEngine(image).availability().ok
        return
    before = _children()
    engine = KvmEngine(image)
    assert engine.probe().ok == engine.probe().ok == engine.availability().ok
    assert _children() == before


@pytest.mark.parametrize(("fast", "works", "expected"), [
    (False, True, "vm"), (True, True, "kvm"), (True, False, "vm"),
])  # fmt: skip
def test_the_rules_of_auto(
    monkeypatch: pytest.MonkeyPatch, image: Image, fast: bool, works: bool, expected: str
) -> None:
    monkeypatch.setattr(
        KvmEngine, "availability", lambda _self: kvm.Availability(works, "as the test says")
    )
    monkeypatch.setattr(choosing, "ensure_image", lambda _kernel, *, extra: image)
    assert choosing.choose("auto", plans=[], kernel=None, fast=fast).name == expected
    if not works:
        with pytest.raises(AirlabError, match="--engine kvm does not work here: as the test says"):
            choosing.choose("kvm", plans=[], kernel=None, fast=fast)


@pytest.mark.parametrize(
    ("slept", "reason"),
    [
        # /proc/uptime cuts its hundredths off: this is what a right clock may show of 0.8 s.
        ((0.79, 0.8, 0.81, 0.8, 0.8), ""),
        ((0.81, 0.8, 0.4, 0.8, 0.8), "its clock is wrong: a sleep of 0.8 s took 0.400 s"),
        ((1.7, 1.7, 1.7, 1.7, 1.7), "its clock is wrong: its seconds took 0.47 s"),
        ((0.8, 0.8, 0.8), "the guest gave 4 of 6 signs of life"),
    ],
    ids=["hundredths", "short", "slow", "few"],
)
def test_what_is_a_wrong_clock(slept: tuple[float, ...], reason: str) -> None:
    guest = [10.0 + sum(slept[:n]) for n in range(len(slept) + 1)]
    here = [100.0 + 0.8 * n for n in range(len(guest))]
    ok, text = kvm.ProbeClock(guest, here).judge()
    assert ok == (not reason)
    assert text == (reason or "a guest booted in it; its seconds took 1.00 s")
