"""Deployments and Services as plain documents, the same for a cluster and for this machine.

A manifest depends on nothing that moves by itself: not on the number of replicas, not on the time. Its fingerprint is
kept in an annotation, and a manifest is applied again when the fingerprint differs; comparing objects field by field
would meet every default that an API server fills in. Pods pass Pod Security `restricted`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from eventing.channels import (
    LABEL_CHANNEL,
    LABEL_CHANNEL_NAMESPACE,
    LABEL_COMPONENT,
    LABEL_MANAGED_BY,
    MANAGED_BY,
    KafkaChannel,
    service_name,
)
from eventing.program_config import DispatchConfig
from orchestration.planning import sizing
from orchestration.planning.names import (
    ANNOTATION_CHANNEL_KEY,
    ANNOTATION_CONFIG_HASH,
    label_value,
)
from orchestration.planning.policy import CanaryDeployment, Policy
from orchestration.planning.snapshot import JsonObject

SECRET_MOUNT = "/etc/sluice/kafka"  # noqa: S105  # a path, not a password
DRAIN_MARGIN_S = 20
"""What a pod gets beyond its own drain time: committing, leaving the groups, closing connections."""
CANARY_NAME = "sluice-canary"
METRICS_PORT = 8081
HEALTH_PORT = 8082
CANARY_METRICS_PORT = 8080


def channel_labels(channel: KafkaChannel, component: str) -> dict[str, str]:
    """The labels of what belongs to a channel."""
    return {
        LABEL_MANAGED_BY: MANAGED_BY,
        LABEL_COMPONENT: component,
        LABEL_CHANNEL: label_value(channel.name),
        LABEL_CHANNEL_NAMESPACE: label_value(channel.namespace),
    }


def dispatcher_manifest(
    channel: KafkaChannel, *, name: str, namespace: str, topic: str, partitions: int, policy: Policy
) -> dict[str, Any]:
    """The dispatcher Deployment of a channel, without replicas."""
    wanted = policy.dispatcher
    config = DispatchConfig(
        bootstrap_servers=policy.bootstrap_servers,
        channel_key=channel.key,
        kafka_topic=topic,
        channel_source=policy.channel_source,
        kafka_secret_dir=_secret_dir(policy),
        max_in_flight=wanted.max_in_flight,
        drain_timeout_seconds=wanted.drain_timeout_s,
        metrics_port=METRICS_PORT,
        health_port=HEALTH_PORT,
    )
    memory = sizing.dispatcher_memory(
        subscriptions=len(channel.subscribers),
        partitions=partitions,
        max_in_flight=config.max_in_flight,
        max_in_flight_bytes=config.max_in_flight_bytes,
        event_bytes=wanted.event_bytes,
    )
    labels = channel_labels(channel, "dispatcher")
    container = {
        "name": "dispatcher",
        "image": wanted.image,
        "command": ["python", "-m", "dispatcher_image", "dispatch"],
        "env": _env_list({**wanted.extra_env, **config.to_env()}),
        "ports": [
            {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
            {"name": "health", "containerPort": HEALTH_PORT, "protocol": "TCP"},
        ],
        **_probes("/healthz", "/readyz", "health"),
        "resources": {
            "requests": {"cpu": sizing.CPU_REQUEST, "memory": sizing.mebibytes(memory.request)},
            "limits": {"memory": sizing.mebibytes(memory.limit)},
        },
    }
    return _deployment(
        name=name,
        namespace=namespace,
        labels=labels,
        annotations={ANNOTATION_CHANNEL_KEY: channel.key},
        container=container,
        # Kubernetes sends SIGKILL when this is over, so the drain must be over before.
        grace_s=int(wanted.drain_timeout_s) + DRAIN_MARGIN_S,
        # A new replica takes over before an old one goes: partitions are without a consumer for a rebalance only.
        strategy={"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        service_account=wanted.service_account,
        policy=policy,
    )


def canary_manifest(canary: CanaryDeployment, policy: Policy) -> dict[str, Any]:
    """The canary's Deployment, without replicas."""
    metrics_port = int(canary.env.get("METRICS_PORT", CANARY_METRICS_PORT))
    env = {
        **canary.env,
        "TOPIC": policy.canary.topic,
        "KAFKA_BOOTSTRAP_SERVERS": policy.bootstrap_servers,
        "METRICS_PORT": str(metrics_port),
    }
    secret_dir = _secret_dir(policy)
    if secret_dir is not None:
        env["KAFKA_SECRET_DIR"] = secret_dir
    port: dict[str, Any] = {"name": "metrics", "containerPort": metrics_port, "protocol": "TCP"}
    if canary.host_port is not None:
        port["hostPort"] = canary.host_port
    container = {
        "name": "canary",
        "image": canary.image,
        "command": ["python", "-m", "canary_image"],
        "env": _env_list(env),
        "ports": [port],
        **_probes("/liveness", "/readiness", "metrics"),
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
    }
    return _deployment(
        name=CANARY_NAME,
        namespace=policy.system_namespace,
        labels={LABEL_MANAGED_BY: MANAGED_BY, LABEL_COMPONENT: "canary"},
        annotations={},
        container=container,
        grace_s=30,
        # Two canaries at once would each take the other's records for foreign ones.
        strategy={"type": "Recreate"},
        service_account=None,
        policy=policy,
    )


