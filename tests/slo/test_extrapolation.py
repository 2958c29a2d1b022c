"""Prometheus' own arithmetic, held against tables computed by hand."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assets.slo.extrapolation import RangeSamples, bucket_quantile, extrapolated_increase

INF = math.inf


def increase(points, start, end):
    """`points` as (second, value)."""
    values = [value for _, value in points]
    return extrapolated_increase(
        RangeSamples(
            count=len(points),
            first_ms=points[0][0] * 1000,
            last_ms=points[-1][0] * 1000,
            first=values[0],
            last=values[-1],
            dropped=sum(before for before, after in pairwise(values) if after < before),
        ),
        start * 1000,
        end * 1000,
    )


@pytest.mark.parametrize(
    ("points", "start", "end", "expected"),
    [
        pytest.param([(60, 5.0)], 0, 300, None, id="one sample gives no result"),
        # Inner span 240 s of 300 s: 60 s before the first sample are within 1.1 spacings.
        pytest.param(
            [(60, 1.0), (120, 2.0), (180, 3.0), (240, 4.0), (300, 5.0)], 0, 300, 5.0, id="reaches both bounds"
        ),
        pytest.param([(60, 0.0), (120, 1.0), (180, 2.0), (240, 3.0), (300, 4.0)], 0, 300, 4.0, id="not below zero"),
        # Starts 180 s in: half a spacing (30 s) instead; ends 120 s early: half a spacing as well.
        pytest.param([(180, 10.0), (240, 20.0), (300, 30.0)], 0, 420, 30.0, id="half a spacing at a gap"),
        pytest.param([(60, 10.0), (120, 20.0), (180, 5.0), (240, 15.0)], 0, 240, 25 * 240 / 180, id="a reset"),
        pytest.param([(60, 7.0), (120, 7.0)], 0, 120, 0.0, id="nothing happened"),
        pytest.param([(60, -5.0), (120, 5.0)], 0, 120, 20.0, id="negative first value is not held at zero"),
    ],
)
def test_increase_follows_the_steps(points, start, end, expected):
    assert increase(points, start, end) == (None if expected is None else pytest.approx(expected, rel=1e-12))


def test_an_ordinary_nan_makes_the_result_nan():
    assert math.isnan(increase([(60, 1.0), (120, math.nan)], 0, 120))


@pytest.mark.parametrize(
    ("q", "buckets", "expected"),
    [
        pytest.param(0.5, [(1.0, 5), (2.0, 10), (INF, 10)], 1.0, id="exactly at a bound"),
        pytest.param(0.75, [(1.0, 5), (2.0, 10), (INF, 10)], 1.5, id="between bounds"),
        pytest.param(0.25, [(1.0, 5), (2.0, 10), (INF, 10)], 0.5, id="the first bucket starts at zero"),
        pytest.param(0.25, [(-1.0, 5), (2.0, 10), (INF, 10)], -1.0, id="a first bound at or below zero is the answer"),
        pytest.param(0.99, [(1.0, 5), (2.0, 6), (INF, 10)], 2.0, id="beyond the last finite bound"),
        pytest.param(0.5, [(1.0, 5), (2.0, 10)], math.nan, id="without +Inf"),
        pytest.param(0.5, [(INF, 10)], math.nan, id="with +Inf alone"),
        pytest.param(0.5, [(1.0, 0), (INF, 0)], math.nan, id="without events"),
        pytest.param(0.5, [], math.nan, id="without buckets"),
        pytest.param(-0.1, [(1.0, 1), (INF, 1)], -INF, id="q below 0"),
        pytest.param(1.1, [(1.0, 1), (INF, 1)], INF, id="q above 1"),
        pytest.param(math.nan, [(1.0, 1), (INF, 1)], math.nan, id="q is NaN"),
        pytest.param(0.0, [(1.0, 5), (2.0, 10), (INF, 10)], 0.0, id="q is 0"),
        pytest.param(1.0, [(1.0, 5), (2.0, 10), (INF, 10)], 2.0, id="q is 1"),
        pytest.param(0.5, [(1.0, 2), (1.0, 3), (INF, 10)], 1.0, id="equal bounds are added up"),
        pytest.param(0.5, [(1.0, 6), (2.0, 4), (INF, 10)], 5 / 6, id="not monotone: a fall is lifted"),
        pytest.param(0.5, [(INF, 10), (2.0, 10), (1.0, 5)], 1.0, id="in any order"),
    ],
)
def test_quantile_of_buckets(q, buckets, expected):
    assert bucket_quantile(q, buckets) == pytest.approx(expected, nan_ok=True)


@given(
    q=st.floats(0, 1),
    counts=st.lists(st.integers(0, 1000), min_size=1, max_size=8),
)
def test_a_quantile_lies_between_zero_and_the_last_finite_bound(q, counts):
    total = 0
    buckets = []
    for index, count in enumerate(counts):
        total += count
        buckets.append((float(index + 1), float(total)))
    buckets.append((INF, float(total)))

    value = bucket_quantile(q, buckets)

    assert math.isnan(value) if total == 0 else 0 <= value <= len(counts)
