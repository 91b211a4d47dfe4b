"""The names of what can limit a flow, and how they are said.

Every moment of a flow belongs to exactly one class.  ``FAMILY`` puts together what is one phase to
a reader: a sawtooth is one phase, not forty.
"""

from __future__ import annotations

IDLE = "idle"
APPLICATION = "application"
SNDBUF = "sndbuf"
SENDER = "sender"
PACING = "pacing"
RECEIVER = "receiver"
SLOW_START = "slow-start"
CWND = "cwnd"
AFTER_LOSS = "after-loss"
RECOVERY = "recovery"
TIMEOUT = "timeout"
UNKNOWN = "unknown"

CLASSES = (
    *(IDLE, APPLICATION, SNDBUF, SENDER, PACING, RECEIVER, SLOW_START, CWND, AFTER_LOSS),
    *(RECOVERY, TIMEOUT, UNKNOWN),
)
CODE = {name: number for number, name in enumerate(CLASSES)}

ABOUT = {
    IDLE: "idle: nothing to send",
    APPLICATION: "application: the program gave no more data, the windows had room",
    SNDBUF: "send buffer: the program waited for room in it",
    SENDER: "sender: program, send buffer or pacing (not told apart here); the windows had room",
    PACING: "pacing: the rate that the congestion control set",
    RECEIVER: "receiver's window was full",
    SLOW_START: "cwnd: slow start",
    CWND: "cwnd: at or above its size before the last loss",
    AFTER_LOSS: "cwnd: growing back after a loss",
    RECOVERY: "cwnd: in recovery (losses being repaired, or a mark or local drop answered)",
    TIMEOUT: "timeout: waiting for it and repairing after it",
    UNKNOWN: "unknown: the recording has no evidence",
}
"""Each class in a line, as the table of seconds says it."""

FAMILY = {name: name for name in CLASSES} | {AFTER_LOSS: CWND, RECOVERY: CWND}
"""The phase that a class belongs to."""

LIMIT = {
    **{IDLE: "idle", APPLICATION: "application", SNDBUF: "send buffer", SENDER: "sender"},
    **{PACING: "cwnd", RECEIVER: "receiver window", SLOW_START: "cwnd", CWND: "cwnd"},
    **{AFTER_LOSS: "cwnd", RECOVERY: "cwnd", TIMEOUT: "cwnd", UNKNOWN: "unknown"},
}
"""The limit that a class stands for: pacing and timeouts are the congestion control's doing."""
