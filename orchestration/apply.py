"""The thin shell that does what a plan says, and the one round of observe → plan → apply.

Actions are applied in the plan's order. One that fails stops the later ones of the same cause, which rely on it, and
nothing else; the failure is said on the channel that it concerns (condition Ready False, with the reason and what to
do) and in the outcome. Applying is idempotent: whatever was interrupted is planned again from a fresh observation.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, assert_never

from eventing.errors import Conflict, Forbidden, NotFound, SluiceError, Unavailable
from orchestration import membership
from orchestration.observe import Observation, observe
from orchestration.planning import Action, Plan, Policy, actions
from orchestration.planning.documents import format_time
from orchestration.planning.planner import plan
from orchestration.ports import JsonObject, Ports

Result = Literal["done", "failed", "skipped"]

GIVE_UP_AFTER = 3
"""Failures in a row for lack of an answer from one system; its later actions are skipped. Each costs a timeout, and a
plan may have thousands."""

REASON_FAILED = "ApplyFailed"
MAX_MESSAGE = 1000
"""Characters of a condition's message: some answers of Kafka list every partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one action."""

    action: Action
    result: Result
    error: str | None = None
    """Why it failed or was skipped."""
    advice: str | None = None
    """What to do about it."""
    duration_s: float = 0.0

    @property
    def target(self) -> str:
        """The object that the action changes."""
        return target(self.action)

    def to_document(self) -> JsonObject:
        return {
            "kind": self.action.kind,
            "cause": self.action.cause,
            "target": self.target,
            "why": self.action.why,
            "result": self.result,
            "error": self.error,
            "advice": self.advice,
            "seconds": round(self.duration_s, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The outcome of a plan."""

    outcomes: tuple[Outcome, ...] = ()
    unreported: tuple[str, ...] = ()
    """Failures that could not be said on their channel, and why."""

    @property
    def failed(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.result == "failed")

    @property
    def summary(self) -> str:
        """One sentence."""
        if not self.outcomes:
            return "Nothing was to be done."
        counts = Counter(outcome.result for outcome in self.outcomes)
        said = ", ".join(f"{counts[result]} {result}" for result in ("done", "failed", "skipped") if counts[result])
        first = f": {self.failed[0].error}" if self.failed else ""
        return f"{len(self.outcomes)} action{'s' if len(self.outcomes) > 1 else ''}: {said}{first}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """One round: what was seen, what was decided, what became of it."""

    observation: Observation
    plan: Plan
    applied: Applied

    @property
    def succeeded(self) -> bool:
        """Everything that was decided was done. Parts of the world may still have been unreadable."""
        return not self.applied.failed

    def to_document(self) -> JsonObject:
        decided = self.plan.to_document()
        return {
            "summary": self.applied.summary if self.plan.actions else self.plan.summary,
            "actions": [outcome.to_document() for outcome in self.applied.outcomes],
            "rejected": decided["rejected"],
            "waiting": decided["waiting"],
            "unreadable": list(self.observation.unreadable),
            "unreported": list(self.applied.unreported),
        }


def reconcile_once(
    ports: Ports, policy: Policy, now: datetime, *, expected_brokers: int | None = None
) -> Reconciliation:
    """Observe, plan, apply, once. Never raises for what one object or one system does wrong."""
    observation = observe(ports, now=now, expected_brokers=expected_brokers)
    decided = plan(observation.snapshot, policy, now)
    applied = apply(decided, ports, now=now, observed=observation.document["channels"])
    return Reconciliation(
        observation=observation,
        plan=decided,
        applied=Applied(
            outcomes=applied.outcomes, unreported=(*applied.unreported, *remember_brokers(observation, ports, now))
        ),
    )


def apply(
    decided: Plan,
    ports: Ports,
    *,
    now: datetime,
    observed: list[JsonObject] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Applied:
    """Apply every action of a plan.

    Args:
        decided: The plan.
        ports: Where to.
        now: When the plan's snapshot was taken; the time of conditions that failures change.
        observed: The channels that the plan was made from; without them failures are in the outcome only.
        monotonic: For measuring.
    """
    outcomes: list[Outcome] = []
    failed: dict[str, Outcome] = {}
    silent: Counter[str] = Counter()
    for action in decided.actions:
        cause, system = action.cause, _system(action)
        if cause in failed:
            first = failed[cause]
            error = f"not tried, because {first.action.kind} {first.target} before it failed"
            outcomes.append(Outcome(action=action, result="skipped", error=error, advice=first.advice))
            continue
        if silent[system] >= GIVE_UP_AFTER:
            error = f"not tried, because {system} did not answer {GIVE_UP_AFTER} times in a row"
            advice = _advice(Unavailable(system, ""))
            outcome = Outcome(action=action, result="skipped", error=error, advice=advice)
        else:
            outcome, unavailable = _apply_one(action, ports, monotonic)
            silent[system] = silent[system] + 1 if unavailable else 0
        outcomes.append(outcome)
        if outcome.result != "done":
            failed[cause] = outcome
    return Applied(outcomes=tuple(outcomes), unreported=tuple(_report(failed, ports, observed or [], now)))


def _apply_one(action: Action, ports: Ports, monotonic: Callable[[], float]) -> tuple[Outcome, bool]:
    """The outcome, and whether the system gave no answer."""
    started = monotonic()
    try:
        perform(action, ports)
    except SluiceError as exc:
        elapsed = monotonic() - started
        outcome = Outcome(action=action, result="failed", error=str(exc), advice=_advice(exc), duration_s=elapsed)
        return outcome, isinstance(exc, Unavailable)
    return Outcome(action=action, result="done", duration_s=monotonic() - started), False


def perform(action: Action, ports: Ports) -> None:
    """One action → one port call. Raises the port's errors."""
    kafka, workloads = ports.kafka, ports.workloads
    match action:
        case actions.CreateTopic():
            kafka.create_topic(action.topic, _plain(action.assignments), action.configs)
        case actions.CreatePartitions():
            kafka.create_partitions(action.topic, action.partitions, _plain(action.assignments))
        case actions.ReassignPartitions():
            kafka.reassign_partitions(action.topic, _plain(action.assignments))
        case actions.AlterTopicConfig():
            kafka.alter_topic_config(action.topic, action.configs)
        case actions.ElectLeaders():
            kafka.elect_leaders(action.topic, action.partitions)
        case actions.DeleteTopic():
            kafka.delete_topic(action.topic)
        case actions.InitializeOffsets():
            kafka.initialize_offsets(action.group, action.topic, action.partitions, action.offset)
        case actions.DeleteGroup():
            kafka.delete_group(action.group)
        case actions.ApplyDeployment():
            workloads.apply_deployment(dict(action.manifest))
        case actions.ScaleDeployment():
            workloads.scale_deployment(action.namespace, action.name, action.replicas, dict(action.annotations))
        case actions.DeleteDeployment():
            workloads.delete_deployment(action.namespace, action.name)
        case actions.ApplyService():
            workloads.apply_service(dict(action.manifest))
        case actions.DeleteService():
            workloads.delete_service(action.namespace, action.name)
        case actions.UpdateStatus():
            finalizers = None if action.finalizers is None else list(action.finalizers)
            ports.registry.update_status(action.namespace, action.name, dict(action.status), finalizers)
        case _:
            assert_never(action)


def _plain(assignments: actions.Assignments) -> dict[int, list[int]]:
    return {int(partition): [int(broker) for broker in replicas] for partition, replicas in assignments.items()}


def target(action: Action) -> str:
    """The object that an action changes, in a word or two."""
    match action:
        case actions.InitializeOffsets() | actions.DeleteGroup():
            return action.group
        case (
            actions.CreateTopic()
            | actions.CreatePartitions()
            | actions.ReassignPartitions()
            | actions.AlterTopicConfig()
            | actions.ElectLeaders()
            | actions.DeleteTopic()
        ):
            return action.topic
        case _:
            return f"{action.namespace}/{action.name}"


def _system(action: Action) -> str:
    match action:
        case actions.UpdateStatus():
            return "registry"
        case (
            actions.ApplyDeployment()
            | actions.ScaleDeployment()
            | actions.DeleteDeployment()
            | actions.ApplyService()
            | actions.DeleteService()
        ):
            return "workloads"
        case _:
            return "Kafka"


def _advice(error: SluiceError) -> str:
    match error:
        case Unavailable():
            return f"it is tried again by itself; if it lasts, see that {error.system} is up and reachable"
        case Forbidden():
            return f"give orchestration the right to do this in {error.system}"
        case Conflict() | NotFound():
            return "something changed meanwhile; it is planned anew from a fresh observation"
        case _:
            return "change the declaration, or what the answer complains about; it is tried again by itself"


# ---------------------------------------------------------------------- saying failures on their objects


def _report(failed: Mapping[str, Outcome], ports: Ports, observed: list[JsonObject], now: datetime) -> list[str]:
    """Write each failure on its channel. Returns those that could not be written; the canary's are in the outcome."""
    channels = {f"{c['metadata'].get('namespace')}/{c['metadata'].get('name')}": c for c in observed}
    unreported = []
    for cause, outcome in failed.items():
        if cause not in channels or isinstance(outcome.action, actions.UpdateStatus):
            continue
        namespace, _, name = cause.partition("/")
        try:
            ports.registry.update_status(namespace, name, _failure_status(channels[cause], outcome, now), None)
        except SluiceError as exc:
            unreported.append(f"{cause}: {exc}")
    return unreported


def _failure_status(channel: JsonObject, outcome: Outcome, now: datetime) -> JsonObject:
    """A status patch that says why the channel is not as declared. The next plan that succeeds replaces it."""
    message = f"{outcome.action.kind} {outcome.target}: {outcome.error}"[:MAX_MESSAGE]
    if outcome.advice:
        message += f" — {outcome.advice}"
    listed = (channel.get("status") or {}).get("conditions")
    before = {c["type"]: c for c in listed or () if isinstance(c, Mapping) and isinstance(c.get("type"), str)}
    was = before.get("Ready", {})
    since = was.get("lastTransitionTime") if was.get("status") == "False" else None
    before["Ready"] = {
        "type": "Ready",
        "status": "False",
        "reason": REASON_FAILED,
        "message": message,
        "lastTransitionTime": since or format_time(now),
    }
    return {"conditions": [before[kind] for kind in sorted(before)]}


# ---------------------------------------------------------------------- memory of brokers


def remember_brokers(observation: Observation, ports: Ports, now: datetime) -> list[str]:
    """Keep which brokers there were on the canary's Deployment. Writes only when the membership changed."""
    deployments = observation.document.get("deployments")
    canary = membership.canary_deployment(deployments or ())
    if canary is None or observation.listed_brokers is None:
        return []
    before = membership.remembered(deployments)
    # Whole seconds, as the annotation keeps them: what is read back must equal what was written.
    after = membership.updated(observation.listed_brokers, before, now.astimezone(UTC).replace(microsecond=0))
    if after == before:
        return []
    metadata: Mapping[str, Any] = canary["metadata"]
    annotation = {membership.ANNOTATION_BROKERS: membership.to_annotation(after)}
    try:
        ports.workloads.scale_deployment(
            metadata["namespace"], metadata["name"], canary.get("spec", {}).get("replicas", 1), annotation
        )
    except SluiceError as exc:
        return [f"the brokers that were seen could not be remembered: {exc}"]
    return []
