"""Deployments, Services and groups of a snapshot, arranged by the channel they belong to.

Everything is looked up in maps that are built once, so that a plan costs time in proportion to the world's size.
What lacks the label `app.kubernetes.io/managed-by=sluice` is somebody else's: it is found by name only, to be left
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from eventing.channels import (
    LABEL_CHANNEL,
    LABEL_CHANNEL_NAMESPACE,
    LABEL_COMPONENT,
    LABEL_MANAGED_BY,
    MANAGED_BY,
)
from orchestration.planning.documents import parse_time
from orchestration.planning.names import (
    ANNOTATION_CHANNEL_KEY,
    ANNOTATION_CONFIG_HASH,
    ANNOTATION_LAST_RESIZE,
    label_value,
)
from orchestration.planning.snapshot import GroupLag, JsonObject, Snapshot

ObjectKey = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedObject:
    """What the planner reads from a Deployment or a Service."""

    namespace: str
    name: str
    is_managed: bool
    component: str | None
    channel: tuple[str, str] | None
    """Namespace and name of the channel as its labels say, shortened where they are long."""
    config_hash: str | None
    is_terminating: bool
    document: JsonObject

    @property
    def key(self) -> ObjectKey:
        return (self.namespace, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedDeployment(ObservedObject):
    """A Deployment with its size."""

    replicas: int
    ready: int
    resized: datetime | None
    """When its size was last changed; None: never, or not known."""
    created: datetime | None

    @property
    def last_resize(self) -> datetime | None:
        """When its size was last set: by a resize, else by its creation. None where neither can be read."""
        return self.resized or self.created


@dataclass(frozen=True, slots=True)
class Observed:
    """A snapshot, arranged for looking things up."""

    snapshot: Snapshot
    dispatchers: Mapping[tuple[str, str], tuple[ObservedDeployment, ...]]
    """Our dispatcher Deployments by channel, each list sorted by name."""
    deployments: Mapping[ObjectKey, ObservedDeployment]
    services: Mapping[ObjectKey, ObservedObject]
    groups: Mapping[tuple[str, str], Mapping[str, GroupLag]]
    """Groups with committed offsets by channel, and there by the subscription's uid."""

    def dispatchers_of(self, namespace: str, name: str) -> tuple[ObservedDeployment, ...]:
        """The dispatcher Deployments of one channel, also where only its cut labels tell so."""
        found = self.dispatchers.get((namespace, name), ())
        return found or self.dispatchers.get((label_value(namespace), label_value(name)), ())

    @classmethod
    def of(cls, snapshot: Snapshot) -> Observed:
        """Arrange a snapshot."""
        deployments = {d.key: d for d in map(_deployment, snapshot.deployments or ())}
        dispatchers: dict[tuple[str, str], list[ObservedDeployment]] = {}
        for key in sorted(deployments):
            deployment = deployments[key]
            if deployment.is_managed and deployment.component == "dispatcher" and deployment.channel is not None:
                dispatchers.setdefault(deployment.channel, []).append(deployment)
        groups: dict[tuple[str, str], dict[str, GroupLag]] = {}
        for group, entry in (snapshot.lag or {}).items():
            # kafka.<namespace>.<name>.<uid>: neither a namespace nor a uid holds a dot, a name may.
            prefix, _, rest = group.partition(".")
            namespace, _, rest = rest.partition(".")
            name, _, uid = rest.rpartition(".")
            if prefix == "kafka" and namespace and name and uid:
                groups.setdefault((namespace, name), {})[uid] = entry
        return cls(
            snapshot,
            {channel: tuple(found) for channel, found in dispatchers.items()},
            deployments,
            {s.key: s for s in map(_service, snapshot.services or ())},
            groups,
        )


def _deployment(document: JsonObject) -> ObservedDeployment:
    annotations = _mapping(_mapping(document.get("metadata")).get("annotations"))
    spec, status = _mapping(document.get("spec")), _mapping(document.get("status"))
    created = _mapping(document.get("metadata")).get("creationTimestamp")
    return ObservedDeployment(
        **_common(document),
        replicas=_count(spec.get("replicas"), default=1),  # Kubernetes' own default
        ready=_count(status.get("readyReplicas"), default=0),
        resized=_time(annotations.get(ANNOTATION_LAST_RESIZE)),
        created=_time(created),
    )


def _service(document: JsonObject) -> ObservedObject:
    return ObservedObject(**_common(document))


def _common(document: JsonObject) -> dict[str, Any]:
    metadata = _mapping(document.get("metadata"))
    labels, annotations = _mapping(metadata.get("labels")), _mapping(metadata.get("annotations"))
    namespace, name = labels.get(LABEL_CHANNEL_NAMESPACE), labels.get(LABEL_CHANNEL)
    channel: tuple[str, str] | None = None
    key = annotations.get(ANNOTATION_CHANNEL_KEY)
    if isinstance(key, str) and key.count("/") == 1:
        channel = (key.partition("/")[0], key.partition("/")[2])
    elif isinstance(namespace, str) and isinstance(name, str):
        channel = (namespace, name)
    return {
        "namespace": str(metadata.get("namespace") or "default"),
        "name": str(metadata.get("name")),
        "is_managed": labels.get(LABEL_MANAGED_BY) == MANAGED_BY,
        "component": labels.get(LABEL_COMPONENT),
        "channel": channel,
        "config_hash": annotations.get(ANNOTATION_CONFIG_HASH),
        "is_terminating": metadata.get("deletionTimestamp") is not None,
        "document": document,
    }


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: object, *, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def _time(value: object) -> datetime | None:
    return parse_time(value) if isinstance(value, str) else None
