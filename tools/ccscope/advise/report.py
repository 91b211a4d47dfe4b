"""Says what was found, as text and as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ccscope.advise.path import Path
from ccscope.advise.search import MAX_CV, Found, Trial
from ccscope.advise.settings import Setting, rounded, settings

ESTIMATE = (
    "estimate: goodput is what fits into a round trip, at most the capacity; srtt is the round "
    "trip or window over capacity, whichever is more; a window below the collapse holds cwnd still"
)


def window_of(path: Path) -> int:
    """The window for a path: the knee, or one segment below the collapse if that is less."""
    wanted = path.knee_bytes
    if path.collapse_bytes is not None:
        wanted = min(wanted, path.collapse_bytes - path.mss_bytes)
    return rounded(max(wanted, 2 * path.mss_bytes))


def from_recording(label: str, path: Path, flow: dict[str, Any]) -> dict[str, Any]:
    """The advice from one flow, as plain values."""
    now = path.steady
    facts = {
        "flow": label,
        "path": {**dataclasses.asdict(path), "knee_bytes": path.knee_bytes},
        "losses_are_random": path.random,
        "now": dataclasses.asdict(now),
    }
    if path.other_limit is not None:
        return {**facts, "window_bytes": None, "why_not": f"limited by: {path.other_limit}"}
    window = window_of(path)
    holds = not path.random
    return {
        **facts,
        "window_bytes": window,
        "window_most_bytes": None
        if path.collapse_bytes is None
        else round(path.collapse_bytes - path.mss_bytes),
        "estimate": {
            "goodput_Bps": path.goodput_at(window),
            "srtt_s": path.srtt_at(window),
            "cwnd_cv": 0.0 if holds else None,
            "rule": ESTIMATE,
        },
        "settings": [dataclasses.asdict(s) for s in _settings(window, path.mss_bytes, flow)],
    }


def recording_text(label: str, path: Path, flow: dict[str, Any]) -> str:
    """The advice from one flow."""
    window = window_of(path)
    lines = [f"{label}: the path as this flow saw it"]
    lines += [f"  {name:<38} {value}" for name, value in _facts(path)]
    lines.append("")
    if path.other_limit is not None:
        return "\n".join([*lines, *_no_advice(path)])
    lines += _advice(path, window)
    lines.append("")
    lines += _how(_settings(window, path.mss_bytes, flow))
    return "\n".join(lines)


def _facts(path: Path) -> Iterator[tuple[str, str]]:
    yield "round trip without a queue", _ms(path.rtt_s)
    yield "capacity", _mbit(path.capacity_Bps * 8)
    yield "smallest window that fills it (knee)", _size(path.knee_bytes)
    if path.collapse_bytes is not None:
        told = f"{_size(path.collapse_bytes)} (10th percentile of {path.queued})"
        yield "in flight when cwnd collapses", told
    yield "reductions of cwnd", f"{path.collapses}, {path.queued} of them with a queue behind them"
    yield "the receiver offered up to", _size(path.window_bytes)


def _no_advice(path: Path) -> Iterator[str]:
    yield f"No advice: what limited this flow was mostly: {path.other_limit}, and not cwnd."
    yield "  The capacity above is what it used; the path may give more. Record one that fills it,"
    yield "  or, where the receiver's window is the limit, one with a larger window."


def _advice(path: Path, window: int) -> Iterator[str]:
    yield f"Advice: a receive window of {window} bytes ({_size(window)})"
    if path.random:
        yield "  Most losses came without a queue: no window prevents those of the channel."
    elif path.collapse_bytes is None:
        yield "  cwnd did not collapse in this recording: nothing needs to be held back."
    else:
        most = _size(path.collapse_bytes - path.mss_bytes)
        yield f"  Any window up to {most} keeps cwnd below its collapse; more only fills the queue."
    if path.collapse_bytes is not None and path.collapse_bytes < path.knee_bytes:
        yield "  The queue overflows before the path is full: this window costs some goodput."
    now = path.steady
    rows = [
        ("goodput", _mbit(now.goodput_Bps * 8), _mbit(path.goodput_at(window) * 8)),
        ("srtt", _ms(now.srtt_s), _ms(path.srtt_at(window))),
        ("cwnd, variation", f"{now.cwnd_cv:.1%}", "as now" if path.random else "0 %"),
        ("reductions", str(now.losses), "as now" if path.random else "0"),
    ]
    yield f"  {'':<18} {'now':>14} {'with it':>14}"
    yield from (f"  {name:<18} {a:>14} {b:>14}" for name, a, b in rows)
    yield f"  ({ESTIMATE})"


def from_sweep(found: Found, settings_of: list[Setting]) -> dict[str, Any]:
    """The result of a search, as plain values."""
    return {
        "best": dataclasses.asdict(found.best),
        "held": found.held,
        "largest_held": dataclasses.asdict(found.largest_held) if found.largest_held else None,
        "runs": len(found.trials),
        "trials": [dataclasses.asdict(t) for t in found.trials],
        "settings": [dataclasses.asdict(s) for s in settings_of],
    }


def sweep_text(found: Found, key: str, tolerance: float, settings_of: list[Setting]) -> str:
    """The result of a search."""
    best = found.best
    widest = max(found.trials, key=lambda t: t.window_bytes)
    lines = [trial_line(None)]
    lines += [trial_line(t) for t in sorted(found.trials, key=lambda t: t.window_bytes)]
    lines.append("")
    lines.append(
        f"Advice: a receive window of {rounded(best.window_bytes)} bytes ({key} = {best.asked}): "
        f"the smallest of {len(found.trials)} tried within {tolerance:.1%} of the best goodput"
        + (" that holds cwnd" if found.held else "")
    )
    if not found.held:
        lines.append(
            "  No window that is good enough holds cwnd (no loss, variation of "
            f"{MAX_CV:.0%} at most): the losses do not come from the queue."
        )
    elif found.largest_held and found.largest_held != best:
        lines.append(
            f"  The largest that was seen to hold it, just below the collapse: "
            f"{_size(found.largest_held.window_bytes)}"
        )
    lines.append(
        f"  Against the largest window ({_size(widest.window_bytes)}): goodput "
        f"{best.goodput_bps / widest.goodput_bps - 1:+.1%}, srtt {_ms(widest.srtt_s)} -> "
        f"{_ms(best.srtt_s)}, variation of cwnd {widest.cwnd_cv:.1%} -> {best.cwnd_cv:.1%}, "
        f"reductions {widest.losses} -> {best.losses} (measured, steady state)"
    )
    return "\n".join([*lines, "", *_how(settings_of)])


def trial_line(trial: Trial | None) -> str:
    """A row of the table of windows; None gives the heading."""
    if trial is None:
        return "   window kB   Mbit/s    srtt ms   cwnd   variation   losses  holds"
    return (
        f"  {trial.window_bytes / 1e3:10.1f} {trial.goodput_bps / 1e6:8.3f} "
        f"{trial.srtt_s * 1e3:10.2f} {trial.cwnd_segs:6.0f} {trial.cwnd_cv:11.1%} "
        f"{trial.losses:8d}  {'yes' if trial.held else 'no'}"
    )


def _settings(window: int, mss: float, flow: dict[str, Any]) -> list[Setting]:
    return settings(window, mss, str(flow.get("src", "SENDER")), str(flow.get("dst", "RECEIVER")))


def _how(ways: list[Setting]) -> Iterator[str]:
    yield "How to set it, and how to undo it (nothing was changed by this command)"
    for way in ways:
        yield f"  at the {way.where}: {way.reach}"
        yield from (f"      {line}" for line in way.do)
        yield from (f"      undo: {line}" for line in way.undo)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _mbit(bps: float) -> str:
    return f"{bps / 1e6:.3f} Mbit/s"


def _size(count: float) -> str:
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:.2f} MB"
