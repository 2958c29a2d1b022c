"""The seam to HTTP: a `Sender` takes requests from a `Work`, sends each once, and tells the `Work` what came of it.

The sender *pulls*: whenever it could send one more request, it takes the next; nothing is queued inside it, so what
waits is in the lanes, where order and bounds are kept. There is no task, future or timer for a request.

    work has something new  →  sender.kick()
    sender can send         →  work.take()            → Request, or None: nothing is ready
    an attempt ended        →  work.settle(token, outcome, started, now), and at once take() again

Two implementations, chosen by `TRANSPORT`: `native_sender` (uvloop and httptools, for speed) and `aiohttp_sender`
(proxies and odd TLS). One sender serves one destination of one subscription, so that a slow one costs others nothing.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from dispatcher_image.delivery import Outcome

CONNECT_TIMEOUT_S: Final = 10.0
"""For DNS, TCP and TLS together; the attempt's own timeout may be shorter."""
IDLE_TIMEOUT_S: Final = 4.0
"""How long a connection is kept without use: below the 5 s after which common servers close it, so that our request
and their close seldom cross."""
MAX_CONNECTIONS: Final = 4096
"""Of one destination, whatever the in-flight bounds allow: file descriptors end somewhere."""
MAX_HEADER_BYTES: Final = 65_536
"""Of an answer's status line and headers."""
MAX_DISCARDED_BYTES: Final = 16_777_216
"""How much of an answer's body is read to keep its connection; a longer one ends it. Its status counts all the same."""
TICK_S: Final = 0.02
"""How often deadlines are looked at: the accuracy of timeouts."""


Request = tuple[Any, bytes, bytes]
"""(token, lines, body): `token` is given back to `Work.settle`, `lines` are complete header lines of the event, to
which the sender adds those of the target. A plain tuple, because one is made for every delivery."""


class Work(Protocol):
    """Where requests come from and outcomes go."""

    def take(self) -> Request | None:
        """The next request, or None when nothing is ready."""

    def settle(self, token: Any, outcome: Outcome, started: float, now: float) -> None:
        """An attempt has ended; monotonic times in seconds."""


class Sender(Protocol):
    """One destination."""

    @property
    def in_flight(self) -> int:
        """Requests taken and not settled."""

    @property
    def connections(self) -> int:
        """Open or being opened."""

    def kick(self) -> None:
        """Requests may be ready."""

    def set_limit(self, connections: int) -> None:
        """How many requests may be in flight at most."""

    def retire(self) -> None:
        """Take no more requests; connections are closed as they become idle."""

    def abort(self) -> None:
        """Close everything now; requests that are under way are never settled."""


@dataclass(frozen=True, slots=True)
class Target:
    """A destination, parsed once: everything of a request that does not change."""

    url: str
    host: str
    port: int
    tls: bool
    head: bytes
    """Request line and constant headers, up to the event's own."""
    ca_pem: str | None = None
    """Trusted in addition to the system's authorities."""

    @property
    def origin(self) -> str:
        """`host:port`, for logs."""
        return f"{self.host}:{self.port}"

    def ssl_context(self) -> ssl.SSLContext | None:
        """TLS with full verification; None for http. Raises ssl.SSLError when the authorities are no PEM."""
        if not self.tls:
            return None
        context = ssl.create_default_context()
        if self.ca_pem is not None:
            context.load_verify_locations(cadata=self.ca_pem)
        return context


def parse_target(url: str, *, prefer_reply: bool, ca_pem: str | None = None) -> Target:
    """Prepare a destination. The URL is valid (`parse_channel` saw to it).

    `Prefer: reply` asks a subscriber for an answer that is an event (Knative eventing data plane, "Prefer").
    """
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    host = parts.hostname or ""
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    authority = f"[{host}]" if ":" in host else host.encode("idna").decode() if not host.isascii() else host
    if parts.port is not None and parts.port != (443 if tls else 80):
        authority += f":{port}"
    lines = [
        b"POST %b HTTP/1.1" % _quoted(path),
        b"host: %b" % authority.encode("ascii"),
        b"user-agent: sluice",
    ]
    if prefer_reply:
        lines.append(b"prefer: reply")
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        lines.append(b"authorization: Basic " + base64.b64encode(credentials))
    return Target(url, host, port, tls, b"\r\n".join(lines) + b"\r\n", ca_pem)


def _quoted(path: str) -> bytes:
    """A request target in ASCII: what a URL may not hold as it is becomes UTF-8 percent-encoded."""
    return b"".join(bytes([b]) if 0x21 <= b <= 0x7E else b"%%%02X" % b for b in path.encode())


OpenSender = Callable[[Target, Work, float, int], Sender]
"""(target, work, timeout of an attempt in seconds, limit of connections) → a sender of the chosen transport."""
