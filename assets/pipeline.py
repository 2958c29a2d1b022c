"""The assets: samples, increments by the hour, and reports; each partition idempotent.

    workloads/dispatchers ┐
                          ├─ slo/samples ─ slo/increments ┬─ slo/report           now, every two minutes
    workloads/canary ─────┘      (hour)         (hour)    ├─ slo/daily_report     a day
                                                          └─ slo/monthly_report   a month

The hours that a report needs are brought up to date by the report itself when they changed since; materialising them
by hand, or in a backfill, is for repairing and for looking.
"""

# No `from __future__ import annotations`: Dagster looks at the annotation of `context` itself.
import time
import warnings
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq

from assets.computation import Computed, compute_report, latest_range, over_calendar
from assets.hour_store import HourResult, hours_between
from assets.presentation import report_metadata
from assets.report_checks import CHECKS_OF_REPORT, check_results, unknown_results
from assets.report_files import write_report
from assets.resources import ReportPlaces
from assets.slo.corrections import Correction
from assets.slo.durations import Duration
from assets.slo.errors import DamagedInput
from assets.slo.objectives import Objective
from assets.slo.page import Activity, render_page
from assets.slo.windows import Range
from assets.spark import session
from eventing.errors import SluiceError

GROUP = "slo"
SAMPLES = dg.AssetKey(["slo", "samples"])
INCREMENTS = dg.AssetKey(["slo", "increments"])
REPORT = dg.AssetKey(["slo", "report"])
DAILY = dg.AssetKey(["slo", "daily_report"])
MONTHLY = dg.AssetKey(["slo", "monthly_report"])
WORKLOADS = [dg.AssetKey(["workloads", "dispatchers"]), dg.AssetKey(["workloads", "canary"])]

SINCE = "2026-01-01"
HOURS = dg.HourlyPartitionsDefinition(start_date=f"{SINCE}-00:00", timezone="UTC")
DAYS = dg.DailyPartitionsDefinition(start_date=SINCE, timezone="UTC")
MONTHS = dg.MonthlyPartitionsDefinition(start_date=SINCE, timezone="UTC")
_PLATFORM_JOBS = "reconcile"
_MOST_ACTIVITIES = 500


# Both are in use for years and pinned by the lock file; their notices would fill every run's log.
warnings.filterwarnings("ignore", message=".*(backfill_policy|freshness_policy|FreshnessPolicy).*", category=Warning)


def now() -> datetime:
    """The wall clock; the one place of this location that reads it."""
    return datetime.now(UTC)


class ProgressLog:
    """Says every few seconds how far a long computation has come."""

    EVERY_S = 5.0

    def __init__(self, context: dg.AssetExecutionContext, total: int | None) -> None:
        self._context = context
        self._total = total
        self._done = 0
        self._said = time.monotonic()

    def __call__(self, result: HourResult) -> None:
        self._done += 1
        if time.monotonic() - self._said >= self.EVERY_S:
            self._said = time.monotonic()
            of = f" of {self._total}" if self._total else ""
            self._context.log.info("%d%s hours computed, now at %s", self._done, of, f"{result.hour:%Y-%m-%d %H:00}")


