"""The sliding windows behind `/status` and the availability ratios.

`/status` is strimzi-canary's: totals are sampled every interval into a ring; the percentage is the growth of the
consumed over the growth of the produced total between the oldest and the newest sample, -1 where nothing was
produced between them. It can exceed 100 when records come back that were given up before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class StatusWindow:
    """`size` samples (≥ 1), one each `interval_ms`."""

    def __init__(self, *, size: int, interval_ms: int) -> None:
        assert size >= 1, f"a window holds at least one sample, not {size}"
        self._samples: deque[tuple[int, int]] = deque(maxlen=size)
        self._interval_ms = interval_ms

    def sample(self, *, produced: int, consumed: int) -> None:
        """Take the totals as they are now."""
        self._samples.append((produced, consumed))

    def percentage(self) -> float:
        """0 … 100 (or more), two digits; -1 without a sample or without records in the window."""
        if not self._samples:
            return -1
        (produced_then, consumed_then), (produced_now, consumed_now) = self._samples[0], self._samples[-1]
        produced = produced_now - produced_then
        if produced == 0:
            return -1
        percentage = round((consumed_now - consumed_then) * 100 / produced, 2)
        return int(percentage) if percentage.is_integer() else percentage

    def document(self) -> dict[str, dict[str, float]]:
        """The body of `/status`; `TimeWindow` in milliseconds."""
        return {"Consuming": {"TimeWindow": self._interval_ms * len(self._samples), "Percentage": self.percentage()}}


@dataclass(frozen=True, slots=True)
class Totals:
    """What became of the probes of one partition or broker since the start."""

    acknowledged: int = 0
    unacknowledged: int = 0
    back_in_time: int = 0
    lost: int = 0

    def plus(self, other: Totals) -> Totals:
        return Totals(
            self.acknowledged + other.acknowledged,
            self.unacknowledged + other.unacknowledged,
            self.back_in_time + other.back_in_time,
            self.lost + other.lost,
        )

    def minus(self, other: Totals) -> Totals:
        return Totals(
            self.acknowledged - other.acknowledged,
            self.unacknowledged - other.unacknowledged,
            self.back_in_time - other.back_in_time,
            self.lost - other.lost,
        )

    @property
    def produce_availability(self) -> float | None:
        """None without attempts: no data is neither good nor bad."""
        attempts = self.acknowledged + self.unacknowledged
        return self.acknowledged / attempts if attempts else None

    @property
    def consume_availability(self) -> float | None:
        """None while no acknowledged record has come back or been given up."""
        settled = self.back_in_time + self.lost
        return self.back_in_time / settled if settled else None


class AvailabilityWindow(Generic[Key]):
    """Totals by key, and how they grew since the oldest of the last `size` samples."""

    def __init__(self, *, size: int) -> None:
        self._totals: dict[Key, Totals] = {}
        # One more than the intervals between them; the first is the start, where all was 0.
        self._samples: deque[Mapping[Key, Totals]] = deque([{}], maxlen=size + 1)

    def add(self, key: Key, growth: Totals) -> None:
        self._totals[key] = self._totals.get(key, Totals()).plus(growth)

    def sample(self) -> None:
        self._samples.append(dict(self._totals))

    def growth(self) -> dict[Key, Totals]:
        """By key: what was added within the window."""
        oldest = self._samples[0]
        return {key: total.minus(oldest.get(key, Totals())) for key, total in self._totals.items()}
