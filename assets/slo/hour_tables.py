"""One hour of samples, reduced to what reports need of it: increments by slot, and where each series began and ended.

Hours know nothing of each other, so that late samples recompute their own hour only and any number of hours are
computed side by side; `hourly.py` joins them at their seams. A month of 1,000 series at 15 s is 172.8 million samples
and 8.6 million slots: what follows is columns of numbers all the way, without a row object or a shuffle.

Pure: Arrow batches in, Arrow tables out. Equal samples give equal bytes, whatever the order of rows, labels and files.
"""

from __future__ import annotations

import bisect
import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from assets.slo.errors import DamagedInput
from assets.slo.increments import series_name
from assets.slo.samples import STALE_BITS

SLOTS = pa.schema(
    [
        pa.field("series_id", pa.int64(), nullable=False),
        pa.field("slot_ms", pa.int64(), nullable=False),
        pa.field("increase", pa.float64(), nullable=False),
        pa.field("resets", pa.int64(), nullable=False),
        pa.field("samples", pa.int64(), nullable=False),
        pa.field("spacing_ms", pa.float64()),
    ]
)
"""Increments of pairs within the hour; `slot_ms` is the right bound, `spacing_ms` the median of the slot's pairs."""

SERIES = pa.schema(
    [
        pa.field("series_id", pa.int64(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("labels", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("first_ms", pa.int64(), nullable=False),
        pa.field("first", pa.float64(), nullable=False),
        pa.field("last_ms", pa.int64(), nullable=False),
        pa.field("last", pa.float64(), nullable=False),
    ]
)
"""Each series with its first and last sample of the hour."""

COUNTER_NAME = re.compile(r".*_(total|bucket|count|sum|created)")
"""Metrics that are kept whether or not an objective asks for them: those that count, by Prometheus' conventions."""

_Hashes = npt.NDArray[np.uint64]
_Millis = npt.NDArray[np.int64]
_Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HourTables:
    """`slots` and `series`, both sorted, and how many samples they came from."""

    slots: pa.Table
    series: pa.Table
    samples: int


def reduce_hour(batches: Iterable[pa.RecordBatch], grid_ms: int, selected: Collection[str] = ()) -> HourTables:
    """Reduce one hour's samples (columns metric, labels, timestamp, value; strings may be dictionaries).

    `selected` are metrics to keep although their name is not a counter's. Raises DamagedInput naming a series with two
    values at one time, or a column with an empty field.
    """
    rows = _Rows.of(batches, selected)
    order = np.lexsort((rows.moments, rows.keys))
    keys, moments, values = rows.keys[order], rows.moments[order], rows.values[order]

    same_series = keys[1:] == keys[:-1]
    is_repeat = same_series & (moments[1:] == moments[:-1])
    conflicts = np.flatnonzero(is_repeat & _differ(values[1:], values[:-1]))
    if len(conflicts):
        name = series_name(*rows.series_at(int(order[conflicts[0]])))
        raise DamagedInput(f"the series {name} has two different values at one time")
    counted = ~np.isnan(values)
    counted[1:] &= ~is_repeat
    order, keys, moments, values = order[counted], keys[counted], moments[counted], values[counted]
    if not len(keys):
        return HourTables(SLOTS.empty_table(), SERIES.empty_table(), 0)
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    series = _series_table(starts, [rows.series_at(int(row)) for row in order[starts]], moments, values)
    slots = _slots_table(starts, series["series_id"].to_numpy(), moments, values, grid_ms)
    return HourTables(
        slots.sort_by([("series_id", "ascending"), ("slot_ms", "ascending")]), series.sort_by("series_id"), len(keys)
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """All rows of an hour as columns of numbers, and the way back to the labels of one of them."""

    keys: _Hashes
    """Equal for rows of one series."""
    moments: _Millis
    values: _Values
    _origins: npt.NDArray[np.int64]
    """Position in the batches, counted through."""
    _bounds: list[int]
    """Where each batch begins, in that count."""
    _batches: list[pa.RecordBatch]

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch], selected: Collection[str]) -> _Rows:
        kept: list[pa.RecordBatch] = []
        bounds: list[int] = [0]
        keys: list[_Hashes] = [np.zeros(0, dtype=np.uint64)]
        moments: list[_Millis] = [np.zeros(0, dtype=np.int64)]
        values: list[_Values] = [np.zeros(0)]
        origins: list[npt.NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
        for batch in batches:
            for name in ("metric", "labels", "timestamp", "value"):
                if batch.column(name).null_count:
                    raise DamagedInput(f"the column {name!r} has an empty field; write no row instead")
            metric = _dictionary(batch.column("metric"))
            names = metric.dictionary.to_pylist()
            is_kept = np.array([bool(COUNTER_NAME.fullmatch(name)) or name in selected for name in names], dtype=bool)
            codes = metric.indices.to_numpy()
            rows = np.flatnonzero(is_kept[codes])
            if len(rows):
                keys.append(_series_keys(batch.column("labels"), codes, names)[rows])
                moments.append(_millis(batch.column("timestamp"))[rows])
                values.append(batch.column("value").to_numpy()[rows])
                origins.append(rows + bounds[-1])
                kept.append(batch)
                bounds.append(bounds[-1] + batch.num_rows)
        return cls(
            np.concatenate(keys),
            np.concatenate(moments),
            np.concatenate(values),
            np.concatenate(origins),
            bounds,
            kept,
        )

    def series_at(self, row: int) -> tuple[str, dict[str, str]]:
        """Metric and labels of a row."""
        origin = int(self._origins[row])
        index = bisect.bisect_right(self._bounds, origin) - 1
        batch, at = self._batches[index], origin - self._bounds[index]
        labels = {name: value for name, value in batch.column("labels")[at].as_py() if value and name != "__name__"}
        return batch.column("metric")[at].as_py(), labels


def _millis(column: pa.Array) -> _Millis:
    moments: _Millis = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64()).to_numpy()
    return moments


def series_id(metric: str, labels: dict[str, str]) -> int:
    """64 bits that name a series in all hours and on all machines."""
    text = "\x00".join([metric, *(f"{name}\x01{labels[name]}" for name in sorted(labels))])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def _slots_table(
    starts: npt.NDArray[np.int64], ids: _Millis, moments: _Millis, values: _Values, grid_ms: int
) -> pa.Table:
    count = len(moments)
    is_first = np.zeros(count, dtype=bool)
    is_first[starts] = True
    previous = np.empty_like(values)
    previous[1:], previous[0] = values[:-1], 0.0
    fell = (values < previous) & ~is_first
    with np.errstate(invalid="ignore"):  # infinity less infinity is NaN, and is reported by whoever sums it
        increase = np.where(fell, values, values - previous)
    increase[is_first] = 0.0
    spacing = np.empty(count, dtype=np.int64)
    spacing[1:], spacing[0] = moments[1:] - moments[:-1], 0

    slots = -(-moments // grid_ms) * grid_ms
    code = np.cumsum(is_first) - 1
    begins = np.flatnonzero(is_first | np.concatenate([[True], slots[1:] != slots[:-1]]))
    return pa.Table.from_arrays(
        [
            pa.array(ids[code[begins]]),
            pa.array(slots[begins]),
            pa.array(np.add.reduceat(increase, begins)),
            pa.array(np.add.reduceat(fell.astype(np.int64), begins)),
            pa.array(np.diff(np.append(begins, count))),
            _medians(spacing, is_first, begins),
        ],
        schema=SLOTS,
    )


def _medians(spacing: _Millis, is_first: npt.NDArray[np.bool_], begins: npt.NDArray[np.int64]) -> pa.Array:
    """The median spacing of each slot's pairs; null where a slot holds nothing but a first sample."""
    group = np.zeros(len(spacing), dtype=np.int64)
    group[begins[1:]] = 1
    group = np.cumsum(group)[~is_first]
    gaps = spacing[~is_first]
    order = np.lexsort((gaps, group))
    group, gaps = group[order], gaps[order]
    found, at, count = np.unique(group, return_index=True, return_counts=True)
    medians = np.full(len(begins), np.nan)
    medians[found] = (gaps[at + (count - 1) // 2] + gaps[at + count // 2]) / 2
    return pa.array(medians, mask=np.isnan(medians))


def _series_table(
    starts: npt.NDArray[np.int64], described: Sequence[tuple[str, dict[str, str]]], moments: _Millis, values: _Values
) -> pa.Table:
    ends = np.append(starts[1:], len(moments)) - 1
    return pa.Table.from_arrays(
        [
            pa.array([series_id(metric, labels) for metric, labels in described], pa.int64()),
            pa.array([metric for metric, _ in described], pa.string()),
            pa.array([sorted(labels.items()) for _, labels in described], SERIES.field("labels").type),
            pa.array(moments[starts]),
            pa.array(values[starts]),
            pa.array(moments[ends]),
            pa.array(values[ends]),
        ],
        schema=SERIES,
    )


def _series_keys(labels: pa.MapArray, codes: npt.NDArray[np.int32], names: list[str]) -> _Hashes:
    """A number for each row that is equal for rows of one series: a sum over labels, so that their order is nothing."""
    start, end = labels.offsets[0].as_py(), labels.offsets[-1].as_py()
    keys, items = _dictionary(labels.keys[start:end]), _dictionary(labels.items[start:end])
    offsets = labels.offsets.to_numpy() - start
    key_hashes = _hashes(keys.dictionary.to_pylist(), b"key", ignored="__name__")
    item_hashes = _hashes(items.dictionary.to_pylist(), b"item", ignored="")
    key, item = key_hashes[keys.indices.to_numpy()], item_hashes[items.indices.fill_null(0).to_numpy()]
    entry = _mix(key ^ (item << np.uint64(1) | item >> np.uint64(63)))
    entry[(key == 0) | (item == 0)] = 0  # an empty value is the same as no label
    if items.indices.null_count:
        entry[items.indices.is_null().to_numpy(zero_copy_only=False)] = 0
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(entry, dtype=np.uint64)])
    by_row: _Hashes = sums[offsets[1:]] - sums[offsets[:-1]]
    return _mix(by_row ^ _hashes(names, b"metric")[codes])


def _hashes(texts: Sequence[str | None], salt: bytes, ignored: str | None = None) -> _Hashes:
    digests = (
        0
        if text is None or text == ignored
        else int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, salt=salt).digest(), "big") | 1
        for text in texts
    )
    return np.fromiter(digests, dtype=np.uint64, count=len(texts)) if texts else np.zeros(1, dtype=np.uint64)


def _mix(number: _Hashes) -> _Hashes:
    """The finalizer of splitmix64: every input bit reaches every output bit."""
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


def _differ(one: _Values, other: _Values) -> npt.NDArray[np.bool_]:
    """Whether two values contradict each other: NaN equals NaN, and a stale marker equals only itself."""
    is_stale = (one.view(np.uint64) == STALE_BITS) != (other.view(np.uint64) == STALE_BITS)
    differ: npt.NDArray[np.bool_] = is_stale | ((one != other) & ~(np.isnan(one) & np.isnan(other)))
    return differ


def _dictionary(array: pa.Array) -> pa.DictionaryArray:
    return array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
