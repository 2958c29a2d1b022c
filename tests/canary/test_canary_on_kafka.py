"""The canary as a program against real brokers: what it shows when they work, die, come back and change."""

from __future__ import annotations

import contextlib
import itertools
import json
import time

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from orchestration.local.kafka_server import KafkaServer
from tests.canary.canary_process import CanaryProcess

pytestmark = pytest.mark.kafka

numbers = itertools.count(1)


def create_topic(bootstrap: str, topic: str, *replicas: list[int]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, num_partitions=len(replicas), replica_assignment=list(replicas))
    for future in admin.create_topics([new]).values():
        future.result(30)


@pytest.fixture
def topic():
    return f"__canary_{next(numbers)}"


@pytest.fixture
def start(tmp_path, topic):
    def start(bootstrap: str, **environ: str) -> CanaryProcess:
        name = f"canary-{next(numbers)}"
        full = {"KAFKA_BOOTSTRAP_SERVERS": bootstrap, "TOPIC": topic, "CLIENT_ID": name, "CONSUMER_GROUP_ID": name}
        return CanaryProcess(full | environ, tmp_path / f"{name}.log")

    return start


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with KafkaServer(tmp_path_factory.mktemp("three"), brokers=3) as server:
        yield server


class TestOneBroker:
    def test_it_waits_for_its_topic_and_starts_by_itself(self, kafka, topic, start):
        with start(kafka.bootstrap) as canary:
            canary.eventually(lambda: canary.count("strimzi_canary_connection_total", connected="true") >= 1)

            assert canary.get("/liveness") == (200, "OK")
            assert canary.get("/readiness")[0] == 503
            assert canary.get("/invalid")[0] == 404
            assert canary.percentage() == -1
            assert canary.series("strimzi_canary_records_produced_total") == {}

            create_topic(kafka.bootstrap, topic, [0], [0], [0])
            canary.eventually(canary.is_ready)
            canary.eventually(lambda: canary.produced(0) >= 4)

            assert canary.get("/readiness") == (200, "OK")
            canary.eventually(lambda: canary.percentage() == 100)
            assert canary.failed(0) == 0
            assert canary.consumed(0) >= 3
            assert canary.count("strimzi_canary_records_consumed_latency_count", partition="0") >= 3
            assert canary.count("sluice_canary_records_lost_total") == 0
            assert canary.count("sluice_canary_offset_commits_total", coordinator="0") >= 1

    def test_orphans_get_no_records(self, kafka, topic, start):
        create_topic(kafka.bootstrap, topic, [0], [0], [0])
        with start(kafka.bootstrap) as canary:
            canary.eventually(lambda: canary.consumed(0) >= 3)

            assert len(canary.series("strimzi_canary_records_produced_total")) == 1

        consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "reader"})
        assert [consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in (1, 2)] == [0, 0]
        consumer.close()

    def test_an_option_probes_orphans(self, kafka, topic, start):
        create_topic(kafka.bootstrap, topic, [0], [0])
        with start(kafka.bootstrap, PROBE_ORPHANS="true") as canary:
            canary.eventually(lambda: canary.consumed(1) >= 1)

    def test_a_new_partition_is_probed_without_a_loss(self, kafka, topic, start):
        create_topic(kafka.bootstrap, topic, [0])
        with start(kafka.bootstrap, PROBE_ORPHANS="true") as canary:
            canary.eventually(canary.is_ready)
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
            for future in admin.create_partitions([NewPartitions(topic, 3)]).values():
                future.result(30)
            canary.eventually(lambda: canary.consumed(1) >= 2 and canary.consumed(2) >= 2)

            assert canary.failed(1) == canary.failed(2) == 0
            assert canary.count("sluice_canary_probes_total", result="lost") == 0

    def test_records_are_as_strimzi_canary_writes_them(self, kafka, topic, start):
        create_topic(kafka.bootstrap, topic, [0], [0])
        with start(kafka.bootstrap, CLIENT_ID="me", PROBE_ORPHANS="true", RECORD_SIZE_BYTES="2000") as canary:
            canary.eventually(lambda: canary.consumed(1) >= 2)
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "reader"})
        consumer.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
        records = [consumer.poll(10) for _ in range(4)]
        consumer.close()

        assert all(record.key() is None and len(record.value()) == 2000 for record in records)
        documents = [json.loads(record.value()) for record in records]
        assert all(list(document) == ["producerId", "messageId", "timestamp"] for document in documents)
        assert {document["producerId"] for document in documents} == {"me"}
        assert sorted(document["messageId"] for document in documents) == [1, 2, 3, 4]

    def test_two_side_by_side_and_strangers_on_the_topic_do_not_disturb(self, kafka, topic, start):
        create_topic(kafka.bootstrap, topic, [0])
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        with start(kafka.bootstrap) as one, start(kafka.bootstrap) as other:
            one.eventually(lambda: one.is_ready() and other.is_ready())
            for value in (b"not json", b"{}", b"\xff"):
                producer.produce(topic, value)
            producer.flush(10)
            one.eventually(lambda: one.count("sluice_canary_records_foreign_total", reason="undecodable") == 3)
            one.eventually(lambda: one.count("sluice_canary_records_foreign_total", reason="other_producer") >= 2)

            assert one.consumed(0) <= one.produced(0)
            assert one.percentage() <= 100

    def test_a_second_start_does_not_count_the_records_of_the_first(self, kafka, topic, start):
        create_topic(kafka.bootstrap, topic, [0])
        for _ in range(2):
            with start(kafka.bootstrap, CLIENT_ID="same") as canary:
                canary.eventually(lambda: canary.consumed(0) >= 2)

                assert canary.consumed(0) <= canary.produced(0)
                assert canary.count("sluice_canary_records_foreign_total") == 0

    def test_a_topic_that_is_made_anew_is_probed_again(self, kafka, topic, start):
        create_topic(kafka.bootstrap, topic, [0])
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        with start(kafka.bootstrap) as canary:
            canary.eventually(lambda: canary.consumed(0) >= 3)
            for future in admin.delete_topics([topic]).values():
                future.result(30)
            canary.eventually(lambda: canary.failed(0) >= 2)
            create_topic(kafka.bootstrap, topic, [0])
            before = canary.consumed(0)
            canary.eventually(lambda: canary.consumed(0) >= before + 3)
            canary.eventually(canary.is_ready)


