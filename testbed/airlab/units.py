"""Quantities with units, as scenario files write them.

Every parser takes what TOML or ``--set`` gave (text or a number) and returns an integer or a
float in the unit its name states.  Each raises :class:`ValueError` with a message that says
what was wrong and how to write it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)"
_QUANTITY = re.compile(rf"\s*{_NUMBER}\s*([A-Za-z%/]*)\s*")

_RATES = {"bit": 1, "kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9}
_TIMES_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
_SIZES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

FULL_FRAME_BYTES = 1514
"""Layer-2 length of a full Ethernet frame without checksum, as Linux counts it."""

TCP_HEADER_BYTES = {4: 14 + 20 + 32, 6: 14 + 40 + 32}
"""Bytes of a frame besides the payload, by address family: Ethernet, IP, TCP with time stamps."""

NS_PER_US = 1000


@dataclass(frozen=True)
class Buffer:
    """The room of a bottleneck's queue: packets, bytes, or a multiple of rate times RTT."""

    kind: Literal["pkt", "bytes", "bdp"]
    value: float

    def __str__(self) -> str:
        """The text :func:`parse_buffer` reads back."""
        unit = {"pkt": "pkt", "bytes": "B", "bdp": "BDP"}[self.kind]
        return f"{self.value:g}{unit}" if self.kind == "bdp" else f"{int(self.value)}{unit}"


def _split(text: object, what: str, example: str) -> tuple[float, str]:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"{text!r} is not {what}; write for example {example}")
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{str(text)!r} is not {what}; write for example {example}")
    return float(match[1]), match[2]


def _unit(unit: str, table: dict[str, int], text: object, what: str, example: str) -> int:
    if unit in table:
        return table[unit]
    known = ", ".join(table)
    if not unit:
        raise ValueError(
            f"{text!r} has no unit; {what} needs one of {known}, for example {example}"
        )
    raise ValueError(f"{str(text)!r}: unit {unit!r} is unknown; use one of {known}")


def parse_rate(text: object) -> int:
    """Bits per second from ``5Mbit``, ``64kbit`` or ``1.5Mbit/s``; 1 kbit/s to 100 Gbit/s."""
    number, unit = _split(text, "a rate", "5Mbit")
    unit = unit.removesuffix("/s")
    rate = round(number * _unit(unit, _RATES, text, "a rate", "5Mbit"))
    if not 1000 <= rate <= 100 * 10**9:
        raise ValueError(f"{str(text)!r} is out of range; a rate is 1kbit to 100Gbit")
    return rate


def parse_time_us(text: object) -> int:
    """Whole microseconds from ``25ms``, ``10s``, ``1.5min``; a bare 0 is allowed; up to 10 days."""
    number, unit = _split(text, "a time", "25ms")
    if number == 0 and not unit:
        return 0
    scale = _unit(unit, _TIMES_NS, text, "a time", "25ms")
    nanoseconds = number * scale
    micros = round(nanoseconds / NS_PER_US)
    if abs(micros * NS_PER_US - nanoseconds) > 1e-6 * max(1.0, nanoseconds):
        raise ValueError(f"{str(text)!r} is finer than a microsecond, the laboratory's resolution")
    if micros > 10 * 86400 * 10**6:
        raise ValueError(f"{str(text)!r} is more than ten days")
    return micros


def parse_size(text: object) -> int:
    """Bytes from ``64kB`` (1000), ``64KiB`` (1024), ``10MB``, ``1500B``."""
    number, unit = _split(text, "a size", "64kB")
    size = number * _unit(unit, _SIZES, text, "a size", "64kB")
    if size != int(size):
        raise ValueError(f"{str(text)!r} is not a whole number of bytes")
    return int(size)


def parse_buffer(text: object) -> Buffer:
    """A queue's room from ``30pkt``, ``64kB`` or ``1.5BDP``."""
    number, unit = _split(text, "a buffer", "30pkt, 64kB or 1.5BDP")
    if unit in ("pkt", "pkts"):
        if number != int(number) or not 1 <= number <= 1_000_000:
            raise ValueError(f"{str(text)!r}: packets are a whole number from 1 to 1000000")
        return Buffer("pkt", number)
    if unit == "BDP":
        if not 0 < number <= 1000:
            raise ValueError(f"{str(text)!r} is out of range; up to 1000 BDP, more than none")
        return Buffer("bdp", number)
    if unit in _SIZES:
        size = parse_size(text)
        if size < FULL_FRAME_BYTES:
            raise ValueError(f"{str(text)!r} does not hold one full frame ({FULL_FRAME_BYTES} B)")
        return Buffer("bytes", size)
    known = ", ".join(["pkt", "BDP", *_SIZES])
    raise ValueError(f"{str(text)!r}: a buffer needs one of {known}, for example 30pkt")


def parse_probability(text: object) -> float:
    """A probability from ``0.01``, ``1e-6`` or ``1.5%``; 0 to 1."""
    number, unit = _split(text, "a probability", "0.01 or 1%")
    if unit not in ("", "%"):
        raise ValueError(f"{str(text)!r}: a probability is a number from 0 to 1 or a percentage")
    value = number / 100 if unit == "%" else number
    if not 0 <= value <= 1:
        raise ValueError(f"{str(text)!r} is out of range; a probability is 0 to 1 (or 0% to 100%)")
    return value


def parse_ber(text: object) -> float:
    """A bit error rate from ``1e-6``; 0 to 0.001, where 1 full frame in 180,000 passes."""
    number, unit = _split(text, "a bit error rate", "1e-6")
    if unit or not 0 <= number <= 0.001:
        raise ValueError(
            f"{str(text)!r} is out of range; a bit error rate is 0 to 0.001, e.g. 1e-6"
        )
    return number


def format_rate(bps: int) -> str:
    """``5 Mbit/s`` from bits per second."""
    for unit in ("Gbit", "Mbit", "kbit"):
        if bps >= _RATES[unit]:
            return f"{bps / _RATES[unit]:.12g} {unit}/s"
    return f"{bps} bit/s"


def format_time(us: int) -> str:
    """``25 ms`` from microseconds, in the largest unit that keeps it short."""
    if us >= 10**6:
        return f"{us / 10**6:.12g} s"
    return f"{us / 1000:.12g} ms" if us >= 1000 else f"{us} us"


def format_size(size: int) -> str:
    """``64 kB`` from bytes."""
    for unit in ("GB", "MB", "kB"):
        if size >= _SIZES[unit]:
            return f"{size / _SIZES[unit]:.12g} {unit}"
    return f"{size} B"
