"""Samples as Parquet files (design §4.6), for readers that may look at any moment.

    samples/date=2026-11-20/hour=03/part-<time>.parquet      what a flush has written
    samples/date=2026-11-20/hour=03/merged-<time>.parquet    what a compaction has made of parts

A file appears by a rename, complete, and is never changed. A compaction adds the merged file first and removes what it
replaces `READERS_GRACE_S` later, when nobody who listed the folder before still reads; meanwhile rows are there twice,
and equal rows count once. What a merged file replaces is written in it, so that a crash in between leaves nothing
double.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from orchestration.local.scrapes import Sample

SCHEMA = pa.schema(
    [
        pa.field("metric", pa.string(), nullable=False),
        pa.field("labels", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
    ]
)
REPLACES = b"sluice.replaces"
PARTS_TO_MERGE = 20
"""Parts of the running hour are merged when there are so many: with a flush each 15 s, every 5 minutes."""
HOUR_CLOSED_AFTER = timedelta(minutes=2)
"""After the end of an hour, until nothing more comes for it; then all of it becomes one file."""
READERS_GRACE_S = 600.0
"""The longest that a report was seen to read is well below a minute; a paused debugger should not lose its files."""


class SampleFiles:
    """The folder; one writer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._retired: dict[Path, float] = {}
        """Files that a merged one replaces, and when they may go (Unix seconds)."""
        folder.mkdir(parents=True, exist_ok=True)
        for merged in folder.glob("*/*/merged-*.parquet"):
            for name in _replaced_by(merged):
                merged.with_name(name).unlink(missing_ok=True)
        for unfinished in folder.glob("*/*/.*.tmp"):
            unfinished.unlink(missing_ok=True)

    def append(self, samples: Sequence[Sample]) -> None:
        """Write these samples, each into its hour's folder."""
        by_hour: dict[int, list[Sample]] = {}
        for sample in samples:
            by_hour.setdefault(sample.timestamp_ms // 3_600_000, []).append(sample)
        for hour, rows in sorted(by_hour.items()):
            # Neighbouring rows of one series: half the bytes, and pages that a reader can skip.
            rows.sort(key=lambda s: (s.metric, s.labels, s.timestamp_ms))
            table = pa.table(
                {
                    "metric": [s.metric for s in rows],
                    "labels": [list(s.labels) for s in rows],
                    "timestamp": [s.timestamp_ms for s in rows],
                    "value": [s.value for s in rows],
                },
                schema=SCHEMA,
            )
            folder = self._hour_folder(datetime.fromtimestamp(hour * 3600, UTC))
            folder.mkdir(parents=True, exist_ok=True)
            _write(table, folder / f"part-{time.time_ns()}.parquet")

    def tend(self, now: datetime, retention: timedelta) -> None:
        """Merge what has become many files, remove what was merged long enough ago, and days beyond the retention."""
        for path, until in list(self._retired.items()):
            if now.timestamp() >= until:
                path.unlink(missing_ok=True)
                del self._retired[path]
        for day in sorted(self._folder.glob("date=*")):
            date = _parsed(day.name.removeprefix("date="))
            if date is not None and date + timedelta(days=1) <= now - retention:
                shutil.rmtree(day, ignore_errors=True)
        for folder in sorted(self._folder.glob("date=*/hour=*")):
            self._compact(folder, now)

    def _compact(self, folder: Path, now: datetime) -> None:
        parts = sorted(p for p in folder.glob("part-*.parquet") if p not in self._retired)
        merged = sorted(p for p in folder.glob("merged-*.parquet") if p not in self._retired)
        begin = _parsed(folder.parent.name.removeprefix("date="), folder.name.removeprefix("hour="))
        if begin is None:
            return
        if now >= begin + timedelta(hours=1) + HOUR_CLOSED_AFTER:
            chosen = [*merged, *parts] if len(merged) + len(parts) > 1 else []
        else:
            chosen = parts if len(parts) >= PARTS_TO_MERGE else []
        if not chosen:
            return
        table = pa.concat_tables([pq.ParquetFile(path).read() for path in chosen]).cast(SCHEMA)
        table = table.sort_by([("metric", "ascending"), ("timestamp", "ascending")])
        names = json.dumps([path.name for path in chosen]).encode()
        _write(table.replace_schema_metadata({REPLACES: names}), folder / f"merged-{time.time_ns()}.parquet")
        self._retired |= dict.fromkeys(chosen, now.timestamp() + READERS_GRACE_S)

    def _hour_folder(self, hour: datetime) -> Path:
        return self._folder / f"date={hour:%Y-%m-%d}" / f"hour={hour:%H}"


def _write(table: pa.Table, path: Path) -> None:
    # Hidden until complete, also from readers that take every file.
    unfinished = path.with_name(f".{path.name}.tmp")
    pq.write_table(table, unfinished, compression="zstd")
    unfinished.replace(path)


def _replaced_by(merged: Path) -> list[str]:
    metadata = pq.read_metadata(merged).metadata or {}
    names: list[str] = json.loads(metadata.get(REPLACES, b"[]"))
    return names


def _parsed(date: str, hour: str = "00") -> datetime | None:
    """The beginning of that hour; None for a folder that is not ours."""
    try:
        return datetime.strptime(f"{date} {hour}", "%Y-%m-%d %H").replace(tzinfo=UTC)
    except ValueError:
        return None
