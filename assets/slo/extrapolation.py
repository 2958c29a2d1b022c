"""`increase()` of Prometheus 3 for float counters, and the quantile of a classic histogram, number for number.

Used where a report is held against Prometheus itself. Reports use anchored increments (`increments.py`), because
extrapolated ones neither add up over slots nor are whole numbers.

Sources: `extrapolatedRate` in promql/functions.go and `BucketQuantile` in promql/quantile.go of Prometheus 3 (feature
flags off). Up to 2.50 the steps had another order and up to 2.x ranges were closed on the left, so that older servers
give other numbers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSamples:
    """What is needed of one series' samples in (t - R, t]: stale markers dropped, ordinary NaN kept."""

    count: int
    first_ms: int
    last_ms: int
    first: float
    last: float
    dropped: float
    """Sum of the values just before each drop."""


def extrapolated_increase(samples: RangeSamples, start_ms: int, end_ms: int) -> float | None:
    """`increase(series[end - start])` at `end`; None where Prometheus gives no result."""
    if samples.count < 2:
        return None
    increase = samples.last - samples.first + samples.dropped
    sampled = (samples.last_ms - samples.first_ms) / 1000
    if sampled == 0:
        return increase
    average = sampled / (samples.count - 1)
    # A bound further away than 1.1 spacings means that the series begins or ends inside the range: then it is
    # assumed to reach half a spacing further, else up to the bound.
    threshold = average * 1.1
    to_start = (samples.first_ms - start_ms) / 1000
    to_end = (end_ms - samples.last_ms) / 1000
    if to_start >= threshold:
        to_start = average / 2
    if increase > 0 and samples.first >= 0:
        # A counter cannot have been negative: not further back than where it would have been zero.
        to_start = min(to_start, sampled * (samples.first / increase))
    if to_end >= threshold:
        to_end = average / 2
    return increase * ((sampled + to_start + to_end) / sampled)


def bucket_quantile(q: float, buckets: Iterable[tuple[float, float]]) -> float:
    """The q-quantile of (upper bound, cumulative count) pairs, as `histogram_quantile` interpolates it.

    Equal bounds are added up ("1" and "1.0" of two Prometheus generations). NaN without a +Inf bucket, with fewer
    than two buckets, or without events.
    """
    if math.isnan(q):
        return math.nan
    if q < 0:
        return -math.inf
    if q > 1:
        return math.inf
    bounds, counts = _coalesced(buckets)
    if not bounds or bounds[-1] != math.inf:
        return math.nan
    _make_monotone(counts)
    if len(bounds) < 2 or counts[-1] == 0 or math.isnan(counts[-1]):
        return math.nan
    rank = q * counts[-1]
    index = next((i for i in range(len(bounds) - 1) if counts[i] >= rank), len(bounds) - 1)
    if index == len(bounds) - 1:
        return bounds[-2]
    if index == 0 and bounds[0] <= 0:
        return bounds[0]
    start, below = (bounds[index - 1], counts[index - 1]) if index else (0.0, 0.0)
    return start + (bounds[index] - start) * ((rank - below) / (counts[index] - below))


def _coalesced(buckets: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    bounds: list[float] = []
    counts: list[float] = []
    for bound, count in sorted(buckets, key=lambda bucket: bucket[0]):
        if bounds and bounds[-1] == bound:
            counts[-1] += count
        else:
            bounds.append(bound)
            counts.append(count)
    return bounds, counts


def _make_monotone(counts: list[float]) -> None:
    """Cumulative counts cannot fall; differences below 1e-12 of their size are float noise of sums."""
    if not counts:
        return
    kept = counts[0]
    for index in range(1, len(counts)):
        count = counts[index]
        if count == kept:
            continue
        if count < kept or _almost_equal(kept, count):
            counts[index] = kept
            continue
        kept = count


def _almost_equal(a: float, b: float, epsilon: float = 1e-12) -> bool:
    size = abs(a) + abs(b)
    difference = abs(a - b)
    if a == 0 or b == 0 or size < sys.float_info.min:
        return difference < epsilon * sys.float_info.min
    return difference / min(size, sys.float_info.max) < epsilon
