"""The seams of the control plane: what it reads from the world, and what it may do to it.

Each port has two real implementations, chosen by configuration in `resources.py`, and one verified fake in
`tests/fakes`. Three rules hold for all of them:

* They speak documents, not library objects: what a port returns is the part of the snapshot document that it is
  responsible for (design §4.5), so that a snapshot from a file and one from the world are the same thing.
* A part that could not be read is never an empty one: the whole call raises `Unavailable`, and a single value
  inside an answer that could not be read is None.
* Errors are those of `eventing.errors` and no others: `Unavailable` (try again later), `Refused` and its kinds
  `Conflict` (observe again), `NotFound`, `Forbidden`. No library's exception crosses a port.

Every method that changes something is idempotent: applying it to a world that is already so is success.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

JsonObject = dict[str, Any]
"""A parsed JSON or YAML mapping. Only edges handle it; planning parses it once into dataclasses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidDocument:
    """A declaration in the registry that cannot be used, named so that its author finds it."""

    object: str
    """`namespace/name` where the document says so much, else the file's name."""
    file: str
    """Path of the file, relative to the registry's folder; empty where a registry has no files."""
    line: int | None
    """Line in that file, counted from 1; None where it is not known."""
    field: str
    """Path of the field, as in `spec.subscribers[0].subscriberUri`; empty for the document as a whole."""
    reason: str
    """What is wrong, and what would be right, in words."""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.field, self.reason) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryView:
    """All declared channels at one moment."""

    channels: list[JsonObject]
    """KafkaChannel objects with metadata (generation, finalizers, deletionTimestamp) and status merged in,
    sorted by namespace and name. One that is being deleted is here until its finalizers are gone."""
    invalid: list[InvalidDocument] = field(default_factory=list)


class Registry(Protocol):
    """Where teams declare KafkaChannels, and where they read how those are."""

    def list_channels(self) -> RegistryView:
        """All channels. Raises `Unavailable` where the registry as a whole cannot be read."""
        ...

    def update_status(self, namespace: str, name: str, patch: JsonObject, finalizers: list[str] | None) -> None:
        """Merge `patch` (RFC 7386) into the status; set the finalizers where they are given.

        Removing the last finalizer of a channel that is being deleted removes the channel.
        """
        ...

    def wait_for_change(self, cursor: str | None, timeout_s: float) -> str:
        """Return a new cursor as soon as the registry differs from what `cursor` stands for.

        Returns the same cursor after `timeout_s` seconds without a change; at once where `cursor` is None.
        What orchestration writes itself (status) is no change.
        """
        ...


class Workloads(Protocol):
    """What runs: Deployments and Services, on this machine or in a cluster.

    Only objects with the label `app.kubernetes.io/managed-by=sluice` are listed or touched.
    """

    def list_deployments(self) -> list[JsonObject]:
        """`apps/v1` Deployments as observed.

        With `metadata.resourceVersion`, `metadata.creationTimestamp` and
        `status.{replicas,readyReplicas,updatedReplicas,observedGeneration}`.
        """
        ...

    def list_services(self) -> list[JsonObject]: ...

    def apply_deployment(self, manifest: JsonObject) -> None:
        """Make it so; returns when the manifest is accepted, not when it is rolled out."""
        ...

    def scale_deployment(self, namespace: str, name: str, replicas: int, annotations: dict[str, str]) -> None:
        """Set the number of replicas and merge `annotations` into the object's own (not the pods').

        Raises `NotFound` where there is no such Deployment.
        """
        ...

    def delete_deployment(self, namespace: str, name: str) -> None:
        """Returns when no process or pod of it is left; absent is done. Bounded, else `Unavailable`."""
        ...

    def apply_service(self, manifest: JsonObject) -> None: ...

    def delete_service(self, namespace: str, name: str) -> None:
        """Absent is done."""
        ...

    def wait_for_change(self, cursor: str | None, timeout_s: float) -> str:
        """As `Registry.wait_for_change`: what is observed differs (replicas, readiness, existence)."""
        ...


class KafkaCluster(Protocol):
    """One Kafka cluster: what there is, and one method for each kind of action on it."""

    def brokers(self) -> list[JsonObject]:
        """`[{"id", "rack", "fenced", "last_seen"}]`, sorted by id; all that are registered.

        `last_seen` (RFC 3339) is the moment of reading for a broker that is up, None for one that is fenced:
        a cluster does not remember it. Never empty: a cluster without brokers is `Unavailable`.
        """
        ...

    def topics(self) -> dict[str, JsonObject]:
        """`{topic: {"partitions": [{"id", "replicas", "isr", "leader"}], "reassigning": [ids], "configs": {}}}`.

        All topics but Kafka's own (`__consumer_offsets`, …). `configs` has what is set on the topic itself, or
        is None where that could not be read.
        """
        ...

    def lag(self, expected: Mapping[str, str]) -> dict[str, JsonObject]:
        """`{group: {"topic", "partitions": {"0": records or None}}}` of each group with committed offsets.

        `expected` (group → topic) are the groups that declared subscriptions use. Read are these and every other
        group of ours (`kafka.…`), which may be left over. An expected group that could not be read has None for
        every partition, so that it is not mistaken for a group without offsets.
        """
        ...

    def create_topic(
        self, topic: str, assignments: Mapping[int, Sequence[int]], configs: Mapping[str, str]
    ) -> None: ...

    def create_partitions(self, topic: str, total: int, assignments: Mapping[int, Sequence[int]]) -> None:
        """Grow `topic` to `total` partitions; `assignments` are those of the new partitions only."""
        ...

    def reassign_partitions(self, topic: str, assignments: Mapping[int, Sequence[int]]) -> None:
        """Start moving replicas; returns when accepted. What is already so is not asked for again."""
        ...

    def alter_topic_config(self, topic: str, configs: Mapping[str, str | None]) -> None:
        """Set these keys and leave all others (incremental); None removes a key."""
        ...

    def elect_leaders(self, topic: str, partitions: Collection[int]) -> None:
        """Elect the preferred leader of these partitions. Not needed is success."""
        ...

    def delete_topic(self, topic: str) -> None:
        """Absent is done."""
        ...

    def initialize_offsets(
        self, group: str, topic: str, partitions: Collection[int], offset: Literal["latest", "earliest"]
    ) -> None:
        """Commit where `group` starts, for those of `partitions` that have no committed offset."""
        ...

    def delete_group(self, group: str) -> None:
        """Absent is done. A group that still has members is waited for, bounded, then `Conflict`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The three worlds that one reconciliation reads and changes."""

    registry: Registry
    workloads: Workloads
    kafka: KafkaCluster
