"""Columns of numbers as text inside a page.

A column is whole numbers (of a unit that loses nothing); its differences, zigzag coded, are laid
out by planes of bytes, deflated and written in base64.  The browser unpacks a million of them in
some 50 ms without any library.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ccscope.errors import CcscopeError
from ccscope.recording import Array

_EXACT = 1 << 52  # whole numbers that a double of the browser holds, with room for the sign


@dataclass
class Packer:
    """Collects columns; equal ones are kept once.

    Attributes:
        heads: what the page's script must know of each column: ``id``, ``n``, ``w`` (bytes of a
            difference), ``gap`` (the number that stands for none, or null), ``scale``.
        texts: the columns by id.
    """

    heads: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    _known: dict[tuple[float, bytes], int] = field(default_factory=dict)

    def add(self, values: Array, scale: float = 1.0) -> int:
        """Add a column; returns its number.

        Args:
            values: numbers, NaN for none.
            scale: unit in which they are whole numbers, such as 1e-9 for times in s.
        """
        whole, gap = _whole(values, scale)
        key = (scale, whole.tobytes())
        if key not in self._known:
            packed, width = _packed(whole)
            number = self._known[key] = len(self.heads)
            head = {"id": f"c{number}", "n": len(whole), "w": width, "gap": gap, "scale": scale}
            self.heads.append(head)
            self.texts[f"c{number}"] = base64.b64encode(packed).decode()
        return self._known[key]


def _whole(values: Array, scale: float) -> tuple[Array, int | None]:
    made = np.round(values.astype(float) / scale)
    none = np.isnan(made)
    gap = None
    if none.any():
        gap = int(np.nanmin(made)) - 1 if not none.all() else -1
        made = np.where(none, gap, made)
    if len(made) and np.abs(made).max() > _EXACT:
        raise CcscopeError(f"a value of {np.abs(values).max():g} is too large for a page")
    return made.astype(np.int64), gap


def _packed(whole: Array) -> tuple[bytes, int]:
    steps = np.diff(whole, prepend=0)
    zigzag = ((steps << 1) ^ (steps >> 63)).astype("<u8")
    top = int(zigzag.max()) if len(zigzag) else 0
    width = max(1, (top.bit_length() + 7) // 8)
    planes = zigzag.view(np.uint8).reshape(-1, 8)[:, :width].T
    return zlib.compress(planes.tobytes(), 6), width
