"""Observe, plan, apply against a real API server, with the rights that deploy/ gives and no more.

Kafka is the verified fake: what is proven here is that a plan, once applied to a cluster, leaves nothing to plan, and
that what a channel had goes with it.
"""

from __future__ import annotations

import re
import threading
import time
from datetime import UTC, datetime

import pytest

from orchestration.adapters.kubernetes_registry import KubernetesRegistry
from orchestration.adapters.kubernetes_workloads import KubernetesWorkloads
from orchestration.apply import reconcile_once
from orchestration.planning import CanaryDeployment, CanaryPolicy, DispatcherPolicy, Policy
from orchestration.ports import Ports
from tests.cluster.conftest import channel
from tests.fakes.kafka import FakeKafkaCluster

pytestmark = pytest.mark.cluster

SUBSCRIBER = {"uid": "a1", "generation": 1, "subscriberUri": "http://orders.example.com/events"}
SYSTEM = "/apis/apps/v1/namespaces/sluice-system/deployments"


@pytest.fixture
def ports(deployed, as_service_account):
    access = as_service_account("sluice-orchestration")
    ports = Ports(
        registry=KubernetesRegistry(access),
        workloads=KubernetesWorkloads(access, namespace="sluice-system"),
        kafka=FakeKafkaCluster(3),
    )
    yield ports
    ports.registry.close()
    ports.workloads.close()


@pytest.fixture
def policy():
    canary = CanaryPolicy(deployment=CanaryDeployment(image="sluice/canary"))
    return Policy(bootstrap_servers="kafka:9092", canary=canary)


@pytest.fixture
def reconcile(ports, policy):
    return lambda: reconcile_once(ports, policy, datetime.now(UTC).replace(microsecond=0))


@pytest.fixture
def converge(reconcile):
    """Reconcile until nothing is left to do, and no dispatcher that is starting will bring more; the rounds it took."""

    def converge(within_s=30.0):
        deadline = time.monotonic() + within_s
        rounds = []
        while True:
            rounds.append(reconcile())
            assert not rounds[-1].observation.unreadable, rounds[-1].observation.unreadable
            assert not rounds[-1].applied.failed, rounds[-1].applied.summary
            if not rounds[-1].plan.actions and _is_calm(rounds[-1].observation.document):
                return rounds
            assert time.monotonic() < deadline, rounds[-1].to_document()
            time.sleep(0.3)

    return converge


@pytest.fixture
def declared(deployed, namespace, converge):
    """A function that declares channels; what is left of them is removed at the end."""

    def declare(name="orders", **spec):
        deployed.apply(channel(namespace, name, **{"subscribers": [SUBSCRIBER], **spec}))

    yield declare
    path = f"/apis/messaging.knative.dev/v1beta1/namespaces/{namespace}/kafkachannels"
    deployed.request("DELETE", path)
    converge()


def _is_calm(snapshot):
    """Whether every Deployment has as many ready replicas as it is to have."""
    return all(d["status"]["readyReplicas"] == d["spec"]["replicas"] for d in snapshot["deployments"])


def get(cluster, namespace, name="orders"):
    return cluster.request("GET", f"/apis/messaging.knative.dev/v1beta1/namespaces/{namespace}/kafkachannels/{name}")


def dispatchers(cluster, namespace):
    selector = f"labelSelector=sluice.dev/channel-namespace={namespace}"
    return cluster.request("GET", f"{SYSTEM}?{selector}")["items"]


def conditions(found):
    return {c["type"]: c["status"] for c in found["status"]["conditions"]}


def test_a_channel_becomes_ready_and_then_nothing_is_written_any_more(deployed, namespace, declared, converge):
    declared()
    converge()
    found = get(deployed, namespace)
    assert conditions(found)["Ready"] == "True", found["status"]
    assert found["status"]["address"]["url"] == f"http://orders-kn-channel.{namespace}.svc.cluster.local"
    assert found["status"]["subscribers"] == [{"uid": "a1", "observedGeneration": 1, "ready": "True"}]
    service = deployed.request("GET", f"/api/v1/namespaces/{namespace}/services/orders-kn-channel")
    assert service["spec"]["externalName"] == "sluice-receiver.sluice-system.svc.cluster.local"

    writes = _writes(deployed)
    assert writes > 0
    for _ in range(3):
        assert len(converge()) == 1
    assert _writes(deployed) == writes


