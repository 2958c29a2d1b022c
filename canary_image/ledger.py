"""What became of every record: sent, received, now → lost, late, duplicated, out of order, foreign.

Rules of this file:

* No clock and no I/O: every method takes `now`, seconds of a monotonic clock, so that a jump of the wall clock can
  neither lose a record nor invent a latency.
* Every record gets exactly one *verdict*: succeeded (back within the limit), failed (Kafka did not acknowledge it),
  lost (acknowledged, and not back within the limit). The verdict does not depend on how often `expire` is called.
* After its verdict a record may still come back: a lost one is then late as well; a failed one was written after all.
* Own is what this ledger sent: producer, message id, time stamp and partition must all agree. Records of another
  canary, of an earlier start of this one, or of anyone else are foreign and count for nothing.

Memory: one entry for each record of the last `memory` seconds, never more than `capacity`.
"""

from __future__ import annotations

import enum
import itertools
from collections import deque
from dataclasses import dataclass

from canary_image.payload import Payload


class Verdict(enum.StrEnum):
    """The values of the label `result`."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"


class ForeignReason(enum.StrEnum):
    """The values of the label `reason`."""

    UNDECODABLE = "undecodable"
    OTHER_PRODUCER = "other_producer"
    OTHER_START = "other_start"


@dataclass(frozen=True, slots=True)
class Sent:
    """A record on its way. `blamed` is the broker on whose account it goes."""

    message_id: int
    partition: int
    blamed: int
    sent_at: float
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Kafka has the record; `verdict` is set when the limit had passed by then."""

    record: Sent
    latency_s: float
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Kafka did not acknowledge the record; `verdict` is None where it had come back nevertheless."""

    record: Sent
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class Arrived:
    """An own record came back for the first time."""

    record: Sent
    latency_s: float
    late: bool
    out_of_order: bool
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class Duplicated:
    """An own record came back once more, at another offset: it is in the log twice."""

    record: Sent


@dataclass(frozen=True, slots=True)
class Reread:
    """The same offset once more: the consumer went back, the log is right."""

    record: Sent


@dataclass(frozen=True, slots=True)
class Foreign:
    """A record that is not of this start."""

    partition: int
    reason: ForeignReason


@dataclass(frozen=True, slots=True)
class Lost:
    """An acknowledged record did not come back within the limit."""

    record: Sent


Receipt = Arrived | Duplicated | Reread | Foreign


@dataclass(slots=True)
class _Entry:
    record: Sent
    acknowledged: bool = False
    verdict: Verdict | None = None
    arrived_offset: int | None = None


class Ledger:
    """Follows the records of one start of the canary.

    Args:
        producer_id: What own records carry.
        limit: Seconds within which a record must be back.
        memory: Seconds after which a record is forgotten; one that comes back later is foreign. At least `limit`.
        capacity: Records remembered at most; the oldest are forgotten first.
    """

    def __init__(self, producer_id: str, *, limit: float, memory: float, capacity: int = 100_000) -> None:
        assert 0 < limit <= memory, "a record must be remembered until its verdict"
        self._producer_id = producer_id
        self._limit = limit
        self._memory = memory
        self._capacity = capacity
        self._last_id = 0
        self._oldest_id = 1
        self._entries: dict[int, _Entry] = {}  # all ids from the oldest to the last
        self._awaiting: dict[int, _Entry] = {}  # those that are neither acknowledged nor failed, in sending order
        self._undecided: deque[int] = deque()  # ids in sending order; those with a verdict are skipped
        self._highest_arrived: dict[int, int] = {}
        self._in_flight: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def in_flight(self, partition: int) -> int:
        """Records of the partition without a verdict."""
        return self._in_flight.get(partition, 0)

    def send(self, partition: int, *, blamed: int, timestamp_ms: int, now: float) -> Sent:
        """Note that a record is about to be sent, and give it its id."""
        self._last_id += 1
        record = Sent(self._last_id, partition, blamed, now, timestamp_ms)
        self._entries[record.message_id] = self._awaiting[record.message_id] = _Entry(record)
        self._undecided.append(record.message_id)
        self._in_flight[partition] = self.in_flight(partition) + 1
        return record

    def acknowledged(self, message_id: int, now: float) -> Acknowledged | None:
        """None for a record that is forgotten or was given up as failed before."""
        entry = self._awaiting.pop(message_id, None)
        if entry is None:
            return None
        entry.acknowledged = True
        verdict = None
        if entry.verdict is None and self._is_over(entry.record, now):
            verdict = self._decide(entry, Verdict.LOST)
        return Acknowledged(entry.record, max(0.0, now - entry.record.sent_at), verdict)

    def failed(self, message_id: int) -> Failed | None:
        """None for a record that is forgotten, or whose outcome is known."""
        entry = self._awaiting.pop(message_id, None)
        if entry is None:
            return None
        verdict = self._decide(entry, Verdict.FAILED) if entry.verdict is None else None
        return Failed(entry.record, verdict)

    def awaiting(self, now: float, longer_than: float) -> list[Sent]:
        """Records without an outcome for more than so many seconds, oldest first."""
        waiting = (entry.record for entry in self._awaiting.values())
        return list(itertools.takewhile(lambda record: now - record.sent_at > longer_than, waiting))

    def received(self, partition: int, offset: int, payload: Payload | None, now: float) -> Receipt:
        """Judge a record that was read; `payload` is None when it could not be decoded."""
        if payload is None:
            return Foreign(partition, ForeignReason.UNDECODABLE)
        if payload.producer_id != self._producer_id:
            return Foreign(partition, ForeignReason.OTHER_PRODUCER)
        entry = self._entries.get(payload.message_id)
        if entry is None or (entry.record.timestamp_ms, entry.record.partition) != (payload.timestamp_ms, partition):
            return Foreign(partition, ForeignReason.OTHER_START)
        if entry.arrived_offset is not None:
            return Reread(entry.record) if entry.arrived_offset == offset else Duplicated(entry.record)
        entry.arrived_offset = offset
        late = self._is_over(entry.record, now)
        verdict = None
        if entry.verdict is None:
            verdict = self._decide(entry, Verdict.LOST if late else Verdict.SUCCEEDED)
        highest = self._highest_arrived.get(partition, 0)
        self._highest_arrived[partition] = max(highest, payload.message_id)
        return Arrived(
            entry.record,
            latency_s=max(0.0, now - entry.record.sent_at),
            late=late,
            out_of_order=payload.message_id < highest,
            verdict=verdict,
        )

    def expire(self, now: float) -> list[Lost | Failed]:
        """Acknowledged records whose time is over, oldest first; then forget what is too old.

        A record whose outcome is not known yet is left to `acknowledged` or `failed`: the client owes one of them.
        If that comes never, the record counts as failed when it is forgotten.
        """
        decided: list[Lost | Failed] = []
        while self._undecided:
            entry = self._entries.get(self._undecided[0])
            if entry is not None and entry.verdict is None:
                if not self._is_over(entry.record, now):
                    break
                if entry.acknowledged:
                    self._decide(entry, Verdict.LOST)
                    decided.append(Lost(entry.record))
            self._undecided.popleft()
        while self._entries:
            oldest = self._entries[self._oldest_id]
            if len(self._entries) <= self._capacity and now - oldest.record.sent_at <= self._memory:
                break
            if oldest.verdict is None:
                lost = oldest.acknowledged
                verdict = self._decide(oldest, Verdict.LOST if lost else Verdict.FAILED)
                decided.append(Lost(oldest.record) if lost else Failed(oldest.record, verdict))
            del self._entries[self._oldest_id]
            self._awaiting.pop(self._oldest_id, None)
            self._oldest_id += 1
        return decided

    def _decide(self, entry: _Entry, verdict: Verdict) -> Verdict:
        assert entry.verdict is None, f"record {entry.record.message_id} has its verdict already: {entry.verdict}"
        entry.verdict = verdict
        self._in_flight[entry.record.partition] -= 1
        return verdict

    def _is_over(self, record: Sent, now: float) -> bool:
        return now - record.sent_at > self._limit
