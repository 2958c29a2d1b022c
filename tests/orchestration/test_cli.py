"""`sluice` as scripts and people use it: what is on which stream, and with which exit code."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from eventing.errors import Refused, Unavailable
from orchestration import cli
from orchestration.planning import Plan
from orchestration.settings import Settings
from tests.orchestration.worlds import World, channel

SNAPSHOT = {
    "observed_at": "2026-11-20T03:00:00Z",
    "brokers": [{"id": 0, "rack": None, "fenced": False, "last_seen": "2026-11-20T03:00:00Z"}],
    "topics": {},
    "channels": [channel(), {**channel("bad"), "spec": {"numPartitions": 0}}],
    "deployments": [],
    "services": [],
    "lag": {},
}


@pytest.fixture
def sluice():
    """Calls the command line in this process; stdout and stderr apart."""
    runner = CliRunner()
    return lambda *arguments, **more: runner.invoke(cli.main, list(arguments), **more)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(SNAPSHOT))
    return str(path)


def test_a_plan_from_a_file_is_the_plan_document(sluice, file):
    result = sluice("plan", "--snapshot", file, "--output", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert list(document) == ["actions", "rejected", "waiting", "summary"]
    assert Plan.from_document(document).to_document() == document
    assert {action["cause"] for action in document["actions"]} == {"canary", "shop/orders", "shop/bad"}
    assert [entry["object"] for entry in document["rejected"]] == ["shop/bad"]


def test_a_plan_is_readable_by_people(sluice, file):
    result = sluice("plan", "--snapshot", file)
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["ACTION", "OBJECT", "FOR", "WHY"]
    assert any(line.startswith("CreateTopic") and "shop.orders" in line for line in lines)
    assert any(line.split() == ["REJECTED", "REASON"] for line in lines)
    assert lines[-1].endswith(".")


def test_a_plan_comes_from_standard_input_too(sluice, file):
    from_stdin = sluice("plan", "--snapshot", "-", "--output", "json", input=Path(file).read_text())
    assert from_stdin.stdout == sluice("plan", "--snapshot", file, "--output", "json").stdout


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "line 1, column 1: is no valid JSON", id="empty"),
        pytest.param(b'{"observed_at": ', "line 1, column 17: is no valid JSON", id="cut off"),
        pytest.param(b"\xff\xfe", "byte 0 is not UTF-8 text", id="no text"),
        pytest.param(b"[1]", "snapshot: must be an object", id="a list"),
        pytest.param(b"{}", "observed_at: is missing", id="no time"),
        pytest.param(b'{"observed_at": "yesterday"}', "observed_at: must be an RFC 3339 time", id="no zone"),
        pytest.param(b'{"observed_at": NaN}', "NaN is not a JSON number", id="NaN"),
        pytest.param(b"[" * 100_000, "is no valid JSON", id="too deep"),
        pytest.param(
            b'{"observed_at": "2026-11-20T03:00:00Z", "topics": {"a": {"partitions": [{"id": -1}]}}}',
            "topics['a'].partitions[0].id: must be at least 0",
            id="a negative id",
        ),
        pytest.param(b'{"observed_at": "2026-11-20T03:00:00Z", "channels": [1]}', "channels[0]", id="a number"),
    ],
)
def test_a_damaged_snapshot_is_one_line_with_the_place_and_nothing_on_stdout(sluice, tmp_path, content, said):
    path = tmp_path / "damaged.json"
    path.write_bytes(content)
    result = sluice("plan", "--snapshot", str(path), "--output", "json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"sluice: {path}: ")
    assert said in result.stderr


def test_a_file_that_is_not_there_is_named(sluice):
    result = sluice("plan", "--snapshot", "/nowhere/at/all.json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "sluice: /nowhere/at/all.json: No such file or directory\n"


def test_a_byte_order_mark_is_no_damage(sluice, tmp_path):
    path = tmp_path / "snapshot.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(SNAPSHOT).encode())
    assert sluice("plan", "--snapshot", str(path)).exit_code == 0


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["plan", "--nonsense"], ["plan", "--output", "xml"], ["up", "extra"]]
)
def test_wrong_use_is_exit_code_2(sluice, arguments):
    result = sluice(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize("command", ["snapshot", "plan", "reconcile"])
def test_wrong_configuration_is_exit_code_78_and_names_every_key(sluice, command, monkeypatch):
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "nonsense")
    monkeypatch.setenv("SLUICE_CANARY_PORT", "nonsense")
    result = sluice(command)
    assert (result.exit_code, result.stdout) == (78, "")
    assert "KAFKA_BOOTSTRAP_SERVERS" in result.stderr
    assert "SLUICE_CANARY_PORT" in result.stderr


def test_a_plan_from_a_file_needs_no_configuration(sluice, file, monkeypatch):
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "nonsense")
    monkeypatch.setenv("SLUICE_HOME", "/nowhere")
    assert sluice("plan", "--snapshot", file).exit_code == 0


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["slo", "--help"]])
def test_help_is_on_stdout(sluice, arguments):
    result = sluice(*arguments)
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def test_planning_from_a_file_is_quick_and_imports_no_client(file):
    code = (
        "import sys; from click.testing import CliRunner; from orchestration.cli import main;"
        f"r = CliRunner().invoke(main, ['plan', '--snapshot', {file!r}]); assert r.exit_code == 0, r.output;"
        "heavy = {'dagster', 'confluent_kafka', 'kafka', 'kubernetes', 'yaml', 'psutil', 'pyspark', 'circus'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
    assert time.monotonic() - started < 10


# ---------------------------------------------------------------------- against a world of fakes


@pytest.fixture
def world(monkeypatch, tmp_path):
    world = World(channel())
    settings = Settings.from_env({"SLUICE_HOME": str(tmp_path)})
    monkeypatch.setattr(cli, "_live", lambda: (world.ports, world.policy, settings))
    return world


def test_a_snapshot_can_be_planned_from_again(sluice, world, tmp_path):
    path = tmp_path / "snapshot.json"
    path.write_text(sluice("snapshot").stdout)
    result = sluice("plan", "--snapshot", str(path), "--output", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["actions"]


def test_planning_changes_nothing(sluice, world):
    assert sluice("plan").exit_code == 0
    assert world.writes == []


def test_reconcile_says_what_it_did(sluice, world):
    result = sluice("reconcile")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0].split() == ["RESULT", "ACTION", "OBJECT", "FOR", "WHY"]
    again = json.loads(sluice("reconcile", "--output", "json").stdout)
    assert again["actions"] == []


def test_a_failed_action_is_exit_code_1_and_on_stdout_with_what_to_do(sluice, world):
    world.kafka.failures["create_topic"] = Refused("Kafka", "INVALID_CONFIG")
    result = sluice("reconcile", "--output", "json")
    assert result.exit_code == 1
    failed = [action for action in json.loads(result.stdout)["actions"] if action["result"] == "failed"]
    assert "INVALID_CONFIG" in failed[0]["error"]
    assert failed[0]["advice"]


def test_what_cannot_be_read_is_told_on_stderr_and_null_on_stdout(sluice, world):
    world.kafka.failures["topics"] = Unavailable("Kafka", "down")
    result = sluice("snapshot")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["topics"] is None
    assert "Kafka is unavailable: down" in result.stderr


def test_a_world_of_which_nothing_can_be_read_is_a_failure(sluice, world):
    for port, method in [
        (world.kafka, "topics"),
        (world.kafka, "brokers"),
        (world.registry, "list_channels"),
        (world.workloads, "list_deployments"),
    ]:
        port.failures[method] = Unavailable("it", "is away")
    assert sluice("snapshot").exit_code == 1
