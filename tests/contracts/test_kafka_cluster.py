"""What every Kafka port promises: the same claims against the fake and against a real broker."""

from __future__ import annotations

import time
import uuid

import pytest

from eventing.errors import Conflict, NotFound, Refused, SluiceError, Unavailable
from tests.fakes.kafka import FakeKafkaCluster


class KafkaClusterContract:
    """Uses topics and groups of its own in a cluster of at least one broker with id 0."""

    @pytest.fixture
    def topic(self, cluster):
        name = f"contract.{uuid.uuid4().hex[:12]}"
        yield name
        cluster.delete_topic(name)

    @pytest.fixture
    def group(self, cluster):
        name = f"kafka.contract.orders.{uuid.uuid4().hex[:12]}"
        yield name
        cluster.delete_group(name)

    def test_brokers_are_listed_with_when_they_were_seen(self, cluster):
        first = cluster.brokers()[0]
        assert (first["id"], first["fenced"]) == (0, False)
        assert first["last_seen"].endswith("Z")
        assert set(first) == {"id", "rack", "fenced", "last_seen"}

    def test_a_created_topic_is_observed_as_it_was_asked_for(self, cluster, topic):
        cluster.create_topic(topic, {0: [0], 1: [0]}, {"retention.ms": "600000", "min.insync.replicas": "1"})
        assert observed(cluster, topic) == {
            "partitions": [
                {"id": 0, "replicas": [0], "isr": [0], "leader": 0},
                {"id": 1, "replicas": [0], "isr": [0], "leader": 0},
            ],
            "reassigning": [],
            "configs": {"retention.ms": "600000", "min.insync.replicas": "1"},
        }

    def test_kafkas_own_topics_are_not_listed(self, cluster, topic, group):
        cluster.create_topic(topic, {0: [0]}, {})
        cluster.initialize_offsets(group, topic, [0], "latest")
        assert "__consumer_offsets" not in cluster.topics()

    def test_creating_a_topic_twice_is_success_and_changes_nothing(self, cluster, topic):
        cluster.create_topic(topic, {0: [0]}, {"retention.ms": "600000"})
        cluster.create_topic(topic, {0: [0], 1: [0]}, {"retention.ms": "700000"})
        assert len(observed(cluster, topic)["partitions"]) == 1
        assert observed(cluster, topic)["configs"] == {"retention.ms": "600000"}

    def test_a_replica_on_an_unknown_broker_is_refused(self, cluster, topic):
        with pytest.raises(Refused):
            cluster.create_topic(topic, {0: [99]}, {})

    def test_partitions_with_a_gap_are_refused(self, cluster, topic):
        with pytest.raises(Refused):
            cluster.create_topic(topic, {0: [0], 2: [0]}, {})

    def test_partitions_grow_once(self, cluster, topic):
        cluster.create_topic(topic, {0: [0]}, {})
        cluster.create_partitions(topic, 3, {1: [0], 2: [0]})
        cluster.create_partitions(topic, 3, {1: [0], 2: [0]})
        assert [p["id"] for p in observed(cluster, topic, partitions=3)["partitions"]] == [0, 1, 2]

    def test_partitions_never_shrink(self, cluster, topic):
        cluster.create_topic(topic, {0: [0], 1: [0]}, {})
        with pytest.raises(Refused):
            cluster.create_partitions(topic, 1, {})

    def test_growing_by_a_stale_observation_is_a_conflict(self, cluster, topic):
        cluster.create_topic(topic, {0: [0], 1: [0]}, {})
        with pytest.raises(Conflict):
            cluster.create_partitions(topic, 3, {1: [0], 2: [0]})

    def test_growing_a_topic_that_is_not_there_is_not_found(self, cluster):
        with pytest.raises(NotFound):
            cluster.create_partitions(f"absent.{uuid.uuid4().hex}", 2, {1: [0]})

    def test_configs_are_altered_one_by_one(self, cluster, topic):
        cluster.create_topic(topic, {0: [0]}, {"retention.ms": "600000", "max.message.bytes": "2000000"})
        cluster.alter_topic_config(topic, {"retention.ms": "700000", "max.message.bytes": None})
        assert observed(cluster, topic)["configs"] == {"retention.ms": "700000"}

    def test_electing_leaders_that_lead_already_is_success(self, cluster, topic):
        cluster.create_topic(topic, {0: [0], 1: [0]}, {})
        cluster.elect_leaders(topic, [0, 1])
        cluster.elect_leaders(topic, [])

    def test_electing_for_a_partition_that_is_not_there_fails(self, cluster, topic):
        cluster.create_topic(topic, {0: [0]}, {})
        with pytest.raises(SluiceError):
            cluster.elect_leaders(topic, [7])

    def test_reassigning_to_where_it_is_already_is_success(self, cluster, topic):
        cluster.create_topic(topic, {0: [0]}, {})
        cluster.reassign_partitions(topic, {0: [0]})
        assert observed(cluster, topic)["reassigning"] == []

    def test_reassigning_to_an_unknown_broker_is_refused(self, cluster, topic):
        cluster.create_topic(topic, {0: [0]}, {})
        with pytest.raises(Refused):
            cluster.reassign_partitions(topic, {0: [99]})

    def test_reassigning_a_partition_that_is_not_there_fails(self, cluster, topic):
        cluster.create_topic(topic, {0: [0]}, {})
        with pytest.raises(SluiceError):
            cluster.reassign_partitions(topic, {5: [0]})

    def test_deleting_a_topic_twice_is_success(self, cluster, topic):
        cluster.create_topic(topic, {0: [0]}, {})
        cluster.delete_topic(topic)
        cluster.delete_topic(topic)
        deadline = time.monotonic() + 10  # brokers learn of it a moment after the controller
        while topic in cluster.topics():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    @pytest.mark.parametrize("offset", ["latest", "earliest"])
    def test_first_offsets_are_written_for_the_named_partitions(self, cluster, produce, topic, group, offset):
        cluster.create_topic(topic, {0: [0], 1: [0]}, {})
        produce(topic, 0, 5)
        cluster.initialize_offsets(group, topic, [0], offset)
        lag = {"latest": 0, "earliest": 5}[offset]
        assert cluster.lag({group: topic})[group] == {"topic": topic, "partitions": {"0": lag}}

    def test_a_committed_offset_is_never_overwritten(self, cluster, produce, topic, group):
        cluster.create_topic(topic, {0: [0], 1: [0]}, {})
        cluster.initialize_offsets(group, topic, [0], "latest")
        produce(topic, 0, 3)
        cluster.initialize_offsets(group, topic, [0, 1], "latest")
        assert cluster.lag({group: topic})[group]["partitions"] == {"0": 3, "1": 0}

    def test_first_offsets_for_a_topic_that_is_not_there_fail(self, cluster, group):
        with pytest.raises(SluiceError):
            cluster.initialize_offsets(group, f"absent.{uuid.uuid4().hex}", [0], "latest")

    def test_a_group_without_offsets_has_no_lag(self, cluster, topic, group):
        cluster.create_topic(topic, {0: [0]}, {})
        assert group not in cluster.lag({group: topic})

    def test_the_lag_of_a_group_that_nobody_declares_is_listed_too(self, cluster, topic, group):
        cluster.create_topic(topic, {0: [0]}, {})
        cluster.initialize_offsets(group, topic, [0], "latest")
        assert cluster.lag({})[group] == {"topic": topic, "partitions": {"0": 0}}

    def test_deleting_a_group_twice_is_success(self, cluster, topic, group):
        cluster.create_topic(topic, {0: [0]}, {})
        cluster.initialize_offsets(group, topic, [0], "latest")
        cluster.delete_group(group)
        cluster.delete_group(group)
        assert group not in cluster.lag({group: topic})


