"""What holds for every plan of every world, however odd (hypothesis makes the worlds)."""

from __future__ import annotations

import copy
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestration.planning import Plan, Policy
from orchestration.planning.world import apply_to
from tests.planning.kubernetes import as_returned
from tests.planning.worlds import (
    CANARY_TOPIC,
    FINALIZER,
    NOW,
    at,
    broker,
    canary_topic,
    channel,
    converge,
    decide,
    document,
    read,
    shuffled,
    subscriber,
    topic,
)

SCALE = "autoscaling.eventing.knative.dev/"
NAMES = ["orders", "orders.dead-letter", "a.b", "a-b-2e7336dc", "x" * 70]
UIDS = ["u1", "u2", "0f3a-77"]

count = st.integers(0, 4)


@st.composite
def channels(draw):
    """Channel objects, some of them wrong, some on their way out."""
    found = []
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=4)):
        annotations = draw(
            st.fixed_dictionaries(
                {},
                optional={
                    SCALE + "min-scale": st.sampled_from(["0", "1", "3", "-1"]),
                    SCALE + "max-scale": st.sampled_from(["1", "2", "50"]),
                    SCALE + "cooldown-period": st.sampled_from(["0", "30", "300"]),
                    "sluice.dev/initial-offset": st.sampled_from(["latest", "earliest"]),
                    "sluice.dev/deletion-policy": st.sampled_from(["delete", "retain", "?"]),
                    "sluice.dev/dead-letter-topic": st.sampled_from(["enabled", "disabled"]),
                },
            )
        )
        obj = channel(
            name,
            annotations=annotations or None,
            numPartitions=draw(st.sampled_from([1, 2, 3, 5, 0])),
            replicationFactor=draw(st.sampled_from([1, 2, 3])),
            subscribers=[subscriber(uid) for uid in draw(st.sets(st.sampled_from(UIDS)))],
        )
        if draw(st.booleans()):
            obj["status"] = {
                "annotations": {"default.topic": f"shop.{name}"},
                "subscribers": [{"uid": "u1", "ready": draw(st.sampled_from(["True", "False"]))}],
            }
        if draw(st.booleans()):
            obj["metadata"]["finalizers"] = draw(st.permutations([FINALIZER, "other/one"]))
        if draw(st.integers(0, 4)) == 0:
            obj["metadata"]["deletionTimestamp"] = at(-5)
        found.append(obj)
    return found


@st.composite
def topics(draw, ids):
    """Topics in all states: in order, moving, short of replicas, read in part."""
    found = {}
    names = [f"shop.{n}" for n in NAMES] + ["shop.orders.dead-letter", "foreign", CANARY_TOPIC]
    for name in draw(st.sets(st.sampled_from(names), max_size=5)):
        factor = draw(st.integers(1, min(3, len(ids))))
        lists = [draw(st.permutations(ids))[:factor] for _ in range(draw(st.integers(1, 5)))]
        made = canary_topic(lists) if name == CANARY_TOPIC else topic(lists)
        for partition in made["partitions"]:
            partition["leader"] = draw(st.sampled_from([partition["leader"], -1, None, ids[0]]))
            partition["isr"] = draw(st.sampled_from([partition["isr"], partition["isr"][:1], [], None]))
            partition["replicas"] = draw(st.sampled_from([partition["replicas"]] * 9 + [None]))
        made["reassigning"] = draw(st.sampled_from([[], [], [], [0], None]))
        made["configs"] = draw(
            st.sampled_from([made["configs"]] * 3 + [None, {"min.insync.replicas": "3"}, {"cleanup.policy": "compact"}])
        )
        found[name] = made
    return found


