"""The canary's series, registered from the catalogue in `eventing.metrics`.

Kept here rather than in prometheus_client's own counters for two reasons: constant labels are configuration, and
bucket bounds are written as Go writes them (`le="400"`, not `le="400.0"`), because dashboards made for
strimzi-canary select them so. prometheus_client still writes the exposition format.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from eventing import metrics
from eventing.metrics import Kind, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Always the plain text format: OpenMetrics would demand `le="400.0"`."""

_PREFIXES = ("strimzi_canary_", "sluice_canary_")
_WITHOUT_CONSTANT_LABELS = frozenset({metrics.CANARY_CLIENT_CREATION_ERROR.name})
"""As with strimzi-canary, whose clients may fail before its labels are known."""

Labels = tuple[str, ...]


@dataclass(slots=True)
class _Histogram:
    counts: list[int]
    sum: float = 0.0


@dataclass(slots=True)
class _Series:
    metric: Metric
    bounds: tuple[float, ...]
    values: dict[Labels, float] = field(default_factory=dict)
    histograms: dict[Labels, _Histogram] = field(default_factory=dict)


class Telemetry(Collector):
    """Thread-safe; label values are given in the order of the metric's `labels`."""

    def __init__(
        self,
        *,
        constant_labels: tuple[tuple[str, str], ...] = (),
        buckets: Mapping[Metric, tuple[float, ...]] | None = None,
    ) -> None:
        self._constant_labels = constant_labels
        self._lock = threading.Lock()
        self._before_scrape: list[Callable[[], None]] = []
        self._series = {
            metric.name: _Series(metric, (buckets or {}).get(metric, metric.buckets))
            for metric in metrics.ALL
            if metric.name.startswith(_PREFIXES)
        }
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def before_scrape(self, refresh: Callable[[], None]) -> None:
        """Call `refresh` before each exposition, for gauges that are computed when they are read."""
        self._before_scrape.append(refresh)

    def expose(self, metric: Metric, *labels: str) -> None:
        """Let the series exist with 0, so that its first increment is an increase and not a birth."""
        with self._lock:
            self._touch(metric, labels)

    def count(self, metric: Metric, *labels: str) -> None:
        with self._lock:
            self._touch(metric, labels).values[labels] += 1

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        with self._lock:
            self._touch(metric, labels).values[labels] = value

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """`value` in the metric's unit."""
        with self._lock:
            series = self._touch(metric, labels)
            histogram = series.histograms[labels]
            histogram.counts[bisect.bisect_left(series.bounds, value)] += 1
            histogram.sum += value

    def drop(self, metric: Metric, *labels: str) -> None:
        """Let a gauge's series end, where its subject is no more."""
        with self._lock:
            self._series[metric.name].values.pop(labels, None)

    def exposition(self) -> bytes:
        """The answer to `GET /metrics`."""
        for refresh in self._before_scrape:
            refresh()
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        with self._lock:
            families = [self._family(series) for series in self._series.values()]
        yield from families

    def _touch(self, metric: Metric, labels: Labels) -> _Series:
        assert len(labels) == len(metric.labels), f"{metric.name} has the labels {metric.labels}, not {labels}"
        series = self._series[metric.name]
        if metric.kind is Kind.HISTOGRAM:
            if labels not in series.histograms:
                series.histograms[labels] = _Histogram([0] * (len(series.bounds) + 1))
        else:
            series.values.setdefault(labels, 0)
        return series

    def _family(self, series: _Series) -> Family:
        metric = series.metric
        constant = () if metric.name in _WITHOUT_CONSTANT_LABELS else self._constant_labels
        names = [*metric.labels, *(name for name, _ in constant)]
        values = [value for _, value in constant]
        family: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
        if metric.kind is Kind.HISTOGRAM:
            family = HistogramMetricFamily(metric.name, metric.help, labels=names)
            bounds = [*map(go_float, series.bounds), "+Inf"]
            for labels, histogram in sorted(series.histograms.items()):
                cumulative = itertools.accumulate(histogram.counts)
                family.add_metric([*labels, *values], list(zip(bounds, cumulative, strict=True)), histogram.sum)
            return family
        kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=names)
        for labels, value in sorted(series.values.items()):
            family.add_metric([*labels, *values], value)
        return family


def go_float(number: float) -> str:
    """As Go's `strconv.FormatFloat(number, 'g', -1, 64)` writes it: `2`, `0.5`, `1e+06`."""
    digits, _, exponent = f"{number!r}".partition("e")
    if not exponent and abs(number) < 1e6:
        return digits.removesuffix(".0")
    # The shortest digits that read back as the same number, in scientific form.
    precision = next(p for p in range(17) if float(f"{number:.{p}e}") == number)
    return f"{number:.{precision}e}"
