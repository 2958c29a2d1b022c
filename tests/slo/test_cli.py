"""The command line: JSON on stdout and nothing else, exit codes that say whose turn it is."""

import json
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner

from assets.cli import slo as group
from tests.slo.sample_tables import SampleTable
from tests.slo.slo_documents import slo

RANGE = ["--from", "2026-11-01T00:00:00Z", "--to", "2026-11-01T01:00:00Z"]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A folder with samples, objectives and corrections."""
    root = tmp_path_factory.mktemp("cli")
    table = SampleTable(root / "samples")
    table.add("requests_total", {"code": "200"}, {minute: 99.0 * minute for minute in range(61)})
    table.add("requests_total", {"code": "500"}, {minute: 1.0 * minute for minute in range(61)})
    table.add("broken_total", {"pod": "a"}, {1: 1}).add("broken_total", {"pod": "a"}, {1: 2})
    for bound, count in (("0.1", 1), ("+Inf", 2)):
        table.add("latency_bucket", {"le": bound}, {0: 0, 60: count})
    table.write()
    (root / "objectives").mkdir()
    (root / "objectives" / "a.yaml").write_text(yaml.safe_dump(slo(window={"duration": "1h", "isRolling": True})))
    return root


def command(*arguments):
    """As a script would call it."""
    done = subprocess.run(
        [sys.executable, "-m", "assets.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done


def in_process(*arguments):
    """For what fails before Spark is needed."""
    result = CliRunner().invoke(group, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


@pytest.mark.spark
def test_report(places):
    done = command(
        "report", "--samples", places / "samples", "--objectives", places / "objectives", *RANGE, "--output", "json"
    )

    assert (done.returncode, done.stderr) == (0, "")
    (report,) = json.loads(done.stdout)["reports"]
    assert (report["objective"], report["bad"], report["sli"], report["state"]) == (
        "availability",
        60,
        0.99,
        "breached",
    )


@pytest.mark.spark
def test_increase(places):
    done = command(
        "increase", "--samples", places / "samples", "--metric", "requests_total", *RANGE, "--output", "json"
    )

    assert done.returncode == 0
    assert json.loads(done.stdout) == [
        {"labels": {"code": "200"}, "value": 5940},
        {"labels": {"code": "500"}, "value": 60},
    ]


@pytest.mark.spark
def test_numbers_that_json_lacks_are_text(places):
    done = command(
        "quantile", "--samples", places / "samples", "--metric", "latency", "--q", "1.5", *RANGE, "--output", "json"
    )

    assert json.loads(done.stdout) == [{"labels": {}, "value": "+Inf"}]


@pytest.mark.spark
def test_conflicting_samples_exit_with_1_and_the_series_on_stderr(places):
    done = command("increase", "--samples", places / "samples", "--metric", "broken_total", *RANGE)

    assert (done.returncode, done.stdout) == (1, "")
    assert 'broken_total{pod="a"}' in done.stderr


def test_damaged_samples_exit_with_1_and_the_file_on_stderr(places, tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"nothing")

    result = in_process("increase", "--samples", tmp_path, "--metric", "a", *RANGE, "--output", "json")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "bad.parquet: not readable as Parquet" in result.stderr


def test_rules(places):
    result = in_process("rules", "--objectives", places / "objectives")
    as_json = in_process("rules", "--objectives", places / "objectives", "--output", "json")

    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout) == json.loads(as_json.stdout)


@pytest.mark.parametrize("subcommand", ["rules", "report"])
def test_wrong_objectives_exit_with_78_and_file_and_field_on_stderr(places, tmp_path, subcommand):
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(slo(total="sum(requests_total)")))
    more = [] if subcommand == "rules" else ["--samples", places / "samples", *RANGE]

    result = in_process(subcommand, "--objectives", tmp_path, *more)

    assert (result.exit_code, result.stdout) == (78, "")
    assert "wrong.yaml: spec.indicator.spec.ratioMetric.total.metricSource.spec.query" in result.stderr


def test_an_alert_that_cannot_fire_exits_with_78_and_the_objectives_name(tmp_path):
    (tmp_path / "weak.yaml").write_text(yaml.safe_dump(slo("weak", target="0.9")))

    result = in_process("rules", "--objectives", tmp_path)

    assert (result.exit_code, result.stdout) == (78, "")
    assert "'weak'" in result.stderr


def test_objectives_that_are_no_yaml_exit_with_1_and_the_file_on_stderr(tmp_path):
    (tmp_path / "half.yaml").write_text("kind: [")

    result = in_process("rules", "--objectives", tmp_path)

    assert (result.exit_code, result.stdout) == (1, "")
    assert "half.yaml" in result.stderr


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(["--from", "2026-11-01T00:00:00"], id="a time without a zone"),
        pytest.param(["--from", "yesterday"], id="no time"),
        pytest.param(["--from", "2026-02-30T00:00:00Z"], id="no such day"),
        pytest.param(["--to", "2026-11-01T00:00:00Z"], id="an empty range"),
        pytest.param(["--mode", "guess"], id="an unknown mode"),
        pytest.param(["--samples", "/nowhere"], id="no such folder"),
        pytest.param(["--colour"], id="an unknown option"),
    ],
)
def test_wrong_use_exits_with_2(places, changes):
    result = in_process("increase", "--samples", places / "samples", "--metric", "a", *RANGE, *changes)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr
