"""Error budgets, burn rates and states: the arithmetic of a report, exact.

Counts come as doubles that hold whole numbers, targets as decimals; everything between is computed with fractions, so
that exactly 0.1 % of failures against 99.9 % consumes exactly the budget. Rounding happens once, when a number is
printed, and no decision is taken on a rounded one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import assert_never

from assets.slo.instants import after
from assets.slo.objectives import Method, Objective
from assets.slo.windows import Range

BURN_WINDOWS: dict[str, timedelta] = {
    "5m": timedelta(minutes=5),
    "30m": timedelta(minutes=30),
    "1h": timedelta(hours=1),
    "2h": timedelta(hours=2),
    "6h": timedelta(hours=6),
    "1d": timedelta(days=1),
    "3d": timedelta(days=3),
}
"""The windows of the alerts (SRE workbook, chapter 5), before the end of the report's window."""
LONGEST_ALERT_WINDOW = "3d"


class State(enum.StrEnum):
    """How an objective stands. Without data or traffic it is neither met nor breached."""

    MET = "met"
    BREACHED = "breached"
    NO_TRAFFIC = "no_traffic"
    NO_DATA = "no_data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What happened in a range. Events are clamped per slot; slices are those with traffic."""

    good: Fraction = Fraction(0)
    valid: Fraction = Fraction(0)
    slices: int = 0
    good_slices: int = 0
    ratio_sum: Fraction = Fraction(0)
    """Sum over slices of good ÷ valid."""

    @property
    def bad(self) -> Fraction:
        return self.valid - self.good

    def sli(self, method: Method) -> Fraction | None:
        """Share of good; None without traffic."""
        if self.valid == 0:
            return None
        match method:
            case Method.OCCURRENCES:
                return self.good / self.valid
            case Method.TIMESLICES:
                return Fraction(self.good_slices, self.slices)
            case Method.RATIO_TIMESLICES:
                return self.ratio_sum / self.slices
            case _:
                assert_never(method)


class Infinite(enum.Enum):
    """More than any number: what failures consume of a budget of nothing."""

    INFINITE = "+Inf"


INFINITE = Infinite.INFINITE
Consumed = Fraction | Infinite


def consumption(objective: Objective, counts: Counts) -> Consumed | None:
    """Share of the budget that is spent, and the burn rate of a range: both are (1 - SLI) ÷ (1 - target).

    None without traffic. A target of 100 % has no budget: nothing bad consumes nothing of it, anything bad more than
    any number.
    """
    sli = counts.sli(objective.method)
    if sli is None:
        return None
    missed, budget = 1 - sli, Fraction(objective.budget)
    if budget == 0:
        return INFINITE if missed else Fraction(0)
    return missed / budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The budget of one window. `consumed` and `remaining` are None without data."""

    events: Fraction | None
    """Events that may be bad, given those that were valid."""
    minutes: Fraction
    """Minutes of complete outage that the period allows."""
    consumed: Consumed | None

    @property
    def remaining(self) -> Consumed | None:
        """1 - consumed; `INFINITE` stands for minus infinity here."""
        return 1 - self.consumed if isinstance(self.consumed, Fraction) else self.consumed


def budget_of(objective: Objective, counts: Counts, period: timedelta, *, has_data: bool) -> Budget:
    """The budget over a period. Samples without events consume nothing; no samples is unknown, never zero."""
    share = Fraction(objective.budget)
    consumed = consumption(objective, counts)
    if consumed is None and has_data:
        consumed = Fraction(0)
    return Budget(
        events=share * counts.valid if has_data else None,
        minutes=share * Fraction(period // timedelta(microseconds=1), 60_000_000),
        consumed=consumed if has_data else None,
    )


def state_of(counts: Counts, budget: Budget, *, has_data: bool) -> State:
    """Met while no more than the whole budget is consumed, on the unrounded number."""
    if not has_data:
        return State.NO_DATA
    if counts.valid == 0:
        return State.NO_TRAFFIC
    assert budget.consumed is not None
    return State.MET if not isinstance(budget.consumed, Infinite) and budget.consumed <= 1 else State.BREACHED


def is_spent(budget: Budget) -> bool:
    """Whether nothing is left; at exactly 100 % consumed the objective is still met."""
    return isinstance(budget.consumed, Infinite) or (budget.consumed is not None and budget.consumed >= 1)


def is_at_risk(state: State, budget: Budget, burn: Consumed | None) -> bool:
    """Met, but at this burn rate what remains lasts for less than a period."""
    if state is not State.MET or burn is None or burn == 0:
        return False
    if isinstance(burn, Infinite):
        return True
    remaining = budget.remaining
    assert isinstance(remaining, Fraction)
    return remaining / burn < 1


def exhausted_at(window: Range, budget: Budget, burn: Consumed | None, spent_at: datetime | None) -> datetime | None:
    """When the budget ends: in the past where it is spent, else by the burn rate of the longest alert window.

    None at burn 0, without traffic in that window, or beyond the calendar.
    """
    if is_spent(budget):
        return spent_at
    remaining = budget.remaining
    if not isinstance(remaining, Fraction) or not isinstance(burn, Fraction) or burn == 0:
        return None
    seconds = Fraction(window.length // timedelta(microseconds=1), 1_000_000)
    return after(window.end, remaining * seconds / burn)
