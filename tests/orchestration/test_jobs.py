"""Runs, as an operator sees them: what was done, why, before and after, and red when it failed."""

from __future__ import annotations

import threading

import dagster as dg
import pytest

from eventing.errors import Refused, Unavailable
from orchestration.definitions import defs
from orchestration.jobs import JOB_RECONCILE, OP_RECONCILE
from orchestration.resources import ControlPlane
from orchestration.settings import Settings
from tests.orchestration.worlds import World, channel


@pytest.fixture
def world():
    return World(channel())


@pytest.fixture
def control_plane(world, tmp_path):
    settings = Settings.from_env({"SLUICE_HOME": str(tmp_path)})
    return ControlPlane(ports=world.ports, policy=world.policy, settings=settings)


@pytest.fixture
def run(control_plane):
    """Runs a job in this process, against the fakes."""
    with dg.DagsterInstance.ephemeral() as instance:

        def execute(job, config=None, op=None):
            definition = dg.Definitions(
                assets=list(defs.assets or ()),
                asset_checks=list(defs.asset_checks or ()),
                jobs=list(defs.jobs or ()),
                resources={"control_plane": control_plane},
            ).resolve_job_def(job)
            run_config = {"ops": {op: {"config": config}}} if op else {}
            return definition.execute_in_process(run_config=run_config, instance=instance, raise_on_error=False)

        yield execute


def metadata(result, event_type="STEP_OUTPUT"):
    """Metadata of the one output, or of the failure, as plain values."""
    if event_type == "STEP_FAILURE":
        (event,) = [e for e in result.all_events if e.event_type_value == event_type]
        entries = event.step_failure_data.user_failure_data.metadata
    else:
        (event,) = [e for e in result.all_events if e.event_type_value == event_type]
        entries = event.step_output_data.metadata
    return {key: getattr(value, "records", value.value) for key, value in entries.items()}


def rows(records):
    return [] if records == "none" else [record.data for record in records]


def test_a_run_says_what_it_did_and_why(run, world):
    result = run(JOB_RECONCILE, {"trigger": "registry"}, OP_RECONCILE)
    assert result.success
    told = metadata(result)
    assert told["trigger"] == "registry"
    assert told["actions done"] == len(rows(told["actions"])) > 5
    create = next(row for row in rows(told["actions"]) if row["object"] == "shop.orders")
    assert (create["result"], create["action"], create["for"]) == ("done", "CreateTopic", "shop/orders")
    assert "does not exist" in create["why"]


def test_a_run_shows_what_it_touched_before_and_after(run, world):
    world.settle()
    world.registry.declare(channel(numPartitions=3))
    touched = {(row["kind"], row["object"]): row for row in rows(metadata(run(JOB_RECONCILE))["before and after"])}
    assert touched["topic", "shop.orders"] == {
        "kind": "topic",
        "object": "shop.orders",
        "before": "partitions 2, replicas 1, leaders 0, 0",
        "after": "partitions 3, replicas 1, leaders 0, 0, 0",
    }
    assert ("topic", "__strimzi_canary") not in touched


def test_a_run_observes_what_it_changed_and_nothing_else(run, world):
    world.settle()
    world.registry.declare(channel(numPartitions=5))
    result = run(JOB_RECONCILE)
    observed = [e.asset_key.to_user_string() for e in result.all_events if e.event_type_value == "ASSET_OBSERVATION"]
    assert "kafka/topics" in observed
    assert "workloads/canary" not in observed
    result = run(JOB_RECONCILE)
    world.settle()
    result = run(JOB_RECONCILE)
    assert not [e for e in result.all_events if e.event_type_value == "ASSET_OBSERVATION"]


def test_a_failed_action_makes_the_run_red_and_the_reason_is_on_it(run, world):
    world.kafka.failures["create_topic"] = Refused("Kafka", "INVALID_CONFIG: retention.ms")
    result = run(JOB_RECONCILE)
    assert not result.success
    told = metadata(result, "STEP_FAILURE")
    first = rows(told["actions"])[0]
    assert first["result"] == "failed"
    assert "INVALID_CONFIG" in first["problem"]
    assert first["what to do"]


def test_a_run_that_could_not_look_is_no_success(run, world):
    world.settle()
    world.kafka.failures["brokers"] = Unavailable("Kafka", "no answer within 5 s")
    result = run(JOB_RECONCILE)
    assert not result.success
    assert metadata(result, "STEP_FAILURE")["unreadable"] == "Kafka is unavailable: no answer within 5 s"


def test_two_reconciliations_at_once_do_the_work_once(control_plane, world):
    done = []

    def reconcile():
        with control_plane.exclusively():
            done.append(control_plane.reconcile())

    threads = [threading.Thread(target=reconcile) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(d.plan.actions) > 0 for d in done] == [True, False, False]
    assert all(d.succeeded for d in done)


