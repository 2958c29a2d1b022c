"""Hours joined to whole series again: the increments over the seams between them. DataFrame → DataFrame."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from assets.slo.increments import label_key, slot_end, with_created


def increments_of_hours(slots: DataFrame, hours: DataFrame, grid_ms: int) -> tuple[DataFrame, DataFrame]:
    """Increments by series and slot (as `increments.slot_increments` and `with_created` make them), and the series.

    `slots` are the slots of the hours that matter; `hours` the series tables of all hours up to then, because the
    sample before an hour's first may lie any time back.
    """
    in_time = Window.partitionBy("series_id").orderBy("first_ms")
    seams = hours.select(
        "series_id",
        "first_ms",
        "first",
        F.lag("last").over(in_time).alias("previous"),
        F.lag("last_ms").over(in_time).alias("previous_ms"),
    )
    fell = F.col("first") < F.col("previous")
    joints = seams.select(
        "series_id",
        slot_end(F.col("first_ms"), grid_ms).alias("slot_ms"),
        F.when(F.col("previous").isNull(), F.lit(0.0))
        .when(fell, F.col("first"))
        .otherwise(F.col("first") - F.col("previous"))
        .alias("increase"),
        F.when(F.col("previous").isNull(), F.col("first")).alias("birth"),
        F.when(F.col("previous").isNull(), F.col("first_ms")).alias("birth_ms"),
        F.coalesce(fell.cast("bigint"), F.lit(0).cast("bigint")).alias("resets"),
        F.lit(0).cast("bigint").alias("samples"),  # counted by its slot already
        (F.col("first_ms") - F.col("previous_ms")).cast("double").alias("spacing_ms"),
    )
    inside = slots.select(
        "series_id",
        "slot_ms",
        "increase",
        F.lit(None).cast("double").alias("birth"),
        F.lit(None).cast("bigint").alias("birth_ms"),
        "resets",
        "samples",
        "spacing_ms",
    )
    merged = (
        inside.unionAll(joints)
        .groupBy("series_id", "slot_ms")
        .agg(
            F.sum("increase").alias("increase"),
            F.max("birth").alias("birth"),
            F.min("birth_ms").alias("birth_ms"),
            F.sum("resets").alias("resets"),
            F.sum("samples").alias("samples"),
            # The slot's own median where it has one, else the spacing over the seam.
            F.max_by("spacing_ms", F.when(F.col("spacing_ms").isNotNull(), F.col("samples"))).alias("spacing_ms"),
        )
    )
    series = hours.groupBy("series_id").agg(F.first("metric").alias("metric"), F.first("labels").alias("labels"))
    return with_created(merged, series, _created(hours)), series


def _created(hours: DataFrame) -> DataFrame:
    """As `increments.created_times`, from the first samples of the hours."""
    return (
        hours.filter(F.col("metric").endswith("_created"))
        .groupBy(F.col("metric").alias("created_metric"), label_key(F.col("labels")).alias("created_key"))
        .agg(F.min_by("first", "first_ms").alias("created_s"), F.min("first_ms").alias("created_seen_ms"))
        .select("created_metric", "created_key", (F.col("created_s") * 1000).alias("created_ms"), "created_seen_ms")
    )
