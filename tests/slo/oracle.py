"""What increments must be, said a second time and differently: plain Python over sorted lists, no Spark, no windows."""

from __future__ import annotations

import math
import struct

STALE_BITS = 0x7FF0000000000002


def is_stale(value: float) -> bool:
    return struct.unpack("<Q", struct.pack("<d", value))[0] == STALE_BITS


def anchored(samples: list[tuple[int, float]], start: int, end: int, created: float | None = None) -> float | None:
    """`samples` are (ms, value) in any order, equal rows repeated; None without a sample in (start, end]."""
    known = sorted({moment: value for moment, value in samples if not math.isnan(value)}.items())
    inside = [index for index, (moment, _) in enumerate(known) if start < moment <= end]
    if not inside:
        return None
    total = 0.0
    for index in inside:
        value = known[index][1]
        if index == 0:
            total += value if created is not None and start < created <= end else 0.0
        elif value >= known[index - 1][1]:
            total += value - known[index - 1][1]
        else:
            total += value
    return total


def promql_increase(samples: list[tuple[int, float]], start: int, end: int) -> float | None:
    """The published algorithm, step by step, in its own order."""
    points = sorted(
        {moment: value for moment, value in samples if start < moment <= end and not is_stale(value)}.items()
    )
    if len(points) < 2:
        return None
    result = points[-1][1] - points[0][1]
    previous = points[0][1]
    for _, value in points[1:]:
        if value < previous:
            result += previous
        previous = value
    duration_to_start = (points[0][0] - start) / 1000
    duration_to_end = (end - points[-1][0]) / 1000
    sampled_interval = (points[-1][0] - points[0][0]) / 1000
    average = sampled_interval / (len(points) - 1)
    threshold = average * 1.1
    if duration_to_start >= threshold:
        duration_to_start = average / 2
    if result > 0 and points[0][1] >= 0:
        duration_to_zero = sampled_interval * (points[0][1] / result)
        duration_to_start = min(duration_to_start, duration_to_zero)
    if duration_to_end >= threshold:
        duration_to_end = average / 2
    return result * ((sampled_interval + duration_to_start + duration_to_end) / sampled_interval)
