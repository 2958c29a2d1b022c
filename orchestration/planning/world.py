"""The world as it is right after a plan was applied, and nothing else happened.

The planner writes a channel's status from this prediction; tests and fakes use it to see that applying a plan leaves
nothing to do. It is a model, so it is cautious where the real world takes its time: replicas that are told to move
are still moving, a new Deployment has no ready replica, and a group that starts at `earliest` in a log of unknown
length has an unknown lag. `settle` lets the moves end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, assert_never

from orchestration.planning.actions import (
    Action,
    AlterTopicConfig,
    ApplyDeployment,
    ApplyService,
    CreatePartitions,
    CreateTopic,
    DeleteDeployment,
    DeleteGroup,
    DeleteService,
    DeleteTopic,
    ElectLeaders,
    InitializeOffsets,
    Plan,
    ReassignPartitions,
    ScaleDeployment,
    UpdateStatus,
)
from orchestration.planning.documents import format_time
from orchestration.planning.snapshot import (
    NO_LEADER,
    BrokerId,
    GroupLag,
    JsonObject,
    Partition,
    PartitionId,
    Snapshot,
    Topic,
)

ObjectKey = tuple[str, str]


def apply_to(snapshot: Snapshot, plan: Plan | tuple[Action, ...] | list[Action]) -> Snapshot:
    """The snapshot that would be taken right after the plan was applied. The given one is not changed.

    An action on a part that is unknown leaves it unknown.
    """
    world = _World(snapshot)
    for action in plan.actions if isinstance(plan, Plan) else plan:
        world.apply(action)
    return world.snapshot()


def settle(snapshot: Snapshot, *plans: Plan) -> Snapshot:
    """The snapshot once the moves of replicas that these plans began have ended: the target is in sync, the rest gone.

    A leader that is in the target stays, whichever place it has there; else the first live replica leads.
    """
    if snapshot.topics is None:
        return snapshot
    topics = dict(snapshot.topics)
    live = None if snapshot.brokers is None else {b.id for b in snapshot.brokers if b.is_live}
    for action in (action for plan in plans for action in plan.actions if isinstance(action, ReassignPartitions)):
        topic = topics[action.topic]
        partitions = tuple(
            partition if target is None else _moved(partition, target, live)
            for partition in topic.partitions or ()
            for target in (action.assignments.get(partition.id),)
        )
        moving = tuple(p for p in topic.reassigning or () if p not in action.assignments)
        topics[action.topic] = replace(topic, partitions=partitions, reassigning=moving)
    return replace(snapshot, topics=topics)


def _moved(partition: Partition, target: tuple[BrokerId, ...], live: set[BrokerId] | None) -> Partition:
    leader = partition.leader if partition.leader in target else _first_live(target, live)
    return replace(partition, replicas=target, isr=_in_sync(target, live), leader=leader)


class _World:
    """Maps over a snapshot's parts, changed action by action."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._before = snapshot
        self._live = None if snapshot.brokers is None else {b.id for b in snapshot.brokers if b.is_live}
        self._topics = None if snapshot.topics is None else dict(snapshot.topics)
        self._lag = None if snapshot.lag is None else dict(snapshot.lag)
        self._deployments = _keyed(snapshot.deployments)
        self._services = _keyed(snapshot.services)
        self._channels: list[JsonObject | None] | None = None
        self._channel_index: dict[ObjectKey, list[int]] = {}
        if snapshot.channels is not None:
            self._channels = [*snapshot.channels]
            for index, channel in enumerate(snapshot.channels):
                self._channel_index.setdefault(_key(channel), []).append(index)
        self._groups_of: dict[str | None, list[str]] | None = None
        """Groups by topic, made when first needed."""
        self._created: set[tuple[str, PartitionId]] = set()
        """Partitions that are new and therefore empty."""

    def snapshot(self) -> Snapshot:
        return replace(
            self._before,
            topics=self._topics,
            lag=self._lag,
            deployments=None if self._deployments is None else tuple(self._deployments.values()),
            services=None if self._services is None else tuple(self._services.values()),
            channels=None if self._channels is None else tuple(c for c in self._channels if c is not None),
        )

    def apply(self, action: Action) -> None:
        match action:
            case CreateTopic() | CreatePartitions() | ReassignPartitions() | AlterTopicConfig() | ElectLeaders():
                self._change_topic(action)
            case DeleteTopic(topic=name):
                if self._topics is not None:
                    self._topics.pop(name, None)
                self._forget_offsets(name)
            case InitializeOffsets():
                self._initialize(action)
            case DeleteGroup(group=group):
                if self._lag is not None:
                    self._lag.pop(group, None)
            case ApplyDeployment(namespace=namespace, name=name, manifest=manifest):
                if self._deployments is not None:
                    before = self._deployments.get((namespace, name))
                    self._deployments[namespace, name] = self._applied(before, manifest)
            case ScaleDeployment():
                self._scale(action)
            case DeleteDeployment(namespace=namespace, name=name):
                if self._deployments is not None:
                    self._deployments.pop((namespace, name), None)
            case ApplyService(namespace=namespace, name=name, manifest=manifest):
                if self._services is not None:
                    before = self._services.get((namespace, name))
                    self._services[namespace, name] = self._applied(before, manifest)
            case DeleteService(namespace=namespace, name=name):
                if self._services is not None:
                    self._services.pop((namespace, name), None)
            case UpdateStatus():
                self._update_status(action)
            case _:
                assert_never(action)

    def _change_topic(
        self, action: CreateTopic | CreatePartitions | ReassignPartitions | AlterTopicConfig | ElectLeaders
    ) -> None:
        if self._topics is None:
            return
        if isinstance(action, CreateTopic):
            partitions = tuple(self._new(number, lists) for number, lists in sorted(action.assignments.items()))
            self._topics[action.topic] = Topic(partitions=partitions, reassigning=(), configs=dict(action.configs))
            self._created.update((action.topic, p.id) for p in partitions)
            return
        topic = self._topics[action.topic]
        listed = topic.partitions or ()
        match action:
            case CreatePartitions():
                added = tuple(self._new(number, lists) for number, lists in sorted(action.assignments.items()))
                topic = replace(topic, partitions=listed + added)
                self._created.update((action.topic, p.id) for p in added)
            case ReassignPartitions():
                moved = {
                    p.id: (*target, *(b for b in p.replicas or () if b not in target))
                    for p in listed
                    if (target := action.assignments.get(p.id)) is not None
                }
                topic = replace(
                    topic,
                    partitions=tuple(replace(p, replicas=moved.get(p.id, p.replicas)) for p in listed),
                    reassigning=tuple(sorted({*(topic.reassigning or ()), *moved})),
                )
            case AlterTopicConfig(configs=configs):
                topic = replace(topic, configs=None if topic.configs is None else {**topic.configs, **configs})
            case ElectLeaders(partitions=elected):
                chosen = set(elected)
                topic = replace(
                    topic,
                    partitions=tuple(
                        replace(p, leader=p.replicas[0]) if p.id in chosen and p.replicas else p for p in listed
                    ),
                )
            case _:
                assert_never(action)
        self._topics[action.topic] = topic

    def _new(self, number: PartitionId, replicas: tuple[BrokerId, ...]) -> Partition:
        return Partition(
            id=number,
            replicas=replicas,
            isr=_in_sync(replicas, self._live),
            leader=_first_live(replicas, self._live),
        )

    def _forget_offsets(self, topic: str) -> None:
        """Kafka drops the offsets of a topic with the topic."""
        if self._lag is None:
            return
        if self._groups_of is None:
            self._groups_of = {}
            for group, entry in self._lag.items():
                self._groups_of.setdefault(entry.topic, []).append(group)
        for group in self._groups_of.pop(topic, ()):
            self._lag.pop(group, None)

    def _initialize(self, action: InitializeOffsets) -> None:
        if self._lag is None:
            return
        entry = self._lag.get(action.group)
        kept = {} if entry is None or entry.topic not in {action.topic, None} else dict(entry.partitions)
        for number in action.partitions:
            is_empty = action.offset == "latest" or (action.topic, number) in self._created
            kept[number] = 0 if is_empty else None
        self._lag[action.group] = GroupLag(topic=action.topic, partitions=kept)
        if self._groups_of is not None:
            self._groups_of.setdefault(action.topic, []).append(action.group)

    def _scale(self, action: ScaleDeployment) -> None:
        if self._deployments is None:
            return
        before = self._deployments[action.namespace, action.name]
        metadata = dict(before["metadata"])
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **action.annotations}
        spec = {**(before.get("spec") or {}), "replicas": action.replicas}
        self._deployments[action.namespace, action.name] = {**before, "metadata": metadata, "spec": spec}

    def _applied(self, before: JsonObject | None, manifest: JsonObject) -> dict[str, Any]:
        old = before or {}
        metadata = {"creationTimestamp": format_time(self._before.observed_at), **(old.get("metadata") or {})}
        for key, value in manifest["metadata"].items():
            is_map = isinstance(value, Mapping) and isinstance(metadata.get(key), Mapping)
            metadata[key] = {**metadata[key], **value} if is_map else value
        return {**old, **manifest, "metadata": metadata, "status": old.get("status") or {}}

    def _update_status(self, action: UpdateStatus) -> None:
        if self._channels is None:
            return
        for index in self._channel_index.get((action.namespace, action.name), ()):
            before = self._channels[index]
            if before is None:
                continue
            metadata = dict(before.get("metadata") or {})
            if action.finalizers is not None:
                metadata["finalizers"] = list(action.finalizers)
                if not action.finalizers and metadata.get("deletionTimestamp") is not None:
                    self._channels[index] = None
                    continue
            status = merge_patch(before.get("status") or {}, action.status)
            self._channels[index] = {**before, "metadata": metadata, "status": status}


def merge_patch(target: object, patch: object) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def _first_live(replicas: tuple[BrokerId, ...], live: set[BrokerId] | None) -> BrokerId:
    return next((b for b in replicas if live is None or b in live), NO_LEADER)


def _in_sync(replicas: tuple[BrokerId, ...], live: set[BrokerId] | None) -> tuple[BrokerId, ...]:
    return tuple(b for b in replicas if live is None or b in live)


def _key(document: JsonObject) -> ObjectKey:
    metadata = document.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        return ("default", "")
    return (str(metadata.get("namespace") or "default"), str(metadata.get("name")))


def _keyed(objects: tuple[JsonObject, ...] | None) -> dict[ObjectKey, JsonObject] | None:
    return None if objects is None else {_key(entry): entry for entry in objects}
