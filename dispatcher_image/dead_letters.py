"""The dead-letter topic: where a record goes that no subscriber and no sink took, durably, before its offset may pass.

What is written is the record as it was (in binary mode, when it is an event), with the attributes `knativeerror…` and
with headers of ours that say whose dead letter it is, so that a replay can send it to the one subscription that missed
it:

    sluice-subscription   uid of the subscription
    sluice-origin         <topic>/<partition>/<offset>
    sluice-reason         in words

It goes to the partition of the same number, so that keys stay in order there too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from dispatcher_image.delivery import Failure, error_attributes
from eventing.cloudevents import RecordHeaders, Undecodable, binary_record, with_attributes

HEADER_SUBSCRIPTION: Final = "sluice-subscription"
HEADER_ORIGIN: Final = "sluice-origin"
HEADER_REASON: Final = "sluice-reason"
MAX_REASON: Final = 500
"""Characters of the reason that are kept."""
DELIVERY_TIMEOUT_MS: Final = 30_000
"""After this time the write has failed, and the caller tries again later: the record is never given up."""
FLUSH_S: Final = 2.0

log = logging.getLogger(__name__)

Done = Callable[[str | None], None]
"""Called on the event loop: None when the record is durable, else why it is not."""


class DeadLetters:
    """A producer for all subscriptions of the process, made when the first record needs it."""

    def __init__(
        self, bootstrap_servers: str, security: Callable[[], Mapping[str, str]], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._security = security
        self._loop = loop
        self._producer: Producer | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def write(self, topic: str, partition: int, record: DeadLetter, done: Done) -> None:
        """Begin to write; `done` tells how it ended."""
        try:
            producer = self._opened()
            producer.produce(
                topic,
                key=record.key,
                value=record.value,
                headers=record.headers,
                partition=partition,
                on_delivery=lambda error, _: self._post(done, None if error is None else _words(error)),
            )
        except (KafkaException, BufferError) as exc:
            self._loop.call_soon(done, str(exc))

    def renew(self) -> None:
        """The credentials have changed: what is under way ends on the old client, the next record makes a new one."""
        if self._producer is not None:
            old, self._producer = self._producer, None
            self._closing.set()
            self._closing = threading.Event()
            threading.Thread(target=old.flush, args=(DELIVERY_TIMEOUT_MS / 1000,), daemon=True).start()

    def close(self) -> None:
        """Write what is under way, for a bounded time."""
        self._closing.set()
        if self._producer is not None:
            self._producer.flush(FLUSH_S)

    def _opened(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                {
                    "bootstrap.servers": self._bootstrap_servers,
                    "acks": "all",
                    "enable.idempotence": True,
                    "linger.ms": 5,
                    "compression.type": "lz4",
                    "message.max.bytes": 16 * 1024 * 1024,  # the topic's own limit decides, not ours
                    "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                    "queue.buffering.max.kbytes": 16 * 1024,
                    "allow.auto.create.topics": False,
                    **self._security(),
                },
                logger=logging.getLogger("librdkafka"),
            )
            self._thread = threading.Thread(
                target=_serve, args=(self._producer, self._closing), name="dead-letters", daemon=True
            )
            self._thread.start()
        return self._producer

    def _post(self, done: Done, error: str | None) -> None:
        try:
            self._loop.call_soon_threadsafe(done, error)
        except RuntimeError:  # the loop was closed first
            log.warning("dead_letters.late error=%s", error)


def _serve(producer: Producer, closing: threading.Event) -> None:
    while not closing.is_set():
        producer.poll(0.2)


def _words(error: KafkaError) -> str:
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return f"{error.str()}: raise max.message.bytes of the dead-letter topic"
    return str(error.str())


class DeadLetter:
    """A record as it is written."""

    __slots__ = ("headers", "key", "value")

    def __init__(self, message: Any, failure: Failure, *, topic: str, subscription: str) -> None:
        headers: RecordHeaders = message.headers() or ()
        value: bytes | None = message.value()
        record = binary_record(headers, value)
        if not isinstance(record, Undecodable):
            headers, value = record.headers, record.value
        kept = [(name, content) for name, content in headers if not name.lower().startswith("sluice-")]
        self.key: bytes | None = message.key()
        self.value = value
        self.headers: list[tuple[str, str | bytes | None]] = [
            *with_attributes(kept, error_attributes(failure)),
            (HEADER_SUBSCRIPTION, subscription.encode()),
            (HEADER_ORIGIN, f"{topic}/{message.partition()}/{message.offset()}".encode()),
            (HEADER_REASON, failure.reason[:MAX_REASON].encode()),
        ]
