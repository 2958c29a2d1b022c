"""What goes when a channel goes: all of it, in a safe order, and nothing of anybody else's."""

from __future__ import annotations

import pytest

from tests.planning.kubernetes import as_returned
from tests.planning.worlds import (
    FINALIZER,
    actions,
    channel,
    converge,
    decide_document,
    document,
    kinds,
    reasons,
    steady,
)

POLICY = "sluice.dev/deletion-policy"


def deleted(*others, annotations=None, finalizers=(FINALIZER,), **spec):
    """A steady world of shop/orders and others, then shop/orders is being deleted."""
    doc = as_returned(steady(document(channels=[channel(annotations=annotations, **spec), *others])))
    for obj in doc["channels"]:
        if obj["metadata"]["name"] == "orders":
            obj["metadata"]["deletionTimestamp"] = "2026-11-20T02:59:59Z"
            obj["metadata"]["finalizers"] = list(finalizers)
    return doc


def test_the_dispatcher_goes_first_the_topics_late_the_finalizer_last():
    found = actions(deleted())

    assert [a["kind"] for a in found] == [
        "DeleteDeployment",
        "DeleteService",
        "DeleteGroup",
        "DeleteTopic",
        "DeleteTopic",
        "UpdateStatus",
    ]
    assert [a["topic"] for a in found[3:5]] == ["shop.orders", "shop.orders.dead-letter"]
    assert found[2]["group"] == "kafka.shop.orders.u1"
    assert found[5]["finalizers"] == []
    assert found[5]["status"] == {}
    assert {a["cause"] for a in found} == {"shop/orders"}


def test_afterwards_nothing_is_left_and_nothing_to_do():
    snapshot, plans = converge(deleted(channel("other")))

    assert len(plans) == 1
    assert [c["metadata"]["name"] for c in snapshot.channels] == ["other"]
    assert set(snapshot.topics) == {"__strimzi_canary", "shop.other", "shop.other.dead-letter"}
    assert set(snapshot.lag) == {"kafka.shop.other.u1"}
    assert len(snapshot.deployments) == len(snapshot.services) == 1


def test_other_finalizers_stay():
    assert actions(deleted(finalizers=("a/b", FINALIZER, "c/d")), "UpdateStatus")[0]["finalizers"] == ["a/b", "c/d"]


def test_without_our_finalizer_nothing_is_written():
    assert actions(deleted(finalizers=("a/b",)), "UpdateStatus") == []


def test_a_retained_topic_stays_and_so_do_its_dead_letters():
    assert kinds(deleted(annotations={POLICY: "retain"})) == [
        "DeleteDeployment",
        "DeleteService",
        "DeleteGroup",
        "UpdateStatus",
    ]


def test_a_misspelt_deletion_policy_keeps_the_topic_and_says_so():
    doc = deleted()
    doc["channels"][0]["metadata"]["annotations"] = {POLICY: "retian"}

    assert actions(doc, "DeleteTopic") == []
    assert kinds(doc)[-1] == "UpdateStatus"
    assert any("retian" in reason for reason in reasons(doc, "rejected", about="shop/orders"))


def test_the_persisted_topic_is_deleted_not_the_one_that_a_new_template_names():
    doc = deleted()
    doc["channels"][0]["status"]["annotations"]["default.topic"] = "old.orders"
    doc["topics"]["old.orders"] = doc["topics"]["shop.orders"]

    assert [a["topic"] for a in actions(doc, "DeleteTopic")] == ["old.orders"]


def test_an_invalid_channel_can_still_be_deleted():
    doc = deleted()
    doc["channels"][0]["spec"] = {"numPartitions": -1, "subscribers": "none"}

    assert kinds(doc) == kinds(deleted())


@pytest.mark.parametrize("part", ["deployments", "services", "topics", "lag"])
def test_the_channel_stays_while_something_could_not_be_read(part):
    doc = {**deleted(), part: None}

    assert "UpdateStatus" not in kinds(doc)
    assert reasons(doc, "waiting", about="shop/orders")


def test_no_topic_is_taken_from_under_a_dispatcher_that_may_still_run():
    assert actions({**deleted(), "deployments": None}) == []


def test_nothing_is_deleted_while_the_channels_are_unknown():
    doc = {**as_returned(steady(document(channels=[channel(), channel("other")]))), "channels": None}
    plan = decide_document(doc)

    assert plan["actions"] == []
    assert any("channels" in w["reason"] for w in plan["waiting"])


