"""One hour of samples, reduced to what reports need of it: increments by slot, and where each series began and ended.

Hours know nothing of each other, so that late samples recompute their own hour only and any number of hours are
computed side by side; `hourly.py` joins them at their seams. A month of 1,000 series at 15 s is 172.8 million samples
and 8.6 million slots: what follows is columns of numbers all the way, without a row object or a shuffle.

Pure: Arrow table in, Arrow tables out. Equal samples give equal bytes, whatever the order of rows, labels and files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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


def reduce_hour(samples: pa.Table, grid_ms: int, selected: Collection[str] = ()) -> HourTables:
    """Reduce one hour's samples (columns metric, labels, timestamp, value).

    `selected` are metrics to keep although their name is not a counter's. Raises DamagedInput naming a series with two
    values at one time, or a column with an empty field.
    """
    for name in ("metric", "labels", "timestamp", "value"):
        if samples[name].null_count:
            raise DamagedInput(f"the column {name!r} has an empty field; write no row instead")
    metric = _dictionary(samples["metric"])
    names = metric.dictionary.to_pylist()
    is_kept = np.array([bool(COUNTER_NAME.fullmatch(name)) or name in selected for name in names], dtype=bool)
    codes = metric.indices.to_numpy()
    if not is_kept.all():
        rows = np.flatnonzero(is_kept[codes])
        samples, codes = samples.take(pa.array(rows)), codes[rows]
    if not len(codes):
        return HourTables(SLOTS.empty_table(), SERIES.empty_table(), 0)

    labels = samples["labels"].combine_chunks()
    keys = _series_keys(labels, codes, names)
    moments = pc.cast(samples["timestamp"], pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()).to_numpy()
    values = samples["value"].to_numpy()
    order = np.lexsort((moments, keys))
    keys, moments, values = keys[order], moments[order], values[order]

    same_series = keys[1:] == keys[:-1]
    is_repeat = same_series & (moments[1:] == moments[:-1])
    conflicts = np.flatnonzero(is_repeat & _differ(values[1:], values[:-1]))
    if len(conflicts):
        row = order[conflicts[0]]
        name = series_name(names[codes[row]], _labels_at(labels, int(row)))
        raise DamagedInput(f"the series {name} has two different values at one time")
    counted = ~np.isnan(values)
    counted[1:] &= ~is_repeat
    order, keys, moments, values = order[counted], keys[counted], moments[counted], values[counted]
    if not len(keys):
        return HourTables(SLOTS.empty_table(), SERIES.empty_table(), 0)
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    series = _series_table(
        starts=starts, order=order, moments=moments, values=values, labels=labels, codes=codes, names=names
    )
    return HourTables(
        _slots_table(starts, series["series_id"].to_numpy(), moments, values, grid_ms).sort_by(
            [("series_id", "ascending"), ("slot_ms", "ascending")]
        ),
        series.sort_by("series_id"),
        len(keys),
    )


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
    *,
    starts: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    moments: _Millis,
    values: _Values,
    labels: pa.MapArray,
    codes: npt.NDArray[np.int32],
    names: list[str],
) -> pa.Table:
    ends = np.append(starts[1:], len(moments)) - 1
    described = [(names[codes[row]], _labels_at(labels, int(row))) for row in order[starts]]
    return pa.Table.from_arrays(
        [
            pa.array([series_id(metric, found) for metric, found in described], pa.int64()),
            pa.array([metric for metric, _ in described], pa.string()),
            pa.array([sorted(found.items()) for _, found in described], SERIES.field("labels").type),
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


def _labels_at(labels: pa.MapArray, row: int) -> dict[str, str]:
    return {name: value for name, value in labels[row].as_py() if value and name != "__name__"}


def _dictionary(column: pa.ChunkedArray | pa.Array) -> pa.DictionaryArray:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
