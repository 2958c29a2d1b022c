"""Which brokers there were, remembered across observations. Pure.

A cluster lists who is registered and cannot say since when somebody is away, or that somebody was unregistered. That
memory is an annotation on the canary's Deployment, the object that it concerns: observed with everything else, shared
by all who plan, and written only when the membership changes. Without a canary Deployment there is no memory, and a
broker that is away is then never known to be gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from eventing.channels import LABEL_COMPONENT
from orchestration.ports import JsonObject

ANNOTATION_BROKERS = "sluice.dev/brokers"
"""JSON: `{"<id>": {"rack": …, "away_since": null or RFC 3339}}` of every broker that was seen."""

FORGET_AFTER = timedelta(days=1)
"""A broker that is unregistered and away for so long is dropped from the memory; every grace time has passed then."""


@dataclass(frozen=True, slots=True)
class KnownBroker:
    """What is remembered of one broker."""

    rack: str | None
    away_since: datetime | None
    """None: it was up when it was last looked at."""


Memory = Mapping[int, KnownBroker]


def canary_deployment(deployments: Iterable[JsonObject]) -> JsonObject | None:
    """The Deployment that carries the memory: the canary's, the first by name where there are several."""
    canaries = [d for d in deployments if (d["metadata"].get("labels") or {}).get(LABEL_COMPONENT) == "canary"]
    return min(canaries, key=lambda d: (d["metadata"].get("namespace", ""), d["metadata"]["name"]), default=None)


def remembered(deployments: Iterable[JsonObject] | None) -> Memory:
    """The memory as observed; what cannot be read counts as nothing remembered."""
    canary = canary_deployment(deployments or ())
    text = ((canary or {}).get("metadata", {}).get("annotations") or {}).get(ANNOTATION_BROKERS)
    if not isinstance(text, str):
        return {}
    try:
        return {int(id_): _known(entry) for id_, entry in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError):
        return {}


def with_memory(brokers: Sequence[JsonObject], memory: Memory) -> list[JsonObject]:
    """Brokers as listed, with `last_seen` of those that are away, and those that are no longer listed at all."""
    merged = []
    for broker in brokers:
        known = memory.get(broker["id"])
        away = broker.get("last_seen") is None and known is not None and known.away_since is not None
        merged.append({**broker, "last_seen": _rfc3339(known.away_since)} if away and known is not None else broker)
    listed = {broker["id"] for broker in brokers}
    merged += [
        {
            "id": id_,
            "rack": known.rack,
            "fenced": True,
            "last_seen": None if known.away_since is None else _rfc3339(known.away_since),
        }
        for id_, known in memory.items()
        if id_ not in listed
    ]
    return sorted(merged, key=lambda broker: int(broker["id"]))


def updated(brokers: Sequence[JsonObject], memory: Memory, now: datetime) -> Memory:
    """The memory after looking at `brokers`, as the cluster listed them, at `now`."""
    fresh: dict[int, KnownBroker] = {}
    for broker in brokers:
        known = memory.get(broker["id"])
        away_since = (known.away_since if known is not None else None) or now
        fresh[broker["id"]] = KnownBroker(broker.get("rack"), away_since if broker.get("fenced") else None)
    for id_, known in memory.items():
        if id_ not in fresh:
            away_since = known.away_since or now
            if now - away_since < FORGET_AFTER:
                fresh[id_] = KnownBroker(known.rack, away_since)
    return fresh


def to_annotation(memory: Memory) -> str:
    """The annotation's value; equal memories give equal text."""
    document = {
        str(id_): {"rack": known.rack, "away_since": None if known.away_since is None else _rfc3339(known.away_since)}
        for id_, known in sorted(memory.items())
    }
    return json.dumps(document, separators=(",", ":"))


def _known(entry: Any) -> KnownBroker:
    since = entry.get("away_since")
    rack = entry.get("rack")
    moment = None if since is None else datetime.fromisoformat(since)
    if moment is not None and moment.tzinfo is None:
        raise ValueError("a time needs a zone")
    return KnownBroker(rack if isinstance(rack, str) else None, moment)


def _rfc3339(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
