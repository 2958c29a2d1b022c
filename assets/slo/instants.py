"""Moments on the command line and in reports: RFC 3339 with a zone in, UTC with `Z` out, milliseconds inside.

Samples have millisecond resolution. A bound between two milliseconds is rounded down, which changes neither
`timestamp > bound` nor `timestamp <= bound` for whole milliseconds.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:[Zz]|[+-]\d{2}:\d{2})")


def parse_instant(text: str) -> datetime:
    """Read an RFC 3339 time with its zone. Raises ValueError with the remedy."""
    if not _RFC3339.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is no RFC 3339 time with a zone; write for example 2026-11-01T00:00:00Z")
    try:
        return datetime.fromisoformat(text.strip().upper()).astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise ValueError(f"{text!r} is no time that exists ({exc})") from exc


def to_millis(moment: datetime) -> int:
    """Whole milliseconds since the epoch, rounded down."""
    return (moment - EPOCH) // timedelta(milliseconds=1)


def from_millis(millis: int) -> datetime:
    return EPOCH + timedelta(milliseconds=millis)


def after(moment: datetime, seconds: Fraction) -> datetime | None:
    """`moment` + seconds, to the millisecond; None beyond the calendar (a budget that lasts past the year 9999)."""
    try:
        return moment + timedelta(milliseconds=round(seconds * 1000))
    except OverflowError:
        return None


def render_instant(moment: datetime) -> str:
    """`2026-11-01T00:00:00Z`, with milliseconds only where there are any."""
    utc = moment.astimezone(UTC)
    return utc.isoformat(timespec="milliseconds" if utc.microsecond else "seconds").replace("+00:00", "Z")
