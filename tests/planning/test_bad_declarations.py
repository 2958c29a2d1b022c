"""Declarations that cannot be used: said on the object, and no effect on any other."""

from __future__ import annotations

import copy

import pytest

from orchestration.planning.names import deployment_name
from tests.planning.kubernetes import as_returned
from tests.planning.worlds import actions, channel, decide_document, document, kinds, reasons, steady, subscriber

SCALE = "autoscaling.eventing.knative.dev/"


def no_spec(obj):
    del obj["spec"]


BAD = {
    "partitions 0": lambda o: o["spec"].update(numPartitions=0),
    "partitions below 0": lambda o: o["spec"].update(numPartitions=-3),
    "partitions as text": lambda o: o["spec"].update(numPartitions="four"),
    "partitions true": lambda o: o["spec"].update(numPartitions=True),
    "replication factor 0": lambda o: o["spec"].update(replicationFactor=0),
    "retention": lambda o: o["spec"].update(retentionDuration="a week"),
    "subscriber without URI": lambda o: o["spec"].update(subscribers=[{"uid": "x"}]),
    "subscriber without uid": lambda o: o["spec"].update(subscribers=[{"subscriberUri": "http://x/"}]),
    "two subscribers with one uid": lambda o: o["spec"].update(subscribers=[subscriber("x"), subscriber("x")]),
    "subscribers as mapping": lambda o: o["spec"].update(subscribers={"a": 1}),
    "uri": lambda o: o["spec"].update(subscribers=[subscriber(subscriberUri="ftp://x")]),
    "spec as list": lambda o: o.update(spec=[1]),
    "min-scale": lambda o: o["metadata"].update(annotations={SCALE + "min-scale": "-1"}),
    "lag-threshold": lambda o: o["metadata"].update(annotations={SCALE + "lag-threshold": "0"}),
    "order": lambda o: o["metadata"].update(annotations={"kafka.eventing.knative.dev/delivery.order": "random"}),
    "kind": lambda o: o.update(kind="InMemoryChannel"),
    "apiVersion": lambda o: o.update(apiVersion="v1"),
}


