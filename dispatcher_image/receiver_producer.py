"""Kafka behind the receiver: an idempotent producer, fed from the event loop.

A thread for each producer waits for confirmations and hands them to the loop, many at a time: it sleeps inside
librdkafka, where it holds no lock, and wakes as soon as one is there. Looking for them from the loop every millisecond
is the alternative; which is cheaper was measured on a busy machine only, with results that contradict each other, so
`python -m benchmarks.receive` on a quiet one has the last word.

Credentials may change at any time: a new producer takes over, the old one finishes what it was given. The same
happens after a fatal error of the idempotent protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from dispatcher_image.receiver_intake import NotTaken, Settled
from eventing.cloudevents import Record
from eventing.errors import ConfigError

log = logging.getLogger(__name__)

POLL_TIMEOUT_S: Final = 0.2
"""How long the waiting thread sleeps at most; it notices its end no later."""
REPLACE_INTERVAL_S: Final = 5.0
"""A producer that failed fatally is replaced no sooner: where the cause stays, so does the failure."""
EXPIRY_SCAN_S: Final = 1.0
"""How often librdkafka looks for records whose time is over; the answer must be out before the promise ends."""
QUEUE_KBYTES: Final = 65_536
"""Records that wait for Kafka, all channels together; beyond, the answer is 503 at once."""
QUEUE_RECORDS: Final = 100_000
RECORD_OVERHEAD_BYTES: Final = 131_072
"""Headers of an event (at most `Limits.max_head_bytes`, twice for safety) beside its data."""
REACH_TIMEOUT_S: Final = 3.0
PROBE_TOPIC: Final = "__consumer_offsets"
"""Asked for to see whether Kafka answers: a request for all topics would be large, and this one is never made by it."""

LOG_AGAIN_S: Final = 10.0
"""librdkafka repeats itself ten times a second while a broker is away; each message passes once in this time."""

_FULL = NotTaken("the queue of records that wait for Kafka is full")
_TOO_LARGE_CODES: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})


def producer_properties(
    bootstrap_servers: str, security: Mapping[str, str], *, delivery_timeout_s: float, max_event_bytes: int
) -> dict[str, Any]:
    """librdkafka properties of the receiver's producer. Holds secrets when `security` does."""
    give_up_ms = int(1000 * max(delivery_timeout_s - EXPIRY_SCAN_S, delivery_timeout_s / 2))
    return {
        "bootstrap.servers": bootstrap_servers,
        "client.id": "sluice-receiver",
        "acks": "all",
        "enable.idempotence": True,
        "allow.auto.create.topics": False,
        # Java's clients hash keys so: whoever writes to the topic beside us must hit the same partition.
        "partitioner": "murmur2_random",
        "message.timeout.ms": give_up_ms,
        "request.timeout.ms": give_up_ms,
        "topic.metadata.propagation.max.ms": give_up_ms,
        "message.max.bytes": min(max_event_bytes + RECORD_OVERHEAD_BYTES, 1_000_000_000),
        "queue.buffering.max.kbytes": max(QUEUE_KBYTES, 2 * max_event_bytes // 1024),
        "queue.buffering.max.messages": QUEUE_RECORDS,
        "linger.ms": 0.5,  # a few more records for each request to Kafka, for half a millisecond
        "compression.type": "lz4",
        "socket.keepalive.enable": True,
        "reconnect.backoff.max.ms": 1000,
        **security,
    }


class _SeldomFilter(logging.Filter):
    """Lets each kind of message through once in `LOG_AGAIN_S`."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = re.sub(r"\d+", "", record.getMessage())[:200]
        now = record.created
        if now - self._passed.get(kind, 0.0) < LOG_AGAIN_S:
            return False
        if len(self._passed) >= 1000:
            self._passed.clear()
        self._passed[kind] = now
        return True


_client_log = logging.getLogger(__name__ + ".librdkafka")
_client_log.addFilter(_SeldomFilter())


class _Line:
    """One producer and the thread that waits for its confirmations."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        confirmed: Callable[[Settled, KafkaError | None], None],
        ended: Callable[[_Line], None],
    ) -> None:
        self.failed_fatally = False
        self.since = time.monotonic()
        self._confirmed = confirmed
        self._ended = ended
        self._is_ending = False
        try:
            self.producer = Producer({**properties, "error_cb": self.note}, logger=_client_log)
        except KafkaException as exc:  # its text may hold the value of a property
            raise ConfigError(
                ["the Kafka client refuses its properties; certificates and keys must be PEM and fit each other"],
                subject="Kafka security",
            ) from exc
        self._thread = threading.Thread(target=self._wait_for_confirmations, name="confirmations", daemon=True)
        self._thread.start()

    def append(self, topic: str, record: Record, settled: Settled) -> None:
        """Raises BufferError, KafkaException."""
        key, value, headers = record
        on_delivery = partial(self._on_delivery, settled)
        self.producer.produce(topic, value, key, on_delivery=on_delivery, headers=headers)  # type: ignore[arg-type]  # lists are invariant

    def note(self, error: KafkaError) -> None:
        """Look at an error for what concerns the producer as a whole; librdkafka logs it by itself."""
        if error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001 - that is its public name
            self.failed_fatally = True

    def end(self) -> None:
        """Finish what was given, then end; does not wait."""
        self._is_ending = True

    def close(self, timeout_s: float) -> None:
        """Finish what was given, at most for this time, then end."""
        self.producer.flush(timeout_s)
        self.producer.purge()
        self._is_ending = True
        self._thread.join(2 * POLL_TIMEOUT_S)

    def _on_delivery(self, settled: Settled, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self.note(error)
        self._confirmed(settled, error)

    def _wait_for_confirmations(self) -> None:
        while not self._is_ending or len(self.producer):
            self.producer.poll(POLL_TIMEOUT_S)
        self._ended(self)


class KafkaLog:
    """The receiver's `EventLog`. All public methods but `reach` belong to the event loop's thread."""

    def __init__(self, properties: Mapping[str, Any], loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._properties = dict(properties)
        self._confirmed: deque[tuple[Settled, KafkaError | None]] = deque()
        self._is_woken = False
        self._owed = 0
        self._line = _Line(self._properties, self._on_confirmed, self._on_ended)
        self._retired: list[_Line] = []

    def append(self, topic: str, record: Record, settled: Settled) -> None:
        try:
            self._line.append(topic, record, settled)
        except BufferError:
            settled(_FULL)
        except KafkaException as exc:
            error = exc.args[0]
            self._line.note(error)
            settled(_not_taken(error))
        else:
            self._owed += 1
        if self._line.failed_fatally and time.monotonic() - self._line.since > REPLACE_INTERVAL_S:
            log.warning("receiver.producer_replaced reason='a fatal error of the idempotent producer'")
            self._replace_line()

    @property
    def owed(self) -> int:
        """Records that are neither durable nor given up."""
        return self._owed

    def replace(self, properties: Mapping[str, Any]) -> None:
        """Go on with other properties; what was given to the old producer is finished by it.

        Raises:
            ConfigError: the client refuses them; the old ones stay in force.
        """
        self._replace_line(dict(properties))

    def reach(self) -> str | None:
        """Ask Kafka for a sign of life; None: it answered, else why not. Blocks: for a worker thread."""
        try:
            self._line.producer.list_topics(PROBE_TOPIC, timeout=REACH_TIMEOUT_S)
        except KafkaException as exc:
            return str(exc.args[0].str())
        return None

    def close(self, timeout_s: float) -> int:
        """Wait for what is owed; gives how many records were not confirmed, whose senders were told so."""
        deadline = time.monotonic() + timeout_s
        for line in (self._line, *list(self._retired)):
            line.close(max(0.0, deadline - time.monotonic()))
        unconfirmed = sum(error is not None for _, error in self._confirmed)
        self._settle()
        return unconfirmed + self._owed

    def _replace_line(self, properties: dict[str, Any] | None = None) -> None:
        line = _Line(properties or self._properties, self._on_confirmed, self._on_ended)
        self._properties = properties or self._properties
        self._retired.append(self._line)
        self._line.end()
        self._line = line

    def _on_confirmed(self, settled: Settled, error: KafkaError | None) -> None:
        """Called in the thread of a line (or by `close` in the loop's)."""
        self._confirmed.append((settled, error))
        if not self._is_woken:
            self._is_woken = True
            self._call_in_loop(self._settle)

    def _on_ended(self, line: _Line) -> None:
        """Called in the thread of a line, as its last act."""
        self._call_in_loop(self._forget, line)

    def _forget(self, line: _Line) -> None:
        if line in self._retired:
            self._retired.remove(line)

    def _call_in_loop(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _settle(self) -> None:
        # Before the first look: what is appended from here on wakes the loop again.
        self._is_woken = False
        confirmed = self._confirmed
        while confirmed:
            settled, error = confirmed.popleft()
            self._owed -= 1
            settled(None if error is None else _not_taken(error))


def _not_taken(error: KafkaError) -> NotTaken:
    return NotTaken(error.str(), is_too_large=error.code() in _TOO_LARGE_CODES)
