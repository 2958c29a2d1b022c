"""The sample subscriber: takes any event, prints a line for it and shows what it has had.

`python -m orchestration.local.sample_subscriber --port N`. A newcomer sees here that his event arrived, and tests ask
it what did: `GET /events` answers a JSON list, oldest first, each entry with `path`, `received_at`, `attributes` and
`data` (JSON where it is JSON, else text; bytes that are no text stand in `data_base64`). Any POST is answered 202, at
any path, in binary and structured mode and for batches; what is no event is shown with the reason in `problem`.
`GET /healthz` says that it lives.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
from collections import deque
from datetime import UTC, datetime
from typing import Any

from eventing.cloudevents import CONTENT_TYPE, Record, Undecodable
from eventing.cloudevents_http import records_from_request
from orchestration.local.ports import LOOPBACK

MAX_EVENTS = 10_000
"""Events that are remembered; older ones are forgotten, so that a long trial does not fill the memory."""
MAX_HEAD_BYTES = 65_536
MAX_BODY_BYTES = 8 * 1024 * 1024
SHOWN_DATA_CHARACTERS = 200
IDLE_TIMEOUT_S = 120.0

Headers = list[tuple[bytes, bytes]]


class RefusedError(Exception):
    """A request that cannot be read to its end; the connection ends with this status."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


class SampleSubscriber:
    """Remembers events for as long as it lives."""

    def __init__(self) -> None:
        self.events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self.count = 0

    def answer(self, method: str, path: str, headers: Headers, body: bytes, now: datetime) -> tuple[str, bytes, str]:
        """Status line's end, body and content type of one answer."""
        if method == "POST":
            for event in events_of(path, headers, body, now):
                self.events.append(event)
                self.count += 1
                print(line_of(self.count, event), flush=True)  # noqa: T201
            return "202 Accepted", b"", ""
        if method not in {"GET", "HEAD"}:
            return "405 Method Not Allowed", b"POST an event, or GET /events\n", "text/plain"
        match path.partition("?")[0]:
            case "/events":
                return "200 OK", json.dumps(list(self.events)).encode(), "application/json"
            case "/healthz":
                return "200 OK", b"ok\n", "text/plain"
            case _:
                return "404 Not Found", b"GET /events shows what was received; POST anything anywhere\n", "text/plain"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            while True:
                try:
                    async with asyncio.timeout(IDLE_TIMEOUT_S):
                        method, path, headers, body, keep_alive = await read_request(reader, writer)
                except RefusedError as exc:
                    writer.write(f"HTTP/1.1 {exc.status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
                    break
                status, content, content_type = self.answer(method, path, headers, body, datetime.now(UTC))
                type_line = f"Content-Type: {content_type}\r\n" if content_type else ""
                end = "keep-alive" if keep_alive else "close"
                head = f"HTTP/1.1 {status}\r\n{type_line}Content-Length: {len(content)}\r\nConnection: {end}\r\n\r\n"
                writer.write(head.encode() + (b"" if method == "HEAD" else content))
                await writer.drain()
                if not keep_alive:
                    break
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[str, str, Headers, bytes, bool]:
    """Method, path, headers, body and whether the connection stays.

    Raises:
        RefusedError: it cannot be read.
        asyncio.IncompleteReadError: the client left.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as exc:
        raise RefusedError("431 Request Header Fields Too Large") from exc
    request_line, *lines = head[:-4].split(b"\r\n")
    parts = request_line.decode("latin-1").split(" ")
    pairs = [line.partition(b":") for line in lines]
    if len(parts) != 3 or not parts[2].startswith("HTTP/1.") or not all(name and colon for name, colon, _ in pairs):
        raise RefusedError("400 Bad Request")
    headers = [(name.strip().lower(), value.strip()) for name, _, value in pairs]
    named = dict(headers)
    if named.get(b"expect", b"").lower() == b"100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if b"chunked" in named.get(b"transfer-encoding", b"").lower():
        body = await read_chunks(reader)
    else:
        length = named.get(b"content-length", b"0")
        if not length.isdigit():
            raise RefusedError("400 Bad Request")
        if int(length) > MAX_BODY_BYTES:
            raise RefusedError("413 Content Too Large")
        body = await reader.readexactly(int(length))
    default = b"keep-alive" if parts[2] == "HTTP/1.1" else b"close"
    return parts[0], parts[1], headers, body, b"close" not in named.get(b"connection", default).lower()


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    """A chunked body. Raises as `read_request` does."""
    body = b""
    while True:
        try:
            size = int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16)
        except (ValueError, asyncio.LimitOverrunError) as exc:
            raise RefusedError("400 Bad Request") from exc
        if size == 0:
            break
        if size < 0 or len(body) + size > MAX_BODY_BYTES:
            raise RefusedError("413 Content Too Large")
        body += (await reader.readexactly(size + 2))[:-2]
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers
    return body


def events_of(path: str, headers: Headers, body: bytes, now: datetime) -> list[dict[str, Any]]:
    """What a request brought, as `GET /events` shows it."""
    common = {"path": path, "received_at": now.isoformat(timespec="milliseconds")}
    records = records_from_request(headers, body)
    if isinstance(records, Undecodable):
        return [{**common, "attributes": {}, **readable(body), "problem": records.reason}]
    return [{**common, "attributes": attributes_of(record), **readable(record.value)} for record in records]


def attributes_of(record: Record) -> dict[str, str]:
    """The event's attributes by their names."""
    return {
        "datacontenttype" if name == CONTENT_TYPE else name.removeprefix("ce_"): value.decode(errors="replace")
        for name, value in record.headers
        if name == CONTENT_TYPE or name.startswith("ce_")
    }


def readable(data: bytes | None) -> dict[str, Any]:
    """`data`, and `data_base64` for bytes that are no text."""
    if not data:
        return {"data": None}
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"data": None, "data_base64": base64.b64encode(data).decode()}
    try:
        return {"data": json.loads(text, parse_constant=str)}
    except (ValueError, RecursionError):
        return {"data": text}


def line_of(number: int, event: dict[str, Any]) -> str:
    """The line that a person reads. JSON's escapes keep control characters away from his terminal."""
    attributes = event["attributes"]
    if "problem" in event:
        return f"#{number} {event['received_at']} {event['path']!r} not an event: {event['problem']}"
    data = json.dumps(event.get("data_base64", event["data"]), ensure_ascii=False)[:SHOWN_DATA_CHARACTERS]
    return (
        f"#{number} {event['received_at']} {event['path']} {attributes['type']} id={attributes['id']}"
        f" source={attributes['source']} {data}"
    )


async def run(port: int) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError when the port is taken."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    subscriber = SampleSubscriber()
    server = await asyncio.start_server(subscriber.serve, LOOPBACK, port, limit=MAX_HEAD_BYTES, backlog=256)
    at = server.sockets[0].getsockname()[1]
    print(f"sample subscriber on http://{LOOPBACK}:{at}/, events at /events", flush=True)  # noqa: T201
    await stop.wait()
    server.close()


def main(arguments: list[str] | None = None) -> int:
    """The command; gives the exit code."""
    parser = argparse.ArgumentParser(description="Takes any event, prints it and shows it at /events.")
    parser.add_argument("--port", type=int, default=int(os.environ.get("PORT") or 8090))
    try:
        asyncio.run(run(parser.parse_args(arguments).port))
    except OSError as exc:
        sys.stderr.write(f"cannot start: {exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
