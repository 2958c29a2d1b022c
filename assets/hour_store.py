"""Hourly aggregates on disk: one folder an hour, each recomputed as a whole when its samples change.

    <folder>/date=2026-11-20/hour=03/slots.parquet    increments by series and slot   (hour_tables.SLOTS)
    <folder>/date=2026-11-20/hour=03/series.parquet   first and last sample by series (hour_tables.SERIES)
    <folder>/date=2026-11-20/hour=03/source.json      which files, which grid: what the two were computed from

Spark hands hours to its workers; each reads its hour's files, reduces them and replaces the two tables. Files appear by
a rename, complete. Computed twice from the same samples they are equal byte for byte.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from assets.slo.errors import DamagedInput
from assets.slo.hour_tables import reduce_hour
from assets.slo.hourly import increments_of_hours
from assets.slo.samples import checked_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = 1
"""Grows when the meaning of the tables changes; older ones are then recomputed."""
_RESULT = "hour string, samples bigint, series bigint, slots bigint, problem string"
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class HourResult:
    """What became of one hour."""

    hour: datetime
    samples: int
    series: int
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HourStore:
    """The aggregates of the samples in `samples`, kept in `folder`, with slots of `grid_ms`."""

    samples: Path
    folder: Path
    grid_ms: int
    selected: tuple[str, ...] = ()
    """Metrics that objectives ask for; counters are kept anyway."""

    def sampled_hours(self) -> list[datetime]:
        """The hours for which there are samples, in order."""
        return sorted(hour for path in self.samples.glob("date=*/hour=*") if (hour := _parsed(path)) and _files(path))

    def stale_hours(self) -> list[datetime]:
        """The hours whose aggregates are missing, or older than their samples."""
        return [hour for hour in self.sampled_hours() if self._is_stale(hour)]

    def compute(
        self, spark: SparkSession, hours: Sequence[datetime], progress: Callable[[HourResult], None] | None = None
    ) -> list[HourResult]:
        """Compute these hours, side by side; an hour without samples loses its aggregates.

        Raises DamagedInput naming the first hour's damage; the other hours are computed nevertheless.
        """
        if not hours:
            return []
        rows = [(hour.isoformat(),) for hour in sorted(hours)]
        slices = min(len(rows), 4 * spark.sparkContext.defaultParallelism) if _has_context(spark) else len(rows)
        frame = spark.createDataFrame(rows, "hour string").repartition(slices)
        found: list[HourResult] = []
        problems: list[str] = []
        for row in frame.mapInArrow(partial(_compute_hours, self), _RESULT).toLocalIterator():
            if row["problem"]:
                problems.append(f"{row['hour']}: {row['problem']}")
                continue
            result = HourResult(datetime.fromisoformat(row["hour"]), row["samples"], row["series"], row["slots"])
            found.append(result)
            if progress is not None:
                progress(result)
        if problems:
            raise DamagedInput("; ".join(sorted(problems)))
        return sorted(found, key=lambda result: result.hour)

    def increments(self, spark: SparkSession, start: datetime, end: datetime) -> tuple[DataFrame, DataFrame] | None:
        """Increments of (start, end] by slot, and the series; None where nothing was ever aggregated.

        Slots that straddle a bound are whole, so bounds should be multiples of the grid.
        """
        known = sorted(path for path in self.folder.glob("date=*/hour=*") if (path / "source.json").exists())
        until = [path for path in known if (hour := _parsed(path)) and hour <= end]
        # A sample exactly at the end of an hour lies in the folder of the next.
        inside = [path for path in until if (hour := _parsed(path)) and hour + _HOUR >= start]
        if not until:
            return None
        hours = spark.read.parquet(*[str(path / "series.parquet") for path in until])
        slots = spark.read.parquet(*[str(path / "slots.parquet") for path in inside or until[-1:]])
        return increments_of_hours(slots, hours, self.grid_ms)

    def rows(self) -> int:
        """Slots of all hours: what a report may have to read."""
        return sum(pq.read_metadata(path).num_rows for path in self.folder.glob("date=*/hour=*/slots.parquet"))

    def compute_hour(self, hour: datetime) -> HourResult:
        """One hour, in this process. Raises DamagedInput."""
        source, target = _hour_path(self.samples, hour), _hour_path(self.folder, hour)
        described = self._source(hour)
        files = _files(source)
        if not files:
            shutil.rmtree(target, ignore_errors=True)
            return HourResult(hour, 0, 0, 0)
        reduced = reduce_hour(_batches(files), self.grid_ms, self.selected)
        target.mkdir(parents=True, exist_ok=True)
        (target / "source.json").unlink(missing_ok=True)
        for name, table in (("slots", reduced.slots), ("series", reduced.series)):
            pq.write_table(table, target / f".{name}.tmp", compression="zstd")
            (target / f".{name}.tmp").replace(target / f"{name}.parquet")
        (target / ".source.tmp").write_text(json.dumps(described))
        (target / ".source.tmp").replace(target / "source.json")
        return HourResult(hour, reduced.samples, reduced.series.num_rows, reduced.slots.num_rows)

    def _is_stale(self, hour: datetime) -> bool:
        try:
            kept = json.loads((_hour_path(self.folder, hour) / "source.json").read_text())
        except (OSError, ValueError):
            return True
        return bool(kept != self._source(hour))

    def _source(self, hour: datetime) -> dict[str, object]:
        files = [[path.name, path.stat().st_size] for path in _files(_hour_path(self.samples, hour))]
        return {"format": FORMAT, "grid_ms": self.grid_ms, "selected": sorted(self.selected), "files": files}


def _compute_hours(store: HourStore, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a Spark worker."""
    for batch in batches:
        for text in batch.column("hour").to_pylist():
            hour = datetime.fromisoformat(text)
            try:
                result, problem = store.compute_hour(hour), None
            except DamagedInput as exc:
                result, problem = HourResult(hour, 0, 0, 0), str(exc)
            row = {**asdict(result), "hour": text, "problem": problem}
            yield pa.RecordBatch.from_pylist([row], schema=_RESULT_SCHEMA)