@pytest.mark.parametrize("spoil", BAD.values(), ids=BAD.keys())
def test_a_bad_channel_is_told_so_and_harms_no_other(spoil):
    bad = channel("bad")
    spoil(bad)
    plan = decide_document(document(channels=[bad, channel()]))

    assert [r["object"] for r in plan["rejected"]] == ["shop/bad"]
    (update,) = [a for a in plan["actions"] if a["cause"] == "shop/bad"]
    assert update["kind"] == "UpdateStatus"
    ready = next(c for c in update["status"]["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "False"
    assert ready["reason"] == "InvalidChannel"
    assert ready["message"] == plan["rejected"][0]["reason"]
    alone = decide_document(document(channels=[channel()]))
    assert [a for a in plan["actions"] if a["cause"] == "shop/orders"] == alone["actions"]


@pytest.mark.parametrize("spoil", BAD.values(), ids=BAD.keys())
def test_what_runs_goes_on_when_its_channel_is_spoilt(spoil):
    doc = as_returned(steady(document(channels=[channel(), channel("other")])))
    spoil(doc["channels"][0])

    assert kinds(doc) == ["UpdateStatus"]
    assert kinds(steady(doc)) == []


def test_a_mended_channel_is_ready_again():
    doc = steady(document(channels=[channel(numPartitions=0)]))
    doc["channels"][0]["spec"]["numPartitions"] = 2
    mended = steady(doc)

    assert {c["status"] for c in mended["channels"][0]["status"]["conditions"]} == {"True"}


@pytest.mark.parametrize(
    "metadata", [None, "x", {}, {"namespace": "shop"}, {"name": 5}, {"name": "", "namespace": "shop"}, {"name": None}]
)
def test_a_channel_without_a_name_is_rejected_and_nothing_is_written_to_it(metadata):
    nameless = {**channel(), "metadata": metadata}
    plan = decide_document(document(channels=[nameless, channel()]))

    assert len(plan["rejected"]) == 1
    assert {a["cause"] for a in plan["actions"]} == {"shop/orders"}


@pytest.mark.parametrize("name", ["../../etc/passwd", "UPPER", "a b", "-x", "a" * 300])
def test_a_name_that_no_registry_can_have_gets_no_status(name):
    """A status is a file in a folder registry: this one would be written somewhere else."""
    plan = decide_document(document(channels=[channel(name)]))

    assert plan["actions"] == []
    assert len(plan["rejected"]) == 1


def test_the_same_name_twice_changes_nothing_and_says_so():
    doc = as_returned(steady(document(channels=[channel(), channel("other")])))
    twin = copy.deepcopy(doc["channels"][0])
    twin["spec"]["numPartitions"] = 9
    doc["channels"].append(twin)
    plan = decide_document(doc)

    assert [(a["kind"], a["cause"]) for a in plan["actions"]] == [("UpdateStatus", "shop/orders")]
    assert any(r["object"] == "shop/orders" and "2 times" in r["reason"] for r in plan["rejected"])
    conditions = {c["type"]: c for c in plan["actions"][0]["status"]["conditions"]}
    assert conditions["Ready"]["status"] == "True", "it goes on as it was"
    assert conditions["ConfigurationReady"]["reason"] == "DeclaredTwice"


def test_the_same_new_name_twice_creates_nothing():
    doc = document(channels=[channel(), channel(numPartitions=3), channel("other")])

    assert kinds(doc, cause="shop/orders") == ["UpdateStatus"]
    assert kinds(doc, cause="shop/other")[-1] == "UpdateStatus"
    assert len(kinds(doc, cause="shop/other")) == 7


def test_a_name_in_two_namespaces_is_two_channels():
    plan = decide_document(document(channels=[channel(), channel(namespace="store")]))

    assert plan["rejected"] == []
    assert len({a["name"] for a in plan["actions"] if a["kind"] == "ApplyDeployment"}) == 2


def test_a_namespace_left_out_is_default():
    obj = channel()
    del obj["metadata"]["namespace"]

    assert {a["cause"] for a in actions(document(channels=[obj]))} == {"default/orders"}


@pytest.mark.parametrize("keys", [("kind",), ("apiVersion",), ("kind", "apiVersion")])
def test_items_of_a_list_of_the_api_server_have_neither_kind_nor_version(keys):
    obj = {key: value for key, value in channel().items() if key not in keys}

    assert kinds(document(channels=[obj])) == kinds(document(channels=[channel()]))


@pytest.mark.parametrize("stamp", ["", 0, False, True, [], {}])
def test_a_damaged_time_of_deletion_deletes_nothing(stamp):
    doc = as_returned(steady(document(channels=[channel()])))
    doc["channels"][0]["metadata"]["deletionTimestamp"] = stamp

    assert [k for k in kinds(doc) if k.startswith("Delete")] == []


def test_a_channel_may_not_take_the_dead_letter_topic_of_another():
    doc = document(channels=[channel("orders.dead-letter"), channel()])
    plan = decide_document(doc)

    assert [r["object"] for r in plan["rejected"]] == ["shop/orders.dead-letter"]
    assert [a["kind"] for a in plan["actions"] if a["cause"] == "shop/orders.dead-letter"] == ["UpdateStatus"]
    assert len([a for a in plan["actions"] if a["kind"] == "CreateTopic"]) == 2


def test_the_one_that_has_the_name_already_keeps_it():
    doc = steady(document(channels=[channel("orders.dead-letter")]))
    doc["channels"].append(channel())

    assert reasons(doc, "rejected", about="shop/orders")
    assert kinds(doc, cause="shop/orders.dead-letter") == []


def test_a_name_that_is_kept_in_a_status_goes_before_one_that_is_not():
    kept = channel("orders.dead-letter", status={"annotations": {"default.topic": "shop.orders.dead-letter"}})
    first = channel("orders", metadata={"finalizers": ["sluice.dev/kafkachannel"]})

    assert reasons(document(channels=[first, kept]), "rejected", about="shop/orders")
    assert reasons(document(channels=[first, kept]), "rejected", about="shop/orders.dead-letter") == []


def test_without_dead_letters_the_two_can_live_together():
    quiet = channel(annotations={"sluice.dev/dead-letter-topic": "disabled"})

    assert reasons(document(channels=[channel("orders.dead-letter"), quiet]), "rejected") == []


def test_names_that_collide_when_they_are_shortened_are_told():
    """A Service's name has no dots, so `a.b` gets a hash; another channel may be called just that."""
    first, second = channel("a.b"), channel("a-b-2e7336dc")
    plan = decide_document(document(channels=[first, second, channel()]))

    assert len(plan["rejected"]) == 1
    assert "Service" in plan["rejected"][0]["reason"]
    services = [(a["namespace"], a["name"]) for a in plan["actions"] if a["kind"] == "ApplyService"]
    assert len(services) == len(set(services)) == 2


def test_the_canarys_topic_cannot_be_a_channels():
    doc = document(channels=[channel()], policy={"canary": {"topic": "shop.orders"}})
    del doc["topics"]["__strimzi_canary"]

    assert reasons(doc, "rejected", about="shop/orders")
    assert [(a["kind"], a["cause"]) for a in actions(doc, "CreateTopic")] == [("CreateTopic", "canary")]


def test_a_topic_name_that_kafka_refuses_is_told():
    doc = document(channels=[channel(status={"annotations": {"default.topic": "not a topic/name"}})])

    assert kinds(doc) == ["UpdateStatus"]
    assert any("Kafka topic" in reason for reason in reasons(doc, "rejected"))


@pytest.mark.parametrize("length", [63, 200, 232])
def test_long_names_work_and_stay_apart(length):
    names = ["x" * (length - 1) + end for end in "ab"]
    doc = steady(document(channels=[channel(name) for name in names]))

    assert len(doc["deployments"]) == len(doc["services"]) == 2
    assert {d["metadata"]["name"] for d in doc["deployments"]} == {deployment_name("shop", n) for n in names}


def test_a_name_too_long_for_a_topic_is_told():
    plan = decide_document(document(channels=[channel("x" * 250)]))

    assert "249" in plan["rejected"][0]["reason"]


@pytest.mark.parametrize(
    ("annotations", "replicas"),
    [
        pytest.param({"min-scale": "9", "max-scale": "2"}, 2, id="min above max: the most wins"),
        pytest.param({"min-scale": "999999999"}, 2, id="absurdly many: the partitions win"),
    ],
)
def test_contradictory_annotations_have_a_rule(annotations, replicas):
    doc = document(channels=[channel(annotations={SCALE + k: v for k, v in annotations.items()})])

    assert actions(doc, "ApplyDeployment")[0]["replicas"] == replicas
