"""The dispatcher Deployment and the Service of a channel.

A channel's Deployment is found by its labels, not by its name. It is applied when there is none, when its fingerprint
is not that of the manifest which follows from the channel, or when somebody changed what it runs; otherwise only its
size is changed. A size that is set is remembered in `sluice.dev/last-resize`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from eventing.channels import KafkaChannel, service_name
from orchestration.planning.actions import ApplyDeployment, ApplyService, DeleteDeployment, ScaleDeployment
from orchestration.planning.documents import format_time
from orchestration.planning.findings import Findings
from orchestration.planning.manifests import dispatcher_manifest, service_manifest, with_replicas
from orchestration.planning.names import (
    ANNOTATION_CHANNEL_KEY,
    ANNOTATION_CONFIG_HASH,
    ANNOTATION_LAST_RESIZE,
    OUR_DOMAIN,
    deployment_name,
)
from orchestration.planning.observed import Observed, ObservedDeployment
from orchestration.planning.policy import Policy
from orchestration.planning.replicas import Size, decide_size
from orchestration.planning.snapshot import JsonObject

Problem = tuple[str, str]
"""Reason (a word for programs) and message."""


def plan_dispatcher(
    findings: Findings,
    channel: KafkaChannel,
    *,
    topic: str,
    partitions: int,
    lags: Mapping[str, int | None],
    observed: Observed,
    policy: Policy,
    now: datetime,
) -> Problem | None:
    """Apply or resize the dispatcher of a channel; returns why it cannot run.

    `lags` are the records by subscription uid as they are once first offsets are written; None: unknown.
    """
    if observed.snapshot.deployments is None:
        findings.wait("Deployments could not be read")
        return None
    name, namespace = deployment_name(channel.namespace, channel.name), policy.system_namespace
    ours = observed.dispatchers_of(channel.namespace, channel.name)
    existing = next((d for d in ours if d.key == (namespace, name)), ours[0] if ours else None)
    for surplus in ours:
        if surplus is not existing:
            findings.actions.append(
                DeleteDeployment(
                    cause=channel.key,
                    why="a channel has one dispatcher Deployment, and this one is a second",
                    namespace=surplus.namespace,
                    name=surplus.name,
                )
            )
    if existing is None:
        taken = observed.deployments.get((namespace, name))
        if taken is not None:
            whose = "is not this channel's dispatcher" if taken.is_managed else "is not managed by sluice"
            message = f"Deployment {namespace}/{name} exists and {whose} (by its labels); it is left alone"
            findings.reject(message)
            return ("DeploymentIsForeign", message)
    elif existing.is_terminating:
        findings.wait(f"Deployment {existing.name} is being deleted; a new one is applied when it is gone")
        return None

    size = decide_size(
        channel,
        partitions=partitions,
        lags=lags,
        current=None if existing is None else existing.replicas,
        last_resize=None if existing is None else existing.last_resize,
        now=now,
    )
    if size.waiting is not None:
        findings.wait(size.waiting)
    manifest = dispatcher_manifest(
        channel,
        name=name if existing is None else existing.name,
        namespace=namespace if existing is None else existing.namespace,
        topic=topic,
        partitions=partitions,
        policy=policy,
    )
    _apply_or_scale(findings, manifest, existing, size, now)
    return None


def plan_service(findings: Findings, channel: KafkaChannel, *, observed: Observed, policy: Policy) -> Problem | None:
    """Apply the Service of a channel; returns why it cannot be had."""
    if observed.snapshot.services is None:
        findings.wait("Services could not be read")
        return None
    manifest = service_manifest(channel, policy)
    existing = observed.services.get((channel.namespace, service_name(channel.name)))
    if existing is not None and not existing.is_managed:
        message = f"Service {existing.namespace}/{existing.name} exists and is not managed by sluice; it is left alone"
        findings.reject(message)
        return ("ServiceIsForeign", message)
    if existing is not None and existing.is_terminating:
        findings.wait(f"Service {existing.name} is being deleted; a new one is applied when it is gone")
        return None
    if existing is None:
        why = "the channel's Service does not exist"
    elif existing.config_hash != manifest["metadata"]["annotations"][ANNOTATION_CONFIG_HASH]:
        why = "the channel's Service is not as it is to be now"
    else:
        return None
    findings.actions.append(
        ApplyService(
            cause=channel.key,
            why=why,
            namespace=channel.namespace,
            name=service_name(channel.name),
            manifest=manifest,
        )
    )
    return None


def _apply_or_scale(
    findings: Findings, manifest: JsonObject, existing: ObservedDeployment | None, size: Size, now: datetime
) -> None:
    namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    annotations: dict[str, str] = {}
    if existing is None:
        why = f"the channel has no dispatcher; {size.replicas} to begin with: {size.why}"
    else:
        because = why_apply(manifest, existing)
        annotations = kept_annotations(existing)
        if size.replicas != existing.replicas:
            resized = {ANNOTATION_LAST_RESIZE: format_time(now)}
            annotations |= resized
            resize = f"from {existing.replicas} to {size.replicas}: {size.why}"
            if because is None:
                findings.actions.append(
                    ScaleDeployment(
                        cause=findings.object,
                        why=resize,
                        namespace=namespace,
                        name=name,
                        replicas=size.replicas,
                        annotations=resized,
                    )
                )
                return
            because += f"; {resize}"
        if because is None:
            return
        why = because
    findings.actions.append(
        ApplyDeployment(
            cause=findings.object,
            why=why,
            namespace=namespace,
            name=name,
            replicas=size.replicas,
            manifest=with_replicas(manifest, size.replicas, annotations),
        )
    )


def why_apply(manifest: JsonObject, existing: ObservedDeployment) -> str | None:
    """Why a Deployment must be applied again; None when it is as the manifest says.

    The fingerprint tells what we would render otherwise now. What somebody changed by hand is looked for only where
    an API server returns exactly what it was given: image, command and environment.
    """
    if existing.config_hash != manifest["metadata"]["annotations"][ANNOTATION_CONFIG_HASH]:
        return "what the dispatcher is to run has changed" if existing.config_hash else "it has no mark of ours yet"
    wanted = manifest["spec"]["template"]["spec"]["containers"][0]
    found = _container(existing.document, wanted["name"])
    changed = [key for key in ("image", "command") if found.get(key) != wanted[key]]
    env = {e.get("name"): e.get("value") for e in found.get("env") or () if isinstance(e, Mapping)}
    changed += [f"env {e['name']}" for e in wanted["env"] if env.get(e["name"]) != e["value"]]
    return f"somebody changed it: {', '.join(changed)}" if changed else None


def _container(document: JsonObject, name: str) -> Mapping[str, Any]:
    found: object = document
    for key in ("spec", "template", "spec", "containers"):
        found = found.get(key) if isinstance(found, Mapping) else None
    containers = found if isinstance(found, list | tuple) else ()
    return next((c for c in containers if isinstance(c, Mapping) and c.get("name") == name), {})


def kept_annotations(existing: ObservedDeployment) -> dict[str, str]:
    """What is remembered on a Deployment: the last resize, brokers that were seen.

    Applied objects lose what the manifest no longer has, and with it the memory would be lost.
    """
    metadata = existing.document.get("metadata") or {}
    return {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if key.startswith(OUR_DOMAIN) and key not in {ANNOTATION_CONFIG_HASH, ANNOTATION_CHANNEL_KEY}
        if isinstance(value, str)
    }
