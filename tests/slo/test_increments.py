"""Increments and quantiles of one metric, in Spark, against hand-written tables and an independent oracle."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.slo.errors import DamagedInput
from assets.slo.instants import to_millis
from assets.slo.single_metric import anchored_increases, promql_increases, quantiles
from assets.slo.windows import Range
from tests.slo import oracle
from tests.slo.sample_tables import NAN, STALE, SampleTable, at

pytestmark = pytest.mark.spark


def anchored(spark, table, start=0, end=60, metric="requests_total"):
    found = anchored_increases(table.frame(spark), metric, Range(at(start), at(end)))
    return {tuple(sorted(item.labels.items())): item.value for item in found}


CASES = {
    "the pair over the start belongs to the range": ({0: 5, 10: 7, 20: 12}, 7),
    "the first sample adds nothing": ({10: 7, 20: 12}, 5),
    "a reset adds the new value": ({0: 5, 10: 9, 20: 2, 30: 4}, 8),
    "a reset to zero": ({0: 5, 10: 9, 20: 0, 30: 4}, 8),
    "no limit between two samples": ({-10_000: 5, 60: 9}, 4),
    "NaN is no sample and breaks no pair": ({0: 5, 10: 7, 20: NAN, 30: 9}, 4),
    "a stale marker breaks no pair": ({0: 5, 10: 7, 20: STALE, 30: 9}, 4),
    "a reset over a stale marker": ({0: 5, 10: STALE, 20: 3}, 3),
    "NaN first": ({0: NAN, 10: 7, 20: 9}, 2),
    "the end is closed and what follows is not counted": ({0: 5, 60: 6, 61: 100}, 1),
    "no sample in the range": ({0: 5, 70: 6}, None),
    "a sample on the start is not in the range": ({0: 5}, None),
    "nothing but NaN in the range": ({0: 5, 10: NAN, 20: STALE}, None),
    "appears on the last moment": ({60: 5}, 0),
    "infinity": ({0: 5, 10: math.inf}, math.inf),
}


@pytest.fixture(scope="module")
def anchored_cases(spark, tmp_path_factory):
    """All cases as series of one metric: one query instead of many."""
    table = SampleTable(tmp_path_factory.mktemp("cases"))
    for name, (values, _) in CASES.items():
        table.add("requests_total", {"case": name}, values)
    return {labels[0][1]: value for labels, value in anchored(spark, table).items()}


@pytest.mark.parametrize("name", CASES)
def test_anchored_increments(anchored_cases, name):
    assert anchored_cases.get(name) == CASES[name][1]


CREATED = {
    "created in the range: the first value counts": (0.5, 10, 9),
    "created before": (-5, 10, 2),
    "created on the start, which is open": (0, 10, 2),
    "first seen later than the series, and created after its first sample": (15, 20, 2),
    "first seen later than the series, but created before it": (5, 20, 9),
}


@pytest.fixture(scope="module")
def birth_cases(spark, tmp_path_factory):
    table = SampleTable(tmp_path_factory.mktemp("births"))
    for name, (created, seen, _) in CREATED.items():
        table.add("requests_total", {"case": name}, {10: 7, 20: 9})
        table.add("requests_created", {"case": name}, {seen: at(created).timestamp()})
    table.add("requests_created", {"case": "of a series that is not there"}, {10: at(5).timestamp()})
    return {labels[0][1]: value for labels, value in anchored(spark, table).items()}


@pytest.mark.parametrize("name", CREATED)
def test_a_birth_counts_where_created_lies_in_the_range(birth_cases, name):
    assert birth_cases[name] == CREATED[name][2]


def test_the_births_of_histogram_series_are_found_without_their_bucket_label(spark, table):
    for suffix, labels in (("bucket", {"le": "+Inf", "job": "a"}), ("count", {"job": "a"}), ("sum", {"job": "a"})):
        table.add(f"latency_{suffix}", labels, {10: 7})
    table.add("latency_created", {"job": "a"}, {10: at(9).timestamp()})

    for metric in ("latency_bucket", "latency_count", "latency_sum"):
        assert list(anchored(spark, table, metric=metric).values()) == [7]


def test_equal_rows_count_once_whatever_the_order_of_their_labels(spark, table):
    table.add("requests_total", {"job": "a", "code": "200"}, {0: 1, 10: 3})
    table.add("requests_total", {"code": "200", "job": "a"}, {10: 3, 20: 4})
    table.add("requests_total", {"code": "200", "job": "a", "empty": ""}, {20: 4})
    table.add("requests_total", {"code": "200", "job": "a"}, {30: NAN})
    table.add("requests_total", {"job": "a", "code": "200"}, {30: NAN})

    assert anchored(spark, table) == {(("code", "200"), ("job", "a")): 3}


@pytest.mark.parametrize("other", [4.0, NAN, STALE], ids=["number", "NaN", "stale"])
@pytest.mark.parametrize("compute", [anchored_increases, promql_increases])
def test_two_values_of_one_series_and_time_are_an_error_that_names_the_series(spark, table, other, compute):
    table.add("requests_total", {"job": "a"}, {0: 1, 10: 3})
    table.add("requests_total", {"job": "a"}, {10: other})

    with pytest.raises(DamagedInput, match=r'requests_total\{job="a"\} has two different values'):
        compute(table.frame(spark), "requests_total", Range(at(0), at(60)))


def test_a_stale_marker_and_a_nan_at_one_time_conflict(spark, table):
    table.add("requests_total", {}, {10: NAN}).add("requests_total", {}, {10: STALE})

    with pytest.raises(DamagedInput, match="requests_total has two"):
        anchored(spark, table)


def test_promql_mode_drops_stale_markers_and_keeps_nan(spark, table):
    table.add("requests_total", {"job": "stale"}, {10: 1, 20: STALE, 30: 3})
    table.add("requests_total", {"job": "nan"}, {10: 1, 20: NAN, 30: 3, 40: 2})
    table.add("requests_total", {"job": "last is nan"}, {10: 1, 20: NAN})
    table.add("requests_total", {"job": "alone"}, {10: 1})

    found = promql_increases(table.frame(spark), "requests_total", Range(at(0), at(60)))

    values = {item.labels["job"]: item.value for item in found}
    assert set(values) == {"stale", "nan", "last is nan"}
    assert math.isnan(values["last is nan"])
    # 3 - 1 over 20 minutes, 10 to the start (held at zero: 10 minutes), half a spacing of 20 to the end.
    assert values["stale"] == pytest.approx(2 * (20 + 10 + 10) / 20)
    # 2 - 1 and the drop from 3: 4 over 30 minutes; zero is 7.5 minutes before; half a spacing at the end.
    assert values["nan"] == pytest.approx(4 * (30 + 7.5 + 5) / 30)


def test_quantiles_compare_bounds_as_numbers_and_group_by_the_other_labels(spark, table):
    for le, count in (("0.5", 2), ("1", 4), ("1.0", 4), ("+Inf", 10)):
        table.add("latency_bucket", {"job": "a", "le": le}, {0: 0, 10: count})
    table.add("latency_bucket", {"job": "a", "le": "many"}, {0: 0, 10: 99})
    table.add("latency_bucket", {"job": "b", "le": "+Inf"}, {0: 0, 10: 1})
    frame = table.frame(spark)

    for name in ("latency", "latency_bucket"):
        found = {item.labels["job"]: item.value for item in quantiles(frame, name, 0.5, Range(at(0), at(60)))}
        assert found["a"] == 0.75  # rank 5 of 10; 2 below 0.5, 8 below 1
        assert math.isnan(found["b"])
    assert [item.value for item in quantiles(frame, "latency", 2, Range(at(0), at(60)))] == [math.inf, math.inf]


value = st.one_of(st.integers(0, 50).map(float), st.just(NAN), st.just(STALE))
series = st.dictionaries(st.integers(0, 3600), value, max_size=25)


@settings(max_examples=3)
@given(
    many=st.lists(series, min_size=20, max_size=60),
    cuts=st.lists(st.integers(1, 3599), min_size=1, max_size=2, unique=True),
)
def test_increments_agree_with_the_oracle_and_add_up_over_any_split(spark, tmp_path_factory, many, cuts):
    table = SampleTable(tmp_path_factory.mktemp("samples"))
    for number, values in enumerate(many):
        table.add("requests_total", {"n": str(number)}, {second / 60: value for second, value in values.items()})
    frame = table.frame(spark)
    frame.persist()
    points = [[(to_millis(at(second / 60)), value) for second, value in values.items()] for values in many]
    bounds = [0, *sorted(cuts), 3600]
    sums: dict[str, float] = {}
    for start, end in [*pairwise(bounds), (0, 3600)]:
        asked = Range(at(start / 60), at(end / 60))
        limits = to_millis(asked.start), to_millis(asked.end)
        found = {item.labels["n"]: item.value for item in anchored_increases(frame, "requests_total", asked)}
        expected = {str(n): oracle.anchored(samples, *limits) for n, samples in enumerate(points)}
        assert found == {name: number for name, number in expected.items() if number is not None}
        if (start, end) != (0, 3600):
            for name, number in found.items():
                sums[name] = sums.get(name, 0) + number
        else:
            assert found == sums

        promql = {item.labels["n"]: item.value for item in promql_increases(frame, "requests_total", asked)}
        wanted = {str(n): oracle.promql_increase(samples, *limits) for n, samples in enumerate(points)}
        assert promql == pytest.approx({k: v for k, v in wanted.items() if v is not None}, rel=1e-9, nan_ok=True)
    frame.unpersist()
