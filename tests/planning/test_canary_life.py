"""The canary's topic through time: clusters that grow, shrink, restart and lose brokers."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestration.planning.world import apply_to, settle
from tests.planning.worlds import (
    CANARY_TOPIC,
    actions,
    away,
    broker,
    canary_configs,
    converge,
    decide,
    document,
    go_rule,
    read,
    shuffled,
)


def cluster(racks, snapshot=None):
    """A snapshot document with these brokers (id → rack), and the topics of an earlier snapshot."""
    doc = document(brokers=[broker(number, rack) for number, rack in sorted(racks.items())])
    doc["topics"] = {} if snapshot is None else snapshot.to_document()["topics"]
    return doc


def lists(snapshot):
    return [list(p.replicas) for p in snapshot.topics[CANARY_TOPIC].partitions]


def probed(snapshot):
    """First replicas of the partitions that the canary probes: orphans have one that a lower partition has."""
    leaders = {}
    for number, replicas in enumerate(lists(snapshot)):
        leaders.setdefault(replicas[0], number)
    return leaders


def assert_as_wanted(snapshot, racks):
    count, factor = len(racks), min(3, len(racks))
    topic = snapshot.topics[CANARY_TOPIC]
    assert set(probed(snapshot)) == set(racks), "every broker leads exactly one probed partition"
    assert len(topic.partitions) >= count
    for partition in topic.partitions:
        assert len(set(partition.replicas)) == factor
        assert set(partition.replicas) <= set(racks)
        assert partition.leader == partition.replicas[0]
        if all(racks.values()):
            assert len({racks[b] for b in partition.replicas}) == min(factor, len(set(racks.values())))
    assert topic.configs["min.insync.replicas"] == str(max(1, factor - 1))
    carried = Counter(b for partition in topic.partitions[:count] for b in partition.replicas)
    if len(set(racks.values())) == 1:
        assert max(carried.values()) - min(carried.values()) <= 1


def test_one_to_three_to_five_to_three_to_five_to_ten():
    snapshot = None
    partitions = 0
    for count in (1, 3, 5, 3, 5, 10):
        racks = dict.fromkeys(range(count))
        snapshot, plans = converge(cluster(racks, snapshot))

        assert_as_wanted(snapshot, racks)
        created = [a for p in plans for a in p.actions if a.kind in {"CreateTopic", "CreatePartitions"}]
        assert bool(created) == (count > partitions), "scaling down or up again creates nothing"
        partitions = max(partitions, count)
        assert len(lists(snapshot)) == partitions
        assert lists(snapshot) == go_rule(racks.items(), partitions)


sizes = st.lists(st.integers(1, 12), min_size=1, max_size=5)


@given(sizes, st.sampled_from([1, 2, 3, 5]), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_any_life_of_a_cluster_ends_as_wanted(life, rack_count, rng):
    ids = rng.sample(range(100, 400), 12)
    snapshot = None
    for count in life:
        racks = {number: f"rack-{n % rack_count}" for n, number in enumerate(rng.sample(ids, count))}
        snapshot, plans = converge(cluster(racks, snapshot))

        assert_as_wanted(snapshot, racks)
        for plan in plans:
            for action in plan.actions:
                assert action.cause == "canary"
                assert action.why


@given(sizes, st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_every_step_is_one_that_kafka_takes(life, rng):
    """The controller's rules (facts: kafka-canary 3a), checked on each action as it is applied."""
    snapshot = None
    for count in life:
        members = set(rng.sample(range(30), count))
        snapshot = read(cluster(dict.fromkeys(members), snapshot))
        for _ in range(10):
            plan = decide(snapshot)
            if plan.is_empty:
                break
            world = snapshot
            for action in plan.actions:
                topic = (world.topics or {}).get(CANARY_TOPIC)
                if action.kind == "CreateTopic":
                    assert topic is None
                else:
                    assert topic is not None
                    factor = len(topic.partitions[0].replicas)
                if action.kind == "CreatePartitions":
                    assert not topic.reassigning
                    assert {len(r) for r in action.assignments.values()} == {factor}
                    assert sorted(action.assignments) == list(range(len(topic.partitions), action.partitions))
                if action.kind in {"CreateTopic", "CreatePartitions", "ReassignPartitions"}:
                    for replicas in action.assignments.values():
                        assert set(replicas) <= members
                        assert len(set(replicas)) == len(replicas)
                if action.kind == "ReassignPartitions":
                    assert not topic.reassigning
                    fewest = min(map(len, action.assignments.values()))
                    assert int(topic.configs["min.insync.replicas"]) <= fewest, "lowered before it falls"
                    assert all(topic.partitions[p].replicas != r for p, r in action.assignments.items())
                if action.kind == "AlterTopicConfig" and "min.insync.replicas" in action.configs:
                    assert int(action.configs["min.insync.replicas"]) <= factor, "raised after it has grown"
                if action.kind == "ElectLeaders":
                    for number in action.partitions:
                        partition = topic.partitions[number]
                        assert partition.replicas[0] in partition.isr
                        assert partition.leader != partition.replicas[0]
                world = apply_to(world, [action])
            snapshot = settle(world, plan)
        else:
            raise AssertionError("it does not come to rest")