def test_expanding_the_canary_topic_goes_step_by_step_and_shows_before_and_after(run, world, monkeypatch):
    from orchestration import jobs

    monkeypatch.setattr(jobs, "STEP_POLL_S", 0.0)
    world.settle()
    world.kafka.broker_list += [{"id": n, "rack": None, "fenced": False} for n in (1, 2)]
    real = world.kafka.topics

    def topics():  # each look finds the last move ended
        found = real()
        world.kafka.finish_reassignments()
        return found

    world.kafka.topics = topics
    result = run("expand_canary_topic")
    assert result.success
    told = metadata(result)
    assert [row["partition"] for row in rows(told["before"])] == [0]
    assert [row["leader"] for row in rows(told["after"])] == [0, 1, 2]
    assert {len(row["replicas"].split(", ")) for row in rows(told["after"])} == {3}
    assert {row["for"] for row in rows(told["steps"])} == {"canary"}


def test_expanding_with_preview_changes_nothing(run, world):
    world.settle()
    world.kafka.broker_list.append({"id": 1, "rack": None, "fenced": False})
    world.forget_writes()
    result = run("expand_canary_topic", {"preview": True}, "expand_canary_topic_op")
    assert {row["result"] for row in rows(metadata(result)["steps"])} == {"planned"}
    assert world.writes == []


@pytest.fixture
def moved(world):
    """Broker 0 was away, and its partitions are led by broker 1."""
    world.kafka.broker_list.append({"id": 1, "rack": None, "fenced": False})
    world.kafka.create_topic("a", {0: [0, 1], 1: [1, 0]}, {})
    world.kafka.create_topic("b", {0: [0, 1]}, {})
    world.kafka.fence(0)
    world.kafka.fence(0, fenced=False)
    for topic in ("a", "b"):
        world.kafka.partitions[topic][0]["isr"] = [0, 1]
        assert world.kafka.partitions[topic][0]["leader"] == 1
    world.forget_writes()
    return world


def test_preferred_leaders_are_elected_for_the_topics_that_were_named(run, moved):
    result = run("elect_preferred_leaders", {"topics": ["a"]}, "elect_preferred_leaders_op")
    assert result.success
    told = metadata(result)
    assert [(row["partition"], row["leader"]) for row in rows(told["before"])] == [(0, 1), (1, 1)]
    assert [(row["partition"], row["leader"]) for row in rows(told["after"])] == [(0, 0), (1, 1)]
    assert moved.kafka.writes == [("elect_leaders", "a")]


def test_preferred_leaders_are_elected_in_the_whole_cluster_when_no_topic_is_named(run, moved):
    run("elect_preferred_leaders")
    assert moved.kafka.writes == [("elect_leaders", "a"), ("elect_leaders", "b")]


def test_a_preview_of_elections_says_what_would_move_and_moves_nothing(run, moved):
    result = run("elect_preferred_leaders", {"preview": True}, "elect_preferred_leaders_op")
    assert [row["object"] for row in rows(metadata(result)["elections"])] == ["a", "b"]
    assert moved.kafka.writes == []


def test_an_election_for_a_topic_that_is_not_there_is_told(run, moved):
    result = run("elect_preferred_leaders", {"topics": ["nothing"]}, "elect_preferred_leaders_op")
    assert rows(metadata(result)["not now"])[0]["reason"] == "there is no topic nothing"


# ---------------------------------------------------------------------- assets and checks


def checks(result):
    return {e.check_name: e for e in result.get_asset_check_evaluations()}


def test_taking_stock_shows_all_assets_and_passes_their_checks_in_a_settled_world(run, world):
    world.settle()
    result = run("take_stock")
    assert result.success
    keys = {e.asset_key.to_user_string() for e in result.get_asset_materialization_events()}
    assert keys == {"registry/channels", "kafka/topics", "workloads/dispatchers", "workloads/canary"}
    assert {name: e.passed for name, e in checks(result).items()} == {
        "every_channel_is_ready": True,
        "every_broker_leads_one_canary_partition": True,
        "every_dispatcher_is_ready": True,
        "canary_is_ready": True,
    }


def test_checks_fail_where_something_is_wrong_and_say_what(run, world):
    world.settle()
    world.kafka.broker_list.append({"id": 1, "rack": None, "fenced": False})
    world.registry.declare({**channel("bad"), "spec": {"numPartitions": 0}})
    for deployment in world.workloads.deployments.values():
        deployment["status"]["readyReplicas"] = 0
    found = checks(run("take_stock"))
    assert {name: e.passed for name, e in found.items()} == dict.fromkeys(found, False)
    assert "[1]" in found["every_broker_leads_one_canary_partition"].description


def test_a_check_of_what_cannot_be_read_is_a_warning_and_not_a_pass(run, world):
    world.settle()
    world.kafka.failures["topics"] = Unavailable("Kafka", "down")
    found = checks(run("take_stock"))["every_broker_leads_one_canary_partition"]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "Kafka is unavailable: down" in found.description


def test_the_data_version_of_an_asset_changes_with_the_asset_only(run, world):
    def versions():
        events = run("take_stock").get_asset_materialization_events()
        return {e.asset_key.to_user_string(): e.materialization.tags["dagster/data_version"] for e in events}

    world.settle()
    first = versions()
    assert versions() == first
    world.registry.declare(channel("other"))
    world.settle()
    second = versions()
    assert second["registry/channels"] != first["registry/channels"]
    assert second["workloads/canary"] == first["workloads/canary"]
