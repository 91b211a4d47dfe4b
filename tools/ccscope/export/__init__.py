"""Writes recordings in formats that other tools open.

========  ====================================  =======================================
format    what                                  for
========  ====================================  =======================================
csv       a file a table, units in the header   spreadsheets
jsonl     one object a row, ``table`` says which  jq, log stores
pcapng    the capture, each packet with the     Wireshark (column or filter on
          state of its flow as comment          ``frame.comment``)
perfetto  TrackEvents: counters, CA states as   ui.perfetto.dev
          slices, retransmissions as instants
qlog      JSON-SEQ, a file a flow, shaped like  qvis and the like
          recovery events of QUIC's qlog
xplot     a time-sequence graph a flow          xplot, jPlot
========  ====================================  =======================================
"""

from __future__ import annotations

import importlib
from pathlib import Path

from ccscope.errors import CcscopeError
from ccscope.recording import Recording

FORMATS = ("csv", "jsonl", "pcapng", "perfetto", "qlog", "xplot")


def export(recording: Recording, name: str, out: Path) -> list[Path]:
    """Write a recording in a format; returns the files.

    Args:
        recording: what to write.
        name: one of FORMATS.
        out: a file for jsonl, pcapng and perfetto; a folder for the others.

    Raises:
        CcscopeError: the format is unknown, or the recording lacks what it needs.
    """
    if name not in FORMATS:
        raise CcscopeError(f"--format {name}: there are {', '.join(FORMATS)}")
    module = importlib.import_module(f"ccscope.export.{name}")
    try:
        made: list[Path] = module.write(recording, out)
    except OSError as error:
        raise CcscopeError(f"{error.filename or out}: {error.strerror}") from error
    return made
