"""The canary's clients in memory: a log for each partition, leaders that come and go, answers on demand."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Mapping

from canary_image.coverage import Broker, ClusterView, Partition
from canary_image.kafka_clients import OnCommitted, OnEnd, OnSent, ReadError, Received
from eventing.errors import Refused, Unavailable


class FakeKafka:
    """A cluster of brokers 0 to `brokers` - 1; partition n has broker n as its preferred leader."""

    def __init__(self, brokers: int, partitions: int | None = None) -> None:
        self._lock = threading.Lock()
        self.brokers = tuple(Broker(number, "localhost", 9092 + number) for number in range(brokers))
        self.leaders = list(range(brokers if partitions is None else partitions))
        self.logs: dict[int, list[bytes]] = defaultdict(list)
        self.dead: set[int] = set()
        self.away = False
        self.refuses = ""
        self.no_commits = ""
        self.assigned: dict[int, int] = {}
        self.refreshed: list[str] = []
        self.commits: list[dict[int, int]] = []
        self.sent_while_unassigned: list[int] = []
        self.dropped_unsent = 0
        self.closed = False
        self._answers: queue.SimpleQueue[tuple[OnSent, str | None]] = queue.SimpleQueue()
        self._unsent: list[tuple[int, bytes, OnSent]] = []
        self._commit_answer: tuple[OnCommitted, str | None] | None = None
        self._errors: list[str] = []

    # --- what a test does ---

    def kill(self, broker: int) -> None:
        """Partitions that it leads keep it as leader, as until Kafka notices."""
        self.dead.add(broker)

    def write(self, partition: int, value: bytes) -> None:
        """A record of somebody else."""
        with self._lock:
            self.logs[partition].append(value)

    def report_error(self, reason: str) -> None:
        self._errors.append(reason)

    # --- what a session calls ---

    def describe(self) -> ClusterView:
        if self.away:
            raise Unavailable("Kafka", "no broker answers")
        if self.refuses:
            raise Refused("Kafka", self.refuses)
        replicas = len(self.brokers)
        return ClusterView(
            self.brokers,
            tuple(
                Partition(number, (number % replicas, (number + 1) % replicas), leader)
                for number, leader in enumerate(self.leaders)
            ),
        )

    def find_end(self, partition: int, on_end: OnEnd) -> None:
        answered = self._answers_for(partition)
        end = len(self.logs[partition]) if answered else None
        threading.Thread(target=on_end, args=(partition, end, "" if answered else "no answer")).start()

    def coordinator(self) -> int | None:
        return None if self.away else 0

    def refresh_producer(self) -> None:
        self.refreshed.append("producer")

    def refresh_consumer(self) -> None:
        self.refreshed.append("consumer")
        if self.refuses:
            raise Unavailable("Kafka", self.refuses)

    def send(self, partition: int, value: bytes, on_sent: OnSent) -> None:
        with self._lock:
            if partition not in self.assigned:
                self.sent_while_unassigned.append(partition)
            if self._answers_for(partition):
                self.logs[partition].append(value)
                self._answers.put((on_sent, None))
            else:
                self._unsent.append((partition, value, on_sent))

    def poll_producer(self, timeout: float) -> None:
        try:
            on_sent, reason = self._answers.get(timeout=timeout)
        except queue.Empty:
            return
        on_sent(reason)

    def drop_unsent(self) -> None:
        with self._lock:
            unsent, self._unsent = self._unsent, []
        self.dropped_unsent += len(unsent)
        for _, _, on_sent in unsent:
            on_sent("dropped")

    def assign(self, partition: int, offset: int) -> None:
        self.assigned[partition] = offset

    def unassign(self, partition: int) -> None:
        del self.assigned[partition]

    def read(self, timeout: float) -> Received | ReadError | None:
        if self._errors:
            return ReadError(self._errors.pop())
        if self._commit_answer is not None:
            (on_committed, reason), self._commit_answer = self._commit_answer, None
            on_committed(reason)
        with self._lock:
            for partition, offset in self.assigned.items():
                if self._answers_for(partition) and offset < len(self.logs[partition]):
                    self.assigned[partition] += 1
                    return Received(partition, offset, self.logs[partition][offset])
        threading.Event().wait(min(timeout, 0.005))
        return None

    def commit(self, offsets: Mapping[int, int], on_committed: OnCommitted) -> None:
        self.commits.append(dict(offsets))
        self._commit_answer = (on_committed, self.no_commits or None)

    def close(self, timeout: float) -> None:
        self.closed = True

    def _answers_for(self, partition: int) -> bool:
        return not self.away and self.leaders[partition] != -1 and self.leaders[partition] not in self.dead
