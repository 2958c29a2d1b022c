"""What a channel says of itself."""

from __future__ import annotations

from orchestration.planning import Policy
from tests.planning.kubernetes import as_returned
from tests.planning.worlds import (
    NOW,
    actions,
    at,
    broker,
    channel,
    converge,
    decide,
    document,
    kinds,
    read,
    steady,
    subscriber,
)

TYPES = ["Addressable", "ChannelServiceReady", "ConfigurationReady", "DispatcherReady", "Ready", "TopicReady"]


def status(doc, name="orders"):
    return next(c for c in doc["channels"] if c["metadata"]["name"] == name)["status"]


def conditions(of):
    return {c["type"]: c for c in of["conditions"]}


def test_a_channel_that_works_says_where_it_is_and_who_is_served():
    found = status(steady(document(channels=[channel(subscribers=[subscriber("b", 3), subscriber("a", 7)])])))

    assert found["address"] == {"url": "http://orders-kn-channel.shop.svc.cluster.local"}
    assert found["annotations"] == {"default.topic": "shop.orders"}
    assert found["observedGeneration"] == 1
    assert found["subscribers"] == [
        {"uid": "a", "observedGeneration": 7, "ready": "True"},
        {"uid": "b", "observedGeneration": 3, "ready": "True"},
    ]
    assert [c["type"] for c in found["conditions"]] == TYPES
    assert {c["status"] for c in found["conditions"]} == {"True"}


def test_on_one_machine_the_address_is_the_receivers():
    doc = steady(document(channels=[channel()]), Policy(receiver_url="http://127.0.0.1:8080/"))

    assert status(doc)["address"] == {"url": "http://127.0.0.1:8080/shop/orders"}


def test_a_new_channel_is_not_ready_before_its_dispatcher_is():
    closing = actions(document(channels=[channel()]), "UpdateStatus")[-1]["status"]
    found = conditions(closing)

    assert found["TopicReady"]["status"] == "True"
    assert found["DispatcherReady"]["status"] == "False"
    assert found["Ready"]["status"] == "False"
    assert found["Ready"]["reason"] == found["DispatcherReady"]["reason"] == "DispatcherNotReady"


def test_every_condition_that_is_false_has_a_reason():
    bad = channel("bad", numPartitions=0)
    far = channel("far", replicationFactor=9)
    for update in actions(document(channels=[channel(), bad, far]), "UpdateStatus"):
        for entry in update["status"].get("conditions", ()):
            assert entry["status"] == "True" or entry["reason"]
            assert entry["lastTransitionTime"] == at(0)


def test_the_status_speaks_of_the_generation_that_was_planned_for():
    doc = steady(document(channels=[channel()]))
    doc["channels"][0]["metadata"]["generation"] = 5

    (update,) = actions(doc)
    assert update["status"] == {"observedGeneration": 5}


def test_times_change_only_with_their_cause():
    doc = steady(document(channels=[channel()]))
    assert actions(doc, seconds=86400) == []

    later = read({**doc, "deployments": []})
    (before,) = [c["lastTransitionTime"] for c in status(doc)["conditions"] if c["type"] == "TopicReady"]
    update = decide(later, seconds=60).to_document()["actions"][-1]
    found = conditions(update["status"])
    assert found["TopicReady"]["lastTransitionTime"] == before
    assert found["DispatcherReady"]["lastTransitionTime"] == at(60)


def test_a_condition_of_somebody_else_is_kept():
    doc = steady(document(channels=[channel()]))
    theirs = {"type": "EventPoliciesReady", "status": "True", "lastTransitionTime": at(-9)}
    status(doc)["conditions"].append(theirs)
    assert actions(doc) == []

    doc["deployments"][0]["status"] = {}
    (update,) = actions(doc)
    assert conditions(update["status"])["EventPoliciesReady"] == theirs


def test_the_order_of_conditions_is_no_reason_to_write():
    doc = steady(document(channels=[channel()]))
    status(doc)["conditions"].reverse()

    assert actions(doc) == []


def test_what_others_write_into_the_status_stays():
    doc = steady(document(channels=[channel()]))
    status(doc)["policies"] = [{"name": "x"}]
    status(doc)["annotations"]["other"] = "y"

    assert actions(doc) == []


def test_the_dead_letter_sink_is_shown_and_taken_back():
    sink = {"deadLetterSink": {"uri": "http://dls.shop/"}}
    doc = steady(document(channels=[channel(delivery=sink)]))
    assert status(doc)["deadLetterSinkUri"] == "http://dls.shop/"

    del doc["channels"][0]["spec"]["delivery"]
    (update,) = actions(doc)
    assert update["status"] == {"deadLetterSinkUri": None}
    assert kinds(converge(doc)[0]) == []


def test_a_vanished_subscriber_leaves_the_status():
    doc = steady(document(channels=[channel()]))
    doc["channels"][0]["spec"]["subscribers"] = []

    (update,) = actions(doc, "UpdateStatus")
    assert update["status"] == {"subscribers": []}


def test_a_status_that_is_damaged_is_written_anew():
    for damaged in ([], "x", {"conditions": "x"}, {"conditions": [1, {"type": 2}]}, {"subscribers": 3}):
        doc = steady(document(channels=[channel()]))
        annotations = status(doc)["annotations"]
        doc["channels"][0]["status"] = damaged
        if isinstance(damaged, dict):
            damaged["annotations"] = annotations

        repaired = steady(doc)
        assert {c["status"] for c in status(repaired)["conditions"]} == {"True"}


def test_what_could_not_be_read_stays_as_it_was_said():
    ready = as_returned(steady(document(channels=[channel()])))
    for part in ("brokers", "topics", "deployments", "services", "lag"):
        assert actions({**ready, part: None}) == [], part
    assert actions({**ready, **dict.fromkeys(("brokers", "topics", "deployments", "services", "lag"))}) == []


def test_an_observation_without_anything_says_unknown_of_a_new_channel():
    doc = document(channels=[channel()], **dict.fromkeys(("brokers", "topics", "deployments", "services", "lag")))
    (update,) = actions(doc)

    assert conditions(update["status"])["Ready"]["status"] == "Unknown"
    assert conditions(update["status"])["TopicReady"]["status"] == "Unknown"


def test_a_broker_outage_changes_no_status():
    doc = as_returned(steady(document(brokers=[broker(0), broker(1), broker(2)], channels=[channel()])))
    for entry in doc["brokers"]:
        entry["fenced"] = True
        entry["last_seen"] = None

    assert actions(doc) == []


def test_now_is_an_argument():
    snapshot = read(document(channels=[channel()]))
    first = decide(snapshot).to_document()
    later = decide(snapshot, seconds=3600).to_document()

    assert str(NOW.year) in str(first)
    assert first != later, "a new condition carries the time that was given"
