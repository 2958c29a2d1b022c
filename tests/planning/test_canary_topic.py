"""What is done for the canary's topic in one given world."""

from __future__ import annotations

import pytest

from tests.planning.worlds import (
    CANARY_TOPIC,
    actions,
    away,
    broker,
    canary_configs,
    canary_topic,
    channel,
    decide_document,
    document,
    kinds,
    reasons,
    topic,
)

THREE = [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
FIVE = [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 0], [4, 0, 1]]


def world(brokers, existing=None, **more):
    topics = {} if existing is None else {CANARY_TOPIC: existing}
    return {**document(brokers=brokers), "topics": topics, **more}


def up(*ids):
    return [broker(number) for number in ids]


def test_a_missing_topic_is_created_with_a_partition_for_each_broker():
    (create,) = actions(world(up(0, 1, 2)))

    assert create["kind"] == "CreateTopic"
    assert create["cause"] == "canary"
    assert create["why"]
    assert create["topic"] == CANARY_TOPIC
    assert create["assignments"] == {"0": [0, 1, 2], "1": [1, 2, 0], "2": [2, 0, 1]}
    assert create["configs"] == canary_configs(2)


@pytest.mark.parametrize(("count", "factor", "min_isr"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (4, 3, 2), (10, 3, 2)])
def test_replicas_and_min_isr_follow_the_number_of_brokers(count, factor, min_isr):
    (create,) = actions(world(up(*range(count))))

    assert len(create["assignments"]) == count
    assert {len(replicas) for replicas in create["assignments"].values()} == {factor}
    assert create["configs"]["min.insync.replicas"] == str(min_isr)


def test_ids_of_brokers_are_never_taken_for_numbers_of_partitions():
    (create,) = actions(world(up(30, 10, 20)))

    assert create["assignments"] == {"0": [10, 20, 30], "1": [20, 30, 10], "2": [30, 10, 20]}


def test_a_steady_state_causes_no_write():
    plan = decide_document(world(up(0, 1, 2), canary_topic(THREE)))

    assert plan["actions"] == []
    assert plan["rejected"] == []
    assert plan["waiting"] == []


def test_a_layout_that_is_as_good_as_ours_is_kept():
    """Made by other hands: each broker leads one, replicas are evenly spread. A move would gain nothing."""
    assert actions(world(up(0, 1, 2), canary_topic([[2, 1, 0], [0, 2, 1], [1, 0, 2]]))) == []


def test_followers_that_are_all_on_the_same_brokers_are_spread():
    """Every broker leads one, but ten partitions of three replicas must not live on three brokers (the proposal)."""
    crowded = canary_topic([[0, 1, 2], [1, 0, 2], [2, 0, 1], [3, 0, 1], [4, 0, 1]])

    assert kinds(world(up(0, 1, 2, 3, 4), crowded)) == ["ReassignPartitions"]


def test_scale_up_moves_first_and_creates_in_a_later_plan():
    plan = decide_document(world(up(0, 1, 2, 3, 4), canary_topic(THREE)))

    (move,) = plan["actions"]
    assert move["kind"] == "ReassignPartitions"
    assert move["assignments"] == {"1": [1, 2, 3], "2": [2, 3, 4]}
    assert any("partitions 3 and 4" in w["reason"] for w in plan["waiting"])


def test_after_the_move_partitions_are_created_with_the_replicas_that_partition_0_has():
    (create,) = actions(world(up(0, 1, 2, 3, 4), canary_topic(FIVE[:3])))

    assert create["kind"] == "CreatePartitions"
    assert create["partitions"] == 5
    assert create["assignments"] == {"3": [3, 4, 0], "4": [4, 0, 1]}


def test_from_one_broker_to_three_min_isr_is_raised_last():
    first = decide_document(world(up(0, 1, 2), canary_topic([[0]])))
    second = actions(world(up(0, 1, 2), topic([[0, 1, 2]], configs=canary_configs(1))))

    assert [a["kind"] for a in first["actions"]] == ["ReassignPartitions"]
    assert [a["kind"] for a in second] == ["CreatePartitions", "AlterTopicConfig"]
    assert second[1]["configs"] == {"min.insync.replicas": "2"}


