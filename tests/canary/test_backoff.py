"""How long the canary waits before the next try."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary_image.backoff import LONGEST_WAIT, Backoff


def waits(backoff: Backoff, attempts: int) -> list[float]:
    return [backoff.wait(attempt).total_seconds() for attempt in range(1, attempts + 1)]


@pytest.mark.parametrize(
    ("scale_ms", "max_attempts", "expected"),
    [
        pytest.param(200, 6, [0.2, 0.4, 0.8], id="doubles"),
        pytest.param(5000, 3, [5, 10, 20, 20, 20], id="after the last attempt the longest wait is repeated"),
        pytest.param(5000, 10, [5, 10, 20, 40, 80, 160, 300, 300, 300, 300, 300], id="defaults, capped at 5 minutes"),
        pytest.param(360_000, 2, [300, 300], id="a first wait above the cap is capped"),
        pytest.param(1000, 1, [1, 1, 1], id="one attempt: the first wait for ever"),
    ],
)
def test_waits(scale_ms, max_attempts, expected):
    backoff = Backoff(scale=timedelta(milliseconds=scale_ms), max_attempts=max_attempts)

    assert waits(backoff, len(expected)) == expected


@given(st.integers(1, 3_600_000), st.integers(1, 1_000_000), st.integers(1, 10_000_000))
def test_waits_never_shrink_and_never_exceed_the_cap(scale_ms, max_attempts, attempt):
    backoff = Backoff(scale=timedelta(milliseconds=scale_ms), max_attempts=max_attempts)

    assert timedelta() < backoff.wait(attempt) <= backoff.wait(attempt + 1) <= LONGEST_WAIT
