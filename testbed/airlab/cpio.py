"""The kernel's initramfs format (cpio "newc"), written with fixed times and owners so that
the same content always gives the same bytes."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO


@dataclass(frozen=True)
class Entry:
    """A file, folder or symbolic link of an archive; ``path`` has no leading slash."""

    path: str
    mode: int
    data: bytes = b""


def folder(path: str, mode: int = 0o755) -> Entry:
    """A folder entry."""
    return Entry(path, stat.S_IFDIR | mode)


def regular(path: str, data: bytes, mode: int = 0o644) -> Entry:
    """A regular file entry."""
    return Entry(path, stat.S_IFREG | mode, data)


def link(path: str, target: str) -> Entry:
    """A symbolic link entry."""
    return Entry(path, stat.S_IFLNK | 0o777, target.encode())


def write(out: BinaryIO, entries: Iterable[Entry]) -> None:
    """Write one archive, with the parent folders of all entries made first."""
    made: set[str] = set()
    number = 1
    for entry in entries:
        for parent in _parents(entry.path):
            if parent not in made:
                made.add(parent)
                number = _put(out, number, folder(parent))
        if stat.S_ISDIR(entry.mode):
            if entry.path in made:
                continue
            made.add(entry.path)
        number = _put(out, number, entry)
    _put(out, 0, Entry("TRAILER!!!", 0))
    out.write(b"\0" * (-out.tell() % 512))


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


def _put(out: BinaryIO, number: int, entry: Entry) -> int:
    name = entry.path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (number, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, 0, 0, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % value for value in fields)
    out.write(header + name + b"\0" * (-(len(header) + len(name)) % 4))
    out.write(entry.data + b"\0" * (-len(entry.data) % 4))
    return number + 1
