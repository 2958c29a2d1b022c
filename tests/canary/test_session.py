"""The threads of a session, with clients in memory: none waits for another, and nothing goes uncounted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

import pytest
from prometheus_client.parser import text_string_to_metric_families

from canary_image.probe import Probe
from canary_image.session import Session
from canary_image.telemetry import Telemetry
from eventing.program_config import CanaryConfig
from tests.fakes.canary_kafka import FakeKafka

INTERVAL_MS = 100


class Running:
    """A session over a fake cluster, and its numbers."""

    def __init__(self, kafka: FakeKafka, probe: Probe | None = None) -> None:
        self.kafka = kafka
        self.config = CanaryConfig(client_id="me", reconcile_interval_ms=INTERVAL_MS)
        self.telemetry = Telemetry()
        self.probe = probe or Probe(self.config, self.telemetry)
        visit = lambda brokers: {broker.id for broker in brokers if broker.id in kafka.dead or kafka.away}  # noqa: E731
        self.session = Session(kafka, visit, self.probe, self.telemetry, self.config)

    def __enter__(self) -> Self:
        self.session.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.session.is_alive(), "no thread may end by itself"
        self.session.stop()

    def count(self, name: str, **labels: str) -> float:
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.telemetry.exposition().decode())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def consumed(self, partition: int) -> float:
        return self.count("strimzi_canary_records_consumed_total", partition=str(partition))

    def failed(self, partition: int) -> float:
        return self.count("strimzi_canary_records_produced_failed_total", partition=str(partition))


def eventually(fact: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not fact():
        assert time.monotonic() < deadline, "it did not come true"
        pause.wait(0.01)


@pytest.fixture
def running():
    with Running(FakeKafka(3)) as running:
        yield running


def test_every_partition_comes_back(running):
    eventually(lambda: all(running.consumed(partition) >= 2 for partition in range(3)))

    assert running.probe.is_ready(time.monotonic())
    assert running.count("sluice_canary_probes_total", result="failed") == 0


def test_the_consumer_reads_a_partition_before_the_first_record_is_sent(running):
    eventually(lambda: running.consumed(2) >= 1)

    assert running.kafka.sent_while_unassigned == []


def test_records_that_were_there_before_are_not_read():
    kafka = FakeKafka(1)
    for _ in range(5):
        kafka.write(0, b"old")
    with Running(kafka) as running:
        eventually(lambda: running.consumed(0) >= 1)

        assert running.count("sluice_canary_records_foreign_total") == 0


def test_a_dead_broker_fails_its_own_partition_alone_and_each_attempt_is_counted(running):
    eventually(lambda: running.consumed(2) >= 1)
    running.kafka.kill(2)
    before = running.consumed(0)
    eventually(lambda: running.failed(2) >= 3)

    assert running.consumed(0) >= before + 2
    assert running.failed(0) == running.failed(1) == 0


def test_what_was_given_up_is_not_written_after_all(running):
    eventually(lambda: running.consumed(2) >= 1)
    running.kafka.kill(2)
    eventually(lambda: running.kafka.dropped_unsent >= 2)

    assert running.failed(2) >= 2


def test_a_new_leader_is_followed_and_the_clients_are_told(running):
    eventually(lambda: running.consumed(2) >= 1)
    running.kafka.kill(2)
    eventually(lambda: running.failed(2) >= 1)
    running.kafka.leaders[2] = 0
    before = running.consumed(2)
    eventually(lambda: running.consumed(2) >= before + 2)

    assert set(running.kafka.refreshed) == {"producer", "consumer"}
    assert running.count("sluice_canary_probes_total", partition="2", brokerid="0", result="succeeded") >= 1


def test_a_new_partition_is_probed_by_itself():
    kafka = FakeKafka(3, partitions=2)
    with Running(kafka) as running:
        eventually(lambda: running.consumed(0) >= 1)
        kafka.leaders.append(2)
        eventually(lambda: running.consumed(2) >= 1)

        assert kafka.sent_while_unassigned == []


def test_a_partition_without_leader_at_the_start_fails_and_joins_when_it_has_one():
    kafka = FakeKafka(3)
    kafka.leaders[1] = -1
    with Running(kafka) as running:
        eventually(lambda: running.failed(1) >= 2 and running.consumed(0) >= 1)
        kafka.leaders[1] = 1
        eventually(lambda: running.consumed(1) >= 1)

        assert running.count("sluice_canary_records_lost_total") == 0


def test_an_outage_of_all_is_counted_and_ends_by_itself(running):
    eventually(lambda: running.consumed(0) >= 1)
    running.kafka.away = True
    eventually(lambda: all(running.failed(partition) >= 3 for partition in range(3)))

    assert running.count("strimzi_canary_topic_describe_cluster_error_total") >= 1

    running.kafka.away = False
    before = running.consumed(0)
    eventually(lambda: running.consumed(0) >= before + 2)


def test_a_cluster_that_refuses_to_describe_the_topic_is_counted_by_topic(running):
    running.kafka.refuses = "not authorized"
    eventually(lambda: running.count("strimzi_canary_topic_describe_error_total", topic="__strimzi_canary") >= 1)


def test_consumer_errors_are_counted(running):
    running.kafka.report_error("something broke")
    eventually(lambda: running.count("strimzi_canary_consumer_error_total") == 1)


def test_commits_are_counted_and_timed_by_coordinator(running):
    eventually(lambda: running.count("sluice_canary_offset_commit_latency_seconds_count", coordinator="0") >= 1)

    assert running.count("sluice_canary_offset_commits_failed_total") == 0

    running.kafka.no_commits = "coordinator is loading"
    eventually(lambda: running.count("sluice_canary_offset_commits_failed_total", coordinator="0") >= 1)


def test_the_next_session_goes_on_where_the_last_one_stopped_reading():
    kafka = FakeKafka(1)
    with Running(kafka) as first:
        eventually(lambda: first.consumed(0) >= 1)
    assert kafka.closed
    position = first.probe.positions()[0]
    kafka.assigned.clear()
    with Running(kafka, first.probe):
        eventually(lambda: 0 in kafka.assigned)

        assert kafka.assigned[0] >= position
        eventually(lambda: first.consumed(0) >= 3)


def test_a_loop_that_fails_unexpectedly_goes_on(running):
    eventually(lambda: running.consumed(0) >= 1)
    working, running.kafka.describe = running.kafka.describe, lambda: 1 / 0
    eventually(lambda: running.kafka.describe is not working)
    running.kafka.describe = working
    before = running.consumed(0)
    eventually(lambda: running.consumed(0) >= before + 1)
