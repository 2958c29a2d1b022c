"""What the Kubernetes registry promises beyond the contract: other writers, Events, a steady state without writes."""

from __future__ import annotations

import pytest

from eventing.errors import Conflict, NotFound
from orchestration.adapters.kubernetes_registry import KubernetesRegistry
from tests.cluster.conftest import channel

pytestmark = pytest.mark.cluster

FINALIZER = "sluice.dev/kafkachannel"
OTHER = "example.com/other"


@pytest.fixture
def registry(registry_cluster, access, namespace):
    registry = KubernetesRegistry(access, namespace=namespace)
    yield registry
    registry.close()
    for left in registry.list_channels().channels:
        name = left["metadata"]["name"]
        registry_cluster.request(
            "PATCH",
            path(namespace, name),
            {"metadata": {"finalizers": None}},
            content_type="application/merge-patch+json",
        )


def path(namespace, name="orders"):
    return f"/apis/messaging.knative.dev/v1beta1/namespaces/{namespace}/kafkachannels/{name}"


def listed(registry):
    (found,) = registry.list_channels().channels
    return found


def ready(status, reason, message=""):
    return {"conditions": [{"type": "Ready", "status": status, "reason": reason, "message": message}]}


def test_finalizers_of_others_are_never_lost(registry_cluster, registry, namespace):
    registry_cluster.apply(channel(namespace))
    registry.list_channels()
    # Somebody adds his between our list and our write.
    registry_cluster.request(
        "PATCH",
        path(namespace),
        {"metadata": {"finalizers": [OTHER]}},
        content_type="application/merge-patch+json",
    )
    registry.update_status(namespace, "orders", {"observedGeneration": 1}, [FINALIZER])
    assert listed(registry)["metadata"]["finalizers"] == [OTHER, FINALIZER]
    registry.update_status(namespace, "orders", {}, [OTHER])
    assert listed(registry)["metadata"]["finalizers"] == [OTHER]


def test_a_status_that_says_nothing_new_is_not_written(registry_cluster, registry, namespace):
    registry_cluster.apply(channel(namespace))
    registry.list_channels()
    registry.update_status(namespace, "orders", {"observedGeneration": 1}, [FINALIZER])
    before = listed(registry)["metadata"]["resourceVersion"]
    registry.update_status(namespace, "orders", {"observedGeneration": 1, "address": None}, [FINALIZER])
    assert listed(registry)["metadata"]["resourceVersion"] == before


def test_a_namesake_made_anew_does_not_get_the_old_ones_status(registry_cluster, registry, namespace):
    registry_cluster.apply(channel(namespace))
    registry.list_channels()
    registry_cluster.request("DELETE", path(namespace))
    registry_cluster.apply(channel(namespace))
    with pytest.raises(Conflict):
        registry.update_status(namespace, "orders", {"annotations": {"default.topic": "old"}}, None)
    assert listed(registry)["status"] == {}


def test_a_deleted_channel_whose_status_is_written_is_not_found(registry_cluster, registry, namespace):
    registry_cluster.apply(channel(namespace))
    registry.list_channels()
    registry_cluster.request("DELETE", path(namespace))
    with pytest.raises(NotFound):
        registry.update_status(namespace, "orders", {"observedGeneration": 1}, None)


def test_an_empty_spec_is_listed_with_the_defaults(registry_cluster, registry, namespace):
    registry_cluster.apply(channel(namespace))
    assert listed(registry)["spec"]["numPartitions"] == 1
    assert "managedFields" not in listed(registry)["metadata"]


def test_what_becomes_of_a_channel_is_told_as_events_once_each(registry_cluster, registry, namespace):
    registry_cluster.apply(channel(namespace))
    registry.list_channels()
    for _ in range(2):
        registry.update_status(namespace, "orders", ready("False", "TopicConflict", "topic t belongs to b/c"), None)
    registry.update_status(namespace, "orders", ready("True", ""), None)
    found = registry_cluster.request("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    told = sorted((e["type"], e["reason"], e["note"]) for e in found if e["regarding"]["kind"] == "KafkaChannel")
    assert told == [("Normal", "Ready", "Ready is True"), ("Warning", "TopicConflict", "topic t belongs to b/c")]


def test_labels_and_annotations_are_a_change_to_wait_for(registry_cluster, registry, namespace):
    registry_cluster.apply(channel(namespace))
    cursor = registry.wait_for_change(None, 0.0)
    registry_cluster.apply(channel(namespace, annotations={"sluice.dev/deletion-policy": "retain"}))
    assert registry.wait_for_change(cursor, 10.0) != cursor


def test_the_cursor_is_the_same_for_another_process_that_sees_the_same(registry_cluster, registry, access, namespace):
    registry_cluster.apply(channel(namespace))
    other = KubernetesRegistry(access, namespace=namespace)
    assert registry.wait_for_change(None, 0.0) == other.wait_for_change(None, 0.0)
    other.close()


def test_more_channels_than_a_page_holds_are_all_listed(registry_cluster, registry, namespace, monkeypatch):
    monkeypatch.setattr("orchestration.adapters.kubernetes_clients.connection.PAGE", 3)
    for index in range(7):
        registry_cluster.apply(channel(namespace, f"c{index}"))
    assert [c["metadata"]["name"] for c in registry.list_channels().channels] == [f"c{i}" for i in range(7)]
