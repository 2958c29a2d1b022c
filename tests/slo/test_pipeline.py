"""The Dagster side: what loads, when it runs, and what a run leaves behind."""

import json
import os
from datetime import UTC, datetime, timedelta

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets import schedules
from assets.definitions import defs
from assets.report_files import SCHEMA as REPORT_SCHEMA
from tests.slo.sample_tables import SCHEMA


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty platform home."""
    for name in ("SLUICE_SAMPLES", "SLUICE_REPORTS", "SLUICE_OBJECTIVES", "SLUICE_CORRECTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def instance():
    with dg.instance_for_test() as instance:
        yield instance


def record(home, start: datetime, minutes: int, bad_from: int | None = None) -> None:
    """What the recorder would have written about a canary that sends six probes a minute to each of two brokers."""
    by_hour: dict[datetime, list] = {}
    for minute in range(minutes + 1):
        moment = start + timedelta(minutes=minute)
        failed = 0 if bad_from is None else max(0, minute - bad_from)
        for broker in "01":
            labels = {"clientid": "c", "partition": broker, "brokerid": broker}
            share = failed if broker == "1" else 0
            rows = by_hour.setdefault(moment.replace(minute=0, second=0, microsecond=0), [])
            rows.append(("sluice_canary_probes_total", labels | {"result": "succeeded"}, moment, 6.0 * minute - share))
            rows.append(("sluice_canary_probes_total", labels | {"result": "failed"}, moment, float(share)))
    for hour, rows in by_hour.items():
        path = home / "samples" / f"date={hour:%Y-%m-%d}" / f"hour={hour:%H}" / "part-1.parquet"
        path.parent.mkdir(parents=True)
        metric, labels, moments, values = zip(*rows, strict=True)
        columns = [list(metric), [list(item.items()) for item in labels], list(moments), list(values)]
        pq.write_table(pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA), path)


def test_the_code_location_loads():
    dg.Definitions.validate_loadable(defs)


def test_assets_form_one_graph_from_workloads_to_reports():
    graph = defs.resolve_asset_graph()
    parents = {
        key.to_user_string(): sorted(parent.to_user_string() for parent in graph.get(key).parent_keys)
        for key in graph.materializable_asset_keys
    }

    assert parents == {
        "slo/samples": ["workloads/canary", "workloads/dispatchers"],
        "slo/increments": ["slo/samples"],
        "slo/report": ["slo/increments"],
        "slo/daily_report": ["slo/increments"],
        "slo/monthly_report": ["slo/increments"],
    }


def test_every_shipped_objective_has_a_check():
    names = {spec.name for spec in defs.resolve_asset_graph().asset_check_keys}

    assert {"met_canary_availability", "met_delivery_success", "coverage_sufficient", "samples_fresh"} <= names


def test_everything_runs_by_itself_and_in_one_process():
    assert {schedule.name: schedule.default_status for schedule in schedules.SCHEDULES} == dict.fromkeys(
        ("latest_report_schedule", "slo_hour_schedule", "slo_day_schedule", "slo_month_schedule"),
        dg.DefaultScheduleStatus.RUNNING,
    )
    for name in ("slo_report", "slo_hour", "slo_day", "slo_month"):
        assert defs.resolve_job_def(name).executor_def is dg.in_process_executor


def tick(instance):
    with dg.build_schedule_context(instance=instance) as context:
        return schedules.latest_report_schedule(context)


def test_without_samples_the_schedule_says_so_and_starts_nothing(home, instance):
    skipped = tick(instance)

    assert isinstance(skipped, dg.SkipReason)
    assert f"no samples yet in {home / 'samples'}" in skipped.skip_message


def test_the_first_report_comes_at_once_and_the_next_after_the_interval(home, instance):
    record(home, datetime.now(UTC) - timedelta(minutes=3), 2)
    assert isinstance(tick(instance), dg.RunRequest)

    written = home / "reports" / "latest" / "report.json"
    written.parent.mkdir(parents=True)
    written.write_text(json.dumps({"reports": [{"sli": None}]}))
    assert isinstance(tick(instance), dg.RunRequest), "a report without figures is no first report"

    written.write_text(json.dumps({"reports": [{"sli": 1}]}))
    assert isinstance(tick(instance), dg.SkipReason)
    os.utime(written, (0, 0))
    assert isinstance(tick(instance), dg.RunRequest)


def test_one_report_at_a_time(home, instance):
    record(home, datetime.now(UTC) - timedelta(minutes=3), 2)
    job = defs.resolve_job_def("slo_report")
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)

    assert run.run_id in tick(instance).skip_message


def run(instance, job, **options):
    return defs.resolve_job_def(job).execute_in_process(instance=instance, **options)


def test_a_run_without_samples_materializes_nothing_and_succeeds(home, instance):
    result = run(instance, "slo_report")

    assert result.success
    assert not result.asset_materializations_for_node("latest_report")
    assert not any(check.passed for check in result.get_asset_check_evaluations())


@pytest.mark.spark
def test_a_report_has_numbers_that_plot_a_table_a_picture_files_and_checks(home, instance, spark):
    record(home, datetime.now(UTC) - timedelta(hours=2), 118, bad_from=60)

    result = run(instance, "slo_report")

    (materialization,) = result.asset_materializations_for_node("latest_report")
    metadata = materialization.metadata
    assert metadata["sli canary-availability-by-broker"].value < metadata["sli canary-availability"].value < 1
    assert metadata["budget left canary-availability"].value < 0
    assert metadata["breached"].value == 2
    assert "data:image/svg+xml;base64," in metadata["report"].value
    assert len(metadata["report"].value) < 30_000
    folder = home / "reports" / "latest"
    assert metadata["page"].value == str(folder / "report.html")
    names = [report["objective"] for report in json.loads((folder / "report.json").read_text())["reports"]]
    assert names.count("canary-availability-by-broker") == 2
    assert pq.read_table(folder / "report.parquet").schema.equals(REPORT_SCHEMA)
    assert (folder / "report.csv").read_text().count("\n") == len(names) + 1
    page = (folder / "report.html").read_text()
    assert "Availability of each broker" in page
    assert "<script" not in page
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert not checks["met_canary_availability"].passed
    assert checks["met_canary_availability"].severity is dg.AssetCheckSeverity.ERROR
    assert checks["met_delivery_success"].severity is dg.AssetCheckSeverity.WARN  # unknown is not broken
    assert not checks["met_delivery_success"].passed
    assert checks["good_within_valid"].passed
    assert checks["samples_fresh"].passed


@pytest.mark.spark
def test_hours_and_days_are_partitions_that_can_be_made_again(home, instance, spark):
    start = datetime(2026, 10, 31, 23, tzinfo=UTC)
    record(home, start, 180, bad_from=150)

    hour = run(instance, "slo_hour", partition_key="2026-11-01-00:00")
    assert hour.asset_materializations_for_node("slo__samples")[0].metadata["samples"].value == 240
    assert hour.asset_materializations_for_node("slo__increments")[0].metadata["slots"].value == 4 * 13

    contents = []
    for _ in range(2):
        assert run(instance, "slo_day", partition_key="2026-11-01").success
        folder = home / "reports" / "daily" / "2026-11-01"
        contents.append([(folder / f"report.{kind}").read_bytes() for kind in ("json", "csv", "parquet")])
    assert contents[0] == contents[1]
    reports = json.loads(contents[0][0])["reports"]
    (canary,) = [report for report in reports if report["objective"] == "canary-availability"]
    assert (canary["valid"], canary["bad"]) == (120 * 12, 30)
    assert canary["window"] == {
        "from": "2026-11-01T00:00:00Z",
        "to": "2026-11-02T00:00:00Z",
        "kind": "calendar",
        "time_zone": "UTC",
    }


@pytest.mark.spark
def test_damaged_samples_fail_the_run_with_the_files_name(home, instance, spark):
    record(home, datetime.now(UTC) - timedelta(minutes=30), 20)
    (broken,) = list((home / "samples").rglob("*.parquet"))[:1]
    broken.write_bytes(b"nothing")

    result = run(instance, "slo_report", raise_on_error=False)

    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert "part-1.parquet: not readable as Parquet" in failure.step_failure_data.user_failure_data.description
