"""xplot: a time-sequence graph a flow, as tcptrace draws it.

From ``packets``: data white, sent again red, ACKs green, offered window yellow, SACK purple.
Without packets, from ``acks``: acknowledged bytes green, in flight white, window yellow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ccscope.errors import CcscopeError
from ccscope.export.rows import rows
from ccscope.recording import Recording


def write(recording: Recording, out: Path) -> list[Path]:
    """Write a file for each flow into the folder ``out``.

    Raises:
        CcscopeError: there are neither packets nor ACKs.
    """
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for label in recording.flows:
        packets, acks = recording.flow("packets", label), recording.flow("acks", label)
        if len(packets["t_s"]):
            lines = _of_packets(recording, label)
        elif len(acks["t_s"]):
            lines = _of_acks(recording, label)
        else:
            continue
        path = out / f"{label}.xpl"
        with open(path, "w") as file:
            file.write(f"double double\ntitle\n{recording.path.name} {label}\n")
            file.write("xlabel\ntime\nylabel\nsequence number\n")
            file.writelines(line + "\n" for line in lines)
            file.write("go\n")
        made.append(path)
    if not made:
        raise CcscopeError(f"{recording.path} has neither packets nor ACKs to draw")
    return made


def _of_packets(recording: Recording, label: str) -> Iterator[str]:
    last: tuple[float, int, int] | None = None
    for row in rows(recording.flow("packets", label)):
        t, seq, size = row["t_s"], row["seq_bytes"], row["len_bytes"]
        if row["direction"] == "out":
            if size:
                yield "red" if row["repeated"] else "white"
                yield f"darrow {t:.9f} {seq}"
                yield f"uarrow {t:.9f} {seq + size}"
                yield f"line {t:.9f} {seq} {t:.9f} {seq + size}"
        elif row["ack_bytes"] is not None:
            ack, edge = row["ack_bytes"], row["ack_bytes"] + row["window_bytes"]
            if last is not None:
                yield from _step("green", last[0], last[1], t, ack)
                yield from _step("yellow", last[0], last[2], t, edge)
            last = (t, ack, edge)
            for block in (row["sack"] or "").split(","):
                if block:
                    begin, end = block.split("-") if not block.startswith("-") else ("0", "0")
                    yield "purple"
                    yield f"line {t:.9f} {begin} {t:.9f} {end}"


def _of_acks(recording: Recording, label: str) -> Iterator[str]:
    last: tuple[float, int, int, int] | None = None
    for row in rows(recording.flow("acks", label)):
        una, t = row["una_bytes"], row["t_s"]
        if None in (una, row["inflight_bytes"], row["snd_wnd_bytes"]):
            continue
        sent, edge = una + row["inflight_bytes"], una + row["snd_wnd_bytes"]
        if last is not None:
            yield from _step("green", last[0], last[1], t, una)
            yield from _step("white", last[0], last[2], t, sent)
            yield from _step("yellow", last[0], last[3], t, edge)
        last = (t, una, sent, edge)


def _step(colour: str, t0: float, y0: int, t1: float, y1: int) -> Iterator[str]:
    yield colour
    yield f"line {t0:.9f} {y0} {t1:.9f} {y0}"
    if y1 != y0:
        yield f"line {t1:.9f} {y0} {t1:.9f} {y1}"
