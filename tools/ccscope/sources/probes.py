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

from ccscope.btf import Btf, Place
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
    common = _common(btf)
    state = [_fetch(btf, *row) for row in (*_COUNTS, *_STATE)]
    made = []
    if per_ack:
        least = f"min_rtt=+{btf.place('tcp_sock', 'rtt_min.s').offset + 4}($arg1):u32"
        rest = [_fetch(btf, *row) for row in _TCP]
        arguments = " ".join([*common, *rest, least, *state])
        made += [Probe("after", f, arguments, f == "tcp_ack") for f in AFTER if f in known]
    if STATE in known:
        more = [_fetch(btf, *row) for row in _REORDER]
        new = "cong_state=$arg2:u8"
        made.append(Probe("ca", STATE, " ".join([*common, new, *state, *more])))
    # Probes of one event on several functions are one event with several lines.
    for function in sorted(f for f in known if f.endswith(UNDO)):
        made.append(Probe("undo", function, " ".join(common)))
    return made


def again(btf: Btf, group: str) -> str:
    """The line for ``dynamic_events`` that makes retransmissions tell their first byte.

    Raises:
        CcscopeError: a field is missing.
    """
    at = btf.place("sk_buff", "cb").offset + btf.place("tcp_skb_cb", "seq").offset
    common = " ".join(_common(btf)).replace("$arg1", "$skaddr")
    return (
        f"e:{group}/again tcp.tcp_retransmit_skb {common} seq=+{at}($skbaddr):u32 state=$state:u32"
    )


def _common(btf: Btf) -> list[str]:
    """What names a socket, from its address in the first argument."""
    common = [_fetch(btf, *row) for row in _ADDRESS]
    port = btf.place("sock_common", "skc_dport").offset
    # In network order; two bytes, so that the filter and the tables see the usual number.
    common += [f"dporthi=+{port}($arg1):u8", f"dportlo=+{port + 1}($arg1):u8"]
    common += _six(btf, "saddr6", "skc_v6_rcv_saddr") + _six(btf, "daddr6", "skc_v6_daddr")
    net = btf.place("sock_common", "skc_net.net").offset
    return [*common, f"netns=+{btf.place('net', 'ns.inum').offset}(+{net}($arg1)):u32"]


def _fetch(btf: Btf, name: str, struct: str, field: str) -> str:
    place = btf.place(struct, field)
    return f"{name}=+{place.offset}($arg1):{_type(place, field)}"


def _type(place: Place, field: str) -> str:
    if place.size not in (1, 2, 4, 8):
        raise CcscopeError(f"BTF: field {field} has {place.size} bytes, which no probe can fetch")
    if place.bits:
        return f"b{place.bits}@{place.bit}/{8 * place.size}"
    return f"u{8 * place.size}"


def _six(btf: Btf, name: str, field: str) -> list[str]:
    at = btf.place("sock_common", field).offset
    return [f"{name}a=+{at}($arg1):u64", f"{name}b=+{at + 8}($arg1):u64"]
