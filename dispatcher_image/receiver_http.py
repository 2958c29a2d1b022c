"""An HTTP/1.1 server for small requests: uvloop or asyncio below, httptools' parser inside, no framework above.

A framework's server would cost more than everything else here (measured: uvicorn 59,000 requests per CPU-second, a
bare protocol 151,000), hence this. It does what a sender may expect of HTTP/1.1: keep-alive, pipelining with answers
in order, Content-Length and chunked bodies, Expect: 100-continue, half-closed connections, HTTP/1.0 clients; and it
refuses what is ambiguous (two lengths, two hosts, an unknown transfer coding), because an ambiguous request is read
differently by the proxy in front.

Everything that a peer can make grow has a name in `Limits`. The life of a request is an `Exchange`:

    head complete → `Handler.on_head`    may refuse by the head alone
    body complete → `Handler.on_request` answers now or later with `Exchange.respond`
    answered      → written as soon as all earlier exchanges of the connection are answered

Time is looked at once a second for all connections together (`HttpServer.sweep`), never per request; timeouts are
therefore up to a second late.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, NamedTuple, NoReturn, Protocol, cast

import httptools

log = logging.getLogger(__name__)

SWEEP_INTERVAL_S: Final = 1.0
BACKLOG: Final = 2048
MAX_LEARNED_NAMES: Final = 4096
"""Spellings of header names that are remembered; a full table is emptied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a peer can make grow, and where it ends. Times in seconds."""

    max_body_bytes: int = 1_048_576
    """→ 413."""
    max_head_bytes: int = 65_536
    """Request line and headers → 431. As much as Kafka, Tomcat and Node take at most."""
    max_headers: int = 256
    """→ 431."""
    max_target_bytes: int = 8_192
    """→ 414."""
    max_connections: int = 10_000
    """Connections beyond are closed at once."""
    max_pipelined: int = 64
    """Unanswered requests of one connection; then its input waits."""
    max_buffered_bytes: int = 67_108_864
    """Bodies under way of all connections together → 503."""
    head_timeout: float = 10.0
    """From the first byte of a head to its end → 408."""
    body_timeout: float = 30.0
    """From the end of the head to the end of the body → 408."""
    idle_timeout: float = 75.0
    """A connection without a request is closed."""
    write_timeout: float = 30.0
    """A peer that does not read its answers loses the connection."""
    linger: float = 5.0
    """After a refusal in the middle of a request its rest is read and dropped for so long, so that the peer finds
    the answer and not a reset (RFC 9112 §9.6)."""


class Response(NamedTuple):
    """An answer; `headers` are complete lines."""

    status: int
    body: bytes = b""
    headers: bytes = b""


def refusal(status: int, reason: str, headers: bytes = b"") -> Response:
    """An answer that says in plain text what was wrong."""
    return Response(status, reason.encode() + b"\n", b"Content-Type: text/plain; charset=utf-8\r\n" + headers)


TOO_MANY_HEADERS: Final = refusal(431, "the request's headers are too large or too many")
BAD_REQUEST: Final = refusal(400, "the request is not valid HTTP/1.1")
TIMED_OUT: Final = refusal(408, "the request did not arrive in time")
FAILED: Final = refusal(500, "the receiver failed; its log says why")
OVERLOADED: Final = refusal(503, "too many requests are under way", b"Retry-After: 1\r\n")

_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CONTROL_HEADERS: Final = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect", b"content-encoding"})
_FOREVER: Final = float("inf")


class Handler(Protocol):
    """What the server serves."""

    def on_head(self, exchange: Exchange) -> Response | None:
        """Refuse a request by its head (method, target, host, headers), or None to read the body."""

    def on_request(self, exchange: Exchange) -> None:
        """Handle a complete request: call `exchange.respond`, now or later, exactly once."""


Observer = Callable[[int, float], None]
"""Told of each answer: status, seconds since the head was complete."""


class Exchange:
    """One request and its answer."""

    __slots__ = (
        "body",
        "connection",
        "headers",
        "host",
        "keep_alive",
        "method",
        "received",
        "rendered",
        "rest",
        "route",
        "started",
        "target",
        "wants_continue",
    )

    def __init__(
        self, connection: Connection, method: bytes, target: bytes, host: bytes, headers: list[tuple[bytes, bytes]]
    ) -> None:
        self.connection = connection
        self.method = method
        self.target = target
        self.host = host
        self.headers = headers
        self.body = b""
        self.keep_alive = True
        self.started = time.monotonic()
        self.rendered: bytes | None = None
        self.route: Any = None
        """For the handler: what `on_head` found out."""
        self.rest: list[bytes] | None = None
        self.received = 0
        self.wants_continue = False

    def respond(self, response: Response) -> None:
        """Answer; the connection writes it in its turn. A second answer is ignored."""
        if self.rendered is None:
            connection = self.connection
            self.rendered = connection.server.render(response, keep_alive=self.keep_alive, head=self.method == b"HEAD")
            connection.server.observe(response.status, time.monotonic() - self.started)
            connection.flush()


class _StopParsing(Exception):
    """Raised inside a parser callback after the connection took its decision: no more callbacks, please."""


class Connection(asyncio.Protocol):
    """One client connection. The parser calls `on_*`; the transport calls the rest."""

    __slots__ = (
        "_deaf",
        "_exchange",
        "_fed",
        "_half_closed",
        "_head_fed",
        "_headers",
        "_in_head",
        "_lingering",
        "_parser",
        "_pending",
        "_reading_paused",
        "_refused",
        "_target",
        "_transport",
        "_transport_paused",
        "_upgrading",
        "content_encoding",
        "content_length",
        "deadline",
        "expect",
        "host",
        "hosts",
        "server",
        "transfer_encoding",
    )

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.deadline = server.now + server.limits.head_timeout
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._pending: deque[Exchange] = deque()
        self._exchange: Exchange | None = None
        """The request whose body is being read."""
        self._refused: Response | None = None
        """The answer that `_exchange` gets once its body was read and dropped."""
        self._in_head = False
        self._head_fed = 0
        """Bytes of the present head that came in earlier chunks; 0: it began in this one."""
        self._fed = 0
        self._deaf = False
        """True: what still comes is dropped."""
        self._half_closed = False
        self._lingering = False
        self._reading_paused = False
        self._transport_paused = False
        self._upgrading = False
        self._reset_head()

    def _reset_head(self) -> None:
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self.host = b""
        self.hosts = 0
        self.content_length = 0
        self.transfer_encoding = b""
        self.expect = b""
        self.content_encoding = b""

    # --- transport ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self.server.admit(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        self._transport = None
        self._deaf = True
        if self._exchange is not None:
            self.server.buffered_bytes -= self._exchange.received
            self._exchange = None
        self._pending.clear()
        self.server.forget(self)

    def eof_received(self) -> bool:
        # A client may close its side and still wait for answers to what it sent (RFC 9112 §9.6).
        self._half_closed = True
        if self._pending and self._exchange is None and self._transport is not None:
            self._deaf = True
            return self._transport.can_write_eof()
        return False

    def pause_writing(self) -> None:
        self._transport_paused = True
        self.deadline = self.server.now + self.server.limits.write_timeout
        self._adjust_reading()

    def resume_writing(self) -> None:
        self._transport_paused = False
        self._set_deadline()
        self._adjust_reading()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._fed = len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            self._ignore_upgrade(data[exc.args[0] :])
        except httptools.HttpParserError as exc:
            # After a request that closes the connection the parser refuses to go on; so do we, without a word.
            if not self._deaf:
                is_ours = isinstance(exc, httptools.HttpParserCallbackError)
                if is_ours:
                    log.exception("receiver.parse_failed", exc_info=exc.__context__)
                self._fail(FAILED if is_ours else BAD_REQUEST)
            return
        if self._in_head:
            self._head_fed += self._fed if self._head_fed else max(1, self._head_size())
            if self._head_fed > self.server.limits.max_head_bytes:
                self._fail(TOO_MANY_HEADERS)
        elif self._exchange is not None:
            # Chunk extensions and trailers are not part of the body; they must end all the same.
            self._head_fed += self._fed
            if self._head_fed > 2 * self.server.limits.max_body_bytes + self.server.limits.max_head_bytes:
                self._fail(BAD_REQUEST)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Treat a request that offers to switch protocols as if it did not (RFC 9110 §7.8).

        The parser stops for good at such a head, so the request goes through a new one, without the offer.
        """
        if not self._upgrading or self._deaf:
            return
        self._upgrading = False
        lines = [b"%b %b HTTP/1.1\r\n" % (self._parser.get_method(), self._target)]
        lines += [b"%b: %b\r\n" % header for header in self._headers if header[0].lower() != b"upgrade"]
        self._parser = httptools.HttpRequestParser(self)
        self._reset_head()
        self.data_received(b"".join(lines) + b"\r\n" + rest)

    # --- parser ------------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_fed = 0
        self.deadline = self.server.now + self.server.limits.head_timeout

    def on_url(self, target: bytes) -> None:
        self._target += target
        if len(self._target) > self.server.limits.max_target_bytes:
            self._stop(refusal(414, "the request target is too long"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._exchange is not None:
            return  # a trailer; nothing that may stand there concerns us (RFC 9110 §6.5.1)
        self._headers.append((name, value))
        try:
            control = _learned_names[name]
        except KeyError:
            control = _learn_name(name)
        if control is not None:
            self._on_control_header(control, value.strip(b" \t"))

    def _on_control_header(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            self.host = value
            self.hosts += 1
        elif name == b"content-length":
            self.content_length = int(value)  # the parser let nothing through but one plain number
        elif name == b"transfer-encoding":
            self.transfer_encoding += value.lower()
        elif name == b"expect":
            self.expect = value.lower()
        else:
            self.content_encoding = value.lower()

    def on_headers_complete(self) -> None:
        self._in_head = False
        server, parser, limits = self.server, self._parser, self.server.limits
        method: bytes = parser.get_method()
        if len(self._headers) > limits.max_headers or (
            (self._head_fed or self._fed > limits.max_head_bytes) and self._head_size() > limits.max_head_bytes
        ):
            self._stop(TOO_MANY_HEADERS)
        if parser.should_upgrade() and method != b"CONNECT":
            self._upgrading = True
            return
        self._head_fed = 0
        exchange = Exchange(self, method, self._target, self.host, self._headers)
        version = parser.get_http_version()
        if (
            version != "1.1"
            or self.hosts != 1
            or self.transfer_encoding
            or self.expect
            or self.content_encoding
            or method == b"CONNECT"
        ):
            self._check_unusual(exchange, version)
        exchange.keep_alive = parser.should_keep_alive() and not server.is_draining
        refused = server.handler.on_head(exchange)
        is_too_large = self.content_length > limits.max_body_bytes
        if is_too_large and refused is None:
            refused = server.too_large
        # A client that waits for 100 now sends its body or does not; only the end of the connection makes both clear.
        if refused is not None and (is_too_large or exchange.wants_continue):
            self._stop(refused)
        self._refused = refused
        self._exchange = exchange
        self._pending.append(exchange)
        self.deadline = server.now + limits.body_timeout
        if exchange.wants_continue:
            self._invite()

    def _check_unusual(self, exchange: Exchange, version: str) -> None:
        """Refuse what HTTP/1.1 demands to refuse; everything that an ordinary request has not comes here."""
        if version not in {"1.0", "1.1"}:
            self._stop(refusal(505, "only HTTP/1.1 and HTTP/1.0 are spoken here"))
        if exchange.method == b"CONNECT":
            self._stop(refusal(405, "CONNECT is not served", b"Allow: POST, OPTIONS\r\n"))
        if self.hosts > 1 or (self.hosts == 0 and version == "1.1"):
            self._stop(refusal(400, "a request needs exactly one Host header (RFC 9112 §3.2)"))
        if self.transfer_encoding:
            if version == "1.0":
                self._stop(refusal(400, "HTTP/1.0 knows no Transfer-Encoding (RFC 9112 §6.1)"))
            if self.transfer_encoding != b"chunked":
                self._stop(refusal(501, "the only transfer coding that is served is chunked"))
        if self.content_encoding not in {b"", b"identity"}:
            # The event's data must arrive as it was sent, and nothing downstream would know that it is compressed.
            self._stop(refusal(415, "no content coding is served; send the body as it is"))
        if self.expect:
            if self.expect != b"100-continue":
                self._stop(refusal(417, "the only expectation that is met is 100-continue"))
            has_body = self.content_length > 0 or bool(self.transfer_encoding)
            exchange.wants_continue = has_body and version == "1.1"

    def on_body(self, part: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        exchange.wants_continue = False
        size = exchange.received + len(part)
        if size > self.server.limits.max_body_bytes:
            self._abandon(self._refused or self.server.too_large)
        exchange.received = size
        self.server.buffered_bytes += len(part)
        if self._refused is not None:
            return
        if self.server.buffered_bytes > self.server.limits.max_buffered_bytes:
            self._abandon(OVERLOADED)
        if not exchange.body:
            exchange.body = part
        elif exchange.rest is None:
            exchange.rest = [part]
        else:
            exchange.rest.append(part)

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if exchange is None:
            return  # an offer to switch protocols; the request comes again
        self._exchange = None
        self.server.buffered_bytes -= exchange.received
        if exchange.rest is not None:
            exchange.body = b"".join([exchange.body, *exchange.rest])
        exchange.wants_continue = False
        if not exchange.keep_alive:
            self._deaf = True
        self._reset_head()
        self.deadline = _FOREVER
        if len(self._pending) >= self.server.limits.max_pipelined:
            self._adjust_reading()
        if self._refused is not None:
            exchange.respond(self._refused)
            return
        try:
            self.server.handler.on_request(exchange)
        except Exception:  # the top of this request: whatever it is, somebody waits for an answer
            log.exception("receiver.request_failed")
            exchange.respond(FAILED)

    # --- decisions ---------------------------------------------------------------------------------------------------

    def _head_size(self) -> int:
        return len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers)

    def _stop(self, response: Response) -> NoReturn:
        """Refuse inside a parser callback, before the request became an exchange of the queue."""
        self._fail(response)
        raise _StopParsing

    def _abandon(self, response: Response) -> NoReturn:
        """Refuse in the middle of a body."""
        exchange = self._exchange
        assert exchange is not None
        self.server.buffered_bytes -= exchange.received
        exchange.received = 0
        self._exchange = None
        self._pending.remove(exchange)
        self._stop(response)

    def _fail(self, response: Response) -> None:
        """Answer what cannot be read to its end, in its turn, and close after it."""
        self._deaf = True
        self._in_head = False
        if self._exchange is not None:
            self.server.buffered_bytes -= self._exchange.received
            self._pending.remove(self._exchange)
            self._exchange = None
        exchange = Exchange(self, b"", b"", b"", [])
        exchange.keep_alive = False
        self._lingering = True
        self.deadline = _FOREVER
        self._pending.append(exchange)
        exchange.respond(response)

    def _invite(self) -> None:
        """Send 100 Continue to the exchange that is first in the queue, if it waits for one."""
        if self._pending and self._pending[0].wants_continue and self._transport is not None:
            self._pending[0].wants_continue = False
            self._transport.write(_CONTINUE)

    def flush(self) -> None:
        """Write the answers whose turn has come."""
        pending, transport = self._pending, self._transport
        if transport is None or not pending or pending[0].rendered is None:
            return
        exchange = pending.popleft()
        output = exchange.rendered
        assert output is not None
        if pending:
            parts = [output]
            while pending and exchange.keep_alive and pending[0].rendered is not None:
                exchange = pending.popleft()
                assert exchange.rendered is not None
                parts.append(exchange.rendered)
            output = b"".join(parts)
        transport.write(output)
        if not exchange.keep_alive:
            self._close()
            return
        if pending:
            self._invite()
        elif self._half_closed:
            self._close()
            return
        if self._reading_paused:
            self._adjust_reading()
        self._set_deadline()

    def _close(self) -> None:
        """End the connection after what was written, leaving the peer time to find it."""
        assert self._transport is not None
        self._deaf = True
        self._pending.clear()
        if self._lingering and not self._half_closed:
            if self._transport.can_write_eof():  # TLS cannot; there "Connection: close" has to say it
                self._transport.write_eof()
            if self._reading_paused:
                self._reading_paused = False
                self._transport.resume_reading()
            self.deadline = self.server.now + self.server.limits.linger
        else:
            self._transport.close()
            self.deadline = self.server.now + self.server.limits.write_timeout

    def _set_deadline(self) -> None:
        if self._deaf or self._transport_paused:
            return
        if self._exchange is None and not self._in_head:
            self.deadline = _FOREVER if self._pending else self.server.now + self.server.limits.idle_timeout

    def _adjust_reading(self) -> None:
        """Stop the input while answers are owed or unread, start it again when half of them are out."""
        if self._transport is None or self._deaf:
            return
        limit = self.server.limits.max_pipelined
        waits = self._transport_paused or len(self._pending) >= (limit // 2 if self._reading_paused else limit)
        if waits and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
        elif not waits and self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()

    def expire(self) -> None:
        """The deadline passed: say so where somebody waits, and end."""
        if self._transport is None:
            return
        if not self._deaf and (self._in_head or self._exchange is not None):
            self._fail(TIMED_OUT)
        elif self._deaf or self._transport_paused:
            self._transport.abort()
        else:
            self._transport.close()

    @property
    def is_idle(self) -> bool:
        """Nothing was begun that is not answered."""
        return not self._pending and not self._in_head

    def close_if_idle(self) -> None:
        """End a connection on which nothing is under way."""
        if self.is_idle and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End without ceremony."""
        if self._transport is not None:
            self._transport.abort()


_learned_names: dict[bytes, bytes | None] = {}
"""Header name as spelled → the name in lower case if it steers the connection, else None."""


def _learn_name(name: bytes) -> bytes | None:
    lower = name.lower()
    control = lower if lower in _CONTROL_HEADERS else None
    if len(_learned_names) >= MAX_LEARNED_NAMES:
        _learned_names.clear()
    if len(name) <= 64:
        _learned_names[name] = control
    return control


def _ignore(status: int, seconds: float) -> None:
    """Observe nothing."""


class HttpServer:
    """Listens, and knows all connections."""

    def __init__(self, handler: Handler, limits: Limits, observe: Observer = _ignore) -> None:
        self.handler = handler
        self.limits = limits
        self.observe = observe
        self.now = time.monotonic()
        """Of the last sweep: precise enough for timeouts, and free."""
        self.buffered_bytes = 0
        self.is_draining = False
        self.too_large = refusal(413, f"the body is larger than {limits.max_body_bytes} bytes")
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._date = b""
        self._accepted = b""
        self._renew_date()

    async def start(self, port: int, *, host: str | None = None, tls: ssl.SSLContext | None = None) -> int:
        """Listen; gives the port. Port 0: a free one. Raises OSError when it is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self),
            host,
            port,
            backlog=BACKLOG,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else self.limits.head_timeout,
        )
        self._sweeper = loop.call_later(SWEEP_INTERVAL_S, self._sweep_again)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self, *, last_call: float, timeout: float) -> None:  # noqa: ASYNC109 - one bound for all of it
        """Accept no more connections, answer what is under way, close.

        For `last_call` seconds requests on open connections are still served, each as its connection's last one: a
        request that was on its way when the decision fell gets an answer and not a reset.
        """
        deadline = time.monotonic() + timeout
        self.is_draining = True
        if self._server is not None:
            self._server.close()
        await asyncio.sleep(min(last_call, timeout))
        while self._connections and time.monotonic() < deadline:
            for connection in list(self._connections):
                connection.close_if_idle()
            await asyncio.sleep(0.02)
        for connection in list(self._connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    def admit(self, connection: Connection) -> bool:
        """Take a connection in, unless there are too many."""
        self._connections.add(connection)
        return len(self._connections) <= self.limits.max_connections

    def forget(self, connection: Connection) -> None:
        """A connection ended."""
        self._connections.discard(connection)

    def render(self, response: Response, *, keep_alive: bool, head: bool = False) -> bytes:
        """An answer as bytes."""
        if response is ACCEPTED and keep_alive:
            return self._accepted
        reason = _REASONS.get(response.status, b"")
        return b"HTTP/1.1 %d %b\r\nDate: %b\r\n%bContent-Length: %d\r\nConnection: %b\r\n\r\n%b" % (
            response.status,
            reason,
            self._date,
            response.headers,
            len(response.body),
            b"keep-alive" if keep_alive else b"close",
            b"" if head else response.body,
        )

    def sweep(self, now: float) -> None:
        """End every connection whose deadline has passed."""
        self.now = now
        self._renew_date()
        for connection in [connection for connection in self._connections if connection.deadline < now]:
            connection.expire()

    def _sweep_again(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep_again)
        try:
            self.sweep(time.monotonic())
        except Exception:  # one broken connection must not end the timeouts of all others
            log.exception("receiver.sweep_failed")

    def _renew_date(self) -> None:
        self._date = formatdate(usegmt=True).encode()
        self._accepted = (
            b"HTTP/1.1 202 Accepted\r\nDate: %b\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n" % self._date
        )


ACCEPTED: Final = Response(202)
"""Compared by identity: its bytes are made once a second."""
