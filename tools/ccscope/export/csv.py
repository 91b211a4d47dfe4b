"""CSV: a file a table; the header names the column, and its unit after a blank."""

from __future__ import annotations

import csv
from pathlib import Path

from ccscope import schema
from ccscope.export.rows import rows
from ccscope.recording import Recording


def write(recording: Recording, out: Path) -> list[Path]:
    """Write every table into the folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for name in recording.tables():
        columns = recording.table(name)
        path = out / f"{name}.csv"
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            units = [(column, schema.describe(name, column)[0]) for column in columns]
            writer.writerow([f"{column} [{unit}]" if unit else column for column, unit in units])
            for row in rows(columns):
                writer.writerow(["" if value is None else value for value in row.values()])
        made.append(path)
    return made
