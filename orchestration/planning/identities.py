"""Which channel owns which name: decided once for all channels, before anything is planned for one of them.

Two channels can come to want the same topic (`orders` and its dead-letter topic meet a channel that is called
`orders.dead-letter`), Service or Deployment (names are cut at 63 characters). The one whose topic name is already kept
in its status has it; the other one is told, and nothing is done for it. The same name declared twice stops both,
because nobody can know which one is meant; what runs goes on running.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eventing.channels import (
    ANNOTATION_DEAD_LETTER_TOPIC,
    ANNOTATION_DELETION_POLICY,
    STATUS_ANNOTATION_TOPIC,
    dead_letter_topic,
    service_name,
)
from orchestration.planning.actions import CANARY
from orchestration.planning.names import FINALIZER, deployment_name
from orchestration.planning.policy import Policy
from orchestration.planning.snapshot import JsonObject

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What can be read of a channel even when the rest of it is wrong."""

    namespace: str
    name: str
    persisted_topic: str | None
    topic: str
    """The persisted name, else the template filled in."""
    wants_dead_letters: bool
    deletion_policy: object
    """As declared, right or wrong; `delete` where nothing is declared."""
    is_being_deleted: bool
    generation: int | None
    finalizers: tuple[str, ...]
    document: JsonObject

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def can_be_addressed(self) -> bool:
        """Its name is one that a registry can have: an answer can be written to it."""
        return bool(_NAME.fullmatch(self.namespace) and _NAME.fullmatch(self.name))

    @property
    def pair(self) -> tuple[str, str]:
        return (self.namespace, self.name)


def identify(document: JsonObject, policy: Policy) -> Identity | None:
    """Read the identity of a channel object; None where it has no usable name."""
    metadata = _mapping(document.get("metadata"))
    namespace, name = metadata.get("namespace") or "default", metadata.get("name")
    if not isinstance(namespace, str) or not isinstance(name, str) or not name:
        return None
    kept = _mapping(_mapping(document.get("status")).get("annotations")).get(STATUS_ANNOTATION_TOPIC)
    persisted = kept if isinstance(kept, str) and kept else None
    finalizers, generation = metadata.get("finalizers"), metadata.get("generation")
    annotations = _mapping(metadata.get("annotations"))
    return Identity(
        namespace=namespace,
        name=name,
        persisted_topic=persisted,
        topic=persisted or policy.topic_template.format(namespace=namespace, name=name),
        wants_dead_letters=annotations.get(ANNOTATION_DEAD_LETTER_TOPIC) != "disabled",
        deletion_policy=annotations.get(ANNOTATION_DELETION_POLICY, "delete"),
        # Only a time is a wish to delete; anything else is an error, and errors delete nothing.
        is_being_deleted=isinstance(metadata.get("deletionTimestamp"), str) and bool(metadata["deletionTimestamp"]),
        generation=generation if isinstance(generation, int) and not isinstance(generation, bool) else None,
        finalizers=tuple(f for f in finalizers if isinstance(f, str)) if isinstance(finalizers, list | tuple) else (),
        document=document,
    )


@dataclass(frozen=True, slots=True)
class Claims:
    """Names, and the key of the channel (or `canary`) that has each of them."""

    owners: Mapping[str, str]
    """By `topic <name>`, `Service <namespace>/<name>` and `Deployment <name>`."""

    @classmethod
    def settle(cls, identities: Iterable[Identity], policy: Policy) -> Claims:
        """Give every name to one owner: who has it already, else the canary, else the first by key."""
        owners: dict[str, str] = {}
        ordered = sorted(identities, key=lambda i: (i.persisted_topic is None, FINALIZER not in i.finalizers, i.key))
        for identity in ordered:
            if identity.persisted_topic is None and policy.canary.enabled:
                owners.setdefault(f"topic {policy.canary.topic}", CANARY)
            wanted = _names(identity)
            # One that cannot have all its names gets none: half a channel would only be in the way of others.
            if all(owners.get(name, identity.key) == identity.key for name in wanted):
                owners.update(dict.fromkeys(wanted, identity.key))
        if policy.canary.enabled:
            owners.setdefault(f"topic {policy.canary.topic}", CANARY)
        return cls(owners)

    def owner_of_topic(self, topic: str) -> str | None:
        """Who has this topic; None when nobody has claimed it."""
        return self.owners.get(f"topic {topic}")

    def conflict(self, identity: Identity) -> str | None:
        """Why this channel cannot have the names it needs; None when it has them."""
        for name in _names(identity):
            owner = self.owners.get(name, identity.key)
            if owner != identity.key:
                return f"its {name} belongs to {owner}; rename one of the two"
        return None


def _names(identity: Identity) -> list[str]:
    names = [f"topic {identity.topic}"]
    if identity.wants_dead_letters:
        names.append(f"topic {dead_letter_topic(identity.topic)}")
    names.append(f"Service {identity.namespace}/{service_name(identity.name)}")
    names.append(f"Deployment {deployment_name(identity.namespace, identity.name)}")
    return names


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
