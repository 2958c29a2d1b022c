"""The canary's three Kafka clients, the only module that imports the client library.

Producer, consumer and admin are clients of their own: sharing one would put a fetch's wait into the latency of the
others. None of them may create a topic. Timeouts are short and reconnects quick, because an outage must be counted
while it lasts and its end be noticed at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from canary_image import journal
from canary_image.coverage import Broker, ClusterView, Partition
from eventing.errors import Refused, Unavailable
from eventing.program_config import CanaryConfig

LOOK_TIMEOUT_S = 3.0
"""How long one question about the cluster may take."""
REFRESH_TIMEOUT_S = 1.0
"""How long a refresh of metadata may take; the consumer reads nothing meanwhile."""

OnSent = Callable[[str | None], None]
"""Called once for each record: None when it was acknowledged, else the reason."""
OnEnd = Callable[[int, int | None, str], None]
"""Called once with partition, end offset (None: not to be had) and the reason."""
OnCommitted = Callable[[str | None], None]


@dataclass(frozen=True, slots=True)
class Received:
    """A record as read."""

    partition: int
    offset: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class ReadError:
    """The consumer reported an error; it goes on by itself."""

    reason: str


class KafkaClients:
    """Raises `Unavailable` or `Refused` from every method that asks the cluster, nothing of the library's own."""

    def __init__(self, config: CanaryConfig, security: Mapping[str, Any]) -> None:
        """`security` holds librdkafka properties, secrets in the clear; they are handed on and not kept."""
        self._topic = config.topic
        self._group = config.consumer_group_id
        self._on_committed: OnCommitted | None = None
        self._complaints = _Complaints()
        timeout_ms = config.produce_timeout_ms
        common: dict[str, Any] = {
            "bootstrap.servers": config.bootstrap_servers,
            "client.id": config.client_id,
            "allow.auto.create.topics": False,
            "reconnect.backoff.ms": 100,
            "reconnect.backoff.max.ms": 1000,
            # Its log comes through Python: in an outage each failed reconnect would cost more than the reconnect.
            # What matters of it reaches `error_cb` as well.
            "log_level": 7 if config.verbosity_log_level else 2,
            "socket.connection.setup.timeout.ms": 5000,
            "socket.keepalive.enable": True,
            "broker.address.ttl": 1000,
            "log.connection.close": False,
            "error_cb": self._complaints.error,
            "logger": self._complaints.logger,
            **security,
        }
        try:
            self._admin = AdminClient({**common, "socket.timeout.ms": 10_000})
            self._producer = Producer(
                {
                    **common,
                    "acks": "all",
                    "linger.ms": 0,
                    # The largest RECORD_SIZE_BYTES and its envelope; whether that is too large is the broker's to say.
                    "message.max.bytes": 2_097_152,
                    # A retry would hide a reconnect in the latency; the next interval is the next try.
                    "retries": 0,
                    "message.timeout.ms": timeout_ms,
                    "request.timeout.ms": timeout_ms,
                    "socket.timeout.ms": max(1000, timeout_ms),
                }
            )
            self._consumer = Consumer(
                {
                    **common,
                    "group.id": config.consumer_group_id,
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    # Only asked when the log was cut or made anew below our position: own records may be in it.
                    "auto.offset.reset": "earliest",
                    "session.timeout.ms": 10_000,
                    "fetch.error.backoff.ms": 100,
                    "check.crcs": True,
                    "isolation.level": "read_uncommitted",
                    "queued.min.messages": 1000,
                    "queued.max.messages.kbytes": 16_384,
                    "on_commit": self._committed,
                }
            )
        except KafkaException as exc:
            raise _translated(exc) from exc

    # --- questions about the cluster, any thread ---------------------------------------------------------------------

    def describe(self) -> ClusterView:
        """Brokers, partitions and leaders as they are now."""
        try:
            self._admin.poll(0)  # its log and errors wait in a queue that nobody else empties
            metadata = self._admin.list_topics(self._topic, timeout=LOOK_TIMEOUT_S)
        except KafkaException as exc:
            raise _translated(exc) from exc
        brokers = tuple(
            Broker(broker.id, str(broker.host), broker.port)
            for broker in sorted(metadata.brokers.values(), key=lambda broker: broker.id)
        )
        topic = metadata.topics.get(self._topic)
        if topic is None or (topic.error is not None and topic.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART):
            return ClusterView(brokers, None)
        if topic.error is not None:
            raise Refused("Kafka", f"topic {self._topic}: {topic.error.str()}")
        return ClusterView(
            brokers,
            tuple(
                Partition(partition.id, tuple(partition.replicas), partition.leader)
                for partition in sorted(topic.partitions.values(), key=lambda partition: partition.id)
            ),
        )

    def find_end(self, partition: int, on_end: OnEnd) -> None:
        """Ask the partition's leader for its end; does not wait. `on_end` is called from another thread."""
        request = {TopicPartition(self._topic, partition): OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        try:
            (future,) = self._admin.list_offsets(request, request_timeout=LOOK_TIMEOUT_S).values()
        except KafkaException as exc:
            on_end(partition, None, _reason(exc))
            return

        def done(answer: Any) -> None:
            error = answer.exception()
            if error is None:
                on_end(partition, int(answer.result().offset), "")
            else:
                on_end(partition, None, _reason(error))

        future.add_done_callback(done)

    def coordinator(self) -> int | None:
        """The broker that keeps the group's offsets; None when it cannot be told now."""
        try:
            (future,) = self._admin.describe_consumer_groups([self._group], request_timeout=LOOK_TIMEOUT_S).values()
            node = future.result(timeout=LOOK_TIMEOUT_S + 1).coordinator
        except (KafkaException, TimeoutError) as exc:
            journal.note(logging.DEBUG, "coordinator.unknown", reason=_reason(exc))
            return None
        return None if node is None else int(node.id)

    def refresh_producer(self) -> None:
        """Let the producer learn of moved leaders before its next record would."""
        self._refresh(self._producer)

    def _refresh(self, client: Any) -> None:
        try:
            client.list_topics(self._topic, timeout=REFRESH_TIMEOUT_S)
        except KafkaException as exc:
            raise _translated(exc) from exc

    # --- producing, one thread ---------------------------------------------------------------------------------------

    def send(self, partition: int, value: bytes, on_sent: OnSent) -> None:
        """Hand the record over without waiting; `on_sent` is called from `poll_producer` or at once."""

        def delivered(error: KafkaError | None, _message: Any) -> None:
            on_sent(None if error is None else error.str())

        try:
            self._producer.produce(self._topic, value=value, partition=partition, on_delivery=delivered)
        except (KafkaException, BufferError) as exc:
            on_sent(_reason(exc))

    def poll_producer(self, timeout: float) -> None:
        """Serve answers, at most `timeout` seconds."""
        self._producer.poll(timeout)

    def drop_unsent(self) -> None:
        """Forget the records that no leader has taken yet; each of them fails."""
        self._producer.purge(in_queue=True, in_flight=False, blocking=False)

    # --- consuming, one and the same thread for all ------------------------------------------------------------------

    def assign(self, partition: int, offset: int) -> None:
        """Read the partition from `offset` on."""
        try:
            self._consumer.incremental_assign([TopicPartition(self._topic, partition, offset)])
        except KafkaException as exc:
            raise _translated(exc) from exc

    def unassign(self, partition: int) -> None:
        """Read the partition no more."""
        try:
            self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])
        except KafkaException as exc:
            raise _translated(exc) from exc

    def refresh_consumer(self) -> None:
        """Let the consumer learn of moved leaders before its next fetch would."""
        self._refresh(self._consumer)

    def read(self, timeout: float) -> Received | ReadError | None:
        """The next record, None after `timeout` seconds without one. Serves commits too."""
        try:
            message = self._consumer.poll(timeout)
        except KafkaException as exc:
            return ReadError(_reason(exc))
        if message is None:
            return None
        error = message.error()
        if error is not None:
            return ReadError(f"partition {message.partition()}: {error.str()}")
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset is not None, "a record without an error has a place"  # noqa: PT018
        return Received(partition, offset, message.value())

    def commit(self, offsets: Mapping[int, int], on_committed: OnCommitted) -> None:
        """Commit without waiting; `on_committed` is called from `read`. One commit at a time."""
        self._on_committed = on_committed
        try:
            self._consumer.commit(
                offsets=[TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()],
                asynchronous=True,
            )
        except KafkaException as exc:
            self._committed(exc.args[0], [])

    def _committed(self, error: KafkaError | None, partitions: list[Any]) -> None:
        on_committed, self._on_committed = self._on_committed, None
        if on_committed is None:
            return
        errors = [error, *(partition.error for partition in partitions)]
        reason = next((problem.str() for problem in errors if problem is not None), None)
        on_committed(reason)

    def close(self, timeout: float) -> None:
        """End all three; what was not acknowledged within `timeout` seconds is given up."""
        self.drop_unsent()  # no leader wants it by now; waiting for one would only hold up the end
        self._producer.flush(timeout)
        self._producer.purge()
        self._producer.poll(0)
        self._consumer.close()


