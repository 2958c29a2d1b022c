"""The canary's steps on a real cluster: Kafka takes each of them, and they end where they should."""

from __future__ import annotations

import time

import pytest

from orchestration.adapters.kafka_admin import KafkaAdmin
from orchestration.apply import perform
from orchestration.local.kafka_server import KafkaServer
from orchestration.planning import Policy, plan
from orchestration.ports import Ports
from tests.planning.worlds import CANARY_TOPIC, NOW, document, read

pytestmark = pytest.mark.kafka

ROUNDS = 120


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with KafkaServer(tmp_path_factory.mktemp("three-brokers"), brokers=3, racks=["a", "b", "c"]) as server:
        admin = KafkaAdmin(server.bootstrap)
        yield admin
        admin.close()


def observe(admin, count):
    """The world, as if only the first `count` brokers had ever been there."""
    brokers = sorted(admin.brokers(), key=lambda b: b["id"])
    assert len(brokers) == 3
    return read(document(brokers=brokers[:count], topics={CANARY_TOPIC: None}) | {"topics": admin.topics()})


def bring_to_rest(admin, count):
    """Plan and apply until nothing is left to do and nothing moves. Returns the topic, and what was done."""
    done = []
    for _ in range(ROUNDS):
        snapshot = observe(admin, count)
        decided = plan(snapshot, Policy(), NOW)
        topic = snapshot.topics.get(CANARY_TOPIC)
        if decided.is_empty and not decided.waiting and topic is not None:
            return topic, done
        for action in decided.actions:
            perform(action, Ports(registry=None, workloads=None, kafka=admin))
            done.append(action.kind)
        time.sleep(0.25)
    raise AssertionError(f"no rest after {ROUNDS} rounds: {decided.to_document()}")


def test_one_to_three_to_two_to_three_brokers(cluster):
    topic, done = bring_to_rest(cluster, 1)
    assert done == ["CreateTopic"]
    assert len(topic.partitions) == 1

    topic, done = bring_to_rest(cluster, 3)
    assert done[0] == "ReassignPartitions"
    assert done[1:3] == ["CreatePartitions", "AlterTopicConfig"]
    first = [p.replicas for p in topic.partitions]
    assert [r[0] for r in first] == sorted(r[0] for r in first)
    assert {len(r) for r in first} == {3}
    assert topic.configs["min.insync.replicas"] == "2"

    topic, done = bring_to_rest(cluster, 2)
    assert done[:2] == ["AlterTopicConfig", "ReassignPartitions"]
    assert len(topic.partitions) == 3, "the third one is an orphan now"
    assert {len(p.replicas) for p in topic.partitions} == {2}
    assert topic.configs["min.insync.replicas"] == "1"

    topic, done = bring_to_rest(cluster, 3)
    assert "CreatePartitions" not in done
    assert [p.replicas for p in topic.partitions] == first
    assert [p.leader for p in topic.partitions] == [r[0] for r in first]

    topic, done = bring_to_rest(cluster, 3)
    assert done == [], "a steady state causes no write"