def test_a_deleted_channel_leaves_nothing_behind(deployed, namespace, declared, converge, ports):
    declared()
    converge()
    path = f"/apis/messaging.knative.dev/v1beta1/namespaces/{namespace}/kafkachannels"
    deployed.request("DELETE", f"{path}/orders")
    converge()
    assert deployed.request("GET", path)["items"] == []
    assert dispatchers(deployed, namespace) == []
    assert deployed.request("GET", f"/api/v1/namespaces/{namespace}/services")["items"] == []
    assert not [topic for topic in ports.kafka.topics() if namespace in topic]


def test_what_is_deleted_by_hand_is_made_again(deployed, namespace, declared, converge):
    declared()
    converge()
    (before,) = dispatchers(deployed, namespace)
    deployed.request("DELETE", f"{SYSTEM}/{before['metadata']['name']}")
    deployed.request("DELETE", f"/api/v1/namespaces/{namespace}/services/orders-kn-channel")
    converge()
    (after,) = dispatchers(deployed, namespace)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert conditions(get(deployed, namespace))["Ready"] == "True"


def test_what_is_edited_by_hand_is_made_good(deployed, namespace, declared, converge):
    declared()
    converge()
    (before,) = dispatchers(deployed, namespace)
    edit = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}}
    deployed.request(
        "PATCH",
        f"{SYSTEM}/{before['metadata']['name']}?fieldManager=kubectl-edit",
        edit,
        content_type="application/merge-patch+json",
    )
    converge()
    (after,) = dispatchers(deployed, namespace)
    assert after["spec"] == before["spec"]


def test_a_hand_that_unlabels_a_dispatcher_takes_it_out_of_our_hands(
    deployed, namespace, declared, converge, reconcile
):
    declared()
    converge()
    (before,) = dispatchers(deployed, namespace)
    name = before["metadata"]["name"]
    patch = {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}}
    deployed.request("PATCH", f"{SYSTEM}/{name}", patch, content_type="application/merge-patch+json")
    done = reconcile()
    assert done.plan.rejected or done.applied.failed
    assert deployed.request("GET", f"{SYSTEM}/{name}")["metadata"]["uid"] == before["metadata"]["uid"]
    deployed.request("DELETE", f"{SYSTEM}/{name}")


def test_an_image_that_cannot_be_pulled_is_told_on_the_channel(deployed, namespace, declared, ports):
    declared()
    policy = Policy(
        bootstrap_servers="kafka:9092",
        dispatcher=DispatcherPolicy(image="registry.example.com/missing"),
        canary=CanaryPolicy(deployment=CanaryDeployment(image="sluice/canary")),
    )

    def condition():
        reconcile_once(ports, policy, datetime.now(UTC).replace(microsecond=0))
        conditions = get(deployed, namespace).get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == "Ready" and c.get("reason") == "ImagePullBackOff"), None)

    deadline = time.monotonic() + 30
    while (found := condition()) is None:
        assert time.monotonic() < deadline, get(deployed, namespace)["status"]
        time.sleep(0.3)
    assert found["status"] == "False"
    assert "registry.example.com/missing" in found["message"]


def test_two_reconciliations_at_once_double_nothing(deployed, namespace, declared, converge, reconcile):
    for index in range(5):
        declared(f"c{index}")
    threads = [threading.Thread(target=reconcile) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    converge()
    assert len(dispatchers(deployed, namespace)) == 5


def test_an_api_server_that_restarts_in_the_middle_is_waited_for(deployed, namespace, declared, reconcile):
    for index in range(10):
        declared(f"c{index}")
    running = threading.Thread(target=reconcile)
    running.start()
    time.sleep(0.5)
    deployed.restart_api_server()
    running.join()
    _converge_after_restart(reconcile)
    assert len(dispatchers(deployed, namespace)) == 10
    assert {conditions(get(deployed, namespace, f"c{i}"))["Ready"] for i in range(10)} == {"True"}


def _converge_after_restart(reconcile):
    """Whatever failed in the meantime may have; in the end nothing does."""
    deadline = time.monotonic() + 60
    while True:
        done = reconcile()
        seen = done.observation
        if done.succeeded and not seen.unreadable and not done.plan.actions and _is_calm(seen.document):
            return
        assert time.monotonic() < deadline, done.to_document()
        time.sleep(0.3)


def _writes(cluster):
    """Requests that changed something, by anybody but the cluster's own controllers and the tests' kubelet."""
    counted = re.compile(
        r'apiserver_request_total\{.*resource="(kafkachannels|deployments|services|poddisruptionbudgets|events)"'
        r'.*subresource="(\w*)",verb="(POST|PUT|PATCH|APPLY|DELETE)",version="\w*"\} (\d+)'
    )
    return sum(
        int(number)
        for resource, part, _, number in counted.findall(cluster.request("GET", "/metrics")["text"])
        if (resource, part) != ("deployments", "status")
    )