class TestAnOutageOfAll:
    def test_kafka_away_at_the_start_and_killed_later(self, tmp_path, topic, start):
        """One start of the canary through all of it: liveness stays, readiness follows, every attempt is counted."""
        server = KafkaServer(tmp_path / "kafka", brokers=1)
        try:
            with start(server.bootstrap) as canary:
                canary.eventually(lambda: canary.count("strimzi_canary_client_creation_error_total") >= 2)
                assert (canary.get("/liveness")[0], canary.get("/readiness")[0]) == (200, 503)

                server.start()
                create_topic(server.bootstrap, topic, [0])
                canary.eventually(canary.is_ready)

                server.kill_broker(0)
                canary.eventually(lambda: canary.failed(0) >= 2, 10)
                canary.eventually(lambda: not canary.is_ready(), 10)
                began, produced, failed = time.monotonic(), canary.produced(0), canary.failed(0)
                canary.wait(5)
                expected = pytest.approx((time.monotonic() - began) / 0.5, abs=3)
                assert canary.produced(0) - produced == expected, "one attempt each 500 ms"
                assert canary.failed(0) - failed == expected
                assert canary.get("/liveness")[0] == 200
                assert canary.percentage() < 100

                server.start_broker(0)
                canary.eventually(canary.is_ready)
                failed, consumed = canary.failed(0), canary.consumed(0)
                canary.eventually(lambda: canary.consumed(0) >= consumed + 3)
                assert canary.failed(0) <= failed + 2
                assert canary.count("sluice_canary_records_lost_total") == 0
        finally:
            server.kill()


class TestThreeBrokers:
    def elect_preferred(self, cluster, topic):
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, p) for p in range(3)]).result(30)

    def test_a_killed_broker_fails_its_own_partition_alone(self, cluster, topic, start):
        create_topic(cluster.bootstrap, topic, [0, 1, 2], [1, 2, 0], [2, 0, 1])
        with start(cluster.bootstrap, RECONCILE_INTERVAL_MS="1000", EXPECTED_CLUSTER_SIZE="3") as canary:
            canary.eventually(lambda: all(canary.consumed(p) >= 3 for p in range(3)))
            cluster.kill_broker(2)
            canary.eventually(lambda: canary.failed(2) >= 1, 5)
            canary.eventually(
                lambda: canary.count("strimzi_canary_connection_total", brokerid="2", connected="false") >= 1, 5
            )
            # Kafka notices, and another broker leads: what the partition's probes prove from then on is that one.
            canary.eventually(lambda: canary.count("sluice_canary_probes_total", partition="2", brokerid="0") >= 3)
            failed = canary.series("sluice_canary_probes_total")

            assert {
                (dict(labels)["partition"], dict(labels)["brokerid"])
                for labels, value in failed.items()
                if dict(labels)["result"] != "succeeded" and value
            } == {("2", "2")}
            assert canary.series("strimzi_canary_connection_error_total").keys() >= {
                (("brokerid", "2"), ("connected", "false"))
            }
            assert canary.count("sluice_canary_leader_is_preferred", partition="2") == 0
            assert canary.is_ready()

            cluster.start_broker(2)
            canary.eventually(lambda: self.leads_again(cluster, topic, canary))
            succeeded = {"brokerid": "2", "partition": "2", "result": "succeeded"}
            before = canary.count("sluice_canary_probes_total", **succeeded)
            canary.eventually(lambda: canary.count("sluice_canary_probes_total", **succeeded) >= before + 3)

    def leads_again(self, cluster, topic, canary) -> bool:
        with contextlib.suppress(KafkaException):  # not in sync yet, or there already
            self.elect_preferred(cluster, topic)
        return canary.count("sluice_canary_leader_is_preferred", partition="2") == 1

    def test_a_clean_restart_of_a_broker_loses_nothing_and_delays_nobody(self, cluster, topic, start):
        create_topic(cluster.bootstrap, topic, [0, 1, 2], [1, 2, 0], [2, 0, 1])
        with start(cluster.bootstrap, RECONCILE_INTERVAL_MS="1000") as canary:
            canary.eventually(lambda: all(canary.consumed(p) >= 3 for p in range(3)))
            cluster.stop_broker(1)
            canary.wait(3)
            cluster.start_broker(1)
            before = canary.consumed(1)
            canary.eventually(lambda: canary.consumed(1) >= before + 3)

            assert canary.count("sluice_canary_records_lost_total") == 0
            assert canary.failed(0) == canary.failed(2) == 0
            assert canary.failed(1) <= 1, "no more than what was in flight at the change"


def test_the_canary_never_creates_its_topic(tmp_path, topic, start):
    """Not even on a broker that would create what it is asked for."""
    with (
        KafkaServer(tmp_path / "kafka", brokers=1, properties={"auto.create.topics.enable": "true"}) as server,
        start(server.bootstrap) as canary,
    ):
        canary.eventually(lambda: canary.count("strimzi_canary_connection_total", connected="true") >= 3)

        assert topic not in AdminClient({"bootstrap.servers": server.bootstrap}).list_topics(timeout=10).topics
