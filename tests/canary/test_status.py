"""The window behind `/status`, by strimzi-canary's rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary_image.status import AvailabilityWindow, StatusWindow, Totals


def test_without_a_sample_the_percentage_is_minus_one_over_no_time():
    assert StatusWindow(size=10, interval_ms=30_000).document() == {"Consuming": {"TimeWindow": 0, "Percentage": -1}}


def test_the_course_of_a_start():
    """Nothing produced is -1; produced and nothing consumed is 0."""
    window = StatusWindow(size=10, interval_ms=30_000)
    course = []
    for produced, consumed in [(0, 0), (1, 0), (2, 1), (2, 2)]:
        window.sample(produced=produced, consumed=consumed)
        course.append((window.percentage(), window.document()["Consuming"]["TimeWindow"]))

    assert course == [(-1, 30_000), (0, 60_000), (50, 90_000), (100, 120_000)]


def test_the_oldest_sample_leaves_a_full_window():
    window = StatusWindow(size=3, interval_ms=1000)
    for produced, consumed in [(0, 0), (10, 0), (20, 10), (30, 20)]:
        window.sample(produced=produced, consumed=consumed)

    assert window.document() == {"Consuming": {"TimeWindow": 3000, "Percentage": 100}}


@pytest.mark.parametrize(
    ("produced", "consumed", "expected"),
    [
        pytest.param(3, 2, 66.67, id="two digits"),
        pytest.param(3, 1, 33.33, id="rounded down"),
        pytest.param(2, 3, 150, id="late records lift it above 100"),
        pytest.param(7, 7, 100, id="a whole number is written as one"),
        pytest.param(0, 5, -1, id="nothing produced"),
    ],
)
def test_percentage(produced, consumed, expected):
    window = StatusWindow(size=10, interval_ms=1)
    window.sample(produced=100, consumed=100)
    window.sample(produced=100 + produced, consumed=100 + consumed)

    assert window.percentage() == expected
    assert isinstance(window.percentage(), type(expected))


def test_availability_covers_the_window_and_what_came_after_it():
    window = AvailabilityWindow[str](size=2)
    window.add("a", Totals(unacknowledged=1))
    window.sample()
    window.add("a", Totals(acknowledged=3, back_in_time=1, lost=1))

    assert window.growth()["a"].produce_availability == 0.75

    window.sample()
    window.sample()

    assert window.growth()["a"].produce_availability == 1.0, "the failure has left the window"
    assert window.growth()["a"].consume_availability == 0.5


def test_no_attempts_are_neither_good_nor_bad():
    assert Totals().produce_availability is None
    assert Totals(acknowledged=5).consume_availability is None


@given(st.lists(st.tuples(st.sampled_from("ab"), st.builds(Totals, *[st.integers(0, 5)] * 4)), max_size=30))
def test_growth_since_the_start_is_the_sum(added):
    window = AvailabilityWindow[str](size=100)
    for key, growth in added:
        window.add(key, growth)
        window.sample()

    for key in {key for key, _ in added}:
        assert window.growth()[key].lost == sum(growth.lost for k, growth in added if k == key)
