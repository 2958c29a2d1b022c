"""What a KafkaChannel's status says: conditions, address, subscribers (Knative's channel contract).

The status is computed from the world as it will be once the plan's other actions are applied, and written last. So a
plan that was applied leaves nothing to write, and a status never claims what is not so yet: were an action to fail,
the status that counts on it would not be written.

Only what differs is written. A time in a condition changes when that condition's status does. What could not be read
this time stays as it was said before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from eventing.channels import KafkaChannel, channel_url, service_name
from orchestration.planning.channel_topics import TopicOutcome, was_ready
from orchestration.planning.dispatchers import Problem
from orchestration.planning.documents import format_time
from orchestration.planning.names import CONDITION_PODS_FAILING
from orchestration.planning.observed import Observed, ObservedDeployment
from orchestration.planning.policy import Policy
from orchestration.planning.snapshot import GroupLag, PartitionId

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
READY = "Ready"
WAKE_TIME = timedelta(seconds=60)
"""A dispatcher that wakes from zero replicas has so long to start before its channel counts as not ready."""
OURS = frozenset({READY, "Addressable", "ConfigurationReady", "TopicReady", "ChannelServiceReady", "DispatcherReady"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition, without its time. A `False` one always has a reason."""

    type: str
    status: str | None
    """None: not known this time, so that it stays as it was."""
    reason: str = ""
    message: str = ""
    severity: str = ""
    """`Warning`: worth knowing, and no reason to count the channel as not ready (Knative's convention)."""


def status_of_refused(
    previous: object, *, generation: int | None, reason: str, message: str, stops: bool, now: datetime
) -> dict[str, Any]:
    """The merge patch for a channel that is not planned for as it is declared.

    `stops`: it is not ready because of that. Otherwise what runs goes on as it was, and only a warning is added.
    """
    before = previous if isinstance(previous, Mapping) else {}
    severity = "" if stops or _by_type(before).get(READY, {}).get("status") != TRUE else "Warning"
    conditions = [
        Condition(type="ConfigurationReady", status=FALSE, reason=reason, message=message, severity=severity),
        Condition(type=READY, status=TRUE if severity else FALSE, reason=reason, message=message),
    ]
    untouched = [Condition(type=kind, status=None) for kind in _by_type(before) if kind in OURS]
    named = {condition.type: condition for condition in [*untouched, *conditions]}
    desired: dict[str, Any] = {"conditions": _merged(before, list(named.values()), now)}
    if generation is not None:
        desired["observedGeneration"] = generation
    return _difference(before, desired)


def status_of_channel(
    channel: KafkaChannel,
    *,
    topic: str,
    topics: TopicOutcome,
    dispatcher: Problem | None,
    service: Problem | None,
    initialized: frozenset[str],
    world: Observed,
    policy: Policy,
    now: datetime,
) -> dict[str, Any]:
    """The merge patch that brings the status of a channel up to date; empty when nothing differs.

    `world` is the predicted one; `initialized` are the subscriptions whose first offsets this plan writes.
    """
    conditions = [
        _configuration(topics),
        _topic(topics, topic),
        _service(channel, service, world),
        _dispatcher(channel, dispatcher, world, now),
        Condition(type="Addressable", status=TRUE),
    ]
    conditions.append(_ready(channel.status, conditions))
    desired: dict[str, Any] = {
        "observedGeneration": channel.generation,
        "address": {"url": _address(channel, policy)},
        "conditions": _merged(channel.status, conditions, now),
        "subscribers": _subscribers(channel, topic, topics.partitions, initialized, world),
    }
    sink = channel.delivery.dead_letter_sink if channel.delivery else None
    if sink is not None or "deadLetterSinkUri" in channel.status:
        desired["deadLetterSinkUri"] = sink
    return _difference(channel.status, desired)


def _configuration(topics: TopicOutcome) -> Condition:
    if topics.warning is None:
        return Condition(type="ConfigurationReady", status=TRUE)
    reason, message = topics.warning
    return Condition(type="ConfigurationReady", status=FALSE, reason=reason, message=message, severity="Warning")


def _topic(topics: TopicOutcome, topic: str) -> Condition:
    if topics.problem is not None:
        reason, message = topics.problem
        return Condition(type="TopicReady", status=FALSE, reason=reason, message=message)
    if not topics.is_known:
        return Condition(type="TopicReady", status=None)
    assert topics.partitions is not None, f"{topic}: no problem, and no partitions either"
    return Condition(type="TopicReady", status=TRUE)


def _service(channel: KafkaChannel, problem: Problem | None, world: Observed) -> Condition:
    if problem is not None:
        return Condition(type="ChannelServiceReady", status=FALSE, reason=problem[0], message=problem[1])
    if world.snapshot.services is None:
        return Condition(type="ChannelServiceReady", status=None)
    if (channel.namespace, service_name(channel.name)) in world.services:
        return Condition(type="ChannelServiceReady", status=TRUE)
    return Condition(
        type="ChannelServiceReady",
        status=FALSE,
        reason="ServiceMissing",
        message="the channel's Service does not exist",
    )


def _dispatcher(channel: KafkaChannel, problem: Problem | None, world: Observed, now: datetime) -> Condition:
    if problem is not None:
        return Condition(type="DispatcherReady", status=FALSE, reason=problem[0], message=problem[1])
    if world.snapshot.deployments is None:
        return Condition(type="DispatcherReady", status=None)
    found = world.dispatchers_of(channel.namespace, channel.name)
    if not found:
        message = "the channel has no dispatcher yet"
        return Condition(type="DispatcherReady", status=FALSE, reason="DispatcherMissing", message=message)
    # One that delivers is enough: the others only share its load.
    if any(d.ready > 0 or d.replicas == 0 for d in found):
        return Condition(type="DispatcherReady", status=TRUE)
    for failing in (_pods_failing(d) for d in found):
        if failing is not None:
            return Condition(type="DispatcherReady", status=FALSE, reason=failing[0], message=failing[1])
    if any(d.resized is not None and timedelta(0) <= now - d.resized < WAKE_TIME for d in found):
        return Condition(type="DispatcherReady", status=None)
    message = "no replica of the dispatcher is ready"
    return Condition(type="DispatcherReady", status=FALSE, reason="DispatcherNotReady", message=message)


