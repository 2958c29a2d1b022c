"""Where the groups of subscriptions start, and when they go."""

from __future__ import annotations

import pytest

from tests.planning.worlds import actions, channel, decide_document, document, reasons, steady, subscriber, topic


def world(lag, *, subscribers=("u1",), annotations=None, status=None):
    """A steady channel of two partitions, then this lag and these subscribers."""
    doc = steady(document(channels=[channel(annotations=annotations)]))
    doc["channels"][0]["spec"]["subscribers"] = [subscriber(uid) for uid in subscribers]
    if status is not None:
        doc["channels"][0]["status"]["subscribers"] = status
    return {**doc, "lag": lag}


def group(partitions, name="shop.orders"):
    return {"topic": name, "partitions": partitions}


ALL = group({"0": 0, "1": 0})


@pytest.mark.parametrize(("annotation", "offset"), [(None, "latest"), ("latest", "latest"), ("earliest", "earliest")])
def test_a_new_subscription_starts_where_the_channel_says(annotation, offset):
    doc = world(
        {"kafka.shop.orders.u1": ALL},
        subscribers=("u1", "u2"),
        annotations=None if annotation is None else {"sluice.dev/initial-offset": annotation},
    )
    (initialize,) = actions(doc, "InitializeOffsets")

    assert initialize["group"] == "kafka.shop.orders.u2"
    assert initialize["topic"] == "shop.orders"
    assert initialize["partitions"] == [0, 1]
    assert initialize["offset"] == offset
    assert initialize["cause"] == "shop/orders"


def test_only_partitions_without_a_committed_offset_are_written():
    (initialize,) = actions(world({"kafka.shop.orders.u1": group({"1": 5})}), "InitializeOffsets")

    assert initialize["partitions"] == [0]
    assert initialize["offset"] == "earliest"


def test_an_offset_that_could_not_be_read_is_not_a_missing_one():
    assert actions(world({"kafka.shop.orders.u1": group({"0": None, "1": None})}), "InitializeOffsets") == []


def test_unreadable_groups_write_no_offsets_and_are_said():
    doc = world(None)

    assert actions(doc) == []
    assert reasons(doc, "waiting", about="shop/orders")


def test_offsets_lost_to_retention_are_resumed_at_the_earliest_never_silently_at_the_latest():
    """Kafka forgets the offsets of a group that was idle for long; the status remembers that it had some."""
    (initialize,) = actions(world({}), "InitializeOffsets")

    assert initialize["offset"] == "earliest"
    assert "lost" in initialize["why"]


def test_commits_on_another_topic_say_nothing_about_this_one():
    doc = world({"kafka.shop.orders.u1": group({"0": 1, "1": 1}, name="old")}, status=[])

    assert [a["partitions"] for a in actions(doc, "InitializeOffsets")] == [[0, 1]]


def test_the_group_of_a_vanished_subscription_is_deleted():
    doc = world({"kafka.shop.orders.u1": ALL, "kafka.shop.orders.gone": ALL})
    (delete,) = actions(doc, "DeleteGroup")

    assert delete["group"] == "kafka.shop.orders.gone"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("kafka.shop.orders.v2.u1", id="of the channel orders.v2"),
        pytest.param("kafka.shop.order.u1", id="of the channel order"),
        pytest.param("kafka.shop.orders", id="too short"),
        pytest.param("my-own-group", id="somebody else's"),
        pytest.param("kafka.other.orders.u1", id="of another namespace"),
    ],
)
def test_groups_of_others_are_left_alone(name):
    doc = world({"kafka.shop.orders.u1": ALL, name: group({"0": 3}, name="shop.orders.v2")})

    assert actions(doc) == []


def test_a_group_with_our_prefix_on_another_topic_is_left_alone():
    doc = world({"kafka.shop.orders.u1": ALL, "kafka.shop.orders.gone": group({"0": 0}, name="else")})

    assert actions(doc) == []


def test_offsets_are_written_before_the_subscriber_is_ready_and_before_the_dispatcher_starts():
    plan = decide_document(document(channels=[channel()]))
    kinds = [a["kind"] for a in plan["actions"]]
    closing = plan["actions"][-1]["status"]

    assert kinds.index("InitializeOffsets") < kinds.index("ApplyDeployment")
    assert closing["subscribers"] == [{"uid": "u1", "observedGeneration": 1, "ready": "True"}]


def test_a_subscriber_is_not_ready_while_an_offset_is_missing():
    """Partitions cannot be created while replicas move, so their offsets cannot be written either."""
    doc = world({"kafka.shop.orders.u1": ALL})
    doc["channels"][0]["spec"]["subscribers"].append(subscriber("u2"))
    doc["topics"]["shop.orders"] = {"partitions": None, "reassigning": [], "configs": {}}
    plan = decide_document(doc)
    (update,) = plan["actions"]

    entry = {e["uid"]: e for e in update["status"]["subscribers"]}
    assert entry["u1"]["ready"] == "True", "it was ready, and nothing new is known"
    assert entry["u2"]["ready"] == "False"
    assert entry["u2"]["message"]


def test_a_changed_subscriber_needs_no_new_offsets_and_no_restart():
    doc = world({"kafka.shop.orders.u1": ALL})
    doc["channels"][0]["spec"]["subscribers"] = [subscriber(generation=2, subscriberUri="http://new/")]
    (update,) = actions(doc)

    assert update["kind"] == "UpdateStatus"
    assert update["status"] == {"subscribers": [{"uid": "u1", "observedGeneration": 2, "ready": "True"}]}


def test_another_subscription_causes_no_rollout():
    doc = world({"kafka.shop.orders.u1": ALL}, subscribers=("u1", "u2"))

    assert {a["kind"] for a in actions(doc)} == {"InitializeOffsets", "UpdateStatus"}


def test_a_topic_made_anew_by_other_hands_starts_at_its_beginning():
    doc = world({"kafka.shop.orders.u1": group({"0": -40, "1": 0})})
    doc["topics"]["shop.orders"] = topic([[0], [0]], configs={"cleanup.policy": "delete"})

    assert actions(doc, "ScaleDeployment") == []
