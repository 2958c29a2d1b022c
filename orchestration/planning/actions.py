"""What a plan asks for: one frozen value per kind of action, and the plan document (design §4.5).

An action says *what*, *for whom* (`cause`: `namespace/name` of a channel, or `canary`) and *why* in words. It carries
everything that is needed to apply it, so that applying needs no second look at the snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from orchestration.planning import documents
from orchestration.planning.documents import DocumentError
from orchestration.planning.snapshot import BrokerId, JsonObject, PartitionId

CANARY = "canary"
"""Cause of everything that is done for the canary, and its name in `rejected` and `waiting`."""

Offset = Literal["latest", "earliest"]
_OFFSETS: Mapping[str, Offset] = {"latest": "latest", "earliest": "earliest"}

Assignments = Mapping[PartitionId, tuple[BrokerId, ...]]
"""Replicas by partition, preferred leader first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Action:
    kind: ClassVar[str]
    cause: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic(_Action):
    kind = "CreateTopic"
    topic: str
    assignments: Assignments
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitions(_Action):
    kind = "CreatePartitions"
    topic: str
    partitions: int
    """The new total."""
    assignments: Assignments
    """Those of the new partitions only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignPartitions(_Action):
    kind = "ReassignPartitions"
    topic: str
    assignments: Assignments
    """Those that change only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTopicConfig(_Action):
    kind = "AlterTopicConfig"
    topic: str
    configs: Mapping[str, str]
    """Those that change only; all others are left as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders(_Action):
    kind = "ElectLeaders"
    topic: str
    partitions: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic(_Action):
    kind = "DeleteTopic"
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InitializeOffsets(_Action):
    kind = "InitializeOffsets"
    group: str
    topic: str
    partitions: tuple[PartitionId, ...]
    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup(_Action):
    kind = "DeleteGroup"
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyDeployment(_Action):
    kind = "ApplyDeployment"
    namespace: str
    name: str
    replicas: int
    manifest: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDeployment(_Action):
    kind = "ScaleDeployment"
    namespace: str
    name: str
    replicas: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    """To be merged into the Deployment's own (not the pods')."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteDeployment(_Action):
    kind = "DeleteDeployment"
    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyService(_Action):
    kind = "ApplyService"
    namespace: str
    name: str
    manifest: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteService(_Action):
    kind = "DeleteService"
    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStatus(_Action):
    kind = "UpdateStatus"
    namespace: str
    name: str
    status: JsonObject
    """A JSON merge patch (RFC 7386) of the object's status."""
    finalizers: tuple[str, ...] | None = None
    """The whole new list; None: unchanged."""


Action = (
    CreateTopic
    | CreatePartitions
    | ReassignPartitions
    | AlterTopicConfig
    | ElectLeaders
    | DeleteTopic
    | InitializeOffsets
    | DeleteGroup
    | ApplyDeployment
    | ScaleDeployment
    | DeleteDeployment
    | ApplyService
    | DeleteService
    | UpdateStatus
)


def action_document(action: Action) -> dict[str, Any]:
    """The JSON form of an action."""
    document: dict[str, Any] = {"kind": action.kind, "cause": action.cause, "why": action.why}
    match action:
        case CreateTopic():
            document |= {
                "topic": action.topic,
                "assignments": _assignments_document(action.assignments),
                "configs": dict(sorted(action.configs.items())),
            }
        case CreatePartitions():
            document |= {
                "topic": action.topic,
                "partitions": action.partitions,
                "assignments": _assignments_document(action.assignments),
            }
        case ReassignPartitions():
            document |= {"topic": action.topic, "assignments": _assignments_document(action.assignments)}
        case AlterTopicConfig():
            document |= {"topic": action.topic, "configs": dict(sorted(action.configs.items()))}
        case ElectLeaders():
            document |= {"topic": action.topic, "partitions": list(action.partitions)}
        case DeleteTopic():
            document |= {"topic": action.topic}
        case InitializeOffsets():
            document |= {
                "group": action.group,
                "topic": action.topic,
                "partitions": list(action.partitions),
                "offset": action.offset,
            }
        case DeleteGroup():
            document |= {"group": action.group}
        case ApplyDeployment():
            document |= {
                "namespace": action.namespace,
                "name": action.name,
                "replicas": action.replicas,
                "manifest": dict(action.manifest),
            }
        case ScaleDeployment():
            document |= {
                "namespace": action.namespace,
                "name": action.name,
                "replicas": action.replicas,
                "annotations": dict(sorted(action.annotations.items())),
            }
        case ApplyService():
            document |= {"namespace": action.namespace, "name": action.name, "manifest": dict(action.manifest)}
        case DeleteDeployment() | DeleteService():
            document |= {"namespace": action.namespace, "name": action.name}
        case UpdateStatus():
            document |= {"namespace": action.namespace, "name": action.name, "status": dict(action.status)}
            if action.finalizers is not None:
                document["finalizers"] = list(action.finalizers)
    return document


