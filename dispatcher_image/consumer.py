"""The Kafka side of one subscription: one consumer group member, on a thread of its own.

Every call of the consumer is made by this thread: confluent-kafka serialises calls of several threads behind whatever
waits in `poll`. What it reads goes to the event loop in lists, one hand-over for each; what the loop wants (a commit)
comes back through a queue. The loop hears of everything in the order in which it happened here, so that a batch that
was polled before a revoke is never taken for one after it.

Flow control: the thread looks at how much the loop has in the house and reads no more than there is room for. While a
partition is full it first simply reads nothing for a moment, because pausing throws away what librdkafka has
prefetched; when that lasts, or when others would run dry meanwhile, the partition is paused and polling goes on. So a
slow subscriber never costs its membership in the group.

Offsets: those of the group as far as there are any; `start_offsets` says what holds for the others. They are committed
*before* the group is joined, so that nothing that is produced from then on can be missed. `auto.offset.reset` is
`error`: an offset that retention has removed is noticed, counted, logged, and goes on at the earliest that is left.

A revoke waits, bounded, for what is in flight, commits, and only then lets go.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from dispatcher_image.lanes import BUFFER_FACTOR, RECORD_OVERHEAD, RESUME_AT, Message, Partition
from dispatcher_image.offsets import Commit
from eventing.channels import InitialOffset
from eventing.program_config import GroupProtocol

POLL_S: Final = 0.05
"""Longest wait in a poll: how long a commit or a stop waits for its turn."""
BATCH: Final = 1000
"""Most messages handed over at once: the loop serves its connections between two batches."""
GATE_STEPS_S: Final = (0.003, 0.01)
"""Between two looks while the house is full: a small one, and a large one."""
PAUSE_AFTER_S: Final = 0.15
"""How long a full partition is waited for before it is paused."""
REQUEST_TIMEOUT_S: Final = 10.0
"""For questions to the brokers (committed offsets, metadata)."""
ASK_AGAIN_S: Final = 0.5
RESTART_LONGEST_S: Final = 15.0
SESSION_TIMEOUT_MS: Final = 6000
"""The least that brokers take by default: the partitions of a killed member wait so long for the next one."""
REVOKE_DRAIN_S: Final = 0.5 * SESSION_TIMEOUT_MS / 1000
"""Longest drain inside a rebalance, where no heartbeat is sent; the drain of SIGTERM is longer and sends them."""
LEAVE_S: Final = 2.0
"""After the drain, for the last commit."""
END_OFFSETS_EVERY_S: Final = 1.0
PAUSED_ENDS_EVERY: Final = 3
"""Looks (seconds) between two questions for the ends of paused partitions."""
SURPLUS_S: Final = 5.0
"""A member that joined and got nothing for so long is one more than there are partitions."""
REASON_STAYS_S: Final = 15.0
"""How long an error of the client is shown after it was last seen."""

log = logging.getLogger(__name__)


class Assignment(NamedTuple):
    """One partition as it begins: read from `offset` on; `metadata` is what the last commit said."""

    number: int
    epoch: int
    offset: int
    metadata: str


class CommitEntry(NamedTuple):
    """What to commit for one assignment."""

    number: int
    epoch: int
    commit: Commit


class Listener(Protocol):
    """The loop's side of a feed. Every method is called on the event loop, in the order of events."""

    def on_assigned(self, assignments: Sequence[Assignment], partition_count: int) -> None:
        """Partitions begin."""

    def on_polled(self, messages: Sequence[Message]) -> None:
        """Records, of partitions that are assigned."""

    def on_revoked(self, numbers: Sequence[int], within_s: float, done: Callable[[list[CommitEntry]], None]) -> None:
        """Send nothing more of them, wait for what is in flight, then call `done` once with what to commit."""

    def on_lost(self, numbers: Sequence[int]) -> None:
        """The group has given them to somebody else already; nothing of them may be committed."""

    def on_expired(self, assignment: Assignment, lost: int) -> None:
        """Retention removed `lost` records before they were read; the partition begins anew."""

    def on_committed(self, entries: Sequence[CommitEntry], error: str | None) -> None:
        """A commit has ended."""

    def on_end_offsets(self, ends: Mapping[int, int]) -> None:
        """The ends of assigned partitions, as far as they are known."""

    def on_state(self, state: str, reason: str) -> None:
        """`state` is one of `STATES`; `reason` is in words, empty where there is nothing to say."""


