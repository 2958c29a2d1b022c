"""What becomes of a request: refused, or its events made durable and then, and only then, answered with 202.

| answer | when |
|---|---|
| 202 | every event of the request is durable (acks=all) |
| 200 | OPTIONS: `Allow` and the CloudEvents webhook handshake |
| 400 | not a CloudEvent; the body says which rule is broken |
| 404 | no such channel |
| 405 | another method, with `Allow` |
| 413 | larger than `MAX_EVENT_BYTES`, or than the topic takes |
| 503 | Kafka did not confirm it in time, or the registry was not read yet; the same request may succeed later |

503 does not say that the event is not in Kafka: a confirmation may be what got lost. At-least-once allows that.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Final, Protocol

from dispatcher_image.receiver_http import ACCEPTED, Exchange, Response, refusal
from dispatcher_image.receiver_routing import Route, RoutingTable
from eventing.cloudevents import Record, Undecodable
from eventing.cloudevents_http import records_from_request

log = logging.getLogger(__name__)

ALLOW: Final = b"Allow: POST, OPTIONS\r\n"
# The channel takes events from anybody who reaches it, at any rate (CloudEvents webhook specification §4.2).
OPTIONS: Final = Response(200, headers=ALLOW + b"WebHook-Allowed-Origin: *\r\nWebHook-Allowed-Rate: *\r\n")
WRONG_METHOD: Final = refusal(405, "events are sent with POST", ALLOW)
NO_CHANNEL: Final = refusal(
    404, "no such channel: the Host must be <name>-kn-channel.<namespace>… or the path /<namespace>/<name>"
)
STARTING: Final = refusal(503, "the registry was not read yet; try again", b"Retry-After: 1\r\n")
NOT_DURABLE: Final = refusal(503, "Kafka did not confirm the event in time; try again", b"Retry-After: 1\r\n")
TOO_LARGE_FOR_TOPIC: Final = refusal(413, "the event is larger than its topic takes")
LOG_INTERVAL_S: Final = 5.0
"""Between two log lines about events that Kafka did not take."""


class Settled(Protocol):
    """Told once what became of a record: None = durable, else why not."""

    def __call__(self, error: NotTaken | None, /) -> None: ...


class NotTaken:
    """Why Kafka did not take a record."""

    __slots__ = ("is_too_large", "reason")

    def __init__(self, reason: str, *, is_too_large: bool = False) -> None:
        self.reason = reason
        self.is_too_large = is_too_large


class EventLog(Protocol):
    """The seam to Kafka."""

    def append(self, topic: str, record: Record, settled: Settled) -> None:
        """Write a record; `settled` is called once, at the latest after the delivery timeout, perhaps at once."""


class Intake:
    """The receiver's `Handler`."""

    def __init__(self, table: RoutingTable, event_log: EventLog) -> None:
        self._table = table
        self._log = event_log
        self._logged_at = -LOG_INTERVAL_S
        self._unlogged = 0

    def on_head(self, exchange: Exchange) -> Response | None:
        """Refuse what can be refused without its body."""
        if exchange.method != b"POST":
            return OPTIONS if exchange.method == b"OPTIONS" else WRONG_METHOD
        exchange.route = self._table.find(exchange.host, exchange.target)
        if exchange.route is not None:
            return None
        return NO_CHANNEL if self._table.is_known else STARTING

    def on_request(self, exchange: Exchange) -> None:
        """Write the events of the request."""
        records = records_from_request(exchange.headers, exchange.body)
        # What waits for Kafka holds no second copy of the event: memory is bounded by the producer's queue.
        exchange.headers, exchange.body = [], b""
        route: Route = exchange.route
        if isinstance(records, Undecodable):
            exchange.respond(refusal(400, records.reason))
        elif len(records) == 1:
            self._log.append(route.topic, records[0], partial(self._settled, exchange))
        elif not records:
            exchange.respond(ACCEPTED)
        else:
            batch = _Batch(len(records), partial(self._settled, exchange), route)
            for record in records:
                self._log.append(route.topic, record, batch.settled)
                if batch.error is not None:
                    break  # the sender will repeat all of it

    def _settled(self, exchange: Exchange, error: NotTaken | None) -> None:
        if error is None:
            exchange.route.accepted += 1
            exchange.respond(ACCEPTED)
        elif error.is_too_large:
            exchange.respond(TOO_LARGE_FOR_TOPIC)
        else:
            self._tell(exchange.route, error)
            exchange.respond(NOT_DURABLE)

    def _tell(self, route: Route, error: NotTaken) -> None:
        """Log now and then: an outage must not fill the disk."""
        now = time.monotonic()
        self._unlogged += 1
        if now - self._logged_at >= LOG_INTERVAL_S:
            log.warning("receiver.not_durable topic=%s reason=%r refused=%d", route.topic, error.reason, self._unlogged)
            self._logged_at, self._unlogged = now, 0


class _Batch:
    """Counts the events of one request; settles when all are durable, or with the first that is not."""

    __slots__ = ("_open", "_route", "_settle", "error")

    def __init__(self, size: int, settle: Settled, route: Route) -> None:
        self._open = size
        self._settle = settle
        self._route = route
        self.error: NotTaken | None = None

    def settled(self, error: NotTaken | None, /) -> None:
        self._open -= 1
        if error is not None and self.error is None:
            self.error = error
            self._settle(error)
        elif error is None:
            if self._open:
                self._route.accepted += 1  # the last one is counted with the request
            elif self.error is None:
                self._settle(None)
            else:
                self._route.accepted += 1
