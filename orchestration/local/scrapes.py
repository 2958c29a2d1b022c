"""What one scrape adds to the samples: Prometheus' rules for labels, `up` and stale markers, without clock and network.

* A label of the scraped metric wins over the target's (`honor_labels`): objectives select by our metrics' own labels.
* `up` is 1 or 0 for each attempt.
* A series that a target told at its last good scrape and does not tell now gets one stale marker, a NaN with fixed
  bits. A failed scrape makes all its series stale, a target that has gone its `up` as well
  (https://prometheus.io/docs/prometheus/latest/querying/basics/#staleness).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

STALE_BITS = 0x7FF0000000000002
STALE: float = struct.unpack("<d", STALE_BITS.to_bytes(8, "little"))[0]

Labels = tuple[tuple[str, str], ...]
"""Sorted by name, without `__name__`, so that equal label sets are equal."""
Series = tuple[str, Labels]


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of the samples; `timestamp_ms` is Unix time."""

    metric: str
    labels: Labels
    timestamp_ms: int
    value: float


@dataclass(frozen=True, slots=True)
class Exposed:
    """One line of an exposition; `timestamp_ms` where the target gives one."""

    metric: str
    labels: Mapping[str, str]
    value: float
    timestamp_ms: int | None = None


def normalized(labels: Mapping[str, str]) -> Labels:
    """Sorted, and without empty values: to Prometheus an empty label is an absent one."""
    return tuple(sorted((name, value) for name, value in labels.items() if value != ""))


@dataclass(slots=True)
class TargetHistory:
    """One target between its scrapes. Every method returns the samples that the event adds."""

    labels: Mapping[str, str]
    _alive: set[Series] = field(default_factory=set)

    def scraped(self, exposed: Iterable[Exposed], now_ms: int) -> list[Sample]:
        """The target has answered."""
        samples: dict[Series, Sample] = {}
        for line in exposed:
            series = (line.metric, normalized({**self.labels, **line.labels}))
            at = now_ms if line.timestamp_ms is None else line.timestamp_ms
            # A series that is told twice keeps its first value, as in Prometheus.
            samples.setdefault(series, Sample(*series, at, line.value))
        gone = self._alive - samples.keys()
        self._alive = set(samples)
        return [*samples.values(), *_stale(gone, now_ms), self._up(1.0, now_ms)]

    def failed(self, now_ms: int) -> list[Sample]:
        """The target did not answer, or not with metrics."""
        gone, self._alive = self._alive, set()
        return [*_stale(gone, now_ms), self._up(0.0, now_ms)]

    def vanished(self, now_ms: int) -> list[Sample]:
        """The target is not to be scraped any more."""
        gone, self._alive = self._alive, set()
        return _stale(gone | {("up", normalized(self.labels))}, now_ms)

    def _up(self, value: float, now_ms: int) -> Sample:
        return Sample("up", normalized(self.labels), now_ms, value)


def _stale(series: Iterable[Series], now_ms: int) -> list[Sample]:
    return [Sample(metric, labels, now_ms, STALE) for metric, labels in sorted(series)]
