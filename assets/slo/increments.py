"""Increments: from samples of counters to what happened in each slot.

**Anchored.** Each pair of neighbouring samples of a series belongs to the slot of the later one, however far apart the
two are; a value below the one before is a reset and adds itself. So increments are whole numbers for whole counters,
add up over any split of a range, and lose nothing between two scrapes.

The first sample of a series adds nothing, unless the counter's `_created` time lies in the range that is asked about:
then it adds its value. Because that depends on the range, births are rows of their own until a range is known.

Everything here is DataFrame → DataFrame; sums of doubles are exact as long as counters are whole numbers below 2^53.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from assets.slo.errors import DamagedInput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PART_OF_FAMILY = re.compile(r"_(total|bucket|count|sum)$")


def created_metrics(metric: str) -> list[str]:
    """The names under which a client library exposes when the series of a metric were created.

    prometheus_client drops `_total`, `_bucket`, `_count` or `_sum` before it adds `_created`.
    """
    return sorted({f"{_PART_OF_FAMILY.sub('', metric)}_created", f"{metric}_created"})


def label_key(labels: Column) -> Column:
    """One text for a set of labels, whatever their order; an empty value is the same as no label."""
    entries = F.filter(
        F.map_entries(labels),
        lambda entry: entry["value"].isNotNull() & (entry["value"] != "") & (entry["key"] != "__name__"),
    )
    return F.to_json(F.array_sort(entries))


def identified(samples: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The samples with `series_id` instead of metric and labels; and the series: `series_id`, `metric`, `labels`.

    The id is 64 bits of hash of metric and labels. Two of a million series share one with a probability of 3e-8; a pair
    of them would show as conflicting samples.
    """
    # Sorting the labels of every sample would cost more than all the rest. Rows are told apart by their labels as
    # they stand first, a few ways to write each series, and only those few are then brought into one form. The text
    # keeps null values apart, which the hash of an array leaves out.
    labels = F.col("labels")
    as_written = F.xxhash64("metric", F.map_keys(labels), F.map_values(labels), labels.cast("string"))
    rows = samples.withColumn("as_written", as_written)
    written = (
        rows.groupBy("as_written")
        .agg(F.first(F.struct("metric", "labels")).alias("series"))
        .select("as_written", "series.*")
        .withColumn("series_id", F.xxhash64("metric", label_key(F.col("labels"))))
        .localCheckpoint()
    )
    series = written.groupBy("series_id").agg(F.first(F.struct("metric", "labels")).alias("series"))
    ids = F.broadcast(written.select("as_written", "series_id"))
    counted = rows.select("as_written", "ts_ms", "value", "is_stale").join(ids, "as_written").drop("as_written")
    return counted, series.select("series_id", "series.*")


def slot_end(ts_ms: Column, grid_ms: int, cuts_ms: Sequence[int] = ()) -> Column:
    """The right bound of the slot that a time belongs to: a multiple of the grid, or a cut before it.

    Slots are left-open. Cuts are the bounds of the ranges that will be asked about, so that no slot straddles one.
    """
    end = F.ceil(ts_ms / F.lit(grid_ms)).cast("bigint") * F.lit(grid_ms)
    odd = sorted({cut for cut in cuts_ms if cut % grid_ms})
    if not odd:
        return end
    # Only cuts between the grid's lines matter; the first one at or after the sample, if it comes before the line.
    later = F.filter(F.array(*[F.lit(cut).cast("bigint") for cut in odd]), lambda cut: cut >= ts_ms)
    return F.least(end, F.coalesce(F.try_element_at(later, F.lit(1)), end))


def pairs(samples: DataFrame) -> DataFrame:
    """Every sample with what it adds to the one before: the heart of the anchored mode.

    Takes `series_id`, `ts_ms`, `value`, `is_stale`; returns for each counted sample `series_id`, `ts_ms`,
    `increase` (0 for the first of a series), `birth` (the value of the first, else null), `resets` (0 or 1),
    `spacing_ms` (since the previous sample, null for the first) and `is_conflict`: another value at the same time.

    Stale markers and NaN are no samples and break no pair. Equal rows count once. A conflict between anything else is
    kept as a row, so that it can be reported.
    """
    in_time = Window.partitionBy("series_id").orderBy("ts_ms")
    before = in_time.rowsBetween(Window.unboundedPreceding, -1)
    counted = F.when(~F.isnan("value"), F.col("value"))
    rows = samples.select(
        "series_id",
        "ts_ms",
        "value",
        "is_stale",
        F.lag("ts_ms").over(in_time).alias("row_before_ms"),
        F.lag("value").over(in_time).alias("row_before"),
        F.lag("is_stale").over(in_time).alias("row_before_is_stale"),
        F.last(counted, ignorenulls=True).over(before).alias("previous"),
        F.last(F.when(~F.isnan("value"), F.col("ts_ms")), ignorenulls=True).over(before).alias("previous_ms"),
    )
    is_repeat = F.coalesce(F.col("row_before_ms") == F.col("ts_ms"), F.lit(False))
    # In Spark NaN equals NaN, so two ordinary NaNs are no conflict; a stale marker and a NaN are.
    differs = (F.col("row_before") != F.col("value")) | (F.col("row_before_is_stale") != F.col("is_stale"))
    rows = rows.withColumn("is_conflict", is_repeat & differs)
    fell = F.col("value") < F.col("previous")
    return rows.filter(F.col("is_conflict") | (~is_repeat & ~F.isnan("value"))).select(
        "series_id",
        "ts_ms",
        F.when(F.col("previous").isNull(), F.lit(0.0))
        .when(fell, F.col("value"))
        .otherwise(F.col("value") - F.col("previous"))
        .alias("increase"),
        F.when(F.col("previous").isNull(), F.col("value")).alias("birth"),
        F.coalesce(fell.cast("int"), F.lit(0)).alias("resets"),
        (F.col("ts_ms") - F.col("previous_ms")).alias("spacing_ms"),
        "is_conflict",
    )


