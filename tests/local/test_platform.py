"""The platform's settings, checks and status, without starting it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import psutil
import pytest
import yaml

from eventing.errors import ConfigError
from orchestration.local import platform, standing
from orchestration.local.platform_process import LogFollower, check_machine
from orchestration.local.platform_state import INSTANCE, PlatformState, end_leftovers, platform_lock, read_state
from orchestration.local.pod_template import parse_deployment
from orchestration.local.settings import CHECKOUT, LocalSettings
from orchestration.local.workload_files import WorkloadFiles
from tests.contracts.test_workloads import eventually
from tests.local.controlled import alive


def settings(tmp_path, **environ):
    return LocalSettings.from_env({"SLUICE_HOME": str(tmp_path / "home"), **environ})


def test_defaults_are_the_documented_ports_and_folders():
    defaults = LocalSettings.from_env({})

    assert defaults.urls == {
        "dagster": "http://127.0.0.1:3000",
        "receiver": "http://127.0.0.1:8080",
        "subscriber": "http://127.0.0.1:8090",
        "canary": "http://127.0.0.1:8091",
    }
    assert defaults.bootstrap == "127.0.0.1:9092"
    assert defaults.home == CHECKOUT / ".sluice"
    assert defaults.registry == CHECKOUT / ".sluice" / "registry"


def test_every_wrong_setting_is_named_at_once():
    environ = {"SLUICE_DAGSTER_PORT": "x", "SLUICE_KAFKA_PORT": "0", "SLUICE_REGISTRY": "kubernetes"}
    with pytest.raises(ConfigError) as wrong:
        LocalSettings.from_env(environ)

    assert all(key in str(wrong.value) for key in environ)


def test_a_cluster_of_the_users_is_used_and_no_port_of_ours(tmp_path):
    external = settings(tmp_path, KAFKA_BOOTSTRAP_SERVERS="kafka-1:9092,kafka-2:9092", KAFKA_SECRET_DIR="/secret")

    assert external.bootstrap == "kafka-1:9092,kafka-2:9092"
    assert external.kafka_ports == []
    assert not [purpose for _, purpose, _ in external.required_ports() if "Kafka" in purpose]
    assert external.environ()["KAFKA_SECRET_DIR"] == "/secret"
    with pytest.raises(ConfigError, match="--brokers"):
        LocalSettings.from_env({"KAFKA_BOOTSTRAP_SERVERS": "kafka-1:9092"}, brokers=3)


def test_as_many_brokers_are_started_as_there_is_data_of(tmp_path):
    (tmp_path / "home" / "kafka").mkdir(parents=True)
    (tmp_path / "home" / "kafka" / "cluster.json").write_text('{"cluster_id": "x", "nodes": [{}, {}, {}]}')

    assert settings(tmp_path, SLUICE_KAFKA_PORT="9192").kafka_ports == [9192, 9193, 9194]


def test_taken_ports_are_all_told_with_what_they_are_for_and_how_to_move_them(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = [one.getsockname()[1], two.getsockname()[1]]
        busy = settings(tmp_path, SLUICE_RECEIVER_PORT=str(ports[0]), SLUICE_KAFKA_PORT=str(ports[1]))
        with pytest.raises(ConfigError) as problem:
            check_machine(busy)

    told = str(problem.value)
    assert f"port {ports[0]} for the receiver is taken" in told
    assert f"port {ports[1]} for Kafka broker 0 is taken" in told
    assert "SLUICE_RECEIVER_PORT" in told
    assert "SLUICE_KAFKA_PORT" in told
    assert "\n" not in told


def test_one_port_for_two_parts_is_told(tmp_path):
    with pytest.raises(ConfigError, match="the Dagster UI and by the receiver"):
        check_machine(settings(tmp_path, SLUICE_DAGSTER_PORT="23456", SLUICE_RECEIVER_PORT="23456"))


def test_every_standing_part_can_be_run_here(tmp_path):
    parts = [
        parse_deployment(m)
        for m in standing.standing_deployments(settings(tmp_path), {"orchestration": 1, "assets": 2})
    ]

    names = {part.name for part in parts}
    assert names >= {"receiver", "sample-subscriber", "recorder", "dagster-webserver", "dagster-daemon"}
    (receiver,) = [part for part in parts if part.name == "receiver"]
    assert receiver.labels["app.kubernetes.io/managed-by"] == "sluice"
    assert receiver.labels["app.kubernetes.io/component"] == "receiver"
    assert receiver.environment("r", {"http": 8080, "metrics": 1, "health": 2})["PORT"] == "8080"
    assert {p.labels["app.kubernetes.io/managed-by"] for p in parts if p.name != "receiver"} == {"sluice-up"}


def test_the_code_locations_are_those_of_the_workspace():
    declared = yaml.safe_load((CHECKOUT / "workspace.yaml").read_text())["load_from"]

    modules = {entry["python_module"]["location_name"]: entry["python_module"]["module_name"] for entry in declared}
    assert modules == standing.CODE_LOCATIONS
    written = yaml.safe_load(standing.dagster_workspace({"orchestration": 1, "assets": 2}))["load_from"]
    assert [(e["grpc_server"]["location_name"], e["grpc_server"]["port"]) for e in written] == [
        ("orchestration", 1),
        ("assets", 2),
    ]


def test_dagsters_settings_are_accepted_by_dagster(tmp_path):
    from dagster import DagsterInstance
    from dagster._core.run_coordinator import DefaultRunCoordinator

    (tmp_path / "dagster.yaml").write_text(standing.DAGSTER_YAML)
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        assert isinstance(instance.run_coordinator, DefaultRunCoordinator)
        assert not instance.telemetry_enabled
        assert instance.get_settings("sensors")["use_threads"] is True


# -- status -----------------------------------------------------------------------------------------------------------


def test_status_of_nothing_has_the_documented_shape(tmp_path):
    document = platform.status({"SLUICE_HOME": str(tmp_path / "home")})

    assert document["ready"] is False
    assert set(document["urls"]) == {"dagster", "receiver", "subscriber", "canary"}
    assert document["workloads"] == document["channels"] == []
    assert "not running" in platform.status_text(document)


@pytest.fixture
def running(tmp_path):
    """A platform whose process is this one, with one broker, one Deployment and a registry."""
    home = tmp_path / "home"
    state = PlatformState(
        instance="test",
        pid=os.getpid(),
        created=psutil.Process().create_time(),
        phase="ready",
        environ={"SLUICE_HOME": str(home), "SLUICE_DAGSTER_PORT": "3456"},
        brokers=[{"id": 0, "pid": 1, "restarts": 2, "logs": "/logs/server.log"}],
    )
    home.mkdir()
    state.write(home)
    registry = home / "registry"
    registry.mkdir()
    (registry / "orders.yaml").write_text((CHECKOUT / "examples" / "channels" / "orders.yaml").read_text())
    (registry / "broken.yaml").write_text("kind: [KafkaChannel\n")
    files = WorkloadFiles(home)
    with files.controlling() as alone:
        assert alone
        manifest = {"metadata": {"generation": 1}, "spec": {"replicas": 2}}
        files.write("deployments", ("sluice-system", "orders-dispatcher"), {"object": manifest})
        pods = [
            {"pid": 11, "restarts": 1, "log": "/logs/0.log"},
            {"pid": None, "restarts": 4, "log": "/logs/1.log"},
        ]
        condition = {"type": "Available", "status": "False", "message": "one ended with status 1: no topic"}
        status = {"readyReplicas": 1, "conditions": [condition]}
        files.write("status", ("sluice-system", "orders-dispatcher"), {"status": status, "pods": pods})
        yield state


def test_status_tells_workloads_with_restarts_logs_and_why_not(running, tmp_path):
    document = platform.status({"SLUICE_HOME": str(tmp_path / "home")})

    broker, dispatcher = document["workloads"]
    assert (broker["name"], broker["ready"], broker["restarts"]) == ("kafka-broker-0", 1, 2)
    told = {key: dispatcher[key] for key in ("name", "replicas", "ready", "restarts", "logs")}
    assert told == {
        "name": "orders-dispatcher",
        "replicas": 2,
        "ready": 1,
        "restarts": 5,
        "logs": "/logs/0.log",
    }
    assert "no topic" in dispatcher["reason"]
    assert document["ready"] is False
    assert document["urls"]["dagster"] == "http://127.0.0.1:3456", "as the platform runs, not as this shell says"
    json.dumps(document)


def test_status_tells_channels_and_documents_that_are_none(running, tmp_path):
    document = platform.status({"SLUICE_HOME": str(tmp_path / "home")})

    by_name = {channel["name"]: channel for channel in document["channels"]}
    assert by_name["orders"]["namespace"] == "default"
    assert by_name["orders"]["ready"] is False
    assert by_name["orders"]["subscribers"][0]["uri"] == "http://127.0.0.1:8090/orders"
    (broken,) = [c for c in document["channels"] if "broken.yaml" in c["reason"]]
    assert broken["ready"] is False
    text = platform.status_text(document)
    assert "broken.yaml" in text
    assert "orders-dispatcher" in text


def test_a_second_up_says_that_it_runs_already(running, tmp_path):
    said = []

    assert platform.up(say=said.append, show=said.append, environ={"SLUICE_HOME": str(tmp_path / "home")}) == 1
    assert "already running" in said[0]


def test_down_without_anything_running_is_success(tmp_path):
    said = []

    assert platform.down(say=said.append, environ={"SLUICE_HOME": str(tmp_path)}) == 0
    assert said == ["nothing is running"]


def test_the_table_says_where_everything_is_and_what_to_try(tmp_path):
    table = platform.table(settings(tmp_path, SLUICE_RECEIVER_PORT="23456"), ["channel default/x: no topic"])

    for words in ("Dagster UI", "receiver", "sample subscriber", "canary", "metrics", "logs", "registry folder"):
        assert words in table
    assert "curl -i http://127.0.0.1:23456/default/orders" in table
    assert "ce-specversion: 1.0" in table
    assert "channel default/x: no topic" in table


# -- whose process is it ----------------------------------------------------------------------------------------------


def test_a_pid_of_another_process_is_not_taken_for_the_platform(running):
    assert running.is_alive()
    running.created -= 60

    assert not running.is_alive()


def test_only_processes_of_that_instance_are_ended():
    def sleeper(instance):
        return subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, INSTANCE: instance}
        )

    ours, spared, other = sleeper("mine"), sleeper("mine"), sleeper("another")
    try:
        eventually(lambda: all(_environ(p).get(INSTANCE) for p in (ours, spared, other)))
        assert end_leftovers("mine", spare=[spared.pid]) == [ours.pid]
        assert not alive(ours.pid)
        assert alive(spared.pid)
        assert alive(other.pid)
        assert end_leftovers("nobody") == []
    finally:
        for process in (ours, spared, other):
            process.kill()
            process.wait()


def _environ(process):
    try:
        return psutil.Process(process.pid).environ()
    except psutil.Error:
        return {}


def test_a_damaged_state_is_no_state(tmp_path):
    (tmp_path / "platform.json").write_text("{")

    assert read_state(tmp_path) is None


def test_two_platforms_never_share_a_home(tmp_path):
    with platform_lock(tmp_path) as first, platform_lock(tmp_path) as second:
        assert (first, second) == (True, False)


def test_followed_logs_give_whole_lines_once_and_over_a_rotation(tmp_path):
    log = tmp_path / "log"
    log.write_text("before\n")
    follower = LogFollower(log)
    with log.open("a") as file:
        file.write("one\ntw")
    assert follower.new_lines() == ["one"]
    with log.open("a") as file:
        file.write("o\n")
    assert follower.new_lines() == ["two"]
    assert follower.new_lines() == []
    log.write_text("new\n")
    assert follower.new_lines() == ["new"]


def test_the_command_line_starts_without_heavy_libraries():
    program = "import sys, orchestration.cli; print([m for m in ('confluent_kafka', 'dagster') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert loaded.strip() == "[]"
