"""Kafka as the receiver sees it, in memory: takes, refuses, or keeps the senders waiting."""

from __future__ import annotations

from collections import deque

from dispatcher_image.receiver_intake import NotTaken, Settled
from eventing.cloudevents import Record


class MemoryEventLog:
    """Passes tests/contracts/test_event_log.py, as `KafkaLog` does."""

    def __init__(self, *, holds: bool = False) -> None:
        self.records: list[tuple[str, Record]] = []
        self.holds = holds
        self.error: NotTaken | None = None
        self._waiting: deque[tuple[str, Record, Settled]] = deque()

    def append(self, topic: str, record: Record, settled: Settled) -> None:
        self._waiting.append((topic, record, settled))
        if not self.holds:
            self.settle()

    def settle(self, count: int = 1, error: NotTaken | None = None) -> None:
        """Say what became of the oldest records that wait."""
        for _ in range(count):
            topic, record, settled = self._waiting.popleft()
            error = error or self.error
            if error is None:
                self.records.append((topic, record))
            settled(error)

    @property
    def waiting(self) -> int:
        return len(self._waiting)