def slot_increments(paired: DataFrame, grid_ms: int, cuts_ms: Sequence[int] = ()) -> DataFrame:
    """Increments by series and slot.

    Columns: `series_id`, `slot_ms` (right bound), `increase` (births left out), `birth` (value of the series' first
    sample if it lies in this slot, else null), `birth_ms` (its time), `resets`, `samples`, `spacing_ms` (median within
    the slot, null if only the first sample lies there), `is_conflict`.
    """
    return (
        paired.withColumn("slot_ms", slot_end(F.col("ts_ms"), grid_ms, cuts_ms))
        .groupBy("series_id", "slot_ms")
        .agg(
            F.sum("increase").alias("increase"),
            F.max("birth").alias("birth"),
            F.min(F.when(F.col("birth").isNotNull(), F.col("ts_ms"))).alias("birth_ms"),
            F.sum("resets").cast("bigint").alias("resets"),
            F.count("*").alias("samples"),
            F.percentile("spacing_ms", F.lit(0.5)).alias("spacing_ms"),
            F.max("is_conflict").alias("is_conflict"),
        )
    )


def created_times(samples: DataFrame, metrics: Iterable[str]) -> DataFrame:
    """When series were created: `created_metric`, `created_key`, `created_ms`, `created_seen_ms`.

    The earliest `_created` sample of a label set counts: it was scraped with the first sample of the series.
    """
    names = sorted({name for metric in metrics for name in created_metrics(metric)})
    return (
        samples.filter(F.col("metric").isin(names) & ~F.isnan("value"))
        .groupBy(F.col("metric").alias("created_metric"), label_key(F.col("labels")).alias("created_key"))
        .agg(
            F.min_by("value", "ts_ms").alias("created_s"),
            F.min("ts_ms").alias("created_seen_ms"),
        )
        .select("created_metric", "created_key", (F.col("created_s") * 1000).alias("created_ms"), "created_seen_ms")
    )


def with_created(increments: DataFrame, series: DataFrame, created: DataFrame) -> DataFrame:
    """Add `created_ms` to the rows that hold a birth; null where nothing is known about it.

    A `_created` time that first appeared after the series and lies after its first sample belongs to a later life.
    """
    family = F.regexp_replace("metric", _PART_OF_FAMILY.pattern, "")
    candidates = series.select(
        "series_id",
        F.explode(
            F.array_distinct(F.array(F.concat(family, F.lit("_created")), F.concat("metric", F.lit("_created"))))
        ).alias("created_metric"),
        label_key(F.map_filter("labels", lambda key, _: key != "le")).alias("created_key"),
    )
    known = (
        candidates.join(F.broadcast(created), ["created_metric", "created_key"])
        .groupBy("series_id")
        .agg(F.min_by("created_ms", "created_seen_ms").alias("created_ms"), F.min("created_seen_ms").alias("seen_ms"))
    )
    is_of_birth = (F.col("seen_ms") <= F.col("birth_ms")) | (F.col("created_ms") <= F.col("birth_ms"))
    return (
        increments.join(known, "series_id", "left")
        .withColumn("created_ms", F.when(F.col("birth").isNotNull() & is_of_birth, F.col("created_ms")))
        .drop("seen_ms")
    )


def event_count(start_ms: Column, end_ms: Column) -> Column:
    """What rows of increments add to the range (start, end]: increases, and births that happened inside it."""
    is_born_inside = (F.col("created_ms") > start_ms) & (F.col("created_ms") <= end_ms)
    return F.col("increase") + F.when(is_born_inside, F.col("birth")).otherwise(F.lit(0.0))


def refuse_conflicts(increments: DataFrame, series: DataFrame) -> None:
    """Raise DamagedInput naming a series that has two values at one time."""
    conflict = (
        increments.filter("is_conflict").join(series, "series_id").orderBy("metric", "slot_ms").limit(1).collect()
    )
    if conflict:
        row = conflict[0]
        raise DamagedInput(
            f"the series {series_name(row['metric'], row['labels'])} has two different values at one time; "
            "two recorders may have written the same series without a label that tells them apart"
        )


def series_name(metric: str, labels: dict[str, str]) -> str:
    """A series as PromQL writes it, labels sorted."""
    inside = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    return f"{metric}{{{inside}}}" if inside else metric