@given(sizes, st.integers(0, 1000))
@settings(max_examples=30)
def test_a_plan_that_was_applied_leaves_nothing_to_do_until_the_moves_end(life, seed):
    snapshot = None
    for count in life:
        doc = cluster({n: "abc"[n % 3] for n in range(count)}, snapshot)
        plan = decide(doc)
        assert decide(shuffled(doc, seed)) == plan
        assert decide(apply_to(read(doc), plan)).actions == ()
        snapshot, _ = converge(doc)


@pytest.mark.parametrize("count", [1, 2, 3, 6, 10])
def test_a_rolling_restart_causes_no_write_but_the_elections_after_each_broker(count):
    racks = {n: f"rack-{n % 3}" for n in range(count)}
    snapshot, _ = converge(cluster(racks))
    steady = snapshot.to_document()["topics"]
    for restarting in range(count):
        doc = cluster(racks)
        doc["topics"] = steady
        doc["brokers"] = [away(n, 90, rack) if n == restarting else broker(n, rack) for n, rack in racks.items()]
        doc["topics"] = {CANARY_TOPIC: without(steady[CANARY_TOPIC], restarting)}
        assert actions(doc) == [], f"broker {restarting} is down"

        # It is back, but not yet in sync.
        doc["brokers"] = cluster(racks)["brokers"]
        assert actions(doc) == [], f"broker {restarting} is catching up"

        for partition in doc["topics"][CANARY_TOPIC]["partitions"]:
            partition["isr"] = partition["replicas"]
        assert [a["kind"] for a in actions(doc)] == ["ElectLeaders"]
        assert converge(doc)[0].to_document()["topics"] == steady


def without(topic, stopped):
    """The topic as Kafka shows it while one broker is down."""
    partitions = []
    for partition in topic["partitions"]:
        isr = [b for b in partition["isr"] if b != stopped]
        leader = partition["leader"] if partition["leader"] != stopped else (isr[0] if isr else -1)
        partitions.append({**partition, "isr": isr, "leader": leader})
    return {**topic, "partitions": partitions}


def test_a_rolling_restart_of_a_cluster_whose_brokers_forget_when_they_were_seen():
    racks = dict.fromkeys(range(3))
    snapshot, _ = converge(cluster(racks))
    doc = cluster(racks)
    doc["brokers"][1] = away(1, None)
    doc["topics"] = {CANARY_TOPIC: without(snapshot.to_document()["topics"][CANARY_TOPIC], 1)}

    assert actions(doc) == []


def test_a_broker_that_is_replaced_by_another_id_hands_over_its_partition():
    snapshot, _ = converge(cluster(dict.fromkeys((0, 1, 2))))
    snapshot, plans = converge(cluster(dict.fromkeys((0, 1, 7)), snapshot))

    assert_as_wanted(snapshot, dict.fromkeys((0, 1, 7)))
    assert {a.kind for p in plans for a in p.actions} == {"ReassignPartitions"}


def test_a_topic_of_the_go_program_gets_configs_and_keeps_its_place():
    """It had TOPIC_CONFIG empty, so only min ISR and cleanup.policy are set."""
    racks = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "c"}
    doc = cluster(racks)
    doc["topics"] = {
        CANARY_TOPIC: {
            "partitions": [
                {"id": n, "replicas": r, "isr": r, "leader": r[0]} for n, r in enumerate(go_rule(racks.items(), 6))
            ],
            "reassigning": [],
            "configs": {"cleanup.policy": "delete", "min.insync.replicas": "2"},
        }
    }

    assert [a["kind"] for a in actions(doc)] == ["AlterTopicConfig"]
    snapshot, _ = converge(doc)
    assert snapshot.topics[CANARY_TOPIC].configs == canary_configs(2)


def test_chaos_of_observations_never_writes_to_what_is_not_known():
    """Any part of a snapshot may be missing: what is then planned never goes beyond the full snapshot's plan."""
    rng = random.Random(7)
    full, _ = converge(cluster(dict.fromkeys(range(4))))
    for _ in range(200):
        doc = full.to_document()
        for part in rng.sample(["brokers", "topics", "lag", "channels", "deployments", "services"], rng.randint(1, 6)):
            doc[part] = None
        for partition in (doc["topics"] or {}).get(CANARY_TOPIC, {}).get("partitions", []):
            for key in rng.sample(["replicas", "isr", "leader"], rng.randint(0, 3)):
                partition[key] = None

        assert actions(doc) == []
