"""The canary without its clients: attempts, verdicts, series, readiness and status."""

from __future__ import annotations

import json
import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from canary_image.coverage import Broker, ClusterView, Partition
from canary_image.probe import NOT_WATCHED, Probe
from canary_image.telemetry import Telemetry
from eventing.program_config import CanaryConfig

WALL = 1_800_000_000.0


def view(*leaders: int, brokers: int = 3, replicas: list[tuple[int, ...]] | None = None) -> ClusterView:
    """Partition n is there to prove broker n; `leaders` says who leads."""
    return ClusterView(
        tuple(Broker(number, "localhost", 9092 + number) for number in range(brokers)),
        tuple(
            Partition(number, replicas[number] if replicas else (number, (number + 1) % 3), leader)
            for number, leader in enumerate(leaders)
        ),
    )


class World:
    """A probe with its series, and a clock in the test's hand."""

    def __init__(self, **config) -> None:
        self.config = CanaryConfig(client_id="me", reconcile_interval_ms=1000, **config)
        self.telemetry = Telemetry()
        self.probe = Probe(self.config, self.telemetry)
        self.now = 100.0
        self.offset = 0

    def watch(self, seen: ClusterView) -> None:
        for target in self.probe.observe(seen).unwatched:
            self.probe.watched(target.partition, 0)

    def round(self):
        return self.probe.round(self.now, WALL)

    def bring_back(self, outgoing) -> None:
        self.probe.acknowledged(outgoing.message_id, self.now, WALL)
        self.offset += 1
        self.probe.received(outgoing.partition, self.offset, outgoing.value, self.now, WALL)

    def series(self, name: str) -> dict[str, float]:
        """Values by the labels that say something, joined by a comma."""
        self.probe.refresh_gauges(self.now)
        return {
            ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k != "clientid"): sample.value
            for family in text_string_to_metric_families(self.telemetry.exposition().decode())
            for sample in family.samples
            if sample.name == name
        }


@pytest.fixture
def world():
    world = World()
    world.watch(view(0, 1, 2))
    return world


def test_what_the_configuration_names_exists_from_the_start_with_zero():
    world = World()

    for name in (
        "client_creation_error",
        "expected_cluster_size_error",
        "topic_describe_cluster_error",
        "producer_refresh_metadata_error",
        "consumer_error",
        "consumer_timeout_join_group",
        "consumer_refresh_metadata_error",
    ):
        assert world.series(f"strimzi_canary_{name}_total") == {"": 0}
    for name in ("creation_failed", "describe_error", "alter_assignments_error", "alter_configuration_error"):
        assert world.series(f"strimzi_canary_topic_{name}_total") == {"topic=__strimzi_canary": 0}


def test_what_belongs_to_partitions_and_brokers_exists_from_when_they_are_known(world):
    for name in ("records_produced", "records_produced_failed", "records_consumed"):
        assert world.series(f"strimzi_canary_{name}_total") == {f"partition={p}": 0 for p in range(3)}
    for name in ("records_produced_latency_count", "records_consumed_latency_count"):
        assert world.series(f"strimzi_canary_{name}") == {f"partition={p}": 0 for p in range(3)}
    assert world.series("strimzi_canary_connection_total") == {
        f"brokerid={b},connected={c}": 0 for b in range(3) for c in ("true", "false")
    }
    assert world.series("sluice_canary_records_lost_total") == {f"brokerid={p},partition={p}": 0 for p in range(3)}
    assert len(world.series("sluice_canary_probes_total")) == 9


def test_a_round_sends_one_record_to_every_probed_partition_and_counts_the_attempts(world):
    outgoing = world.round()

    assert [o.partition for o in outgoing] == [0, 1, 2]
    assert [json.loads(o.value)["messageId"] for o in outgoing] == [1, 2, 3]
    assert json.loads(outgoing[0].value) == {"producerId": "me", "messageId": 1, "timestamp": int(WALL * 1000)}
    assert world.series("strimzi_canary_records_produced_total") == {f"partition={p}": 1 for p in range(3)}
    assert world.series("sluice_canary_records_in_flight") == {f"partition={p}": 1 for p in range(3)}


def test_orphans_are_not_probed_unless_asked_for():
    replicas = [(0, 1), (1, 0), (0, 1)]
    for probe_orphans, expected in ((False, [0, 1]), (True, [0, 1, 2])):
        world = World(probe_orphans=probe_orphans)
        world.watch(view(0, 1, 0, brokers=2, replicas=replicas))

        assert [o.partition for o in world.round()] == expected


