"""Budgets: exact arithmetic, and decisions on unrounded numbers."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assets.slo.budgets import INFINITE, Counts, State, budget_of, consumption, exhausted_at, is_at_risk, state_of
from assets.slo.windows import Range
from tests.slo.slo_documents import objective

END = datetime(2026, 11, 20, tzinfo=UTC)
WINDOW = Range(END - timedelta(days=30), END)


def counts(good: float, valid: float) -> Counts:
    return Counts(good=Fraction(good), valid=Fraction(valid))


def judged(target: str, good: float, valid: float, *, has_data: bool = True):
    declared = objective(target=target)
    happened = counts(good, valid)
    budget = budget_of(declared, happened, WINDOW.length, has_data=has_data)
    return budget, state_of(happened, budget, has_data=has_data)


def test_a_budget_that_is_exactly_consumed_is_met_and_one_event_more_is_a_breach():
    exact, met = judged("0.999", 999_000, 1_000_000)
    over, breached = judged("0.999", 998_999, 1_000_000)

    assert (exact.consumed, exact.remaining, met) == (1, 0, State.MET)
    assert breached is State.BREACHED
    assert over.consumed == Fraction(1001, 1000)


@pytest.mark.parametrize("target", ["0.9", "0.95", "0.99", "0.999", "0.9995", "0.9999", "0.99999"])
def test_exactly_the_allowed_share_consumes_exactly_the_budget(target):
    valid = 10_000_000
    bad = int((1 - Decimal(target)) * valid)

    assert consumption(objective(target=target), counts(valid - bad, valid)) == 1


def test_a_budget_in_events_and_minutes():
    budget, _ = judged("0.999", 1000, 1000)

    assert budget.events == 1
    assert budget.minutes == Fraction("43.2")


def test_samples_without_events_consume_nothing():
    budget, state = judged("0.999", 0, 0)

    assert (budget.consumed, budget.remaining, state) == (0, 1, State.NO_TRAFFIC)


def test_no_samples_are_unknown_and_never_green():
    budget, state = judged("0.999", 0, 0, has_data=False)

    assert (budget.consumed, budget.remaining, state) == (None, None, State.NO_DATA)


def test_a_target_of_100_percent_bears_nothing_bad():
    whole, met = judged("1", 1000, 1000)
    one_bad, breached = judged("1", 999, 1000)

    assert (whole.consumed, whole.remaining, whole.events, met) == (0, 1, 0, State.MET)
    assert (one_bad.consumed, one_bad.remaining, breached) == (INFINITE, INFINITE, State.BREACHED)


def test_timeslices_count_slices_and_ratio_timeslices_average_them():
    happened = Counts(good=Fraction(1000), valid=Fraction(1010), slices=2, good_slices=1, ratio_sum=Fraction(1))
    sliced = objective(target="0.9", method="Timeslices", timeSliceWindow="5m", timeSliceTarget=0.9)
    averaged = objective(target="0.9", method="RatioTimeslices", timeSliceWindow="5m")

    assert consumption(sliced, happened) == 5
    assert consumption(averaged, happened) == 5
    assert consumption(objective(target="0.9"), happened) == Fraction(10, 101)


@pytest.mark.parametrize(
    ("consumed", "burn", "risk"),
    [
        pytest.param("0.5", "0.5", False, id="lasts exactly a period"),
        pytest.param("0.5", "0.51", True, id="a little less"),
        pytest.param("0.5", "0", False, id="burns nothing"),
        pytest.param("0.5", None, False, id="no traffic in the alert window"),
        pytest.param("1", "0.1", True, id="nothing left and burning"),
    ],
)
def test_at_risk_is_decided_by_what_remains_and_how_fast_it_burns(consumed, burn, risk):
    budget, state = judged("0.9", 1000 - 100 * float(consumed), 1000)

    assert is_at_risk(state, budget, None if burn is None else Fraction(burn)) is risk


def test_a_breached_objective_is_not_at_risk_but_broken():
    budget, state = judged("0.9", 0, 1000)

    assert not is_at_risk(state, budget, Fraction(5))


def test_the_budget_ends_when_the_burn_rate_says():
    budget, _ = judged("0.9", 950, 1000)

    assert exhausted_at(WINDOW, budget, Fraction(1), None) == END + timedelta(days=15)
    assert exhausted_at(WINDOW, budget, Fraction(0), None) is None
    assert exhausted_at(WINDOW, budget, None, None) is None
    assert exhausted_at(WINDOW, budget, Fraction(1, 10**9), None) is None  # beyond the calendar


def test_a_spent_budget_ended_when_it_was_spent():
    budget, _ = judged("0.9", 900, 1000)
    spent_at = END - timedelta(days=3)

    assert exhausted_at(WINDOW, budget, Fraction(1), spent_at) == spent_at


@given(bad=st.integers(0, 10**6), valid=st.integers(1, 10**6), digits=st.integers(1, 6))
def test_state_is_the_integer_comparison_of_bad_and_allowed(bad, valid, digits):
    bad = min(bad, valid)
    target = "0." + "9" * digits

    _, state = judged(target, valid - bad, valid)

    assert (state is State.MET) == (bad * 10**digits <= valid)
