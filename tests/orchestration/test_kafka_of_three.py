"""What only several brokers show: fenced ones, moving replicas, elections, and a broker that does not answer."""

from __future__ import annotations

import gc
import time

import pytest

from orchestration.adapters.kafka_admin import KafkaAdmin
from orchestration.observe import observe
from orchestration.ports import Ports
from tests.fakes.registry import FakeRegistry
from tests.fakes.workloads import FakeWorkloads
from tests.orchestration.worlds import NOW

pytestmark = [
    pytest.mark.kafka,
    # kafka-python leaves the sockets of refused connections to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

GROUP = "kafka.shop.orders.u1"


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    from orchestration.local.kafka_server import KafkaServer

    # Sessions end soon, so that a killed broker is fenced while a test waits.
    properties = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
    folder = tmp_path_factory.mktemp("three")
    with KafkaServer(folder, brokers=3, racks=["a", "b", "c"], properties=properties) as server:
        yield server


@pytest.fixture
def admin(three):
    admin = KafkaAdmin(three.bootstrap)
    yield admin
    admin.close()
    del admin
    gc.collect()


def eventually(claim, within_s=40.0):
    deadline = time.monotonic() + within_s
    while not (value := claim()):
        assert time.monotonic() < deadline, value
        time.sleep(0.2)
    return value


def partition(admin, topic, number=0):
    found = admin.topics().get(topic)
    return found["partitions"][number] if found and found["partitions"] else None


def test_brokers_are_listed_with_their_racks(admin):
    assert [(b["id"], b["rack"], b["fenced"]) for b in admin.brokers()] == [
        (0, "a", False),
        (1, "b", False),
        (2, "c", False),
    ]


def test_replicas_that_move_are_seen_moving_with_the_target_first_and_then_at_their_place(admin):
    admin.create_topic("moving", {0: [0]}, {})
    eventually(lambda: (p := partition(admin, "moving")) and p["isr"] == [0])
    admin.reassign_partitions("moving", {0: [2, 1]})
    seen = admin.topics()["moving"]
    if seen["reassigning"]:  # a small topic may have moved already
        assert seen["partitions"][0]["replicas"][:2] == [2, 1]
    eventually(lambda: not admin.topics()["moving"]["reassigning"])
    # The controller knows of the end a moment before the brokers do.
    eventually(lambda: partition(admin, "moving")["replicas"] == [2, 1], within_s=5.0)
    admin.reassign_partitions("moving", {0: [2, 1]})
    assert admin.topics()["moving"]["reassigning"] == []
    admin.delete_topic("moving")


def test_reordered_replicas_keep_their_leader_until_an_election(admin):
    admin.create_topic("order", {0: [0, 1]}, {})
    eventually(lambda: (p := partition(admin, "order")) and sorted(p["isr"]) == [0, 1])
    admin.reassign_partitions("order", {0: [1, 0]})
    eventually(lambda: partition(admin, "order")["replicas"] == [1, 0])
    assert partition(admin, "order")["leader"] == 0
    admin.elect_leaders("order", [0])
    eventually(lambda: partition(admin, "order")["leader"] == 1)
    admin.delete_topic("order")


def test_a_killed_broker_is_fenced_and_what_the_others_know_can_still_be_read(three, admin):
    admin.create_topic("there", {0: [0, 1], 1: [1, 0], 2: [2, 0]}, {})
    admin.create_topic("alone", {0: [2]}, {})
    eventually(lambda: (p := partition(admin, "alone")) and p["leader"] == 2)
    admin.initialize_offsets(GROUP, "there", [0, 1, 2], "latest")
    admin.initialize_offsets("kafka.shop.alone.u1", "alone", [0], "latest")
    three.kill_broker(2)
    try:
        eventually(lambda: [b["id"] for b in admin.brokers() if b["fenced"]] == [2])
        assert [b["last_seen"] is None for b in admin.brokers()] == [False, False, True]
        assert [b["rack"] for b in admin.brokers()] == ["a", "b", "c"]
        eventually(lambda: partition(admin, "there", 2)["leader"] == 0)
        assert partition(admin, "alone")["leader"] == -1
        ports = Ports(registry=FakeRegistry(), workloads=FakeWorkloads(), kafka=admin)

        def settled():
            document = observe(ports, now=NOW).document
            return document if document["lag"] and GROUP in document["lag"] else None

        started = time.monotonic()
        document = eventually(settled)
        assert time.monotonic() - started < 40
        assert document["topics"]["there"]["configs"] is not None
        # Its group's coordinator moved to a live broker; the end of a log without a leader is not known.
        eventually(lambda: observe(ports, now=NOW).document["lag"][GROUP]["partitions"] == {"0": 0, "1": 0, "2": 0})
        alone = eventually(lambda: observe(ports, now=NOW).document["lag"].get("kafka.shop.alone.u1"))
        assert alone["partitions"] == {"0": None}
    finally:
        three.start_broker(2)
    eventually(lambda: not any(b["fenced"] for b in admin.brokers()))
    eventually(lambda: sorted(partition(admin, "there", 2)["isr"]) == [0, 2])
    admin.elect_leaders("there", [0, 1, 2])
    eventually(lambda: [p["leader"] for p in admin.topics()["there"]["partitions"]] == [0, 1, 2])