def test_the_record_size_is_configurable():
    world = World(record_size_bytes=5000)
    world.watch(view(0))

    assert len(world.round()[0].value) == 5000


def test_nothing_is_sent_before_the_end_of_a_partition_was_looked_for():
    world = World()
    world.probe.observe(view(0, 1))

    assert world.round() == []
    assert not world.probe.is_primed()

    world.probe.watched(0, 0)
    world.probe.unwatchable(1)

    assert world.probe.is_primed()
    assert [o.partition for o in world.round()] == [0]
    assert world.series("strimzi_canary_records_produced_total") == {"partition=0": 1, "partition=1": 1}
    assert world.series("strimzi_canary_records_produced_failed_total") == {"partition=0": 0, "partition=1": 1}


def test_an_absent_topic_leaves_the_known_partitions_probed(world):
    changes = world.probe.observe(ClusterView(view(0).brokers, None))

    assert changes.dropped == ()
    assert len(world.round()) == 3


def test_a_partition_that_became_an_orphan_is_dropped(world):
    changes = world.probe.observe(view(0, 1, 0, brokers=2, replicas=[(0, 1), (1, 0), (0, 1)]))

    assert changes.dropped == (2,)
    assert [o.partition for o in world.round()] == [0, 1]


def test_a_moved_leader_is_told(world):
    assert world.probe.observe(view(0, 1, 0)).moved == {2}
    assert world.probe.observe(view(0, 1, 0)).moved == frozenset()
    assert world.series("sluice_canary_leader_is_preferred") == {
        "brokerid=0,partition=0": 1,
        "brokerid=1,partition=1": 1,
        "brokerid=2,partition=2": 0,
    }


def test_probes_go_on_the_account_of_the_leader_when_they_were_sent(world):
    outgoing = world.round()
    world.probe.observe(view(0, 1, 0))
    world.bring_back(outgoing[2])
    world.bring_back(world.round()[2])

    succeeded = {k: v for k, v in world.series("sluice_canary_probes_total").items() if "succeeded" in k and v}
    assert succeeded == {
        "brokerid=2,partition=2,result=succeeded": 1,
        "brokerid=0,partition=2,result=succeeded": 1,
    }


def test_an_outage_is_counted_attempt_by_attempt(world):
    for _ in range(60):
        world.now += 1
        for outgoing in world.round():
            world.probe.failed(outgoing.message_id, "no broker", world.now)

    assert world.series("strimzi_canary_records_produced_total") == {f"partition={p}": 60 for p in range(3)}
    assert world.series("strimzi_canary_records_produced_failed_total") == {f"partition={p}": 60 for p in range(3)}
    assert set(world.series("sluice_canary_produce_availability_ratio").values()) == {0.0}
    assert all(math.isnan(v) for v in world.series("sluice_canary_consume_availability_ratio").values())


class TestADeadLeader:
    def test_only_what_waits_for_it_is_given_up(self, world):
        world.round()
        world.now += 0.6

        assert [broker.id for broker in world.probe.leaders_in_question(world.now)] == [0, 1, 2]
        assert world.probe.leaders_unreachable({2}, world.now) == 1
        assert world.series("strimzi_canary_records_produced_failed_total") == {
            "partition=0": 0,
            "partition=1": 0,
            "partition=2": 1,
        }

    def test_nobody_is_in_question_while_answers_come(self, world):
        for outgoing in world.round():
            world.bring_back(outgoing)
        world.now += 10

        assert world.probe.leaders_in_question(world.now) == []

    def test_a_partition_without_leader_fails_without_a_visit(self, world):
        world.probe.observe(view(0, 1, -1))
        world.round()
        world.now += 0.6

        assert world.probe.leaders_unreachable((), world.now) == 1
        assert world.series("strimzi_canary_records_produced_failed_total")["partition=2"] == 1

    def test_one_that_the_cluster_does_not_list_any_more_counts_as_dead(self, world):
        seen = view(0, 1, 2)
        world.probe.observe(ClusterView(seen.brokers[:2], seen.partitions))
        world.round()
        world.now += 0.6

        assert [broker.id for broker in world.probe.leaders_in_question(world.now)] == [0, 1]
        assert world.probe.leaders_unreachable((), world.now) == 1

    def test_what_is_given_up_is_not_counted_again_when_the_client_gives_up_too(self, world):
        outgoing = world.round()
        world.now += 0.6
        world.probe.leaders_unreachable({0, 1, 2}, world.now)
        world.probe.failed(outgoing[0].message_id, "timed out", world.now)
        world.probe.acknowledged(outgoing[1].message_id, world.now, WALL)

        assert world.series("strimzi_canary_records_produced_failed_total") == {f"partition={p}": 1 for p in range(3)}
        assert world.series("strimzi_canary_records_produced_latency_count") == {f"partition={p}": 0 for p in range(3)}