@dg.asset(
    key=SAMPLES,
    deps=WORKLOADS,
    partitions_def=HOURS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    group_name=GROUP,
    kinds={"parquet", "prometheus"},
    description="What dispatchers, receiver and canary exported in an hour, as the recorder scraped it.",
)
def samples(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    places = ReportPlaces.from_env()
    window = context.partition_time_window
    rows = files = size = 0
    for hour in hours_between(window.start, window.end):
        for path in _hour_files(places.samples, hour):
            try:
                rows += pq.read_metadata(path).num_rows
            except (OSError, ValueError) as exc:
                raise _failed(DamagedInput(f"{path}: not readable as Parquet ({exc})")) from exc
            files += 1
            size += path.stat().st_size
    return dg.MaterializeResult(
        metadata={
            "samples": rows,
            "files": files,
            "bytes": size,
            "folder": dg.MetadataValue.path(str(places.samples)),
        }
    )


@dg.asset(
    key=INCREMENTS,
    deps=[SAMPLES],
    partitions_def=HOURS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    group_name=GROUP,
    kinds={"pyspark", "parquet"},
    description="Increments of every counter by series and slot of five minutes; they add up to any longer range.",
)
def increments(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    places = ReportPlaces.from_env()
    window = context.partition_time_window
    hours = hours_between(window.start, window.end)
    began = time.monotonic()
    try:
        store = places.store(places.load_objectives())
        found = store.compute(session(), hours, ProgressLog(context, len(hours)))
    except SluiceError as exc:
        raise _failed(exc) from exc
    seconds = time.monotonic() - began
    counted = sum(result.samples for result in found)
    return dg.MaterializeResult(
        metadata={
            "samples": counted,
            "series": max((result.series for result in found), default=0),
            "slots": sum(result.slots for result in found),
            "hours": len(found),
            "samples per second": round(counted / seconds, 1),
            "folder": dg.MetadataValue.path(str(store.folder)),
        }
    )


@dg.multi_asset(
    name="latest_report",
    specs=[
        dg.AssetSpec(
            REPORT,
            deps=[INCREMENTS],
            group_name=GROUP,
            kinds={"pyspark"},
            skippable=True,
            description="What was promised and what was kept, in the declared windows up to now.",
            freshness_policy=dg.FreshnessPolicy.time_window(fail_window=timedelta(minutes=30)),
        )
    ],
    check_specs=CHECKS_OF_REPORT,
)
def latest_report(
    context: dg.AssetExecutionContext,
) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
    places = ReportPlaces.from_env()
    moment = now()
    try:
        objectives = places.load_objectives()
        corrections = places.load_corrections()
        store = places.store(objectives)
        hours = store.sampled_hours()
        if not hours:
            context.log.info(no_samples(places))
            yield from unknown_results(REPORT, no_samples(places))
            return
        asked = latest_range(moment, _first_sample(places.samples, hours[0]))
        computed = compute_report(
            session(input_rows=store.rows()),
            store,
            objectives,
            asked,
            corrections=corrections,
            progress=ProgressLog(context, None),
        )
    except SluiceError as exc:
        raise _failed(exc) from exc
    folder = places.reports / "latest"
    yield _materialize(
        context=context,
        key=REPORT,
        computed=computed,
        folder=folder,
        title="SLO report",
        moment=moment,
        corrections=corrections,
    )
    yield from check_results(REPORT, computed.result, newest_sample(store.samples, store.sampled_hours()), moment)


def _calendar_report(
    context: dg.AssetExecutionContext, key: dg.AssetKey, duration: Duration, folder: str, title: str
) -> Iterator[dg.MaterializeResult[None]]:
    places = ReportPlaces.from_env()
    window = context.partition_time_window
    try:
        declared: list[Objective] = places.load_objectives()
        objectives = over_calendar(declared, duration, "UTC")
        corrections = places.load_corrections()
        store = places.store(declared)
        computed = compute_report(
            session(input_rows=store.rows()),
            store,
            objectives,
            Range(window.start.astimezone(UTC), window.end.astimezone(UTC)),
            corrections=corrections,
            progress=ProgressLog(context, None),
        )
    except SluiceError as exc:
        raise _failed(exc) from exc
    if not computed.result.reports:
        context.log.info(no_samples(places))
        return
    target = places.reports / folder / context.partition_key
    yield _materialize(
        context=context,
        key=key,
        computed=computed,
        folder=target,
        title=f"{title} {context.partition_key}",
        moment=now(),
        corrections=corrections,
    )


@dg.multi_asset(
    name="daily_report",
    specs=[
        dg.AssetSpec(
            DAILY,
            deps=[INCREMENTS],
            group_name=GROUP,
            kinds={"pyspark"},
            skippable=True,
            description="The same promises, judged by one calendar day (UTC).",
        )
    ],
    partitions_def=DAYS,
)
def daily_report(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
    yield from _calendar_report(context, DAILY, Duration(1, "d"), "daily", "SLO report of")


@dg.multi_asset(
    name="monthly_report",
    specs=[
        dg.AssetSpec(
            MONTHLY,
            deps=[INCREMENTS],
            group_name=GROUP,
            kinds={"pyspark"},
            skippable=True,
            description="The same promises, judged by one calendar month (UTC), with the month before beside it.",
        )
    ],
    partitions_def=MONTHS,
)
def monthly_report(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
    yield from _calendar_report(context, MONTHLY, Duration(1, "M"), "monthly", "SLO report of")


def no_samples(places: ReportPlaces) -> str:
    """Why there is nothing to report yet."""
    return f"no samples yet in {places.samples}: the recorder writes the first ones seconds after its start"


def _materialize(
    *,
    context: dg.AssetExecutionContext,
    key: dg.AssetKey,
    computed: Computed,
    folder: Path,
    title: str,
    moment: datetime,
    corrections: Sequence[Correction],
) -> dg.MaterializeResult[None]:
    result = computed.result
    for warning in result.warnings:
        context.log.warning(warning)
    page = render_page(
        result.reports,
        title=title,
        computed_at=moment,
        corrections=corrections,
        activities=_activities(context.instance, min(report.window.start for report in result.reports)),
        warnings=result.warnings,
    )
    files = write_report(folder, result.reports, page)
    return dg.MaterializeResult(asset_key=key, metadata=report_metadata(result.reports, files))


def _activities(instance: dg.DagsterInstance, since: datetime) -> list[Activity]:
    """What the control plane's runs did to the platform: shown beside the times in which budget was lost."""
    records = instance.get_run_records(
        filters=dg.RunsFilter(job_name=_PLATFORM_JOBS, created_after=since), limit=_MOST_ACTIVITIES
    )
    found = []
    for record in records:
        run = record.dagster_run
        ops: dict[str, Any] = dict(run.run_config).get("ops", {})  # type: ignore[assignment]
        configs = [op.get("config", {}) for op in ops.values()]
        why = next((config["expected"] for config in configs if config.get("expected")), run.run_id[:8])
        found.append(Activity(at=record.create_timestamp.astimezone(UTC), what=run.job_name, why=str(why)))
    return found


def _hour_files(root: Path, hour: datetime) -> list[Path]:
    folder = root / f"date={hour:%Y-%m-%d}" / f"hour={hour:%H}"
    return sorted(path for path in folder.glob("*.parquet") if not path.name.startswith((".", "_")))


def _first_sample(root: Path, hour: datetime) -> datetime:
    """When the first sample was taken, by the statistics of the first hour's files."""
    return min((moment for path in _hour_files(root, hour) if (moment := _bounds(path)[0])), default=hour)


def newest_sample(root: Path, hours: Sequence[datetime]) -> datetime | None:
    """When the newest sample was taken."""
    if not hours:
        return None
    found = [moment for path in _hour_files(root, hours[-1]) if (moment := _bounds(path)[1])]
    return max(found, default=None)


def _bounds(path: Path) -> tuple[datetime | None, datetime | None]:
    try:
        metadata = pq.read_metadata(path)
    except (OSError, ValueError):
        return None, None  # merged away, or damaged; who reads the samples says so
    names = metadata.schema.names
    low: list[datetime] = []
    high: list[datetime] = []
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(names.index("timestamp")).statistics
        if statistics is not None and statistics.has_min_max:
            low.append(statistics.min)
            high.append(statistics.max)
    return min(low, default=None), max(high, default=None)


def _failed(exc: SluiceError) -> dg.Failure:
    """A failure that a person reads first: what is wrong, and no stack."""
    return dg.Failure(description=str(exc), allow_retries=False)


ASSETS = [samples, increments, latest_report, daily_report, monthly_report]
