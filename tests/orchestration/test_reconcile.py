"""One round after the other, over fakes of the whole world: what is there in the end, and what a failure costs."""

from __future__ import annotations

import pytest

from eventing.errors import Conflict, Forbidden, Refused, Unavailable
from orchestration.apply import GIVE_UP_AFTER, REASON_FAILED, apply
from orchestration.planning.planner import plan
from tests.orchestration.worlds import World, channel, subscriber


def test_a_new_channel_gets_all_that_it_needs_and_then_nothing_more():
    world = World(channel())
    world.settle()
    assert set(world.kafka.partitions) == {"__strimzi_canary", "shop.orders", "shop.orders.dead-letter"}
    assert world.kafka.committed == {"kafka.shop.orders.u1": {("shop.orders", 0): 0, ("shop.orders", 1): 0}}
    assert len(world.workloads.deployments) == 2
    assert list(world.workloads.services) == [("shop", "orders-kn-channel")]
    assert world.condition()["status"] == "True"
    world.forget_writes()
    assert world.reconcile().plan.actions == ()
    assert world.writes == []


def test_what_is_not_ready_yet_is_said_on_the_channel():
    world = World(channel())
    world.reconcile()
    assert world.condition()["status"] == "False"
    assert world.condition()["reason"] == "DispatcherNotReady"


def test_a_removed_channel_goes_in_order_dispatcher_first_then_the_topic():
    world = World(channel())
    world.settle()
    world.forget_writes()
    world.registry.remove("shop", "orders")
    done = world.settle()
    kinds = [kind for kind, _ in [*world.workloads.writes, *world.kafka.writes]]
    assert kinds.index("delete_deployment") < kinds.index("delete_topic")
    assert set(world.kafka.partitions) == {"__strimzi_canary"}
    assert world.kafka.committed == {}
    assert world.registry.list_channels().channels == []
    assert done.plan.actions == ()


def test_more_partitions_start_their_groups_at_the_earliest():
    world = World(channel())
    world.settle()
    world.kafka.produce("shop.orders", 0, 5)
    world.registry.declare(channel(numPartitions=4))
    world.settle()
    assert len(world.kafka.partitions["shop.orders"]) == 4
    assert world.kafka.committed["kafka.shop.orders.u1"][("shop.orders", 3)] == 0


def test_a_subscriber_that_left_leaves_no_group_behind():
    world = World(channel(subscribers=[subscriber("u1"), subscriber("u2")]))
    world.settle()
    world.registry.declare(channel(subscribers=[subscriber("u2")]))
    world.settle()
    assert list(world.kafka.committed) == ["kafka.shop.orders.u2"]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (Unavailable("Kafka", "no answer in time"), "it is tried again by itself; if it lasts, see that Kafka is up"),
        (Refused("Kafka", "INVALID_CONFIG"), "change the declaration, or what the answer complains about"),
        (Forbidden("Kafka", "CLUSTER_AUTHORIZATION_FAILED"), "give orchestration the right to do this in Kafka"),
        (Conflict("Kafka", "it has members"), "something changed meanwhile; it is planned anew"),
    ],
    ids=["unavailable", "refused", "forbidden", "conflict"],
)
def test_a_failure_is_said_on_its_channel_with_what_to_do(error, advice):
    world = World(channel())
    world.kafka.failures["initialize_offsets"] = error
    done = world.reconcile()
    assert not done.succeeded
    ready = world.condition()
    assert (ready["status"], ready["reason"]) == ("False", REASON_FAILED)
    assert ready["message"].startswith(f"InitializeOffsets kafka.shop.orders.u1: {error}")
    assert advice in ready["message"]


def test_a_failure_stops_the_later_actions_of_its_own_channel_and_no_other():
    world = World(channel("bad"), channel("good"))
    real = world.kafka.create_topic

    def create_topic(topic, assignments, configs):
        if topic == "shop.bad":
            raise Refused("Kafka", "no")
        real(topic, assignments, configs)

    world.kafka.create_topic = create_topic
    done = world.reconcile()
    results = {(o.action.cause, o.action.kind): o.result for o in done.applied.outcomes}
    assert results["shop/bad", "CreateTopic"] == "skipped"  # the dead-letter topic, after the first that failed
    assert results["shop/bad", "ApplyDeployment"] == "skipped"
    assert {r for (cause, _), r in results.items() if cause == "shop/good"} == {"done"}
    world.workloads.settle()
    world.reconcile()
    assert world.condition("good")["status"] == "True"


def test_what_failed_is_done_by_a_later_round_and_the_condition_goes():
    world = World(channel())
    world.kafka.failures["create_topic"] = Unavailable("Kafka", "down")
    assert not world.reconcile().succeeded
    assert world.condition()["reason"] == REASON_FAILED
    world.kafka.failures.clear()
    world.settle()
    assert world.condition()["status"] == "True"
    assert "message" not in world.condition()


