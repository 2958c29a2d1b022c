"""A subscriber on loopback that records what it gets and answers as it is told; runs on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Received:
    """One request, complete."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float
    """time.monotonic() when it was complete."""

    @property
    def id(self):
        return self.headers.get("ce-id")


@dataclass
class Reply:
    """An answer. `delay` in seconds; `raw` replaces everything; `close` ends the connection after it."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    delay: float = 0.0
    raw: bytes | None = None
    close: bool = False

    def render(self):
        if self.raw is not None:
            return self.raw
        lines = [f"HTTP/1.1 {self.status} X", *(f"{name}: {value}" for name, value in self.headers.items())]
        if self.status != 204:
            lines.append(f"content-length: {len(self.body)}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


class RecordingSubscriber:
    """Answers 204 to everything until `answer` is set: a function from Received to Reply, called in its thread."""

    def __init__(self, tls=None):
        self.received: list[Received] = []
        self.answered: list[Received] = []
        self.answer = lambda _: Reply()
        self.open = 0
        self.under_way: dict[str, int] = {}
        self.most_under_way: dict[str, int] = {}
        self._tls = tls
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def url(self, path="/"):
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}{path}"

    def of(self, path):
        return [received for received in list(self.received) if received.path == path]

    def wait_for(self, condition, timeout=20.0):
        """Wait until `condition(self)` is true; fails with what it has got."""
        deadline = time.monotonic() + timeout
        while not condition(self):
            if time.monotonic() > deadline:
                paths = {}
                for received in list(self.received):
                    paths[received.path] = paths.get(received.path, 0) + 1
                raise AssertionError(f"not within {timeout} s; received {paths}")
            time.sleep(0.02)

    def _run(self):
        asyncio.run(self._serve())

    async def _serve(self):
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._tasks = set()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, ssl=self._tls, backlog=2048)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connection(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        self.open += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                fields = [line.partition(": ") for line in head[1:] if line]
                headers = {name.lower(): value for name, _, value in fields}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                received = Received(head[0].split(" ")[1], headers, body, time.monotonic())
                self.received.append(received)
                key = headers.get("ce-partitionkey")
                lane = f"{received.path} {key}"
                if key is not None:
                    self.under_way[lane] = self.under_way.get(lane, 0) + 1
                    self.most_under_way[lane] = max(self.most_under_way.get(lane, 0), self.under_way[lane])
                try:
                    reply = self.answer(received)
                    if reply.delay:
                        await asyncio.sleep(reply.delay)
                finally:
                    if key is not None:
                        self.under_way[lane] -= 1
                self.answered.append(received)
                writer.write(reply.render())
                await writer.drain()
                if reply.close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self._tasks.discard(task)
            with contextlib.suppress(Exception):
                writer.close()
