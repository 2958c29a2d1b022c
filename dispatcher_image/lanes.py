"""Who may be sent next: the records of one subscription between Kafka and the subscriber. Pure.

A *lane* is what must stay in order: the records of one key (`key`), of one partition (`ordered`); without a lane a
record is on its own (`unordered`, and null keys). The head of a lane is ready, in flight or parked; the others wait
behind it, so that two records of a lane are never in flight at once. A lane exists while it has records: a key that
is seen once costs one entry in a dict, and no scan ever goes over idle keys.

    intake ─▶ waiting in its lane ─▶ (held: partition at its bound) ─▶ ready ─▶ in flight ─▶ settled
                                                                        ▲           │
                                                                        └─ parked ◀─┘ until its retry is due

Bounds, per partition:
* `in_flight_limit` records are ready or in flight at once.
* `buffer_limit` records and `bytes_limit` bytes are in the house at once; beyond, the consumer is told to pause it,
  and to go on when 70 % are left (`RESUME_AT`). A poll that is under way may overshoot by one batch.
* Records of a lane whose head failed do not count towards the former, up to `SLOW_FACTOR * in_flight_limit`: else a
  few keys that fail for ever would take all the room, and keys that work would starve. The bytes always count.

Every assignment of a partition is a `Partition` object of its own, which is its epoch: what happens to a record of a
revoked one changes that object only, and nobody commits from it any more. The lane outlives it: while a record of a
revoked partition is in flight, the records of the same key wait, also those of the next assignment.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, Protocol

from dispatcher_image.delivery import START, Progress
from dispatcher_image.offsets import Attempts, FinishedMap, OffsetTracker
from eventing.channels import DeliveryOrder

RESUME_AT: Final = 0.7
"""Share of a bound at which a paused partition goes on: hysteresis, because each pause throws prefetched data away."""
BUFFER_FACTOR: Final = 16
"""Records in the house for each one in flight. Keys repeat, and a lane's second record waits behind its first; and
Kafka's batches hold thousands of records of one partition, while the others have to be kept busy too."""
SLOW_FACTOR: Final = 64
"""Bound of records behind heads that failed, in multiples of `in_flight_limit`."""
RECORD_OVERHEAD: Final = 700
"""Bytes of a record besides key and value: the client's message with five headers, ours, its places in dicts."""


class Message(Protocol):
    """What is needed of confluent-kafka's Message."""

    def partition(self) -> int: ...

    def offset(self) -> int: ...

    def key(self) -> bytes | None: ...

    def value(self) -> bytes | None: ...

    def headers(self) -> list[tuple[str, bytes | None]] | None: ...

    def timestamp(self) -> tuple[int, int]: ...

    def __len__(self) -> int: ...


class Partition:
    """One assignment of one partition: its offsets and its share of the house."""

    __slots__ = (
        "active",
        "aside",
        "epoch",
        "held",
        "is_revoked",
        "limit",
        "number",
        "polled",
        "size",
        "slow",
        "tracker",
    )

    def __init__(self, number: int, epoch: int, tracker: OffsetTracker, limit: int) -> None:
        self.number = number
        self.epoch = epoch
        self.tracker = tracker
        self.limit = limit
        self.active = 0
        """Records that are ready or in flight."""
        self.aside = 0
        """Records that are being written to the dead-letter topic."""
        self.held: deque[Record] = deque()
        """Heads of lanes that wait for `active` to fall below the limit."""
        self.size = 0
        """Bytes in the house."""
        self.polled = 0
        """Records read in this assignment, repeats left out."""
        self.slow = 0
        """Records that are parked or wait behind a head that failed."""
        self.is_revoked = False

    @property
    def is_idle(self) -> bool:
        """True when nothing of it is under way."""
        return self.active == 0 and self.aside == 0

    @property
    def records(self) -> int:
        """Records in the house."""
        return len(self.tracker.unfinished)

    @property
    def load(self) -> int:
        """Records that count towards the buffer limit."""
        return len(self.tracker.unfinished) - min(self.slow, SLOW_FACTOR * self.limit)