def test_a_failure_that_lasts_writes_its_condition_once():
    world = World(channel())
    world.kafka.failures["initialize_offsets"] = Refused("Kafka", "no")
    world.reconcile()
    before = world.condition()
    world.later(minutes=5)
    world.reconcile()
    assert world.condition() == before


def test_a_silent_system_costs_a_few_timeouts_and_not_one_for_each_channel():
    world = World(*(channel(f"c{n}") for n in range(20)))
    calls = []

    def create_topic(*_):
        calls.append(1)
        raise Unavailable("Kafka", "no answer in time")

    world.kafka.create_topic = create_topic
    done = world.reconcile()
    assert len(calls) == GIVE_UP_AFTER
    assert world.condition("c19")["reason"] == REASON_FAILED
    assert "did not answer" in world.condition("c19")["message"]
    assert not done.succeeded


def test_what_cannot_be_read_causes_nothing():
    world = World(channel())
    world.settle()
    world.forget_writes()
    for port, method in [
        (world.kafka, "brokers"),
        (world.kafka, "topics"),
        (world.kafka, "lag"),
        (world.workloads, "list_deployments"),
        (world.workloads, "list_services"),
        (world.registry, "list_channels"),
    ]:
        port.failures[method] = Unavailable("it", "is away")
        done = world.reconcile()
        assert done.observation.unreadable == ("it is unavailable: is away",)
        port.failures.clear()
    assert world.writes == []


def test_a_registry_that_vanished_deletes_no_dispatcher():
    world = World(channel())
    world.settle()
    world.registry.failures["list_channels"] = Unavailable("registry", "the folder is gone")
    world.reconcile()
    assert len(world.workloads.deployments) == 2


def test_a_failure_that_cannot_be_said_on_its_channel_is_in_the_outcome():
    world = World(channel())
    world.settle()
    world.registry.declare(channel(numPartitions=3))
    world.kafka.failures["create_partitions"] = Refused("Kafka", "no")
    world.registry.failures["update_status"] = Unavailable("registry", "read-only")
    done = world.reconcile()
    assert done.applied.unreported == ("shop/orders: registry is unavailable: read-only",)


def test_applying_a_plan_twice_is_success_and_changes_nothing():
    world = World(channel())
    observation = world.reconcile().observation
    decided = plan(observation.snapshot, world.policy, world.now)
    before = (world.kafka.partitions, world.kafka.committed, world.workloads.deployments)
    again = apply(decided, world.ports, now=world.now)
    assert not again.failed
    assert before == (world.kafka.partitions, world.kafka.committed, world.workloads.deployments)


def test_the_outcome_says_what_was_done_why_and_for_whom():
    world = World(channel())
    document = world.reconcile().to_document()
    assert set(document) == {"summary", "actions", "rejected", "waiting", "unreadable", "unreported"}
    first = document["actions"][0]
    assert set(first) == {"kind", "cause", "target", "why", "result", "error", "advice", "seconds"}
    assert all(action["why"] and action["cause"] for action in document["actions"])


# ---------------------------------------------------------------------- memory of brokers


def test_a_broker_that_is_away_is_remembered_once_and_forgotten_when_it_is_back():
    world = World(channel(), brokers=3)
    world.settle()
    world.settle()
    world.kafka.fence(2)
    world.later(seconds=30)
    world.forget_writes()
    world.reconcile()
    assert [write for write in world.workloads.writes if write[0] == "scale_deployment"] == [
        ("scale_deployment", "sluice-canary")
    ]
    world.forget_writes()
    world.later(seconds=30)
    observed = world.reconcile().observation.document["brokers"]
    assert observed[2] == {"id": 2, "rack": None, "fenced": True, "last_seen": "2026-11-20T03:00:30Z"}
    assert world.workloads.writes == []
    world.kafka.fence(2, fenced=False)
    world.reconcile()
    assert world.reconcile().observation.document["brokers"][2]["last_seen"] == "2026-11-20T03:01:00Z"


def test_a_broker_that_is_no_longer_listed_is_still_known():
    world = World(channel(), brokers=3)
    world.settle()
    world.settle()
    world.kafka.broker_list = [broker for broker in world.kafka.broker_list if broker["id"] != 1]
    world.later(seconds=30)
    world.reconcile()
    found = world.reconcile().observation.document["brokers"]
    assert [broker["id"] for broker in found] == [0, 1, 2]
    assert found[1] == {"id": 1, "rack": None, "fenced": True, "last_seen": "2026-11-20T03:00:30Z"}


def test_a_rolling_restart_writes_nothing_to_kafka_but_elections():
    world = World(channel(), brokers=3)
    world.settle()
    world.settle()
    world.forget_writes()
    for broker in range(3):
        world.kafka.fence(broker)
        world.later(seconds=20)
        world.reconcile()
        world.kafka.fence(broker, fenced=False)
        for partitions in world.kafka.partitions.values():
            for partition in partitions.values():
                partition["isr"] = list(partition["replicas"])
        world.later(seconds=20)
        world.reconcile()
    assert {kind for kind, _ in world.kafka.writes} <= {"elect_leaders"}
