"""Polls by netlink: this host's own sockets, and damage."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from ccscope.errors import CcscopeError
from ccscope.sources import sockdiag


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        with client, other:
            yield client, other


def _mine(pair: tuple[socket.socket, socket.socket]) -> tuple[bytes, sockdiag.Socket]:
    poller = sockdiag.Poller()
    try:
        pieces = list(poller.dump())
    finally:
        poller.close()
    ports = (pair[0].getsockname()[1], pair[0].getpeername()[1])
    for piece in pieces:
        for sock in sockdiag.sockets(piece):
            if (sock.flow["sport"], sock.flow["dport"]) == ports:
                return piece, sock
    raise AssertionError("our socket is not in the dump")


def test_the_kernel_tells_what_tcp_info_tells(pair: tuple[socket.socket, socket.socket]) -> None:
    client, other = pair
    client.sendall(bytes(5000))
    assert len(other.recv(5000, socket.MSG_WAITALL)) == 5000
    _, sock = _mine(pair)
    info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    assert sock.info["mss_bytes"] == int.from_bytes(info[16:20], "little")
    assert sock.info["cwnd_segs"] == int.from_bytes(info[80:84], "little") > 0
    assert sock.info["bytes_acked"] >= 5000
    room = client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert (sock.info["sndbuf_bytes"], sock.info["wmem_bytes"]) == (room, 0)
    assert (
        sock.flow["cc"]
        == client.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b"\0")[0].decode()
    )
    assert (sock.flow["src"], sock.flow["family"]) == ("127.0.0.1", 4)
    assert sock.inode in sockdiag.inodes_of(os.getpid())


def test_selection_keeps_whole_messages(pair: tuple[socket.socket, socket.socket]) -> None:
    piece, wanted = _mine(pair)
    kept = sockdiag.select(piece, lambda _, read: read().flow == wanted.flow)
    assert list(sockdiag.sockets(kept)) == [wanted]
    assert sockdiag.select(piece, lambda key, _: key == b"") == b""
    for size in range(len(kept)):
        assert len(list(sockdiag.sockets(kept[:size]))) == (size >= len(kept))


def test_an_error_of_the_kernel_names_the_remedy() -> None:
    reply = b"\x24\0\0\0\2\0\0\0" + bytes(8) + (-2).to_bytes(4, "little", signed=True) + bytes(16)
    with pytest.raises(CcscopeError, match="modprobe tcp_diag"):
        sockdiag._last(reply)


def test_processes_and_cgroups_that_do_not_exist() -> None:
    assert sockdiag.inodes_of(2**22 + 1) == set()
    with pytest.raises(CcscopeError, match="--cgroup"):
        sockdiag.cgroup_ids("no/such/group")
