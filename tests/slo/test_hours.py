"""Hours, reduced apart and joined again, give what whole series give."""

import math
import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets.hour_store import HourStore, hours_between
from assets.slo.errors import DamagedInput
from assets.slo.hour_tables import reduce_hour
from assets.slo.report import plan_ranges, report_over_increments, report_over_samples
from assets.slo.report_documents import to_document
from assets.slo.samples import find_samples, read_samples
from assets.slo.windows import Range
from tests.slo.sample_tables import NAN, SCHEMA, STALE, START, at
from tests.slo.slo_documents import parse, slo

GRID_MS = 300_000


def samples(*rows):
    """Rows of (metric, labels, minutes, value)."""
    metric, labels, minutes, value = zip(*rows, strict=True)
    arrays = [list(metric), [list(item.items()) for item in labels], [at(minute) for minute in minutes], list(value)]
    return pa.table(dict(zip(SCHEMA.names, arrays, strict=True)), schema=SCHEMA)


def slots(table, **options):
    return {
        (row["slot_ms"] // 60_000) % 1440: (row["increase"], row["resets"], row["samples"], row["spacing_ms"])
        for row in reduce_hour(table.to_batches(), GRID_MS, **options).slots.to_pylist()
    }


def test_pairs_belong_to_the_slot_of_the_later_sample():
    table = samples(*[("a_total", {}, minute, value) for minute, value in [(1, 5), (5, 7), (5.5, 9), (20, 3), (21, 4)]])

    assert slots(table) == {5: (2, 0, 2, 240_000), 10: (2, 0, 1, 30_000), 20: (3, 1, 1, 870_000), 25: (1, 0, 1, 60_000)}


def test_nan_and_stale_markers_are_no_samples_and_repeats_count_once():
    rows = [(1, 5), (2, NAN), (2, NAN), (3, STALE), (4, 8), (4, 8), (6, NAN)]
    table = samples(*[("a_total", {"x": "1"}, minute, value) for minute, value in rows])

    assert slots(table) == {5: (3, 0, 2, 180_000)}


def test_series_are_told_apart_by_their_labels_in_any_order_without_empty_ones():
    table = samples(
        ("a_total", {"x": "1", "y": "2"}, 1, 1.0),
        ("a_total", {"y": "2", "x": "1", "z": ""}, 2, 2.0),
        ("a_total", {"x": "2", "y": "1"}, 2, 50.0),
        ("a_total", {"x": "1"}, 2, 70.0),
        ("b_total", {"x": "1", "y": "2"}, 2, 90.0),
    )

    series = reduce_hour(table.to_batches(), GRID_MS).series.to_pylist()

    found = [(row["metric"], dict(row["labels"]), row["first"], row["last"]) for row in series]
    assert sorted(found, key=lambda item: item[2]) == [
        ("a_total", {"x": "1", "y": "2"}, 1, 2),
        ("a_total", {"x": "2", "y": "1"}, 50, 50),
        ("a_total", {"x": "1"}, 70, 70),
        ("b_total", {"x": "1", "y": "2"}, 90, 90),
    ]


def test_dictionaries_batches_and_rows_in_any_order_give_equal_bytes():
    rows = random_rows(3, 1)
    table = samples(*rows)
    shuffled = samples(*random.Random(5).sample(rows, len(rows)))
    whole, parts = reduce_hour(table.to_batches(), GRID_MS), reduce_hour(shuffled.to_batches(max_chunksize=7), GRID_MS)
    encoded = pa.map_(pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int32(), pa.string()))
    with_dictionaries = table.set_column(1, "labels", pa.array(table["labels"].to_pylist(), encoded))

    assert whole == parts == reduce_hour(with_dictionaries.to_batches(), GRID_MS)
    assert whole.samples > 100


def test_gauges_are_left_out_unless_an_objective_asks_for_them():
    table = samples(("temperature", {}, 1, 20.0), ("temperature", {}, 2, 21.0))

    assert slots(table) == {}
    assert slots(table, selected=["temperature"]) == {5: (1, 0, 2, 60_000)}


@pytest.mark.parametrize(("one", "other"), [(1.0, 2.0), (1.0, NAN), (NAN, STALE)], ids=["numbers", "NaN", "stale"])
def test_two_values_at_one_time_are_refused_with_the_series(one, other):
    with pytest.raises(DamagedInput, match=r'a_total\{x="1"\} has two different values'):
        slots(samples(("a_total", {"x": "1"}, 1, one), ("a_total", {"x": "1"}, 1, other)))


def test_an_empty_field_is_refused_with_its_column():
    table = pa.table({"metric": ["a_total"], "labels": [None], "timestamp": [START], "value": [1.0]}, schema=SCHEMA)

    with pytest.raises(DamagedInput, match="'labels'"):
        slots(table)


