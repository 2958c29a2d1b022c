"""Kafka behind the receiver: an idempotent producer that is served from the event loop.

Confirmations are fetched by the loop itself, every millisecond while any is owed. A thread that waits for them would
compete for the interpreter with the thread that parses requests, which costs more than it saves (benchmarks/README.md).

Credentials may change at any time: a new producer takes over, the old one finishes what it was given. The same
happens after a fatal error of the idempotent protocol.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from dispatcher_image.receiver_intake import NotTaken, Settled
from eventing.cloudevents import Record
from eventing.errors import ConfigError

log = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 0.001
"""Between two looks for confirmations while any is owed; half of it is the latency that this costs."""
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
        "linger.ms": 1,
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


class KafkaLog:
    """The receiver's `EventLog`. All methods belong to the event loop's thread."""

    def __init__(self, properties: Mapping[str, Any], loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._properties = dict(properties)
        self._producer = self._make()
        self._retired: list[Producer] = []
        self._owed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._failed_fatally = False

    def append(self, topic: str, record: Record, settled: Settled) -> None:
        key, value, headers = record
        try:
            confirmation = _Confirmation(self, settled)
            self._producer.produce(topic, value, key, on_delivery=confirmation, headers=headers)  # type: ignore[arg-type]  # lists are invariant
        except BufferError:
            settled(_FULL)
            return
        except KafkaException as exc:
            error = exc.args[0]
            self.note(error)
            settled(_not_taken(error))
            return
        self._owed += 1
        if self._timer is None:
            self._timer = self._loop.call_later(POLL_INTERVAL_S, self._poll)

    @property
    def owed(self) -> int:
        """Records that are neither durable nor given up."""
        return self._owed

    def replace(self, properties: Mapping[str, Any]) -> None:
        """Go on with other properties; what was given to the old producer is finished by it."""
        self._properties = dict(properties)
        self._replace_producer()

    def reach(self) -> str | None:
        """Ask Kafka for a sign of life; None: it answered, else why not. Blocks: for a worker thread."""
        try:
            self._producer.list_topics(PROBE_TOPIC, timeout=REACH_TIMEOUT_S)
        except KafkaException as exc:
            return str(exc.args[0].str())
        return None

    def close(self, timeout_s: float) -> int:
        """Wait for what is owed; gives how many records were not confirmed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for producer in (self._producer, *self._retired):
            producer.flush(timeout_s)
        return self._owed

    def confirmed(self) -> None:
        """One record less is owed."""
        self._owed -= 1

    def _make(self) -> Producer:
        try:
            return Producer({**self._properties, "error_cb": self.note}, logger=_client_log)
        except KafkaException as exc:  # its text may hold the value of a property
            raise ConfigError(
                ["the Kafka client refuses its properties; certificates and keys must be PEM and fit each other"],
                subject="Kafka security",
            ) from exc

    def _replace_producer(self) -> None:
        self._retired.append(self._producer)
        self._producer = self._make()

    def _poll(self) -> None:
        self._timer = None
        self._producer.poll(0)
        if self._retired:
            for producer in self._retired:
                producer.poll(0)
            self._retired = [producer for producer in self._retired if len(producer)]
        if self._failed_fatally:
            self._failed_fatally = False
            log.warning("receiver.producer_replaced reason='a fatal error of the idempotent producer'")
            self._replace_producer()
        if self._owed and self._timer is None:
            self._timer = self._loop.call_later(POLL_INTERVAL_S, self._poll)

    def poll_when_idle(self) -> None:
        """Serve logs and errors of a producer that owes nothing."""
        if not self._owed:
            self._poll()

    def note(self, error: KafkaError) -> None:
        """Look at an error for what concerns the producer as a whole; librdkafka logs it by itself."""
        if error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001 - that is its public name
            self._failed_fatally = True


class _Confirmation:
    """Called by the producer with what became of one record."""

    __slots__ = ("_log", "_settled")

    def __init__(self, kafka_log: KafkaLog, settled: Settled) -> None:
        self._log = kafka_log
        self._settled = settled

    def __call__(self, error: KafkaError | None, _message: object) -> None:
        self._log.confirmed()
        if error is None:
            self._settled(None)
        else:
            self._log.note(error)
            self._settled(_not_taken(error))


def _not_taken(error: KafkaError) -> NotTaken:
    return NotTaken(error.str(), is_too_large=error.code() in _TOO_LARGE_CODES)
