"""What tracing does to what is measured: the same cell with and without tracepoints."""

from __future__ import annotations

import numpy as np
import pytest
from guestlab import FLOW, Lab, Table, path

pytestmark = pytest.mark.guest

LIMIT = 0.02
OFF = "[trace]\nacks = false\nqueue = false\nmodules = false\n"


def _common(one: Table, two: Table) -> tuple[np.ndarray, np.ndarray]:
    """cwnd of both runs at the sampling instants they have in common, by interpolation."""
    end = min(one["t_s"][-1], two["t_s"][-1])
    times = np.arange(0.5, end, 0.1)
    made = [np.interp(times, t["t_s"], t["cwnd_segs"]) for t in (one, two)]
    return made[0], made[1]


@pytest.mark.parametrize("cc", ["j", "reno"])
def test_tracing_does_not_change_what_is_measured(lab: Lab, cc: str) -> None:
    link = 'buffer = "30pkt"\nber = 1e-6'
    traced = lab.cell(path("traced", "20s", link=link), cc=cc)
    plain = lab.cell(path("traced", "20s", link=link, rest=FLOW + OFF), cc=cc)
    assert traced.cell["trace"]["events"] > 10_000
    assert plain.cell["trace"] is None
    rates = [view.flow()["goodput_bps"] for view in (traced, plain)]
    differ = rates[0] / rates[1] - 1
    one, two = _common(traced.table("samples"), plain.table("samples"))
    apart = np.abs(one - two)
    same = float(np.mean(apart < 0.5))
    print(
        f"\n{cc}: goodput traced {rates[0] / 1e6:.4f}, untraced {rates[1] / 1e6:.4f} Mbit/s "
        f"({differ:+.3%}); cwnd differs by {apart.mean():.2f} segments on average (of "
        f"{two.mean():.1f}), {apart.max():.0f} at most, equal at {same:.0%} of the instants; "
        f"packets {traced.cell['hashes']['pcap_packets']} and "
        f"{plain.cell['hashes']['pcap_packets']}"
    )
    assert abs(differ) < LIMIT
