"""The windows over which an objective is judged, and the ranges inside them.

All ranges are left-open and right-closed, as in Prometheus 3: a sample at the very start belongs to the range before.

Rolling windows have a fixed length and end at the report's time. Calendar windows follow a clock on a wall: phase and
length are counted in local time, so that a month in Berlin has 743 hours in March and 745 in October.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from assets.slo.durations import Duration


@dataclass(frozen=True, slots=True)
class Range:
    """(start, end], both aware and UTC."""

    start: datetime
    end: datetime

    @property
    def length(self) -> timedelta:
        return self.end - self.start

    def overlaps(self, other: Range) -> bool:
        return self.start < other.end and other.start < self.end

    def intersection(self, other: Range) -> Range | None:
        start, end = max(self.start, other.start), min(self.end, other.end)
        return Range(start, end) if start < end else None


@dataclass(frozen=True, slots=True)
class RollingWindow:
    """The last `duration` before the report's time."""

    duration: Duration

    @property
    def kind(self) -> str:
        return "rolling"

    @property
    def time_zone(self) -> str:
        return "UTC"

    def ranges(self, asked: Range) -> list[Range]:
        """One range that ends where the asked one does; where it starts has no bearing."""
        fixed = self.duration.fixed
        if fixed is not None:
            return [Range(asked.end - fixed, asked.end)]
        assert self.duration.months is not None
        return [Range(_add_months(asked.end, -self.duration.months), asked.end)]

    def before(self, window: Range) -> Range:
        """The window that ended when this one began."""
        return self.ranges(Range(window.start - self.duration.nominal, window.start))[-1]


@dataclass(frozen=True, slots=True)
class CalendarWindow:
    """Periods of `duration` whose phase is `anchor`, a local time without zone, counted on in `zone`."""

    duration: Duration
    anchor: datetime
    zone: str

    @property
    def kind(self) -> str:
        return "calendar"

    @property
    def time_zone(self) -> str:
        return self.zone

    def ranges(self, asked: Range) -> list[Range]:
        """Every whole period that overlaps the asked range, in order.

        The anchor sets the phase only: periods before it exist as well. A period that a clock change leaves without
        any time (an hour in spring) is left out.
        """
        return [period for period in self._periods(asked) if period.start < period.end and period.overlaps(asked)]

    def before(self, window: Range) -> Range:
        """The period before this one."""
        return self.ranges(Range(window.start - timedelta(milliseconds=1), window.start))[0]

    def _periods(self, asked: Range) -> Iterator[Range]:
        index = self._index_before(asked.start)
        while True:
            period = Range(self._boundary(index), self._boundary(index + 1))
            if period.start >= asked.end:
                return
            yield period
            index += 1

    def _index_before(self, moment: datetime) -> int:
        """An index whose period surely does not start after the moment."""
        elapsed = moment.astimezone(ZoneInfo(self.zone)).replace(tzinfo=None) - self.anchor
        # Early rather than late: two periods for fractions and clock changes, one a year because real months are
        # longer than nominal ones.
        return elapsed // self.duration.nominal - 2 - abs(elapsed) // timedelta(days=28 * 12)

    def _boundary(self, index: int) -> datetime:
        fixed, months = self.duration.fixed, self.duration.months
        if fixed is not None:
            local = self.anchor + index * fixed
        else:
            assert months is not None
            local = _add_months(self.anchor, index * months)
        # A local time that a clock change skips is taken with the offset before the change; one that occurs twice is
        # the first of the two (PEP 495, fold=0).
        return local.replace(tzinfo=ZoneInfo(self.zone)).astimezone(UTC)


def _add_months(moment: datetime, months: int) -> datetime:
    """Months counted from the anchor, so that 31 January, 28 February, 31 March follow each other."""
    year, month = divmod(moment.year * 12 + moment.month - 1 + months, 12)
    day = min(moment.day, calendar.monthrange(year, month + 1)[1])
    return moment.replace(year=year, month=month + 1, day=day)


Window = RollingWindow | CalendarWindow


def complement(whole: Range, excluded: list[Range]) -> list[Range]:
    """What is left of `whole` when the union of `excluded` is taken away, in order."""
    left: list[Range] = []
    start = whole.start
    for cut in sorted(excluded, key=lambda item: item.start):
        if cut.start > start:
            left.append(Range(start, min(cut.start, whole.end)))
        start = max(start, cut.end)
        if start >= whole.end:
            break
    if start < whole.end:
        left.append(Range(start, whole.end))
    return [piece for piece in left if piece.start < piece.end]
