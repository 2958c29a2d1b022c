"""One subscription at work: its records (`lanes`), its Kafka side (`consumer`), its destinations (`sender`).

Everything here runs on the event loop. What is decided is decided in the pure parts; this module carries it out:

    feed ─▶ on_polled ─▶ lanes ─▶ take ─▶ sender ─▶ settle ─▶ next_step ─▶ finished | parked | reply | sink | topic
                           ▲                                                            │
                           └──────────────── release_due, when a retry is due ◀─────────┘

The subscriber's `take` and `settle` are the hot path: called once for each event, they do no more than they must.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dispatcher_image.consumer import Assignment, CommitEntry, Listener
from dispatcher_image.dead_letters import DeadLetter, DeadLetters
from dispatcher_image.delivery import (
    START,
    Answer,
    Fate,
    NoAnswer,
    Outcome,
    Progress,
    Send,
    Settle,
    Stage,
    Step,
    Terms,
    Wait,
    discard,
    error_attributes,
    fate_in_topic,
    next_step,
    terms_of,
)
from dispatcher_image.lanes import Lanes, Message, Partition, Record
from dispatcher_image.offsets import EMPTY_MAP, decode
from dispatcher_image.rendering import render
from dispatcher_image.sender import OpenSender, Request, Sender, Target, parse_target
from dispatcher_image.telemetry import BOUNDS, Stats
from eventing import metrics
from eventing.channels import KafkaChannel, Subscriber, dead_letter_topic
from eventing.cloudevents import Undecodable, binary_record, with_attributes
from eventing.metrics import Metric

TOPIC_RETRY_FIRST_S: Final = 1.0
TOPIC_RETRY_LONGEST_S: Final = 60.0
"""Waits between attempts to write a dead letter; there is no last one, a record is never given up."""
LOG_FAILURES_EVERY_S: Final = 5.0
"""Failing deliveries are logged at most so often for each subscription; all of them are counted."""

log = logging.getLogger(__name__)
monotonic = time.monotonic


@dataclass(slots=True)
class _Drain:
    """Partitions that were revoked while something of them was in flight."""

    partitions: list[Partition]
    done: Callable[[list[CommitEntry]], None]
    deadline: asyncio.TimerHandle | None = None


class _StageWork:
    """`sender.Work` of the reply URI or of the dead letter sink; few records come here."""

    def __init__(self, subscription: Subscription, stage: Stage) -> None:
        self._subscription = subscription
        self._stage = stage
        self.queue: deque[Record] = deque()

    def take(self) -> Request | None:
        while self.queue:
            record = self.queue.popleft()
            request = self._subscription.request_for(record, self._stage)
            if request is not None:
                return request
        return None

    def settle(self, token: Any, outcome: Outcome, started: float, now: float) -> None:  # noqa: ARG002  # a Work
        self._subscription.settle_stage(token, outcome, now)


class Subscription(Listener):
    """What happens to the events of one subscriber. Also its `sender.Work` and its `telemetry.Observed`."""

    def __init__(
        self,
        channel: KafkaChannel,
        subscriber: Subscriber,
        *,
        topic: str,
        client_name: str,
        in_flight_limit: int,
        open_sender: OpenSender,
        dead_letters: DeadLetters,
    ) -> None:
        self.namespace = channel.namespace
        self.channel = channel.name
        self.uid = subscriber.uid
        self.generation = subscriber.generation
        self.topic = topic
        self.client_name = client_name
        self.stats = Stats()
        self.lanes = Lanes(channel.order, in_flight_limit)
        self.terms: Terms = terms_of(channel, subscriber)
        self.state = "starting"
        self.reason = ""
        self.taken = 0
        """Messages taken in, for the feed's account of what is on its way."""
        self.connections_limit = in_flight_limit
        self.last_failure: str | None = None
        self._open_sender = open_sender
        self._dead_letters = dead_letters
        self._loop = asyncio.get_running_loop()
        self._drains: list[_Drain] = []
        self._retry_timer: asyncio.TimerHandle | None = None
        self._retry_at = 0.0
        self._wall_offset = time.time() - monotonic()
        self._dirty_since: float | None = None
        self._ends: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._forgotten: dict[int, int] = {}
        self._partition_count = 0
        self._logged_at = 0.0
        self._failures_unlogged = 0
        self._works = {stage: _StageWork(self, stage) for stage in (Stage.REPLY, Stage.SINK)}
        self._targets = _targets(self.terms, channel, subscriber)
        self._senders: dict[Stage, Sender] = {}
        self._retired: list[Sender] = []
        self._sender: Sender = self._opened(Stage.SUBSCRIBER)

    # --- the hot path: sender.Work of the subscriber -----------------------------------------------------------------

    def take(self) -> Request | None:
        """The next record that is ready, as a request."""
        while (record := self.lanes.next()) is not None:
            if record.progress is not START and record.progress.stage is not Stage.SUBSCRIBER:
                self._send_on(record)  # its retry, at the sink, was due
                continue
            message = record.message
            event = render(message.headers(), message.value())
            if not isinstance(event, Undecodable):
                return record, event[0], event[1]
            self._discard(record, event)
        return None

    def settle(self, token: Any, outcome: Outcome, started: float, now: float) -> None:
        """An attempt at the subscriber has ended."""
        record: Record = token
        stats = self.stats
        seconds = now - started
        stats.attempt.counts[bisect_left(BOUNDS, seconds)] += 1
        stats.attempt.total += seconds
        if (
            type(outcome) is Answer
            and 200 <= outcome.status < 300
            and (not outcome.may_be_event or self.terms.reply_url is None or outcome.status == 202)
        ):
            self.lanes.finish(record)
            stats.delivered_at_once += 1
            seconds = started - record.polled_at
            stats.queue.counts[bisect_left(BOUNDS, seconds)] += 1
            stats.queue.total += seconds
            seconds = now + self._wall_offset - record.message.timestamp()[1] * 0.001
            stats.end_to_end.counts[bisect_left(BOUNDS, seconds)] += 1
            stats.end_to_end.total += seconds
        else:
            stats.count(Stage.SUBSCRIBER, outcome)
            stats.queue.observe(started - record.polled_at)
            self._do(record, self._next(record, outcome, now), now)
        if self._drains:
            self._end_drains()

    # --- other stages ------------------------------------------------------------------------------------------------

    def request_for(self, record: Record, stage: Stage) -> Request | None:
        """A record as a request to the reply URI or the sink; None when it went another way."""
        if record.partition.is_revoked:
            self.lanes.abandon(record)
            self._sender.kick()
            self._end_drains()
            return None
        progress = record.progress
        if stage is Stage.REPLY:
            assert progress.reply is not None
            return record, *progress.reply
        message = record.message
        decoded = binary_record(message.headers(), message.value())
        assert progress.failure is not None
        if isinstance(decoded, Undecodable):  # it was decodable when it was sent to the subscriber
            self._discard(record, decoded)
            return None
        event = render(with_attributes(decoded.headers, error_attributes(progress.failure)), decoded.value)
        if isinstance(event, Undecodable):
            self._discard(record, event)
            return None
        return record, *event

    def settle_stage(self, record: Record, outcome: Outcome, now: float) -> None:
        """An attempt at the reply URI or the sink has ended."""
        self.stats.count(record.progress.stage, outcome)
        self._do(record, self._next(record, outcome, now), now)
        self._sender.kick()  # the next record of its lane may be ready
        if self._drains:
            self._end_drains()

    def _next(self, record: Record, outcome: Outcome, now: float) -> Step:
        step = next_step(self.terms, record.progress, outcome, wall_clock_s=now + self._wall_offset)
        if isinstance(outcome, NoAnswer) or outcome.status >= 300 or outcome.status < 200:
            self._log_failure(record, outcome, step, now)
        return step

    def _do(self, record: Record, step: Step, now: float) -> None:
        """Carry a decision out. The record is in flight, as the lanes see it."""
        if isinstance(step, Settle):
            self.stats.fates[step.fate] += 1
            if step.fate is Fate.DROPPED:
                log.error(
                    "dispatch.dropped subscription=%s topic=%s partition=%d offset=%d reason=%s",
                    self.uid, self.topic, record.partition.number, record.offset, "the dead-letter topic is disabled",
                )  # fmt: skip
            self.lanes.finish(record)
            if step.fate is Fate.DELIVERED:
                self.stats.end_to_end.observe(now + self._wall_offset - record.message.timestamp()[1] * 0.001)
            return
        record.progress = step.progress
        record.partition.tracker.attempts[record.offset] = step.progress.as_attempts()
        if isinstance(step, Wait):
            self.stats.retries += 1
            self.lanes.park(record, now + step.seconds)
            self._arm_retry()
        elif isinstance(step, Send):
            self._send_on(record)

    def _send_on(self, record: Record) -> None:
        """Bring a record to the stage that its progress names."""
        progress = record.progress
        stage = progress.stage
        if stage is Stage.SINK and self.terms.sink_url is None:
            stage = Stage.TOPIC  # the sink was taken away meanwhile
            record.progress = Progress(
                stage=stage, attempts=progress.attempts, sink_attempts=progress.sink_attempts, failure=progress.failure
            )
        if stage is Stage.TOPIC:
            self.lanes.set_aside(record)
            self._write_dead_letter(record, TOPIC_RETRY_FIRST_S)
            return
        if stage is Stage.REPLY and self.terms.reply_url is None:
            self._do(record, Settle(Fate.DELIVERED), monotonic())  # a reply without a reply URI goes nowhere
            return
        self._works[stage].queue.append(record)
        (self._senders.get(stage) or self._opened(stage)).kick()

    def _discard(self, record: Record, problem: Undecodable) -> None:
        log.warning(
            "dispatch.discarded subscription=%s topic=%s partition=%d offset=%d reason=%r",
            self.uid, self.topic, record.partition.number, record.offset, problem.reason,
        )  # fmt: skip
        self._do(record, discard(self.terms, problem.reason), monotonic())

    def _write_dead_letter(self, record: Record, wait_s: float) -> None:
        failure = record.progress.failure
        assert failure is not None, "only what failed becomes a dead letter"

        def done(error: str | None) -> None:
            if error is None:
                self.stats.fates[fate_in_topic(record.progress)] += 1
                self.lanes.finish_aside(record)
            elif record.partition.is_revoked:
                self.lanes.abandon_aside(record)
            else:
                log.error(
                    "dispatch.dead_letter_unwritten subscription=%s topic=%s partition=%d offset=%d retry_in=%g"
                    " reason=%r",
                    self.uid, self.topic, record.partition.number, record.offset, wait_s, error,
                )  # fmt: skip
                self.last_failure = f"dead-letter topic: {error}"
                self._loop.call_later(wait_s, again)
                return
            self._sender.kick()
            self._end_drains()

        def again() -> None:
            if record.partition.is_revoked:
                done("revoked")
            elif not self.terms.topic_enabled:
                self.stats.fates[Fate.DROPPED] += 1
                self.lanes.finish_aside(record)
                self._sender.kick()
            else:
                self._write_dead_letter(record, min(2 * wait_s, TOPIC_RETRY_LONGEST_S))

        letter = DeadLetter(record.message, failure, topic=self.topic, subscription=self.uid)
        self._dead_letters.write(dead_letter_topic(self.topic), record.partition.number, letter, done)

    def _arm_retry(self) -> None:
        due = self.lanes.next_due
        if due is None or (self._retry_timer is not None and self._retry_at <= due):
            return
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._retry_at = due
        self._retry_timer = self._loop.call_later(max(0.0, due - monotonic()), self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        # A millisecond of tolerance: the loop's clock is that coarse, and a retry too early is better than a spin.
        if self.lanes.release_due(monotonic() + 0.001):
            self._sender.kick()
        self._arm_retry()

    # --- consumer.Listener -------------------------------------------------------------------------------------------

    def on_assigned(self, assignments: Sequence[Assignment], partition_count: int) -> None:
        self._partition_count = max(self._partition_count, partition_count)
        if assignments:
            self.stats.rebalances["assigned"] += 1
        for assignment in assignments:
            self._begin(assignment)
        self._set_limits()
        log.info(
            "dispatch.assigned subscription=%s topic=%s offsets=%s",
            self.uid, self.topic, {a.number: a.offset for a in assignments},
        )  # fmt: skip

    def _begin(self, assignment: Assignment) -> None:
        number, epoch, offset, metadata = assignment
        self._retire_counts(self.lanes.revoke([number]))
        known = decode(offset, metadata)
        if isinstance(known, str):
            log.warning(
                "dispatch.metadata_ignored subscription=%s partition=%d offset=%d reason=%r (records above it may be"
                " delivered again)", self.uid, number, offset, known,
            )  # fmt: skip
            known = EMPTY_MAP
        self.lanes.assign(number, epoch, offset, known)
        self._committed[number] = offset

    def on_polled(self, messages: Sequence[Message]) -> None:
        self.taken += len(messages)
        self.lanes.intake(messages, monotonic(), self._resume)
        self._sender.kick()

    def _resume(self, attempts: Any) -> Progress:
        return Progress.from_attempts(attempts, self.terms)

    def on_revoked(self, numbers: Sequence[int], within_s: float, done: Callable[[list[CommitEntry]], None]) -> None:
        self.stats.rebalances["revoked"] += 1
        partitions = self.lanes.revoke(numbers)
        self._retire_counts(partitions)
        log.info("dispatch.revoked subscription=%s partitions=%s", self.uid, list(numbers))
        drain = _Drain(partitions, done)
        drain.deadline = self._loop.call_later(within_s, self._end_drain, drain)
        self._drains.append(drain)
        self._sender.kick()  # records of other partitions may have become the heads of their lanes
        for work in self._works.values():
            waiting = [record for record in work.queue if record.partition.is_revoked]
            for record in waiting:
                work.queue.remove(record)
                self.lanes.abandon(record)
        self._end_drains()
        self._set_limits()

    def _end_drains(self) -> None:
        for drain in [*self._drains]:
            if all(partition.is_idle for partition in drain.partitions):
                self._end_drain(drain)

    def _end_drain(self, drain: _Drain) -> None:
        if drain not in self._drains:
            return
        self._drains.remove(drain)
        if drain.deadline is not None:
            drain.deadline.cancel()
        unanswered = sum(partition.active + partition.aside for partition in drain.partitions)
        if unanswered:
            log.warning("dispatch.drain_timed_out subscription=%s in_flight=%d", self.uid, unanswered)
        entries = [CommitEntry(p.number, p.epoch, commit) for p in drain.partitions if (commit := p.tracker.commit())]
        drain.done(entries)

    def on_lost(self, numbers: Sequence[int]) -> None:
        self.stats.rebalances["lost"] += 1
        self._retire_counts(self.lanes.revoke(numbers))
        self._set_limits()
        self._sender.kick()

    def on_expired(self, assignment: Assignment, lost: int) -> None:
        self.stats.expired += lost
        self._begin(assignment)
        self._sender.kick()

    def on_committed(self, entries: Sequence[CommitEntry], error: str | None) -> None:
        if error is not None:
            self.stats.commits["failed"] += 1
            log.warning("dispatch.commit_failed subscription=%s reason=%r", self.uid, error)
            return
        self.stats.commits["succeeded"] += 1
        self._dirty_since = None
        for number, epoch, commit in entries:
            self._committed[number] = commit.offset
            self._forgotten[number] = commit.forgotten
            partition = self.lanes.partitions.get(number)
            if partition is not None and partition.epoch == epoch:
                partition.tracker.committed(commit)

    def on_end_offsets(self, ends: Mapping[int, int]) -> None:
        self._ends = dict(ends)

    def on_state(self, state: str, reason: str) -> None:
        if state != self.state or (reason and not self.reason):  # a client that is cut off finds many words for it
            log.info("dispatch.state subscription=%s state=%s reason=%r", self.uid, state, reason)
        self.state = state
        self.reason = reason

    # --- used by dispatch --------------------------------------------------------------------------------------------

    def commits(self) -> list[CommitEntry]:
        """What should be committed now and is not."""
        self._wall_offset = time.time() - monotonic()  # the wall clock may have been set meanwhile
        entries = []
        for number, partition in self.lanes.partitions.items():
            commit = partition.tracker.uncommitted()
            if commit is not None:
                entries.append(CommitEntry(number, partition.epoch, commit))
        if entries and self._dirty_since is None:
            self._dirty_since = monotonic()
        return entries

    def update(self, channel: KafkaChannel, subscriber: Subscriber) -> None:
        """Take changed options over: what is in flight ends under the old ones, everything after under the new."""
        self.generation = subscriber.generation
        terms, targets = terms_of(channel, subscriber), _targets(terms_of(channel, subscriber), channel, subscriber)
        old_terms, self.terms = self.terms, terms
        old_targets, self._targets = self._targets, targets
        for stage in (Stage.SUBSCRIBER, Stage.REPLY, Stage.SINK):
            if old_targets.get(stage) == targets.get(stage) and old_terms.timeout_s == terms.timeout_s:
                continue
            sender = self._senders.pop(stage, None)
            if sender is not None:
                sender.retire()
                self._retired = [old for old in self._retired if old.connections] + [sender]
        self._sender = self._senders.get(Stage.SUBSCRIBER) or self._opened(Stage.SUBSCRIBER)
        for work in self._works.values():
            waiting, work.queue = work.queue, deque()
            for record in waiting:
                self._send_on(record)
        self._sender.kick()

    def abort(self) -> None:
        """Close all connections; what is under way is left to whoever has the partitions next."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        for sender in (*self._senders.values(), *self._retired):
            sender.abort()

    @property
    def is_ready(self) -> bool:
        """True when its offsets are set and its group is stable."""
        return self.state == "stable"

    @property
    def in_flight(self) -> int:
        return sum(sender.in_flight for sender in (*self._senders.values(), *self._retired))

    def status(self) -> dict[str, Any]:
        """For people and for `/subscriptions`."""
        partitions = self.lanes.partitions
        return {
            "uid": self.uid,
            "observedGeneration": self.generation,
            "ready": self.is_ready,
            "state": self.state,
            "reason": self.reason,
            "topic": self.topic,
            "subscriberUri": self.terms.subscriber_url,
            "partitions": sorted(partitions),
            "committed": {str(number): self._committed.get(number) for number in sorted(partitions)},
            "inFlight": self.in_flight,
            "buffered": sum(p.records for p in partitions.values()),
            "parked": self.lanes.parked,
            "delivered": self.stats.delivered_at_once + self.stats.fates[Fate.DELIVERED],
            "lastFailure": self.last_failure,
        }

    # --- telemetry.Observed ------------------------------------------------------------------------------------------

    paused: Callable[[], int] = staticmethod(lambda: 0)

    def consumed(self) -> Mapping[int, int]:
        counts = dict.fromkeys(range(self._partition_count), 0) | self.stats.consumed
        for number, partition in self.lanes.partitions.items():
            counts[number] = counts.get(number, 0) + partition.polled
        return counts

    def _retire_counts(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self.stats.consumed[partition.number] = self.stats.consumed.get(partition.number, 0) + partition.polled

    def gauges(self) -> Iterable[tuple[Metric, float]]:
        partitions = self.lanes.partitions
        yield metrics.DISPATCHER_IN_FLIGHT, self.in_flight
        yield metrics.DISPATCHER_CONNECTIONS, sum(s.connections for s in (*self._senders.values(), *self._retired))
        yield metrics.DISPATCHER_BUFFERED, sum(p.records for p in partitions.values())
        yield metrics.DISPATCHER_BUFFERED_BYTES, sum(p.size for p in partitions.values())
        yield metrics.DISPATCHER_PARKED, self.lanes.parked
        yield metrics.DISPATCHER_ASSIGNED, len(partitions)
        yield metrics.DISPATCHER_PAUSED, self.paused()
        yield metrics.DISPATCHER_COMMIT_AGE, 0.0 if self._dirty_since is None else monotonic() - self._dirty_since
        yield metrics.DISPATCHER_FORGOTTEN, sum(self._forgotten.get(number, 0) for number in partitions)
        yield metrics.DISPATCHER_SUBSCRIPTION_READY, int(self.is_ready)
        if partitions.keys() <= self._ends.keys():
            ends = self._ends
            unread = sum(max(0, ends[n] - p.tracker.next_polled) + p.records for n, p in partitions.items())
            yield metrics.DISPATCHER_BACKLOG, unread
            yield metrics.DISPATCHER_LAG, sum(max(0, ends[n] - self._committed.get(n, 0)) for n in partitions)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _opened(self, stage: Stage) -> Sender:
        work = self if stage is Stage.SUBSCRIBER else self._works[stage]
        sender = self._open_sender(self._targets[stage], work, self.terms.timeout_s, self.connections_limit)
        self._senders[stage] = sender
        return sender

    def _set_limits(self) -> None:
        self.connections_limit = self.lanes.in_flight_limit * max(1, len(self.lanes.partitions))
        for sender in self._senders.values():
            sender.set_limit(self.connections_limit)

    def _log_failure(self, record: Record, outcome: Outcome, step: Step, now: float) -> None:
        reason = outcome.reason if isinstance(outcome, NoAnswer) else f"status {outcome.status}"
        stage = record.progress.stage
        self.last_failure = f"{self._targets[stage].url if stage in self._targets else stage.name}: {reason}"
        if now - self._logged_at < LOG_FAILURES_EVERY_S:
            self._failures_unlogged += 1
            return
        follows = f"retry in {step.seconds:g} s" if isinstance(step, Wait) else type(step).__name__.lower()
        if isinstance(step, Send):
            follows = step.progress.stage.name.lower()
        log.warning(
            "dispatch.attempt_failed subscription=%s stage=%s partition=%d offset=%d attempt=%d reason=%r next=%r"
            " unlogged=%d",
            self.uid, stage.name.lower(), record.partition.number, record.offset, record.progress.attempts + 1,
            reason, follows, self._failures_unlogged,
        )  # fmt: skip
        self._logged_at = now
        self._failures_unlogged = 0


def _targets(terms: Terms, channel: KafkaChannel, subscriber: Subscriber) -> dict[Stage, Target]:
    """The destinations of a subscription, parsed."""
    delivery = channel.effective_delivery(subscriber)
    is_reply_only = subscriber.subscriber_uri is None
    targets = {
        Stage.SUBSCRIBER: parse_target(
            terms.subscriber_url,
            prefer_reply=not is_reply_only,
            ca_pem=subscriber.reply_ca_certs if is_reply_only else subscriber.subscriber_ca_certs,
        )
    }
    if terms.reply_url is not None:
        targets[Stage.REPLY] = parse_target(terms.reply_url, prefer_reply=False, ca_pem=subscriber.reply_ca_certs)
    if terms.sink_url is not None:
        targets[Stage.SINK] = parse_target(terms.sink_url, prefer_reply=False, ca_pem=delivery.dead_letter_ca_certs)
    return targets
