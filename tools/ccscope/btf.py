"""Reads BTF, the kernel's own description of its types: where a field is in a struct.

Only the standard library.  The blob is ``/sys/kernel/btf/vmlinux``, or the section ``.BTF`` of
an unpacked ``vmlinux``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from ccscope.errors import CcscopeError

_MAGIC = 0xEB9F
_ARRAY, _STRUCT, _UNION, _ENUM, _FUNC = 3, 4, 5, 6, 12
_PROTO, _VAR, _DATASEC, _DECL_TAG, _ENUM64 = 13, 14, 15, 17, 19
_INT = 1
# Words behind the common three: fixed, and for each of the vlen members.
_FIXED = {_INT: 1, _ARRAY: 3, _VAR: 1, _DECL_TAG: 1}
_EACH = {_STRUCT: 3, _UNION: 3, _ENUM: 2, _PROTO: 2, _DATASEC: 3, _ENUM64: 3}
_MODIFIERS = (8, 9, 10, 11, 18)  # typedef, volatile, const, restrict, type tag


@dataclass(frozen=True)
class Place:
    """Where a field is: bytes from the struct's start; ``bits`` is 0 unless a bit field."""

    offset: int
    size: int
    bit: int = 0
    bits: int = 0


class Btf:
    """The types of a kernel.

    Raises:
        CcscopeError: the blob is not BTF.
    """

    def __init__(self, blob: bytes, name: str = "BTF") -> None:
        self._blob, self._name = blob, name
        try:
            magic, _, _, head, *where = struct.unpack_from("<HBBIIIII", blob)
            if magic != _MAGIC:
                raise CcscopeError(f"{name}: not BTF of a little-endian kernel")
            type_at, type_len, str_at, str_len = where
            self._strings = blob[head + str_at : head + str_at + str_len]
            self._types: list[int] = [0]
            self._structs: dict[str, int] = {}
            self.functions: set[str] = set()
            self._index(head + type_at, head + type_at + type_len)
        except (struct.error, KeyError, IndexError) as error:
            raise CcscopeError(f"{name}: damaged BTF: {error!r}") from error

    def _index(self, at: int, end: int) -> None:
        unpack = struct.Struct("<II").unpack_from
        blob = self._blob
        while at < end:
            name, info = unpack(blob, at)
            kind = info >> 24 & 31
            if kind == _STRUCT and name:
                self._structs.setdefault(self._text(name), len(self._types))
            elif kind == _FUNC:
                self.functions.add(self._text(name))
            self._types.append(at)
            words = _FIXED.get(kind, 0) + _EACH.get(kind, 0) * (info & 0xFFFF)
            at += 12 + 4 * words

    def _text(self, at: int) -> str:
        return self._strings[at : self._strings.index(b"\0", at)].decode("latin1")

    def _head(self, number: int) -> tuple[int, int, int, int]:
        """Offset, kind, member count and size-or-type of a type."""
        at = self._types[number]
        _, info, size = struct.unpack_from("<III", self._blob, at)
        return at, info >> 24 & 31, info & 0xFFFF, size

    def place(self, struct_name: str, field: str) -> Place:
        """Where a field is, members of anonymous structs and unions included.

        Args:
            struct_name: as in C, without ``struct``.
            field: a member; ``a.b`` for a member of a member.

        Raises:
            CcscopeError: no such struct or field in this kernel.
        """
        if struct_name not in self._structs:
            raise CcscopeError(f"{self._name}: no struct {struct_name}")
        number, base = self._structs[struct_name], 0
        found: Place | None = None
        for part in field.split("."):
            hit = self._member(number, part)
            if hit is None:
                raise CcscopeError(f"{self._name}: struct {struct_name} has no field {field}")
            found, number = hit
            base += found.offset
        assert found is not None
        return Place(base, found.size, found.bit, found.bits)

    def _member(self, number: int, wanted: str) -> tuple[Place, int] | None:
        number = self._plain(number)
        at, kind, count, _ = self._head(number)
        if kind not in (_STRUCT, _UNION):
            return None
        # With the flag, a member's offset holds the width of a bit field in its top byte.
        (info,) = struct.unpack_from("<I", self._blob, at + 4)
        flagged = bool(info >> 31)
        for i in range(count):
            name, kind_id, raw = struct.unpack_from("<III", self._blob, at + 12 + 12 * i)
            bits, offset = (raw >> 24, raw & 0xFFFFFF) if flagged else (0, raw)
            if name and self._text(name) == wanted:
                return self._located(kind_id, offset, bits), kind_id
            if not name:
                inner = self._member(kind_id, wanted)
                if inner:
                    place, found = inner
                    return (
                        Place(place.offset + offset // 8, place.size, place.bit, place.bits),
                        found,
                    )
        return None

    def _located(self, kind_id: int, offset: int, bits: int) -> Place:
        size = self._size(kind_id)
        if not bits:
            return Place(offset // 8, size)
        unit = 8 * size
        return Place(offset // unit * size, size, offset % unit, bits)

    def _plain(self, number: int) -> int:
        while True:
            _, kind, _, target = self._head(number)
            if kind not in _MODIFIERS:
                return number
            number = target

    def _size(self, number: int) -> int:
        at, kind, _, size = self._head(self._plain(number))
        if kind == _ARRAY:
            element, _, count = struct.unpack_from("<III", self._blob, at + 12)
            return self._size(element) * int(count)
        return 8 if kind == 2 else size  # a pointer


def running_kernel() -> Btf:
    """The BTF of the running kernel.

    Raises:
        CcscopeError: the kernel was built without it.
    """
    path = Path("/sys/kernel/btf/vmlinux")
    try:
        return Btf(path.read_bytes(), str(path))
    except OSError as error:
        raise CcscopeError(
            f"{path}: {error.strerror}; the kernel was built without CONFIG_DEBUG_INFO_BTF"
        ) from error


def of_vmlinux(path: Path) -> Btf:
    """The BTF in an unpacked ``vmlinux`` (64-bit little-endian ELF).

    Raises:
        CcscopeError: not such a file, or it has no section ``.BTF``.
    """
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise CcscopeError(f"{path} is not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 40)
    entry, count, names = struct.unpack_from("<HHH", data, 58)
    sections = [struct.unpack_from("<IIQQQQ", data, table + entry * i) for i in range(count)]
    texts = sections[names][4]
    for name, _, _, _, offset, size in sections:
        start = texts + name
        if data[start : data.index(b"\0", start)] == b".BTF":
            return Btf(data[offset : offset + size], str(path))
    raise CcscopeError(f"{path} has no section .BTF")
