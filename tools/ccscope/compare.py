"""Compares two recordings flow by flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ccscope.draw.flowview import FlowView, span, views
from ccscope.errors import CcscopeError
from ccscope.metrics import FlowMetrics, flat, heading, metrics
from ccscope.recording import Recording

RULE = (
    "flows are matched by addresses and ports, else by destination port and algorithm, else by "
    "destination port, else by algorithm, else by their order; each flow once, the first that fits"
)
_Key = Callable[[FlowView, int], Any]
_KEYS: tuple[tuple[str, _Key], ...] = (
    ("addresses and ports", lambda v, _: _ends(v)),
    ("port and algorithm", lambda v, _: _both(v.info.get("dport"), v.info.get("cc"))),
    ("port", lambda v, _: v.info.get("dport") or None),
    ("algorithm", lambda v, _: v.info.get("cc") or None),
    ("order", lambda _, place: place),
)


@dataclass(frozen=True)
class Pair:
    """Two flows that are compared; ``by`` says which part of the rule matched them."""

    a: FlowView
    b: FlowView
    by: str
    of_a: FlowMetrics
    of_b: FlowMetrics

    def rows(self) -> list[tuple[str, float | None, float | None]]:
        """Key, value in A, value in B of all numbers that either has.

        A count or time that only one of two recordings with states names is 0 in the other.
        """
        first, second = flat(self.of_a), flat(self.of_b)
        keys = list(first) + [key for key in second if key not in first]
        order = {"state_n": 1, "state_s": 2, "events": 3}
        keys.sort(key=lambda key: order.get(key.partition(".")[0], 0) if "." in key else 0)
        return [
            (key, self._value(key, first, self.of_a), self._value(key, second, self.of_b))
            for key in keys
        ]

    @staticmethod
    def _value(key: str, values: dict[str, float | None], of: FlowMetrics) -> float | None:
        if key in values or "." not in key:
            return values.get(key)
        return 0.0 if of.state_s else None


@dataclass(frozen=True)
class Comparison:
    """Two recordings: pairs of flows, and labels of flows without a partner."""

    a: Recording
    b: Recording
    pairs: Sequence[Pair]
    only_a: Sequence[str]
    only_b: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """All numbers: value in A and B, difference B - A, and ratio B / A (null without)."""
        return {
            "a": str(self.a.path),
            "b": str(self.b.path),
            "rule": RULE,
            "pairs": [
                {
                    **{"a": p.a.label, "b": p.b.label, "by": p.by},
                    "goodput_of": {"a": p.of_a.goodput_of, "b": p.of_b.goodput_of},
                    "metrics": {key: _numbers(x, y) for key, x, y in p.rows()},
                }
                for p in self.pairs
            ],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
        }

    def text(self) -> str:
        """A table for a terminal."""
        lines = [f"A: {self.a.path}", f"B: {self.b.path}", RULE[0].upper() + RULE[1:] + "."]
        for pair in self.pairs:
            lines += ["", f"A {_name(pair.a)}  |  B {_name(pair.b)}  (matched by {pair.by})"]
            if pair.of_a.goodput_of != pair.of_b.goodput_of:
                of = f"A {pair.of_a.goodput_of or 'none'}, B {pair.of_b.goodput_of or 'none'}"
                lines.append(f"  goodput is counted differently: {of}")
            lines.append(f"  {'':34}{'A':>13}{'B':>13}{'B - A':>13}{'B / A':>9}")
            lines += [_line(*row) for row in pair.rows() if row[1:] != (None, None)]
        for name, labels in (("A", self.only_a), ("B", self.only_b)):
            if labels:
                lines += ["", f"only in {name}: {', '.join(labels)}"]
        return "\n".join(lines)


def compare(
    a: Recording, b: Recording, labels: tuple[Sequence[str], Sequence[str]] = ((), ())
) -> Comparison:
    """Compare two recordings.

    Raises:
        CcscopeError: a recording has no flow, or a label is unknown.
    """
    sides = []
    for recording, wanted in zip((a, b), labels, strict=True):
        found = views(recording, wanted)
        order = list(recording.flows)
        if not wanted:
            found.sort(key=lambda v: order.index(v.label) if v.label in order else len(order))
        sides.append((found, span(recording, found)))
    (first, stop_a), (second, stop_b) = sides
    matched = _match(first, second)
    if not matched:
        raise CcscopeError("no flow of A can be matched with one of B")
    pairs = [Pair(x, y, by, metrics(x, stop_a), metrics(y, stop_b)) for x, y, by in matched]
    used = {id(v) for x, y, _ in matched for v in (x, y)}
    return Comparison(
        a, b, pairs,
        [v.label for v in first if id(v) not in used],
        [v.label for v in second if id(v) not in used],
    )  # fmt: skip


def _match(
    first: Sequence[FlowView], second: Sequence[FlowView]
) -> list[tuple[FlowView, FlowView, str]]:
    made: list[tuple[FlowView, FlowView, str]] = []
    left, right = list(enumerate(first)), list(enumerate(second))
    for by, key in _KEYS:
        for place, view in list(left):
            wanted = key(view, place)
            found = next((item for item in right if wanted == key(item[1], item[0])), None)
            if wanted is not None and found is not None:
                made.append((view, found[1], by))
                left.remove((place, view))
                right.remove(found)
    made.sort(key=lambda pair: first.index(pair[0]))
    return made


def _ends(view: FlowView) -> tuple[Any, ...] | None:
    parts = tuple(view.info.get(name) for name in ("src", "sport", "dst", "dport"))
    return parts if all(parts) else None


def _both(*parts: Any) -> tuple[Any, ...] | None:  # noqa: ANN401 - what JSON holds
    return parts if all(parts) else None


def _name(view: FlowView) -> str:
    return " ".join(filter(None, (view.label, view.info.get("cc"))))


def _numbers(x: float | None, y: float | None) -> dict[str, float | None]:
    both = x is not None and y is not None
    return {
        "a": x,
        "b": y,
        "difference": y - x if both and x is not None and y is not None else None,
        "ratio": y / x if x and y is not None else None,
    }


def _line(key: str, x: float | None, y: float | None) -> str:
    text, factor, form = heading(key)
    values = [f"{v * factor:{form}}" if v is not None else "-" for v in (x, y)]
    numbers = _numbers(x, y)
    change, ratio = numbers["difference"], numbers["ratio"]
    values.append(f"{change * factor:+{form}}" if change is not None else "")
    values.append(f"{ratio:.3f}" if ratio is not None else "")
    return f"  {text:34}{values[0]:>13}{values[1]:>13}{values[2]:>13}{values[3]:>9}"
