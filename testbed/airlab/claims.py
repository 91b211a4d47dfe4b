"""Judges the expectations of a scenario over the cells of a campaign.

The rule.  An expectation names a metric of algorithm ``of`` and, optionally, an algorithm
``over`` to compare it with; ``where`` selects parameter points (all points that have these
values).  At each point the value is

* with ``over``: the mean over seeds of the paired ratios metric(of, seed) / metric(over, seed);
* with ``against``: the same ratio, but its lower part is taken at the point that has these values
  instead (and is of ``of`` itself without ``over``);
* with ``difference``: of either pair the difference instead of the ratio, in the metric's unit;
* without both: the mean over seeds of metric(of, seed).

The point holds when ``min * (1 - tolerance) <= value <= max * (1 + tolerance)``; a missing
bound is open.  The expectation is *reproduced* when every point holds and *not reproduced*
when one does not.  It is *not judged* when there is no such point, when it states no bound, or
when at any of its points a cell of the campaign is missing, vetoed by the audit or lacks the
metric: nothing passes on the numbers that happen to be left.  The 95 % interval is printed and
does not decide; when a bound lies inside it, the verdict says that more seeds could change it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from airlab.model import Cell, Scalar
from airlab.stats import Estimate, estimate, paired_difference, paired_ratio

Verdict = Literal["reproduced", "not reproduced", "not judged"]


class Measured(Protocol):
    """What a claim needs of a cell result."""

    label: str
    seed: int
    params: dict[str, Scalar]

    @property
    def counted(self) -> bool:
        """Whether the audit lets the cell count."""
        ...

    def metric(self, name: str) -> float | None:
        """A metric's value; None when the cell does not have it."""
        ...


class PointResult(BaseModel):
    """The number an expectation is judged by at one parameter point."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    params: dict[str, Scalar]
    value: float | None
    low: float | None
    high: float | None
    n: int
    holds: bool | None
    near: bool
    reason: str = ""


class ClaimResult(BaseModel):
    """An expectation, its verdict and the numbers behind it, as stored in ``claims.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    claim: str
    metric: str
    of: str
    over: str | None
    difference: bool = False
    bounds: str
    source: str
    verdict: Verdict
    reason: str
    points: list[PointResult] = []

    @property
    def subject(self) -> str:
        """The number in words: ``goodput_bps of j over reno``."""
        compared = f" {'less' if self.difference else 'over'} {self.over}" if self.over else ""
        return f"{self.metric} of {self.of}{compared}"


def evaluate(
    expects: Sequence[Mapping[str, Any]],
    results: Sequence[Measured],
    planned: Sequence[Cell] | None = None,
) -> list[ClaimResult]:
    """Judge each expectation.

    Args:
        expects: entries with ``id, claim, metric, of`` and optionally ``over, where, against, min,
            max, difference, tolerance`` (relative, default 0) and ``source``.
        results: the cells that ran, vetoed ones too.
        planned: all cells of the campaign, so that those that failed are missed; by default
            every seed that any cell of ``results`` has is expected at every point.
    """
    wanted = _wanted(results, planned)
    return [_judge(expect, results, wanted) for expect in expects]


def exit_code(claims: Sequence[ClaimResult]) -> int:
    """0 when all claims are reproduced, 1 when one is not, 2 when one was not judged."""
    verdicts = {claim.verdict for claim in claims}
    return 1 if "not reproduced" in verdicts else 2 if "not judged" in verdicts else 0


_Key = tuple[tuple[str, Scalar], ...]


def _key(params: Mapping[str, Scalar]) -> _Key:
    return tuple(sorted(params.items()))


def _wanted(
    results: Sequence[Measured], planned: Sequence[Cell] | None
) -> dict[tuple[str, _Key], set[int]]:
    wanted: dict[tuple[str, _Key], set[int]] = {}
    if planned is not None:
        for cell in planned:
            wanted.setdefault((cell.cc, _key(cell.point)), set()).add(cell.seed)
        return wanted
    seeds = {r.seed for r in results}
    labels, points = {r.label for r in results}, {_key(r.params) for r in results}
    return {(label, point): set(seeds) for label in labels for point in points}


def _judge(
    expect: Mapping[str, Any],
    results: Sequence[Measured],
    wanted: Mapping[tuple[str, _Key], set[int]],
) -> ClaimResult:
    where = dict(expect.get("where") or {})
    points = sorted(
        {p for label, p in wanted if label == expect["of"] and where.items() <= dict(p).items()},
        key=str,
    )
    made = [_judge_point(expect, dict(p), results, wanted) for p in points]
    verdict, reason = _overall(expect, made)
    return ClaimResult(
        id=str(expect["id"]),
        claim=str(expect["claim"]),
        metric=str(expect["metric"]),
        of=str(expect["of"]),
        over=_over_text(expect),
        difference=bool(expect.get("difference")),
        bounds=_bounds_text(expect),
        source=str(expect.get("source") or ""),
        verdict=verdict,
        reason=reason,
        points=made,
    )


def _over_text(expect: Mapping[str, Any]) -> str | None:
    """What is compared with, in words; None without a comparison."""
    against = expect.get("against") or {}
    if not against:
        return expect.get("over")
    values = " ".join(f"{key}={value}" for key, value in against.items())
    return f"{expect.get('over') or expect['of']} at {values}"


def _overall(expect: Mapping[str, Any], points: list[PointResult]) -> tuple[Verdict, str]:
    if expect.get("min") is None and expect.get("max") is None:
        return "not judged", "the expectation states neither min nor max"
    if not points:
        return "not judged", f"no cell of {expect['of']!r} at such a point"
    open_points = [p for p in points if p.holds is None]
    if open_points:
        return "not judged", "; ".join(f"{_at(p)}{p.reason}" for p in open_points)
    bad = [p for p in points if not p.holds]
    near = "; a bound is inside the 95 % interval" if any(p.near for p in points) else ""
    if bad:
        return "not reproduced", "outside at " + ", ".join(
            _at(p) or "the point" for p in bad
        ) + near
    return "reproduced", near.lstrip("; ")


def _at(point: PointResult) -> str:
    return " ".join(f"{k}={v}" for k, v in point.params.items()) + (": " if point.reason else "")


def _judge_point(
    expect: Mapping[str, Any],
    params: dict[str, Scalar],
    results: Sequence[Measured],
    wanted: Mapping[tuple[str, _Key], set[int]],
) -> PointResult:
    there = [(str(expect["of"]), params)]
    against = dict(expect.get("against") or {})
    if expect.get("over") or against:
        there.append((str(expect.get("over") or expect["of"]), {**params, **against}))
    values: list[dict[int, float]] = []
    problems: list[str] = []
    for name, point in there:
        found, problem = _values(name, str(expect["metric"]), point, results)
        missing = sorted(wanted.get((name, _key(point)), set()) - found.keys() - problem.keys())
        if (name, _key(point)) not in wanted:
            problems.append(f"no cell of {name!r}{_elsewhere(point, params)}")
        problems += [f"{name} seed {s} is missing{_elsewhere(point, params)}" for s in missing]
        problems += [f"{name} seed {s} {why}" for s, why in sorted(problem.items())]
        values.append(found)
    compare = paired_difference if expect.get("difference") else paired_ratio
    number = compare(values[0], values[1]) if len(values) > 1 else _mean(values[0])
    if not problems and number.n < len(values[0]):
        problems.append(f"{number.n} pairs for {len(values[0])} seeds, or a ratio over 0")
    return _point(expect, params, number, "; ".join(problems))


def _elsewhere(point: Mapping[str, Scalar], params: Mapping[str, Scalar]) -> str:
    """Where another point differs, in words; empty for the same one."""
    differs = [f"{key}={value}" for key, value in point.items() if params.get(key) != value]
    return f" at {' '.join(differs)}" if differs else ""


def _mean(values: Mapping[int, float]) -> Estimate:
    return estimate([values[s] for s in sorted(values)])


def _values(
    label: str, metric: str, params: dict[str, Scalar], results: Sequence[Measured]
) -> tuple[dict[int, float], dict[int, str]]:
    found: dict[int, float] = {}
    problems: dict[int, str] = {}
    for result in results:
        if result.label != label or _key(result.params) != _key(params):
            continue
        value = result.metric(metric)
        if not result.counted:
            problems[result.seed] = "was vetoed by the audit"
        elif value is None or math.isnan(value):
            problems[result.seed] = f"has no metric {metric!r}"
        else:
            found[result.seed] = value
    return found, problems


def _point(
    expect: Mapping[str, Any], params: dict[str, Scalar], number: Estimate, problem: str
) -> PointResult:
    low, high = _bounds(expect)
    holds = None if problem or number.n == 0 else low <= number.mean <= high
    inside = [b for b in (low, high) if math.isfinite(b)]
    near = number.low is not None and number.high is not None and holds is not None
    return PointResult(
        params=params,
        value=None if number.n == 0 else number.mean,
        low=number.low,
        high=number.high,
        n=number.n,
        holds=holds,
        near=near
        and any(
            number.mean - number.half <= b <= number.mean + number.half
            for b in inside
            if number.half is not None
        ),
        reason=problem or ("no value" if number.n == 0 else ""),
    )


def _bounds(expect: Mapping[str, Any]) -> tuple[float, float]:
    """The bounds with the tolerance applied outwards; infinite where open."""
    low, high, share = expect.get("min"), expect.get("max"), float(expect.get("tolerance") or 0)
    return (
        -math.inf if low is None else float(low) - share * abs(float(low)),
        math.inf if high is None else float(high) + share * abs(float(high)),
    )


def _bounds_text(expect: Mapping[str, Any]) -> str:
    parts = [
        f"{sign} {expect[key]:g}"
        for key, sign in (("min", ">="), ("max", "<="))
        if expect.get(key) is not None
    ]
    share = float(expect.get("tolerance") or 0)
    return " and ".join(parts) + (f" (tolerance {share:.0%})" if share else "")


def claims_table(claims: Sequence[ClaimResult]) -> str:
    """The verdicts as text: one line per claim, its points below it."""
    lines = []
    for claim in claims:
        lines.append(f"{claim.verdict.upper():15s} {claim.id}: {claim.claim}")
        lines.append(
            f"{'':15s} {claim.subject} {claim.bounds}" + (f" [{claim.source}]" * bool(claim.source))
        )
        lines += [f"{'':15s}   {point_text(p)}" for p in claim.points]
        if claim.reason:
            lines.append(f"{'':15s} {claim.reason}")
    return "\n".join(lines) + "\n" if lines else "no expectations\n"


def point_text(point: PointResult) -> str:
    """A point's number in words: parameters, value, interval, n."""
    name = " ".join(f"{k}={v}" for k, v in point.params.items()) or "all"
    if point.value is None:
        return f"{name}: no value"
    interval = "" if point.low is None else f" [{point.low:.4g}, {point.high:.4g}]"
    near = ", a bound is inside the interval" if point.near else ""
    return f"{name}: {point.value:.4g}{interval}, n={point.n}{near}"
