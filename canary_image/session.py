"""The probe at work: four threads that produce, consume, watch and judge, and none waits for another.

* *produce* sends one record to every probed partition each interval, whatever became of those before: the client
  queues them by partition, so a partition without a leader costs the others nothing;
* *consume* reads, and commits once an interval to measure the group's coordinator;
* *watch* looks at the cluster each second (or at once when a record failed), moves the consumer to new partitions
  before the first record is sent to them, and tells the other clients when a leader moved;
* *judge* visits leaders that owe an answer, and gives up what waits for one that cannot be reached.

A session ends when the program ends or when the credentials change; the next one goes on where it stopped reading.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Protocol

from canary_image import journal
from canary_image.coverage import NO_LEADER, Broker, ClusterView
from canary_image.kafka_clients import OnCommitted, OnEnd, OnSent, ReadError, Received
from canary_image.probe import Probe
from canary_image.telemetry import Telemetry
from eventing import metrics
from eventing.errors import Refused, SluiceError, Unavailable
from eventing.program_config import CanaryConfig

WATCH_INTERVAL_S = 1.0
"""How often the cluster is looked at, at most the probe's own interval."""
SHORTEST_WATCH_S = 0.1
"""Least time between two looks, however many records fail."""
WAKE_S = 0.5
"""How long a thread waits in a client before it looks if it should stop."""
JUDGE_INTERVAL_S = 0.25
"""How often answers that are owed are looked at; costs nothing while all come."""
VISIT_GAP_S = 0.75
"""Least time between two rounds of visits: a leader that waits for a dead follower owes answers for seconds."""
WARM_UP_S = 1.0
"""Between the consumer's assignment and the first record."""
END_SEARCH_LIMIT_S = 30.0
"""A partition whose end was not found by then counts as a join time-out, which this was with strimzi-canary."""
COMMIT_LIMIT_S = 10.0
"""A commit without an answer counts as failed once in each such time."""
COORDINATOR_INTERVAL_S = 60.0
"""How often the group's coordinator is asked for while nothing fails."""
READ_S = 0.25
"""How long the consuming thread reads before it looks for orders of the watching one."""
RETRY_S = 1.0
"""Pause of a loop after an error that it did not expect."""
CLOSE_LIMIT_S = 5.0
UNKNOWN_COORDINATOR = "unknown"


Visit = Callable[[Iterable[Broker]], Collection[int]]
"""Visits brokers and gives the ids of those that cannot be reached; bounded by its own limit."""


class Kafka(Protocol):
    """What a session needs of its clients; `kafka_clients.KafkaClients` is the real one."""

    def describe(self) -> ClusterView: ...
    def find_end(self, partition: int, on_end: OnEnd) -> None: ...
    def coordinator(self) -> int | None: ...
    def refresh_producer(self) -> None: ...
    def refresh_consumer(self) -> None: ...
    def send(self, partition: int, value: bytes, on_sent: OnSent) -> None: ...
    def poll_producer(self, timeout: float) -> None: ...
    def drop_unsent(self) -> None: ...
    def assign(self, partition: int, offset: int) -> None: ...
    def unassign(self, partition: int) -> None: ...
    def read(self, timeout: float) -> Received | ReadError | None: ...
    def commit(self, offsets: Mapping[int, int], on_committed: OnCommitted) -> None: ...
    def close(self, timeout: float) -> None: ...


