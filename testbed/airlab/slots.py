"""Slots: which processor a guest is pinned to, agreed on by all runs on a machine.

Guests of one campaign, of two grids and of a cluster's jobs start in different processes.  Each
takes the lowest number that no other holds, by a lock that the kernel gives up with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def folder() -> Path:
    """Where this user's slots of this machine are."""
    return Path(tempfile.gettempdir()) / f"airlab-slots-{os.getuid()}"


@contextlib.contextmanager
def take_slot() -> Iterator[int]:
    """Hold the lowest free slot, counted from 0; engines take it modulo the processors.

    A slot is about speed only: where no lock can be had, the process's number serves.
    """
    with contextlib.ExitStack() as held:
        try:
            number = _lowest_free(held)
        except OSError:
            number = os.getpid()
        yield number


def _lowest_free(held: contextlib.ExitStack) -> int:
    place = folder()
    place.mkdir(mode=0o700, exist_ok=True)
    number = 0
    while not _lock(place / str(number), held):
        number += 1
    return number


def _lock(file: Path, held: contextlib.ExitStack) -> bool:
    with contextlib.ExitStack() as tried:
        lock = tried.enter_context(open(file, "w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        held.push(tried.pop_all())
    return True