class Record:
    """One Kafka record on its way, with the lane that it keeps and how far its delivery has come."""

    __slots__ = ("lane", "message", "offset", "partition", "polled_at", "progress", "size")

    def __init__(  # noqa: PLR0917  # by position: this is called for every record
        self, partition: Partition, offset: int, lane: Hashable, message: Any, size: int, polled_at: float
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.lane = lane
        self.message = message
        self.size = size
        self.polled_at = polled_at
        self.progress = START


class Lanes:
    """The records of one subscription. `now` is a monotonic time in seconds, given by the caller."""

    def __init__(self, order: DeliveryOrder, in_flight_limit: int) -> None:
        self.order = order
        self.in_flight_limit = in_flight_limit
        self.partitions: dict[int, Partition] = {}
        self.ready: deque[Record] = deque()
        """Records that may be sent to the subscriber, in the order in which they became ready."""
        self.urgent: deque[Record] = deque()
        """The same, of lanes in which more are waiting: the length of such a lane is what decides when all is done, so
        every second record that is sent is one of these (every one while nothing else is ready)."""
        self._is_urgents_turn = True
        self._waiting: dict[Hashable, deque[Record] | None] = {}
        """A lane that has records: those behind its head, None while there are none."""
        self._slow_lanes: set[Hashable] = set()
        self._parked: list[tuple[float, int, Record]] = []
        self._sequence = 0

    # --- partitions --------------------------------------------------------------------------------------------------

    def assign(self, number: int, epoch: int, committed: int | None, known: FinishedMap) -> Partition:
        """Begin an assignment; the partition must not be assigned now."""
        assert number not in self.partitions, f"partition {number} is assigned already"
        partition = Partition(number, epoch, OffsetTracker(committed, known), self.in_flight_limit)
        self.partitions[number] = partition
        return partition

    def revoke(self, numbers: Iterable[int]) -> list[Partition]:
        """Stop sending records of these partitions; those in flight go on, and the caller waits for them.

        Returns the partitions, to be asked for `is_idle` and, in the end, `tracker.commit()`.
        """
        revoked = [self.partitions.pop(number) for number in numbers if number in self.partitions]
        for partition in revoked:
            partition.is_revoked = True
        if not revoked:
            return []
        # First what waits in lanes, so that the lanes that are advanced below offer no record of a revoked partition.
        for lane, waiting in self._waiting.items():
            if waiting is not None and any(record.partition.is_revoked for record in waiting):
                self._waiting[lane] = deque(record for record in waiting if not record.partition.is_revoked) or None
        heads: list[Record] = []
        for record in (*self.ready, *self.urgent):
            if record.partition.is_revoked:
                heads.append(record)
                record.partition.active -= 1
        self.ready = deque(record for record in self.ready if not record.partition.is_revoked)
        self.urgent = deque(record for record in self.urgent if not record.partition.is_revoked)
        for partition in revoked:
            heads.extend(partition.held)
            partition.held.clear()
        heads.extend(record for _, _, record in self._parked if record.partition.is_revoked)
        self._parked = [entry for entry in self._parked if not entry[2].partition.is_revoked]
        heapq.heapify(self._parked)
        for record in heads:
            self._advance(record.lane)
        return revoked

    # --- records -----------------------------------------------------------------------------------------------------

    def intake(self, messages: Sequence[Message], now: float, resume: Callable[[Attempts], Progress]) -> None:
        """Take polled messages in. Those of partitions that are not assigned (any more) are not ours.

        `resume` turns the attempts of a former assignment into the progress with which a record goes on.
        """
        partitions, waiting_of = self.partitions, self._waiting
        order = self.order
        for message in messages:
            partition = partitions.get(message.partition())
            if partition is None:
                continue
            offset = message.offset()
            tracker = partition.tracker
            if offset < tracker.next_polled:
                continue  # seen already: the client was set back by itself, and this record is in the house or settled
            partition.polled += 1
            key = message.key()
            size = len(message) + RECORD_OVERHEAD
            lane: Hashable = None
            if key is not None:
                size += len(key)
                if order is DeliveryOrder.KEY:
                    lane = key
            if order is DeliveryOrder.ORDERED:
                lane = partition.number
            record = Record(partition, offset, lane, message, size, now)
            if not tracker.polled(offset, record):
                continue
            partition.size += size
            if tracker.attempts and offset in tracker.attempts:
                record.progress = resume(tracker.attempts[offset])
            if lane is None:
                self._release(record)
            elif lane in waiting_of:
                waiting = waiting_of[lane]
                if waiting is None:
                    waiting_of[lane] = deque((record,))
                else:
                    waiting.append(record)
                if lane in self._slow_lanes:
                    partition.slow += 1
            else:
                waiting_of[lane] = None
                self._release(record)

    def next(self) -> Record | None:
        """The record to send next; it is in flight from now on."""
        if self.urgent and (self._is_urgents_turn or not self.ready):
            self._is_urgents_turn = False
            return self.urgent.popleft()
        self._is_urgents_turn = True
        return self.ready.popleft() if self.ready else None

    def finish(self, record: Record) -> None:
        """Settle a record that is in flight: its offset may be committed, and the next of its lane is ready."""
        partition = record.partition
        tracker = partition.tracker
        offset = record.offset
        # What tracker.finish does, without a call.
        tracker.unfinished.pop(offset, None)
        if offset > tracker.highest_finished:  # noqa: PLR1730  # a call to max would double it
            tracker.highest_finished = offset
        if record.progress is not START:
            tracker.attempts.pop(offset, None)
        partition.size -= record.size
        if partition.held:
            self.ready.append(partition.held.popleft())
        else:
            partition.active -= 1
        lane = record.lane
        if lane is not None:
            self._advance(lane)

    def park(self, record: Record, due: float) -> None:
        """Let a record that is in flight wait for its retry; its lane waits with it, other lanes go on.

        A record of a revoked partition is let go instead: it is not settled, and whoever has the partition sends it.
        """
        self._leave(record)
        if record.partition.is_revoked:
            self._advance(record.lane)
            return
        self._slow_down(record)
        self._sequence += 1
        heapq.heappush(self._parked, (due, self._sequence, record))

    def set_aside(self, record: Record) -> None:
        """A record that was in flight is being written to the dead-letter topic; `finish_aside` ends that."""
        self._leave(record)
        self._slow_down(record)
        record.partition.aside += 1

    def finish_aside(self, record: Record) -> None:
        """Settle a record that was set aside."""
        partition = record.partition
        partition.aside -= 1
        partition.slow -= 1
        partition.tracker.finish(record.offset)
        partition.size -= record.size
        self._advance(record.lane)

    def abandon(self, record: Record) -> None:
        """Let a record that is in flight go unsettled: its partition was revoked before it was sent on."""
        assert record.partition.is_revoked
        self._leave(record)
        self._advance(record.lane)

    def abandon_aside(self, record: Record) -> None:
        """Let a record that was set aside go unsettled: its partition was revoked before it was written."""
        assert record.partition.is_revoked
        record.partition.aside -= 1
        record.partition.slow -= 1
        self._advance(record.lane)

    def release_due(self, now: float) -> int:
        """Make the parked records ready whose retry is due; returns how many."""
        released = 0
        while self._parked and self._parked[0][0] <= now:
            _, _, record = heapq.heappop(self._parked)
            record.partition.slow -= 1
            self._release(record)
            released += 1
        return released

    @property
    def next_due(self) -> float | None:
        """When the first parked record is due."""
        return self._parked[0][0] if self._parked else None

    @property
    def parked(self) -> int:
        return len(self._parked)

    def is_buffer_full(self, partition: Partition, bytes_limit: int) -> bool:
        """True when the consumer should read no more of it for now."""
        return partition.load >= BUFFER_FACTOR * partition.limit or partition.size >= bytes_limit

    # --- inside ------------------------------------------------------------------------------------------------------

    def _release(self, record: Record) -> None:
        partition = record.partition
        if partition.active < partition.limit:
            partition.active += 1
            self.ready.append(record)
        else:
            partition.held.append(record)

    def _leave(self, record: Record) -> None:
        """A record that was in flight gives its place up."""
        partition = record.partition
        if partition.held:
            self.ready.append(partition.held.popleft())
        else:
            partition.active -= 1

    def _advance(self, lane: Hashable) -> None:
        """The head of a lane is gone: the next one becomes ready, or the lane ends."""
        if lane is None:
            return
        waiting = self._waiting[lane]
        if not waiting:
            del self._waiting[lane]
            if self._slow_lanes:
                self._slow_lanes.discard(lane)
            return
        record = waiting.popleft()
        partition = record.partition
        if self._slow_lanes and lane in self._slow_lanes:
            partition.slow -= 1
        if waiting and partition.active < partition.limit:
            partition.active += 1
            self.urgent.append(record)
        else:
            self._release(record)

    def _slow_down(self, record: Record) -> None:
        """Count a failing head, and what waits behind it, as slow; the latter once in the life of its lane."""
        record.partition.slow += 1
        lane = record.lane
        if lane is None or lane in self._slow_lanes:
            return
        self._slow_lanes.add(lane)
        for other in self._waiting[lane] or ():
            other.partition.slow += 1

    def validate(self) -> None:
        """Assert what always holds; for tests, in time linear in the records."""
        parked = [record for _, _, record in self._parked]
        waiting = [record for queue in self._waiting.values() for record in queue or ()]
        held = [record for partition in self.partitions.values() for record in partition.held]
        offered = [*self.ready, *self.urgent]
        resting = [*offered, *parked, *waiting, *held]
        assert len({id(record) for record in resting}) == len(resting), "a record is in two places"
        assert not any(record.partition.is_revoked for record in resting), "a record of a revoked partition is offered"
        heads = [record.lane for record in (*offered, *parked, *held) if record.lane is not None]
        assert len(set(heads)) == len(heads), "a lane has two heads"
        assert set(heads) <= self._waiting.keys()
        assert self._slow_lanes <= self._waiting.keys()
        for partition in self.partitions.values():
            mine = [record for record in resting if record.partition is partition]
            flying = partition.records - len(mine) - partition.aside
            ready = sum(record.partition is partition for record in offered)
            assert flying >= 0
            assert partition.active == ready + flying <= partition.limit
            assert not partition.held or partition.active == partition.limit
            slow = sum(record.partition is partition for record in parked) + partition.aside
            slow += sum(r.partition is partition and r.lane in self._slow_lanes for r in waiting)
            assert partition.slow == slow, f"slow is {partition.slow}, not {slow}"
            records = partition.tracker.unfinished.values()
            assert partition.size == sum(record.size for record in records)