_RESULT_SCHEMA = pa.schema(
    [
        ("hour", pa.string()),
        ("samples", pa.int64()),
        ("series", pa.int64()),
        ("slots", pa.int64()),
        ("problem", pa.string()),
    ]
)


def _batches(files: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    """The samples of some files. Raises DamagedInput with the file's name."""
    for path in files:
        checked_time(path)
        try:
            yield from _row_groups(path)
        except (pa.ArrowException, OSError) as exc:
            raise DamagedInput(f"{path}: not readable as Parquet ({str(exc).splitlines()[0]})") from exc


def _row_groups(path: Path) -> Iterator[pa.RecordBatch]:
    # Labels repeat: kept as the dictionaries they are in the file, reading is ten times as fast. Row group by row
    # group, because Arrow cannot join dictionaries inside of maps.
    with pq.ParquetFile(path, read_dictionary=_DICTIONARIES) as file:
        for index in range(file.num_row_groups):
            yield from file.read_row_group(index, columns=_COLUMNS, use_threads=False).combine_chunks().to_batches()


_COLUMNS = ["metric", "labels", "timestamp", "value"]
_DICTIONARIES = ["metric", "labels.key_value.key", "labels.key_value.value"]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.parquet") if not path.name.startswith((".", "_")))


def _hour_path(root: Path, hour: datetime) -> Path:
    return root / f"date={hour:%Y-%m-%d}" / f"hour={hour:%H}"


def _parsed(path: Path) -> datetime | None:
    try:
        text = f"{path.parent.name.removeprefix('date=')} {path.name.removeprefix('hour=')}"
        return datetime.strptime(text, "%Y-%m-%d %H").replace(tzinfo=UTC)
    except ValueError:
        return None


def _has_context(spark: SparkSession) -> bool:
    """Spark Connect has no context to ask for its cores."""
    return hasattr(spark, "_jsc")


def hours_between(start: datetime, end: datetime) -> list[datetime]:
    """The hours that overlap [start, end)."""
    hour = start.replace(minute=0, second=0, microsecond=0)
    found = []
    while hour < end:
        found.append(hour)
        hour += _HOUR
    return found


def selected_metrics(metrics: Collection[str] | None) -> tuple[str, ...]:
    """The metrics of objectives in the form a store wants them."""
    return tuple(sorted(metrics or ()))
