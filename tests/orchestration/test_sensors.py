"""Sensors ask for a run when there is something to do, soon, and not again and again."""

from __future__ import annotations

import json
import threading
import time

import dagster as dg
import pytest

from eventing.errors import Refused, Unavailable
from orchestration import sensors
from orchestration.definitions import defs
from orchestration.jobs import JOB_RECONCILE
from orchestration.observe import observe
from orchestration.planning.planner import plan
from orchestration.resources import ControlPlane
from orchestration.sensors import Asked, Memory, broker_sensor, drift_sensor, fingerprint, registry_sensor
from orchestration.settings import Settings
from tests.orchestration.worlds import World, channel


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Ticks that wait for nothing long; sensors of other tests have asked for nothing."""
    monkeypatch.setattr(sensors, "WATCH_S", 0.2)
    monkeypatch.setattr(sensors, "MEMBERSHIP_POLL_S", 0.02)
    monkeypatch.setattr(sensors, "RUN_POLL_S", 0.02)
    monkeypatch.setattr(sensors, "_asked", Asked())


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def world():
    return World(channel())


@pytest.fixture
def tick(instance, world, tmp_path):
    """Evaluates a sensor once; the cursor goes on from tick to tick."""
    settings = Settings.from_env({"SLUICE_HOME": str(tmp_path)})
    control_plane = ControlPlane(ports=world.ports, policy=world.policy, settings=settings)
    cursors = {}

    def evaluate(sensor):
        context = dg.build_sensor_context(
            instance=instance, cursor=cursors.get(sensor.name), resources={"control_plane": control_plane}
        )
        result = sensor(context)
        cursors[sensor.name] = result.cursor
        return result

    return evaluate


def test_a_declared_channel_starts_a_run_that_says_who_asked_and_why(tick):
    result = tick(registry_sensor)
    (request,) = result.run_requests
    (config,) = request.run_config["ops"].values()
    assert config["config"]["trigger"] == "registry"
    assert "CreateTopic" in config["config"]["expected"]
    assert request.tags["sluice/trigger"] == "registry"


def test_nothing_to_do_is_skipped_with_the_plan_in_a_sentence(tick, world):
    world.settle()
    result = tick(registry_sensor)
    assert result.run_requests == []
    assert result.skip_reason.skip_message == "Nothing to do."


def test_run_keys_do_not_swallow_a_b_a(tick, world):
    keys = []
    for partitions in (2, 3, 4):
        world.registry.declare(channel(numPartitions=partitions))
        (request,) = tick(registry_sensor).run_requests
        keys.append(request.run_key)
        world.settle()
        tick(registry_sensor)
    world.registry.remove("shop", "orders")
    (request,) = tick(registry_sensor).run_requests
    world.settle()
    world.registry.declare(channel(numPartitions=2))
    keys += [request.run_key, tick(registry_sensor).run_requests[0].run_key]
    assert len(set(keys)) == 5


def test_a_change_while_the_tick_waits_ends_it(tick, world, monkeypatch):
    monkeypatch.setattr(sensors, "WATCH_S", 20.0)
    world.settle()
    threading.Timer(0.3, lambda: world.registry.declare(channel("other"))).start()
    started = time.monotonic()
    result = tick(registry_sensor)
    assert len(result.run_requests) == 1
    assert time.monotonic() - started < 5


def test_the_same_kind_of_change_again_is_no_retry_once_the_first_was_achieved(tick, world, monkeypatch):
    world.settle()
    world.registry.declare(channel(numPartitions=3))
    assert tick(registry_sensor).run_requests
    world.settle()
    monkeypatch.setattr(sensors, "WATCH_S", 20.0)
    threading.Timer(0.3, lambda: world.registry.declare(channel(numPartitions=4))).start()
    assert tick(registry_sensor).run_requests, "a person who edits twice within ten seconds waits for nothing"


def test_what_failed_is_asked_for_again_later_and_later():
    waits = [Memory(asked="it", times=times, at=1000.0).retry_in("it", 1000.0) for times in (1, 2, 3, 4, 5, 6, 7, 999)]
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]
    assert Memory(asked="it", times=1, at=1000.0).retry_in("it", 1010.0) == 0
    assert Memory(asked="it", times=9, at=1000.0).retry_in("something else", 1000.0) == 0


def test_what_failed_is_not_asked_for_again_at_once_and_something_else_is(tick, world):
    world.kafka.failures["create_topic"] = Refused("Kafka", "no")
    for _ in range(2):  # the first run keeps the topic's name, which is progress
        assert tick(registry_sensor).run_requests
        world.reconcile()
    result = tick(registry_sensor)
    assert result.run_requests == []
    assert "tried again in 10 s" in result.skip_reason.skip_message
    world.registry.declare(channel("other"))
    assert tick(registry_sensor).run_requests


def test_a_run_that_has_not_begun_makes_another_one_needless(tick, instance):
    job = defs.resolve_job_def(JOB_RECONCILE)
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTING)
    result = tick(registry_sensor)
    assert result.run_requests == []
    assert result.skip_reason.skip_message.startswith("a run is on its way")
    instance.report_run_failed(run)
    assert tick(registry_sensor).run_requests


def test_a_run_that_never_begins_is_not_counted_on_for_ever(tick, instance, monkeypatch):
    instance.create_run_for_job(defs.resolve_job_def(JOB_RECONCILE), status=dg.DagsterRunStatus.STARTING)
    monkeypatch.setattr(sensors, "RUN_START_LIMIT_S", 0.0)
    assert tick(registry_sensor).run_requests


def test_a_run_that_lost_its_process_is_not_waited_for(tick, instance, monkeypatch):
    run = instance.create_run_for_job(defs.resolve_job_def(JOB_RECONCILE), status=dg.DagsterRunStatus.STARTING)
    instance.report_dagster_event(dg.DagsterEvent(event_type_value="PIPELINE_START", job_name=run.job_name), run.run_id)
    monkeypatch.setattr(sensors, "WATCH_S", 20.0)
    monkeypatch.setattr(sensors, "LOCK_LIMIT_S", -1.0)
    started = time.monotonic()
    assert tick(registry_sensor).run_requests
    assert time.monotonic() - started < 10


def test_two_sensors_that_see_the_same_start_one_run(tick, world):
    assert tick(registry_sensor).run_requests
    result = tick(drift_sensor)
    assert result.run_requests == []
    assert "the registry sensor asked for it already" in result.skip_reason.skip_message


def test_the_drift_sensor_sees_a_deployment_that_vanished(tick, world):
    world.settle()
    tick(drift_sensor)
    assert tick(drift_sensor).skip_reason.skip_message == "nothing changed"
    key = next(key for key in world.workloads.deployments if "orders" in key[1])
    world.workloads.delete_deployment(*key)
    (request,) = tick(drift_sensor).run_requests
    assert request.tags["sluice/trigger"] == "drift"


def test_the_broker_sensor_sees_a_broker_that_comes(tick, world):
    world.settle()
    tick(broker_sensor)
    assert tick(broker_sensor).skip_reason.skip_message == "nothing changed"
    world.kafka.broker_list.append({"id": 1, "rack": None, "fenced": False})
    (request,) = tick(broker_sensor).run_requests
    assert request.tags["sluice/trigger"] == "brokers"


def test_a_world_that_cannot_be_read_starts_no_run(tick, world):
    for port, method in [
        (world.kafka, "topics"),
        (world.kafka, "brokers"),
        (world.registry, "list_channels"),
        (world.workloads, "list_deployments"),
    ]:
        port.failures[method] = Unavailable("it", "is away")
    for sensor in (registry_sensor, broker_sensor, drift_sensor):
        assert tick(sensor).run_requests == []


@pytest.mark.parametrize("cursor", ["", "{", "[]", '{"other": 1}', "7", None])
def test_a_cursor_that_cannot_be_read_is_forgotten(cursor):
    assert Memory.from_cursor(cursor) == Memory()


def test_a_cursor_is_read_back_as_it_was_written():
    memory = Memory(seen="a", asked="b", times=3, at=1.5)
    assert Memory.from_cursor(memory.to_cursor()) == memory
    assert json.loads(memory.to_cursor())


def test_a_fingerprint_ignores_numbers_that_grow_by_themselves(world):
    world.settle()
    fingerprints = set()
    for lag in (500, 600):
        world.kafka.produce("shop.orders", 0, lag)
        world.kafka.produce("shop.orders", 1, lag)
        decided = plan(observe(world.ports, now=world.now).snapshot, world.policy, world.now)
        assert decided.actions
        fingerprints.add(fingerprint(decided))
    assert len(fingerprints) == 1
