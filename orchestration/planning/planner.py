"""From one snapshot to one plan.

    canary topic ─┐
    orphans ──────┤
    channels ─────┼─▶ actions ─▶ predicted world ─▶ statuses ─▶ Plan
    deletions ────┘

Each rule adds its findings; nothing here decides anything but the order: the canary first, because it proves the
cluster that all the rest relies on; then what goes, so that its names and resources are free; then the channels by
name. What belongs to one object stays together, so that a failure stops that object alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from eventing.channels import API_VERSION, KIND, STATUS_ANNOTATION_TOPIC, KafkaChannel, parse_channel, resource_key
from eventing.errors import InvalidResource
from orchestration.planning.actions import (
    CANARY,
    Action,
    ApplyDeployment,
    InitializeOffsets,
    Plan,
    Remark,
    ScaleDeployment,
    UpdateStatus,
    summarize,
)
from orchestration.planning.canary_deployment import plan_canary_deployment
from orchestration.planning.canary_topic import members, plan_canary_topic
from orchestration.planning.channel_status import status_of_channel, status_of_refused
from orchestration.planning.channel_topics import Places, TopicOutcome, plan_offsets, plan_topics, plan_vanished_groups
from orchestration.planning.deletion import plan_deletion, plan_orphans
from orchestration.planning.dispatchers import Problem, plan_dispatcher, plan_service
from orchestration.planning.findings import Findings
from orchestration.planning.identities import Claims, Identity, identify
from orchestration.planning.names import ANNOTATION_INVALID_DOCUMENT, FINALIZER
from orchestration.planning.observed import Observed
from orchestration.planning.policy import Policy, is_topic_name
from orchestration.planning.replicas import total_lag
from orchestration.planning.snapshot import JsonObject, Snapshot
from orchestration.planning.world import apply_to


def plan(snapshot: Snapshot, policy: Policy, now: datetime) -> Plan:
    """Decide what is to be done in the world of `snapshot`.

    Args:
        snapshot: One observation. What is None in it could not be read, and causes nothing.
        policy: What is wanted besides the channels. A policy inside the snapshot goes over it.
        now: When the snapshot was taken; aware. The planner has no other clock.

    Returns:
        Actions in the order in which they must be applied. Applying them and planning again gives no actions, as long
        as nothing else moves. What cannot be done as declared is in `rejected`, what waits for something in `waiting`.

    Raises:
        Nothing for bad declarations: they are reported on their object and harm no other.
    """
    policy = policy.overridden_by(snapshot.policy)
    observed = Observed.of(snapshot)
    identities, repeated, nameless = _identities(snapshot, policy)
    claims = Claims.settle(identities.values(), policy)
    parts = [nameless, *_canary(observed, claims, policy, now)]
    channels: list[_Planned] = []
    if snapshot.channels is None:
        parts.append(Findings("channels"))
        parts[-1].wait("channels could not be read, so nothing of them is changed or deleted")
    else:
        parts += plan_orphans(observed, identities.values())
        places = None
        if snapshot.brokers is not None:
            places = Places.of(snapshot, len(members(snapshot, policy.canary, now)))
        inputs = _Inputs(observed, claims, places, policy, now)
        for key in sorted(identities, key=lambda k: (not identities[k].is_being_deleted, k)):
            identity = identities[key]
            if key in repeated:
                reason = f"it is declared {repeated[key]} times; nothing is changed until one is left"
                parts.append(_refused(identity, "DeclaredTwice", reason, stops=False, now=now))
            elif identity.is_being_deleted:
                parts.append(plan_deletion(identity, observed=observed, claims=claims))
            else:
                planned = _plan_channel(identity, inputs)
                parts.append(planned.findings)
                channels.append(planned)
        world = Observed.of(apply_to(snapshot, [action for part in parts for action in part.actions]))
        for planned in channels:
            _close(planned, world, policy, now)

    actions = tuple(action for part in parts for action in part.actions)
    rejected = tuple(sorted({remark for part in parts for remark in part.rejected}))
    waiting = tuple(sorted({remark for part in parts for remark in part.waiting}))
    return Plan(actions=actions, rejected=rejected, waiting=waiting, summary=summarize(actions, rejected, waiting))


def _identities(snapshot: Snapshot, policy: Policy) -> tuple[dict[str, Identity], dict[str, int], Findings]:
    """Channels by key, how often each key that is there more than once is, and what is said of those without."""
    nameless = Findings("channels")
    by_key: dict[str, list[Identity]] = {}
    for document in snapshot.channels or ():
        identity = identify(document, policy)
        if identity is None:
            nameless.rejected.append(Remark(object=resource_key(document), reason="a channel needs a metadata.name"))
        else:
            by_key.setdefault(identity.key, []).append(identity)
    repeated = {key: len(found) for key, found in by_key.items() if len(found) > 1}
    # Which of several stands for all must not depend on their order.
    chosen = {
        key: found[0] if len(found) == 1 else min(found, key=lambda i: json.dumps(i.document, sort_keys=True))
        for key, found in by_key.items()
    }
    return chosen, repeated, nameless


def _canary(observed: Observed, claims: Claims, policy: Policy, now: datetime) -> list[Findings]:
    if not policy.canary.enabled:
        return []
    owner = claims.owner_of_topic(policy.canary.topic)
    if owner != CANARY:
        refused = Findings(CANARY)
        refused.reject(f"topic {policy.canary.topic} belongs to {owner}; name another topic for the canary")
        return [refused]
    # A failure stops what follows of the same cause, and a canary that waits for its topic says so: it comes first.
    return [plan_canary_deployment(observed, policy), plan_canary_topic(observed.snapshot, policy.canary, now)]


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What is the same for all channels of one plan; `places` is None where the brokers could not be read."""

    observed: Observed
    claims: Claims
    places: Places | None
    policy: Policy
    now: datetime


