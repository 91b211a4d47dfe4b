"""The filters of measured results in ``modules/include/airtcp/afilter.h``, bit by bit.

With them all filters can be compared on the results of one run; the module applies only the one
that its parameter names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

FILTERS = ("ewma", "robust")

_Q = 8
_WEIGHT = 8
_OUTLIER = 3
_CHANGE = 3
_LOG_FLOOR = 6
_LOG_MOST = 4


def filtered(values: Sequence[int], name: str, capacities: Sequence[int]) -> list[int]:
    """The filter's output after each value.

    Args:
        values: results in kbit/s.
        name: ``none``, ``ewma`` or ``robust``.
        capacities: the capacity that came with each result, kbit/s.
    """
    memory = _Memory()
    pairs = zip(values, capacities, strict=True)
    return [memory.add(name, int(value), int(capacity)) for value, capacity in pairs]


def _share(error: int) -> int:
    size = (abs(error) + _WEIGHT - 1) // _WEIGHT
    return size if error > 0 else -size


@dataclass
class _Memory:
    value: int = 0
    deviation: int = 0
    side: int = 0
    outliers: list[int] = field(default_factory=lambda: [0] * (_CHANGE - 1))

    def add(self, name: str, kbps: int, capacity: int) -> int:
        if name == "none" or not self.value:
            self._restart(kbps, capacity)
        elif name == "ewma":
            self.value += _share((kbps << _Q) - self.value)
        else:
            self._robust(kbps, capacity)
        return self.value >> _Q

    def _restart(self, kbps: int, capacity: int) -> None:
        self.value = kbps << _Q
        self.deviation = (capacity << _Q) >> _LOG_MOST
        self.side = 0

    def _learn(self, size: int) -> None:
        self.deviation += _share(size - self.deviation)

    def _no_change(self) -> None:
        for _ in range(abs(self.side)):
            self._learn(_OUTLIER * self.deviation)
        self.side = 0

    def _changed(self, kbps: int, sign: int, capacity: int) -> bool:
        if self.side * sign < 0:
            self._no_change()
        self.side += sign
        if abs(self.side) == _CHANGE:
            self._restart(sorted([*self.outliers, kbps])[1], capacity)
            return True
        self.outliers[abs(self.side) - 1] = kbps
        return False

    def _robust(self, kbps: int, capacity: int) -> None:
        error = (kbps << _Q) - self.value
        most = _OUTLIER * self.deviation
        if abs(error) > most:
            sign = 1 if error > 0 else -1
            if self._changed(kbps, sign, capacity):
                return
            error = sign * most
        else:
            self._no_change()
            self._learn(abs(error))
        self.value += _share(error)
        least = self.value >> _LOG_FLOOR
        self.deviation = min(max(self.deviation, least), (capacity << _Q) >> _LOG_MOST)
