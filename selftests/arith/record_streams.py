# SPDX-License-Identifier: GPL-2.0
"""Takes streams from laboratory runs for test_imtcp_recorded.py.

``python selftests/arith/record_streams.py CELL[:HEAD]... > selftests/arith/recorded_streams.csv``

A cell is a folder in ``cells/`` of what ``airlab run imtcp-accuracy --cc imtcp,imtcp_paper`` makes;
HEAD is the module's parameter ``head`` in that run (default 4, imtcp_paper 0).  60 streams of each
are taken, spread over its time.  A stream some of whose arrivals the module left out
(``im_clean()``) is not taken: the trace does not say which.
"""

from __future__ import annotations

import csv
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

EACH = 60
COLUMNS = (
    *("run", "head", "measurement", "stream", "verdict", "pct_permille", "pdt_permille"),
    *("growth_ns", "packets"),
)


def _which(row: dict[str, Any]) -> tuple[int, int]:
    """The stream that a row of either table is about."""
    return row["measurement"], row["stream"]


def _rows(cell: Path, head: int) -> list[dict[str, Any]]:
    """The cell's streams that were evaluated with all their arrivals."""
    table = pq.read_table(cell / "imtcp_imtcp_packet.parquet").to_pylist()
    packets = {
        which: sorted((p["index"], p["sent_ns"], p["acked_ns"]) for p in group)
        for which, group in itertools.groupby(sorted(table, key=_which), key=_which)
    }
    made = []
    for row in pq.read_table(cell / "imtcp_imtcp_stream.parquet").to_pylist():
        seen = packets.get(_which(row), [])
        behind = sum(index >= head - 1 for index, _, _ in seen)
        if row["stream"] and not row["why"] and behind == row["points"]:
            origin = seen[0][1]
            words = (f"{i}:{sent - origin}:{acked - origin}" for i, sent, acked in seen)
            made.append(row | {"run": cell.name, "head": head, "packets": " ".join(words)})
    return made


def main() -> None:
    """Write the chosen streams of the cells in ``sys.argv`` to the standard output."""
    out = csv.DictWriter(sys.stdout, COLUMNS, extrasaction="ignore", lineterminator="\n")
    out.writeheader()
    for word in sys.argv[1:]:
        name, _, head = word.partition(":")
        rows = _rows(Path(name), int(head or 4))
        picked = np.unique(np.linspace(0, len(rows) - 1, EACH).round().astype(int))
        out.writerows(rows[i] for i in picked)


if __name__ == "__main__":
    main()
