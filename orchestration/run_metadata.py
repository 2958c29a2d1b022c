"""What runs and assets show: tables of what was done and why, and of how the world is.

Small on purpose: metadata is stored with each event, so long lists are cut and say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from eventing.channels import LABEL_CHANNEL, LABEL_CHANNEL_NAMESPACE, LABEL_COMPONENT
from orchestration.apply import Outcome, Reconciliation, target
from orchestration.observe import Observation
from orchestration.pictures import leaders_picture
from orchestration.planning import Plan, Remark, actions
from orchestration.ports import JsonObject

MAX_ROWS = 100
"""Rows of a table; the whole story of a run is in its log."""
MAX_CELL = 300

KEY_CHANNELS = dg.AssetKey(["registry", "channels"])
KEY_TOPICS = dg.AssetKey(["kafka", "topics"])
KEY_DISPATCHERS = dg.AssetKey(["workloads", "dispatchers"])
KEY_CANARY = dg.AssetKey(["workloads", "canary"])

Cell = str | int | float | bool | None
Row = Mapping[str, Cell]
Metadata = dict[str, Any]


def table(rows: Sequence[Row]) -> dg.TableMetadataValue | dg.TextMetadataValue:
    """A table for the UI; a word where there is nothing to show."""
    if not rows:
        return dg.MetadataValue.text("none")
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return dg.MetadataValue.table(
        records=[dg.TableRecord({column: _cell(row.get(column)) for column in columns}) for row in rows[:MAX_ROWS]],
        schema=dg.TableSchema([dg.TableColumn(column) for column in columns]),
    )


def _cell(value: Cell) -> str | int | float | bool:
    if value is None:
        return ""
    return value[: MAX_CELL - 1] + "…" if isinstance(value, str) and len(value) > MAX_CELL else value


def outcome_row(outcome: Outcome) -> Row:
    return {
        "result": outcome.result,
        "action": outcome.action.kind,
        "object": outcome.target,
        "for": outcome.action.cause,
        "why": outcome.action.why,
        "problem": outcome.error or "",
        "what to do": outcome.advice or "",
        "seconds": round(outcome.duration_s, 3),
    }


def planned_rows(plan: Plan) -> list[Row]:
    return [
        {"result": "planned", "action": a.kind, "object": target(a), "for": a.cause, "why": a.why} for a in plan.actions
    ]


def remarks_table(remarks: Iterable[Remark]) -> dg.TableMetadataValue | dg.TextMetadataValue:
    return table([{"object": remark.object, "reason": remark.reason} for remark in remarks])


def of_reconciliation(done: Reconciliation, trigger: str) -> Metadata:
    """Metadata of a reconcile run."""
    outcomes = sorted(done.applied.outcomes, key=lambda outcome: outcome.result == "done")  # failures first
    metadata: Metadata = {
        "summary": done.applied.summary if outcomes else done.plan.summary,
        "trigger": trigger,
        "actions": table([outcome_row(outcome) for outcome in outcomes]),
        "rejected": remarks_table(done.plan.rejected),
        "waiting": remarks_table(done.plan.waiting),
        "actions done": sum(outcome.result == "done" for outcome in outcomes),
        "actions failed": len(done.applied.failed),
    }
    if len(outcomes) > MAX_ROWS:
        metadata["not shown"] = f"{len(outcomes) - MAX_ROWS} more actions; see the run's log"
    if done.observation.unreadable:
        metadata["unreadable"] = dg.MetadataValue.text("; ".join(done.observation.unreadable))
    if done.observation.invalid:
        metadata["invalid documents"] = table(
            [{"object": problem.object, "problem": str(problem)} for problem in done.observation.invalid]
        )
    if done.applied.unreported:
        metadata["unreported"] = dg.MetadataValue.text("; ".join(done.applied.unreported))
    return metadata


def before_and_after(done: Reconciliation, after: Observation) -> list[Row]:
    """How each object that the run touched was, and is now."""
    rows: dict[tuple[str, str], Row] = {}
    for outcome in done.applied.outcomes:
        if outcome.result == "skipped":
            continue
        kind, describe = _kind_of(outcome.action)
        if describe is None or (kind, outcome.target) in rows:
            continue
        was, now = describe(done.observation.document, outcome.target), describe(after.document, outcome.target)
        rows[kind, outcome.target] = {"kind": kind, "object": outcome.target, "before": was, "after": now}
    return list(rows.values())


def _kind_of(action: actions.Action) -> tuple[str, Callable[[JsonObject, str], str] | None]:
    match action:
        case actions.UpdateStatus():
            return "channel", _channel_words
        case actions.ApplyDeployment() | actions.ScaleDeployment() | actions.DeleteDeployment():
            return "deployment", _deployment_words
        case actions.InitializeOffsets() | actions.DeleteGroup():
            return "group", _group_words
        case actions.ApplyService() | actions.DeleteService():
            return "service", None
        case _:
            return "topic", _topic_words


def _topic_words(document: JsonObject, name: str) -> str:
    topics: dict[str, JsonObject] | None = document["topics"]
    if topics is None:
        return "unknown"
    if name not in topics:
        return "does not exist"
    partitions = topics[name].get("partitions") or []
    factors = sorted({len(partition["replicas"] or ()) for partition in partitions})
    leaders = ", ".join(str(partition["leader"]) for partition in partitions)
    moving = topics[name].get("reassigning")
    words = f"partitions {len(partitions)}, replicas {'-'.join(map(str, factors))}, leaders {leaders}"
    return words + (f", moving {', '.join(map(str, moving))}" if moving else "")


def _deployment_words(document: JsonObject, name: str) -> str:
    deployments: list[JsonObject] | None = document["deployments"]
    if deployments is None:
        return "unknown"
    row = next((row for row in map(deployment_row, deployments) if row["deployment"] == name), None)
    return "does not exist" if row is None else f"replicas {row['replicas']}, ready {row['ready']}"


def _group_words(document: JsonObject, name: str) -> str:
    lag: dict[str, JsonObject] | None = document["lag"]
    if lag is None:
        return "unknown"
    row = next((row for row in _lag_rows(lag) if row["group"] == name), None)
    return "no offsets" if row is None else f"lag {row['lag']}"


def _channel_words(document: JsonObject, name: str) -> str:
    channels: list[JsonObject] | None = document["channels"]
    if channels is None:
        return "unknown"
    row = next((row for row in map(channel_row, channels) if row["channel"] == name), None)
    if row is None:
        return "does not exist"
    return f"Ready {row['ready']}" + (f" ({row['reason']})" if row["reason"] else "")


def changes(done: Reconciliation, after: Observation) -> list[dg.AssetObservation]:
    """An observation of each asset that the run changed, and of no other."""
    touched = Counter(_asset_of(outcome.action, done) for outcome in done.applied.outcomes if outcome.result == "done")
    return [
        dg.AssetObservation(
            asset_key=key,
            description=f"{touched[key]} changed by this run",
            metadata=METADATA_OF[key](after),
        )
        for key in METADATA_OF
        if touched[key]
    ]


def _asset_of(action: actions.Action, done: Reconciliation) -> dg.AssetKey:
    match action:
        case actions.UpdateStatus():
            return KEY_CHANNELS
        case (
            actions.ApplyDeployment()
            | actions.ScaleDeployment()
            | actions.DeleteDeployment()
            | actions.ApplyService()
            | actions.DeleteService()
        ):
            return KEY_CANARY if action.cause == actions.CANARY else KEY_DISPATCHERS
        case _:
            assert done.plan.actions
            return KEY_TOPICS


# ---------------------------------------------------------------------- how the world is


def of_channels(observation: Observation) -> Metadata:
    channels: list[JsonObject] | None = observation.document["channels"]
    if channels is None:
        return _unknown(observation)
    rows = [channel_row(channel) for channel in channels]
    return {
        "channels": len(rows),
        "ready": sum(row["ready"] == "True" for row in rows),
        "state": table(sorted(rows, key=lambda row: row["ready"] == "True")),
        "invalid documents": table(
            [{"object": problem.object, "problem": str(problem)} for problem in observation.invalid]
        ),
    }


def channel_row(channel: JsonObject) -> Row:
    """Readiness of one channel, as its status says it."""
    metadata, status = channel.get("metadata") or {}, channel.get("status") or {}
    conditions = status.get("conditions") or []
    ready = next((c for c in conditions if isinstance(c, Mapping) and c.get("type") == "Ready"), {})
    spec = channel.get("spec")
    subscribers = spec.get("subscribers") if isinstance(spec, Mapping) else None
    return {
        "channel": f"{metadata.get('namespace')}/{metadata.get('name')}",
        "ready": str(ready.get("status", "Unknown")),
        "reason": str(ready.get("reason") or ""),
        "message": str(ready.get("message") or ""),
        "subscribers": len(subscribers) if isinstance(subscribers, list) else 0,
        "being deleted": bool(metadata.get("deletionTimestamp")),
    }


def of_topics(observation: Observation) -> Metadata:
    topics: dict[str, JsonObject] | None = observation.document["topics"]
    brokers: list[JsonObject] | None = observation.document["brokers"]
    if topics is None or brokers is None:
        return _unknown(observation)
    return {
        "topics": len(topics),
        "partitions": sum(len(topic.get("partitions") or ()) for topic in topics.values()),
        "brokers": len(brokers),
        "brokers away": sum(broker["fenced"] is True for broker in brokers),
        "leaders and replicas by broker": table(broker_rows(topics, brokers)),
        "picture": dg.MetadataValue.md(leaders_picture(topics, brokers)),
        "lag": table(_lag_rows(observation.document["lag"] or {})),
    }


def broker_rows(topics: Mapping[str, JsonObject], brokers: Sequence[JsonObject]) -> list[Row]:
    """How many partitions each broker leads, and should lead, and holds."""
    leads: Counter[int] = Counter()
    preferred: Counter[int] = Counter()
    holds: Counter[int] = Counter()
    for topic in topics.values():
        for partition in topic.get("partitions") or ():
            replicas = partition["replicas"] or ()
            leads[partition["leader"]] += 1
            preferred.update(replicas[:1])
            holds.update(replicas)
    return [
        {
            "broker": broker["id"],
            "rack": broker["rack"] or "",
            "up": not broker["fenced"],
            "leads": leads[broker["id"]],
            "should lead": preferred[broker["id"]],
            "replicas": holds[broker["id"]],
        }
        for broker in brokers
    ]


def _lag_rows(lag: Mapping[str, JsonObject]) -> list[Row]:
    rows: list[Row] = []
    for group, entry in sorted(lag.items()):
        values = list(entry["partitions"].values())
        known = None if any(value is None for value in values) else sum(values)
        rows.append({"group": group, "topic": entry["topic"], "lag": "unknown" if known is None else known})
    return rows


def topic_table(document: JsonObject, names: Iterable[str]) -> dg.TableMetadataValue | dg.TextMetadataValue:
    """Leader and replicas of each partition of some topics."""
    topics: dict[str, JsonObject] = document["topics"] or {}
    return table(
        [
            {
                "topic": name,
                "partition": partition["id"],
                "leader": partition["leader"],
                "replicas": ", ".join(str(broker) for broker in partition["replicas"] or ()),
                "in sync": ", ".join(str(broker) for broker in partition["isr"] or ()),
                "moving": partition["id"] in (topics[name].get("reassigning") or ()),
            }
            for name in names
            if name in topics
            for partition in topics[name].get("partitions") or ()
        ]
    )


def of_dispatchers(observation: Observation) -> Metadata:
    return _of_deployments(observation, "dispatcher")


def of_canary(observation: Observation) -> Metadata:
    return _of_deployments(observation, "canary")


def _of_deployments(observation: Observation, component: str) -> Metadata:
    deployments: list[JsonObject] | None = observation.document["deployments"]
    if deployments is None:
        return _unknown(observation)
    rows = [deployment_row(d) for d in deployments if component_of(d) == component]
    return {
        "deployments": len(rows),
        "replicas": sum(int(row["replicas"] or 0) for row in rows),
        "replicas ready": sum(int(row["ready"] or 0) for row in rows),
        "state": table(rows),
    }


def component_of(deployment: JsonObject) -> str | None:
    component = (deployment["metadata"].get("labels") or {}).get(LABEL_COMPONENT)
    return component if isinstance(component, str) else None


def deployment_row(deployment: JsonObject) -> Row:
    metadata, status = deployment["metadata"], deployment.get("status") or {}
    labels = metadata.get("labels") or {}
    channel = f"{labels.get(LABEL_CHANNEL_NAMESPACE)}/{labels.get(LABEL_CHANNEL)}" if LABEL_CHANNEL in labels else ""
    return {
        "deployment": f"{metadata.get('namespace')}/{metadata['name']}",
        "channel": channel,
        "replicas": int(deployment.get("spec", {}).get("replicas", 1)),
        "ready": int(status.get("readyReplicas") or 0),
    }


def _unknown(observation: Observation) -> Metadata:
    return {"unknown": dg.MetadataValue.text("; ".join(observation.unreadable) or "could not be read")}


METADATA_OF = {
    KEY_CHANNELS: of_channels,
    KEY_TOPICS: of_topics,
    KEY_DISPATCHERS: of_dispatchers,
    KEY_CANARY: of_canary,
}
