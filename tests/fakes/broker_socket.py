"""A broker as the connection check sees it: answers ApiVersions and SASL, over TCP or TLS, and nothing else."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import struct
import threading
from typing import Self


class BrokerSocket:
    """Listens on a free port of the loopback from `with` to its end.

    Args:
        context: Server side of TLS; None: plain TCP.
        users: Name → password for SASL PLAIN.
        silent: Accept connections and never answer, as a hung broker does.
        answer: Send these bytes to whatever is asked instead of speaking Kafka.
    """

    def __init__(
        self,
        *,
        context: ssl.SSLContext | None = None,
        users: dict[str, str] | None = None,
        silent: bool = False,
        answer: bytes | None = None,
    ) -> None:
        users = users or {}
        self.asked: list[int] = []
        stopped = threading.Event()
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                connection: socket.socket = self.request
                connection.settimeout(5)
                with contextlib.suppress(OSError, ssl.SSLError):
                    if silent:
                        stopped.wait(5)
                        return
                    if context is None:
                        outer._serve(connection, users, answer)
                        return
                    with context.wrap_socket(connection, server_side=True) as secured:
                        outer._serve(secured, users, answer)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._stopped = stopped
        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, connection: socket.socket, users: dict[str, str], answer: bytes | None) -> None:
        while True:
            (length,) = struct.unpack(">i", self._read(connection, 4))
            request = self._read(connection, length)
            api_key, _version, correlation_id = struct.unpack_from(">hhi", request)
            (client_length,) = struct.unpack_from(">h", request, 8)
            body = request[10 + client_length :]
            self.asked.append(api_key)
            if answer is not None:
                connection.sendall(answer)
                return
            if api_key == 18:
                reply = struct.pack(">hi", 0, 0)
            elif api_key == 17:
                offered = body[2:] == b"PLAIN"
                reply = struct.pack(">hi", 0 if offered else 33, 1) + struct.pack(">h", 5) + b"PLAIN"
            else:
                _, user, password = body[4:].decode().split("\0")
                known = users.get(user) == password
                reply = struct.pack(">hh", 0, -1) if known else struct.pack(">hh", 58, 6) + b"denied"
                reply += struct.pack(">i", 0)
            reply = struct.pack(">i", correlation_id) + reply
            connection.sendall(struct.pack(">i", len(reply)) + reply)

    @staticmethod
    def _read(connection: socket.socket, length: int) -> bytes:
        data = b""
        while len(data) < length:
            more = connection.recv(length - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return data