def test_min_isr_is_lowered_before_there_are_fewer_replicas():
    gone = [broker(0), away(1, 3600), away(2, 3600)]

    lower, move = actions(world(gone, canary_topic(THREE)))

    assert lower["kind"] == "AlterTopicConfig"
    assert lower["configs"] == {"min.insync.replicas": "1"}
    assert move["kind"] == "ReassignPartitions"
    assert move["assignments"] == {"0": [0], "1": [0], "2": [0]}


def test_min_isr_above_the_replicas_is_mended():
    """What the Go program leaves behind when it goes from three brokers to one."""
    (alter,) = actions(world(up(0), topic([[0]], configs=canary_configs(2))))

    assert alter["configs"] == {"min.insync.replicas": "1"}


def test_min_isr_is_not_raised_while_replicas_are_out_of_sync():
    existing = topic(THREE, configs=canary_configs(1), isr={1: [1]})

    assert actions(world(up(0, 1, 2), existing)) == []
    assert any("partition 1" in reason for reason in reasons(world(up(0, 1, 2), existing), "waiting"))


def test_configs_are_changed_one_by_one_and_others_are_left():
    configs = {**canary_configs(2), "retention.ms": "604800000", "compression.type": "zstd"}
    del configs["segment.ms"]

    (alter,) = actions(world(up(0, 1, 2), topic(THREE, configs=configs)))

    assert alter["kind"] == "AlterTopicConfig"
    assert alter["configs"] == {"retention.ms": "600000", "segment.ms": "600000"}


def test_nothing_is_done_while_any_replica_of_the_topic_moves():
    moving = canary_topic([[0, 1, 2], [1, 2, 3, 0], [2, 3, 4, 0, 1]], reassigning=[1, 2], leaders={0: 1})
    plan = decide_document(world(up(0, 1, 2, 3, 4), moving))

    assert plan["actions"] == []
    assert any("partitions 1 and 2" in w["reason"] for w in plan["waiting"])


def test_nothing_is_done_when_it_is_not_known_whether_replicas_move():
    unknown = {**canary_topic(FIVE[:3]), "reassigning": None}

    assert actions(world(up(0, 1, 2, 3, 4), unknown)) == []
    assert reasons(world(up(0, 1, 2, 3, 4), unknown), "waiting", about="canary")


# --- membership


@pytest.mark.parametrize(
    "absent",
    [
        pytest.param(away(1, 30), id="away for half a minute"),
        pytest.param(away(1, 599), id="away for a second less than the grace time"),
        pytest.param(away(1, None), id="not known since when"),
        pytest.param(away(1, -5), id="its clock is ahead of ours"),
    ],
)
def test_a_broker_that_is_away_within_the_grace_time_causes_no_write(absent):
    existing = canary_topic(THREE, leaders={1: 2}, isr={0: [0, 2], 1: [2, 0], 2: [2, 0]})

    assert actions(world([broker(0), absent, broker(2)], existing)) == []


@pytest.mark.parametrize("seconds", [600, 601, 86400])
def test_a_broker_that_is_away_for_the_grace_time_counts_as_gone(seconds):
    existing = canary_topic(THREE, leaders={1: 2}, isr={0: [0, 2], 1: [2, 0], 2: [2, 0]})

    assert kinds(world([broker(0), away(1, seconds), broker(2)], existing)) == [
        "AlterTopicConfig",
        "ReassignPartitions",
    ]


def test_the_grace_time_is_a_matter_of_policy():
    absent = world([broker(0), away(1, 60), broker(2)], canary_topic(THREE, leaders={1: 2}))

    assert kinds({**absent, "policy": {"canary": {"grace_seconds": 60}}}) == ["AlterTopicConfig", "ReassignPartitions"]
    assert kinds({**absent, "policy": {"canary": {"grace_seconds": 61}}}) == []


def test_a_broker_that_vanished_from_the_list_is_gone():
    assert kinds(world(up(0, 2), canary_topic(THREE, leaders={1: 2}))) == ["AlterTopicConfig", "ReassignPartitions"]


def test_with_expected_brokers_nothing_that_is_away_counts_as_gone():
    absent = [broker(0), away(1, 86400), broker(2)]
    existing = canary_topic(THREE, leaders={1: 2}, isr={n: [0, 2] for n in range(3)})

    assert actions(world(absent, existing, expected_brokers=3)) == []


