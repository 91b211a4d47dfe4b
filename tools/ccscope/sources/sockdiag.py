"""Polls TCP sockets through netlink (INET_DIAG): needs no right and no tool.

It sees the sockets of the network namespace it runs in, at its interval only: what happens
between two polls (a recovery shorter than it, a connection that lives shorter) is not seen.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ccscope.errors import CcscopeError

CANNOT = [
    "single ACKs, states shorter than the interval, causes of states, connections that live "
    "shorter than the interval",
    "sockets of other network namespaces than this one and those of --netns",
]
_CLONE_NEWNET = 0x40000000
_NETLINK_SOCK_DIAG, _BY_FAMILY = 4, 20
_REQUEST, _DUMP = 1, 0x300
_DONE, _ERROR = 3, 2
_INFO, _CONG, _SKMEM, _CGROUP = 2, 4, 7, 21
_EXT = 1 << (_INFO - 1) | 1 << (_CONG - 1) | 1 << (_SKMEM - 1)
_MEMORY = struct.Struct("<12xI4xI")  # sndbuf and wmem_queued of SK_MEMINFO_VARS
_LISTEN, _TIME_WAIT = 10, 6
# All states but LISTEN and TIME_WAIT, which have no congestion window.
_STATES = 0xFFF & ~(1 << _LISTEN) & ~(1 << _TIME_WAIT)
_HEADER = struct.Struct("<IHHII")
_MESSAGE = struct.Struct("<BBBB2s2s16s16sI8sIIIII")
_ID, _ID_END = 4, 52  # struct inet_diag_sockid in the message
_ATTRIBUTE = struct.Struct("<HH")

# (name, offset, format) of struct tcp_info; the kernel only ever appends to it.
_TCP_INFO = (
    *(("ca_state", 1, "B"), ("options", 5, "B"), ("scales", 6, "B"), ("bits", 7, "B")),
    *(("rto_us", 8, "I"), ("mss_bytes", 16, "I"), ("unacked_segs", 24, "I")),
    *(("sacked_segs", 28, "I"), ("lost_segs", 32, "I"), ("retrans_segs", 36, "I")),
    *(("srtt_us", 68, "I"), ("rttvar_us", 72, "I"), ("ssthresh_segs", 76, "I")),
    *(("cwnd_segs", 80, "I"), ("retrans_total", 100, "I"), ("pacing_rate_Bps", 104, "Q")),
    *(("bytes_acked", 120, "Q"), ("notsent_bytes", 144, "I"), ("min_rtt_us", 148, "I")),
    *(("delivery_rate_Bps", 160, "Q"), ("busy_us", 168, "Q"), ("rwnd_limited_us", 176, "Q")),
    *(("sndbuf_limited_us", 184, "Q"), ("delivered_segs", 192, "I")),
    *(("delivered_ce_segs", 196, "I"), ("bytes_sent", 200, "Q"), ("bytes_retrans", 208, "Q")),
    *(("dsack_dups", 216, "I"), ("reord_seen", 220, "I"), ("snd_wnd_bytes", 228, "I")),
    ("rcv_wnd_bytes", 232, "I"),
)
_SACK_OK = 2


@dataclass(frozen=True)
class Socket:
    """One socket of a dump; ``info`` holds what the kernel's TCP_INFO has."""

    flow: dict[str, Any]
    inode: int
    cgroup: int
    sack: bool
    info: dict[str, int]


class Poller:
    """A netlink socket that dumps all TCP sockets of a network namespace.

    Args:
        netns: inode of the namespace; 0 is our own.

    Raises:
        CcscopeError: the kernel has no INET_DIAG, or the namespace may not be entered.
    """

    def __init__(self, netns: int = 0) -> None:
        self._netns = netns
        self._socket = self._open()
        self._sequence = 0
        self._dumping = False

    def _open(self) -> socket.socket:
        try:
            made = _in_netns(self._netns, _netlink) if self._netns else _netlink()
        except OSError as error:
            what = f"network namespace {self._netns}" if self._netns else "netlink socket"
            raise CcscopeError(f"sock_diag: {what}: {error.strerror}") from error
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        return made

    def dump(self) -> Iterator[bytes]:
        """The raw answer, IPv4 then IPv6, in pieces of whole messages.

        Raises:
            CcscopeError: the kernel refused.
        """
        if self._dumping:
            # The dump before was broken off (Ctrl-C); the kernel does one at a time for a socket.
            self._socket.close()
            self._socket = self._open()
        self._dumping = True
        for family in (socket.AF_INET, socket.AF_INET6):
            self._sequence += 1
            body = struct.pack("<BBBxI", family, socket.IPPROTO_TCP, _EXT, _STATES) + bytes(48)
            size = _HEADER.size + len(body)
            head = _HEADER.pack(size, _BY_FAMILY, _REQUEST | _DUMP, self._sequence, 0)
            self._socket.send(head + body)
            done = False
            while not done:
                data = self._socket.recv(1 << 20)
                done = _last(data)
                yield data
        self._dumping = False

    def close(self) -> None:
        """Close the netlink socket."""
        self._socket.close()