def observed(cluster, topic, partitions=None):
    """The topic once it is seen as it was made: brokers learn of a change a moment after the controller."""
    deadline = time.monotonic() + 10
    while True:
        found = cluster.topics().get(topic)
        settled = (
            found
            and found["partitions"]
            and all(p["leader"] >= 0 and p["isr"] for p in found["partitions"])
            and (partitions is None or len(found["partitions"]) == partitions)
        )
        if settled or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


class TestFakeKafkaCluster(KafkaClusterContract):
    @pytest.fixture
    def cluster(self):
        return FakeKafkaCluster()

    @pytest.fixture
    def produce(self, cluster):
        return cluster.produce


@pytest.fixture(scope="module")
def admin(kafka):
    from orchestration.adapters.kafka_admin import KafkaAdmin

    admin = KafkaAdmin(kafka.bootstrap)
    yield admin
    admin.close()


@pytest.mark.kafka
class TestKafkaAdmin(KafkaClusterContract):
    @pytest.fixture
    def cluster(self, admin):
        return admin

    @pytest.fixture
    def produce(self, kafka):
        from confluent_kafka import Producer

        def produce(topic, partition, records):
            producer = Producer({"bootstrap.servers": kafka.bootstrap})
            for index in range(records):
                producer.produce(topic, value=str(index), partition=partition)
            assert producer.flush(10) == 0

        return produce

    def test_a_wrong_config_value_is_refused(self, cluster, topic):
        cluster.create_topic(topic, {0: [0]}, {})
        with pytest.raises(Refused):
            cluster.alter_topic_config(topic, {"retention.ms": "soon"})

    def test_a_segment_that_kafka_finds_too_small_is_refused_with_its_words(self, cluster, topic):
        with pytest.raises(Refused, match=r"segment\.bytes"):
            cluster.create_topic(topic, {0: [0]}, {"segment.bytes": "16384"})

    def test_a_group_with_members_is_not_written_to_and_not_deleted(self, cluster, kafka, topic, group, monkeypatch):
        from confluent_kafka import Consumer

        monkeypatch.setattr("orchestration.adapters.kafka_admin.GROUP_EMPTY_TIMEOUT_S", 1.0)
        cluster.create_topic(topic, {0: [0], 1: [0]}, {})
        observed(cluster, topic)
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "enable.auto.commit": False})
        consumer.subscribe([topic])
        try:
            while not consumer.assignment():
                consumer.poll(0.1)
            with pytest.raises(Conflict, match="members"):
                cluster.initialize_offsets(group, topic, [0], "latest")
            with pytest.raises(Conflict):
                cluster.delete_group(group)
        finally:
            consumer.close()
        cluster.delete_group(group)

    def test_new_partitions_of_a_running_group_are_left_to_its_members(self, cluster, kafka, topic, group):
        from confluent_kafka import Consumer

        cluster.create_topic(topic, {0: [0], 1: [0]}, {})
        observed(cluster, topic)
        cluster.initialize_offsets(group, topic, [0], "latest")
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "enable.auto.commit": False})
        consumer.subscribe([topic])
        try:
            while not consumer.assignment():
                consumer.poll(0.1)
            cluster.initialize_offsets(group, topic, [0, 1], "earliest")
        finally:
            consumer.close()

    def test_a_cluster_that_does_not_answer_is_unavailable_in_time(self):
        from orchestration.adapters.kafka_admin import READ_TIMEOUT_S, KafkaAdmin
        from orchestration.local.ports import free_port

        admin = KafkaAdmin(f"127.0.0.1:{free_port()}")
        try:
            for read in (admin.brokers, admin.topics):
                started = time.monotonic()
                with pytest.raises(Unavailable):
                    read()
                assert time.monotonic() - started < READ_TIMEOUT_S + 2
        finally:
            admin.close()