def test_with_expected_brokers_a_vanished_one_is_waited_for():
    existing = canary_topic(THREE, leaders={1: 2})

    assert actions(world(up(0, 2), existing, expected_brokers=3)) == []
    assert any("2 of the 3" in r for r in reasons(world(up(0, 2), existing, expected_brokers=3), "waiting"))


def test_a_missing_topic_waits_for_all_expected_brokers():
    assert actions(world(up(0, 1), expected_brokers=3)) == []
    assert kinds(world(up(0, 1, 2), expected_brokers=3)) == ["CreateTopic"]


def test_more_brokers_than_expected_is_a_contradiction_and_said():
    plan = decide_document(world(up(0, 1, 2, 3), canary_topic(THREE), expected_brokers=3))

    assert plan["actions"] == []
    assert any(r["object"] == "canary" and "4 brokers" in r["reason"] for r in plan["rejected"])


@pytest.mark.parametrize("brokers", [None, []])
def test_an_unreadable_or_empty_list_of_brokers_changes_nothing(brokers):
    plan = decide_document(world(brokers, canary_topic(THREE)))

    assert plan["actions"] == []
    assert any(w["object"] == "canary" for w in plan["waiting"])


def test_all_brokers_away_changes_nothing():
    assert actions(world([away(0, 7200), away(1, 7200)], canary_topic([[0, 1], [1, 0]]))) == []
    assert actions(world([away(0, 60), away(1, 60)])) == []


def test_unreadable_topics_are_not_missing_topics():
    assert actions({**world(up(0, 1, 2)), "topics": None}) == []


@pytest.mark.parametrize(
    "partitions",
    [
        pytest.param(None, id="none could be read"),
        pytest.param([{"id": 1, "replicas": [1], "isr": [1], "leader": 1}], id="partition 0 is missing"),
        pytest.param([{"id": 0, "replicas": None, "isr": None, "leader": None}], id="replicas unknown"),
        pytest.param([], id="no partition at all"),
    ],
)
def test_a_topic_that_was_read_in_part_is_left_alone(partitions):
    partial = {"partitions": partitions, "reassigning": [], "configs": canary_configs(2)}

    assert actions(world(up(0, 1, 2), partial)) == []
    assert reasons(world(up(0, 1, 2), partial), "waiting", about="canary")


def test_moves_wait_for_a_broker_that_is_away_and_would_get_a_replica():
    brokers = [broker(0), broker(1), away(2, 60), broker(3)]
    existing = canary_topic(THREE, isr={n: [0, 1] for n in range(3)})

    plan = decide_document(world(brokers, existing))

    assert [a["kind"] for a in plan["actions"]] == []
    assert any("broker 2 is away" in w["reason"] for w in plan["waiting"])


# --- racks


def test_racks_of_unequal_size_still_give_every_partition_three_racks():
    racks = {0: "a", 1: "a", 2: "a", 3: "b", 4: "c"}
    (create,) = actions(world([broker(n, rack) for n, rack in racks.items()]))

    for replicas in create["assignments"].values():
        assert {racks[b] for b in replicas} == {"a", "b", "c"}
    assert sorted(replicas[0] for replicas in create["assignments"].values()) == [0, 1, 2, 3, 4]


def test_a_topic_that_ignores_racks_is_moved():
    racks = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}
    existing = canary_topic([[n, (n + 1) % 6, (n + 2) % 6] for n in range(6)])

    (move,) = actions(world([broker(n, rack) for n, rack in racks.items()], existing))

    assert move["kind"] == "ReassignPartitions"


def test_racks_known_in_part_are_ignored_and_nothing_moves_for_it():
    """In a rolling restart the rack of the stopped broker may be unknown: that is no reason to write."""
    existing = canary_topic([[0, 1, 3], [1, 3, 5], [3, 5, 2], [5, 2, 4], [2, 4, 0], [4, 0, 1]])
    racks = {0: "r1", 1: "r3", 2: "r3", 3: "r2", 4: "r2", 5: "r1"}
    brokers = [broker(n, rack) for n, rack in racks.items() if n != 4] + [away(4, 20)]

    assert actions(world(brokers, existing)) == []
    assert any("broker 4" in reason for reason in reasons(world(brokers, existing), "waiting"))


# --- elections