class _Complaints:
    """What the library reports on its own account: passed on once a minute each, however often it says it."""

    QUIET_S = 60.0
    CAPACITY = 1000

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._lock = threading.Lock()
        self.logger = logging.Logger("librdkafka")  # noqa: LOG001  (of this client alone)
        self.logger.addHandler(_Forward(self))

    def error(self, error: KafkaError) -> None:
        # "3/3 brokers are down" says nothing that the failing probes do not say, again and again.
        everything = error.code() == KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001  (the library's public name)
        self.say(logging.DEBUG if everything else logging.WARNING, "kafka.trouble", error.str())

    def say(self, level: int, event: str, text: str) -> None:
        now = time.monotonic()
        what, _, _ = text.partition(" (after ")  # how long it took, and how often it was said, differs each time
        with self._lock:
            if now - self._last.get(what, -self.QUIET_S) < self.QUIET_S:
                return
            if len(self._last) >= self.CAPACITY:
                self._last.clear()
            self._last[what] = now
        journal.note(level, event, reason=text)


class _Forward(logging.Handler):
    def __init__(self, complaints: _Complaints) -> None:
        super().__init__()
        self._complaints = complaints

    def emit(self, record: logging.LogRecord) -> None:
        self._complaints.say(logging.DEBUG, "kafka.client", record.getMessage())


def _reason(error: BaseException) -> str:
    first = error.args[0] if error.args else error
    return first.str() if isinstance(first, KafkaError) else str(error)


def _translated(exc: KafkaException) -> Unavailable | Refused:
    """Whether a retry would help: a wrong property or a refusal stays wrong, everything else may pass."""
    error = exc.args[0]
    if isinstance(error, KafkaError) and error.code() in {
        KafkaError._INVALID_ARG,  # noqa: SLF001  (the library's public names of local errors)
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }:
        return Refused("Kafka", _reason(exc))
    return Unavailable("Kafka", _reason(exc))
