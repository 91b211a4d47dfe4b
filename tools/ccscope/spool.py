"""What a recorder appends while it runs, so that nothing but the last record can be lost.

A spool is a folder of segments ``000001.seg``, ``000002.seg``, ...  A segment starts with 8
bytes ``CCSPOOL1``; records follow, each

    u32 length of the payload | u32 CRC-32 of kind and payload | u8 kind | payload

(little-endian).  A record that was cut by kill -9 or a full disk fails its check; what comes
before it in the segment is good, and so are the other segments.  ``head.json`` holds what is known
when recording begins.  A flight recorder deletes the oldest segments while it runs.

Kinds are one ASCII letter; ccscope.decode knows what the payloads mean.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from ccscope.errors import CcscopeError

_MAGIC = b"CCSPOOL1"
_HEAD = struct.Struct("<IIB")
_MAX_PAYLOAD = 1 << 28

PAGES = "P"  # u32 CPU, then ring-buffer pages
SAMPLE = "S"  # u64 CLOCK_MONOTONIC ns, u32 network namespace, then a netlink dump
LINES = "B"  # JSON lines of bpftrace
NOTE = "N"  # JSON object: an event of the recorder itself (trigger, lost, flow, end)


class Sink(Protocol):
    """Takes a recorder's records, as :class:`SpoolWriter` does."""

    keep_s: float | None

    def append(self, kind: str, payload: bytes, now_s: float) -> None:
        """Take one record."""

    def note(self, what: Mapping[str, Any], now_s: float) -> None:
        """Take a record of kind NOTE."""


class SpoolWriter:
    """Appends records to segments; with ``keep_s`` only the newest of them stay.

    Args:
        folder: made if missing; must hold no segment.
        head: goes to ``head.json``.
        segment_bytes, segment_s: a new segment begins when one of them is reached.
        keep_s: seconds that must be kept at least; None keeps everything.
    """

    def __init__(
        self,
        folder: Path,
        head: Mapping[str, Any],
        *,
        segment_bytes: int = 64 << 20,
        segment_s: float = 10.0,
        keep_s: float | None = None,
    ) -> None:
        self.folder = folder
        self._limit, self._span, self.keep_s = segment_bytes, segment_s, keep_s
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob("*.seg")):
            raise CcscopeError(f"spool: {folder} holds a recording already; give another -o")
        write_json(folder / "head.json", head)
        self._number, self._size, self._begun = 0, 0, 0.0
        self._old: deque[tuple[Path, float]] = deque()
        self._file: BinaryIO | None = None
        self.written = 0

    def append(self, kind: str, payload: bytes, now_s: float) -> None:
        """Write one record; it is the kernel's when this returns (no Python buffer).

        Args:
            kind: one of the letters of this module.
            payload: at most 256 MiB.
            now_s: the time, for segments.

        Raises:
            CcscopeError: the disk is full or the folder has gone.
        """
        try:
            if self._file is None or self._size >= self._limit or now_s - self._begun > self._span:
                self._next(now_s)
            code = kind.encode("ascii")
            check = zlib.crc32(payload, zlib.crc32(code))
            self._put(_HEAD.pack(len(payload), check, code[0]) + payload)
        except OSError as error:
            raise CcscopeError(
                f"spool: cannot write to {self.folder}: {error.strerror}; what was recorded so far "
                f"is kept: `ccscope finish {self.folder.parent}`"
            ) from error

    def note(self, what: Mapping[str, Any], now_s: float) -> None:
        """Write a record of kind NOTE."""
        self.append(NOTE, json.dumps(what).encode(), now_s)

    def close(self) -> None:
        """Close the last segment."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _put(self, data: bytes) -> None:
        assert self._file is not None
        view = memoryview(data)
        while view:
            done = self._file.write(view)
            view = view[done:]
        self._size += len(data)
        self.written += len(data)

    def _next(self, now_s: float) -> None:
        if self._file is not None:
            self._file.close()
            self._old.append((self.folder / f"{self._number:06}.seg", now_s))
        while self.keep_s is not None and self._old and self._old[0][1] < now_s - self.keep_s:
            self._old.popleft()[0].unlink(missing_ok=True)
        self._number += 1
        path = self.folder / f"{self._number:06}.seg"
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by close()
        self._size, self._begun = 0, now_s
        self._put(_MAGIC)


class SpoolReader:
    """Reads what is whole in a spool; ``problems`` says what is not.

    Raises:
        CcscopeError: the folder is not a spool.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []
        head = folder / "head.json"
        try:
            self.head: dict[str, Any] = json.loads(head.read_text())
        except OSError as error:
            raise CcscopeError(f"spool: {head} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise CcscopeError(f"spool: {head} is damaged: {error}") from error

    def records(self) -> Iterator[tuple[str, bytes]]:
        """Kind and payload of each whole record, in order."""
        for path in sorted(self.folder.glob("*.seg")):
            with open(path, "rb") as file:
                yield from self._segment(file, path)

    def _segment(self, file: BinaryIO, path: Path) -> Iterator[tuple[str, bytes]]:
        left = os.fstat(file.fileno()).st_size
        if file.read(len(_MAGIC)) != _MAGIC:
            self._bad(path, 0, left)
            return
        at = len(_MAGIC)
        while at < left:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                self._bad(path, at, left)
                return
            length, check, code = _HEAD.unpack(head)
            payload = file.read(length) if length <= _MAX_PAYLOAD else b""
            if len(payload) < length or zlib.crc32(payload, zlib.crc32(head[-1:])) != check:
                self._bad(path, at, left)
                return
            at += len(head) + length
            yield chr(code), payload

    def _bad(self, path: Path, at: int, size: int) -> None:
        self.problems.append(
            f"{path.name}: {size - at} bytes from byte {at} on are no whole record (recording was "
            "cut off there, or the file is damaged)"
        )


class SpoolTail:
    """Reads a spool that another process still appends to.

    Raises:
        CcscopeError: the folder is not a spool.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.head: dict[str, Any] = SpoolReader(folder).head
        self._at: dict[str, int] = {}
        self._done: set[str] = set()

    def new(self) -> Iterator[tuple[str, bytes]]:
        """The whole records that came since the last call, in order.

        A segment is left for the next one when that exists; what then follows its last whole
        record was cut.  Segments that a flight recorder has deleted are passed over.
        """
        paths = sorted(self.folder.glob("*.seg"))
        for path, last in ((p, p == paths[-1]) for p in paths if p.name not in self._done):
            try:
                with open(path, "rb") as file:
                    yield from self._more(file, path.name)
            except FileNotFoundError:
                continue
            if not last:
                self._done.add(path.name)

    def _more(self, file: BinaryIO, name: str) -> Iterator[tuple[str, bytes]]:
        at = self._at.get(name, 0)
        if at == 0:
            if len(file.read(len(_MAGIC))) < len(_MAGIC):
                return
            at = len(_MAGIC)
        file.seek(at)
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, check, code = _HEAD.unpack(head)
            payload = file.read(length) if length <= _MAX_PAYLOAD else b""
            if len(payload) < length or zlib.crc32(payload, zlib.crc32(head[-1:])) != check:
                break
            at += len(head) + length
            self._at[name] = at
            yield chr(code), payload


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON file so that a reader sees the old or the new one, never a part."""
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(data, indent=1, sort_keys=False) + "\n")
    new.replace(path)