@st.composite
def worlds(draw):
    """Snapshot documents."""
    ids = draw(st.lists(st.integers(0, 30), min_size=1, max_size=5, unique=True))
    brokers = [
        broker(
            number,
            draw(st.sampled_from(["a", "b", None])),
            fenced=draw(st.sampled_from([False, False, True, None])),
            last_seen=draw(st.sampled_from([at(0), at(-60), at(-3600), None])),
        )
        for number in ids
    ]
    doc = document(brokers=brokers, topics={}, channels=draw(channels()))
    doc["topics"] = draw(topics(ids))
    doc["lag"] = draw(
        st.dictionaries(
            st.sampled_from([f"kafka.shop.{name}.{uid}" for name in NAMES for uid in [*UIDS, "gone"]] + ["else"]),
            st.fixed_dictionaries(
                {
                    "topic": st.sampled_from([f"shop.{n}" for n in NAMES] + [None]),
                    "partitions": st.dictionaries(
                        st.sampled_from("01234"), st.sampled_from([0, 1, 250, 10**7, -4, None]), max_size=5
                    ),
                }
            ),
            max_size=5,
        )
    )
    doc["expected_brokers"] = draw(st.sampled_from([None, None, None, 1, 3]))
    if draw(st.booleans()):
        # A part of the world that the planner made itself, as a cluster returns it.
        made = as_returned(apply_to(read(doc), decide(doc)).to_document())
        doc["deployments"], doc["services"] = made["deployments"], made["services"]
        for deployment in doc["deployments"]:
            deployment["spec"]["replicas"] = draw(st.integers(0, 6))
            deployment["metadata"]["creationTimestamp"] = draw(st.sampled_from([at(-10), at(-4000), None, "?"]))
    for part in draw(
        st.sets(st.sampled_from(["brokers", "topics", "channels", "deployments", "services", "lag"]), max_size=2)
    ):
        if draw(st.integers(0, 3)) == 0:
            doc[part] = None
    return doc


many = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@given(worlds(), st.integers(0, 10**6))
@many
def test_the_order_of_anything_changes_nothing(doc, seed):
    assert decide(shuffled(doc, seed)).to_document() == decide(doc).to_document()


@given(worlds())
@many
def test_applying_a_plan_and_planning_again_gives_nothing_to_do(doc):
    snapshot = read(doc)
    plan = decide(snapshot)

    again = decide(apply_to(snapshot, plan))

    assert again.to_document()["actions"] == []


@given(worlds())
@many
def test_every_world_comes_to_rest(doc):
    converge(doc)


@given(worlds())
@many
def test_every_action_names_its_cause_and_says_why(doc):
    known = {"canary"} | {f"shop/{c['metadata']['name']}" for c in doc["channels"] or []}
    known |= {f"shop/{name}" for name in NAMES}  # of dispatchers whose channel is gone
    plan = decide(doc).to_document()
    for action in plan["actions"]:
        assert action["cause"] in known
        assert action["why"]
    for remark in plan["rejected"] + plan["waiting"]:
        assert remark["object"] in known | {"channels"}
        assert remark["reason"]


@given(worlds())
@many
def test_a_plan_survives_its_document(doc):
    plan = decide(doc)

    assert Plan.from_document(json.loads(json.dumps(plan.to_document()))) == plan


@given(worlds(), st.sampled_from(["brokers", "topics", "channels", "deployments", "services", "lag"]))
@many
def test_what_is_unknown_is_neither_created_nor_deleted_nor_resized(doc, part):
    doc[part] = None
    plan = decide(doc)
    kinds = {a.kind for a in plan.actions}

    forbidden = {
        "brokers": {"CreateTopic", "CreatePartitions", "ReassignPartitions", "ElectLeaders"},
        "topics": {"CreateTopic", "CreatePartitions", "ReassignPartitions", "AlterTopicConfig", "ElectLeaders",
                   "DeleteTopic", "ApplyDeployment", "ScaleDeployment", "InitializeOffsets"},
        "channels": {"DeleteTopic", "DeleteDeployment", "DeleteService", "DeleteGroup", "ApplyDeployment",
                     "ScaleDeployment", "UpdateStatus"},
        "deployments": {"ApplyDeployment", "ScaleDeployment", "DeleteDeployment", "DeleteTopic"},
        "services": {"ApplyService", "DeleteService"},
        "lag": {"InitializeOffsets", "DeleteGroup"},
    }  # fmt: skip
    assert not kinds & forbidden[part]
    if part in {"brokers", "topics", "channels"}:
        assert plan.waiting


@given(worlds())
@many
def test_an_unknown_lag_never_makes_a_dispatcher_smaller(doc):
    for entry in (doc["lag"] or {}).values():
        entry["partitions"] = dict.fromkeys(entry["partitions"], None)
    sizes = {d["metadata"]["name"]: d["spec"]["replicas"] for d in doc["deployments"] or []}
    subscribed = {f"shop/{c['metadata']['name']}" for c in doc["channels"] or [] if c["spec"]["subscribers"]}
    for action in decide(doc).actions:
        if action.kind in {"ScaleDeployment", "ApplyDeployment"} and action.cause in subscribed:
            known = [a for a in decide(doc).actions if a.kind == "InitializeOffsets" and a.cause == action.cause]
            assert known or action.replicas >= sizes.get(action.name, 0)