def _pods_failing(deployment: ObservedDeployment) -> Problem | None:
    """Why its pods do not come up, as far as somebody knows it."""
    status = deployment.document.get("status")
    for entry in (status.get("conditions") if isinstance(status, Mapping) else None) or ():
        if isinstance(entry, Mapping) and entry.get("type") == CONDITION_PODS_FAILING and entry.get("status") == TRUE:
            return str(entry.get("reason") or CONDITION_PODS_FAILING), str(entry.get("message") or "its pods fail")
    return None


def _ready(previous: Mapping[str, Any], conditions: list[Condition]) -> Condition:
    """The summary: False before Unknown before True; warnings are told, and do not count."""
    before = _by_type(previous)
    worst: tuple[str, str, str] | None = None
    for condition in conditions:
        if condition.severity:
            continue
        status, reason, message = condition.status, condition.reason, condition.message
        if status is None:
            kept = before.get(condition.type, {})
            status = str(kept.get("status", UNKNOWN))
            reason, message = str(kept.get("reason", "")), str(kept.get("message", ""))
        if status == FALSE:
            return Condition(type=READY, status=FALSE, reason=reason or condition.type, message=message)
        if status != TRUE and worst is None:
            worst = (UNKNOWN, reason or "NotObserved", message)
    if worst is not None:
        return Condition(type=READY, status=worst[0], reason=worst[1], message=worst[2])
    warning = next((c for c in conditions if c.severity), None)
    if warning is not None:
        return Condition(type=READY, status=TRUE, reason=warning.reason, message=warning.message)
    return Condition(type=READY, status=TRUE)


def _address(channel: KafkaChannel, policy: Policy) -> str:
    if policy.receiver_url is None:
        return channel_url(channel.namespace, channel.name)
    return f"{policy.receiver_url.rstrip('/')}/{channel.key}"


def _subscribers(
    channel: KafkaChannel, topic: str, partitions: int | None, initialized: frozenset[str], world: Observed
) -> list[dict[str, Any]]:
    groups = None if world.snapshot.lag is None else world.groups.get((channel.namespace, channel.name), {})
    result: list[dict[str, Any]] = []
    for subscriber in sorted(channel.subscribers, key=lambda s: s.uid):
        entry: dict[str, Any] = {"uid": subscriber.uid, "observedGeneration": subscriber.generation}
        offsets = _has_offsets(groups, subscriber.uid, topic, partitions, initialized)
        if offsets is None:  # not known this time
            offsets = was_ready(channel.status, subscriber.uid)
        entry["ready"] = TRUE if offsets else FALSE
        if not offsets:
            entry["message"] = "its first offsets are not written yet"
        result.append(entry)
    return result


def _has_offsets(
    groups: Mapping[str, GroupLag] | None,
    uid: str,
    topic: str,
    partitions: int | None,
    initialized: frozenset[str],
) -> bool | None:
    """Whether a subscription has an offset for every partition, so that nothing sent from now on is missed."""
    if partitions is None or groups is None:
        return None
    group = groups.get(uid)
    if group is None or group.topic not in {topic, None}:
        return False
    if not all(PartitionId(p) in group.partitions for p in range(partitions)):
        return False
    # An offset that could not be read may be there or not, unless this very plan writes it.
    return True if uid in initialized or None not in group.partitions.values() else None


def _merged(previous: Mapping[str, Any], conditions: list[Condition], now: datetime) -> list[dict[str, Any]]:
    """The new list of conditions, sorted by type as Knative does; those of others are kept."""
    before = _by_type(previous)
    merged: dict[str, dict[str, Any]] = {kind: dict(entry) for kind, entry in before.items() if kind not in OURS}
    for condition in conditions:
        kept = before.get(condition.type)
        if condition.status is None:
            if kept is not None:
                merged[condition.type] = dict(kept)
                continue
            condition = Condition(type=condition.type, status=UNKNOWN, reason="NotObserved")  # noqa: PLW2901
        entry = {"type": condition.type, "status": condition.status}
        for key in ("severity", "reason", "message"):
            if getattr(condition, key):
                entry[key] = getattr(condition, key)
        since = kept.get("lastTransitionTime") if kept is not None and kept.get("status") == condition.status else None
        entry["lastTransitionTime"] = since if isinstance(since, str) else format_time(now)
        merged[condition.type] = entry
    return [merged[kind] for kind in sorted(merged)]


def _by_type(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    listed = status.get("conditions")
    entries = listed if isinstance(listed, list | tuple) else ()
    return {e["type"]: e for e in entries if isinstance(e, Mapping) and isinstance(e.get("type"), str)}


def _difference(previous: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch from one to the other, for the keys of `desired`."""
    patch: dict[str, Any] = {}
    for key, value in desired.items():
        before = previous.get(key)
        if key == "conditions":
            # The order of a list of conditions means nothing, so it is no reason to write.
            if _by_type({key: before}) != _by_type({key: value}):
                patch[key] = value
        elif isinstance(value, Mapping):
            inner = _difference(before if isinstance(before, Mapping) else {}, value)
            if inner:
                patch[key] = inner
        elif key == "subscribers":
            if value != (before if before is not None else []):
                patch[key] = value
        elif before != value:
            patch[key] = value
    return patch
