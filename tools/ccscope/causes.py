"""Why a CA state was entered: pure functions from evidence to a cause of schema.CAUSES.

The evidence is, in order of worth: the kernel's call stack at the change (the names of the
functions through which it came), whether an undo was seen in the same ACK, and whether the
connection uses SACK.  What each function proves, from net/ipv4 of Linux 5.10 to 6.18:

- CWR set by a function of tcp_output.c: a packet was refused by the host's own queue
  (NET_XMIT_DROP or NET_XMIT_CN); by ``tcp_try_to_open``: the ACK had ECE; by
  ``tcp_process_tlp_ack``: a tail loss probe had repaired a loss.  (``tcp_enter_cwr`` between them
  may be missing: compilers turn its last call into a jump.)
- Recovery below ``tcp_rack_reo_timeout``: RACK's reordering timer; else an ACK showed the loss.
- Loss below ``tcp_simple_retransmit``: path MTU; else the retransmission timer.
- Open below ``tcp_try_undo_loss``: that function changes the state only when it undoes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_SENDING = (
    *("__tcp_transmit_skb", "tcp_transmit_skb", "tcp_write_xmit", "__tcp_retransmit_skb"),
    *("tcp_retransmit_skb", "tcp_xmit_probe_skb", "tcp_mtu_probe", "tcp_send_loss_probe"),
)
_ECHOED = ("tcp_try_to_open", "tcp_fastretrans_alert")
_SETTERS = ("tcp_set_ca_state", "tcp_enter_cwr")


@dataclass(frozen=True)
class Evidence:
    """What is known of one change; None where a source cannot tell.

    Attributes:
        stack: names of the functions, innermost first.
        undo: an undo of the window was seen in the same ACK.
        sack: the connection uses SACK.
        counts: sacked, lost and reordering as text, when known.
    """

    stack: Sequence[str] | None = None
    undo: bool | None = None
    sack: bool | None = None
    counts: str = ""


def why(left: str, entered: str, seen: Evidence) -> tuple[str, str]:
    """The cause of a change of CA state and what it was concluded from.

    Args:
        left, entered: names of schema.CA_STATES.
        seen: the evidence.
    """
    cause, proof = _CAUSE[entered](seen)
    if left == "Loss" and entered == "Loss" and cause == "rto":
        proof += ", again"
    if cause == "done" and seen.undo is None and left in ("Recovery", "Loss"):
        proof = "state only; an undo would look the same"
    return cause, "; ".join(part for part in (proof, seen.counts) if part)


def _loss(seen: Evidence) -> tuple[str, str]:
    if seen.stack is None:
        return "rto", "state only"
    if "tcp_simple_retransmit" in seen.stack:
        return "mtu", "tcp_simple_retransmit"
    return "rto", _named(seen.stack, ("tcp_retransmit_timer", "tcp_enter_loss"))


def _recovery(seen: Evidence) -> tuple[str, str]:
    if seen.stack and "tcp_rack_reo_timeout" in seen.stack:
        return "rack", "tcp_rack_reo_timeout"
    if seen.stack and "tcp_simple_retransmit" in seen.stack:
        return "mtu", "tcp_simple_retransmit"
    if seen.sack is None:
        return "recovery", "state only"
    return ("sack", "connection uses SACK") if seen.sack else ("dupack", "connection without SACK")


def _cwr(seen: Evidence) -> tuple[str, str]:
    if seen.stack is None:
        return "cwr", "state only"
    caller = _caller(seen.stack)
    cause = "local" if caller in _SENDING else "ecn" if caller in _ECHOED else "cwr"
    return "tlp" if caller == "tcp_process_tlp_ack" else cause, f"set by {caller}"


def _disorder(seen: Evidence) -> tuple[str, str]:
    return _undone(seen) or ("disorder", "")


def _open(seen: Evidence) -> tuple[str, str]:
    return _undone(seen) or ("done", "")


def _undone(seen: Evidence) -> tuple[str, str] | None:
    if seen.undo:
        return "undo", "the congestion control's undo_cwnd was called"
    # With the probe on undo_cwnd its silence would prove that nothing was undone, but for one
    # thing: after an ECN echo the kernel undoes the state and not the window.
    if seen.stack and "tcp_try_undo_loss" in seen.stack:
        return "undo", "tcp_try_undo_loss"
    return None


_CAUSE = {"Open": _open, "Disorder": _disorder, "CWR": _cwr, "Recovery": _recovery, "Loss": _loss}


def _caller(stack: Sequence[str]) -> str:
    """The function that had the state set; ``?`` when the stack does not say."""
    places = [i for i, name in enumerate(stack) if name in _SETTERS]
    known = stack[max(places) + 1 :] if places else [n for n in stack if n != "?"]
    return known[0] if known else "?"


def _named(stack: Sequence[str], names: Sequence[str]) -> str:
    return next((n for n in names if n in stack), "no known function in the stack")


_BY_STATE = {"Recovery": "fast", "Loss": "rto"}


def retransmit_kind(ca_state: str, tcp_state: str) -> str:
    """What sent a segment again: fast, rto or tlp.

    Tail loss probes are sent only in Open and CWR; in SYN_SENT and SYN_RECV only the timer sends.
    """
    if tcp_state in ("SYN_SENT", "SYN_RECV"):
        return "rto"
    return _BY_STATE.get(ca_state, "tlp")
