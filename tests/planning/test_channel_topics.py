"""Topics of channels: created, grown, never shrunk, and everything that stands in the way said on the object."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.planning.worlds import (
    CANARY_TOPIC,
    FINALIZER,
    actions,
    away,
    broker,
    channel,
    channel_configs,
    converge,
    decide_document,
    document,
    kinds,
    reasons,
    steady,
    topic,
)

THREE = [broker(0, "a"), broker(1, "b"), broker(2, "c")]
KEPT = {"annotations": {"default.topic": "shop.orders"}}


def only(doc, kind, name=None):
    """The one planned action of a kind, for a topic where it is named."""
    found = [a for a in actions(doc, kind, cause="shop/orders") if name in {None, a["topic"]}]
    assert len(found) == 1, found
    return found[0]


def closing(doc, about="shop/orders"):
    """The status after the plan, as far as the plan writes it."""
    return actions(doc, "UpdateStatus", cause=about)[-1]["status"]


def condition(doc, kind, about="shop/orders"):
    return next(c for c in closing(doc, about)["conditions"] if c["type"] == kind)


def test_what_a_new_channel_needs_comes_in_the_order_in_which_it_is_safe():
    assert kinds(document(channels=[channel()]), cause="shop/orders") == [
        "UpdateStatus",
        "CreateTopic",
        "CreateTopic",
        "InitializeOffsets",
        "ApplyDeployment",
        "ApplyService",
        "UpdateStatus",
    ]


def test_finalizer_and_topic_name_are_kept_before_anything_is_created():
    first = actions(document(channels=[channel(metadata={"finalizers": ["other/one"]})]), cause="shop/orders")[0]

    assert first["status"] == {"annotations": {"default.topic": "shop.orders"}}
    assert first["finalizers"] == ["other/one", FINALIZER]


def test_the_topic_is_created_as_declared():
    doc = document(brokers=THREE, channels=[channel(numPartitions=4, replicationFactor=3, retentionDuration="PT2H")])
    create = only(doc, "CreateTopic", "shop.orders")

    assert sorted(create["assignments"]) == ["0", "1", "2", "3"]
    assert create["configs"] == channel_configs(2, 7_200_000)
    for replicas in create["assignments"].values():
        assert sorted(replicas) == [0, 1, 2]


def test_the_dead_letter_topic_has_the_same_shape_and_keeps_for_four_weeks():
    doc = document(brokers=THREE, channels=[channel(numPartitions=4, replicationFactor=2)])
    create = only(doc, "CreateTopic", "shop.orders.dead-letter")

    assert sorted(create["assignments"]) == ["0", "1", "2", "3"]
    assert {len(r) for r in create["assignments"].values()} == {2}
    assert create["configs"] == channel_configs(1, 2_419_200_000)


def test_the_dead_letter_topic_can_be_switched_off():
    doc = document(channels=[channel(annotations={"sluice.dev/dead-letter-topic": "disabled"})])

    assert [a["topic"] for a in actions(doc, "CreateTopic")] == ["shop.orders"]


def test_a_dead_letter_topic_that_is_there_stays_when_it_is_switched_off():
    doc = steady(document(channels=[channel()]))
    doc["channels"][0]["metadata"]["annotations"] = {"sluice.dev/dead-letter-topic": "disabled"}

    assert actions(doc, "DeleteTopic") == []


def test_leaders_are_spread_over_brokers_and_replicas_over_racks():
    racks = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}
    brokers = [broker(n, rack) for n, rack in racks.items()]
    create = only(
        document(brokers=brokers, channels=[channel(numPartitions=12, replicationFactor=3)]),
        "CreateTopic",
        "shop.orders",
    )

    leaders = Counter(replicas[0] for replicas in create["assignments"].values())
    assert set(leaders.values()) == {2}
    for replicas in create["assignments"].values():
        assert {racks[b] for b in replicas} == {"a", "b", "c"}


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_many_small_channels_share_the_brokers_as_well(factor):
    """A rule that begins at the first broker each time would let that one lead them all."""
    channels = [channel(f"c{n:02}", numPartitions=1, replicationFactor=factor) for n in range(30)]
    created = actions(document(brokers=THREE, channels=channels), "CreateTopic")

    leaders = Counter(a["assignments"]["0"][0] for a in created)
    assert leaders == {0: 20, 1: 20, 2: 20}


def test_a_new_broker_gets_its_share_of_new_partitions():
    full = topic([[0], [1], [2], [0], [1], [2]])
    doc = document(brokers=[*THREE, broker(3)], channels=[channel(numPartitions=2)], topics={"shop.old": full})

    assert only(doc, "CreateTopic", "shop.orders")["assignments"]["0"] == [3]


def test_the_persisted_name_wins_over_the_template():
    doc = document(channels=[channel(status={"annotations": {"default.topic": "knative-messaging-kafka.shop.orders"}})])

    assert {a["topic"] for a in actions(doc, "CreateTopic")} == {
        "knative-messaging-kafka.shop.orders",
        "knative-messaging-kafka.shop.orders.dead-letter",
    }
    assert only(doc, "InitializeOffsets")["group"] == "kafka.shop.orders.u1"


# --- growing


def grown(partitions, **more):
    doc = steady(document(brokers=THREE, channels=[channel(replicationFactor=2)]))
    doc["channels"][0]["spec"]["numPartitions"] = partitions
    doc["channels"][0]["metadata"]["generation"] = 2
    return {**doc, **more}


def test_more_partitions_are_created_in_both_topics_the_dead_letters_first():
    created = actions(grown(5), "CreatePartitions")

    assert [(a["topic"], a["partitions"], sorted(a["assignments"])) for a in created] == [
        ("shop.orders.dead-letter", 5, ["2", "3", "4"]),
        ("shop.orders", 5, ["2", "3", "4"]),
    ]
    assert {len(r) for a in created for r in a["assignments"].values()} == {2}


def test_new_partitions_have_the_replicas_that_partition_0_really_has():
    """Kafka takes no others, whatever is declared."""
    doc = grown(3)
    doc["channels"][0]["spec"]["replicationFactor"] = 3

    assert {len(r) for a in actions(doc, "CreatePartitions") for r in a["assignments"].values()} == {2}
    assert any("replicationFactor 3" in reason for reason in reasons(doc, "rejected", about="shop/orders"))


def test_groups_start_at_earliest_in_partitions_that_are_added():
    initialize = only(grown(4), "InitializeOffsets")

    assert initialize["partitions"] == [2, 3]
    assert initialize["offset"] == "earliest"
    assert kinds(grown(4)).index("InitializeOffsets") > kinds(grown(4)).index("CreatePartitions")


@pytest.mark.parametrize(
    ("read", "written"),
    [
        pytest.param({"0": None, "1": None}, [], id="nothing could be read: new or grown, who knows"),
        pytest.param({"0": 7, "1": None}, [2, 3], id="one was read: the group has committed, so partitions were added"),
    ],
)
def test_a_partition_whose_offset_could_not_be_read_says_nothing_of_the_others(read, written):
    """While its coordinator loads, a new group must not be taken for one that has grown: it would start at earliest."""
    doc = grown(4)
    doc["lag"]["kafka.shop.orders.u1"]["partitions"] = read
    found = actions(doc, "InitializeOffsets", cause="shop/orders")

    assert [(p, a["offset"]) for a in found for p in a["partitions"]] == [(p, "earliest") for p in written]
    assert bool(written) or any(
        "could not be read" in reason for reason in reasons(doc, "waiting", about="shop/orders")
    )


def test_growing_waits_while_replicas_move():
    doc = grown(4)
    doc["topics"]["shop.orders"]["reassigning"] = [1]

    assert "CreatePartitions" not in [a["kind"] for a in actions(doc) if a.get("topic") == "shop.orders"]
    assert any("moving" in reason for reason in reasons(doc, "waiting", about="shop/orders"))


def test_growing_waits_while_it_is_not_known_whether_replicas_move():
    doc = grown(4)
    doc["topics"]["shop.orders"]["reassigning"] = None

    assert [a for a in actions(doc, "CreatePartitions") if a["topic"] == "shop.orders"] == []


def test_an_existing_topic_with_fewer_partitions_is_grown_and_the_reason_told():
    doc = document(
        channels=[channel(numPartitions=3), channel("other")],
        topics={"shop.orders": topic([[0]], configs=channel_configs(1))},
    )
    create = only(doc, "CreatePartitions", "shop.orders")

    assert create["partitions"] == 3
    assert create["assignments"] == {"1": [0], "2": [0]}
    assert "has 1" in create["why"]
    assert kinds(doc, cause="shop/other") == kinds(document(channels=[channel("other")]), cause="shop/other")


def test_growth_ends_in_a_steady_state():
    snapshot, _ = converge(grown(7))

    assert len(snapshot.topics["shop.orders"].partitions) == 7
    assert len(snapshot.topics["shop.orders.dead-letter"].partitions) == 7


# --- refusals


def shrunk():
    doc = steady(document(channels=[channel(numPartitions=4)]))
    doc["channels"][0]["spec"]["numPartitions"] = 2
    doc["channels"][0]["metadata"]["generation"] = 2
    return doc


def test_fewer_partitions_are_refused_with_a_reason_and_the_channel_goes_on():
    doc = shrunk()
    plan = decide_document(doc)

    assert [a["kind"] for a in plan["actions"]] == ["UpdateStatus"]
    assert any(r["object"] == "shop/orders" and "numPartitions 2" in r["reason"] for r in plan["rejected"])
    assert condition(doc, "ConfigurationReady")["status"] == "False"
    assert condition(doc, "ConfigurationReady")["reason"] == "PartitionsCannotShrink"
    assert condition(doc, "Ready")["status"] == "True"
    assert "numPartitions 2" in condition(doc, "Ready")["message"]


def test_a_replication_factor_above_the_brokers_is_refused_and_harms_nobody():
    doc = document(brokers=THREE, channels=[channel(replicationFactor=5), channel("other")])

    assert kinds(doc, cause="shop/orders") == ["UpdateStatus"]
    assert condition(doc, "TopicReady")["reason"] == "TooFewBrokers"
    assert condition(doc, "Ready")["status"] == "False"
    assert any("replicationFactor 5" in reason for reason in reasons(doc, "rejected", about="shop/orders"))
    assert "ApplyDeployment" in kinds(doc, cause="shop/other")


def test_it_is_created_when_there_are_enough_brokers():
    doc = steady(document(brokers=THREE, channels=[channel(replicationFactor=5)]))
    five = [*doc["brokers"], broker(3, "a"), broker(4, "b")]

    assert [a["topic"] for a in actions({**doc, "brokers": five}, "CreateTopic")] == [
        "shop.orders",
        "shop.orders.dead-letter",
    ]


def test_a_broker_that_is_away_is_waited_for_rather_than_refused():
    doc = document(brokers=[broker(0), broker(1), away(2, 60)], channels=[channel(replicationFactor=3)])

    assert actions(doc, "CreateTopic", cause="shop/orders") == []
    assert reasons(doc, "rejected") == []
    assert any("2 are up" in reason for reason in reasons(doc, "waiting", about="shop/orders"))


def test_new_topics_are_put_on_brokers_that_are_up():
    doc = document(
        brokers=[broker(0), away(1, 60), broker(2)], channels=[channel(numPartitions=4, replicationFactor=2)]
    )

    for create in actions(doc, "CreateTopic", cause="shop/orders"):
        assert all(set(replicas) == {0, 2} for replicas in create["assignments"].values())


@pytest.mark.parametrize("brokers", [None, []])
def test_unknown_brokers_create_nothing(brokers):
    doc = document(brokers=brokers, channels=[channel()], topics={})

    assert actions(doc, "CreateTopic") == []
    assert actions(doc, "ApplyDeployment") == []
    assert reasons(doc, "waiting", about="shop/orders")


def test_unknown_topics_change_nothing_of_what_runs():
    doc = {**steady(document(channels=[channel()])), "topics": None}

    assert actions(doc) == []


def test_a_compacted_topic_of_that_name_is_not_taken_over():
    foreign = topic([[0], [0]], configs={"cleanup.policy": "compact"})
    doc = document(channels=[channel()], topics={"shop.orders": foreign})

    assert kinds(doc, cause="shop/orders") == ["UpdateStatus"]
    assert condition(doc, "TopicReady")["reason"] == "TopicIsForeign"
    assert kinds(steady(doc)) == []
    deleted = steady(doc)
    deleted["channels"][0]["metadata"]["deletionTimestamp"] = "2026-11-20T03:00:00Z"
    assert actions(deleted, "DeleteTopic") == []


# --- configs


def test_a_changed_retention_is_altered_and_nothing_else():
    doc = steady(document(channels=[channel()]))
    doc["channels"][0]["spec"]["retentionDuration"] = "PT1H"
    alter = only(doc, "AlterTopicConfig")

    assert alter["topic"] == "shop.orders"
    assert alter["configs"] == {"retention.ms": "3600000"}


def test_unknown_configs_are_left():
    doc = steady(document(channels=[channel(retentionDuration="PT1H")]))
    doc["topics"]["shop.orders"]["configs"] = None

    assert actions(doc) == []


def test_min_isr_follows_the_replicas_that_there_are():
    doc = steady(document(brokers=THREE, channels=[channel(replicationFactor=3)]))
    doc["topics"]["shop.orders"]["configs"]["min.insync.replicas"] = "3"

    assert only(doc, "AlterTopicConfig")["configs"] == {"min.insync.replicas": "2"}


def test_min_isr_is_not_raised_over_replicas_that_are_out_of_sync():
    doc = steady(document(brokers=THREE, channels=[channel(replicationFactor=3)]))
    doc["topics"]["shop.orders"]["configs"]["min.insync.replicas"] = "1"
    doc["topics"]["shop.orders"]["partitions"][1]["isr"] = [doc["topics"]["shop.orders"]["partitions"][1]["leader"]]

    assert actions(doc, "AlterTopicConfig") == []
    assert any("partition 1" in reason for reason in reasons(doc, "waiting", about="shop/orders"))


@pytest.mark.parametrize("moving", [[1], None])
def test_min_isr_is_left_while_replicas_move_or_may_move(moving):
    doc = steady(document(brokers=THREE, channels=[channel(replicationFactor=3)]))
    doc["topics"]["shop.orders"]["configs"]["min.insync.replicas"] = "1"
    doc["topics"]["shop.orders"]["reassigning"] = moving

    assert actions(doc, "AlterTopicConfig") == []


def test_our_own_topic_that_somebody_compacts_is_put_right():
    """Events have no key by default, and a compacted topic refuses such records."""
    doc = steady(document(channels=[channel()]))
    doc["topics"]["shop.orders"]["configs"]["cleanup.policy"] = "compact"

    assert only(doc, "AlterTopicConfig")["configs"] == {"cleanup.policy": "delete"}


def test_the_canary_is_planned_in_the_same_plan():
    doc = document(brokers=THREE, channels=[channel()])
    del doc["topics"][CANARY_TOPIC]

    assert [a["topic"] for a in actions(doc, "CreateTopic")] == [
        CANARY_TOPIC,
        "shop.orders",
        "shop.orders.dead-letter",
    ]


def test_a_channel_with_a_status_of_old_is_adopted_without_a_new_topic():
    doc = document(
        channels=[channel(status=KEPT)],
        topics={
            "shop.orders": topic([[0], [0]], configs=channel_configs(1)),
            "shop.orders.dead-letter": topic([[0], [0]], configs=channel_configs(1, 2_419_200_000)),
        },
    )

    assert kinds(doc) == ["UpdateStatus", "InitializeOffsets", "ApplyDeployment", "ApplyService", "UpdateStatus"]
