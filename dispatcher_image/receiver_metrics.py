"""The receiver's numbers: plain integers where requests are counted, Prometheus families when somebody asks.

prometheus_client's own counters take a lock for each observation; here one thread counts, so the hot path adds to
lists and `collect` turns them into families.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from dispatcher_image.receiver_routing import Route
from eventing import metrics
from eventing.metrics import Metric

_BOUNDS: Final = metrics.LATENCY_BUCKETS_SECONDS


class ReceiverMetrics(Collector):
    """Counts requests; asks for the rest at each scrape."""

    def __init__(self, *, routes: Callable[[], list[Route]], gauges: Callable[[], list[tuple[Metric, float]]]) -> None:
        self._routes = routes
        self._gauges = gauges
        self._buckets = {code: [0] * (len(_BOUNDS) + 1) for code in metrics.RECEIVER_CODES}
        self._sums = dict.fromkeys(metrics.RECEIVER_CODES, 0.0)

    def observe(self, status: int, seconds: float) -> None:
        """Count one answer."""
        self._buckets[status][bisect_left(_BOUNDS, seconds)] += 1
        self._sums[status] += seconds

    def describe(self) -> Iterator[Family]:
        """Nothing: the families depend on the registry's channels."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """One scrape."""
        requests = _counter(metrics.RECEIVER_REQUESTS)
        durations = HistogramMetricFamily(
            metrics.RECEIVER_REQUEST_DURATION.name,
            metrics.RECEIVER_REQUEST_DURATION.help,
            labels=metrics.RECEIVER_REQUEST_DURATION.labels,
        )
        bounds = [*(str(float(bound)) for bound in _BOUNDS), "+Inf"]
        for code, counts in self._buckets.items():
            requests.add_metric([str(code)], sum(counts))
            durations.add_metric(
                [str(code)],
                buckets=list(zip(bounds, accumulate(counts), strict=True)),
                sum_value=self._sums[code],
            )
        yield requests
        yield durations
        events = _counter(metrics.RECEIVER_EVENTS)
        for route in self._routes():
            events.add_metric(list(route.key), route.accepted)
        yield events
        for metric, value in self._gauges():
            gauge = GaugeMetricFamily(metric.name, metric.help)
            gauge.add_metric([], value)
            yield gauge


def _counter(metric: Metric) -> CounterMetricFamily:
    return CounterMetricFamily(metric.name.removesuffix("_total"), metric.help, labels=metric.labels)