def random_rows(seed: int, hours: int):
    """Series that reset, pause, are born and die, over some hours."""
    source = random.Random(seed)
    rows = []
    for number in range(12):
        labels = {"pod": str(number), "code": source.choice(["200", "500"])}
        value = source.randint(0, 20)
        begin, end = sorted(source.sample(range(hours * 60 + 1), 2))
        if source.random() < 0.5:
            rows.append(("requests_created", labels, begin, at(begin - source.randint(-5, 90)).timestamp()))
        for minute in range(begin, end, source.choice([1, 2, 7])):
            if source.random() < 0.1:
                continue
            value = source.randint(0, 5) if source.random() < 0.05 else value + source.randint(0, 9)
            rows.append(
                ("requests_total", labels, minute, source.choice([NAN, STALE]) if source.random() < 0.02 else value)
            )
            if source.random() < 0.1:
                rows.append(rows[-1])
    return rows


def write_hours(folder, rows):
    by_hour = {}
    for row in rows:
        moment = at(row[2])
        by_hour.setdefault(moment.replace(minute=0, second=0, microsecond=0), []).append(row)
    for hour, found in by_hour.items():
        path = folder / f"date={hour:%Y-%m-%d}" / f"hour={hour:%H}"
        path.mkdir(parents=True, exist_ok=True)
        half = len(found) // 2
        for index, part in enumerate((found[:half], found[half:])):
            if part:
                pq.write_table(samples(*part), path / f"part-{index}.parquet")


@pytest.mark.spark
@pytest.mark.parametrize("seed", range(2))
def test_the_report_over_hours_is_the_report_over_samples(spark, tmp_path, seed):
    write_hours(tmp_path / "samples", random_rows(seed, 6))
    store = HourStore(samples=tmp_path / "samples", folder=tmp_path / "hours", grid_ms=GRID_MS)
    hourly = {"duration": "3h", "calendar": {"startTime": "2026-01-01 01:00:00", "timeZone": "UTC"}}
    objectives = parse(
        slo("rolling", window={"duration": "4h", "isRolling": True}),
        slo("grouped", window=hourly, group_by="pod", target="0.9"),
        slo("sliced", window=hourly, method="Timeslices", timeSliceWindow="15m", timeSliceTarget=0.5, target="0.5"),
    )
    asked = Range(START, START + timedelta(hours=6))

    store.compute(spark, store.stale_hours())
    plan = plan_ranges(objectives, asked)
    over_hours = report_over_increments(*store.increments(spark, START - timedelta(days=4), asked.end), plan)
    over_samples = report_over_samples(read_samples(spark, find_samples(store.samples)), objectives, asked)

    left, right = to_document(over_hours.reports)["reports"], to_document(over_samples.reports)["reports"]
    for document in [*left, *right]:
        # Medians of medians by slot differ where hours meet; the count of scrapes does not.
        document.pop("coverage")
    assert left == right
    assert any(item["resets"] for item in left)
    assert store.stale_hours() == []


@pytest.mark.spark
def test_a_recomputed_hour_is_equal_byte_for_byte_and_late_samples_touch_their_hour_alone(spark, tmp_path):
    rows = random_rows(7, 3)
    write_hours(tmp_path / "samples", rows)
    store = HourStore(samples=tmp_path / "samples", folder=tmp_path / "hours", grid_ms=GRID_MS)
    seen = []
    store.compute(spark, store.stale_hours(), seen.append)
    before = {path: path.read_bytes() for path in store.folder.rglob("*.parquet")}

    store.compute(spark, store.sampled_hours())
    assert {path: path.read_bytes() for path in store.folder.rglob("*.parquet")} == before
    assert {result.hour for result in seen} == set(store.sampled_hours())

    late = samples(("requests_total", {"pod": "late"}, 61, 1.0), ("requests_total", {"pod": "late"}, 62, 3.0))
    pq.write_table(late, store.samples / "date=2026-11-01" / "hour=01" / "late.parquet")
    assert store.stale_hours() == [START + timedelta(hours=1)]
    store.compute(spark, store.stale_hours())
    changed = {path for path, content in before.items() if path.read_bytes() != content}
    assert {path.parent.name for path in changed} == {"hour=01"}


@pytest.mark.spark
def test_a_damaged_hour_is_named_and_the_others_are_computed(spark, tmp_path):
    write_hours(tmp_path / "samples", random_rows(1, 3))
    broken = tmp_path / "samples" / "date=2026-11-01" / "hour=01" / "part-0.parquet"
    broken.write_bytes(b"nothing")
    store = HourStore(samples=tmp_path / "samples", folder=tmp_path / "hours", grid_ms=GRID_MS)

    with pytest.raises(DamagedInput, match=r"2026-11-01T01:00:00\+00:00: .*part-0\.parquet"):
        store.compute(spark, store.stale_hours())

    assert store.stale_hours() == [START + timedelta(hours=1)]


def test_hours_that_overlap_a_range():
    assert hours_between(datetime(2026, 11, 1, 0, 30, tzinfo=UTC), datetime(2026, 11, 1, 2, tzinfo=UTC)) == [
        START,
        START + timedelta(hours=1),
    ]


def test_infinite_values_stay_infinite():
    found = slots(samples(("a_total", {}, 1, 1.0), ("a_total", {}, 2, math.inf), ("a_total", {}, 3, math.inf)))

    assert math.isnan(found[5][0])
