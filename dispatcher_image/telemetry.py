"""What the dispatcher counts, and how it becomes Prometheus families when somebody asks.

prometheus_client's counters take a lock and look-ups for each event, a tenth of what a delivery may cost. So the hot
path adds to plain lists of a `Stats`, one for each subscription, and `DispatcherMetrics.collect` reads them. All series
of a subscription exist from its start with 0.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from dispatcher_image.delivery import Fate, NoAnswer, Outcome, Stage
from eventing import metrics
from eventing.metrics import Metric

BOUNDS: Final = metrics.LATENCY_BUCKETS_SECONDS
_BOUND_LABELS: Final = [*(str(float(bound)) for bound in BOUNDS), "+Inf"]
_STAGES: Final = {Stage.SUBSCRIBER: "subscriber", Stage.REPLY: "reply", Stage.SINK: "dead_letter_sink"}


class Histogram:
    """Counts by bucket. The hot path adds to `counts` and `total` itself."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


class Stats:
    """The numbers of one subscription, from its start in this process."""

    def __init__(self) -> None:
        self.attempts: dict[tuple[str, str], int] = {
            (stage, outcome): 0 for stage in metrics.DISPATCHER_STAGES for outcome in metrics.DISPATCHER_OUTCOMES
        }
        self.delivered_at_once = 0
        """Attempts at the subscriber with a 2xx that settled the event: the one count that is on the hot path."""
        self.fates = dict.fromkeys(Fate, 0)
        self.retries = 0
        self.queue = Histogram()
        self.attempt = Histogram()
        self.end_to_end = Histogram()
        self.rebalances = dict.fromkeys(metrics.DISPATCHER_REBALANCE_KINDS, 0)
        self.commits = dict.fromkeys(metrics.DISPATCHER_COMMIT_RESULTS, 0)
        self.expired = 0
        self.consumed: dict[int, int] = {}
        """By partition, without what its present assignment has counted itself."""

    def count(self, stage: Stage, outcome: Outcome) -> None:
        """One attempt that the hot path does not count."""
        kind = "no_answer" if isinstance(outcome, NoAnswer) else f"{min(max(outcome.status // 100, 1), 5)}xx"
        self.attempts[_STAGES[stage], kind] += 1


class Observed(Protocol):
    """What a subscription shows to a scrape."""

    namespace: str
    channel: str
    uid: str
    topic: str
    client_name: str
    stats: Stats

    def consumed(self) -> Mapping[int, int]:
        """Records read, for each partition of the topic."""

    def gauges(self) -> Iterable[tuple[Metric, float]]:
        """Present values; one that is not known is left out, which is not 0."""


class DispatcherMetrics(Collector):
    """All subscriptions of the process, as they are at each scrape."""

    def __init__(self, subscriptions: Callable[[], Iterable[Observed]]) -> None:
        self._subscriptions = subscriptions

    def describe(self) -> Iterator[Family]:
        """Nothing: the series depend on the registry."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """One scrape."""
        observed = sorted(self._subscriptions(), key=lambda s: (s.namespace, s.channel, s.uid))
        consumed = GaugeMetricFamily(
            metrics.CONSUMED_MSG_COUNT.name, metrics.CONSUMED_MSG_COUNT.help, labels=metrics.CONSUMED_MSG_COUNT.labels
        )
        for one in observed:
            for partition, count in sorted(one.consumed().items()):
                consumed.add_metric([one.client_name, str(partition), one.topic], count)
        yield consumed
        yield from self._counters(observed)
        for metric, read in _HISTOGRAMS:
            durations = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for one in observed:
                histogram = read(one.stats)
                buckets = list(zip(_BOUND_LABELS, accumulate(histogram.counts), strict=True))
                durations.add_metric(_labels(one), buckets=buckets, sum_value=histogram.total)
            yield durations
        gauges: dict[str, GaugeMetricFamily] = {}
        for one in observed:
            for metric, value in one.gauges():
                if metric.name not in gauges:
                    gauges[metric.name] = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
                gauges[metric.name].add_metric(_labels(one), value)
        yield from gauges.values()

    def _counters(self, observed: list[Observed]) -> Iterator[Family]:
        attempts, settled = _counter(metrics.DISPATCHER_ATTEMPTS), _counter(metrics.DISPATCHER_SETTLED)
        retries, expired = _counter(metrics.DISPATCHER_RETRIES), _counter(metrics.DISPATCHER_EXPIRED)
        rebalances, commits = _counter(metrics.DISPATCHER_REBALANCES), _counter(metrics.DISPATCHER_COMMITS)
        for one in observed:
            stats, labels = one.stats, _labels(one)
            for (stage, outcome), count in stats.attempts.items():
                is_hot = stage == "subscriber" and outcome == "2xx"
                attempts.add_metric([*labels, stage, outcome], count + (stats.delivered_at_once if is_hot else 0))
            for fate, count in stats.fates.items():
                more = stats.delivered_at_once if fate is Fate.DELIVERED else 0
                settled.add_metric([*labels, fate.value], count + more)
            retries.add_metric(labels, stats.retries)
            expired.add_metric(labels, stats.expired)
            for kind, count in stats.rebalances.items():
                rebalances.add_metric([*labels, kind], count)
            for result, count in stats.commits.items():
                commits.add_metric([*labels, result], count)
        yield from (attempts, settled, retries, expired, rebalances, commits)


_HISTOGRAMS: Final[list[tuple[Metric, Callable[[Stats], Histogram]]]] = [
    (metrics.DISPATCHER_QUEUE_SECONDS, lambda stats: stats.queue),
    (metrics.DISPATCHER_ATTEMPT_SECONDS, lambda stats: stats.attempt),
    (metrics.DISPATCHER_END_TO_END_SECONDS, lambda stats: stats.end_to_end),
]


def _labels(one: Observed) -> list[str]:
    return [one.namespace, one.channel, one.uid]


def _counter(metric: Metric) -> CounterMetricFamily:
    return CounterMetricFamily(metric.name.removesuffix("_total"), metric.help, labels=metric.labels)


_SEED_VALUE = re.compile(rb"^(eventing_kafka_consumed_msg_count\{[^\n]*\} \d+)\.0$", re.MULTILINE)


def as_the_seed_shows(page: bytes) -> bytes:
    """Whole numbers for the inherited counter: `… 1`, not `… 1.0`, because people grep for it."""
    return _SEED_VALUE.sub(rb"\1", page)
