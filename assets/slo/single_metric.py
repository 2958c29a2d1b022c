"""Answers about one metric, to re-check a number of a report: `sluice slo increase` and `sluice slo quantile`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from assets.slo.extrapolation import RangeSamples, bucket_quantile, extrapolated_increase
from assets.slo.increments import (
    created_metrics,
    created_times,
    event_count,
    identified,
    pairs,
    refuse_conflicts,
    slot_increments,
    with_created,
)
from assets.slo.instants import to_millis
from assets.slo.samples import only_metrics
from assets.slo.selectors import parse_bound
from assets.slo.windows import Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class LabelledValue:
    """One result."""

    labels: Mapping[str, str]
    value: float


def anchored_increases(samples: DataFrame, metric: str, asked: Range) -> list[LabelledValue]:
    """The anchored increment of each series of a metric over (start, end], sorted by labels.

    A series without a sample in the range has no result. Raises DamagedInput for conflicting samples.
    """
    start, end = to_millis(asked.start), to_millis(asked.end)
    names = [metric, *created_metrics(metric)]
    read = only_metrics(samples, names).filter(F.col("ts_ms") <= end)
    counted, series = identified(read.filter(F.col("metric") == metric))
    # One slot before the range and one for the range; a grid of its whole length keeps rows few.
    slots = slot_increments(pairs(counted), end - start, [start, end]).persist()
    try:
        refuse_conflicts(slots, series)
        increments = with_created(slots.filter(F.col("slot_ms") > start), series, created_times(read, [metric]))
        rows = (
            increments.groupBy("series_id")
            .agg(F.sum(event_count(F.lit(start), F.lit(end))).alias("value"))
            .join(series, "series_id")
            .select("labels", "value")
            .collect()
        )
    finally:
        slots.unpersist()
    return _sorted([LabelledValue(_plain(row["labels"]), row["value"]) for row in rows])


def promql_increases(samples: DataFrame, metric: str, asked: Range) -> list[LabelledValue]:
    """`increase(metric[end - start])` at `end`, as Prometheus 3 computes it, sorted by labels."""
    start, end = to_millis(asked.start), to_millis(asked.end)
    read = samples.filter((F.col("metric") == metric) & (F.col("ts_ms") > start) & (F.col("ts_ms") <= end))
    counted, series = identified(read)
    refuse_conflicts(slot_increments(pairs(counted), end - start, [start, end]), series)
    in_time = Window.partitionBy("series_id").orderBy("ts_ms")
    # Equal rows count once. NaN compares as false in Prometheus and as the largest number in Spark, hence the guards.
    stepped = (
        counted.filter(~F.col("is_stale"))
        .dropDuplicates(["series_id", "ts_ms"])
        .withColumn("previous", F.lag("value").over(in_time))
        .withColumn(
            "dropped",
            F.when(
                ~F.isnan("value") & ~F.isnan("previous") & (F.col("value") < F.col("previous")), F.col("previous")
            ).otherwise(F.lit(0.0)),
        )
    )
    rows = (
        stepped.groupBy("series_id")
        .agg(
            F.count("*").alias("count"),
            F.min("ts_ms").alias("first_ms"),
            F.max("ts_ms").alias("last_ms"),
            F.min_by("value", "ts_ms").alias("first"),
            F.max_by("value", "ts_ms").alias("last"),
            F.sum("dropped").alias("dropped"),
        )
        .filter(F.col("count") >= 2)
        .join(series, "series_id")
        .collect()
    )
    results: list[LabelledValue] = []
    for row in rows:
        fields = row.asDict()
        labels = _plain(fields.pop("labels"))
        del fields["series_id"], fields["metric"]
        value = extrapolated_increase(RangeSamples(**fields), start, end)
        if value is not None:
            results.append(LabelledValue(labels, value))
    return _sorted(results)


def quantiles(samples: DataFrame, metric: str, q: float, asked: Range) -> list[LabelledValue]:
    """The q-quantile of each group of a classic histogram's buckets, from anchored increments over (start, end].

    `metric` with or without `_bucket`. Groups are the labels without `le`; a bucket whose `le` is no number is ignored,
    as in Prometheus.
    """
    name = metric if metric.endswith("_bucket") else f"{metric}_bucket"
    groups: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = defaultdict(list)
    for bucket in anchored_increases(samples, name, asked):
        bound = parse_bound(bucket.labels.get("le", ""))
        if bound is not None:
            key = tuple(sorted((label, value) for label, value in bucket.labels.items() if label != "le"))
            groups[key].append((bound, bucket.value))
    return _sorted([LabelledValue(dict(key), bucket_quantile(q, buckets)) for key, buckets in groups.items()])


def _plain(labels: Mapping[str, str | None]) -> dict[str, str]:
    return {name: labels[name] or "" for name in sorted(labels) if labels[name] and name != "__name__"}


def _sorted(values: list[LabelledValue]) -> list[LabelledValue]:
    return sorted(values, key=lambda item: sorted(item.labels.items()))