def action_from_document(document: object, path: str = "action") -> Action:
    """Read back what `action_document` wrote; a run gets its plan this way. Raises `DocumentError`."""
    entry = documents.mapping(document, path)

    def text(key: str) -> str:
        return documents.text(entry.get(key), f"{path}.{key}")

    def strings(key: str) -> dict[str, str]:
        found = documents.mapping(entry.get(key, {}), f"{path}.{key}")
        return {k: documents.text(v, f"{path}.{key}[{k!r}]") for k, v in found.items()}

    def numbers(key: str) -> tuple[PartitionId, ...]:
        found = documents.items(entry.get(key), f"{path}.{key}")
        return tuple(PartitionId(documents.integer(n, f"{path}.{key}[{i}]", low=0)) for i, n in enumerate(found))

    def count(key: str) -> int:
        return documents.integer(entry.get(key), f"{path}.{key}", low=0)

    kind, cause, why = text("kind"), text("cause"), text("why")
    match kind:
        case "CreateTopic":
            return CreateTopic(
                cause=cause,
                why=why,
                topic=text("topic"),
                assignments=_assignments(entry.get("assignments"), f"{path}.assignments"),
                configs=strings("configs"),
            )
        case "CreatePartitions":
            return CreatePartitions(
                cause=cause,
                why=why,
                topic=text("topic"),
                partitions=count("partitions"),
                assignments=_assignments(entry.get("assignments"), f"{path}.assignments"),
            )
        case "ReassignPartitions":
            return ReassignPartitions(
                cause=cause,
                why=why,
                topic=text("topic"),
                assignments=_assignments(entry.get("assignments"), f"{path}.assignments"),
            )
        case "AlterTopicConfig":
            return AlterTopicConfig(cause=cause, why=why, topic=text("topic"), configs=strings("configs"))
        case "ElectLeaders":
            return ElectLeaders(cause=cause, why=why, topic=text("topic"), partitions=numbers("partitions"))
        case "DeleteTopic":
            return DeleteTopic(cause=cause, why=why, topic=text("topic"))
        case "InitializeOffsets":
            offset = text("offset")
            if offset not in _OFFSETS:
                raise DocumentError(f"{path}.offset", f"must be latest or earliest, not {offset!r}")
            return InitializeOffsets(
                cause=cause,
                why=why,
                group=text("group"),
                topic=text("topic"),
                partitions=numbers("partitions"),
                offset=_OFFSETS[offset],
            )
        case "DeleteGroup":
            return DeleteGroup(cause=cause, why=why, group=text("group"))
        case "ApplyDeployment":
            return ApplyDeployment(
                cause=cause,
                why=why,
                namespace=text("namespace"),
                name=text("name"),
                replicas=count("replicas"),
                manifest=documents.mapping(entry.get("manifest"), f"{path}.manifest"),
            )
        case "ScaleDeployment":
            return ScaleDeployment(
                cause=cause,
                why=why,
                namespace=text("namespace"),
                name=text("name"),
                replicas=count("replicas"),
                annotations=strings("annotations"),
            )
        case "DeleteDeployment":
            return DeleteDeployment(cause=cause, why=why, namespace=text("namespace"), name=text("name"))
        case "ApplyService":
            return ApplyService(
                cause=cause,
                why=why,
                namespace=text("namespace"),
                name=text("name"),
                manifest=documents.mapping(entry.get("manifest"), f"{path}.manifest"),
            )
        case "DeleteService":
            return DeleteService(cause=cause, why=why, namespace=text("namespace"), name=text("name"))
        case "UpdateStatus":
            finalizers = documents.optional_items(entry.get("finalizers"), f"{path}.finalizers")
            return UpdateStatus(
                cause=cause,
                why=why,
                namespace=text("namespace"),
                name=text("name"),
                status=documents.mapping(entry.get("status"), f"{path}.status"),
                finalizers=None
                if finalizers is None
                else tuple(documents.text(f, f"{path}.finalizers[{i}]") for i, f in enumerate(finalizers)),
            )
        case _:
            raise DocumentError(f"{path}.kind", f"is no kind of action: {kind!r}")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Remark:
    """Something about one object that is not done, and why: an entry of `rejected` or `waiting`."""

    object: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be done, in the order in which it must be applied, and what is not done and why."""

    actions: tuple[Action, ...] = ()
    rejected: tuple[Remark, ...] = ()
    """What cannot be done as declared."""
    waiting: tuple[Remark, ...] = ()
    """What is not yet as wanted, and why nothing is done about it now."""
    summary: str = ""

    @property
    def is_empty(self) -> bool:
        """Nothing is to be done; something may still be waiting or rejected."""
        return not self.actions

    def to_document(self) -> dict[str, Any]:
        """The plan document."""
        return {
            "actions": [action_document(action) for action in self.actions],
            "rejected": [{"object": r.object, "reason": r.reason} for r in self.rejected],
            "waiting": [{"object": r.object, "reason": r.reason} for r in self.waiting],
            "summary": self.summary,
        }

    @classmethod
    def from_document(cls, document: object) -> Plan:
        """Read back a plan document. Raises `DocumentError`."""
        top = documents.mapping(document, "plan")
        return cls(
            actions=tuple(
                action_from_document(entry, f"actions[{i}]")
                for i, entry in enumerate(documents.items(top.get("actions", []), "actions"))
            ),
            rejected=_remarks(top.get("rejected", []), "rejected"),
            waiting=_remarks(top.get("waiting", []), "waiting"),
            summary=documents.text(top.get("summary", ""), "summary"),
        )


def summarize(actions: tuple[Action, ...], rejected: tuple[Remark, ...], waiting: tuple[Remark, ...]) -> str:
    """The plan in one sentence, for a line in a user interface."""
    parts = []
    if actions:
        kinds = Counter(action.kind for action in actions)
        causes = len({action.cause for action in actions})
        what = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        parts.append(f"{_counted(len(actions), 'action')} for {_counted(causes, 'object')} ({what})")
    else:
        parts.append("nothing to do")
    if rejected:
        parts.append(f"{len(rejected)} rejected ({_first(rejected)})")
    if waiting:
        parts.append(f"{len(waiting)} waiting ({_first(waiting)})")
    sentence = "; ".join(parts)
    return sentence[0].upper() + sentence[1:] + "."


def _first(remarks: tuple[Remark, ...]) -> str:
    more = f", and {len(remarks) - 1} more" if len(remarks) > 1 else ""
    return f"{remarks[0].object}: {remarks[0].reason}{more}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _assignments_document(assignments: Assignments) -> dict[str, list[int]]:
    return {str(partition): list(replicas) for partition, replicas in sorted(assignments.items())}


def _assignments(value: object, path: str) -> dict[PartitionId, tuple[BrokerId, ...]]:
    return {
        PartitionId(documents.numeric_key(key, path)): tuple(
            BrokerId(documents.integer(b, f"{path}[{key!r}][{i}]", low=0))
            for i, b in enumerate(documents.items(replicas, f"{path}[{key!r}]"))
        )
        for key, replicas in documents.mapping(value, path).items()
    }


def _remarks(value: object, path: str) -> tuple[Remark, ...]:
    remarks = []
    for index, item in enumerate(documents.items(value, path)):
        entry = documents.mapping(item, f"{path}[{index}]")
        remarks.append(
            Remark(
                object=documents.text(entry.get("object"), f"{path}[{index}].object"),
                reason=documents.text(entry.get("reason"), f"{path}[{index}].reason"),
            )
        )
    return tuple(remarks)