@dataclass(slots=True, kw_only=True)
class _Planned:
    """What is planned for one channel, as far as its status needs to know."""

    findings: Findings
    channel: KafkaChannel | None = None
    topic: str = ""
    topics: TopicOutcome | None = None
    dispatcher: Problem | None = None
    service: Problem | None = None
    initialized: frozenset[str] = frozenset()
    """Subscriptions whose first offsets are written."""


def _plan_channel(identity: Identity, inputs: _Inputs) -> _Planned:
    observed, policy, now = inputs.observed, inputs.policy, inputs.now
    if (refusal := _refused_document(identity)) is not None:
        return _Planned(findings=_refused(identity, "InvalidDocument", refusal, stops=True, now=now))
    try:
        # An API server leaves both out of the items of a list.
        given = {"apiVersion": API_VERSION, "kind": KIND}
        document = {**given, **{k: v for k, v in identity.document.items() if v is not None or k not in given}}
        channel = parse_channel(document)
    except InvalidResource as exc:
        reason = "; ".join(str(problem) for problem in exc.problems)
        return _Planned(findings=_refused(identity, "InvalidChannel", reason, stops=True, now=now))
    topic = identity.topic
    conflict = inputs.claims.conflict(identity)
    if conflict is None and not is_topic_name(topic):
        conflict = f"{topic!r} is no name of a Kafka topic"
    if conflict is not None:
        return _Planned(findings=_refused(identity, "NameConflict", conflict, stops=True, now=now))

    findings = Findings(identity.key)
    topics = observed.snapshot.topics
    if topics is None:
        # Without knowing the partitions, neither the size nor the memory of a dispatcher can be told.
        findings.wait("topics could not be read, so all that belongs to it stays as it is")
        outcome = TopicOutcome(partitions=None, is_known=False)
    else:
        outcome = plan_topics(findings, channel, topic, topics, inputs.places)
        if outcome.problem is None or outcome.partitions is not None:
            findings.actions[:0] = _taken_up(identity)
    planned = _Planned(findings=findings, channel=channel, topic=topic, topics=outcome)
    if topics is None or outcome.partitions is None:
        return planned

    groups = None if observed.snapshot.lag is None else observed.groups.get(identity.pair, {})
    existing = topics.get(topic)
    predicted = plan_offsets(
        findings,
        channel,
        topic=topic,
        present=len(existing.partitions or ()) if existing is not None else 0,
        partitions=outcome.partitions,
        groups=groups,
    )
    planned.initialized = frozenset(
        action.group.rpartition(".")[2] for action in findings.actions if isinstance(action, InitializeOffsets)
    )
    planned.dispatcher = plan_dispatcher(
        findings,
        channel,
        topic=topic,
        partitions=outcome.partitions,
        lags={uid: total_lag(group, outcome.partitions) for uid, group in predicted.items()},
        observed=observed,
        policy=policy,
        now=now,
    )
    planned.service = plan_service(findings, channel, observed=observed, policy=policy)
    plan_vanished_groups(findings, channel, topic, groups)
    return planned