class Session:
    """One set of clients and the threads that use them."""

    def __init__(self, kafka: Kafka, visit: Visit, probe: Probe, telemetry: Telemetry, config: CanaryConfig) -> None:
        self._kafka = kafka
        self._visit = visit
        self._probe = probe
        self._telemetry = telemetry
        self._config = config
        self._interval = config.reconcile_interval_ms / 1000
        self._stop = threading.Event()
        self._look_now = threading.Event()
        self._primed = threading.Event()  # the end of every partition was looked for, found or not
        self._ends: queue.SimpleQueue[tuple[int, int | None, str]] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # for the consuming thread
        self._searched_since: dict[int, float] = {}
        self._search_timed_out: set[int] = set()
        self._asked: set[int] = set()
        self._gave_up = threading.Event()
        self._ask_coordinator = threading.Event()
        self._coordinator = UNKNOWN_COORDINATOR
        self._threads = [
            threading.Thread(target=self._guard, args=(loop,), name=loop.__name__.strip("_"), daemon=True)
            for loop in (self._watch, self._consume, self._produce, self._judge)
        ]

    def start(self) -> None:
        """Take up reading where a former session stopped, then let the threads run."""
        for partition, offset in self._probe.positions().items():
            self._kafka.assign(partition, offset)
        for thread in self._threads:
            thread.start()

    def is_alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """End the threads, then the clients; bounded by the time-outs of the calls under way."""
        self._stop.set()
        self._look_now.set()
        for thread in self._threads:
            thread.join(timeout=2 * CLOSE_LIMIT_S)
        self._kafka.close(CLOSE_LIMIT_S)

    def _guard(self, loop: Callable[[], None]) -> None:
        """Run a loop for ever: what it did not expect is told with its trace, and the loop goes on."""
        while not self._stop.is_set():
            try:
                loop()
            except Exception as exc:  # noqa: BLE001  (a top loop: a canary that dies is blind)
                journal.note(logging.ERROR, "loop.failed", failure=exc, loop=loop.__name__)
                self._stop.wait(RETRY_S)

    # --- produce -----------------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        # Records before the consumer knows where it stands could not be told from lost ones.
        while not self._primed.wait(WAKE_S):
            if self._stop.is_set():
                return
        # The first fetch would otherwise race with the first record, and show as latency.
        self._stop.wait(min(WARM_UP_S, self._interval))
        due = time.monotonic()
        while not self._stop.is_set():
            if self._gave_up.is_set():
                # What was given up must not be written after all when the leader is back: it would be counted as
                # failed *and* consumed. Now, because records for leaders that answer left the queue an interval ago.
                self._gave_up.clear()
                self._kafka.drop_unsent()
            for outgoing in self._probe.round(time.monotonic(), time.time()):
                self._kafka.send(outgoing.partition, outgoing.value, self._on_sent(outgoing.message_id))
            due += self._interval
            now = time.monotonic()
            if due < now - self._interval:
                due = now  # the machine slept: go on from here, do not send in a burst what was missed
            while not self._stop.is_set() and (left := due - time.monotonic()) > 0:
                self._kafka.poll_producer(min(left, WAKE_S))

    def _on_sent(self, message_id: int) -> OnSent:
        def on_sent(reason: str | None) -> None:
            now = time.monotonic()
            if reason is None:
                self._probe.acknowledged(message_id, now, time.time())
            else:
                self._probe.failed(message_id, reason, now)
                self._look_now.set()

        return on_sent

    # --- judge -------------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        visit_at = 0.0
        while not self._stop.wait(JUDGE_INTERVAL_S):
            now = time.monotonic()
            self._probe.expire(now)
            suspects = self._probe.leaders_in_question(now)
            unreachable: Collection[int] = ()
            if suspects:
                self._look_now.set()
                if now < visit_at:
                    continue
                unreachable = self._visit(suspects)
                now = time.monotonic()
                visit_at = now + VISIT_GAP_S
            if self._probe.leaders_unreachable(unreachable, now):
                self._gave_up.set()

    # --- consume -----------------------------------------------------------------------------------------------------

    def _consume(self) -> None:
        commits = _Commits(self._telemetry, self._config.client_id, self._ask_coordinator.set)
        committed: dict[int, int] = {}
        began = time.monotonic()
        due = began + self._interval
        while not self._stop.is_set():
            self._obey()
            match self._kafka.read(min(READ_S, max(0.0, due - time.monotonic()))):
                case Received(partition, offset, value):
                    self._probe.received(partition, offset, value, time.monotonic(), time.time())
                case ReadError(reason):
                    self._telemetry.count(metrics.CANARY_CONSUMER_ERROR, self._config.client_id)
                    journal.note(logging.DEBUG, "consumer.error", reason=reason)
                    self._look_now.set()
            now = time.monotonic()
            if now < due:
                continue
            due = max(due + self._interval, now)
            positions = self._probe.positions()
            # The first commits wait a little for the coordinator's name, that they be counted under it.
            named = self._coordinator != UNKNOWN_COORDINATOR or now - began > COMMIT_LIMIT_S
            if commits.may_begin(now) and named and positions and positions != committed:
                committed = positions
                self._kafka.commit(positions, commits.begin(self._coordinator, now))

    def _obey(self) -> None:
        """Do what the watching thread wants of the consumer: the client library takes calls from one thread only."""
        while True:
            try:
                order = self._orders.get_nowait()
            except queue.Empty:
                return
            order()

    def _start_reading(self, partition: int, offset: int) -> None:
        try:
            self._kafka.assign(partition, offset)
        except SluiceError as exc:
            self._found_end(partition, None, str(exc))
            return
        self._probe.watched(partition, offset)
        journal.note(logging.INFO, "partition.watched", partition=partition, offset=offset)
        self._look_now.set()

    def _stop_reading(self, partition: int) -> None:
        try:
            self._kafka.unassign(partition)
        except SluiceError as exc:
            journal.note(logging.WARNING, "partition.still_read", partition=partition, reason=exc)

    def _refresh(self, refresh: Callable[[], None], errors: metrics.Metric) -> None:
        try:
            refresh()
        except SluiceError as exc:
            self._telemetry.count(errors, self._config.client_id)
            journal.note(logging.DEBUG, "refresh.failed", reason=exc)

    # --- watch -------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        ask_coordinator_at = 0.0
        while not self._stop.is_set():
            answered = self._look()
            now = time.monotonic()
            if answered and (now >= ask_coordinator_at or self._ask_coordinator.is_set()):
                self._ask_coordinator.clear()
                found = self._kafka.coordinator()
                self._coordinator = UNKNOWN_COORDINATOR if found is None else str(found)
                ask_coordinator_at = now + (COORDINATOR_INTERVAL_S if found is not None else 5 * RETRY_S)
            self._stop.wait(SHORTEST_WATCH_S)
            self._look_now.wait(max(0.0, min(WATCH_INTERVAL_S, self._interval) - SHORTEST_WATCH_S))
            self._look_now.clear()

    def _look(self) -> bool:
        """Observe once, and bring consumer and producer into line with it; False when the cluster did not answer."""
        client = self._config.client_id
        try:
            changes = self._probe.observe(self._kafka.describe())
        except Unavailable as exc:
            self._telemetry.count(metrics.CANARY_TOPIC_DESCRIBE_CLUSTER_ERROR)
            journal.note(logging.DEBUG, "cluster.unknown", reason=exc.reason)
            return False
        except Refused as exc:
            self._telemetry.count(metrics.CANARY_TOPIC_DESCRIBE_ERROR, self._config.topic)
            journal.note(logging.WARNING, "topic.unknown", reason=exc.reason)
            return False
        for partition in changes.dropped:
            self._orders.put(partial(self._stop_reading, partition))
        if changes.moved:
            self._ask_coordinator.set()  # it leads a partition too, and moves with the same brokers
            journal.note(logging.INFO, "leaders.seen", partitions=sorted(changes.moved))
            self._orders.put(
                partial(self._refresh, self._kafka.refresh_consumer, metrics.CANARY_CONSUMER_REFRESH_METADATA_ERROR)
            )
            self._refresh(self._kafka.refresh_producer, metrics.CANARY_PRODUCER_REFRESH_METADATA_ERROR)
        now = time.monotonic()
        unwatched = {target.partition for target in changes.unwatched}
        # What is watched by now need not be searched for; when it is dropped and comes back, it is searched for anew.
        self._asked &= unwatched
        self._search_timed_out &= unwatched
        self._searched_since = {p: since for p, since in self._searched_since.items() if p in unwatched}
        for target in changes.unwatched:
            self._searched_since.setdefault(target.partition, now)
            if target.leader == NO_LEADER:
                self._probe.unwatchable(target.partition)
            elif target.partition not in self._asked:
                self._asked.add(target.partition)
                self._kafka.find_end(target.partition, self._found_end)
        self._take_ends()
        for partition in unwatched - self._search_timed_out:
            if now - self._searched_since[partition] > END_SEARCH_LIMIT_S:
                self._search_timed_out.add(partition)
                self._telemetry.count(metrics.CANARY_CONSUMER_TIMEOUT_JOIN_GROUP, client)
        if self._probe.is_primed():
            self._primed.set()
        return True

    def _found_end(self, partition: int, offset: int | None, reason: str) -> None:
        """Called from the client's thread: hand over to the watching one."""
        self._ends.put((partition, offset, reason))
        self._look_now.set()

    def _take_ends(self) -> None:
        """Have the partitions read whose end is known by now."""
        while True:
            try:
                partition, offset, reason = self._ends.get_nowait()
            except queue.Empty:
                return
            if offset is None:
                self._asked.discard(partition)
                journal.note(logging.DEBUG, "partition.end_unknown", partition=partition, reason=reason)
                self._probe.unwatchable(partition)
            else:
                self._orders.put(partial(self._start_reading, partition, offset))


