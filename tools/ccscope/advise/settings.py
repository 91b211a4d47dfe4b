"""How to set a receive window, where, what it really does, and how to undo it.

Seen on Linux 6.12 by ``selftests/guest/test_ccscope_advise.py``:

* ``SO_RCVBUF`` counts memory, not payload: the kernel doubles the value and takes what packets need
  beside their payload out of it, so the window comes out at 1 to 1.3 times the value; without a
  window scale (values up to 64 KiB) at 65535 at most.  It also ends the automatic growth of the
  buffer, which the other two ways do not.
* ``TCP_WINDOW_CLAMP`` limits one socket at once.  Set before the buffer has grown, the growth
  overwrites it: set it on a connection that has run, or together with SO_RCVBUF.
* ``ip route ... window N`` is the same clamp from the start of new connections, so it does not
last:
  the kernel computes the clamp again from the buffer when it grows, and also when packets turn out
  to need more or less memory (``tcp_moderate_rcvbuf=0`` does not help).  What lasts is the window
  scale that follows from N, hence a bound of 65535 << scale.
* ``tcp_rmem``'s last number is memory as well, of every connection of the host that does not set
  SO_RCVBUF.
* At the sender, ``ip route ... cwnd lock N`` caps cwnd itself, but the kernel takes the lock from
its
  cache of metrics: from the second connection on, and not with ``tcp_no_metrics_save=1``.

A window of more than 64 KiB is offered in units of 2**scale bytes; it is rounded to one here.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """One way.

    Attributes:
        where: ``receiver`` or ``sender``.
        reach: what it applies to.
        do: commands or calls that set it.
        undo: commands or calls that bring back what was.
    """

    where: str
    reach: str
    do: tuple[str, ...]
    undo: tuple[str, ...]


def scale_of(window_bytes: float) -> int:
    """The window scale that Linux chooses for a clamp: enough for the field of 16 bits."""
    return min(max(int(window_bytes).bit_length() - 16, 0), 14)


def rounded(window_bytes: float) -> int:
    """A window that can be offered exactly: up to a whole unit of its scale."""
    whole = max(round(window_bytes), 1)
    unit = 1 << scale_of(whole)
    return -(-whole // unit) * unit


def settings(window_bytes: float, mss_bytes: float, sender: str, receiver: str) -> list[Setting]:
    """Ways to set a window, the narrowest reach first.

    Args:
        window_bytes: the window.
        mss_bytes: segment size, for the sender's side.
        sender: address of the data's sender; a word in its place when not known.
        receiver: address of the data's receiver; likewise.
    """
    window = rounded(window_bytes)
    segments = max(2, int(window // mss_bytes))
    ip = _ip(sender)
    return [
        Setting(
            "receiver",
            "one program; before connect() or listen(); the window comes out 1 to 1.3 times this",
            (f"setsockopt(fd, SOL_SOCKET, SO_RCVBUF, {round(window / 1.15)})",),
            ("leave the call out",),
        ),
        Setting(
            "receiver",
            "one connection that has run for a while, at once",
            (f"setsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, {window})",),
            ("setsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, BEFORE)   # getsockopt gives it",),
        ),
        Setting(
            "receiver",
            "all new connections of the host; the window comes out at half of this or more",
            (
                "sysctl net.ipv4.tcp_rmem   # note the three numbers",
                f'sysctl -w net.ipv4.tcp_rmem="4096 {min(131072, 2 * window)} {2 * window}"',
            ),
            ('sysctl -w net.ipv4.tcp_rmem="THE THREE NUMBERS"',),
        ),
        Setting(
            "receiver",
            f"new connections with {sender}; coarse: the window comes out at up to "
            f"{65535 << scale_of(window)}",
            (
                f"{ip} route get {sender}   # says [via GATEWAY] dev DEVICE",
                f"{ip} route add {_host(sender)} [via GATEWAY] dev DEVICE window {window}",
            ),
            (f"{ip} route del {_host(sender)}",),
        ),
        Setting(
            "sender",
            f"connections with {receiver} from the second on: caps cwnd, not the window",
            (
                f"{_ip(receiver)} route get {receiver}   # says [via GATEWAY] dev DEVICE",
                f"{_ip(receiver)} route add {_host(receiver)} [via GATEWAY] dev DEVICE "
                f"cwnd lock {segments}",
                f"ip tcp_metrics flush {receiver}",
            ),
            (
                f"{_ip(receiver)} route del {_host(receiver)}",
                f"ip tcp_metrics flush {receiver}",
            ),
        ),
    ]


def _family(address: str) -> int:
    try:
        return ipaddress.ip_address(address).version
    except ValueError:
        return 4


def _ip(address: str) -> str:
    return "ip" if _family(address) == 4 else "ip -6"


def _host(address: str) -> str:
    return f"{address}/{32 if _family(address) == 4 else 128}"
