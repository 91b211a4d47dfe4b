"""JSON Lines: first an object with recording.json's content, then one object a row.

``{"table": "recording", ...}`` then ``{"table": "acks", "t_s": ..., "flow": ..., ...}``; names,
units and meanings are those of ``ccscope schema``; what is null is left out.
"""

from __future__ import annotations

import json
from pathlib import Path

from ccscope.export.rows import rows
from ccscope.recording import Recording


def write(recording: Recording, out: Path) -> list[Path]:
    """Write every table into the file ``out``."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out, "w") as file:
        file.write(json.dumps({"table": "recording", **recording.meta}) + "\n")
        for name in recording.tables():
            for row in rows(recording.table(name)):
                kept = {column: value for column, value in row.items() if value is not None}
                file.write(json.dumps({"table": name, **kept}) + "\n")
    return [out]
