"""When reports are made. Each run is one process: a Spark for each step would cost more than the step."""

import json
import os

import dagster as dg

from assets.pipeline import DAILY, INCREMENTS, MONTHLY, REPORT, SAMPLES, no_samples, now
from assets.resources import ReportPlaces

INTERVAL_S = 600
"""`SLUICE_REPORT_INTERVAL_SECONDS`: a report costs some 20 s of a processor, most of it for Spark to start."""

latest_job = dg.define_asset_job(
    "slo_report",
    selection=dg.AssetSelection.assets(REPORT),
    executor_def=dg.in_process_executor,
    description="The declared windows up to now.",
)
hourly_job = dg.define_asset_job(
    "slo_hour",
    selection=dg.AssetSelection.assets(SAMPLES, INCREMENTS),
    executor_def=dg.in_process_executor,
    description="An hour of samples, reduced to increments.",
)
daily_job = dg.define_asset_job(
    "slo_day", selection=dg.AssetSelection.assets(DAILY), executor_def=dg.in_process_executor
)
monthly_job = dg.define_asset_job(
    "slo_month", selection=dg.AssetSelection.assets(MONTHLY), executor_def=dg.in_process_executor
)
JOBS = [latest_job, hourly_job, daily_job, monthly_job]

_IN_PROGRESS = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]


@dg.schedule(
    job=latest_job,
    cron_schedule="*/2 * * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="A report over everything up to now: soon after the first samples, then every ten minutes.",
)
def latest_report_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    places = ReportPlaces.from_env()
    if not any(places.samples.glob("date=*/hour=*/*.parquet")):
        return dg.SkipReason(no_samples(places))
    running = context.instance.get_runs(dg.RunsFilter(job_name=latest_job.name, statuses=_IN_PROGRESS), limit=1)
    if running:
        return dg.SkipReason(f"run {running[0].run_id} is still computing the last one")
    age = _report_age_s(places)
    interval = float(os.environ.get("SLUICE_REPORT_INTERVAL_SECONDS") or INTERVAL_S)
    if age is not None and age < interval:
        return dg.SkipReason(f"the last report is {age:.0f} s old; the next one is due at {interval:.0f} s")
    return dg.RunRequest()


def _report_age_s(places: ReportPlaces) -> float | None:
    """Seconds since the last report with figures was written; None where there is none yet."""
    file = places.reports / "latest" / "report.json"
    try:
        written = file.stat().st_mtime
        reports = json.loads(file.read_text())["reports"]
    except (OSError, ValueError, KeyError):
        return None
    if all(report["sli"] is None for report in reports):
        return None  # made before anything had happened: not what a newcomer is waiting for
    return now().timestamp() - written


# Some minutes after the hour, so that the recorder has merged its files and late scrapes are in.
hourly_schedule = dg.build_schedule_from_partitioned_job(
    hourly_job, minute_of_hour=7, default_status=dg.DefaultScheduleStatus.RUNNING
)
daily_schedule = dg.build_schedule_from_partitioned_job(
    daily_job, hour_of_day=0, minute_of_hour=15, default_status=dg.DefaultScheduleStatus.RUNNING
)
monthly_schedule = dg.build_schedule_from_partitioned_job(
    monthly_job, day_of_month=1, hour_of_day=0, minute_of_hour=30, default_status=dg.DefaultScheduleStatus.RUNNING
)
SCHEDULES = [latest_report_schedule, hourly_schedule, daily_schedule, monthly_schedule]
