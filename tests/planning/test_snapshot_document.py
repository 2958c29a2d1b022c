"""Snapshot and plan documents: read with patience for what is missing, and with none for what is wrong."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime

import pytest

from orchestration.planning import DocumentError, Plan, Snapshot
from orchestration.planning.actions import action_document, action_from_document
from tests.planning.worlds import (
    CANARY_TOPIC,
    actions,
    broker,
    channel,
    decide,
    document,
    read,
    steady,
    topic,
)

# As the design shows it (§4.5), with objects in place of the "...".
DESIGN = {
    "observed_at": "2026-11-20T03:00:00Z",
    "brokers": [{"id": 0, "rack": "a", "fenced": False, "last_seen": "2026-11-20T03:00:00Z"}],
    "expected_brokers": None,
    "topics": {
        "__strimzi_canary": {
            "partitions": [{"id": 0, "replicas": [0, 1, 2], "isr": [0, 1, 2], "leader": 0}],
            "reassigning": [],
            "configs": {"min.insync.replicas": "2"},
        }
    },
    "channels": [channel()],
    "deployments": [],
    "services": [],
    "lag": {"kafka.ns.name.uid": {"topic": "ns.name", "partitions": {"0": 120, "1": None}}},
}


def test_the_document_of_the_design_is_read_and_written_back():
    snapshot = read(DESIGN)

    assert snapshot.observed_at == datetime(2026, 11, 20, 3, tzinfo=UTC)
    assert snapshot.topics["__strimzi_canary"].partitions[0].replicas == (0, 1, 2)
    assert snapshot.lag["kafka.ns.name.uid"].partitions == {0: 120, 1: None}
    assert snapshot.to_document() == DESIGN


@pytest.mark.parametrize("doc", [DESIGN, document(channels=[channel()]), {"observed_at": "2026-11-20T03:00:00Z"}])
def test_reading_what_was_written_gives_the_same(doc):
    snapshot = read(doc)

    assert Snapshot.from_document(json.loads(json.dumps(snapshot.to_document()))) == snapshot


@pytest.mark.parametrize(
    "part", ["brokers", "topics", "channels", "deployments", "services", "lag", "expected_brokers", "policy"]
)
def test_a_missing_key_is_the_same_as_null(part):
    doc = document(channels=[channel()])
    missing = {key: value for key, value in doc.items() if key != part}

    assert decide(missing) == decide({**doc, part: None})
    assert getattr(read(missing), part) is None


def test_a_document_with_nothing_but_a_time_plans_nothing():
    plan = decide({"observed_at": "2026-11-20T03:00:00Z"})

    assert plan.is_empty
    assert plan.waiting
    assert plan.summary


@pytest.mark.parametrize("key", ["rack", "fenced", "last_seen"])
def test_missing_keys_inside_a_broker_are_unknown(key):
    doc = document()
    del doc["brokers"][0][key]

    assert actions(doc) == []


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-11-20T03:00:00Z", "2026-11-20T03:00:00Z"),
        ("2026-11-20T04:30:00+01:30", "2026-11-20T03:00:00Z"),
        ("2026-11-20t03:00:00.250z", "2026-11-20T03:00:00.250Z"),
        ("2026-11-20T03:00:00.000001Z", "2026-11-20T03:00:00.000001Z"),
        ("2026-11-19T22:00:00-05:00", "2026-11-20T03:00:00Z"),
    ],
)
def test_times_are_rfc_3339_with_a_zone(text, utc):
    assert read(document(observed_at=text)).to_document()["observed_at"] == utc


def put(path, value):
    """A document with one value replaced."""
    doc = copy.deepcopy(document(topics={"t": topic([[0]])}, lag={"g": {"topic": "t", "partitions": {"0": 1}}}))
    node = doc
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return doc


DAMAGED = [
    (("observed_at",), None, "observed_at"),
    (("observed_at",), "yesterday", "observed_at"),
    (("observed_at",), "2026-11-20T03:00:00", "observed_at"),
    (("observed_at",), 1763607600, "observed_at"),
    (("brokers",), {}, "brokers"),
    (("brokers",), "0,1", "brokers"),
    (("brokers",), 3, "brokers"),
    (("brokers", 0), 0, "brokers[0]"),
    (("brokers", 0, "id"), None, "brokers[0].id"),
    (("brokers", 0, "id"), "0", "brokers[0].id"),
    (("brokers", 0, "id"), True, "brokers[0].id"),
    (("brokers", 0, "id"), -1, "brokers[0].id"),
    (("brokers", 0, "id"), 1.5, "brokers[0].id"),
    (("brokers", 0, "rack"), 3, "brokers[0].rack"),
    (("brokers", 0, "fenced"), "no", "brokers[0].fenced"),
    (("brokers", 0, "last_seen"), "then", "brokers[0].last_seen"),
    (("brokers",), [broker(1), broker(1)], "brokers[1].id"),
    (("expected_brokers",), 0, "expected_brokers"),
    (("expected_brokers",), -2, "expected_brokers"),
    (("expected_brokers",), "3", "expected_brokers"),
    (("topics",), [], "topics"),
    (("topics", "t"), [], "topics['t']"),
    (("topics", "t", "partitions"), {}, "topics['t'].partitions"),
    (("topics", "t", "partitions", 0), 7, "topics['t'].partitions[0]"),
    (("topics", "t", "partitions", 0, "id"), None, "topics['t'].partitions[0].id"),
    (("topics", "t", "partitions", 0, "replicas"), [0, 0], "topics['t'].partitions[0].replicas"),
    (("topics", "t", "partitions", 0, "replicas"), [], "topics['t'].partitions[0].replicas"),
    (("topics", "t", "partitions", 0, "replicas"), [None], "topics['t'].partitions[0].replicas[0]"),
    (("topics", "t", "partitions", 0, "leader"), -2, "topics['t'].partitions[0].leader"),
    (("topics", "t", "reassigning"), [-1], "topics['t'].reassigning[0]"),
    (("topics", "t", "configs"), [], "topics['t'].configs"),
    (("topics", "t", "configs", "a"), [], "topics['t'].configs['a']"),
    (("channels",), {}, "channels"),
    (("channels",), ["x"], "channels[0]"),
    (("deployments",), [{}], "deployments[0].metadata"),
    (("deployments",), [{"metadata": {"name": 1}}], "deployments[0].metadata.name"),
    (("services",), [[]], "services[0]"),
    (("lag",), [], "lag"),
    (("lag", "g"), None, "lag['g']"),
    (("lag", "g", "partitions"), [], "lag['g'].partitions"),
    (("lag", "g", "partitions"), {"x": 1}, "lag['g'].partitions"),
    (("lag", "g", "partitions", "0"), "many", "lag['g'].partitions['0']"),
    (("lag", "g", "topic"), 1, "lag['g'].topic"),
    (("policy",), [], "policy"),
    (("policy",), {"dispatcher": {}}, "policy.dispatcher"),
    (("policy",), {"canary": {"grace": 3}}, "policy.canary.grace"),
    (("policy",), {"canary": {"grace_seconds": -1}}, "policy.canary.grace_seconds"),
    (("policy",), {"canary": {"grace_seconds": "60"}}, "policy.canary.grace_seconds"),
    (("policy",), {"canary": {"grace_seconds": float("nan")}}, "policy.canary.grace_seconds"),
    (("policy",), {"canary": {"topic": "no name!"}}, "policy.canary.topic"),
    (("policy",), {"canary": {"configs": {"a": []}}}, "policy.canary.configs['a']"),
    (("policy",), {"canary": {"manage_topic": "no"}}, "policy.canary.manage_topic"),
]


@pytest.mark.parametrize(("path", "value", "named"), DAMAGED, ids=[f"{n}={v!r}" for _, v, n in DAMAGED])
def test_a_damaged_document_is_refused_with_the_place(path, value, named):
    with pytest.raises(DocumentError) as caught:
        read(put(path, value))

    assert caught.value.path == named
    assert str(caught.value).startswith(f"{named}: ")


@pytest.mark.parametrize("doc", [None, [], "x", 3])
def test_a_document_that_is_no_object_is_refused(doc):
    with pytest.raises(DocumentError):
        read(doc)


def test_partitions_listed_twice_are_refused():
    doc = document(topics={"t": topic([[0], [0]])})
    doc["topics"]["t"]["partitions"][1]["id"] = 0

    with pytest.raises(DocumentError, match="listed twice"):
        read(doc)


def test_minus_one_is_strimzis_word_for_no_expectation():
    assert read(document(expected_brokers=-1)).expected_brokers is None


def test_a_topic_that_is_null_exists_and_no_more_is_known():
    snapshot = read(document(topics={"shop.orders": None}))

    assert snapshot.topics["shop.orders"].partitions is None


def test_config_values_may_be_written_as_numbers():
    doc = document()
    doc["topics"][CANARY_TOPIC]["configs"] = {
        key: int(value) if value.isdecimal() else value for key, value in doc["topics"][CANARY_TOPIC]["configs"].items()
    }

    assert actions(doc) == []


def test_what_others_add_to_a_snapshot_is_no_error():
    assert actions({**document(), "comment": "taken by hand", "version": 2}) == []


# --- plans


def every_kind():
    """Plans that together hold every kind of action."""
    new = document(brokers=[broker(n) for n in range(3)], channels=[channel()])
    yield new
    yield {**new, "topics": {}}
    yield document(brokers=[broker(n) for n in range(3)])
    ready = steady(document(channels=[channel()]))
    yield {**ready, "channels": []}
    gone = copy.deepcopy(ready)
    gone["channels"][0]["metadata"]["deletionTimestamp"] = "2026-11-20T03:00:00Z"
    yield gone
    grown = copy.deepcopy(ready)
    grown["channels"][0]["spec"] |= {"numPartitions": 5, "retentionDuration": "PT1H"}
    yield grown
    busy = copy.deepcopy(ready)
    busy["lag"]["kafka.shop.orders.u1"]["partitions"]["0"] = 900
    yield busy
    yield {**document(brokers=[broker(n) for n in range(4)]), "topics": document()["topics"]}
    wrong = document(brokers=[broker(n) for n in range(3)])
    wrong["topics"][CANARY_TOPIC]["partitions"][0]["leader"] = 1
    yield wrong


def test_every_action_is_read_back_from_its_document():
    seen = set()
    for doc in every_kind():
        plan = decide(doc)
        assert Plan.from_document(json.loads(json.dumps(plan.to_document()))) == plan
        for action in plan.actions:
            seen.add(action.kind)
            assert action_from_document(json.loads(json.dumps(action_document(action)))) == action
    assert seen == {
        "CreateTopic", "CreatePartitions", "ReassignPartitions", "AlterTopicConfig", "ElectLeaders", "DeleteTopic",
        "InitializeOffsets", "DeleteGroup", "ApplyDeployment", "ScaleDeployment", "DeleteDeployment", "ApplyService",
        "DeleteService", "UpdateStatus",
    }  # fmt: skip


FIELDS = {
    "CreateTopic": {"topic", "assignments", "configs"},
    "CreatePartitions": {"topic", "partitions", "assignments"},
    "ReassignPartitions": {"topic", "assignments"},
    "AlterTopicConfig": {"topic", "configs"},
    "ElectLeaders": {"topic", "partitions"},
    "DeleteTopic": {"topic"},
    "InitializeOffsets": {"group", "topic", "partitions", "offset"},
    "DeleteGroup": {"group"},
    "ApplyDeployment": {"namespace", "name", "replicas", "manifest"},
    "ScaleDeployment": {"namespace", "name", "replicas", "annotations"},
    "DeleteDeployment": {"namespace", "name"},
    "ApplyService": {"namespace", "name", "manifest"},
    "DeleteService": {"namespace", "name"},
}


def test_the_plan_document_has_the_words_of_the_design():
    for doc in every_kind():
        plan = decide(doc).to_document()
        assert set(plan) == {"actions", "rejected", "waiting", "summary"}
        assert plan["summary"].endswith(".")
        for action in plan["actions"]:
            fields = set(action) - {"kind", "cause", "why"}
            if action["kind"] == "UpdateStatus":
                assert fields - {"finalizers"} == {"namespace", "name", "status"}
            else:
                assert fields == FIELDS[action["kind"]]
            assert action["cause"] == "canary" or action["cause"].count("/") == 1
            assert action["why"]
            for partition, replicas in action.get("assignments", {}).items():
                assert partition.isdecimal()
                assert all(isinstance(b, int) for b in replicas)


@pytest.mark.parametrize(
    ("doc", "named"),
    [
        ({"kind": "Explode", "cause": "c", "why": "w"}, "action.kind"),
        ({"kind": "DeleteTopic", "cause": "c", "why": "w"}, "action.topic"),
        ({"kind": "DeleteTopic", "why": "w", "topic": "t"}, "action.cause"),
        (
            {"kind": "InitializeOffsets", "cause": "c", "why": "w", "group": "g", "topic": "t", "offset": "newest"},
            "action.offset",
        ),
    ],
)
def test_a_damaged_action_is_refused_with_the_place(doc, named):
    with pytest.raises(DocumentError) as caught:
        action_from_document(doc)

    assert caught.value.path == named
