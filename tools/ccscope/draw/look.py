"""Colours, dashes and marks.

Colours are those of Okabe and Ito, which people with colour-blindness can tell apart; whatever
has a colour of its own also has a line style or a marker of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

COLOURS = (
    "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080", "#1C1C1C",
)  # fmt: skip
# For the flows of one recording; the first colour is none of a state that matters beside it.
FLOW_COLOURS = (COLOURS[1], COLOURS[0], *COLOURS[2:])
DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), "-")
# One more than the colours, so that a colour that comes again has another mark.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
STATE_COLOURS = {
    "Open": "#DDDDDD",
    "Disorder": "#56B4E9",
    "CWR": "#E69F00",
    "Recovery": "#0072B2",
    "Loss": "#D55E00",
}
INK = "#444444"
FLIGHT = "#999999"

# Parts of a time-sequence graph, as tcptrace names them.
DATA, AGAIN, ACKED, SACKED, EDGE = "#1C1C1C", "#D55E00", "#009E73", "#CC79A7", "#E69F00"


@dataclass(frozen=True)
class MarkLook:
    """How one kind of event is marked.

    Attributes:
        text: what the legend says.
        colour, shape: fill and matplotlib marker.
    """

    text: str
    colour: str
    shape: str


MARKS = {
    "local": MarkLook("Local Congestion (CWR)", "#E69F00", "v"),
    "recovery": MarkLook("Recovery (dup. ACK, SACK)", "#56B4E9", "o"),
    "loss": MarkLook("Loss (time-out)", "#D55E00", "X"),
    "ecn": MarkLook("ECN (CWR)", "#009E73", "D"),
    "undo": MarkLook("undo", "#FFFFFF", "^"),
    "other": MarkLook("other reduction", "#CC79A7", "s"),
}
_KIND_OF_CAUSE = {
    "local": "local",
    **dict.fromkeys(("dupack", "sack", "rack", "recovery"), "recovery"),
    "rto": "loss",
    "ecn": "ecn",
    "undo": "undo",
    **dict.fromkeys(("tlp", "cwr", "mtu"), "other"),
}
_KIND_OF_STATE = {"CWR": "other", "Recovery": "recovery", "Loss": "loss"}


def mark_kind(cause: str | None, state: str) -> str | None:
    """The kind of mark (a key of :data:`MARKS`) for a row of ``states``; None: no mark.

    Args:
        cause: of schema.CAUSES; None or empty where the source cannot tell: the state decides.
        state: CA state entered.
    """
    return _KIND_OF_CAUSE.get(cause) if cause else _KIND_OF_STATE.get(state)


def styles(labels: Sequence[str], colours: Sequence[str] = COLOURS) -> dict[str, dict[str, Any]]:
    """Colour, dashes and marker for each label, by its place in the list."""
    return {
        label: {
            "color": colours[i % len(colours)],
            "linestyle": DASHES[i % len(DASHES)],
            "marker": MARKERS[i % len(MARKERS)],
        }
        for i, label in enumerate(dict.fromkeys(labels))
    }