class TestReceipts:
    def test_consumed_counts_are_of_own_records_of_this_start_only(self, world):
        own = world.round()[0]
        for number, value in enumerate(
            [
                b"not json",
                None,
                b'{"producerId":"someone","messageId":1,"timestamp":1}',
                b'{"producerId":"me","messageId":1,"timestamp":1}',
                own.value,
            ]
        ):
            world.probe.received(0, number, value, world.now, WALL)

        assert world.series("strimzi_canary_records_consumed_total")["partition=0"] == 1
        assert world.series("strimzi_canary_records_consumed_latency_count")["partition=0"] == 1
        foreign = {k: v for k, v in world.series("sluice_canary_records_foreign_total").items() if "partition=0" in k}
        assert foreign == {
            "partition=0,reason=undecodable": 2,
            "partition=0,reason=other_producer": 1,
            "partition=0,reason=other_start": 1,
        }

    def test_latency_is_of_the_monotonic_clock_whatever_the_wall_clock_does(self, world):
        outgoing = world.round()[0]
        world.now += 0.025
        world.probe.acknowledged(outgoing.message_id, world.now, WALL - 7200)
        world.probe.received(0, 1, outgoing.value, world.now, WALL + 7200)

        assert world.series("strimzi_canary_records_produced_latency_sum")["partition=0"] == pytest.approx(25)
        assert world.series("strimzi_canary_records_consumed_latency_sum")["partition=0"] == pytest.approx(25)

    def test_a_record_that_stays_away_is_lost_and_then_late(self, world):
        outgoing = world.round()[1]
        world.probe.acknowledged(outgoing.message_id, world.now, WALL)
        world.now += 21
        world.probe.expire(world.now)

        assert world.series("sluice_canary_records_lost_total")["brokerid=1,partition=1"] == 1

        world.bring_back(outgoing)

        assert world.series("sluice_canary_records_late_total")["brokerid=1,partition=1"] == 1
        assert world.series("sluice_canary_broker_consume_availability_ratio")["brokerid=1"] == 0

    def test_a_duplicate_is_counted_as_such_and_not_as_consumed(self, world):
        outgoing = world.round()[0]
        world.bring_back(outgoing)
        world.probe.received(0, 99, outgoing.value, world.now, WALL)

        assert world.series("sluice_canary_records_duplicated_total")["brokerid=0,partition=0"] == 1
        assert world.series("strimzi_canary_records_consumed_total")["partition=0"] == 1

    def test_positions_follow_what_was_read(self, world):
        world.probe.received(0, 41, b"x", world.now, WALL)

        assert world.probe.positions() == {0: 42, 1: 0, 2: 0}


class TestReadiness:
    def test_not_before_the_first_own_record_and_not_three_intervals_after_the_last(self, world):
        assert not world.probe.is_ready(world.now)

        world.probe.received(0, 1, b"foreign", world.now, WALL)
        assert not world.probe.is_ready(world.now)

        world.bring_back(world.round()[0])
        assert world.probe.is_ready(world.now)
        assert world.probe.is_ready(world.now + 3.0)
        assert not world.probe.is_ready(world.now + 3.1)
        assert world.series("sluice_canary_ready") == {"": 1}


class TestStatus:
    def test_a_healthy_cluster_is_at_100_even_when_sampled_between_sending_and_receipt(self, world):
        world.probe.sample()
        for _ in range(5):
            outgoing = world.round()
            world.probe.sample()
            for record in outgoing:
                world.bring_back(record)
        world.probe.sample()

        assert world.probe.status()["Consuming"] == {"TimeWindow": 7 * 30_000, "Percentage": 100}

    def test_failures_lower_it(self, world):
        world.probe.sample()
        first, second, third = world.round()
        world.bring_back(first)
        world.bring_back(second)
        world.probe.failed(third.message_id, NOT_WATCHED, world.now)
        world.probe.sample()

        assert world.probe.status()["Consuming"]["Percentage"] == 66.67


def test_with_an_expected_size_a_dead_broker_goes_on_being_checked():
    world = World(expected_cluster_size=3)
    world.probe.observe(view(0, 1, 2))
    world.probe.observe(view(0, 1, 0, brokers=2))

    assert [broker.id for broker in world.probe.checked_brokers()] == [0, 1, 2]
