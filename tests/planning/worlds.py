"""Snapshots as documents, in the words of the design, and the moves through time that tests make with them."""

from __future__ import annotations

import copy
import random
from datetime import UTC, datetime, timedelta

from orchestration.planning import Plan, Policy, Snapshot, plan
from orchestration.planning.world import apply_to, settle

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
CANARY_TOPIC = "__strimzi_canary"
FINALIZER = "sluice.dev/kafkachannel"
UP = {"fenced": False, "last_seen": "2026-11-20T03:00:00Z"}


def at(seconds: float) -> str:
    """RFC 3339, so many seconds after NOW (negative: before)."""
    return (NOW + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def broker(number, rack=None, **more):
    return {"id": number, "rack": rack, **UP, **more}


def away(number, seconds, rack=None):
    """A broker that is stopped and was last seen so many seconds ago; None: nobody knows."""
    return broker(number, rack, fenced=True, last_seen=None if seconds is None else at(-seconds))


def topic(lists, *, configs=None, reassigning=(), leaders=None, isr=None):
    """A topic whose partition n has the replicas lists[n]."""
    return {
        "partitions": [
            {
                "id": n,
                "replicas": list(replicas),
                "isr": list((isr or {}).get(n, replicas)),
                "leader": (leaders or {}).get(n, replicas[0]),
            }
            for n, replicas in enumerate(lists)
        ],
        "reassigning": list(reassigning),
        "configs": configs if configs is not None else {},
    }


def canary_configs(min_isr):
    return {
        "cleanup.policy": "delete",
        "segment.bytes": "1048576",
        "segment.ms": "600000",
        "retention.ms": "600000",
        "retention.bytes": "4194304",
        "min.insync.replicas": str(min_isr),
    }


def canary_topic(lists, **more):
    factor = len(lists[0])
    return topic(lists, **{"configs": canary_configs(max(1, factor - 1)), **more})


def channel_configs(min_isr, retention_ms=604_800_000):
    return {"cleanup.policy": "delete", "min.insync.replicas": str(min_isr), "retention.ms": str(retention_ms)}


def subscriber(uid="u1", generation=1, **more):
    return {"uid": uid, "generation": generation, "subscriberUri": f"http://{uid}.shop.svc.cluster.local/", **more}


def channel(name="orders", namespace="shop", *, annotations=None, status=None, metadata=None, **spec):
    """A KafkaChannel object; spec fields as keywords."""
    obj = {
        "apiVersion": "messaging.knative.dev/v1beta1",
        "kind": "KafkaChannel",
        "metadata": {"namespace": namespace, "name": name, "generation": 1, **(metadata or {})},
        "spec": {"numPartitions": 2, "replicationFactor": 1, "subscribers": [subscriber()], **spec},
    }
    if annotations:
        obj["metadata"]["annotations"] = annotations
    if status is not None:
        obj["status"] = status
    return obj


def document(**parts):
    """A snapshot document of a world that is known to be empty, but for one broker, with `parts` over it.

    The canary's topic is in order, so that plans show what a test is about.
    """
    brokers = parts.pop("brokers", [broker(0)])
    base = {
        "observed_at": at(0),
        "brokers": brokers,
        "expected_brokers": None,
        "topics": {},
        "channels": [],
        "deployments": [],
        "services": [],
        "lag": {},
    }
    topics = parts.pop("topics", {})
    if topics is not None and CANARY_TOPIC not in topics and brokers:
        ids = [b["id"] for b in brokers]
        count = len(ids)
        factor = min(3, count)
        topics = {
            CANARY_TOPIC: canary_topic([[ids[(p + r) % count] for r in range(factor)] for p in range(count)]),
            **topics,
        }
    return {**base, "topics": topics, **parts}


def read(doc) -> Snapshot:
    return Snapshot.from_document(doc)


def decide(doc, policy=None, *, seconds=0.0) -> Plan:
    """Plan for a snapshot document, or a snapshot."""
    snapshot = doc if isinstance(doc, Snapshot) else read(doc)
    return plan(snapshot, policy or Policy(), NOW + timedelta(seconds=seconds))


def decide_document(doc, policy=None, *, seconds=0.0) -> dict:
    return decide(doc, policy, seconds=seconds).to_document()


def actions(doc, kind=None, *, cause=None, policy=None, seconds=0.0) -> list[dict]:
    """The planned actions as documents, those of one kind or cause where asked for."""
    found = decide_document(doc, policy, seconds=seconds)["actions"]
    return [a for a in found if kind in {None, a["kind"]} and cause in {None, a["cause"]}]


def kinds(doc, **more) -> list[str]:
    return [a["kind"] for a in actions(doc, **more)]


def reasons(doc, part, *, about=None) -> list[str]:
    """`rejected` or `waiting` of the plan."""
    return [r["reason"] for r in decide_document(doc)[part] if about in {None, r["object"]}]


def converge(doc, policy=None, *, rounds=12):
    """Plan and apply until nothing is left to do; moves of replicas end between rounds.

    Returns the last snapshot and all plans that were not empty.
    """
    snapshot = doc if isinstance(doc, Snapshot) else read(doc)
    plans = []
    for _ in range(rounds):
        decided = decide(snapshot, policy)
        if decided.is_empty:
            return snapshot, plans
        plans.append(decided)
        snapshot = settle(apply_to(snapshot, decided), decided)
    raise AssertionError(f"not converged after {rounds} rounds: {plans[-1].to_document()}")


def steady(doc, policy=None) -> dict:
    """The document of the world into which the planner brings `doc`, with every dispatcher ready."""
    snapshot, _ = converge(doc, policy)
    return ready(snapshot, policy)


def ready(snapshot, policy=None) -> dict:
    """The same world once all replicas are ready and the statuses say so."""
    doc = copy.deepcopy(snapshot.to_document())
    for deployment in doc["deployments"] or []:
        count = deployment["spec"]["replicas"]
        deployment["status"] = {
            "observedGeneration": 1,
            "replicas": count,
            "readyReplicas": count,
            "availableReplicas": count,
            "updatedReplicas": count,
        }
    snapshot, _ = converge(doc, policy)
    return copy.deepcopy(snapshot.to_document())


def shuffled(value, seed):
    """The same document with every list of objects and every mapping in another order."""
    rng = random.Random(seed)

    def shuffle(node, path):
        if isinstance(node, dict):
            entries = [(key, shuffle(child, (*path, key))) for key, child in node.items()]
            rng.shuffle(entries)
            return dict(entries)
        if isinstance(node, list):
            children = [shuffle(child, path) for child in node]
            # The first replica is the preferred leader, and a command is a sequence: these have a meaning.
            if path[-1] not in {"replicas", "isr", "command", "args", "finalizers"}:
                rng.shuffle(children)
            return children
        return node

    return shuffle(value, ("snapshot",))


def go_rule(brokers, partitions):
    """strimzi-canary's own assignment (facts: kafka-canary 1e), written down a second time as an oracle.

    `brokers` are (id, rack or None).
    """
    ordered = sorted(brokers)
    if ordered and all(rack for _, rack in ordered):
        racks = {}
        for number, rack in ordered:
            racks.setdefault(rack, []).append(number)
        order = []
        while any(racks.values()):
            order += [members.pop(0) for members in racks.values() if members]
    else:
        order = [number for number, _ in ordered]
    count = len(order)
    return [[order[(p + r) % count] for r in range(min(count, 3))] for p in range(max(partitions, count))]