def test_a_missing_key_channels_is_as_unknown_as_null():
    doc = as_returned(steady(document(channels=[channel()])))
    del doc["channels"]

    assert actions(doc) == []


def test_a_dispatcher_without_its_channel_is_deleted_and_its_topic_is_not():
    doc = {**as_returned(steady(document(channels=[channel()]))), "channels": []}
    found = actions(doc)

    assert [a["kind"] for a in found] == ["DeleteDeployment", "DeleteService"]
    assert {a["cause"] for a in found} == {"shop/orders"}


def test_a_dispatcher_of_an_invalid_channel_is_no_orphan():
    doc = as_returned(steady(document(channels=[channel(), channel("other")])))
    doc["channels"][0]["spec"]["numPartitions"] = 0

    assert [a["kind"] for a in actions(doc) if a["kind"].startswith("Delete")] == []


def test_orphans_with_long_names_are_told_from_known_channels():
    long_name = "x" * 100
    doc = as_returned(steady(document(channels=[channel(long_name), channel("other")])))
    assert actions(doc) == []
    for deployment in doc["deployments"]:
        deployment["metadata"]["annotations"].pop("sluice.dev/channel-key")
    assert [a for a in actions(doc) if a["kind"] == "DeleteDeployment"] == []

    doc["channels"] = [c for c in doc["channels"] if c["metadata"]["name"] == "other"]
    assert [a["kind"] for a in actions(doc) if a["kind"] == "DeleteDeployment"] == ["DeleteDeployment"]


def test_groups_of_vanished_subscriptions_go_with_the_channel():
    doc = deleted()
    doc["lag"]["kafka.shop.orders.gone"] = {"topic": "shop.orders", "partitions": {"0": 1}}

    assert [a["group"] for a in actions(doc, "DeleteGroup")] == ["kafka.shop.orders.gone", "kafka.shop.orders.u1"]


def test_a_neighbours_groups_and_topics_stay():
    doc = deleted(channel("orders.v2"), channel("orders-v2"))

    assert [a["topic"] for a in actions(doc, "DeleteTopic")] == ["shop.orders", "shop.orders.dead-letter"]
    assert [a["group"] for a in actions(doc, "DeleteGroup")] == ["kafka.shop.orders.u1"]


def test_a_topic_that_the_channel_never_took_up_is_kept():
    """A channel that was refused because the topic was somebody else's takes that topic with it when it goes?"""
    doc = document(
        channels=[channel(metadata={"deletionTimestamp": "2026-11-20T02:59:59Z", "finalizers": ["a/b"]})],
        topics={"shop.orders": {"partitions": [], "reassigning": [], "configs": {}}},
    )

    assert actions(doc) == []
    assert any("kept" in reason for reason in reasons(doc, "waiting", about="shop/orders"))


def test_a_channel_that_was_refused_a_name_does_not_delete_the_owners_things():
    """`orders.dead-letter` wants the dead-letter topic of `orders`; it is refused, and then deleted."""
    doc = steady(document(channels=[channel(), channel("orders.dead-letter")]))
    for obj in doc["channels"]:
        if obj["metadata"]["name"] == "orders.dead-letter":
            obj["metadata"] |= {"deletionTimestamp": "2026-11-20T02:59:59Z", "finalizers": [FINALIZER]}

    assert [a["kind"] for a in actions(doc)] == ["UpdateStatus"]


def test_deleting_again_what_is_gone_already_ends_with_the_finalizer():
    doc = deleted()
    doc |= {"deployments": [], "services": [], "lag": {}}
    for name in ("shop.orders", "shop.orders.dead-letter"):
        del doc["topics"][name]

    assert kinds(doc) == ["UpdateStatus"]


def test_deletions_come_before_what_is_new():
    doc = deleted()
    doc["channels"].append(channel("aaa"))
    order = [a["cause"] for a in actions(doc)]

    assert order.index("shop/orders") < order.index("shop/aaa")


def test_the_same_topic_wanted_by_a_new_channel_waits_until_it_is_gone():
    doc = deleted()
    doc["channels"].append(channel("fresh", status={"annotations": {"default.topic": "shop.orders"}}))

    assert kinds(doc, cause="shop/fresh") == ["UpdateStatus"]
    assert any("belongs to shop/orders" in reason for reason in reasons(doc, "rejected", about="shop/fresh"))
