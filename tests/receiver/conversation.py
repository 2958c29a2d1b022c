"""One client of the receiver's HTTP server, without a network: bytes in, answers out."""

from __future__ import annotations

from dataclasses import dataclass, field
from http.client import HTTPMessage, parse_headers
from io import BytesIO

from dispatcher_image.receiver_http import Connection, Exchange, HttpServer, Limits, Response
from tests.fakes.transport import MemoryTransport


@dataclass
class Answer:
    status: int
    headers: HTTPMessage
    body: bytes


def read_answers(data: bytes, *, to_head: bool = False) -> list[Answer]:
    """Every answer in `data`; fails where it is not a whole number of them."""
    stream = BytesIO(data)
    answers = []
    while line := stream.readline():
        version, status, _ = line.decode().split(" ", 2)
        assert version == "HTTP/1.1"
        headers = parse_headers(stream)
        length = 0 if to_head or status == "100" else int(headers["Content-Length"])
        body = stream.read(length)
        assert len(body) == length
        answers.append(Answer(int(status), headers, body))
    return answers


@dataclass
class RecordingHandler:
    """Answers at once with what it saw, or keeps the exchanges for the test to answer."""

    holds: bool = False
    refuses: Response | None = None
    seen: list[Exchange] = field(default_factory=list)

    def on_head(self, exchange: Exchange) -> Response | None:
        return self.refuses

    def on_request(self, exchange: Exchange) -> None:
        self.seen.append(exchange)
        if not self.holds:
            exchange.respond(Response(200, exchange.body))


class Client:
    """Talks to one connection of a server."""

    def __init__(self, handler=None, limits=None, *, server=None, can_write_eof=True) -> None:
        self.handler = handler or RecordingHandler()
        self.server = server or HttpServer(self.handler, limits or Limits())
        self.connection = Connection(self.server)
        self.transport = MemoryTransport(self.connection, can_write_eof=can_write_eof)
        self.connection.connection_made(self.transport)

    def send(self, *chunks: bytes) -> Client:
        for chunk in chunks:
            if not self.transport.is_closed:
                self.connection.data_received(chunk)
        return self

    def half_close(self) -> Client:
        """End the client's side, as `shutdown(SHUT_WR)` does."""
        if not self.connection.eof_received():
            self.transport.close()
        return self

    @property
    def answers(self) -> list[Answer]:
        return read_answers(bytes(self.transport.written))

    @property
    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers]

    @property
    def is_ended(self) -> bool:
        """The server ended the connection, or its side of it."""
        return self.transport.is_closed or self.transport.wrote_eof


def request(body: bytes = b"", *headers: str, target: str = "/", method: str = "POST", host: str = "h") -> bytes:
    """A request with a Content-Length."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(*parts: bytes) -> bytes:
    head = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
