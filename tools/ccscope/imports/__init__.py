"""Recordings from what other tools wrote: captures, ``ss`` logs, ftrace text, raw trace pages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ccscope.errors import CcscopeError
from ccscope.recording import Columns, Writer

_MAGICS = (b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\xc3\xd4", b"\x4d\x3c\xb2\xa1", b"\xa1\xb2\x3c\x4d")
_PCAPNG = b"\x0a\x0d\x0d\x0a"


def import_file(source: Path, out: Path, kind: str | None = None) -> dict[str, Any]:
    """Make a recording; returns recording.json's content.

    Args:
        source: the file, or a folder with raw trace pages (ccscope.rawtrace).
        out: the recording's folder; must not hold one.
        kind: ``pcap``, ``ss``, ``ftrace`` or ``raw``; None goes by the content.

    Raises:
        CcscopeError: the file cannot be read or is none of these.
    """
    kind = kind or _kind(source)
    if kind == "pcap":
        return _import_pcap(source, out)
    if kind == "raw":
        from ccscope.rawtrace import read_raw

        meta, tables = read_raw(source)
    elif kind == "ss":
        from ccscope.imports.sslog import read_log

        meta, tables = read_log(source)
    else:
        from ccscope.imports.ftracetext import read_text

        meta, tables = read_text(source)
    return _write(out, meta, tables)


def _kind(source: Path) -> str:
    if source.is_dir():
        return "raw"
    try:
        with open(source, "rb") as file:
            start = file.read(1 << 16)
    except OSError as error:
        raise CcscopeError(f"{source} cannot be read: {error.strerror}") from error
    if start[:4] in _MAGICS or start[:4] == _PCAPNG:
        return "pcap"
    if b"tcp_probe:" in start or b"tcp_cong_state_set:" in start:
        return "ftrace"
    if b"cwnd:" in start or b"ESTAB" in start:
        return "ss"
    raise CcscopeError(
        f"{source} is neither a capture, an `ss -tin` log nor ftrace text; say which by --format"
    )


def _write(out: Path, meta: dict[str, Any], tables: dict[str, Columns]) -> dict[str, Any]:
    with Writer(out) as writer:
        for name, columns in tables.items():
            writer.add(name, columns)
        whole = {**meta, "lost": meta.get("lost", {}), "complete": True}
        writer.finish(whole)
        return {**whole, "tables": writer.rows}


def _import_pcap(source: Path, out: Path) -> dict[str, Any]:
    from ccscope.imports.pcap import Goodput, Importer

    reader, arrived = Importer(source), Goodput()
    with Writer(out) as writer:
        for batch in reader.batches():
            arrived.add(batch["packets"])
            for name, columns in batch.items():
                writer.add(name, columns)
        writer.add("goodput", arrived.columns())
        # On its own clock; copied, so that the recording is whole and Wireshark's comments can be
        # written from it.
        copy = "capture" + ("".join(source.suffixes[-1:]) or ".pcap")
        shutil.copyfile(source, out / copy)
        meta = {
            "duration_s": reader.duration_s,
            "start_realtime_ns": reader.start_ns,
            "clock": "as the capture was made, usually CLOCK_REALTIME",
            "sources": [
                {"name": "pcap", "gives": ["packets", "goodput"], "cannot": ["cwnd, states"]}
            ],
            "flows": reader.flows,
            "lost": {},
            "capture": copy,
            "complete": not reader.problems,
            "problems": reader.problems,
        }
        writer.finish(meta)
        return {**meta, "tables": writer.rows}
