"""Verdicts on expectations: nothing passes silently."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from airlab.claims import claims_table, evaluate, exit_code
from airlab.model import Cell, Scalar


@dataclass
class Fake:
    label: str
    seed: int
    value: float | None
    params: dict[str, Scalar] = field(default_factory=lambda: {"ber": 1e-6})
    counted: bool = True

    def metric(self, name: str) -> float | None:
        return self.value if name == "goodput_bps" else None


def expect(**more: object) -> dict[str, Any]:
    base = {"id": "a", "claim": "c", "metric": "goodput_bps", "of": "j", "over": "reno", "min": 1.5}
    return {**base, **more}


def cells(ratios: tuple[float, ...] = (1.4, 1.6, 1.8)) -> list[Fake]:
    made = [Fake("reno", s, 2.0 * s) for s in range(1, len(ratios) + 1)]
    return made + [Fake("j", s, 2.0 * s * r) for s, r in enumerate(ratios, 1)]


def test_mean_of_paired_ratios() -> None:
    (claim,) = evaluate([expect()], cells())
    point = claim.points[0]
    assert claim.verdict == "reproduced"
    assert point.value == pytest.approx(1.6)
    assert point.n == 3
    assert point.low is not None
    assert point.low < 1.5
    assert point.near
    assert "inside the 95 % interval" in claim.reason
    assert exit_code([claim]) == 0


def test_outside_is_not_reproduced_and_tolerance_moves_the_bound() -> None:
    results = cells((1.30, 1.31, 1.32))
    (claim,) = evaluate([expect()], results)
    assert claim.verdict == "not reproduced"
    assert "ber=1e-06" in claim.reason
    assert exit_code([claim]) == 1
    assert evaluate([expect(tolerance=0.2)], results)[0].verdict == "reproduced"
    assert evaluate([expect(min=None, max=1.2)], results)[0].verdict == "not reproduced"
    assert evaluate([expect(min=None, max=1.2, tolerance=0.1)], results)[0].verdict == "reproduced"


def test_negative_bounds_widen_outwards() -> None:
    results = [Fake("j", 1, -11.0)]
    (claim,) = evaluate([expect(over=None, min=-10, tolerance=0.2)], results)
    assert claim.verdict == "reproduced"


def test_without_over_it_is_the_mean() -> None:
    (claim,) = evaluate([expect(over=None, min=6.0, max=7.0)], cells())
    assert claim.points[0].value == pytest.approx((2.8 + 6.4 + 10.8) / 3)
    assert claim.verdict == "reproduced"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: setattr(c[0], "counted", False), "reno seed 1 was vetoed"),
        (lambda c: setattr(c[-1], "counted", False), "j seed 3 was vetoed"),
        (lambda c: c.pop(), "j seed 3 is missing"),
        (lambda c: setattr(c[-1], "value", None), "has no metric"),
        (lambda c: setattr(c[-1], "value", float("nan")), "has no metric"),
        (lambda c: setattr(c[0], "value", 0.0), "ratio over 0"),
        (lambda c: [c.remove(x) for x in c[:3]], "no cell of 'reno'"),
        (lambda c: c.clear(), "no cell of 'j'"),
    ],
)
def test_what_is_missing_is_not_judged(change: Any, reason: str) -> None:
    results = cells((2.0, 2.0, 2.0))
    change(results)
    (claim,) = evaluate([expect()], results)
    assert claim.verdict == "not judged"
    assert reason in claim.reason
    assert exit_code([claim]) == 2


def test_planned_cells_are_missed() -> None:
    planned = [Cell(c.label, c.seed, (("ber", 1e-6),)) for c in cells()]
    planned.append(Cell("j", 9, (("ber", 1e-6),)))
    assert "seed 9 is missing" in evaluate([expect()], cells(), planned)[0].reason


def test_every_point_must_hold() -> None:
    worse = [Fake(c.label, c.seed, c.value, {"ber": 1e-5}) for c in cells((1.1, 1.1, 1.1))]
    both = cells((2.0, 2.0, 2.0)) + worse
    assert evaluate([expect()], both)[0].verdict == "not reproduced"
    assert evaluate([expect(where={"ber": 1e-6})], both)[0].verdict == "reproduced"
    assert evaluate([expect(where={"ber": 3e-3})], both)[0].verdict == "not judged"


def test_no_bound_is_not_judged() -> None:
    assert evaluate([expect(min=None)], cells())[0].verdict == "not judged"


def test_text() -> None:
    text = claims_table(evaluate([expect(source="table 2", tolerance=0.05)], cells()))
    assert "REPRODUCED" in text
    assert "goodput_bps of j over reno >= 1.5 (tolerance 5%) [table 2]" in text
    assert "ber=1e-06: 1.6 [" in text
    assert claims_table([]) == "no expectations\n"


def points(*values: tuple[str, float]) -> list[Fake]:
    """One algorithm at several cases; seed 2 has twice the value of seed 1."""
    return [Fake("j", s, v * s, {"case": case}) for case, v in values for s in (1, 2)]


def test_against_compares_two_points_of_one_algorithm() -> None:
    results = points(("up", 2.0), ("down", 3.0), ("other", 9.0))
    claim = expect(over=None, where={"case": "down"}, against={"case": "up"}, min=1.4, max=1.6)
    (judged,) = evaluate([claim], results)
    assert judged.verdict == "reproduced"
    assert judged.points[0].value == pytest.approx(1.5)
    assert judged.over == "j at case=up"
    assert evaluate([{**claim, "min": 1.6, "max": None}], results)[0].verdict == "not reproduced"


def test_against_and_over_compare_with_another_algorithm_elsewhere() -> None:
    results = points(("down", 3.0)) + [Fake("reno", s, 1.0 * s, {"case": "up"}) for s in (1, 2)]
    claim = expect(over="reno", where={"case": "down"}, against={"case": "up"}, min=2.9, max=3.1)
    planned = [Cell(r.label, r.seed, tuple(r.params.items())) for r in results]
    (judged,) = evaluate([claim], results, planned)
    assert judged.verdict == "reproduced"


def test_against_a_point_that_did_not_run_is_not_judged() -> None:
    claim = expect(over=None, where={"case": "down"}, against={"case": "up"}, min=1.0)
    (judged,) = evaluate([claim], points(("down", 3.0)))
    assert judged.verdict == "not judged"
    assert "no cell of 'j' at case=up" in judged.reason


def test_a_difference_is_paired_and_in_the_metrics_unit() -> None:
    claim = expect(difference=True, min=None, max=3.0)
    (judged,) = evaluate([claim], cells((1.5, 1.5, 1.5)))
    assert judged.verdict == "reproduced"
    assert judged.points[0].value == pytest.approx(2.0), "1, 2 and 3"
    assert "goodput_bps of j less reno <= 3" in claims_table([judged])
    assert evaluate([{**claim, "max": 1.9}], cells((1.5, 1.5, 1.5)))[0].verdict == "not reproduced"


def test_a_difference_to_nothing_is_no_ratio_over_nothing() -> None:
    results = [Fake("j", 1, 5.0), Fake("reno", 1, 0.0)]
    (judged,) = evaluate([expect(difference=True, min=5.0)], results)
    assert judged.verdict == "reproduced"
