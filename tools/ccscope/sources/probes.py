"""Kprobe events that give what tracepoints do not: the socket *after* the ACK, and undos.

The text for ``kprobe_events`` is made from BTF, so nothing is compiled and no header is needed.
All structs of a TCP socket begin at the same address, that of its ``sock_common``.

======  ==========================  ====================================================
event   probed function             when
======  ==========================  ====================================================
after   return of ``tcp_ack``       the ACK is in, what it allows is not yet sent.  Needs a kernel
                                    that knows arguments at a return (6.9); else:
after   ``tcp_check_space``         the ACK is in, and what it allowed has been sent; newer kernels
                                    call it for each segment sent too
ca      ``tcp_set_ca_state``        before the state is changed: has the old one
undo    every ``*_undo_cwnd``       the congestion control is asked for the window to go back to
again   event tcp_retransmit_skb    a segment was sent again; says which (an event probe: Linux
                                    5.15, file ``dynamic_events``)
======  ==========================  ====================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ccscope.btf import Btf
from ccscope.errors import CcscopeError

AFTER = ("tcp_ack", "tcp_check_space")
STATE = "tcp_set_ca_state"
UNDO = "_undo_cwnd"

_ADDRESS = (
    *(("family", "sock_common", "skc_family"), ("sport", "sock_common", "skc_num")),
    *(("saddr4", "sock_common", "skc_rcv_saddr"), ("daddr4", "sock_common", "skc_daddr")),
)
_TCP = (
    *(("snd_cwnd", "tcp_sock", "snd_cwnd"), ("ssthresh", "tcp_sock", "snd_ssthresh")),
    *(("snd_una", "tcp_sock", "snd_una"), ("snd_nxt", "tcp_sock", "snd_nxt")),
    *(("snd_wnd", "tcp_sock", "snd_wnd"), ("rcv_wnd", "tcp_sock", "rcv_wnd")),
    *(("srtt", "tcp_sock", "srtt_us"), ("packets_out", "tcp_sock", "packets_out")),
    *(("delivered", "tcp_sock", "delivered"), ("pacing", "sock", "sk_pacing_rate")),
)
_COUNTS = (
    *(("sacked", "tcp_sock", "sacked_out"), ("lost", "tcp_sock", "lost_out")),
    ("retrans", "tcp_sock", "retrans_out"),
)
_STATE = (
    ("ca_state", "inet_connection_sock", "icsk_ca_state"),
    ("sack_ok", "tcp_sock", "rx_opt.sack_ok"),
)
_REORDER = (("reord", "tcp_sock", "reordering"),)


@dataclass(frozen=True)
class Probe:
    """A kprobe event: ``text`` is its line for kprobe_events, without the group."""

    event: str
    function: str
    arguments: str
    at_return: bool = False

    def line(self, group: str) -> str:
        """The line that defines it in a group."""
        kind = "r" if self.at_return else "p"
        return f"{kind}:{group}/{self.event} {self.function} {self.arguments}"


@dataclass(frozen=True)
class Value:
    """A number to fetch from a socket.

    Attributes:
        name: of the field of the event.
        offset, size, bit, bits: where it is, bytes; ``bits`` is 0 unless a bit field.
        through: offsets of pointers to follow first.
    """

    name: str
    offset: int
    size: int
    bit: int = 0
    bits: int = 0
    through: tuple[int, ...] = ()

    def fetch(self, base: str = "$arg1") -> str:
        """As an argument of a probe event; ``base`` holds the socket's address."""
        kind = f"b{self.bits}@{self.bit}/{8 * self.size}" if self.bits else f"u{8 * self.size}"
        for offset in self.through:
            base = f"+{offset}({base})"
        return f"{self.name}=+{self.offset}({base}):{kind}"


def common_values(btf: Btf) -> list[Value]:
    """What names a socket.

    Raises:
        CcscopeError: this kernel lacks a field.
    """
    made = [_value(btf, *row) for row in _ADDRESS]
    port = btf.place("sock_common", "skc_dport").offset
    # In network order; two bytes, so that the filter and the tables see the usual number.
    made += [Value("dporthi", port, 1), Value("dportlo", port + 1, 1)]
    for name, field in (("saddr6", "skc_v6_rcv_saddr"), ("daddr6", "skc_v6_daddr")):
        at = btf.place("sock_common", field).offset
        made += [Value(f"{name}a", at, 8), Value(f"{name}b", at + 8, 8)]
    net = btf.place("sock_common", "skc_net.net").offset
    return [*made, Value("netns", btf.place("net", "ns.inum").offset, 4, through=(net,))]


def after_values(btf: Btf) -> list[Value]:
    """The state after an ACK; errors as :func:`common_values`."""
    least = Value("min_rtt", btf.place("tcp_sock", "rtt_min.s").offset + 4, 4)
    return [*(_value(btf, *row) for row in _TCP), least, *_state_values(btf)]


def ca_values(btf: Btf) -> list[Value]:
    """The state before a change of the CA state; errors as :func:`common_values`."""
    return [*_state_values(btf), *(_value(btf, *row) for row in _REORDER)]


def _state_values(btf: Btf) -> list[Value]:
    return [_value(btf, *row) for row in (*_COUNTS, *_STATE)]


def _value(btf: Btf, name: str, struct: str, field: str) -> Value:
    place = btf.place(struct, field)
    if place.size not in (1, 2, 4, 8):
        raise CcscopeError(f"BTF: field {field} has {place.size} bytes, which no probe can fetch")
    return Value(name, place.offset, place.size, place.bit, place.bits)


def probes(btf: Btf, functions: Iterable[str], *, per_ack: bool) -> list[Probe]:
    """The probes this kernel allows; of several with the event ``after`` the first that works.

    Args:
        btf: the kernel's types.
        functions: names of the kernel's functions (kallsyms), modules' too.
        per_ack: also the one that fires at each ACK.

    Raises:
        CcscopeError: a field is missing that all need.
    """
    known = set(functions)
    common = [value.fetch() for value in common_values(btf)]
    made = []
    if per_ack:
        arguments = " ".join([*common, *(value.fetch() for value in after_values(btf))])
        made += [Probe("after", f, arguments, f == "tcp_ack") for f in AFTER if f in known]
    if STATE in known:
        rest = ["cong_state=$arg2:u8", *(value.fetch() for value in ca_values(btf))]
        made.append(Probe("ca", STATE, " ".join([*common, *rest])))
    # Probes of one event on several functions are one event with several lines.
    for function in sorted(f for f in known if f.endswith(UNDO)):
        made.append(Probe("undo", function, " ".join(common)))
    return made


def again(btf: Btf, group: str) -> str:
    """The line for ``dynamic_events`` that makes retransmissions tell their first byte.

    Raises:
        CcscopeError: a field is missing.
    """
    at = sequence_place(btf)
    common = " ".join(value.fetch("$skaddr") for value in common_values(btf))
    return (
        f"e:{group}/again tcp.tcp_retransmit_skb {common} seq=+{at}($skbaddr):u32 state=$state:u32"
    )


def sequence_place(btf: Btf) -> int:
    """Where a packet buffer has its first sequence number."""
    return btf.place("sk_buff", "cb").offset + btf.place("tcp_skb_cb", "seq").offset
