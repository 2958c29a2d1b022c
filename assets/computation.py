"""Reports from hourly aggregates: what the assets do, without Dagster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from assets.hour_store import HourResult, HourStore
from assets.slo.corrections import Correction
from assets.slo.durations import Duration
from assets.slo.instants import EPOCH
from assets.slo.objectives import SLOT, Objective
from assets.slo.report import ReportResult, plan_ranges, report_over_increments
from assets.slo.windows import CalendarWindow, Range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Computed:
    """A report and what it was computed from."""

    result: ReportResult
    hours: Sequence[HourResult]
    """The hours that had to be recomputed."""


def compute_report(
    spark: SparkSession,
    store: HourStore,
    objectives: Sequence[Objective],
    asked: Range,
    *,
    corrections: Sequence[Correction] = (),
    progress: Callable[[HourResult], None] | None = None,
) -> Computed:
    """Bring the hours up to date that changed, then report over them.

    Bounds between two slots are taken to the slot's end: corrections that begin or end inside a slot, and windows of
    time zones with odd offsets. `sluice slo report` over the samples is exact to the millisecond.
    """
    hours = store.compute(spark, store.stale_hours(), progress)
    plan = plan_ranges(objectives, asked, corrections, is_detailed=True)
    found = store.increments(spark, plan.starts, plan.ends)
    if found is None:
        return Computed(ReportResult([]), hours)
    return Computed(report_over_increments(*found, plan), hours)


def latest_range(now: datetime, first_sample: datetime) -> Range:
    """Up to the end of the last complete slot; of the very first slot, up to its end: a first report comes soon."""
    end = EPOCH + (now - EPOCH) // SLOT * SLOT
    if first_sample >= end:
        end += SLOT
    return Range(end - SLOT, end)


def over_calendar(objectives: Sequence[Objective], duration: Duration, time_zone: str) -> list[Objective]:
    """The same promises, judged by calendar days or months."""
    window = CalendarWindow(duration, datetime(2020, 1, 1), time_zone)  # noqa: DTZ001 - local time of `time_zone`
    return [replace(objective, window=window) for objective in objectives]