def test_a_wrong_leader_is_mended_where_the_first_replica_is_up_and_in_sync():
    (elect,) = actions(world(up(0, 1, 2), canary_topic(THREE, leaders={1: 2, 2: 0})))

    assert elect["kind"] == "ElectLeaders"
    assert elect["partitions"] == [1, 2]


@pytest.mark.parametrize(
    ("brokers", "isr"),
    [
        pytest.param(up(0, 1, 2), {1: [2, 0]}, id="first replica out of sync"),
        pytest.param([broker(0), away(1, 60), broker(2)], {}, id="first replica away"),
    ],
)
def test_no_election_that_cannot_succeed_is_asked_for(brokers, isr):
    existing = canary_topic(THREE, leaders={1: 2}, isr=isr)

    assert actions(world(brokers, existing)) == []
    assert any("partition 1" in reason for reason in reasons(world(brokers, existing), "waiting"))


def test_a_partition_without_leader_is_elected_when_its_first_replica_is_back():
    (elect,) = actions(world(up(0, 1, 2), canary_topic(THREE, leaders={0: -1})))

    assert elect["partitions"] == [0]


def test_an_unknown_leader_is_not_a_wrong_one():
    existing = canary_topic(THREE)
    existing["partitions"][1]["leader"] = None

    assert actions(world(up(0, 1, 2), existing)) == []


# --- policy


def test_a_segment_size_below_kafkas_least_is_raised_and_said():
    doc = {**world(up(0)), "policy": {"canary": {"configs": {"segment.bytes": "16384"}}}}
    plan = decide_document(doc)

    assert plan["actions"][0]["configs"]["segment.bytes"] == "1048576"
    assert any("16384" in r["reason"] and "1048576" in r["reason"] for r in plan["rejected"])


def test_configs_of_the_policy_go_over_ours():
    configs = {"retention.ms": "60000", "segment.bytes": "2097152", "compression.type": "lz4"}
    (create,) = actions({**world(up(0)), "policy": {"canary": {"configs": configs}}})

    assert create["configs"] == {**canary_configs(1), **configs}


def test_cleanup_and_min_isr_are_not_the_policys_to_choose():
    doc = {
        **world(up(0, 1, 2)),
        "policy": {"canary": {"configs": {"cleanup.policy": "compact", "min.insync.replicas": "3"}}},
    }
    plan = decide_document(doc)

    assert plan["actions"][0]["configs"]["cleanup.policy"] == "delete"
    assert plan["actions"][0]["configs"]["min.insync.replicas"] == "2"
    assert len(plan["rejected"]) == 2


def test_another_topic_name_leaves_the_default_one_alone():
    doc = {**world(up(0), canary_topic([[0]])), "policy": {"canary": {"topic": "probe"}}}

    assert [(a["kind"], a["topic"]) for a in actions(doc)] == [("CreateTopic", "probe")]


@pytest.mark.parametrize("existing", [None, canary_topic(THREE), canary_topic([[0, 1, 2]], leaders={0: 1})])
def test_without_the_right_to_manage_topics_nothing_is_written_and_it_is_said(existing):
    doc = {**world(up(0, 1, 2, 3), existing), "policy": {"canary": {"manage_topic": False}}}

    assert actions(doc) == []
    assert any("manage_topic" in reason for reason in reasons(doc, "waiting", about="canary"))


@pytest.mark.parametrize("cleanup", ["compact", "compact,delete"])
def test_a_compacted_topic_of_that_name_is_somebody_elses(cleanup):
    foreign = topic([[0], [0]], configs={"cleanup.policy": cleanup})

    assert actions(world(up(0, 1, 2), foreign)) == []
    assert any("compact" in reason for reason in reasons(world(up(0, 1, 2), foreign), "rejected", about="canary"))


def test_the_topic_of_a_channel_is_never_made_the_canarys():
    """retention.ms of ten minutes on somebody's events would destroy them."""
    owned = channel(status={"annotations": {"default.topic": "shop.orders"}})
    doc = document(
        channels=[owned],
        topics={"shop.orders": topic([[0], [0]])},
        policy={"canary": {"topic": "shop.orders"}},
    )

    assert actions(doc, cause="canary") == []
    assert any("shop/orders" in reason for reason in reasons(doc, "rejected", about="canary"))
