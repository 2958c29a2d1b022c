"""Samples for tests: rows in memory, written to Parquet with the recorder's schema."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
NAN = float("nan")
START = datetime(2026, 11, 1, tzinfo=UTC)

SCHEMA = pa.schema(
    [
        ("metric", pa.string()),
        ("labels", pa.map_(pa.string(), pa.string())),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("value", pa.float64()),
    ]
)


def at(minutes: float) -> datetime:
    """So many minutes after START."""
    return START + timedelta(minutes=minutes)


@dataclass
class SampleTable:
    """Rows of (metric, labels, time, value)."""

    folder: Path
    rows: list[tuple[str, dict[str, str], datetime, float]] = field(default_factory=list)

    def add(self, metric: str, labels: dict[str, str], values: dict[float, float]) -> SampleTable:
        """One series, by minutes after START."""
        self.rows += [(metric, labels, at(minute), value) for minute, value in values.items()]
        return self

    def add_at(self, metric: str, labels: dict[str, str], values: dict[datetime, float]) -> SampleTable:
        self.rows += [(metric, labels, moment, value) for moment, value in values.items()]
        return self

    def write(self, name: str = "date=2026-11-01/hour=00/samples.parquet") -> Path:
        """One Parquet file; returns the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = list(zip(*self.rows, strict=True)) or [[], [], [], []]
        columns[1] = [list(labels.items()) for labels in columns[1]]
        arrays = [pa.array(list(column), type=kind.type) for column, kind in zip(columns, SCHEMA, strict=True)]
        pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), path)
        return self.folder

    def frame(self, spark):
        """The samples as the report reads them."""
        from assets.slo.samples import find_samples, read_samples

        return read_samples(spark, find_samples(self.write()))
