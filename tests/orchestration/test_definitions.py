"""What Dagster sees of the control plane, and what loading it costs."""

from __future__ import annotations

import subprocess
import sys

import dagster as dg
import pytest

from orchestration.definitions import defs

repository = defs.get_repository_def()


def test_the_definitions_are_loadable():
    dg.Definitions.validate_loadable(defs)


def test_names_that_others_depend_on():
    """A snapshot: whoever changes one of these breaks links, alerts or the other code location."""
    assert sorted(sensor.name for sensor in repository.sensor_defs) == [
        "broker_sensor",
        "drift_sensor",
        "registry_sensor",
    ]
    assert sorted(schedule.name for schedule in repository.schedule_defs) == ["checkup", "full_reconciliation"]
    assert sorted(name for name in repository.job_names if not name.startswith("__")) == [
        "elect_preferred_leaders",
        "expand_canary_topic",
        "reconcile",
        "take_stock",
    ]
    graph = repository.asset_graph
    assert {key.to_user_string(): sorted(k.to_user_string() for k in graph.get(key).parent_keys) for key in KEYS} == {
        "registry/channels": [],
        "kafka/topics": ["registry/channels"],
        "workloads/dispatchers": ["kafka/topics", "registry/channels"],
        "workloads/canary": ["kafka/topics"],
    }
    assert sorted(f"{key.asset_key.to_user_string()}:{key.name}" for key in graph.asset_check_keys) == [
        "kafka/topics:every_broker_leads_one_canary_partition",
        "registry/channels:every_channel_is_ready",
        "workloads/canary:canary_is_ready",
        "workloads/dispatchers:every_dispatcher_is_ready",
    ]


KEYS = [
    dg.AssetKey(["registry", "channels"]),
    dg.AssetKey(["kafka", "topics"]),
    dg.AssetKey(["workloads", "dispatchers"]),
    dg.AssetKey(["workloads", "canary"]),
]


def test_everything_runs_without_somebody_switching_it_on():
    for sensor in repository.sensor_defs:
        assert sensor.default_status is dg.DefaultSensorStatus.RUNNING, sensor.name
        assert sensor.minimum_interval_seconds == 1, sensor.name
    for schedule in repository.schedule_defs:
        assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING, schedule.name


def test_runs_stay_in_one_process():
    for name in repository.job_names:
        if not name.startswith("__"):
            assert defs.resolve_job_def(name).executor_def is dg.in_process_executor, name


@pytest.mark.parametrize("library", ["confluent_kafka", "kafka", "kubernetes", "pyspark", "circus", "psutil"])
def test_loading_the_definitions_imports_no_client(loaded_modules, library):
    """Every run imports them anew, and a run should start in seconds."""
    assert library not in loaded_modules


@pytest.fixture(scope="module")
def loaded_modules():
    code = "import sys, orchestration.definitions; print(' '.join(sys.modules))"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_a_sensor_that_waits_stays_far_below_dagsters_limit():
    from orchestration import observe, sensors

    # Two observations (the lag is read after the topics), the wait for a change, and that for a run to end.
    observation = 2 * observe.CALL_LIMIT_S
    assert max(sensors.WATCH_S, observation) + sensors.WATCH_S / 2 + observation < 60
