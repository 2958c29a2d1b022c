"""From increments of series to events of objectives, and to their sums over ranges. DataFrame → DataFrame.

`events` is the table a report needs and all it needs: per objective, group and slot what was good, bad and in total,
how often it was scraped, and how often counters fell. It is small, adds up, and is what is kept by the hour.

Groups are arrays of label values in the order of the objective's group-by annotation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from assets.slo.increments import event_count
from assets.slo.objectives import Objective
from assets.slo.selectors import Matcher, Operator, Selector

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_MILLISECOND = timedelta(milliseconds=1)

WHOLE = "window"
CORRECTED = "corrected"
PREVIOUS = "previous"
RANGE_SCHEMA = (
    "objective int, window int, kind string, start_ms bigint, end_ms bigint, born_after_ms bigint, born_until_ms bigint"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRange:
    """One range that sums are wanted for.

    `kind` is `window`, a burn window's name, `corrected` or `previous`; several rows of one kind add up. Births count
    when they lie in (born_after, born_until], the whole that a corrected piece belongs to.
    """

    objective: int
    window: int
    kind: str
    start_ms: int
    end_ms: int
    born_after_ms: int
    born_until_ms: int


def matches(selector: Selector) -> Column:
    """Whether a row with `metric` and `labels` is one of the selector's series."""
    condition = F.lit(True)
    for matcher in selector.matchers:
        condition = condition & _matcher(matcher)
    return condition


def _matcher(matcher: Matcher) -> Column:
    value = F.col("metric") if matcher.label == "__name__" else label(matcher.label)
    bound = matcher.bound
    if bound is not None:
        equal = F.coalesce(value.try_cast("double") == F.lit(bound), F.lit(False))
    elif matcher.operator in (Operator.EQUAL, Operator.NOT_EQUAL):
        equal = value == F.lit(matcher.value)
    else:
        equal = F.rlike(value, F.lit(rf"\A(?s:{matcher.value})\z"))
    return equal if matcher.operator in (Operator.EQUAL, Operator.MATCHES) else ~equal


def label(name: str) -> Column:
    """A label's value; an absent one is empty."""
    return F.coalesce(F.try_element_at(F.col("labels"), F.lit(name)), F.lit(""))


def roles_of(series: DataFrame, objectives: Sequence[Objective]) -> DataFrame:
    """What each series means to which objective: `series_id`, `objective`, `role`, `group`, `counts_resets`.

    A series may be good and total at once; its resets count once.
    """
    entries = []
    for index, objective in enumerate(objectives):
        group = F.array(*[label(name) for name in objective.group_by]).cast("array<string>")
        for role, selector in objective.indicator.selectors():
            entry = F.struct(F.lit(index).alias("objective"), F.lit(role).alias("role"), group.alias("group"))
            entries.append(F.when(matches(selector), entry))
    found = F.filter(F.array(*entries), lambda entry: entry.isNotNull())
    rows = series.select("series_id", F.explode(found).alias("entry")).select("series_id", "entry.*")
    first = F.min("role").over(Window.partitionBy("series_id", "objective"))
    return rows.withColumn("counts_resets", F.col("role") == first)


def events_of(increments: DataFrame, roles: DataFrame) -> DataFrame:
    """Events by `objective`, `group`, `slot_ms` and `created_ms` (null except for rows that hold births).

    `good`, `bad`, `total` and their `…_birth`; `scrapes` of the total (the most of any of its series: they are scraped
    together), `spacing_ms` between them, `resets` of all series.
    """
    is_total = F.col("role") == "total"
    columns = []
    for role in ("good", "bad", "total"):
        in_role = F.col("role") == role
        columns.append(F.sum(F.when(in_role, F.col("increase")).otherwise(0.0)).alias(role))
        columns.append(
            F.sum(F.when(in_role & F.col("created_ms").isNotNull(), F.col("birth")).otherwise(0.0)).alias(
                f"{role}_birth"
            )
        )
    return (
        increments.join(F.broadcast(roles), "series_id")
        .groupBy("objective", "group", "slot_ms", "created_ms")
        .agg(
            *columns,
            F.max(F.when(is_total, F.col("samples")).otherwise(0)).alias("scrapes"),
            F.median(F.when(is_total, F.col("spacing_ms"))).alias("spacing_ms"),
            F.sum(F.when(F.col("counts_resets"), F.col("resets")).otherwise(0)).alias("resets"),
        )
    )


def ranges_frame(spark: SparkSession, ranges: Sequence[AskedRange]) -> DataFrame:
    """The asked ranges as a small table to broadcast."""
    rows = [
        (item.objective, item.window, item.kind, item.start_ms, item.end_ms, item.born_after_ms, item.born_until_ms)
        for item in ranges
    ]
    return spark.createDataFrame(rows, RANGE_SCHEMA)


