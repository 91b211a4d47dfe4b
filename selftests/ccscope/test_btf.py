"""The BTF reader, on a hand-made blob and on kernels that are there."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from ccscope import btf
from ccscope.btf import Btf, Place
from ccscope.errors import CcscopeError
from ccscope.sources.probes import probes


class Blob:
    """Builds a BTF blob type by type."""

    def __init__(self) -> None:
        self.strings, self.types, self.count = b"\0", b"", 0

    def name(self, text: str) -> int:
        if not text:
            return 0
        at = len(self.strings)
        self.strings += text.encode() + b"\0"
        return at

    def type(self, kind: int, name: str, size: int, rest: bytes = b"", more: int = 0) -> int:
        head = struct.pack("<III", self.name(name), kind << 24 | more, size)
        self.types += head + rest
        self.count += 1
        return self.count

    def struct(
        self, name: str, size: int, members: list[tuple[str, int, int]], kind: int = 4
    ) -> int:
        rest = b"".join(struct.pack("<III", self.name(n), t, o) for n, t, o in members)
        flag = 1 << 31 if any(o >> 24 for *_, o in members) else 0
        return self.type(kind, name, size, rest, len(members) | flag)

    def blob(self) -> bytes:
        head = struct.pack(
            "<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(self.types), len(self.types), len(self.strings)
        )
        return head + self.types + self.strings


def _made() -> bytes:
    blob = Blob()
    byte = blob.type(1, "u8", 1, struct.pack("<I", 8))
    word = blob.type(1, "u32", 4, struct.pack("<I", 32))
    alias = blob.type(8, "my_u32", word)
    pointer = blob.type(2, "", word)
    blob.type(6, "an_enum", 4, bytes(8), 1)
    array = blob.type(3, "", 0, struct.pack("<III", byte, word, 16))
    inner = blob.struct("", 8, [("deep", alias, 32), ("shallow", word, 0)], kind=5)
    blob.struct("outer", 40, [("first", pointer, 0), ("", inner, 64), ("bytes", array, 128)])
    blob.struct("bits", 8, [("low", byte, 3 << 24 | 32), ("high", byte, 5 << 24 | 35)])
    proto = blob.type(13, "", 0)
    blob.type(12, "a_function", proto)
    return blob.blob()


def test_places() -> None:
    types = Btf(_made())
    assert types.place("outer", "first") == Place(0, 8)
    assert types.place("outer", "deep") == Place(12, 4)
    assert types.place("outer", "bytes") == Place(16, 16)
    assert types.place("bits", "low") == Place(4, 1, 0, 3)
    assert types.place("bits", "high") == Place(4, 1, 3, 5)
    assert types.functions == {"a_function"}


def test_errors_name_what_is_missing(tmp_path: Path) -> None:
    types = Btf(_made(), "blob")
    with pytest.raises(CcscopeError, match="blob: no struct sock"):
        types.place("sock", "x")
    with pytest.raises(CcscopeError, match="struct outer has no field nothing"):
        types.place("outer", "nothing")
    for data in (b"", b"\x9f\xeb", bytes(40), _made()[:60]):
        with pytest.raises(CcscopeError, match="BTF"):
            Btf(data).place("outer", "deep")
    (tmp_path / "x").write_bytes(b"no ELF")
    with pytest.raises(CcscopeError, match="ELF"):
        btf.of_vmlinux(tmp_path / "x")


def test_probes_of_a_real_kernel() -> None:
    kernels = sorted(Path(".airtcp/kernels").glob("*/vmlinux"))
    if not kernels and not Path("/sys/kernel/btf/vmlinux").exists():
        pytest.skip("no kernel with BTF here")
    types = btf.of_vmlinux(kernels[0]) if kernels else btf.running_kernel()
    made = probes(types, types.functions | {"j_undo_cwnd"}, per_ack=True)
    lines = [probe.line("g") for probe in made]
    assert lines[0].startswith("r:g/after tcp_ack family=+16($arg1):u16")
    assert "ca_state=+" in lines[0]
    assert ":b5@" in lines[0]
    assert [p.event for p in made][:3] == ["after", "after", "ca"]
    assert "p:g/undo j_undo_cwnd" in " ".join(lines)
    assert max(len(line) for line in lines) < 4096
    assert all(p.event != "after" for p in probes(types, types.functions, per_ack=False))