def _netlink() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)


def _in_netns(inode: int, make: Callable[[], socket.socket]) -> socket.socket:
    """A socket made in another namespace, by a thread that enters it and ends.

    Raises:
        OSError: no such namespace, or no right to it.
    """
    place = netns_place(inode)
    if place is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    made: list[socket.socket | OSError] = []

    def enter() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            with open(place) as file:
                if libc.setns(file.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            made.append(make())
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


def netns_place(inode: int) -> Path | None:
    """A file that stands for a network namespace; None when there is none (any more)."""
    places = [*Path("/run/netns").glob("*"), *Path("/proc").glob("[0-9]*/ns/net")]
    return next((p for p in places if _inode(p) == inode), None)


def _inode(place: Path) -> int:
    try:
        return place.stat().st_ino
    except OSError:
        return 0


def _messages(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Type, start and end of each netlink message's payload."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            return
        yield kind, at + _HEADER.size, at + length
        at += (length + 3) & ~3


def _last(data: bytes) -> bool:
    for kind, start, _ in _messages(data):
        if kind == _ERROR:
            code = -struct.unpack_from("<i", data, start)[0]
            raise CcscopeError(
                f"sock_diag: {os.strerror(code)}; the kernel may lack the module tcp_diag: "
                "`modprobe tcp_diag` as root"
            )
        if kind == _DONE:
            return True
    return False


def sockets(data: bytes) -> Iterator[Socket]:
    """The sockets in a piece of a dump; what is damaged is left out."""
    for kind, start, end in _messages(data):
        if kind == _BY_FAMILY and end - start >= _MESSAGE.size:
            yield _socket(data, start, end)


def select(data: bytes, wanted: Callable[[bytes, Callable[[], Socket]], bool]) -> bytes:
    """The messages of a dump's piece whose sockets are wanted, as a piece of a dump.

    ``wanted`` gets what identifies the socket (addresses, ports, device, cookie) and a function
    that reads the whole message, which is the dear part.
    """
    kept = []
    for kind, start, end in _messages(data):
        if kind != _BY_FAMILY or end - start < _MESSAGE.size:
            continue
        if wanted(data[start + _ID : start + _ID_END], partial(_socket, data, start, end)):
            kept.append(data[start - _HEADER.size : end] + bytes(-end % 4))
    return b"".join(kept)


def _socket(data: bytes, start: int, end: int) -> Socket:
    family, _, _, _, sport, dport, src, dst, *_, inode = _MESSAGE.unpack_from(data, start)
    flow: dict[str, Any] = {
        **{"src": _address(family, src), "dst": _address(family, dst)},
        **{"sport": int.from_bytes(sport, "big"), "dport": int.from_bytes(dport, "big")},
    }
    flow["family"] = 6 if ":" in flow["dst"] else 4
    info: dict[str, int] = {}
    cgroup = 0
    at = start + _MESSAGE.size
    while at + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size or at + length > end:
            break
        value = data[at + _ATTRIBUTE.size : at + length]
        if kind == _INFO:
            info |= _tcp_info(value)
        elif kind == _SKMEM and len(value) >= _MEMORY.size:
            info["sndbuf_bytes"], info["wmem_bytes"] = _MEMORY.unpack_from(value)
        elif kind == _CONG:
            flow["cc"] = value.rstrip(b"\0").decode("latin1")
        elif kind == _CGROUP and len(value) == 8:
            cgroup = int.from_bytes(value, "little")
        at += (length + 3) & ~3
    return Socket(flow, inode, cgroup, bool(info.pop("options", 0) & _SACK_OK), info)


def _tcp_info(value: bytes) -> dict[str, int]:
    made = {
        name: struct.unpack_from("<" + code, value, offset)[0]
        for name, offset, code in _TCP_INFO
        if offset + struct.calcsize(code) <= len(value)
    }
    made["snd_wscale"] = made.pop("scales", 0) & 15
    made["app_limited"] = made.pop("bits", 0) & 1
    return made


def _address(family: int, raw: bytes) -> str:
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, raw[:4])
    text = socket.inet_ntop(socket.AF_INET6, raw)
    return text.removeprefix("::ffff:") if "." in text else text


# ---- whose socket ----


def inodes_of(pid: int) -> set[int]:
    """Inodes of a process's sockets; empty when it is gone or not ours to see."""
    made = set()
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(link.readlink())
                if target.startswith("socket:["):
                    made.add(int(target[8:-1]))
    return made


def cgroup_ids(folder: str) -> set[int]:
    """Numbers of a cgroup and of all below it.

    Raises:
        CcscopeError: there is no such cgroup.
    """
    root = Path(folder)
    if not root.is_absolute():
        root = Path("/sys/fs/cgroup") / folder
    if not root.is_dir():
        raise CcscopeError(f"--cgroup {folder}: {root} is not a folder")
    return {root.stat().st_ino} | {p.stat().st_ino for p in root.rglob("*") if p.is_dir()}


def pack(dump: bytes) -> bytes:
    """A dump's piece as a spool record's payload: time, then the piece."""
    return struct.pack("<Q", time.monotonic_ns()) + dump