def _in_ranges(events: DataFrame, ranges: DataFrame) -> DataFrame:
    inside = (
        (events["objective"] == ranges["objective"])
        & (events["slot_ms"] > ranges["start_ms"])
        & (events["slot_ms"] <= ranges["end_ms"])
    )
    return events.join(F.broadcast(ranges), inside).drop(ranges["objective"])


def units_in(events: DataFrame, ranges: DataFrame, objectives: Sequence[Objective]) -> DataFrame:
    """Good and valid of each unit (slot, or finer where a timeslice cuts slots) in each range, clamped.

    Columns: `objective`, `window`, `kind`, `group`, `unit_ms`, `good`, `valid`, `clamped` (1 where
    good exceeded valid).
    """

    def counted(role: str) -> Column:
        is_born_inside = (F.col("created_ms") > F.col("born_after_ms")) & (
            F.col("created_ms") <= F.col("born_until_ms")
        )
        return F.sum(F.col(role) + F.when(is_born_inside, F.col(f"{role}_birth")).otherwise(0.0)).alias(role)

    unit = _by_objective([objective.unit // _MILLISECOND for objective in objectives])
    has_good = _by_objective([objective.indicator.good is not None for objective in objectives])
    summed = (
        _in_ranges(events, ranges)
        .withColumn("unit_ms", F.least(_round_up(F.col("slot_ms"), unit), F.col("born_until_ms")))
        .groupBy("objective", "window", "kind", "group", "unit_ms")
        .agg(counted("good"), counted("bad"), counted("total"))
    )
    claimed = F.when(has_good, F.col("good")).otherwise(F.col("total") - F.col("bad"))
    return summed.select(
        "objective",
        "window",
        "kind",
        "group",
        "unit_ms",
        F.greatest(F.lit(0.0), F.least(claimed, F.col("total"))).alias("good"),
        F.col("total").alias("valid"),
        ((claimed > F.col("total")) | (claimed < 0)).cast("int").alias("clamped"),
    )


def slices_in(units: DataFrame, objectives: Sequence[Objective]) -> DataFrame:
    """Units gathered into timeslices (`slice_ms`); for objectives without them, units stay as they are."""
    widths = [(objective.time_slice or objective.unit) // _MILLISECOND for objective in objectives]
    return (
        units.withColumn("slice_ms", _round_up(F.col("unit_ms"), _by_objective(widths)))
        .groupBy("objective", "window", "kind", "group", "slice_ms")
        .agg(
            F.sum("good").alias("good"),
            F.sum("valid").alias("valid"),
            F.sum("clamped").alias("clamped"),
            F.max("unit_ms").alias("last_ms"),
        )
    )


def totals_of(slices: DataFrame, objectives: Sequence[Objective]) -> DataFrame:
    """Sums by `objective`, `window`, `kind` and `group`: what `budgets.Counts` holds, and how many slots
    were clamped.
    """
    ratio = F.try_divide("good", "valid")
    has_traffic = F.col("valid") > 0
    return slices.groupBy("objective", "window", "kind", "group").agg(
        F.sum("good").alias("good"),
        F.sum("valid").alias("valid"),
        F.sum("clamped").alias("clamped"),
        F.sum(has_traffic.cast("int")).alias("slices"),
        F.sum((has_traffic & (ratio >= _slice_target(objectives))).cast("int")).alias("good_slices"),
        F.sum(F.when(has_traffic, ratio).otherwise(0.0)).alias("ratio_sum"),
    )


def spent_moments(slices: DataFrame, objectives: Sequence[Objective], thresholds: DataFrame) -> DataFrame:
    """When the budget was spent: the right bound of the slot (or timeslice) in which what is missed reached it.

    `thresholds` has `objective`, `window`, `group` and `allowed`: bad events, or slices for timeslice methods.
    """
    so_far = Window.partitionBy("objective", "window", "group").orderBy("slice_ms")
    return (
        slices.filter(F.col("kind") == WHOLE)
        .join(F.broadcast(thresholds), ["objective", "window", "group"])
        .withColumn("missed", F.sum(_missed(objectives)).over(so_far))
        .filter((F.col("missed") > 0) & (F.col("missed") >= F.col("allowed")))
        .groupBy("objective", "window", "group")
        .agg(F.min("last_ms").alias("spent_ms"))
    )


def _missed(objectives: Sequence[Objective]) -> Column:
    """What a slice costs of the budget, in the method's own currency: bad events, or a slice or a part of one."""
    method = _by_objective([objective.method.value for objective in objectives])
    ratio = F.try_divide("good", "valid")
    has_traffic = F.col("valid") > 0
    return (
        F.when(method == "Occurrences", F.col("valid") - F.col("good"))
        .when(method == "Timeslices", (has_traffic & (ratio < _slice_target(objectives))).cast("double"))
        .otherwise(F.when(has_traffic, 1 - ratio).otherwise(0.0))
    )


def timelines_of(slices: DataFrame, objectives: Sequence[Objective], steps: DataFrame) -> DataFrame:
    """How each window went: `objective`, `window`, `group`, `step` (0, 1, …), `good`, `valid`, `missed`.

    `steps` has `objective`, `window`, `start_ms` and `step_ms`; a step takes the slices that end in it.
    """
    step = F.ceil((F.col("slice_ms") - F.col("start_ms")) / F.col("step_ms")).cast("bigint") - 1
    return (
        slices.filter(F.col("kind") == WHOLE)
        .join(F.broadcast(steps), ["objective", "window"])
        .withColumn("missed", _missed(objectives))
        .groupBy("objective", "window", "group", step.alias("step"))
        .agg(F.sum("good").alias("good"), F.sum("valid").alias("valid"), F.sum("missed").alias("missed"))
    )


def observations_in(events: DataFrame, windows: DataFrame) -> DataFrame:
    """How well each window was observed: `objective`, `window`, `group`, `seen` (scrapes), `spacing_ms` (median),
    `resets`, `last_ms`.
    """
    by_slot = (
        _in_ranges(events, windows)
        .groupBy("objective", "window", "group", "slot_ms")
        .agg(
            F.max("scrapes").alias("scrapes"), F.max("spacing_ms").alias("spacing_ms"), F.sum("resets").alias("resets")
        )
    )
    weight = F.when(F.col("scrapes") > 0, F.col("scrapes")).otherwise(F.lit(1))
    return by_slot.groupBy("objective", "window", "group").agg(
        F.sum("scrapes").alias("seen"),
        F.percentile("spacing_ms", F.lit(0.5), weight).alias("spacing_ms"),
        F.sum("resets").alias("resets"),
        F.max("slot_ms").alias("last_ms"),
    )


def groups_seen(events: DataFrame) -> DataFrame:
    """Every group of every objective with the slot in which its total was first seen."""
    return events.filter(F.col("scrapes") > 0).groupBy("objective", "group").agg(F.min("slot_ms").alias("first_ms"))


def label_names(roles: DataFrame, series: DataFrame) -> DataFrame:
    """The label names in use by `objective` and `role`; a role without a row selects nothing."""
    return (
        roles.join(series, "series_id")
        .select("objective", "role", F.explode_outer(F.map_keys("labels")).alias("name"))
        .groupBy("objective", "role")
        .agg(F.collect_set("name").alias("names"))
    )


def contributors_in(
    *,
    increments: DataFrame,
    roles: DataFrame,
    series: DataFrame,
    windows: DataFrame,
    objectives: Sequence[Objective],
    common_labels: Sequence[Sequence[str]],
) -> DataFrame:
    """What each label set contributed to the bad events of each window: `objective`, `window`, `group`, `labels`,
    `bad`; only those above zero.

    Where good is counted, bad is total less good of the same label set, over the labels that both have.
    """
    amount = event_count(F.col("born_after_ms"), F.col("born_until_ms"))
    sign = F.when(F.col("role") == "good", -1.0).otherwise(1.0)
    has_good = _by_objective([objective.indicator.good is not None for objective in objectives])
    counts = F.when(has_good, F.col("role") != "bad").otherwise(F.col("role") == "bad")
    by_series = (
        _in_ranges(increments.join(F.broadcast(roles), "series_id").filter(counts), windows)
        .groupBy("objective", "window", "group", "role", "series_id")
        .agg(F.sum(amount).alias("amount"))
    )
    kept = _by_objective([F.array(*[F.lit(name) for name in names]).cast("array<string>") for names in common_labels])
    labels = F.map_filter("labels", lambda name, value: F.array_contains(kept, name) & (value != ""))
    return (
        by_series.join(series, "series_id")
        .groupBy("objective", "window", "group", F.array_sort(F.map_entries(labels)).alias("labels"))
        .agg(F.sum(sign * F.col("amount")).alias("bad"))
        .filter(F.col("bad") > 0)
    )


def _round_up(value: Column, step: Column) -> Column:
    return F.ceil(value / step).cast("bigint") * step


def _by_objective(values: Sequence[object]) -> Column:
    """A constant of each objective, looked up by the column `objective`."""
    return F.element_at(F.array(*[F.lit(value) for value in values]), F.col("objective") + 1)


def _slice_target(objectives: Sequence[Objective]) -> Column:
    # Division is rounded correctly, so a ratio of exactly the target is the same double as the target's literal.
    return _by_objective([float(objective.time_slice_target or 0) for objective in objectives])
