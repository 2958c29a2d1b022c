"""`/metrics`, `/liveness`, `/readiness` and `/status` on one port; every other path is 404.

Serves before any Kafka client exists, so that an orchestrator sees a canary that waits and not one that is dead.
"""

from __future__ import annotations

import errno
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from canary_image import telemetry

REQUEST_TIMEOUT_S = 5.0
"""A peer that sends or reads slower than this loses its connection, and with it the thread that serves it."""
MOST_REQUESTS = 32
"""Requests served at once; one more is answered 503."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What the canary says of itself; every function returns at once."""

    metrics: Callable[[], bytes]
    is_alive: Callable[[], bool]
    is_ready: Callable[[], bool]
    status: Callable[[], Mapping[str, Any]]


class HttpApi:
    """Listens from the moment it is made. Raises OSError when the port cannot be had."""

    def __init__(self, port: int, answers: Answers) -> None:
        slots = threading.BoundedSemaphore(MOST_REQUESTS)

        class Handler(_Handler):
            pass

        Handler.answers = answers
        Handler.slots = slots
        self._server = _listen(port, Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.5,), name="http", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening; requests under way are answered."""
        self._server.shutdown()
        self._server.server_close()


def _listen(port: int, handler: type[BaseHTTPRequestHandler]) -> _Server:
    """On all addresses: IPv6 and IPv4 where the machine has both, else IPv4."""
    if socket.has_dualstack_ipv6():
        try:
            return _DualStackServer(("", port), handler)
        except OSError as exc:
            if exc.errno != errno.EADDRNOTAVAIL:
                raise
    return _Server(("", port), handler)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self) -> None:
        """Without the base class's look-up of the host's name, which can hang on a broken resolver."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that hangs up is no event of ours."""


class _DualStackServer(_Server):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class _Handler(BaseHTTPRequestHandler):
    answers: Answers
    slots: threading.BoundedSemaphore
    timeout = REQUEST_TIMEOUT_S
    server_version = "sluice-canary"
    sys_version = ""

    def do_GET(self) -> None:
        if not self.slots.acquire(blocking=False):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"too many requests at once")
            return
        try:
            match self.path.partition("?")[0]:
                case "/metrics":
                    self._answer(HTTPStatus.OK, self.answers.metrics(), telemetry.CONTENT_TYPE)
                case "/liveness":
                    self._yes_or_no(self.answers.is_alive(), "a thread of the canary has ended")
                case "/readiness":
                    self._yes_or_no(self.answers.is_ready(), "no own record came back lately")
                case "/status":
                    body = json.dumps(self.answers.status(), separators=(",", ":")).encode()
                    self._answer(HTTPStatus.OK, body, "application/json")
                case _:
                    self._answer(HTTPStatus.NOT_FOUND, b"not found")
        finally:
            self.slots.release()

    def _yes_or_no(self, yes: bool, otherwise: str) -> None:  # noqa: FBT001
        if yes:
            self._answer(HTTPStatus.OK, b"OK")
        else:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, otherwise.encode())

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the library's name)
        """Scrapes and probes are no news."""
