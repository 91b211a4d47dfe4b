"""Which flows are recorded.

Ports are filtered in the kernel; everything else is decided when a flow's addresses are known,
from what sock_diag tells of its socket.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ccscope.errors import CcscopeError


@dataclass(frozen=True)
class Selection:
    """The flows that are wanted; empty parts do not restrict, all parts must hold.

    Attributes:
        ports: local or remote port.
        addresses: local or remote address or network (CIDR).
        cc: names of congestion-control algorithms.
        pids: processes (with their threads' sockets).
        cgroups: folders below the cgroup root, with all below them.
        netns: inode numbers of network namespaces.
    """

    ports: tuple[int, ...] = ()
    addresses: tuple[str, ...] = ()
    cc: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    cgroups: tuple[str, ...] = ()
    netns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for port in self.ports:
            if not 0 < port < 65536:
                raise CcscopeError(f"--port {port}: a port is 1 to 65535")
        for address in self.addresses:
            try:
                ipaddress.ip_network(address, strict=False)
            except ValueError as error:
                raise CcscopeError(f"--addr {address}: {error}") from error

    @property
    def everything(self) -> bool:
        """Nothing is restricted."""
        return self == Selection()

    @property
    def by_socket(self) -> bool:
        """Whether sockets must be looked up: addresses and ports do not decide."""
        return bool(self.cc or self.pids or self.cgroups)

    def to_json(self) -> dict[str, Any]:
        """What restricts, for recording.json."""
        return {name: list(value) for name, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Selection:
        """Read back what :meth:`to_json` wrote."""
        return cls(**{name: tuple(value) for name, value in data.items()})

    def kernel_filter(self, fields: set[str]) -> str:
        """The filter for an event with these fields; empty when none applies."""
        parts = []
        if self.ports and "dportlo" in fields:
            parts.append([_our_port(p) for p in self.ports])
        elif self.ports and {"sport", "dport"} <= fields:
            parts.append([f"sport == {p} || dport == {p}" for p in self.ports])
        if self.netns and "netns" in fields:
            parts.append([f"netns == {n}" for n in self.netns])
        return " && ".join("(" + " || ".join(part) + ")" for part in parts)

    def ends(self, flow: Mapping[str, Any]) -> bool:
        """Whether addresses and ports are wanted."""
        if self.ports and not {flow["sport"], flow["dport"]} & set(self.ports):
            return False
        if not self.addresses:
            return True
        nets = [ipaddress.ip_network(a, strict=False) for a in self.addresses]
        ends = [ipaddress.ip_address(flow[end]) for end in ("src", "dst")]
        return any(end in net for end in ends for net in nets)


def _our_port(port: int) -> str:
    high, low = port >> 8, port & 255
    return f"sport == {port} || (dporthi == {high} && dportlo == {low})"


def flow_key(flow: Mapping[str, Any]) -> tuple[str, int, str, int]:
    """What names a connection."""
    return flow["src"], flow["sport"], flow["dst"], flow["dport"]
