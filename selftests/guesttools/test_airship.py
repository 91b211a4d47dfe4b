"""airship: the archive is one that others can read, whole and the same each time."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zlib
from pathlib import Path

import pytest
from builttools import Tools

HEADER = struct.Struct("<8sQQI36x")


def make_tree(root: Path) -> dict[str, bytes]:
    files = {
        "empty": b"",
        "one": b"x",
        "block": os.urandom(512),
        "sub/big": os.urandom(1_000_001),
        "sub/deep/" + "n" * 150: b"a long name",
        "sub/" + "d" * 120 + "/" + "f" * 120: b"a long path",
        "sub/umläut": b"bytes are bytes",
    }
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / "link").symlink_to("sub/big")
    (root / "far").symlink_to("t" * 200)
    (root / "hollow").mkdir()
    return files


def payload(path: Path) -> bytes:
    image = path.read_bytes()
    magic, length, flags, crc = HEADER.unpack_from(image)
    data = image[HEADER.size : HEADER.size + length]
    assert (magic, flags) == (b"AIRSHIP1", 0)
    assert len(data) == length and crc == zlib.crc32(data)
    return data


def test_round_trip(tools: Tools) -> None:
    root = tools.work / "out"
    root.mkdir()
    files = make_tree(root)
    done = tools.run("airship", "pack", "--dir", root, "--file", "image", "--size", 4 << 20)
    assert done.returncode == 0, done.stderr
    with tarfile.open(fileobj=io.BytesIO(payload(tools.work / "image"))) as tar:
        names = tar.getnames()
        found = {
            member.name: tar.extractfile(member).read()  # type: ignore[union-attr]
            for member in tar.getmembers()
            if member.isfile()
        }
        assert found == files
        assert tar.getmember("link").linkname == "sub/big"
        assert tar.getmember("far").linkname == "t" * 200
        assert tar.getmember("hollow").isdir()
        assert all(m.mtime == m.uid == m.gid == 0 for m in tar.getmembers())
    assert names.index("sub") < names.index("sub/big")


def test_same_tree_same_bytes(tools: Tools) -> None:
    for name, order in (("a", 1), ("b", -1)):
        root = tools.work / name
        root.mkdir()
        for i in range(20)[::order]:
            (root / f"f{i}").write_text(str(i))
        tools.run("airship", "pack", "--dir", root, "--file", f"{name}.img", "--size", 1 << 20)
    assert payload(tools.work / "a.img") == payload(tools.work / "b.img")


def test_needed_size_is_told(tools: Tools) -> None:
    root = tools.work / "out"
    root.mkdir()
    (root / "f").write_bytes(b"x" * 5000)
    need = 64 + 512 + 5120 + 1024
    args = ["pack", "--dir", root, "--file", "image", "--size"]
    done = tools.run("airship", *args, need - 1)
    assert done.returncode == 3 and str(need) in done.stderr
    assert not (tools.work / "image").exists()
    assert tools.run("airship", *args, need).returncode == 0
    assert len(payload(tools.work / "image")) == need - 64


def test_copy(tools: Tools) -> None:
    (tools.work / "a").write_text("A")
    (tools.work / "b").write_text("B")
    done = tools.run("airship", "copy", "a,b", "ab", "/proc/version", "version")
    assert done.returncode == 0, done.stderr
    assert (tools.work / "ab").read_text() == "AB"
    assert (tools.work / "version").read_text() == Path("/proc/version").read_text()
    done = tools.run("airship", "copy", "missing", "x")
    assert done.returncode == 1 and "missing" in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["sink"],
        ["copy"],
        ["copy", "a"],
        ["sysctl", "x"],
        ["rawtrace", "x"],
        ["pack", "--dir", "x"],
        ["pack", "--dir", "x", "--size", "4096"],
        ["pack", "--dir", "x", "--size", "4096", "--phys", "0x1001"],
        ["pack", "--dir", "x", "--size", "4096", "--phys", "0x1000", "--file", "f"],
        ["pack", "--dir", "x", "--size", "1", "--file", "f"],
    ],
)
def test_bad_arguments(tools: Tools, args: list[str]) -> None:
    done = tools.run("airship", *args)
    assert done.returncode == 2 and done.stderr