class _Commits:
    """Counts and times offset commits, one at a time; used by the consuming thread alone."""

    def __init__(self, telemetry: Telemetry, client: str, on_failure: Callable[[], None]) -> None:
        self._telemetry = telemetry
        self._client = client
        self._on_failure = on_failure
        self._pending: tuple[str, float] | None = None

    def may_begin(self, now: float) -> bool:
        """False while one is under way; one without an answer counts as failed in each COMMIT_LIMIT_S."""
        if self._pending is None:
            return True
        coordinator, since = self._pending
        if now - since > COMMIT_LIMIT_S:
            self._telemetry.count(metrics.CANARY_OFFSET_COMMITS, self._client, coordinator)
            self._telemetry.count(metrics.CANARY_OFFSET_COMMITS_FAILED, self._client, coordinator)
            self._on_failure()
            self._pending = (coordinator, now)
        return False

    def begin(self, coordinator: str, now: float) -> OnCommitted:
        self._pending = (coordinator, now)
        self._telemetry.expose(metrics.CANARY_OFFSET_COMMITS_FAILED, self._client, coordinator)

        def on_committed(reason: str | None) -> None:
            self._pending = None
            self._telemetry.count(metrics.CANARY_OFFSET_COMMITS, self._client, coordinator)
            if reason is None:
                took = time.monotonic() - now
                self._telemetry.observe(metrics.CANARY_OFFSET_COMMIT_LATENCY, took, self._client, coordinator)
            else:
                self._telemetry.count(metrics.CANARY_OFFSET_COMMITS_FAILED, self._client, coordinator)
                self._on_failure()
                journal.note(logging.DEBUG, "commit.failed", coordinator=coordinator, reason=reason)

        return on_committed
