"""Samples: every way in which files can be wrong is said with the file's or column's name."""

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets.slo.errors import DamagedInput
from assets.slo.samples import find_samples, naming_the_file, read_samples
from tests.slo.sample_tables import SCHEMA, STALE, at

pytestmark = pytest.mark.spark


def write(path, schema=SCHEMA, **columns):
    rows = {
        "metric": ["m"],
        "labels": [[("a", "b")]],
        "timestamp": [at(1)],
        "value": [1.0],
    } | columns
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = [pa.array(rows[field.name], field.type) for field in schema]
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path)


def rows(spark, folder):
    with naming_the_file():
        return read_samples(spark, find_samples(folder)).collect()


def replaced(name, kind):
    return pa.schema([pa.field(field.name, kind if field.name == name else field.type) for field in SCHEMA])


def test_folders_of_any_depth_are_read_and_hidden_ones_are_not(spark, tmp_path):
    write(tmp_path / "a.parquet")
    write(tmp_path / "date=2026-11-01" / "hour=00" / "b.parquet", value=[2.0])
    write(tmp_path / "_temporary" / "c.parquet", value=[3.0])
    (tmp_path / ".d.parquet").write_bytes(b"half a file")

    assert sorted(row["value"] for row in rows(spark, tmp_path)) == [1.0, 2.0]


def test_stale_markers_are_told_from_nan(spark, tmp_path):
    write(
        tmp_path / "a.parquet",
        metric=["m"] * 3,
        labels=[[]] * 3,
        timestamp=[at(1), at(2), at(3)],
        value=[STALE, float("nan"), 1.0],
    )

    found = {row["ts_ms"]: row["is_stale"] for row in rows(spark, tmp_path)}

    assert list(dict(sorted(found.items())).values()) == [True, False, False]


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("us", tz="UTC"),
        pa.timestamp("ns", tz="UTC"),
        pa.timestamp("ms"),
        pa.timestamp("ms", tz="Europe/Berlin"),
    ],
    ids=str,
)
def test_time_in_other_units_and_zones_is_the_same_moment(spark, tmp_path, kind):
    moment = at(1).replace(tzinfo=None) if kind.tz is None else at(1)
    write(tmp_path / "a.parquet", replaced("timestamp", kind), timestamp=[moment])
    write(tmp_path / "b.parquet")

    assert {row["ts_ms"] for row in rows(spark, tmp_path)} == {int(at(1).timestamp() * 1000)}


def test_strings_may_be_dictionaries_as_pandas_writes_them(spark, tmp_path):
    write(tmp_path / "a.parquet", replaced("metric", pa.dictionary(pa.int32(), pa.string())))

    assert [row["metric"] for row in rows(spark, tmp_path)] == ["m"]


@pytest.mark.parametrize("name", ["metric", "labels", "timestamp", "value"])
def test_a_missing_column_is_named_with_its_file(spark, tmp_path, name):
    write(tmp_path / "a.parquet", pa.schema([field for field in SCHEMA if field.name != name]))

    with pytest.raises(DamagedInput, match=rf"a\.parquet: the column '{name}' is missing"):
        rows(spark, tmp_path)


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("metric", pa.int64(), 1),
        ("labels", pa.string(), "a=b"),
        ("labels", pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        ("timestamp", pa.int64(), 1),
        ("value", pa.string(), "1"),
    ],
)
def test_a_column_of_another_type_is_named_with_its_file(spark, tmp_path, name, kind, value):
    write(tmp_path / "a.parquet", replaced(name, kind), **{name: [value]})

    with pytest.raises(DamagedInput, match=rf"a\.parquet: the column '{name}' must be"):
        rows(spark, tmp_path)


@pytest.mark.parametrize("name", ["labels", "timestamp", "value"])
def test_an_empty_field_is_named_with_its_column_and_file(spark, tmp_path, name):
    write(tmp_path / "a.parquet", **{name: [None]})

    with pytest.raises(DamagedInput, match=rf"a\.parquet.*'{name}'"):
        rows(spark, tmp_path)


@pytest.mark.parametrize("damage", ["empty", "cut off", "no parquet"])
def test_a_damaged_file_is_named(spark, tmp_path, damage):
    write(tmp_path / "good.parquet")
    write(tmp_path / "bad.parquet")
    content = (tmp_path / "bad.parquet").read_bytes()
    (tmp_path / "bad.parquet").write_bytes(
        {"empty": b"", "cut off": content[: len(content) // 2], "no parquet": b"x" * 100}[damage]
    )

    with pytest.raises(DamagedInput, match=r"bad\.parquet: not readable as Parquet"):
        rows(spark, tmp_path)


def test_a_damaged_page_behind_a_good_footer_is_named(spark, tmp_path):
    write(
        tmp_path / "bad.parquet",
        metric=["m"] * 500,
        labels=[[]] * 500,
        timestamp=[at(i) for i in range(500)],
        value=[0.5] * 500,
    )
    content = bytearray((tmp_path / "bad.parquet").read_bytes())
    content[4:200] = b"\xff" * 196
    (tmp_path / "bad.parquet").write_bytes(bytes(content))

    with pytest.raises(DamagedInput, match=r"bad\.parquet: not readable"):
        rows(spark, tmp_path)


def test_a_folder_without_samples_is_empty(spark, tmp_path):
    assert rows(spark, tmp_path) == []


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(DamagedInput, match="nowhere"):
        find_samples(tmp_path / "nowhere")


def test_what_pandas_writes_is_read(spark, tmp_path):
    frame = pd.DataFrame(
        {"metric": ["m"], "labels": [[("a", "b")]], "timestamp": [pd.Timestamp(at(1))], "value": [1.0]}
    )
    frame.to_parquet(tmp_path / "a.parquet", schema=replaced("timestamp", pa.timestamp("us", tz="UTC")))

    assert rows(spark, tmp_path)[0]["labels"] == {"a": "b"}
