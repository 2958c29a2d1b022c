"""Windows on clocks and calendars: exact bounds, on the days when clocks and calendars are odd."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assets.slo.durations import Duration, parse_duration
from assets.slo.windows import CalendarWindow, Range, RollingWindow, complement


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def periods(duration: str, anchor: str, zone: str, start: str, end: str) -> list[tuple[str, str]]:
    window = CalendarWindow(parse_duration(duration), datetime.fromisoformat(anchor), zone)
    return [
        (found.start.strftime("%m-%dT%H:%M"), found.end.strftime("%m-%dT%H:%M"))
        for found in window.ranges(Range(utc(start), utc(end)))
    ]


def test_a_rolling_window_ends_where_the_report_does():
    asked = Range(utc("2026-11-19T00:00:00Z"), utc("2026-11-20T00:00:00Z"))

    assert RollingWindow(parse_duration("30d")).ranges(asked) == [Range(utc("2026-10-21T00:00:00Z"), asked.end)]


def test_a_rolling_month_is_a_step_on_the_calendar():
    asked = Range(utc("2026-03-30T00:00:00Z"), utc("2026-03-31T00:00:00Z"))

    assert RollingWindow(parse_duration("1M")).ranges(asked)[0].start == utc("2026-02-28T00:00:00Z")


@pytest.mark.parametrize(
    ("month", "hours"),
    [("2026-03", 743), ("2026-10", 745), ("2026-02", 672), ("2028-02", 696), ("2026-04", 720)],
    ids=["clocks forward", "clocks back", "February", "leap February", "April"],
)
def test_months_in_berlin_have_their_own_lengths(month, hours):
    window = CalendarWindow(parse_duration("1M"), datetime(2020, 1, 1), "Europe/Berlin")
    middle = utc(f"{month}-15T00:00:00Z")

    (period,) = window.ranges(Range(middle, middle + timedelta(hours=1)))

    assert period.length == timedelta(hours=hours)


def test_every_period_that_overlaps_is_whole():
    assert periods("1M", "2026-01-01", "UTC", "2026-01-31T23:59:59Z", "2026-03-01T00:00:01Z") == [
        ("01-01T00:00", "02-01T00:00"),
        ("02-01T00:00", "03-01T00:00"),
        ("03-01T00:00", "04-01T00:00"),
    ]


def test_a_range_that_only_touches_a_period_does_not_overlap_it():
    assert periods("1M", "2026-01-01", "UTC", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z") == [
        ("02-01T00:00", "03-01T00:00")
    ]


def test_the_anchor_sets_the_phase_and_not_the_beginning():
    assert periods("1w", "2026-11-02T09:00", "Europe/Berlin", "2026-10-22T00:00:00Z", "2026-10-27T00:00:00Z") == [
        ("10-19T07:00", "10-26T08:00"),  # 169 hours: clocks went back on the 25th
        ("10-26T08:00", "11-02T08:00"),
    ]


def test_months_are_counted_from_the_anchor_so_that_its_day_comes_back():
    assert periods("1M", "2026-01-31T00:00", "UTC", "2026-02-10T00:00:00Z", "2026-05-01T00:00:00Z") == [
        ("01-31T00:00", "02-28T00:00"),
        ("02-28T00:00", "03-31T00:00"),
        ("03-31T00:00", "04-30T00:00"),
        ("04-30T00:00", "05-31T00:00"),
    ]


def test_a_day_keeps_its_local_hour_over_clock_changes():
    assert periods("1d", "2026-01-01T12:30", "America/New_York", "2026-03-07T20:00:00Z", "2026-03-09T12:00:00Z") == [
        ("03-07T17:30", "03-08T16:30"),
        ("03-08T16:30", "03-09T16:30"),
    ]


def test_an_hour_that_the_clock_skips_is_no_period_and_one_that_repeats_is_two_long():
    spring = periods("1h", "2026-01-01", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-29T02:00:00Z")
    autumn = periods("1h", "2026-01-01", "Europe/Berlin", "2026-10-24T23:30:00Z", "2026-10-25T02:00:00Z")

    assert spring == [("03-29T00:00", "03-29T01:00"), ("03-29T01:00", "03-29T02:00")]
    assert autumn == [("10-24T23:00", "10-25T00:00"), ("10-25T00:00", "10-25T02:00")]


def test_quarters_and_years():
    assert periods("1Q", "2026-01-01", "UTC", "2026-05-05T00:00:00Z", "2026-05-06T00:00:00Z") == [
        ("04-01T00:00", "07-01T00:00")
    ]
    assert periods("1Y", "2024-02-29", "UTC", "2026-05-05T00:00:00Z", "2026-05-06T00:00:00Z") == [
        ("02-28T00:00", "02-28T00:00")
    ]


@given(
    unit=st.sampled_from("dwMQY"),
    amount=st.integers(1, 5),
    anchor=st.datetimes(datetime(1990, 1, 1), datetime(2050, 1, 1)),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"]),
    moment=st.datetimes(datetime(1995, 1, 1), datetime(2045, 1, 1)),
)
def test_periods_cover_all_time_without_gap_or_overlap(unit, amount, anchor, zone, moment):
    window = CalendarWindow(Duration(amount, unit), anchor.replace(microsecond=0), zone)
    asked = Range(moment.replace(tzinfo=UTC), moment.replace(tzinfo=UTC) + timedelta(days=40))

    found = window.ranges(asked)

    assert found[0].start <= asked.start
    assert found[-1].end >= asked.end
    assert all(left.end == right.start for left, right in pairwise(found))
    assert all(period.overlaps(asked) for period in found)


def test_what_is_left_of_a_window_without_overlapping_corrections():
    def part(start: int, end: int) -> Range:
        return Range(
            utc("2026-11-01T00:00:00Z") + timedelta(hours=start), utc("2026-11-01T00:00:00Z") + timedelta(hours=end)
        )

    assert complement(part(0, 10), [part(2, 4), part(3, 6), part(8, 12), part(-2, 1)]) == [part(1, 2), part(6, 8)]
    assert complement(part(0, 10), [part(-1, 11)]) == []
    assert complement(part(0, 10), []) == [part(0, 10)]


@pytest.mark.parametrize("text", ["", "30", "d", "0d", "-1d", "1.5h", "1h30m", "1D", "1s", "1ms"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="no duration"):
        parse_duration(text)
