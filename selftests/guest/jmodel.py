"""TCP-J's equations computed again from its trace events, with whole numbers only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from guestlab import Table, View

FALLBACK, EQ5, EQ6, EQ7, ECN = range(5)
CWR, RECOVERY, LOSS = 2, 3, 4

Row = dict[str, Any]


def rows(table: Table) -> list[Row]:
    """A table's rows, numbers as Python integers (no overflow)."""
    columns = {n: c.tolist() for n, c in table.items()}
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def by_port(table: Table) -> Iterator[list[Row]]:
    """The rows of each connection."""
    made = rows(table)
    for port in sorted({row["sport"] for row in made}):
        yield [row for row in made if row["sport"] == port]


def target(row: Row) -> int:
    """The right-hand side of eq. (5) to (7)."""
    segs: int = row["bw_Bps"] * row["rtt_min_us"] // (row["mss_bytes"] * 10**6)
    return max(2, segs)


def filtered(bw_q8: int, prev_Bps: int, sample_Bps: int, alpha: int) -> int:  # noqa: N803
    """Eq. (9); the first sample is taken as it is."""
    if not bw_q8:
        return sample_Bps << 8
    mean_q8 = (sample_Bps + prev_Bps) << 7
    return (alpha * bw_q8 + (1000 - alpha) * mean_q8 + 500) // 1000


@dataclass
class Samples:
    """What :func:`check_samples` has seen."""

    count: int = 0
    unused: int = 0
    starts: int = 0


def check_samples(table: Table, *, min_interval_us: int = 1000) -> Samples:
    """Every ``j_abe`` row against eq. (8) and (9) and against the row before it.

    An estimator that begins anew (init after a switch of algorithm) has no former sample.
    """
    seen = Samples()
    for connection in by_port(table):
        bw_q8 = prev = 0
        for row in connection:
            if not row["prev_Bps"]:
                bw_q8 = prev = 0
                seen.starts += 1
            _check_sample(row, bw_q8, prev, min_interval_us)
            if row["used"]:
                prev = row["sample_Bps"]
            bw_q8 = row["bw_q8"]
            seen.count += 1
            seen.unused += not row["used"]
    return seen


