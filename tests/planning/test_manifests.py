"""What is deployed: accepted by a cluster that is strict, found again by its marks, read back by the program."""

from __future__ import annotations

import re

import pytest

from eventing.program_config import DispatchConfig
from orchestration.planning import CanaryDeployment, CanaryPolicy, Policy, names, sizing
from tests.planning.worlds import actions, channel, document, subscriber

LONG = "a" * 200 + ".with.dots"


def manifests(name="orders", namespace="shop", policy=None):
    policy = policy or Policy(kafka_secret="s", canary=CanaryPolicy(deployment=CanaryDeployment(image="c")))
    found = actions(document(channels=[channel(name, namespace)]), policy=policy)
    return [a["manifest"] for a in found if a["kind"] in {"ApplyDeployment", "ApplyService"}]


@pytest.mark.parametrize(
    "manifest", [m for m in manifests() if m["kind"] == "Deployment"], ids=lambda m: m["metadata"]["name"]
)
def test_pods_pass_pod_security_restricted(manifest):
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/, the profile `restricted`."""
    pod = manifest["spec"]["template"]["spec"]
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }

    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] != 0
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    for volume in pod["volumes"]:
        assert set(volume) - {"name"} <= allowed
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["runAsNonRoot"] is True
        assert not context.get("privileged")
        assert all("hostPort" not in port for port in container["ports"])


@pytest.mark.parametrize("manifest", manifests(LONG, "n" * 63), ids=lambda m: m["kind"])
def test_names_and_label_values_fit_a_cluster_whatever_the_channel_is_called(manifest):
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", manifest["metadata"]["name"])
    labels = dict(manifest["metadata"]["labels"])
    if manifest["kind"] == "Deployment":
        assert manifest["spec"]["selector"]["matchLabels"] == labels
        assert labels.items() <= manifest["spec"]["template"]["metadata"]["labels"].items()
    for value in labels.values():
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value)


def test_every_object_carries_the_marks_by_which_it_is_found_again():
    for manifest in manifests():
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "sluice"
        assert labels["app.kubernetes.io/component"] in {"dispatcher", "receiver", "canary"}
        assert manifest["metadata"]["annotations"]["sluice.dev/config-hash"]
        if labels["app.kubernetes.io/component"] != "canary":
            assert labels["sluice.dev/channel"] == "orders"
            assert labels["sluice.dev/channel-namespace"] == "shop"


def test_the_dispatcher_reads_back_what_is_written():
    (dispatcher,) = [m for m in manifests() if m["metadata"]["labels"]["app.kubernetes.io/component"] == "dispatcher"]
    container = dispatcher["spec"]["template"]["spec"]["containers"][0]
    config = DispatchConfig.from_env({e["name"]: e["value"] for e in container["env"]})
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}

    assert container["command"] == ["python", "-m", "dispatcher_image", "dispatch"]
    assert config.channel_key == "shop/orders"
    assert config.kafka_topic == "shop.orders"
    assert (config.metrics_port, config.health_port) == (ports["metrics"], ports["health"])
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}
    assert dispatcher["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > config.drain_timeout_seconds
    assert not any(e["name"].startswith("SUBSCRIBER") for e in container["env"]), "subscriptions come from the registry"


def test_neither_replicas_nor_time_are_part_of_the_fingerprint():
    hashes = set()
    for seconds, lag in ((0, 0), (3600, 0), (0, 5000)):
        doc = document(
            channels=[channel()],
            lag={"kafka.shop.orders.u1": {"topic": "shop.orders", "partitions": {"0": lag, "1": 0}}},
        )
        (apply,) = actions(doc, "ApplyDeployment", seconds=seconds)
        hashes.add(apply["manifest"]["metadata"]["annotations"]["sluice.dev/config-hash"])

    assert len(hashes) == 1


def test_the_service_names_the_receiver():
    (service,) = [m for m in manifests() if m["kind"] == "Service"]

    assert service["metadata"]["name"] == "orders-kn-channel"
    assert service["metadata"]["namespace"] == "shop"
    assert service["spec"]["type"] == "ExternalName"
    assert service["spec"]["externalName"] == "sluice-receiver.sluice-system.svc.cluster.local"


def test_deployment_names_are_readable_and_never_meet():
    assert names.deployment_name("shop", "orders").startswith("orders-shop-")
    assert names.deployment_name("shop", "orders").endswith("-dispatcher")
    assert names.deployment_name("c", "a-b") != names.deployment_name("b-c", "a")
    assert names.deployment_name("shop", "x" * 200) != names.deployment_name("shop", "x" * 201)
    assert len(names.deployment_name("n" * 63, "x" * 253)) <= 63


# --- sizing


def memory(subscriptions, partitions, **more):
    defaults = {"max_in_flight": 256, "max_in_flight_bytes": 8 * 2**20, "event_bytes": 10_240}
    return sizing.dispatcher_memory(subscriptions=subscriptions, partitions=partitions, **{**defaults, **more})


def test_the_formula_gives_knatives_own_example():
    """Ten subscriptions, four partitions, 256 events of 10 kB each: 100 MB above the base."""
    expected = sizing.BASE_BYTES + 10 * 4 * 256 * 10_240

    assert memory(10, 4).request == sizing.stepped(expected) == 256 * 2**20


def test_the_limit_covers_the_bound():
    size = memory(10, 4)

    assert size.limit >= sizing.BASE_BYTES + 10 * 4 * 8 * 2**20
    assert size.limit >= size.request


def test_memory_grows_in_doubling_steps_so_that_a_subscription_seldom_restarts_pods():
    steps = [memory(n, 4) for n in range(1, 200)]

    assert len({(s.request, s.limit) for s in steps}) <= 12
    assert steps == sorted(steps, key=lambda s: (s.request, s.limit))


def test_quantities_are_mebibytes():
    (apply,) = actions(
        document(channels=[channel(numPartitions=10, subscribers=[subscriber(f"u{n}") for n in range(15)])]),
        "ApplyDeployment",
    )
    resources = apply["manifest"]["spec"]["template"]["spec"]["containers"][0]["resources"]

    assert resources["requests"]["memory"] == "512Mi"
    assert resources["limits"]["memory"] == "2048Mi"
    assert "cpu" not in resources["limits"], "throttling would fail the health checks"
