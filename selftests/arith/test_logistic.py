# SPDX-License-Identifier: GPL-2.0
"""TCP Symbiosis's arithmetic (logistic.h) against exact references and Runge-Kutta.

Error bound that is tested here: one step of equation (6) moves the window within 2e-6 of what the
exact formula says, plus (1 + w / S) 2^-24 packets, over the whole range of inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, getcontext

import pytest
from arithharness import Harness
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

getcontext().prec = 50


ONE = 2**32
MAX_SEGS = 2**22
MAX_KBPS = 10**8
MAX_TAU_US = 2**27

prop = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@dataclass(frozen=True)
class Model:
    """Inputs of (5): kbit/s, us, bytes, 1/1000."""

    capacity: int
    avail: int
    tau: int
    wire: int = 1514
    gamma: int = 900
    eps: int = 1950

    @property
    def values(self) -> tuple[int, ...]:
        return (self.capacity, self.avail, self.tau, self.wire, self.gamma, self.eps)

    @property
    def phi(self) -> Decimal:
        """1 - gamma (1 - A/K)."""
        avail = min(self.avail, self.capacity)
        return 1 - Decimal(self.gamma) / 1000 * (1 - Decimal(avail) / self.capacity)

    @property
    def goal(self) -> Decimal:
        """S in packets, unbounded."""
        bits = Decimal(self.capacity) * 1000 * self.phi * self.tau / 10**6
        return bits / (8 * self.wire)

    def bounded_goal(self) -> Decimal:
        return min(max(self.goal, Decimal(1)), Decimal(MAX_SEGS))

    def after(self, w0: Decimal, dt_us: int) -> Decimal:
        """Equation (6) as printed, with S for tau (K - gamma (K - A))."""
        f = (Decimal(self.eps) / 1000 * dt_us / 10**6 * self.phi).exp()
        s = self.bounded_goal()
        return w0 * f * s / (w0 * (f - 1) + s)


models = st.builds(
    Model,
    capacity=st.one_of(st.integers(1, MAX_KBPS), st.integers(100, 10**6)),
    avail=st.integers(0, MAX_KBPS),
    tau=st.one_of(st.integers(0, MAX_TAU_US), st.integers(100, 10**6)),
    wire=st.integers(64, 65535),
    gamma=st.integers(0, 999),
    eps=st.integers(1, 10000),
)
PAPER = Model(capacity=95_000, avail=76_000, tau=118_000, wire=1500)


def test_the_equilibrium_of_the_worked_example(imtcp: Harness) -> None:
    """K = 95, A = 0.8 K, tau = 118 ms, 1500 B: 766 packets."""
    assert imtcp.one("s", *PAPER.values) // ONE == 766


def test_growth_of_the_worked_example(imtcp: Harness) -> None:
    """From 10 packets to 47 in one second, at the spacing of ACKs, too."""
    assert imtcp.one("w", *PAPER.values, 10 * ONE, 1_000_000) / ONE == pytest.approx(47, abs=0.6)
    exact = float(PAPER.after(Decimal(10), 1_000_000))
    for spacing in (1, 10, 100, 1000):
        w = 10 * ONE
        for _ in range(10_000 // spacing):
            w = imtcp.one("w", *PAPER.values, w, spacing)
        part = float(PAPER.after(Decimal(10), 10_000 // spacing * spacing))
        assert w / ONE == pytest.approx(part, rel=1e-6), f"growth stalls at {spacing} us"
    assert exact == pytest.approx(47, abs=0.6)


@prop
@given(m=models)
def test_equilibrium(imtcp: Harness, m: Model) -> None:
    got = Decimal(imtcp.one("s", *m.values)) / ONE
    assert abs(got - m.bounded_goal()) <= Decimal(2) / ONE


@prop
@given(m=models, dt=st.one_of(st.integers(0, 2**40), st.integers(0, 10**6)))
def test_exponent(imtcp: Harness, m: Model, dt: int) -> None:
    want = min(Decimal(m.eps) / 1000 * dt / 10**6 * m.phi, Decimal(16))
    got = Decimal(imtcp.one("x", *m.values, dt)) / 2**44
    # phi has 28 fraction bits and is at least 1 - gamma.
    assert abs(got - want) <= want * 5 / (2**28 * m.phi) + Decimal(2) / 2**44


@prop
@given(x=st.one_of(st.integers(0, 2**43), st.integers(0, 2**24)))
def test_expm1(imtcp: Harness, x: int) -> None:
    want = (Decimal(x) / 2**44).exp() - 1
    got = Decimal(imtcp.one("e", x)) / 2**44
    assert abs(got - want) <= want * Decimal("3e-7") + Decimal(2) / 2**44


@prop
@given(a=st.integers(0, 2**54), part=st.integers(0, 2**55), more=st.integers(0, 2**55))
def test_fraction(imtcp: Harness, a: int, part: int, more: int) -> None:
    whole = max(part + more, 1)
    want = Decimal(a) * part / whole
    got = imtcp.one("a", a, part, whole)
    assert abs(got - want) <= want / 2**29 + 1
    assert got <= a


@prop
@given(
    m=models,
    w=st.one_of(st.integers(ONE, MAX_SEGS * ONE), st.integers(ONE, 2000 * ONE)),
    dt=st.one_of(st.integers(0, 10**5), st.integers(0, 10**9), st.integers(0, 300)),
)
def test_one_step_is_equation_6(imtcp: Harness, m: Model, w: int, dt: int) -> None:
    want = m.after(Decimal(w) / ONE, dt)
    got = Decimal(imtcp.one("w", *m.values, w, dt)) / ONE
    moved = abs(want - Decimal(w) / ONE)
    # phi's rounding counts where gamma is close to 1 (the paper's is 0.9): 2^-28 of 0.001.
    slack = Decimal("2e-6") + 5 / (2**28 * m.phi)
    grain = (1 + Decimal(w) / ONE / m.bounded_goal()) * Decimal(2) ** -24
    assert abs(got - want) <= moved * slack + grain
    low, high = sorted((Decimal(w) / ONE, m.bounded_goal()))
    assert low - Decimal(1) / ONE <= got <= high + Decimal(1) / ONE, (
        "the step passed the equilibrium"
    )


@prop
@given(m=models, w=st.integers(0, 2**63), dt=st.integers(0, 2**62))
def test_extremes_never_wrap(imtcp: Harness, m: Model, w: int, dt: int) -> None:
    assert ONE <= imtcp.one("w", *m.values, w, dt) <= MAX_SEGS * ONE


def _runge_kutta(m: Model, w: float, seconds: float, steps: int = 2000) -> float:
    """Equation (5) by the classical fourth-order method."""
    k_tau = float(m.capacity) * 1e3 * m.tau / 1e6 / (8 * m.wire)
    others = (float(m.capacity) - m.avail) * 1e3 * m.tau / 1e6 / (8 * m.wire)
    eps, gamma = m.eps / 1000, m.gamma / 1000

    def slope(w: float) -> float:
        return eps * (1 - (w + gamma * others) / k_tau) * w

    h = seconds / steps
    for _ in range(steps):
        a = slope(w)
        b = slope(w + h / 2 * a)
        c = slope(w + h / 2 * b)
        d = slope(w + h * c)
        w += h / 6 * (a + 2 * b + 2 * c + d)
    return w


@pytest.mark.parametrize("start", [2, 10, 400, 900])
@pytest.mark.parametrize("ms", [1, 100, 2000])
@pytest.mark.parametrize("avail", [0, 27_000, 76_000, 95_000])
def test_it_solves_equation_5(imtcp: Harness, start: int, ms: int, avail: int) -> None:
    m = Model(95_000, avail, 118_000)
    want = _runge_kutta(m, float(start), ms / 1000)
    got = imtcp.one("w", *m.values, start * ONE, ms * 1000) / ONE
    assert got == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("n", [1, 2, 5, 10])
def test_flows_share_as_the_model_says(imtcp: Harness, n: int) -> None:
    """N* = K / (1 + (n-1) gamma) when each is told A = K minus the others, whatever the RTT.

    Differences between flows die away with eps (1 - gamma) N* / K: 47 s for ten flows.
    """
    capacity, wire = 100_000, 1514
    taus = [10_000 + 20_000 * i for i in range(n)]
    windows = [2 * ONE + i * ONE for i in range(n)]
    bits = 8 * wire
    for _ in range(2000):
        rates = [w / ONE * bits / t * 1000 for w, t in zip(windows, taus, strict=True)]
        total = sum(rates)
        for i, tau in enumerate(taus):
            avail = max(0, round(capacity - (total - rates[i])))
            m = Model(capacity, avail, tau, wire)
            windows[i] = imtcp.one("w", *m.values, windows[i], 250_000)
    share = capacity / (1 + (n - 1) * 0.9)
    for w, tau in zip(windows, taus, strict=True):
        assert w / ONE * bits / tau * 1000 == pytest.approx(share, rel=0.01)
    assert math.isclose(share * n / capacity, n / (1 + (n - 1) * 0.9))