def _check_sample(row: Row, bw_q8: int, prev: int, min_interval_us: int) -> None:
    assert row["dt_us"] >= max(1, min_interval_us), row
    assert row["bytes"] > 0, row
    assert row["bytes"] % row["mss_bytes"] == 0, row
    assert row["sample_Bps"] == (row["bytes"] * 10**6 + row["dt_us"] // 2) // row["dt_us"], row
    assert row["prev_Bps"] == prev, (row, prev)
    wanted = filtered(bw_q8, prev, row["sample_Bps"], row["alpha_permille"])
    if row["used"]:
        assert row["bw_q8"] == wanted, (row, wanted)
    else:
        assert row["app_limited"], row
        assert row["bw_q8"] == bw_q8 >= wanted, (row, wanted)
    if row["app_limited"]:
        assert row["dt_us"] >= row["rtt_min_us"], row
        assert row["bw_q8"] >= bw_q8, row
    assert row["bw_Bps"] == row["bw_q8"] >> 8, row
    assert row["target_segs"] == target(row), row


def check_losses(table: Table, *, clamp: bool = True) -> list[int]:
    """Every ``j_loss`` row against the equation it names; returns the equations in order."""
    made = rows(table)
    for row in made:
        if row["what"] != FALLBACK and row["asked"]:
            assert row["target_segs"] == target(row), row
        _CHECKS[row["what"]](row, clamp)
    return [row["what"] for row in made]


def _ends_in(row: Row, cwnd: int, ssthresh: int, recovery: int) -> None:
    found = (row["new_cwnd_segs"], row["new_ssthresh_segs"], row["recovery_segs"])
    assert found == (cwnd, ssthresh, recovery), row


def _fallback(row: Row, _clamp: bool) -> None:
    assert row["target_segs"] == 0, row
    half = max(row["old_cwnd_segs"] // 2, 2)
    _ends_in(row, 1 if row["ca_state"] == LOSS else half, half, half)


def _eq5(row: Row, clamp: bool) -> None:
    assert row["ca_state"] == RECOVERY, row
    assert row["old_ssthresh_segs"] <= row["old_cwnd_segs"], row
    wanted = row["target_segs"]
    cwnd = min(wanted, row["old_cwnd_segs"]) if clamp else wanted
    _ends_in(row, cwnd, wanted, cwnd)


def _eq6(row: Row, _clamp: bool) -> None:
    assert row["ca_state"] == RECOVERY, row
    assert row["old_ssthresh_segs"] > row["old_cwnd_segs"], row
    kept, wanted = row["old_cwnd_segs"], row["target_segs"]
    _ends_in(row, kept, wanted, min(wanted, kept))


def _eq7(row: Row, _clamp: bool) -> None:
    assert row["ca_state"] == LOSS, row
    _ends_in(row, 1, row["target_segs"], row["target_segs"])


def _ecn(row: Row, _clamp: bool) -> None:
    assert row["ca_state"] == CWR, row
    lower = min(row["target_segs"], row["old_cwnd_segs"])
    _ends_in(row, lower, lower, lower)


_CHECKS = {FALLBACK: _fallback, EQ5: _eq5, EQ6: _eq6, EQ7: _eq7, ECN: _ecn}


def check_repairs(view: View, flow: str = "f1") -> int:
    """Every ``j_repaired`` row against the decision it ends, and what the next ACK then finds.

    tcp_probe fires before an ACK is processed, so the next ACK's row shows the window that the
    repair left, and what the ACK that ended the repair added: at most one in congestion
    avoidance, at most what it acknowledged in slow start.
    """
    losses, acks = rows(view.table("j_j_loss", flow)), view.table("acks", flow)
    repairs = rows(view.table("j_j_repaired", flow))
    for row in repairs:
        loss = [x for x in losses if x["t_s"] <= row["t_s"]][-1]
        assert row["what"] == loss["what"], (loss, row)
        assert row["cwnd_segs"] == loss["new_cwnd_segs"], (loss, row)
        assert row["ssthresh_segs"] == loss["new_ssthresh_segs"], (loss, row)
        at = int(np.searchsorted(acks["t_s"], row["t_s"], side="right"))
        if at == len(acks["t_s"]) or _any_between(losses, row["t_s"], acks["t_s"][at]):
            continue  # the same ACK began the next repair
        grown = int(acks["cwnd_segs"][at]) - row["cwnd_segs"]
        most = 1 if row["cwnd_segs"] >= row["ssthresh_segs"] else row["cwnd_segs"]
        assert 0 <= grown <= most, (row, grown)
    return len(repairs)


def _any_between(made: list[Row], begin_s: float, end_s: float) -> bool:
    return any(begin_s <= row["t_s"] <= end_s for row in made)


def check_marks(view: View, flow: str = "f1") -> int:
    """After each answered mark cwnd is what the decision says once the state is Open again."""
    acks, states = view.table("acks", flow), view.table("states", flow)
    seen = 0
    for row in rows(view.table("j_j_loss", flow)):
        opened = states["t_s"][(states["t_s"] > row["t_s"]) & (states["state"] == "Open")]
        if row["what"] != ECN or not len(opened):
            continue
        at = int(np.searchsorted(acks["t_s"], opened[0], side="right"))
        assert 0 <= int(acks["cwnd_segs"][at]) - row["new_cwnd_segs"] <= 1, row
        seen += 1
    return seen


def check_bandwidth_at_loss(view: View, flow: str = "f1") -> None:
    """A decision uses the estimate of the last sample before it."""
    samples = view.table("j_j_abe", flow)
    for row in rows(view.table("j_j_loss", flow)):
        at = int(np.searchsorted(samples["t_s"], row["t_s"], side="right")) - 1
        known = int(samples["bw_Bps"][at]) if at >= 0 else 0
        assert row["bw_Bps"] == known, row
