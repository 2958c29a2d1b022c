"""Our own HTTP/1.1 client: keep-alive connections that pull the next request as soon as they have an answer.

A connection has one request under way (no pipelining: a POST behind a lost answer could not be repeated safely). Its
life: opening → busy ⇄ idle → closed. What may go wrong, and what follows:

* The peer closes an idle connection at the moment we write to it (RFC 9112 §9.3.1). When no byte of an answer came
  and the connection had served before, the request is sent once more on a *new* connection, as the same attempt.
* The peer closes in the middle of an answer, or answers something that is not HTTP: no answer, and the attempt failed.
* No complete answer within the timeout: the connection is closed and the attempt failed. Deadlines are looked at
  every `TICK_S` for all connections together.

How many connections there are is found out, not configured: it begins with `FIRST_CONNECTIONS`, grows while requests
are waiting *and* the event loop has leisure, which means that it is the subscriber's latency that limits us, and
shrinks while the loop has none. A fast subscriber keeps few connections, because more only spread the work over more
memory; a slow one gets as many as records may be in flight.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import deque
from typing import Any, Final, cast

from dispatcher_image.delivery import NoAnswer
from dispatcher_image.leisure import Leisure
from dispatcher_image.responses import BrokenResponse, Parsed, ResponseParser, remembered
from dispatcher_image.sender import (
    CONNECT_TIMEOUT_S,
    IDLE_TIMEOUT_S,
    MAX_CONNECTIONS,
    TICK_S,
    Request,
    Target,
    Work,
)

FIRST_CONNECTIONS: Final = 64
GROWTH: Final = 1.5
"""Factor per tick; from 64 to 1,024 in seven ticks."""
SHRINKAGE: Final = 0.9
"""The same downwards."""
GROW_ABOVE: Final = 0.25
SHRINK_BELOW: Final = 0.05
"""Shares of leisure; in between the number stays as it is."""
MAX_JOINED_BYTES: Final = 65_536
"""Larger bodies are handed over beside their head, not copied behind it."""

log = logging.getLogger(__name__)
monotonic = time.monotonic


class Connection(asyncio.Protocol):
    """One connection of a `NativeSender`."""

    __slots__ = ("deadline", "idle_since", "is_open", "opening", "parser", "redo", "request", "sender", "served",
                 "started", "transport")  # fmt: skip

    def __init__(self, sender: NativeSender, request: Request) -> None:
        self.sender = sender
        self.request: Request | None = request
        """None: idle."""
        self.redo = False
        """The request was written to a connection that the peer had closed; it is not sent a third time."""
        self.parser = ResponseParser()
        self.transport: asyncio.Transport | None = None
        self.opening: asyncio.Task[None] | None = None
        self.is_open = True
        self.served = 0
        self.started = 0.0
        self.deadline = 0.0
        self.idle_since = 0.0

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance check: uvloop's transports are Transports without being instances of asyncio's class.
        self.transport = cast("asyncio.Transport", transport)
        if self.request is None or not self.is_open:  # timed out or aborted while it was being opened
            self.close()
            return
        self._write(self.request)

    def data_received(self, data: bytes) -> None:
        request = self.request
        if request is None:
            self.close()  # nothing was asked: an answer that came too late, or nonsense
            return
        parser = self.parser
        # The same lookup as in the parser, here without a call: nine in ten answers end there.
        parsed: Parsed | None = remembered.get(data) if not parser.is_started else None
        if parsed is None:
            try:
                parsed = parser.feed(data)
            except BrokenResponse as exc:
                self.fail(str(exc))
                return
            if parsed is None:
                return
        sender = self.sender
        now = monotonic()
        self.request = None
        self.redo = False
        self.served += 1
        answer, keep_alive = parsed
        if not keep_alive:
            self.close()
        sender.in_flight -= 1
        work = sender.work
        work.settle(request[0], answer, self.started, now)
        if not keep_alive or sender.is_retired or sender.surplus > 0:
            sender.surplus -= 1
            self.close()
            sender.kick()
            return
        following = work.take()
        if following is None:
            self.idle_since = now
            sender.idle.append(self)
        else:
            sender.in_flight += 1
            self.request = following
            self.started = now
            self.deadline = now + sender.timeout_s
            self._write(following)

    def eof_received(self) -> bool:
        if self.request is not None:
            parsed = self.parser.end()
            if parsed is not None:
                request, self.request = self.request, None
                self.close()
                self.sender.ended(request, parsed.answer, self.started)
        return False  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        request = self.request
        self.transport = None
        self.close()
        if request is None:
            return
        self.request = None
        if self.served and not self.redo and not self.parser.is_started:
            self.sender.again(request, self.started, self.deadline)
            return
        reason = f"connection lost: {exc}" if exc is not None else "the connection was closed before the answer ended"
        self.sender.ended(request, NoAnswer(reason), self.started)

    # --- used by the sender ------------------------------------------------------------------------------------------

    def send(self, request: Request, now: float) -> None:
        """Send on an idle connection."""
        self.request = request
        self.started = now
        self.deadline = now + self.sender.timeout_s
        self._write(request)

    def fail(self, reason: str) -> None:
        """End the attempt that is under way without an answer, and the connection with it."""
        request, self.request = self.request, None
        self.close(abort=True)
        if request is not None:
            self.sender.ended(request, NoAnswer(reason), self.started)

    def close(self, *, abort: bool = False) -> None:
        """`abort`: what is still to be written belongs to an attempt that has ended."""
        if self.is_open:
            self.is_open = False
            self.sender.forget(self)
        if self.opening is not None:
            self.opening.cancel()
            self.opening = None
        if self.transport is not None:
            if abort:
                self.transport.abort()
            else:
                self.transport.close()

    def _write(self, request: Request) -> None:
        _, lines, body = request
        transport = self.transport
        assert transport is not None
        if len(body) <= MAX_JOINED_BYTES:
            transport.write(b"%b%bcontent-length: %d\r\n\r\n%b" % (self.sender.head, lines, len(body), body))
        else:
            transport.write(b"%b%bcontent-length: %d\r\n\r\n" % (self.sender.head, lines, len(body)))
            transport.write(body)


class NativeSender:
    """`sender.Sender` over connections of our own. Belongs to one event loop."""

    def __init__(self, target: Target, work: Work, timeout_s: float, limit: int) -> None:
        self.target = target
        self.work = work
        self.timeout_s = timeout_s
        self.head = target.head
        self.idle: list[Connection] = []
        """Last in, first out: what is surplus grows old at the bottom and is closed."""
        self.in_flight = 0
        self.is_retired = False
        self.surplus = 0
        """How many connections more there are than should be; the next to get their answers are closed."""
        self._limit = limit
        self._allowed = min(FIRST_CONNECTIONS, limit)
        self._connections: set[Connection] = set()
        self._again: deque[tuple[Request, float, float]] = deque()
        self._loop = asyncio.get_running_loop()
        self._tls: ssl.SSLContext | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._look_at = 0.0
        self._leisure = Leisure()
        self._kicking = False

    @property
    def connections(self) -> int:
        return len(self._connections)

    def set_limit(self, connections: int) -> None:
        self._limit = min(connections, MAX_CONNECTIONS)
        self._allowed = max(min(self._allowed, self._limit), min(FIRST_CONNECTIONS, self._limit))

    def kick(self) -> None:
        if self.is_retired or self._kicking:
            return
        self._kicking = True  # settle → kick → take → settle may come back here
        try:
            now = monotonic()
            while self.idle:
                request = self.work.take()
                if request is None:
                    return
                self.in_flight += 1
                self.idle.pop().send(request, now)
            while len(self._connections) < self._allowed:
                request = self.work.take()
                if request is None:
                    return
                self.in_flight += 1
                self._open(request, now, now + self.timeout_s)
        finally:
            self._kicking = False

    def retire(self) -> None:
        self.is_retired = True
        self._leisure.close()
        for connection in [*self.idle]:
            connection.close()

    def abort(self) -> None:
        self.is_retired = True
        self._again.clear()
        self._leisure.close()
        for connection in [*self._connections]:
            connection.request = None
            connection.close(abort=True)
        self.in_flight = 0
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    # --- used by connections -----------------------------------------------------------------------------------------

    def ended(self, request: Request, outcome: Any, started: float) -> None:
        """An attempt ended together with its connection."""
        self.in_flight -= 1
        self.work.settle(request[0], outcome, started, monotonic())
        self.kick()

    def again(self, request: Request, started: float, deadline: float) -> None:
        """Send a request once more, on a new connection; its attempt and its deadline go on."""
        self._open(request, started, deadline, redo=True)

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)

    # --- opening -----------------------------------------------------------------------------------------------------

    def _open(self, request: Request, started: float, deadline: float, *, redo: bool = False) -> None:
        connection = Connection(self, request)
        connection.started = started
        connection.deadline = deadline
        connection.redo = redo
        self._connections.add(connection)
        connection.opening = self._loop.create_task(self._connect(connection))
        if self._ticking is None:
            self._leisure.share()
            self._ticking = self._loop.call_later(TICK_S, self._tick)

    async def _connect(self, connection: Connection) -> None:
        target = self.target
        try:
            if target.tls and self._tls is None:
                self._tls = target.ssl_context()
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._loop.create_connection(
                    lambda: connection,
                    target.host,
                    target.port,
                    ssl=self._tls,
                    server_hostname=target.host if target.tls else None,
                )
            connection.opening = None
        except TimeoutError:
            connection.opening = None
            connection.fail(f"no connection to {target.origin} within {CONNECT_TIMEOUT_S:g} s")
        except (OSError, ssl.SSLError, ValueError) as exc:
            connection.opening = None
            connection.fail(f"no connection to {target.origin}: {exc}")

    # --- time --------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Look at deadlines, age and number of connections. One timer for all of them, and none when there are none."""
        now = monotonic()
        if now >= self._look_at:
            self._look_at_deadlines(now)
        while self.idle and now - self.idle[0].idle_since > IDLE_TIMEOUT_S:
            self.idle[0].close()
        self._adapt()
        if self._connections:
            self._ticking = self._loop.call_later(TICK_S, self._tick)
        else:
            self._ticking = None
            self._allowed = min(FIRST_CONNECTIONS, self._limit)

    def _look_at_deadlines(self, now: float) -> None:
        # What is sent from now on ends no sooner than after the timeout, so the next look can wait for the first of
        # the deadlines that are known.
        first = now + self.timeout_s
        late = []
        for connection in self._connections:
            if connection.request is not None:
                if connection.deadline <= now:
                    late.append(connection)
                else:
                    first = min(first, connection.deadline)
        self._look_at = first
        for connection in late:
            connection.fail(f"no answer within {self.timeout_s:g} s")

    def _adapt(self) -> None:
        """Find out how many connections there should be."""
        leisure = self._leisure.share()
        count = len(self._connections)
        if leisure < SHRINK_BELOW:
            self._allowed = max(min(FIRST_CONNECTIONS, self._limit), int(self._allowed * SHRINKAGE))
        elif leisure > GROW_ABOVE and not self.idle and self._allowed <= count < self._limit:
            self._allowed = min(self._limit, int(self._allowed * GROWTH) + 1)
            self.kick()
        self.surplus = max(0, count - self._allowed)
