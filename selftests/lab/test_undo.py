"""The journal of engine host: undone by airlab, by its guardian, or by the next run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from airlab import undo
from airlab.undo import Journal

GUARD_S = 60.0


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    folder = tmp_path / "state" / "host-1"
    folder.mkdir(parents=True)
    return Journal(folder)


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + GUARD_S
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_values_come_back_in_reverse_order(journal: Journal, tmp_path: Path) -> None:
    setting = tmp_path / "rmem_max"
    setting.write_text("1\n")
    for value in ("2\n", "3\n"):
        journal.note_value(setting)
        setting.write_text(value)
    assert journal.undo() == []
    assert setting.read_text() == "1\n"
    assert not journal.folder.exists()


def test_a_note_that_was_not_finished_is_no_note(journal: Journal, tmp_path: Path) -> None:
    setting = tmp_path / "x"
    setting.write_text("old\n")
    journal.note_value(setting)
    with (journal.folder / "journal").open("a") as file:
        file.write('{"kind": "value", "path": "/proc/sys/ker')
    setting.write_text("new\n")
    assert journal.undo() == []
    assert setting.read_text() == "old\n"


def test_a_process_is_ended_only_if_it_is_the_same_one(journal: Journal) -> None:
    sleeper = subprocess.Popen(["sleep", "1000"])
    journal.note("process", pid=sleeper.pid, start="0")
    assert journal.undo() == []
    assert sleeper.poll() is None, "somebody else's process was killed"
    journal.folder.mkdir()
    journal.note("process", pid=sleeper.pid, start=undo.start_time(sleeper.pid))
    assert journal.undo() == []
    assert sleeper.wait() == -signal.SIGKILL


def test_what_cannot_be_undone_is_told(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undo, "PATIENCE_S", 0.2)
    busy = tmp_path / "instance"
    (busy / "open").mkdir(parents=True)
    setting = tmp_path / "x"
    setting.write_text("old\n")
    journal.note_value(setting)
    journal.note("instance", path=str(busy))
    setting.write_text("new\n")
    assert journal.undo() == [f"instance: {busy} cannot be removed"]
    assert setting.read_text() == "old\n", "the rest was not undone"


@pytest.mark.parametrize("stubborn", [False, True])
def test_only_the_cells_own_modules_are_unloaded(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    """A module goes when nothing uses it any more; others stay, whoever loaded them."""
    monkeypatch.setattr(undo, "PATIENCE_S", 0.3 if stubborn else GUARD_S)
    here = ["tcp_j", "sch_netem", "usb_storage"]
    tries: list[str] = []

    def rmmod(words: list[str], **_: object) -> None:
        tries.append(words[1])
        # netem is in use until the second try, or for good.
        if words[1] == "tcp_j" or (tries.count(words[1]) > 1 and not stubborn):
            here.remove(words[1])

    monkeypatch.setattr(undo, "loaded_modules", lambda: set(here))
    monkeypatch.setattr(undo.subprocess, "run", rmmod)
    journal.note("modules", names=["tcp_j", "sch_netem", "veth"])
    problems = journal.undo()
    assert here == (["sch_netem", "usb_storage"] if stubborn else ["usb_storage"])
    assert ["sch_netem" in text for text in problems] == [True] * stubborn


PARENT = """
import sys, time
from pathlib import Path
from airlab import undo
state, setting = Path(sys.argv[1]), Path(sys.argv[2])
with undo.turn(lambda: time.sleep(0.1), state) as lock:
    folder = state / "host-1"
    folder.mkdir()
    guardian = undo.guard(folder, lock)
    journal = undo.Journal(folder)
    journal.note_value(setting)
    setting.write_text("changed")
    print(guardian.pid, flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def setting(tmp_path: Path) -> Path:
    file = tmp_path / "setting"
    file.write_text("as it was\n")
    return file


def _start(state: Path, setting: Path) -> tuple[subprocess.Popen[str], int]:
    words = [sys.executable, "-c", textwrap.dedent(PARENT), str(state), str(setting)]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    guardian = int(parent.stdout.readline())
    assert setting.read_text() == "changed"
    return parent, guardian


def test_the_guardian_undoes_what_a_killed_airlab_did(tmp_path: Path, setting: Path) -> None:
    state = tmp_path / "state"
    parent, guardian = _start(state, setting)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(guardian, number)
    parent.kill()
    parent.wait()
    _until(lambda: undo.start_time(guardian) is None)
    assert setting.read_text() == "as it was\n"
    assert undo.leftovers(state) == []


def test_the_next_one_undoes_what_a_killed_guardian_left(tmp_path: Path, setting: Path) -> None:
    state = tmp_path / "state"
    parent, guardian = _start(state, setting)

    class BusyError(Exception):
        pass

    def busy() -> None:
        raise BusyError

    with pytest.raises(BusyError), undo.turn(busy, state):
        pass
    os.kill(guardian, signal.SIGKILL)
    parent.kill()
    parent.wait()
    _until(lambda: undo.start_time(guardian) is None)
    assert setting.read_text() == "changed"
    assert len(undo.leftovers(state)) == 1
    with undo.turn(busy, state):
        assert undo.clean(state) == []
    assert setting.read_text() == "as it was\n"
    assert undo.leftovers(state) == []
