"""A snapshot says what is known, says what is not, and is there in time."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

from eventing.errors import Unavailable
from orchestration import membership
from orchestration.membership import FORGET_AFTER, KnownBroker
from orchestration.observe import expected_groups, observe
from orchestration.planning import Snapshot
from tests.orchestration.worlds import NOW, World, channel, subscriber


def test_a_snapshot_is_the_document_of_the_design():
    world = World(channel())
    world.settle()
    document = observe(world.ports, now=NOW, expected_brokers=3).document
    assert list(document) == [
        *["observed_at", "brokers", "expected_brokers", "topics", "channels", "deployments", "services", "lag"]
    ]
    assert document["observed_at"] == "2026-11-20T03:00:00Z"
    assert document["expected_brokers"] == 3
    assert document["brokers"] == [{"id": 0, "rack": None, "fenced": False, "last_seen": "2026-11-20T03:00:00Z"}]
    assert document["lag"] == {"kafka.shop.orders.u1": {"topic": "shop.orders", "partitions": {"0": 0, "1": 0}}}
    assert Snapshot.from_document(document) == observe(world.ports, now=NOW, expected_brokers=3).snapshot


def test_what_cannot_be_read_is_null_and_named_and_the_rest_is_there():
    world = World(channel())
    world.settle()
    world.kafka.failures["brokers"] = Unavailable("Kafka", "no controller")
    world.workloads.failures["list_deployments"] = Unavailable("workloads", "no controller runs")
    found = observe(world.ports, now=NOW)
    assert found.document["brokers"] is None
    assert found.document["deployments"] is None
    assert found.document["services"]
    assert found.document["topics"]
    assert found.unreadable == (
        "workloads is unavailable: no controller runs",
        "Kafka is unavailable: no controller",
    )


def test_a_group_that_cannot_be_read_has_an_unknown_lag_and_not_none_at_all():
    world = World(channel(subscribers=[subscriber("u1"), subscriber("u2")]))
    world.settle()
    world.kafka.unreadable_groups = {"kafka.shop.orders.u2"}
    lag = observe(world.ports, now=NOW).document["lag"]
    assert lag["kafka.shop.orders.u1"]["partitions"] == {"0": 0, "1": 0}
    assert lag["kafka.shop.orders.u2"]["partitions"] == {"0": None, "1": None}


def test_a_call_that_never_returns_is_given_up_and_the_others_are_not():
    world = World(channel())
    world.settle()
    end = threading.Event()
    world.kafka.brokers = lambda: end.wait(30) and []
    started = time.monotonic()
    found = observe(world.ports, now=NOW, call_limit_s=0.2)
    end.set()
    assert time.monotonic() - started < 5
    assert found.document["brokers"] is None
    assert found.document["topics"]
    assert found.unreadable == ("Kafka is unavailable: no answer within 0.2 s",)


def test_nobody_expects_groups_of_a_channel_that_does_not_parse():
    declared = [channel("a"), {**channel("b"), "spec": {"numPartitions": 0}}]
    assert expected_groups(declared) == {"kafka.shop.a.u1": "shop.a"}


def test_the_kept_topic_name_counts_for_the_groups():
    declared = {**channel("a"), "status": {"annotations": {"default.topic": "old.name"}}}
    assert expected_groups([declared]) == {"kafka.shop.a.u1": "old.name"}


# ---------------------------------------------------------------------- memory of brokers


def up(number, rack=None):
    return {"id": number, "rack": rack, "fenced": False, "last_seen": "2026-11-20T03:00:00Z"}


def away(number):
    return {"id": number, "rack": None, "fenced": True, "last_seen": None}


def test_a_broker_is_away_since_it_was_first_seen_away():
    memory = membership.updated([up(0), up(1)], {}, NOW)
    memory = membership.updated([up(0), away(1)], memory, NOW + timedelta(minutes=1))
    memory = membership.updated([up(0), away(1)], memory, NOW + timedelta(minutes=5))
    assert memory == {0: KnownBroker(None, None), 1: KnownBroker(None, NOW + timedelta(minutes=1))}


def test_a_steady_membership_is_no_news():
    memory = membership.updated([up(0), away(1)], {}, NOW)
    assert membership.updated([up(0), away(1)], memory, NOW + timedelta(hours=3)) == memory


def test_without_memory_it_is_not_known_when_a_broker_was_last_seen():
    assert membership.with_memory([away(1)], {}) == [away(1)]


def test_an_unregistered_broker_is_forgotten_in_the_end_and_a_fenced_one_is_not():
    memory = membership.updated([up(0), up(1), away(2)], {}, NOW)
    memory = membership.updated([up(0), away(2)], memory, NOW)
    later = NOW + FORGET_AFTER + timedelta(seconds=1)
    assert set(membership.updated([up(0), away(2)], memory, later - timedelta(minutes=1))) == {0, 1, 2}
    assert set(membership.updated([up(0), away(2)], memory, later)) == {0, 2}


def test_the_annotation_is_read_back_as_it_was_written():
    memory = {3: KnownBroker("b", NOW), 0: KnownBroker(None, None)}
    deployment = {
        "metadata": {
            "namespace": "sluice-system",
            "name": "canary",
            "labels": {"app.kubernetes.io/component": "canary"},
            "annotations": {membership.ANNOTATION_BROKERS: membership.to_annotation(memory)},
        }
    }
    assert membership.remembered([deployment]) == memory


def test_an_annotation_that_somebody_broke_counts_as_no_memory():
    for text in ("{", "[]", "3", '{"a": {}}', '{"1": 2}', '{"1": {"away_since": "yesterday"}}', None):
        deployment = {
            "metadata": {
                "name": "canary",
                "labels": {"app.kubernetes.io/component": "canary"},
                "annotations": {membership.ANNOTATION_BROKERS: text},
            }
        }
        assert membership.remembered([deployment]) == {}, text
