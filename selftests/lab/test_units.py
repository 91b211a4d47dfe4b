"""Quantities with units."""

from __future__ import annotations

import pytest
from airlab import units
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_rate, "5Mbit", 5_000_000),
        (units.parse_rate, "64kbit", 64_000),
        (units.parse_rate, "1.5 Mbit/s", 1_500_000),
        (units.parse_time_us, "25ms", 25_000),
        (units.parse_time_us, "10s", 10_000_000),
        (units.parse_time_us, "0.5ms", 500),
        (units.parse_time_us, "2min", 120_000_000),
        (units.parse_time_us, 0, 0),
        (units.parse_size, "64kB", 64_000),
        (units.parse_size, "64KiB", 65_536),
        (units.parse_buffer, "30pkt", units.Buffer("pkt", 30)),
        (units.parse_buffer, "1.5BDP", units.Buffer("bdp", 1.5)),
        (units.parse_buffer, "64kB", units.Buffer("bytes", 64_000)),
        (units.parse_probability, "1.5%", 0.015),
        (units.parse_probability, 0.01, 0.01),
        (units.parse_ber, "1e-6", 1e-6),
    ],
)
def test_parses(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        (units.parse_rate, "5", "no unit"),
        (units.parse_rate, 5, "no unit"),
        (units.parse_rate, "5MB", "'MB' is unknown"),
        (units.parse_rate, "1bit", "out of range"),
        (units.parse_rate, "-5Mbit", "not a rate"),
        (units.parse_rate, True, "not a rate"),
        (units.parse_time_us, "1ns", "finer than a microsecond"),
        (units.parse_time_us, "25", "no unit"),
        (units.parse_time_us, "20000min", "ten days"),
        (units.parse_size, "1.5B", "whole number"),
        (units.parse_buffer, "30", "pkt, BDP"),
        (units.parse_buffer, "0pkt", "from 1"),
        (units.parse_buffer, "100B", "one full frame"),
        (units.parse_probability, "150%", "0 to 1"),
        (units.parse_probability, "1ms", "percentage"),
        (units.parse_ber, 0.5, "0 to 0.001"),
        (units.parse_ber, "nan", "not a bit error rate"),
    ],
)
def test_says_what_is_wrong(parse, text, says):
    with pytest.raises(ValueError, match=says):
        parse(text)


@given(st.integers(1000, 10**11))
def test_rates_survive_formatting(bps):
    assert units.parse_rate(units.format_rate(bps)) == bps


@given(st.integers(0, 10**11))
def test_times_survive_formatting(us):
    assert units.parse_time_us(units.format_time(us)) == us


@pytest.mark.parametrize("text", ["30pkt", "64000B", "1.5BDP"])
def test_buffers_survive_formatting(text):
    assert str(units.parse_buffer(text)) == text
