"""The dispatcher Deployment and the Service of a channel, as they are found in a real cluster."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from orchestration.planning import CanaryDeployment, CanaryPolicy, DispatcherPolicy, Policy
from tests.planning.kubernetes import as_returned, deployment_as_returned
from tests.planning.worlds import (
    actions,
    at,
    channel,
    decide_document,
    document,
    kinds,
    reasons,
    steady,
    subscriber,
)

SLUICE = {"app.kubernetes.io/managed-by": "sluice"}


def running(**parts):
    """A steady world as a cluster returns it."""
    return as_returned(steady(document(channels=[channel(**parts)])))


def test_what_an_api_server_adds_is_no_drift():
    assert actions(running()) == []


def test_a_missing_dispatcher_comes_back():
    doc = {**running(), "deployments": []}

    assert kinds(doc) == ["ApplyDeployment", "UpdateStatus"]


def test_a_missing_service_comes_back():
    assert kinds({**running(), "services": []}) == ["ApplyService"]


def test_unreadable_deployments_are_not_missing_ones():
    plan = decide_document({**running(), "deployments": None})

    assert plan["actions"] == []
    assert any("Deployments" in w["reason"] for w in plan["waiting"])


def test_unreadable_services_are_not_missing_ones():
    assert actions({**running(), "services": None}) == []


def test_another_image_is_applied_with_the_size_and_the_memory_kept():
    doc = running(numPartitions=10)
    doc["deployments"][0]["spec"]["replicas"] = 4
    doc["deployments"][0]["metadata"]["annotations"]["sluice.dev/last-resize"] = at(-5)
    (apply,) = actions(doc, policy=Policy(dispatcher=DispatcherPolicy(image="sluice/dispatcher:2")))

    assert apply["kind"] == "ApplyDeployment"
    assert apply["replicas"] == 4
    assert apply["manifest"]["spec"]["replicas"] == 4
    assert apply["manifest"]["metadata"]["annotations"]["sluice.dev/last-resize"] == at(-5)
    assert apply["manifest"]["spec"]["template"]["spec"]["containers"][0]["image"] == "sluice/dispatcher:2"


def test_apply_and_resize_come_as_one_action():
    doc = running(numPartitions=10)
    doc["lag"]["kafka.shop.orders.u1"]["partitions"]["3"] = 250
    (apply,) = actions(doc, policy=Policy(dispatcher=DispatcherPolicy(image="sluice/dispatcher:2")))

    assert apply["replicas"] == 3
    assert apply["manifest"]["metadata"]["annotations"]["sluice.dev/last-resize"] == at(0)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda c: c.update(image="evil"), id="image"),
        pytest.param(lambda c: c.update(command=["sleep", "9"]), id="command"),
        pytest.param(lambda c: c["env"].pop(), id="env removed"),
        pytest.param(lambda c: c["env"][0].update(value="changed"), id="env changed"),
    ],
)
def test_what_somebody_changed_by_hand_is_put_right(change):
    doc = running()
    change(doc["deployments"][0]["spec"]["template"]["spec"]["containers"][0])
    (apply,) = actions(doc)

    assert apply["kind"] == "ApplyDeployment"
    assert "somebody changed it" in apply["why"]


def test_what_others_inject_beside_ours_is_left():
    doc = running()
    pod = doc["deployments"][0]["spec"]["template"]["spec"]
    pod["containers"][0]["env"].append({"name": "OTEL_SERVICE_NAME", "value": "x"})
    pod["containers"].insert(0, {"name": "istio-proxy", "image": "istio"})

    assert actions(doc) == []


def test_a_deployment_without_our_mark_is_marked():
    doc = running()
    del doc["deployments"][0]["metadata"]["annotations"]["sluice.dev/config-hash"]

    assert kinds(doc) == ["ApplyDeployment"]


def test_a_deployment_is_known_by_its_labels_not_by_its_name():
    doc = running(numPartitions=5)
    doc["deployments"][0]["metadata"]["name"] = "orders-dispatcher"
    doc["deployments"][0]["metadata"]["namespace"] = "elsewhere"
    doc["lag"]["kafka.shop.orders.u1"]["partitions"]["0"] = 450
    found = actions(doc)

    assert {(a["namespace"], a["name"]) for a in found} == {("elsewhere", "orders-dispatcher")}
    assert [a["replicas"] for a in found] == [5]


def test_labels_alone_are_enough():
    """A Deployment that was made by hand has the labels of the design and no annotation of ours."""
    mine = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "orders-dispatcher",
            "namespace": "sluice-system",
            "resourceVersion": "1",
            "creationTimestamp": at(-3600),
            "labels": {
                **SLUICE,
                "app.kubernetes.io/component": "dispatcher",
                "sluice.dev/channel": "orders",
                "sluice.dev/channel-namespace": "shop",
            },
        },
        "spec": {"replicas": 1},
        "status": {"replicas": 1, "readyReplicas": 1},
    }
    (apply,) = actions({**running(), "deployments": [mine]})

    assert apply["kind"] == "ApplyDeployment"
    assert apply["name"] == "orders-dispatcher"


def test_a_second_deployment_of_a_channel_is_deleted():
    doc = running()
    second = copy.deepcopy(doc["deployments"][0])
    second["metadata"]["name"] = "another"
    doc["deployments"].append(second)

    assert [(a["kind"], a["name"]) for a in actions(doc)] == [("DeleteDeployment", "another")]


def test_a_foreign_deployment_of_that_name_is_never_touched():
    doc = running()
    doc["deployments"][0]["metadata"]["labels"] = {"app": "theirs"}
    plan = decide_document(doc)

    assert [a["kind"] for a in plan["actions"]] == ["UpdateStatus"]
    assert any("not managed by sluice" in r["reason"] for r in plan["rejected"])
    (update,) = plan["actions"]
    ready = next(c for c in update["status"]["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "False"
    assert ready["reason"] == "DeploymentIsForeign"


def test_a_foreign_service_of_that_name_is_never_touched():
    doc = running()
    doc["services"][0]["metadata"]["labels"] = {}

    assert kinds(doc) == ["UpdateStatus"]
    assert any("Service" in reason for reason in reasons(doc, "rejected"))


def test_other_peoples_objects_are_never_touched():
    doc = running()
    others = [
        {"metadata": {"name": "web", "namespace": "shop", "resourceVersion": "1"}, "spec": {"replicas": 2}},
        {
            "metadata": {
                "name": "old-dispatcher",
                "namespace": "knative-eventing",
                "resourceVersion": "1",
                "labels": {"sluice.dev/channel": "gone", "sluice.dev/channel-namespace": "shop"},
            },
            "spec": {"replicas": 2},
        },
        {
            "metadata": {
                "name": "theirs",
                "namespace": "shop",
                "labels": {"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/component": "dispatcher"},
            }
        },
    ]

    assert actions({**doc, "deployments": doc["deployments"] + others, "services": doc["services"] + others}) == []


def test_the_receiver_and_the_canary_are_standing_infrastructure():
    doc = running()
    standing = [
        {
            "metadata": {
                "name": f"sluice-{component}",
                "namespace": "sluice-system",
                "labels": {**SLUICE, "app.kubernetes.io/component": component},
            },
            "spec": {"replicas": 1},
        }
        for component in ("receiver", "canary")
    ]

    assert actions({**doc, "deployments": doc["deployments"] + standing, "services": doc["services"] + standing}) == []


def test_a_deployment_that_is_being_deleted_is_waited_for():
    doc = running()
    doc["deployments"][0]["metadata"]["deletionTimestamp"] = at(-1)

    assert actions(doc) == []
    assert any("being deleted" in reason for reason in reasons(doc, "waiting", about="shop/orders"))


def test_replicas_left_out_mean_one_as_in_kubernetes():
    doc = running(numPartitions=5)
    del doc["deployments"][0]["spec"]["replicas"]

    assert actions(doc) == []


def test_a_dispatcher_that_is_not_ready_is_said():
    doc = running()
    doc["deployments"] = [deployment_as_returned(steady(doc)["deployments"][0], ready=0)]
    plan = decide_document(doc)
    (update,) = plan["actions"]

    conditions = {c["type"]: c for c in update["status"]["conditions"]}
    assert conditions["DispatcherReady"]["status"] == "False"
    assert conditions["DispatcherReady"]["reason"] == "DispatcherNotReady"
    assert conditions["Ready"]["status"] == "False"
    assert any("ready" in w["reason"] for w in plan["waiting"])


def test_one_ready_replica_is_enough():
    """Otherwise every resize and every rollout would call the channel unready."""
    doc = running(numPartitions=5)
    doc["deployments"][0]["spec"]["replicas"] = 4
    doc["deployments"][0]["metadata"]["annotations"]["sluice.dev/last-resize"] = at(-1)
    doc["deployments"][0]["status"] |= {"replicas": 4, "readyReplicas": 1}

    assert actions(doc) == []


def test_a_dispatcher_scaled_to_zero_is_ready():
    doc = steady(document(channels=[channel(annotations={"autoscaling.eventing.knative.dev/min-scale": "0"})]))

    assert doc["deployments"][0]["spec"]["replicas"] == 0
    ready = next(c for c in doc["channels"][0]["status"]["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "True"


def asleep():
    return steady(document(channels=[channel(annotations={"autoscaling.eventing.knative.dev/min-scale": "0"})]))


def test_a_dispatcher_that_wakes_has_a_minute_before_its_channel_is_unready():
    doc = asleep()
    doc["lag"]["kafka.shop.orders.u1"]["partitions"]["0"] = 1
    (scale,) = actions(doc)
    assert scale["replicas"] == 1

    doc["deployments"][0]["spec"]["replicas"] = 1
    doc["deployments"][0]["metadata"]["annotations"]["sluice.dev/last-resize"] = at(0)
    assert actions(doc, seconds=59) == []
    (update,) = actions(doc, seconds=60)
    ready = next(c for c in update["status"]["conditions"] if c["type"] == "Ready")
    assert ready["reason"] == "DispatcherNotReady"


def test_what_is_remembered_on_a_deployment_survives_an_apply():
    doc = steady(document(), LIVE)
    doc["deployments"][0]["metadata"]["annotations"]["sluice.dev/brokers"] = "{}"
    (apply,) = actions(doc, policy=replace(LIVE, bootstrap_servers="other:9092"))
    marks = apply["manifest"]["metadata"]["annotations"]

    assert marks["sluice.dev/brokers"] == "{}"
    assert marks["sluice.dev/config-hash"] != doc["deployments"][0]["metadata"]["annotations"]["sluice.dev/config-hash"]


# --- the canary's own Deployment

LIVE = Policy(
    bootstrap_servers="kafka:9092",
    canary=CanaryPolicy(
        deployment=CanaryDeployment(image="sluice/canary:1", env={"TOPIC": "wrong", "CLIENT_ID": "c"}, host_port=8091)
    ),
)


def test_the_default_policy_deploys_no_canary():
    assert actions(document(), "ApplyDeployment") == []


def test_the_live_policy_deploys_one_that_probes_the_topic_which_is_kept():
    (apply,) = actions(document(), policy=LIVE)
    container = apply["manifest"]["spec"]["template"]["spec"]["containers"][0]
    env = {e["name"]: e["value"] for e in container["env"]}

    assert apply["cause"] == "canary"
    assert apply["replicas"] == 1
    assert apply["manifest"]["metadata"]["labels"]["app.kubernetes.io/component"] == "canary"
    assert container["command"] == ["python", "-m", "canary_image"]
    assert env["TOPIC"] == "__strimzi_canary"
    assert env["KAFKA_BOOTSTRAP_SERVERS"] == "kafka:9092"
    assert env["CLIENT_ID"] == "c"
    assert container["ports"] == [{"name": "metrics", "containerPort": 8080, "protocol": "TCP", "hostPort": 8091}]


def test_the_deployed_canary_is_left_in_peace_and_kept_at_one():
    doc = steady(document(), LIVE)
    assert actions(doc, policy=LIVE) == []

    doc["deployments"][0]["spec"]["replicas"] = 3
    assert [(a["kind"], a["replicas"]) for a in actions(doc, policy=LIVE)] == [("ScaleDeployment", 1)]


def test_a_canary_that_is_there_is_not_touched_by_a_policy_without_one():
    assert actions(steady(document(), LIVE)) == []


def test_the_canary_follows_its_configuration():
    doc = steady(document(), LIVE)
    changed = replace(LIVE, bootstrap_servers="other:9092")

    assert kinds(doc, policy=changed) == ["ApplyDeployment"]


def test_size_and_environment_follow_the_policy():
    policy = Policy(
        bootstrap_servers="a:1,b:2",
        channel_source="/srv/registry",
        kafka_secret="kafka-user",
        dispatcher=DispatcherPolicy(image="i", max_in_flight=64, drain_timeout_s=45, extra_env={"OTEL_X": "y"}),
    )
    (apply,) = actions(document(channels=[channel(subscribers=[subscriber("a")])]), "ApplyDeployment", policy=policy)
    pod = apply["manifest"]["spec"]["template"]["spec"]
    env = {e["name"]: e["value"] for e in pod["containers"][0]["env"]}

    assert env["KAFKA_BOOTSTRAP_SERVERS"] == "a:1,b:2"
    assert env["CHANNEL_SOURCE"] == "/srv/registry"
    assert env["CHANNEL_KEY"] == "shop/orders"
    assert env["KAFKA_TOPIC"] == "shop.orders"
    assert env["MAX_IN_FLIGHT"] == "64"
    assert env["OTEL_X"] == "y"
    assert env["KAFKA_SECRET_DIR"] == "/etc/sluice/kafka"
    assert pod["terminationGracePeriodSeconds"] > 45
    assert {"name": "kafka", "secret": {"secretName": "kafka-user"}} in pod["volumes"]
    assert {"name": "kafka", "mountPath": "/etc/sluice/kafka", "readOnly": True} in pod["containers"][0]["volumeMounts"]
