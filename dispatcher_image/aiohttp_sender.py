"""The other transport, `TRANSPORT=aiohttp`: a well-kept library for what our own client does not do.

Proxies from the environment (`HTTPS_PROXY`, `NO_PROXY`), odd TLS, servers that stretch HTTP. It costs several times
the CPU of the native one (benchmarks/dispatch.md). One worker task for each request that is in flight at the same
time, which takes one after the other; workers end when nothing is ready.
"""

from __future__ import annotations

import asyncio
import io
import logging
import ssl
import time
from typing import Final
from urllib.request import getproxies, proxy_bypass

import aiohttp
from multidict import CIMultiDict

from dispatcher_image.delivery import MAX_REPLY_BYTES, Answer, NoAnswer, Outcome
from dispatcher_image.sender import (
    CONNECT_TIMEOUT_S,
    IDLE_TIMEOUT_S,
    MAX_CONNECTIONS,
    MAX_DISCARDED_BYTES,
    MAX_HEADER_BYTES,
    Request,
    Target,
    Work,
)

CHUNK_BYTES: Final = 65_536

log = logging.getLogger(__name__)


class AiohttpSender:
    """`sender.Sender` over an aiohttp session of its own."""

    def __init__(self, target: Target, work: Work, timeout_s: float, limit: int) -> None:
        self.target = target
        self.work = work
        self.timeout_s = timeout_s
        self.in_flight = 0
        self._limit = min(limit, MAX_CONNECTIONS)
        self._workers: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None
        self._is_retired = False
        # Once: aiohttp's own look at the environment for each request costs more than the request.
        self._proxy = None if proxy_bypass(target.host) else getproxies().get("https" if target.tls else "http")
        self._constant = CIMultiDict(
            (name, value) for name, value in _fields(target.head.partition(b"\r\n")[2]) if name.lower() != "host"
        )

    @property
    def connections(self) -> int:
        return len(self._workers)

    def set_limit(self, connections: int) -> None:
        self._limit = min(connections, MAX_CONNECTIONS)

    def kick(self) -> None:
        while not self._is_retired and len(self._workers) < self._limit:
            request = self.work.take()
            if request is None:
                return
            self.in_flight += 1
            worker = asyncio.get_running_loop().create_task(self._run(request))
            self._workers.add(worker)
            worker.add_done_callback(self._worker_ended)

    def retire(self) -> None:
        self._is_retired = True
        self._close_when_idle()

    def abort(self) -> None:
        self._is_retired = True
        for worker in self._workers:
            worker.cancel()
        self._close_when_idle()

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if self._is_retired and not self._workers and self._session is not None:
            session, self._session = self._session, None
            closing = asyncio.get_running_loop().create_task(session.close())
            self._workers.add(closing)  # or it might be collected before it ends
            closing.add_done_callback(self._workers.discard)

    async def _run(self, first: Request) -> None:
        request: Request | None = first
        while request is not None:
            started = time.monotonic()
            try:
                outcome = await self._send(request)
            except asyncio.CancelledError:
                self.in_flight -= 1
                raise
            except Exception as exc:  # the top of this attempt: whatever a library throws, the attempt has ended
                log.exception("dispatch.transport_failed target=%s", self.target.origin)
                outcome = NoAnswer(f"{type(exc).__name__}: {exc}")
            self.in_flight -= 1
            self.work.settle(request[0], outcome, started, time.monotonic())
            request = None if self._is_retired else self.work.take()
            if request is not None:
                self.in_flight += 1

    async def _send(self, request: Request) -> Outcome:
        _, lines, body = request
        headers = self._constant.copy()
        headers.extend(_fields(lines))
        try:
            session = self._opened()
            # aiohttp sends a file in pieces, so that a large body does not hold the loop.
            data = body if len(body) <= CHUNK_BYTES else io.BytesIO(body)
            async with session.post(
                self.target.url, data=data, headers=headers, allow_redirects=False, proxy=self._proxy
            ) as response:
                kept: list[bytes] = []
                size = 0
                async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                    if size + len(chunk) <= MAX_REPLY_BYTES:
                        kept.append(chunk)
                    size += len(chunk)
                    if size > MAX_DISCARDED_BYTES:
                        response.close()
                        break
                fields = tuple((name.lower(), value) for name, value in response.raw_headers)
                whole = b"".join(kept)
                return Answer(response.status, fields, whole, size > len(whole), _may_be_event(fields))
        except TimeoutError:
            return NoAnswer(f"no answer within {self.timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ssl.SSLError, ValueError) as exc:
            return NoAnswer(f"{type(exc).__name__}: {exc}")

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0,  # the number of workers is the limit
                keepalive_timeout=IDLE_TIMEOUT_S,
                ssl=self.target.ssl_context() or True,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("Content-Type", "User-Agent", "Accept", "Accept-Encoding"),
                max_field_size=MAX_HEADER_BYTES,
                max_line_size=MAX_HEADER_BYTES,
                timeout=aiohttp.ClientTimeout(total=self.timeout_s, connect=CONNECT_TIMEOUT_S),
            )
        return self._session


def _fields(lines: bytes) -> list[tuple[str, str]]:
    """Header lines as aiohttp wants them."""
    fields = []
    for line in lines.split(b"\r\n"):
        if line:
            name, _, value = line.partition(b": ")
            fields.append((name.decode("latin-1"), value.decode("utf-8", "surrogateescape")))
    return fields


def _may_be_event(fields: tuple[tuple[bytes, bytes], ...]) -> bool:
    return any(
        name == b"ce-specversion" or (name == b"content-type" and value[:23].lower() == b"application/cloudevents")
        for name, value in fields
    )
