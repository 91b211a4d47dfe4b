"""A small HTTP server for views: GET only, by default for this host's own browser alone.

Any page in a browser may send requests to 127.0.0.1, also under a name of its own that it lets
point there (DNS rebinding).  So a request must name this server as its host, must not come from
another origin, and for what is private must know the token in the path.
"""

from __future__ import annotations

import hmac
import http
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ccscope.errors import CcscopeError

LOOPBACK = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost", "[::1]")
_OWN = ("same-origin", "none")
_CLIENTS = 16
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Answer:
    """What a request gets: a body, or pieces that are sent as they come.

    Attributes:
        kind: the Content-Type.
        body: the whole, or an iterator over pieces.
        headers: more of them.
    """

    kind: str
    body: bytes | Iterator[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)


Handle = Callable[[str, Mapping[str, list[str]]], Answer | None]
"""Path (below the token) and query to an answer; None is "not found"."""


class Server:
    """Serves in threads of its own while its context is open.

    Args:
        address, port: where to listen; port 0 takes a free one.
        handle: answers requests.
        token: first part of every path; empty for none.

    Raises:
        CcscopeError: the address cannot be had.
    """

    def __init__(self, address: str, port: int, handle: Handle, *, token: str = "") -> None:
        self.handle, self.token = handle, token
        self.local = ipaddress.ip_address(address).is_loopback
        self._clients = threading.BoundedSemaphore(_CLIENTS)
        try:
            self._httpd = _Httpd((address, port), _Handler)
        except OSError as error:
            raise CcscopeError(f"cannot listen on {address}:{port}: {error.strerror}") from error
        self._httpd.owner = self
        self.port = int(self._httpd.server_address[1])
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self.port}/" + (f"{token}/" if token else "")
        self._thread = threading.Thread(target=self._httpd.serve_forever, daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._httpd.shutdown()
        self._thread.join()
        self._httpd.server_close()

    def refused(self, headers: Mapping[str, str]) -> str:
        """Why a request is not answered; empty when it is."""
        if not self.local:
            return ""
        hosts = {f"{name}:{self.port}" for name in _NAMES}
        if headers.get("Host", "").lower() not in hosts:
            return "this server answers only under its own address"
        origin = headers.get("Origin")
        if origin is not None and origin not in {f"http://{host}" for host in hosts}:
            return "another page may not read this"
        if headers.get("Sec-Fetch-Site", "none") not in _OWN:
            return "another page may not read this"
        return ""

    def below(self, path: str) -> str | None:
        """The path without the token; None when the token is wrong."""
        if not self.token:
            return path.removeprefix("/")
        first, slash, rest = path.removeprefix("/").partition("/")
        right = hmac.compare_digest(first.encode(), self.token.encode())
        return rest if right and slash else None

    def busy(self) -> bool:
        """Whether there are as many clients as there may be; counts this one if not."""
        return not self._clients.acquire(blocking=False)

    def gone(self) -> None:
        """A client that :meth:`busy` had counted has gone."""
        self._clients.release()


class _Httpd(ThreadingHTTPServer):
    daemon_threads = True
    owner: Server

    def __init__(self, where: tuple[str, int], handler: Any) -> None:  # noqa: ANN401 - a class
        if ":" in where[0]:
            self.address_family = socket.AF_INET6
        super().__init__(where, handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Httpd
    server_version = "ccscope"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        owner = self.server.owner
        if owner.busy():
            self._refuse(503, "too many clients")
            return
        try:
            self._answer(owner)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True
        finally:
            owner.gone()

    def _answer(self, owner: Server) -> None:
        why = owner.refused(self.headers)  # type: ignore[arg-type]
        if why:
            self._refuse(403, why)
            return
        asked = urlsplit(self.path)
        path = owner.below(asked.path)
        answer = None if path is None else owner.handle(path, parse_qs(asked.query))
        if answer is None:
            self._refuse(404, "not found")
            return
        self.send_response(200)
        whole = answer.body if isinstance(answer.body, bytes) else None
        length = {"Content-Length": str(len(whole))} if whole is not None else {}
        for name, value in {
            **_HEADERS, "Content-Type": answer.kind, **length, **answer.headers,
        }.items():  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        for piece in [whole] if whole is not None else answer.body:
            assert isinstance(piece, bytes)
            self.wfile.write(piece)
            self.wfile.flush()

    def _refuse(self, status: int, why: str) -> None:
        body = f"{status} {http.HTTPStatus(status).phrase}: {why}\n".encode()
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": "text/plain; charset=utf-8"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal is the user's, and paths hold the token."""
