"""Rows of a table as plain Python values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ccscope.recording import Array, Columns

_BATCH = 100_000


def rows(columns: Columns) -> Iterator[dict[str, Any]]:
    """Each row by column name; None for null, whole numbers without a fraction."""
    count = len(next(iter(columns.values()))) if columns else 0
    for start in range(0, count, _BATCH):
        parts = {n: _plain(n, v[start : start + _BATCH]) for n, v in columns.items()}
        for values in zip(*parts.values(), strict=True):
            yield dict(zip(parts, values, strict=True))


def _plain(name: str, values: Array) -> list[Any]:
    made = values.tolist()
    if values.dtype.kind != "f" or name == "t_s":
        return list(made)
    return [None if math.isnan(v) else int(v) if v.is_integer() else v for v in made]
