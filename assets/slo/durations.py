"""Durations as OpenSLO and Prometheus write them: `5m`, `6h`, `30d`, `4w`, `1M`, `1Q`, `1Y`.

m, h, d and w have one length everywhere. M, Q and Y are steps on a calendar: they have a length only between two
dates; where a length is needed without dates (scaling of alert factors) a nominal one is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

_PATTERN = re.compile(r"([1-9][0-9]*)([mhdwMQY])")

_FIXED = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_MONTHS = {"M": 1, "Q": 3, "Y": 12}
# 30, 90 and 365 days: a month has the 30 days for which the published alert factors hold.
_NOMINAL_DAYS = {"M": 30, "Q": 90, "Y": 365}


@dataclass(frozen=True, slots=True)
class Duration:
    """`amount` times `unit` (one of m h d w M Q Y)."""

    amount: int
    unit: str

    def __str__(self) -> str:
        return f"{self.amount}{self.unit}"

    @property
    def months(self) -> int | None:
        """Calendar months, or None for a fixed length."""
        return self.amount * _MONTHS[self.unit] if self.unit in _MONTHS else None

    @property
    def fixed(self) -> timedelta | None:
        """The length, or None for calendar steps."""
        return self.amount * _FIXED[self.unit] if self.unit in _FIXED else None

    @property
    def nominal(self) -> timedelta:
        """The length, with months of 30, quarters of 90 and years of 365 days."""
        return self.fixed or timedelta(days=self.amount * _NOMINAL_DAYS[self.unit])


def parse_duration(text: str) -> Duration:
    """Read a duration. Raises ValueError with the remedy."""
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is no duration; write a whole number and one of m, h, d, w, M, Q, Y, for example 30d"
        )
    return Duration(int(match[1]), match[2])


def prometheus_duration(length: timedelta) -> str:
    """The shortest single-unit notation that Prometheus reads: 3600 s are `1h`."""
    seconds = int(length.total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