def _taken_up(identity: Identity) -> list[Action]:
    """Before anything is created: what makes sure that it can be found and taken away again."""
    is_held = FINALIZER in identity.finalizers
    is_named = identity.persisted_topic is not None
    if is_held and is_named:
        return []
    return [
        UpdateStatus(
            cause=identity.key,
            why="before anything is created for it, the name of its topic is kept and a finalizer holds the channel",
            namespace=identity.namespace,
            name=identity.name,
            status={} if is_named else {"annotations": {STATUS_ANNOTATION_TOPIC: identity.topic}},
            finalizers=None if is_held else (*identity.finalizers, FINALIZER),
        )
    ]


def _refused_document(identity: Identity) -> str | None:
    """Why the registry refuses what its author wrote last. An API server would not have taken it; a folder has to."""
    metadata = identity.document.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    refusal = annotations.get(ANNOTATION_INVALID_DOCUMENT) if isinstance(annotations, Mapping) else None
    return refusal if isinstance(refusal, str) and refusal else None


def _refused(identity: Identity, reason: str, message: str, *, stops: bool, now: datetime) -> Findings:
    """Nothing is planned for a channel but to say why, on the channel itself."""
    findings = Findings(identity.key)
    findings.reject(message)
    if identity.can_be_addressed:
        status = status_of_refused(
            identity.document.get("status"),
            generation=identity.generation,
            reason=reason,
            message=message,
            stops=stops,
            now=now,
        )
        _update_status(findings, identity.namespace, identity.name, status, f"it is not used as declared: {message}")
    return findings


def _close(planned: _Planned, world: Observed, policy: Policy, now: datetime) -> None:
    """Say on the channel how it stands once all its actions are applied."""
    channel, findings = planned.channel, planned.findings
    if channel is None or planned.topics is None:
        return
    dispatchers = world.dispatchers_of(channel.namespace, channel.name)
    acts = any(isinstance(action, ApplyDeployment | ScaleDeployment) for action in findings.actions)
    if not acts and dispatchers and all(d.replicas > 0 and d.ready == 0 for d in dispatchers):
        findings.wait("no replica of its dispatcher is ready yet")
    status = status_of_channel(
        channel,
        topic=planned.topic,
        topics=planned.topics,
        dispatcher=planned.dispatcher,
        service=planned.service,
        initialized=planned.initialized,
        world=world,
        policy=policy,
        now=now,
    )
    told = ", ".join(sorted(status))
    _update_status(
        findings, channel.namespace, channel.name, status, f"what the channel says of itself changes: {told}"
    )


def _update_status(findings: Findings, namespace: str, name: str, status: JsonObject, why: str) -> None:
    if status:
        findings.actions.append(
            UpdateStatus(cause=findings.object, why=why, namespace=namespace, name=name, status=status)
        )
