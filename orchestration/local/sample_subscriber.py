"""The sample subscriber: takes any event, prints a line for it and shows what it has had.

`python -m orchestration.local.sample_subscriber --port N`. A newcomer sees here that his event arrived, and tests ask
it what did: `GET /events` answers a JSON list, oldest first, each entry with `path`, `received_at`, `attributes` (the
`ce-` headers without their prefix) and `data` (JSON where it is JSON, else text). Any POST is answered 204.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections import deque
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

MAX_EVENTS = 10_000
"""Events that are remembered; older ones are forgotten, so that a long trial does not fill the memory."""
MAX_BODY_BYTES = 8 * 1024 * 1024


class SampleSubscriber(ThreadingHTTPServer):
    """An HTTP server that remembers events, for as long as it lives."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self.count = 0
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SampleSubscriber
    timeout = 60

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/events":
            with self.server.lock:
                body = json.dumps(list(self.server.events)).encode()
            self._answer(200, body, "application/json")
        elif path == "/healthz":
            self._answer(200, b"ok\n", "text/plain")
        else:
            self._answer(404, b"GET /events shows what was received; POST anything anywhere\n", "text/plain")

    def do_POST(self) -> None:
        body = self._read_body()
        if body is None:
            return
        attributes = {
            name[3:].lower(): unquote(value) for name, value in self.headers.items() if name.lower().startswith("ce-")
        }
        content_type = self.headers.get("Content-Type", "")
        if content_type and not content_type.lower().startswith("application/cloudevents"):
            attributes["datacontenttype"] = content_type
        event = {
            "path": self.path,
            "received_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "attributes": attributes,
            "data": _readable(body),
        }
        with self.server.lock:
            self.server.events.append(event)
            self.server.count += 1
            line = f"#{self.server.count} {event['received_at']} {self.path} {attributes.get('type', '?')}"
            print(f"{line} id={attributes.get('id', '?')} {body[:200].decode(errors='replace')}", flush=True)  # noqa: T201
        self._answer(204, b"", None)

    def _read_body(self) -> bytes | None:
        try:
            length = int(self.headers.get("Content-Length", "0"))
        except ValueError:
            length = -1
        if not 0 <= length <= MAX_BODY_BYTES or "chunked" in self.headers.get("Transfer-Encoding", ""):
            self.close_connection = True
            self._answer(411, b"a Content-Length of at most 8 MiB is needed\n", "text/plain")
            return None
        return self.rfile.read(length)

    def _answer(self, code: int, body: bytes, content_type: str | None) -> None:
        self.send_response(code)
        if content_type is not None:
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class names it so
        """A line for each event is printed by `do_POST`; the rest is noise."""


def _readable(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=str) if body else None
    except ValueError:
        return body.decode(errors="replace")


def main() -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="Takes any event, prints it and shows it at /events.")
    parser.add_argument("--port", type=int, default=int(os.environ.get("PORT") or 8090))
    server = SampleSubscriber(parser.parse_args().port)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"sample subscriber on http://127.0.0.1:{server.server_port}/, events at /events", flush=True)  # noqa: T201
    server.serve_forever()
    server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