STATES: Final = ("starting", "waiting", "joining", "stable", "failed", "stopped")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedConfig:
    """What one feed needs to know."""

    bootstrap_servers: str
    topic: str
    group: str
    group_protocol: GroupProtocol
    initial_offset: InitialOffset
    """For a group without any offset; where others have one, a partition is new and begins at its earliest."""
    drain_timeout_s: float
    client_rack: str | None = None
    instance_id: str | None = None
    """Names this member for as long as its process is started again (KIP-345, classic protocol only): one that crashed
    takes its partitions up at once, without a rebalance and without waiting for the end of its old session."""
    queue_kbytes: int = 1024
    """What librdkafka prefetches; a part of the memory formula."""


class House(Protocol):
    """What the loop has of this feed; read by the thread, so only single reads of plain values."""

    partitions: dict[int, Partition]


class KafkaFeed:
    """One consumer on one thread. `start`, `commit`, `restart` and `stop` belong to the event loop."""

    def __init__(
        self,
        config: FeedConfig,
        *,
        security: Callable[[], Mapping[str, str]],
        listener: Listener,
        house: House,
        taken: Callable[[], int],
        bytes_limit: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._config = config
        self._security = security
        self._listener = listener
        self._house = house
        self._taken = taken
        self._bytes_limit = bytes_limit
        self._loop = loop
        self._thread = threading.Thread(target=self._run, name=f"feed-{config.group[-8:]}", daemon=True)
        self._commits: deque[list[CommitEntry]] = deque(maxlen=1)
        self._under_way: list[CommitEntry] | None = None
        self._stopping = threading.Event()
        self._restarting = False
        self._stopped: asyncio.Future[None] = loop.create_future()
        self._epochs = itertools.count(1)
        self._assigned: dict[int, int] = {}
        """Number → epoch."""
        self._paused: set[int] = set()
        self._full_since: float | None = None
        self._handed = 0
        """Messages given to the loop; the difference to what it has `taken` in is on its way."""
        self._message_bytes = 65_536.0
        self._partition_count = 0
        self._ends: dict[int, int] = {}
        self._ends_at = 0.0
        self._looks = 0
        self._poll_at = 0.0
        self._step_s = GATE_STEPS_S[0]
        self._state = ("starting", "")
        self._reason_at = 0.0
        self._joined_at = 0.0

    @property
    def paused(self) -> int:
        """How many partitions are paused."""
        return len(self._paused)

    def start(self) -> None:
        self._thread.start()

    def commit(self, entries: list[CommitEntry]) -> None:
        """Ask for a commit; a newer one replaces one that has not begun."""
        self._commits.append(entries)

    def restart(self) -> None:
        """Leave the group and come back with a new client: the credentials have changed."""
        self._restarting = True

    def stop(self) -> asyncio.Future[None]:
        """Leave the group; the future is done when the thread has drained, committed and closed."""
        self._stopping.set()
        return self._stopped

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = ASK_AGAIN_S
        while not self._stopping.is_set():
            self._restarting = False
            began = time.monotonic()
            try:
                self._session()
            except Exception as exc:  # noqa: BLE001  # the top loop of this thread: say it, begin anew
                self._tell_state("failed", str(exc))
                log.warning("feed.failed group=%s reason=%r", self._config.group, str(exc))
                if time.monotonic() - began > 60.0:
                    pause = ASK_AGAIN_S
                self._stopping.wait(pause)
                pause = min(2 * pause, RESTART_LONGEST_S)
        self._tell_state("stopped", "")
        self._post(self._end)

    def _end(self) -> None:
        if not self._stopped.done():
            self._stopped.set_result(None)

    def _session(self) -> None:
        consumer = Consumer(self._client_properties(), logger=logging.getLogger("librdkafka"))
        try:
            if not self._set_first_offsets(consumer):
                return
            self._tell_state("joining", "")
            self._joined_at = time.monotonic()
            consumer.subscribe(
                [self._config.topic],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
            while not self._stopping.is_set() and not self._restarting:
                self._turn(consumer)
            self._leave(consumer)
        finally:
            consumer.close()
            if self._assigned:
                self._forget(list(self._assigned))

    def _leave(self, consumer: Consumer) -> None:
        """Drain, commit, and tell the group, so that others take over at once.

        The drain comes first, while polling goes on: a member whose rebalance callback takes longer than the session
        is expelled, and could not commit any more. And a static member's close alone would leave its partitions to
        nobody until its session ends (KIP-345), hence `unsubscribe`.
        """
        topic = self._config.topic
        numbers = list(self._assigned)
        if numbers:
            consumer.pause([TopicPartition(topic, number) for number in numbers])
            drained: Future[list[CommitEntry]] = Future()
            within_s = self._config.drain_timeout_s
            self._post(self._listener.on_revoked, numbers, within_s, drained.set_result)
            deadline = time.monotonic() + within_s + LEAVE_S
            while not drained.done() and time.monotonic() < deadline:
                consumer.poll(POLL_S)  # what comes nevertheless was never taken in: the next owner reads it again
            self._commit_and_wait(consumer, self._still_ours(drained.result(0) if drained.done() else []))
        consumer.unsubscribe()
        deadline = time.monotonic() + LEAVE_S
        while self._assigned and time.monotonic() < deadline:
            consumer.poll(POLL_S)

    def _client_properties(self) -> dict[str, Any]:
        config = self._config
        properties: dict[str, Any] = {
            "bootstrap.servers": config.bootstrap_servers,
            "group.id": config.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            "isolation.level": "read_committed",
            "topic.metadata.refresh.interval.ms": 10_000,  # new partitions are noticed in this time, not in 5 minutes
            # Memory: what is prefetched, and what one answer of a broker may add to it.
            "queued.max.messages.kbytes": config.queue_kbytes,
            "queued.min.messages": 20_000,
            # These are bytes as they are stored, and what compresses well becomes twenty times as much.
            "fetch.max.bytes": 1024 * 1024,
            "message.max.bytes": 1024 * 1024,
            "max.partition.fetch.bytes": 64 * 1024,
            "fetch.queue.backoff.ms": 20,  # the default of a second would starve a fast subscriber
            "reconnect.backoff.ms": 200,
            "reconnect.backoff.max.ms": 2_000,
            "error_cb": self._on_error,
            "on_commit": self._on_commit,
            "log.connection.close": False,
            **self._security(),
        }
        if config.group_protocol is GroupProtocol.CONSUMER:
            properties["group.protocol"] = "consumer"  # session and heartbeats are the broker's to set (KIP-848)
        else:
            properties |= {
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": SESSION_TIMEOUT_MS // 3,
            }
            if config.instance_id is not None:
                # Not with KIP-848: there a static member that crashed is locked out until its old session ends.
                properties["group.instance.id"] = config.instance_id
        if config.client_rack is not None:
            properties["client.rack"] = config.client_rack
        return properties

    # --- first offsets -----------------------------------------------------------------------------------------------

    def _set_first_offsets(self, consumer: Consumer) -> bool:
        """Wait for the topic, and commit where there is no offset yet. False: stopped meanwhile."""
        refused = 0
        while not self._stopping.is_set() and not self._restarting:
            try:
                metadata = consumer.list_topics(self._config.topic, timeout=REQUEST_TIMEOUT_S)
                topic = metadata.topics[self._config.topic]
                if topic.error is not None or not topic.partitions:
                    self._tell_state("waiting", f"topic {self._config.topic} does not exist yet")
                else:
                    self._partition_count = len(topic.partitions)
                    if self._commit_first_offsets(consumer, sorted(topic.partitions)):
                        return True
            except KafkaException as exc:
                error = exc.args[0]
                if error.code() in _GROUP_IS_ACTIVE:
                    # Other members are at work, so the group has its offsets, or on_assign sets them.
                    refused += 1
                    if refused > 3:
                        return True
                else:
                    self._tell_state("waiting", f"Kafka: {error.str()}")
            consumer.poll(0)  # serves error and log callbacks
            self._stopping.wait(ASK_AGAIN_S)
        return False

    def _commit_first_offsets(self, consumer: Consumer, numbers: Sequence[int]) -> bool:
        topic = self._config.topic
        committed = consumer.committed([TopicPartition(topic, n) for n in numbers], timeout=REQUEST_TIMEOUT_S)
        for item in committed:
            if item.error is not None:
                raise KafkaException(item.error)
        missing = [item.partition for item in committed if item.offset < 0]
        if not missing:
            return True
        is_new = len(missing) == len(numbers)
        earliest = not is_new or self._config.initial_offset is InitialOffset.EARLIEST
        first = []
        for number in missing:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=REQUEST_TIMEOUT_S)
            first.append(TopicPartition(topic, number, low if earliest else high))
        consumer.commit(offsets=first, asynchronous=False)
        log.info(
            "feed.first_offsets group=%s at=%s offsets=%s",
            self._config.group,
            "earliest" if earliest else "latest",
            {item.partition: item.offset for item in first},
        )
        return True

    # --- turns -------------------------------------------------------------------------------------------------------

    def _turn(self, consumer: Consumer) -> None:
        if self._commits and self._under_way is None:
            self._commit_now(consumer, self._commits.popleft())
        now = time.monotonic()
        if now >= self._ends_at:
            self._ends_at = now + END_OFFSETS_EVERY_S
            self._tell_ends(consumer)
        room = self._room(consumer, now)
        if room <= 0:
            # Nothing may be read. Rebalances are served by poll alone, but it may bring a message nevertheless.
            time.sleep(self._step_s)
            if now < self._poll_at:
                return
            self._poll_at = now + POLL_S
            message = consumer.poll(0)
            if message is not None:
                self._hand_over(consumer, [message])
            return
        # consume(n, t) waits the whole time for an incomplete batch, hence what is there, and poll for the first one.
        batch = consumer.consume(min(room, BATCH), 0)
        if not batch:
            first = consumer.poll(POLL_S)
            if first is None:
                return
            batch = [first]
            if room > 1:
                batch += consumer.consume(min(room, BATCH) - 1, 0)
        self._hand_over(consumer, batch)

    def _hand_over(self, consumer: Consumer, batch: list[Any]) -> None:
        messages = []
        for message in batch:
            error = message.error()
            if error is None:
                messages.append(message)
            else:
                if messages:
                    self._deliver(messages)
                    messages = []
                self._on_consumer_error(consumer, message, error)
        if messages:
            self._deliver(messages)

    def _deliver(self, messages: list[Any]) -> None:
        # A sample of each batch is enough to foresee how many messages fit into the bytes that are left.
        sample = RECORD_OVERHEAD + max(len(messages[0]), len(messages[-1]))
        self._message_bytes = max(sample, 0.9 * self._message_bytes)
        self._handed += len(messages)
        self._post(self._listener.on_polled, messages)

    def _room(self, consumer: Consumer, now: float) -> int:
        """How many messages may be read now; pauses and resumes partitions on the way."""
        bytes_limit = self._bytes_limit()
        full: list[int] = []
        resumable: list[int] = []
        is_somebody_hungry = False
        room = 0
        size_left = 0
        capacity = capacity_count = 0
        for number in self._assigned:
            partition = self._house.partitions.get(number)
            if partition is None:
                continue  # assigned here, not yet heard of there
            limit = BUFFER_FACTOR * partition.limit
            load, size = partition.load, partition.size
            if number in self._paused:
                if load <= RESUME_AT * limit and size <= RESUME_AT * bytes_limit:
                    resumable.append(number)
                continue
            capacity += limit
            capacity_count += 1
            if load >= limit or size >= bytes_limit:
                full.append(number)
            else:
                room += limit - load
                size_left += bytes_limit - size
                is_somebody_hungry = is_somebody_hungry or load < partition.limit
        if resumable:
            consumer.resume([TopicPartition(self._config.topic, number) for number in resumable])
            self._paused.difference_update(resumable)
        if full:
            if self._full_since is None:
                self._full_since = now
            waited = now - self._full_since
            if waited < PAUSE_AFTER_S and not is_somebody_hungry:
                return 0
            consumer.pause([TopicPartition(self._config.topic, number) for number in full])
            self._paused.update(full)
        self._full_since = None
        if not self._assigned or len(self._paused) == len(self._assigned):
            return 1  # nothing comes, but polling goes on
        on_its_way = self._handed - self._taken()
        # A batch may come from one partition as a whole, so it must fit into the share of one.
        fitting = int(size_left / max(1, capacity_count) / self._message_bytes) + 1
        # A thread that wants the interpreter disturbs the loop, so it comes seldom and takes much.
        self._step_s = GATE_STEPS_S[capacity > 4 * BATCH]
        if room - on_its_way < min(capacity // 4, BATCH):
            return 0
        return max(0, min(room, fitting) - on_its_way)

    def _tell_ends(self, consumer: Consumer) -> None:
        state, reason = self._state
        if state == "joining" and not reason and time.monotonic() - self._joined_at > SURPLUS_S:
            # KIP-848 says nothing to a member that gets no partition.
            self._tell_state("stable", "")
        if reason and time.monotonic() - self._reason_at > REASON_STAYS_S:
            self._tell_state(state, "")
        ends = self._ends
        topic = self._config.topic
        for number in list(ends.keys() - self._assigned.keys()):
            del ends[number]
        for number in self._assigned:
            try:
                if number not in self._paused:
                    _, high = consumer.get_watermark_offsets(TopicPartition(topic, number), cached=True)
                elif self._looks % PAUSED_ENDS_EVERY == 0:
                    # Nothing is fetched of a paused partition, so its end has to be asked for.
                    _, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=1.0)
                else:
                    continue
            except KafkaException:
                ends.pop(number, None)  # unknown, which is not 0
                continue
            if high >= 0:
                ends[number] = high
        self._looks += 1
        self._post(self._listener.on_end_offsets, dict(ends))

    # --- group -------------------------------------------------------------------------------------------------------

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        assignments = self._begin(consumer, [item.partition for item in partitions]) if partitions else []
        # The loop hears of the partitions before it can get any of their records.
        self._post(self._listener.on_assigned, assignments, self._partition_count)
        consumer.incremental_assign([TopicPartition(self._config.topic, a.number, a.offset) for a in assignments])
        self._tell_state("stable", "")

    def _begin(self, consumer: Consumer, numbers: Sequence[int]) -> list[Assignment]:
        """Find where each partition goes on. Raises KafkaException when Kafka does not say in time."""
        topic = self._config.topic
        self._partition_count = max(self._partition_count, max(numbers) + 1)
        deadline = time.monotonic() + 3 * REQUEST_TIMEOUT_S
        while True:
            try:
                committed = consumer.committed([TopicPartition(topic, n) for n in numbers], timeout=REQUEST_TIMEOUT_S)
                failed = next((item.error for item in committed if item.error is not None), None)
            except KafkaException as exc:
                failed = exc.args[0]
            if failed is None:
                break
            if time.monotonic() > deadline or self._stopping.is_set():
                raise KafkaException(failed)
            log.warning("feed.committed_unknown group=%s reason=%r", self._config.group, failed.str())
            time.sleep(ASK_AGAIN_S)
        assignments = []
        for item in committed:
            offset, metadata = item.offset, item.metadata or ""
            if offset < 0:
                # Added after the group began, or the first commit was refused: nothing of it may be missed.
                offset, _ = consumer.get_watermark_offsets(
                    TopicPartition(topic, item.partition), timeout=REQUEST_TIMEOUT_S
                )
                metadata = ""
            epoch = next(self._epochs)
            self._assigned[item.partition] = epoch
            assignments.append(Assignment(item.partition, epoch, offset, metadata))
        return assignments

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = [item.partition for item in partitions if item.partition in self._assigned]
        if numbers:
            drained: Future[list[CommitEntry]] = Future()
            within_s = min(self._config.drain_timeout_s, REVOKE_DRAIN_S)
            self._post(self._listener.on_revoked, numbers, within_s, drained.set_result)
            try:
                entries = drained.result(within_s + LEAVE_S)
            except FutureTimeoutError:
                entries = []
                log.warning("feed.drain_unanswered group=%s partitions=%s", self._config.group, numbers)
            self._commit_and_wait(consumer, self._still_ours(entries))
            self._drop(numbers)
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget([item.partition for item in partitions])
        consumer.incremental_unassign(partitions)

    def _forget(self, numbers: list[int]) -> None:
        log.warning("feed.lost group=%s partitions=%s", self._config.group, numbers)
        self._post(self._listener.on_lost, numbers)
        self._drop(numbers)

    def _drop(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._assigned.pop(number, None)
            self._paused.discard(number)

    # --- commits -----------------------------------------------------------------------------------------------------

    def _commit_now(self, consumer: Consumer, entries: list[CommitEntry]) -> None:
        # What was revoked since the loop asked is not ours any more; the revoke has committed it.
        entries = self._still_ours(entries)
        if not entries:
            return
        try:
            consumer.commit(offsets=self._positions(entries), asynchronous=True)
            self._under_way = entries
        except KafkaException as exc:
            self._post(self._listener.on_committed, entries, str(exc.args[0]))

    def _commit_and_wait(self, consumer: Consumer, entries: list[CommitEntry]) -> None:
        if not entries:
            return
        error = None
        try:
            results = consumer.commit(offsets=self._positions(entries), asynchronous=False)
            error = next((str(item.error) for item in results or () if item.error is not None), None)
        except KafkaException as exc:
            error = str(exc.args[0])
        if error is not None:
            log.warning("feed.last_commit_failed group=%s reason=%r", self._config.group, error)
        self._post(self._listener.on_committed, entries, error)

    def _still_ours(self, entries: Sequence[CommitEntry]) -> list[CommitEntry]:
        return [entry for entry in entries if self._assigned.get(entry.number) == entry.epoch]

    def _positions(self, entries: Sequence[CommitEntry]) -> list[TopicPartition]:
        topic = self._config.topic
        return [TopicPartition(topic, e.number, e.commit.offset, e.commit.metadata) for e in entries]

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        entries, self._under_way = self._under_way, None
        if entries is None:
            return  # one of those that were waited for
        reason = str(error) if error is not None else next((str(p.error) for p in partitions if p.error), None)
        self._post(self._listener.on_committed, entries, reason)

    # --- errors ------------------------------------------------------------------------------------------------------

    def _on_consumer_error(self, consumer: Consumer, message: Any, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET and message.partition() in self._assigned:  # noqa: SLF001
            self._reset(consumer, message.partition())
        elif error.fatal():
            raise KafkaException(error)
        else:
            self._tell_state(self._state[0], f"Kafka: {error.str()}")
            log.warning("feed.error group=%s reason=%r", self._config.group, error.str())

    def _reset(self, consumer: Consumer, number: int) -> None:
        """The offset to read is not there: go on at the earliest that is, and say how many records are gone."""
        item = TopicPartition(self._config.topic, number)
        low, high = consumer.get_watermark_offsets(item, timeout=REQUEST_TIMEOUT_S)
        partition = self._house.partitions.get(number)
        expected = partition.tracker.next_polled if partition is not None else OFFSET_INVALID
        lost = max(0, low - expected) if expected >= 0 else 0
        log.error(
            "feed.offsets_expired group=%s partition=%d wanted=%d earliest=%d end=%d lost=%d",
            self._config.group, number, expected, low, high, lost,
        )  # fmt: skip
        epoch = next(self._epochs)
        self._assigned[number] = epoch
        self._paused.discard(number)
        self._post(self._listener.on_expired, Assignment(number, epoch, low, ""), lost)
        consumer.seek(TopicPartition(self._config.topic, number, low))

    def _on_error(self, error: KafkaError) -> None:
        """Errors of the client as a whole: it recovers by itself, so they are only said."""
        self._tell_state(self._state[0], f"Kafka: {error.str()}")

    # --- to the loop -------------------------------------------------------------------------------------------------

    def _tell_state(self, state: str, reason: str) -> None:
        self._reason_at = time.monotonic()
        if (state, reason) != self._state:
            self._state = (state, reason)
            self._post(self._listener.on_state, state, reason)

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop was closed first: the program ends
            self._stopping.set()


_GROUP_IS_ACTIVE: Final = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        getattr(KafkaError, "STALE_MEMBER_EPOCH", 113),
    }
)
