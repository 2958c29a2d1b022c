"""Samples: Parquet files with the columns metric, labels, timestamp and value, as the recorder writes them.

This is the one module of the report that reads files. Every file's footer is looked at before Spark starts, so that a
damaged or foreign file is named at once; what only reading can find is translated by `naming_the_file`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from assets.slo.errors import DamagedInput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

STALE_BITS = 0x7FF0000000000002
"""The NaN that Prometheus stores where a series ended."""

EMPTY_FIELD = "SLUICE_EMPTY_FIELD"


@dataclass(frozen=True, slots=True)
class SampleFiles:
    """The Parquet files below a folder, grouped by how they store time."""

    paths: dict[str, list[str]]
    """`utc`, `naive` or `nanos` → file paths."""
    rows: int

    @property
    def is_empty(self) -> bool:
        return not any(self.paths.values())


def find_samples(folder: Path) -> SampleFiles:
    """List the files and check each one's schema.

    Files and folders whose name starts with `.` or `_` are not samples (temporary files, checkpoints).

    Raises DamagedInput naming the file, and the column where it is one, with the remedy.
    """
    if not folder.is_dir():
        raise DamagedInput(f"{folder}: no such folder of samples")
    paths: dict[str, list[str]] = {"utc": [], "naive": [], "nanos": []}
    rows = 0
    for path in sorted(folder.rglob("*.parquet")):
        if not path.is_file() or any(part.startswith((".", "_")) for part in path.relative_to(folder).parts):
            continue
        try:
            kind, count = checked_time(path)
        except FileNotFoundError:
            continue  # the recorder merged it into another file, which was there before this one went
        paths[kind].append(str(path.resolve()))
        rows += count
    return SampleFiles(paths, rows)


def checked_time(path: Path) -> tuple[str, int]:
    """How a file stores time (`utc`, `naive`, `nanos`) and its rows, once its schema is found right.

    Raises DamagedInput with the file's name, and the column's where it is one.
    """
    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as exc:
        raise DamagedInput(
            f"{path}: not readable as Parquet ({str(exc).splitlines()[0]}); restore or remove the file"
        ) from exc
    for name in ("metric", "labels", "timestamp", "value"):
        if schema.get_field_index(name) < 0:
            raise DamagedInput(f"{path}: the column {name!r} is missing; samples have metric, labels, timestamp, value")
    types = {name: schema.field(name).type for name in ("metric", "labels", "timestamp", "value")}
    _expect(path, "metric", satisfied=_is_string(types["metric"]), wanted="string", found=types["metric"])
    labels = types["labels"]
    is_map = pa.types.is_map(labels) and _is_string(labels.key_type) and _is_string(labels.item_type)
    _expect(path, "labels", satisfied=is_map, wanted="map<string, string>", found=labels)
    _expect(path, "value", satisfied=pa.types.is_float64(types["value"]), wanted="double", found=types["value"])
    time = types["timestamp"]
    _expect(
        path, "timestamp", satisfied=pa.types.is_timestamp(time), wanted="timestamp (UTC, milliseconds)", found=time
    )
    if time.unit == "ns":
        return "nanos", rows
    return ("naive" if time.tz is None else "utc"), rows


def _is_string(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _expect(path: Path, column: str, *, satisfied: bool, wanted: str, found: pa.DataType) -> None:
    if not satisfied:
        raise DamagedInput(f"{path}: the column {column!r} must be {wanted}, not {found}")


def read_samples(spark: SparkSession, files: SampleFiles) -> DataFrame:
    """The samples as `metric`, `labels`, `ts_ms` (epoch milliseconds), `value`, `is_stale`.

    Labels are as stored; their order has no meaning (`series_id` in `increments.py` ignores it). An empty field in one
    of the four columns fails the query with the file's name.
    """
    frames = [_read(spark, kind, paths) for kind, paths in files.paths.items() if paths]
    if not frames:
        return spark.createDataFrame(
            [],
            "metric string, labels map<string,string>, ts_ms bigint, value double, is_stale boolean",
        )
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    return whole


def _read(spark: SparkSession, kind: str, paths: list[str]) -> DataFrame:
    time_type = {"utc": TimestampType(), "naive": TimestampNTZType(), "nanos": LongType()}[kind]
    schema = StructType(
        [
            StructField("metric", StringType()),
            StructField("labels", MapType(StringType(), StringType())),
            StructField("timestamp", time_type),
            StructField("value", DoubleType()),
        ]
    )
    raw = spark.read.schema(schema).parquet(*paths)
    millis: Column
    if kind == "nanos":
        millis = F.floor(F.col("timestamp") / 1_000_000).cast("bigint")
    else:
        millis = F.unix_millis(F.col("timestamp").cast("timestamp"))
    # Only NaNs are asked for their bits: the reflective call is slow, and any other value is no stale marker.
    bits = F.reflect(F.lit("java.lang.Double"), F.lit("doubleToRawLongBits"), F.col("value"))
    return raw.select(
        F.col("metric"),
        _not_empty("labels", F.col("labels")).alias("labels"),
        _not_empty("timestamp", millis).alias("ts_ms"),
        _not_empty("value", F.col("value")).alias("value"),
        F.when(F.isnan("value"), bits == F.lit(str(STALE_BITS))).otherwise(F.lit(False)).alias("is_stale"),
    )


def _not_empty(name: str, column: Column) -> Column:
    failure = F.raise_error(F.concat(F.lit(f"{EMPTY_FIELD} {name} "), F.input_file_name()))
    return F.when(F.col(name).isNull(), failure).otherwise(column)


def only_metrics(samples: DataFrame, metrics: Iterable[str] | None) -> DataFrame:
    """The samples of these metrics; of all where None."""
    return samples if metrics is None else samples.filter(F.col("metric").isin(sorted(set(metrics))))


_FILE = re.compile(r"file:(/[^\s\"']*?\.parquet)")
_EMPTY = re.compile(EMPTY_FIELD + r" (\w+) (?:file:)?(\S*\.parquet)?")


@contextmanager
def naming_the_file() -> Iterator[None]:
    """Turn Spark's error about a damaged page or an empty field into DamagedInput with the file's name."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as exc:
        text = str(exc)
        empty = _EMPTY.search(text)
        if empty is not None:
            place = (empty[2] or "samples").replace("///", "/")
            raise DamagedInput(f"{place}: the column {empty[1]!r} has an empty field; write no row instead") from exc
        file = _FILE.search(text.replace("file:///", "file:/"))
        if file is None or not _is_damage(text):
            raise
        raise DamagedInput(f"{file[1]}: not readable as Parquet; restore or remove the file") from exc


def _is_damage(text: str) -> bool:
    return "FAILED_READ_FILE" in text or "parquet" in text.lower()
