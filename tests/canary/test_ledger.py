"""What became of every record: one verdict each, whatever the order of events."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from canary_image.ledger import (
    Acknowledged,
    Arrived,
    Duplicated,
    Failed,
    Foreign,
    ForeignReason,
    Ledger,
    Lost,
    Reread,
    Sent,
    Verdict,
)
from canary_image.payload import Payload

ME = "canary-a"
LIMIT = 20.0


@pytest.fixture
def ledger():
    return Ledger(ME, limit=LIMIT, memory=200.0)


def send(ledger: Ledger, *, now: float = 0.0, partition: int = 3, blamed: int = 1) -> Sent:
    return ledger.send(partition, blamed=blamed, timestamp_ms=1_000, now=now)


def payload(record: Sent, **changed) -> Payload:
    return Payload(**({"producer_id": ME, "message_id": record.message_id, "timestamp_ms": 1_000} | changed))


def test_ids_start_at_one_and_grow_by_one_over_all_partitions(ledger):
    assert [send(ledger, partition=p).message_id for p in (0, 1, 2, 0)] == [1, 2, 3, 4]


def test_a_record_back_in_time_succeeded(ledger):
    record = send(ledger)

    assert ledger.acknowledged(1, now=0.004) == Acknowledged(record, pytest.approx(0.004))
    assert ledger.received(3, 77, payload(record), now=0.006) == Arrived(
        record, latency_s=0.006, late=False, out_of_order=False, verdict=Verdict.SUCCEEDED
    )
    assert ledger.expire(now=100.0) == []


def test_it_may_come_back_before_its_acknowledgement(ledger):
    record = send(ledger)

    assert ledger.received(3, 77, payload(record), now=0.003).verdict is Verdict.SUCCEEDED
    assert ledger.acknowledged(1, now=0.004).verdict is None


def test_an_acknowledged_record_that_does_not_come_back_is_lost_after_the_limit(ledger):
    record = send(ledger)
    ledger.acknowledged(1, now=0.004)

    assert ledger.expire(now=LIMIT) == [], "the limit itself is in time"
    assert ledger.expire(now=LIMIT + 0.1) == [Lost(record)]
    assert ledger.expire(now=LIMIT + 0.2) == [], "it is lost once"


def test_a_lost_record_that_comes_back_is_late_and_has_no_second_verdict(ledger):
    record = send(ledger)
    ledger.acknowledged(1, now=0.004)
    ledger.expire(now=25.0)

    assert ledger.received(3, 77, payload(record), now=30.0) == Arrived(
        record, latency_s=30.0, late=True, out_of_order=False, verdict=None
    )


def test_a_late_record_is_lost_too_even_when_nobody_called_expire(ledger):
    record = send(ledger)
    ledger.acknowledged(1, now=0.004)

    arrived = ledger.received(3, 77, payload(record), now=30.0)

    assert (arrived.late, arrived.verdict) == (True, Verdict.LOST)
    assert ledger.expire(now=31.0) == []


def test_a_record_that_kafka_refused_failed_and_is_never_lost(ledger):
    record = send(ledger)

    assert ledger.failed(1) == Failed(record, Verdict.FAILED)
    assert ledger.expire(now=100.0) == []


def test_a_failed_record_that_was_written_after_all_counts_as_received_without_a_verdict(ledger):
    record = send(ledger)
    ledger.failed(1)

    arrived = ledger.received(3, 77, payload(record), now=5.0)

    assert (type(arrived), arrived.late, arrived.verdict) == (Arrived, False, None)


def test_only_the_first_outcome_of_sending_counts(ledger):
    send(ledger)
    ledger.failed(1)

    assert ledger.failed(1) is None
    assert ledger.acknowledged(1, now=1.0) is None


def test_an_acknowledgement_after_the_limit_is_a_loss_at_once(ledger):
    send(ledger)

    assert ledger.expire(now=25.0) == [], "the client still owes an outcome"
    assert ledger.acknowledged(1, now=26.0).verdict is Verdict.LOST


def test_the_same_record_at_another_offset_is_a_duplicate_and_at_the_same_a_reread(ledger):
    record = send(ledger)
    ledger.received(3, 77, payload(record), now=1.0)

    assert ledger.received(3, 78, payload(record), now=1.1) == Duplicated(record)
    assert ledger.received(3, 77, payload(record), now=1.2) == Reread(record)


def test_a_record_after_a_later_one_of_its_partition_is_out_of_order(ledger):
    first, other, second = send(ledger), send(ledger, partition=4), send(ledger)

    assert ledger.received(3, 10, payload(second), now=1.0).out_of_order is False
    assert ledger.received(3, 11, payload(first), now=1.0).out_of_order is True
    assert ledger.received(4, 5, payload(other), now=1.0).out_of_order is False


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        pytest.param({"producer_id": "canary-b"}, ForeignReason.OTHER_PRODUCER, id="another canary"),
        pytest.param({"timestamp_ms": 999}, ForeignReason.OTHER_START, id="same id, sent by an earlier start"),
        pytest.param({"message_id": 42}, ForeignReason.OTHER_START, id="an id that was never given"),
    ],
)
def test_foreign_records(ledger, changed, reason):
    record = send(ledger)

    assert ledger.received(3, 77, payload(record, **changed), now=1.0) == Foreign(3, reason)
    assert ledger.received(3, 78, payload(record), now=1.0).verdict is Verdict.SUCCEEDED, "the own one still counts"


def test_an_own_record_in_another_partition_is_foreign(ledger):
    record = send(ledger, partition=3)

    assert ledger.received(4, 77, payload(record), now=1.0) == Foreign(4, ForeignReason.OTHER_START)


def test_an_undecodable_record_is_foreign(ledger):
    assert ledger.received(3, 77, None, now=1.0) == Foreign(3, ForeignReason.UNDECODABLE)


def test_records_without_an_outcome_are_told_oldest_first(ledger):
    first, second, third = (send(ledger, now=now) for now in (0.0, 1.0, 2.0))
    ledger.acknowledged(second.message_id, now=2.0)

    assert ledger.awaiting(now=2.2, longer_than=0.5) == [first]
    assert ledger.awaiting(now=3.0, longer_than=0.5) == [first, third]


def test_memory_is_bounded_by_time(ledger):
    record = send(ledger, now=0.0)
    ledger.received(3, 1, payload(record), now=0.1)
    ledger.expire(now=200.1)

    assert len(ledger) == 0
    assert ledger.received(3, 2, payload(record), now=200.2) == Foreign(3, ForeignReason.OTHER_START)


def test_memory_is_bounded_by_number_and_what_is_pushed_out_gets_its_verdict():
    ledger = Ledger(ME, limit=LIMIT, memory=200.0, capacity=2)
    acknowledged, unanswered, *_ = [send(ledger) for _ in range(4)]
    ledger.acknowledged(1, now=0.0)

    assert ledger.expire(now=0.1) == [Lost(acknowledged), Failed(unanswered, Verdict.FAILED)]
    assert len(ledger) == 2


class LedgerMachine(RuleBasedStateMachine):
    """Any course of events: one verdict for each record, and none in flight in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ledger = Ledger(ME, limit=LIMIT, memory=100.0, capacity=30)
        self.sent: list[Sent] = []
        self.verdicts: Counter[int] = Counter()
        self.offset = 0

    def book(self, record: Sent, verdict: Verdict | None) -> None:
        if verdict is not None:
            self.verdicts[record.message_id] += 1

    @rule(partition=st.integers(0, 2))
    def send(self, partition):
        self.sent.append(self.ledger.send(partition, blamed=0, timestamp_ms=1_000, now=self.now))

    @rule(data=st.data())
    def acknowledge(self, data):
        if self.sent:
            event = self.ledger.acknowledged(data.draw(st.sampled_from(self.sent)).message_id, self.now)
            if event is not None:
                self.book(event.record, event.verdict)

    @rule(data=st.data())
    def fail(self, data):
        if self.sent:
            event = self.ledger.failed(data.draw(st.sampled_from(self.sent)).message_id)
            if event is not None:
                self.book(event.record, event.verdict)

    @rule(data=st.data())
    def receive(self, data):
        if self.sent:
            record = data.draw(st.sampled_from(self.sent))
            self.offset += 1
            event = self.ledger.received(record.partition, self.offset, payload(record), self.now)
            if isinstance(event, Arrived):
                self.book(event.record, event.verdict)

    @rule(seconds=st.floats(0, 60))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def expire(self):
        for event in self.ledger.expire(self.now):
            self.book(event.record, Verdict.LOST if isinstance(event, Lost) else event.verdict)

    @invariant()
    def no_record_has_two_verdicts(self):
        assert all(count == 1 for count in self.verdicts.values())

    @invariant()
    def in_flight_is_what_has_no_verdict(self):
        undecided = sum(self.ledger.in_flight(partition) for partition in range(3))
        assert undecided == len(self.sent) - len(self.verdicts)

    def teardown(self):
        self.now += 1000.0
        self.expire()
        assert set(self.verdicts) == {record.message_id for record in self.sent}
        assert len(self.ledger) == 0


TestAnyCourseOfEvents = LedgerMachine.TestCase


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.lists(st.floats(0, 300), max_size=10))
def test_the_verdict_does_not_depend_on_how_often_expire_is_called(arrivals, looks):
    """Records sent together, received after so many seconds: in time or lost, by that alone."""
    ledger = Ledger(ME, limit=LIMIT, memory=1000.0)
    records = [send(ledger, partition=0) for _ in arrivals]
    for record in records:
        ledger.acknowledged(record.message_id, now=0.0)
    lost = 0
    succeeded = 0
    course = [(when, 0, None) for when in looks] + [(when, 1, r) for when, r in zip(arrivals, records, strict=True)]
    course.sort(key=lambda event: event[:2])
    for offset, (now, _, record) in enumerate(course):
        if record is None:
            lost += len(ledger.expire(now))
        else:
            verdict = ledger.received(0, offset, payload(record), now).verdict
            lost += verdict is Verdict.LOST
            succeeded += verdict is Verdict.SUCCEEDED

    assert (succeeded, lost) == (sum(w <= LIMIT for w in arrivals), sum(w > LIMIT for w in arrivals))
