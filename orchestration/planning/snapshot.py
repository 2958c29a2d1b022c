"""What was observed, as frozen values: the snapshot document (design §4.5) and nothing more.

A snapshot is the only thing a plan is made from, besides policy and time. Whether it comes from live adapters or from
a file makes no difference. Everywhere None means *not known this time*; an empty list means *known to be empty*.

`KafkaChannel`, Deployment and Service objects stay the documents they are: each part of the planner reads from them
what it needs, and what it does not know passes through untouched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NewType

from orchestration.planning import documents
from orchestration.planning.documents import DocumentError, format_time
from orchestration.planning.policy import PolicyOverride

BrokerId = NewType("BrokerId", int)
PartitionId = NewType("PartitionId", int)

NO_LEADER = BrokerId(-1)
"""What Kafka says where a partition has no leader."""

JsonObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker that is registered, or was seen within the grace time."""

    id: BrokerId
    rack: str | None = None
    fenced: bool | None = None
    """True: registered, but stopped. None: not known."""
    last_seen: datetime | None = None
    """None: not known when, so that it is not known to be gone."""

    @property
    def is_live(self) -> bool:
        """Not known to be stopped."""
        return self.fenced is not True


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition as the brokers describe it."""

    id: PartitionId
    replicas: tuple[BrokerId, ...] | None = None
    """First = preferred leader. While replicas move: the target first, then those that are to go."""
    isr: tuple[BrokerId, ...] | None = None
    leader: BrokerId | None = None
    """`NO_LEADER` where there is none, None where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic that exists."""

    partitions: tuple[Partition, ...] | None = None
    """Sorted by id."""
    reassigning: tuple[PartitionId, ...] | None = None
    """Partitions whose replicas are moving, sorted."""
    configs: Mapping[str, str] | None = None
    """What is set on the topic itself; a key that is not there has the brokers' default."""

    @property
    def is_contiguous(self) -> bool:
        """All partitions from 0 on are there; otherwise the description is incomplete."""
        return bool(self.partitions) and [p.id for p in self.partitions or ()] == list(
            range(len(self.partitions or ()))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """The committed offsets of one consumer group, as distances to the end of the log in records."""

    topic: str | None = None
    partitions: Mapping[PartitionId, int | None]
    """A partition that is missing has no committed offset; None: it could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One observation of the world."""

    observed_at: datetime
    brokers: tuple[Broker, ...] | None = None
    """Sorted by id."""
    expected_brokers: int | None = None
    """How many brokers there should be. When set, a missing broker never counts as gone."""
    topics: Mapping[str, Topic] | None = None
    channels: tuple[JsonObject, ...] | None = None
    deployments: tuple[JsonObject, ...] | None = None
    services: tuple[JsonObject, ...] | None = None
    lag: Mapping[str, GroupLag] | None = None
    """By group id."""
    policy: PolicyOverride | None = None

    @classmethod
    def from_document(cls, document: object) -> Snapshot:
        """Read a snapshot document. Raises `DocumentError`, which names the place, where it is damaged."""
        top = documents.mapping(document, "snapshot")
        if top.get("observed_at") is None:
            raise DocumentError("observed_at", "is missing; a plan needs the time of the observation")
        expected = documents.optional_integer(top.get("expected_brokers"), "expected_brokers", low=-1)
        if expected == 0:
            raise DocumentError("expected_brokers", "must be at least 1, or null")
        return cls(
            observed_at=documents.time(top["observed_at"], "observed_at"),
            brokers=_brokers(top.get("brokers")),
            expected_brokers=None if expected == -1 else expected,  # strimzi-canary's word for "not set"
            topics=_topics(top.get("topics")),
            channels=_objects(top.get("channels"), "channels", named=False),
            deployments=_objects(top.get("deployments"), "deployments", named=True),
            services=_objects(top.get("services"), "services", named=True),
            lag=_lag(top.get("lag")),
            policy=None if top.get("policy") is None else PolicyOverride.from_document(top["policy"]),
        )

    def to_document(self) -> dict[str, Any]:
        """The document that `from_document` reads back as an equal snapshot."""
        document: dict[str, Any] = {
            "observed_at": format_time(self.observed_at),
            "brokers": None if self.brokers is None else [_broker_document(b) for b in self.brokers],
            "expected_brokers": self.expected_brokers,
            "topics": None if self.topics is None else {n: _topic_document(t) for n, t in sorted(self.topics.items())},
            "channels": None if self.channels is None else [dict(c) for c in self.channels],
            "deployments": None if self.deployments is None else [dict(d) for d in self.deployments],
            "services": None if self.services is None else [dict(s) for s in self.services],
            "lag": None if self.lag is None else {g: _lag_document(entry) for g, entry in sorted(self.lag.items())},
        }
        if self.policy is not None:
            document["policy"] = self.policy.to_document()
        return document


def _brokers(value: object) -> tuple[Broker, ...] | None:
    entries = documents.optional_items(value, "brokers")
    if entries is None:
        return None
    brokers: dict[int, Broker] = {}
    for index, item in enumerate(entries):
        path = f"brokers[{index}]"
        entry = documents.mapping(item, path)
        broker = Broker(
            id=BrokerId(documents.integer(entry.get("id"), f"{path}.id", low=0)),
            rack=documents.optional_text(entry.get("rack"), f"{path}.rack") or None,
            fenced=documents.optional_boolean(entry.get("fenced"), f"{path}.fenced"),
            last_seen=documents.optional_time(entry.get("last_seen"), f"{path}.last_seen"),
        )
        if broker.id in brokers:
            raise DocumentError(f"{path}.id", f"broker {broker.id} is listed twice")
        brokers[broker.id] = broker
    return tuple(brokers[key] for key in sorted(brokers))


def _topics(value: object) -> dict[str, Topic] | None:
    entries = documents.optional_mapping(value, "topics")
    if entries is None:
        return None
    return {name: _topic(entry, f"topics[{name!r}]") for name, entry in entries.items()}


def _topic(value: object, path: str) -> Topic:
    if value is None:  # it exists, and no more could be read
        return Topic()
    entry = documents.mapping(value, path)
    listed = documents.optional_items(entry.get("partitions"), f"{path}.partitions")
    partitions: tuple[Partition, ...] | None = None
    if listed is not None:
        by_id: dict[int, Partition] = {}
        for index, item in enumerate(listed):
            partition = _partition(item, f"{path}.partitions[{index}]")
            if partition.id in by_id:
                raise DocumentError(f"{path}.partitions[{index}].id", f"partition {partition.id} is listed twice")
            by_id[partition.id] = partition
        partitions = tuple(by_id[key] for key in sorted(by_id))
    moving = documents.optional_items(entry.get("reassigning"), f"{path}.reassigning")
    configs = documents.optional_mapping(entry.get("configs"), f"{path}.configs")
    return Topic(
        partitions=partitions,
        reassigning=None
        if moving is None
        else tuple(
            PartitionId(number)
            for number in sorted(
                {documents.integer(p, f"{path}.reassigning[{i}]", low=0) for i, p in enumerate(moving)}
            )
        ),
        configs=None
        if configs is None
        else {k: _config_value(v, f"{path}.configs[{k!r}]") for k, v in configs.items() if v is not None},
    )


def _partition(value: object, path: str) -> Partition:
    entry = documents.mapping(value, path)
    number = documents.integer(entry.get("id"), f"{path}.id", low=0)
    replicas = _broker_ids(entry.get("replicas"), f"{path}.replicas")
    if replicas is not None and (not replicas or len(set(replicas)) != len(replicas)):
        raise DocumentError(f"{path}.replicas", "must name at least one broker, and none twice")
    leader = documents.optional_integer(entry.get("leader"), f"{path}.leader", low=-1)
    return Partition(
        id=PartitionId(number),
        replicas=replicas,
        isr=_broker_ids(entry.get("isr"), f"{path}.isr"),
        leader=None if leader is None else BrokerId(leader),
    )


def _broker_ids(value: object, path: str) -> tuple[BrokerId, ...] | None:
    entries = documents.optional_items(value, path)
    if entries is None:
        return None
    return tuple(BrokerId(documents.integer(b, f"{path}[{i}]", low=0)) for i, b in enumerate(entries))


def _config_value(value: object, path: str) -> str:
    # Kafka's values are strings; a hand-written snapshot may well have numbers.
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else documents.text(value, path)


def _objects(value: object, path: str, *, named: bool) -> tuple[JsonObject, ...] | None:
    entries = documents.optional_items(value, path)
    if entries is None:
        return None
    for index, item in enumerate(entries):
        entry = documents.mapping(item, f"{path}[{index}]")
        # A channel without a name is its author's error and reported there; a Deployment without one is ours.
        if named:
            metadata = documents.mapping(entry.get("metadata"), f"{path}[{index}].metadata")
            documents.text(metadata.get("name"), f"{path}[{index}].metadata.name")
    return tuple(entries)


def _lag(value: object) -> dict[str, GroupLag] | None:
    entries = documents.optional_mapping(value, "lag")
    if entries is None:
        return None
    lag: dict[str, GroupLag] = {}
    for group, item in entries.items():
        path = f"lag[{group!r}]"
        entry = documents.mapping(item, path)
        partitions = documents.mapping(entry.get("partitions"), f"{path}.partitions")
        lag[group] = GroupLag(
            topic=documents.optional_text(entry.get("topic"), f"{path}.topic"),
            partitions={
                PartitionId(documents.numeric_key(key, f"{path}.partitions")): documents.optional_integer(
                    number, f"{path}.partitions[{key!r}]"
                )
                for key, number in partitions.items()
            },
        )
    return lag


def _broker_document(broker: Broker) -> dict[str, Any]:
    return {
        "id": broker.id,
        "rack": broker.rack,
        "fenced": broker.fenced,
        "last_seen": None if broker.last_seen is None else format_time(broker.last_seen),
    }


def _topic_document(topic: Topic) -> dict[str, Any]:
    return {
        "partitions": None
        if topic.partitions is None
        else [
            {
                "id": p.id,
                "replicas": None if p.replicas is None else list(p.replicas),
                "isr": None if p.isr is None else list(p.isr),
                "leader": p.leader,
            }
            for p in topic.partitions
        ],
        "reassigning": None if topic.reassigning is None else list(topic.reassigning),
        "configs": None if topic.configs is None else dict(sorted(topic.configs.items())),
    }


def _lag_document(entry: GroupLag) -> dict[str, Any]:
    return {
        "topic": entry.topic,
        "partitions": {str(p): number for p, number in sorted(entry.partitions.items())},
    }
