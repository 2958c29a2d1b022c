"""Preferred leaders of any topic: what an operator asks for by hand, with what stands in the way."""

from __future__ import annotations

import pytest

from orchestration.planning.elections import plan_elections
from tests.planning.worlds import away, broker, document, read, topic

BROKERS = [broker(0), broker(1), broker(2)]


def world(**topics):
    return read({**document(brokers=BROKERS), "topics": topics})


def elected(plan):
    return {a.topic: a.partitions for a in plan.actions}


def test_the_whole_cluster_or_some_topics_can_be_asked_for():
    snapshot = world(
        a=topic([[0, 1], [1, 2]], leaders={1: 2}), b=topic([[2, 0]], leaders={0: 0}), c=topic([[0, 1], [1, 0]])
    )

    assert elected(plan_elections(snapshot, cause="operator")) == {"a": (1,), "b": (0,)}
    assert elected(plan_elections(snapshot, ["b", "c"], cause="operator")) == {"b": (0,)}


def test_a_preview_says_which_partitions_keep_a_wrong_leader_and_why():
    brokers = [broker(0), away(1, 5), broker(2)]
    snapshot = read(
        {
            **document(brokers=brokers),
            "topics": {"a": topic([[1, 0], [2, 0], [0, 2]], leaders={0: 0, 1: 0, 2: 2}, isr={1: [0]})},
        }
    )
    plan = plan_elections(snapshot, cause="operator")

    reasons = [w.reason for w in plan.waiting]
    assert any("partition 0" in r and "not up" in r for r in reasons)
    assert any("partition 1" in r and "not in sync" in r for r in reasons)


def test_a_topic_whose_replicas_move_is_left_until_they_have_arrived():
    plan = plan_elections(world(a=topic([[0, 1]], leaders={0: 1}, reassigning=[0])), cause="operator")

    assert plan.is_empty
    assert plan.waiting


def test_a_topic_that_is_not_there_is_told():
    plan = plan_elections(world(a=topic([[0]])), ["zzz"], cause="operator")

    assert [r.reason for r in plan.rejected] == ["there is no topic zzz"]


@pytest.mark.parametrize("part", ["brokers", "topics"])
def test_without_brokers_or_topics_nothing_is_asked_for(part):
    snapshot = read({**document(brokers=BROKERS, topics={"a": topic([[0, 1]], leaders={0: 1})}), part: None})

    plan = plan_elections(snapshot, cause="operator")
    assert plan.is_empty
    assert plan.waiting
    assert plan.summary