@given(worlds())
@many
def test_replicas_stay_in_their_bounds(doc):
    partitions = {name: len(t["partitions"]) for name, t in (doc["topics"] or {}).items()}
    declared = {f"shop/{c['metadata']['name']}": c for c in doc["channels"] or []}
    plan = decide(doc)
    for action in plan.actions:
        if action.kind == "CreateTopic":
            partitions[action.topic] = len(action.assignments)
        if action.kind == "CreatePartitions":
            partitions[action.topic] = action.partitions
        if action.kind in {"ScaleDeployment", "ApplyDeployment"}:
            obj = declared[action.cause]
            annotations = obj["metadata"].get("annotations") or {}
            most = min(int(annotations.get(SCALE + "max-scale", 10**9)), partitions[f"shop.{obj['metadata']['name']}"])
            before = {d["metadata"]["name"]: d["spec"]["replicas"] for d in doc["deployments"] or []}
            assert action.replicas <= max(most, before.get(action.name, 0))
            assert action.replicas >= min(
                int(annotations.get(SCALE + "min-scale", 1)), most, before.get(action.name, 99)
            )


@given(worlds())
@many
def test_assignments_are_ones_that_kafka_takes(doc):
    live = {b["id"] for b in doc["brokers"] or [] if b["fenced"] is not True}
    registered = {b["id"] for b in doc["brokers"] or []}
    world = read(doc)
    for action in decide(doc).actions:
        if action.kind in {"CreateTopic", "CreatePartitions", "ReassignPartitions"}:
            for replicas in action.assignments.values():
                assert len(set(replicas)) == len(replicas) > 0
                assert set(replicas) <= registered
                if action.kind != "ReassignPartitions":
                    assert live & set(replicas)
        if action.kind == "CreateTopic":
            assert sorted(action.assignments) == list(range(len(action.assignments)))
            assert action.topic not in (world.topics or {})
        if action.kind == "CreatePartitions":
            existing = world.topics[action.topic]
            assert existing.reassigning == ()
            assert sorted(action.assignments) == list(range(len(existing.partitions), action.partitions))
            assert {len(r) for r in action.assignments.values()} == {len(existing.partitions[0].replicas)}
        world = apply_to(world, [action])


@given(worlds())
@many
def test_nothing_without_our_label_is_touched(doc):
    doc = copy.deepcopy(doc)
    for obj in (doc["deployments"] or []) + (doc["services"] or []):
        obj["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "Helm"
    foreign = {
        (d["kind"], d["metadata"]["namespace"], d["metadata"]["name"])
        for d in (doc["deployments"] or []) + (doc["services"] or [])
    }
    for action in decide(doc).actions:
        if action.kind.endswith(("Deployment", "Service")):
            kind = "Deployment" if action.kind.endswith("Deployment") else "Service"
            assert (kind, action.namespace, action.name) not in foreign


@given(worlds())
@many
def test_one_channel_is_planned_alike_whoever_else_is_bad(doc):
    """Every other channel is made invalid: what is planned for the rest stays."""
    if not doc["channels"] or doc["topics"] is None:
        return
    alone = copy.deepcopy(doc)
    stays = doc["channels"][0]["metadata"]["name"]
    for other in alone["channels"]:
        if other["metadata"]["name"] != stays:
            other["spec"]["numPartitions"] = -1
    key = f"shop/{stays}"

    def of(plan):
        return [(a.kind, getattr(a, "topic", None)) for a in plan.actions if a.cause == key]

    assert of(decide(doc)) == of(decide(alone))


@given(worlds())
@many
def test_deletes_come_in_the_safe_order(doc):
    order = ["DeleteDeployment", "DeleteService", "DeleteGroup", "DeleteTopic", "UpdateStatus"]
    plan = decide(doc)
    for obj in doc["channels"] or []:
        if obj["metadata"].get("deletionTimestamp"):
            cause = f"shop/{obj['metadata']['name']}"
            kinds = [a.kind for a in plan.actions if a.cause == cause]
            if "UpdateStatus" not in kinds[:-1]:
                assert kinds == sorted(kinds, key=order.index)


def test_the_policy_in_the_document_goes_over_the_one_given():
    doc = document(policy={"canary": {"topic": "probe"}})

    assert [a.topic for a in decide(doc, Policy()).actions] == ["probe"]
    assert read(doc).observed_at == NOW