def service_manifest(channel: KafkaChannel, policy: Policy) -> dict[str, Any]:
    """The Service by which producers address a channel: another name of the receiver's."""
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(channel.name),
            "namespace": channel.namespace,
            "labels": channel_labels(channel, "receiver"),
            "annotations": {ANNOTATION_CHANNEL_KEY: channel.key},
        },
        "spec": {
            "type": "ExternalName",
            "externalName": f"{policy.receiver_service}.{policy.system_namespace}.svc.cluster.local",
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        },
    }
    return _fingerprinted(manifest)


def with_replicas(manifest: JsonObject, replicas: int, annotations: Mapping[str, str]) -> dict[str, Any]:
    """The manifest as it is applied: with its size, and with annotations that are no part of the fingerprint."""
    metadata = dict(manifest["metadata"])
    metadata["annotations"] = {**metadata["annotations"], **annotations}
    return {**manifest, "metadata": metadata, "spec": {**manifest["spec"], "replicas": replicas}}


def fingerprint(manifest: JsonObject) -> str:
    """What the manifest says, in 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def _deployment(
    *,
    name: str,
    namespace: str,
    labels: dict[str, str],
    annotations: dict[str, str],
    container: dict[str, Any],
    grace_s: int,
    strategy: dict[str, Any],
    service_account: str | None,
    policy: Policy,
) -> dict[str, Any]:
    container = {
        **container,
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108  # an emptyDir of the pod's own
    }
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    if policy.kafka_secret is not None:
        container["volumeMounts"].append({"name": "kafka", "mountPath": _secret_dir(policy), "readOnly": True})
        volumes.append({"name": "kafka", "secret": {"secretName": policy.kafka_secret}})
    pod: dict[str, Any] = {
        "containers": [container],
        "terminationGracePeriodSeconds": grace_s,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels},
            }
            for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        ],
        "volumes": volumes,
    }
    if service_account is None:
        pod["automountServiceAccountToken"] = False
    else:
        pod["serviceAccountName"] = service_account
    manifest: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations},
        "spec": {
            "selector": {"matchLabels": labels},
            "strategy": strategy,
            "revisionHistoryLimit": 3,
            "template": {"metadata": {"labels": labels, "annotations": _scrape_annotations(container)}, "spec": pod},
        },
    }
    return _fingerprinted(manifest)


def _fingerprinted(manifest: dict[str, Any]) -> dict[str, Any]:
    metadata = manifest["metadata"]
    marked = {**metadata["annotations"], ANNOTATION_CONFIG_HASH: fingerprint(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": marked}}


def _scrape_annotations(container: Mapping[str, Any]) -> dict[str, str]:
    port = next(entry["containerPort"] for entry in container["ports"] if entry["name"] == "metrics")
    return {"prometheus.io/scrape": "true", "prometheus.io/port": str(port), "prometheus.io/path": "/metrics"}


def _probes(live: str, ready: str, port: str) -> dict[str, Any]:
    return {
        # A minute to start; from then on the two others count.
        "startupProbe": {"httpGet": {"path": live, "port": port}, "periodSeconds": 1, "failureThreshold": 60},
        "livenessProbe": {
            "httpGet": {"path": live, "port": port},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "readinessProbe": {
            "httpGet": {"path": ready, "port": port},
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 3,
        },
    }


def _secret_dir(policy: Policy) -> str | None:
    return policy.kafka_secret_dir or (None if policy.kafka_secret is None else SECRET_MOUNT)


def _env_list(env: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in sorted(env.items())]
