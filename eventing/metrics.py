"""The catalogue of every metric that an image exports.

Images register from it, SLO objectives and dashboards select from it: a rename cannot break a report silently.
A name follows Prometheus' conventions (base units, `_total`, `_seconds`); where older dashboards depend on a name
(strimzi-canary, the eventing-kafka dispatcher) theirs is kept as it is, unit included.

Label sets that are known in advance exist from the start with 0, so that a first failure is an increase, not a birth.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """Prometheus metric types in use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric family; `name` is the exposed one, for counters with its `_total`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    """Unit of the value, for documentation (`seconds`, `records`, `milliseconds`)."""
    buckets: tuple[float, ...] = ()
    """Upper bounds without +Inf, in `unit`; for histograms only."""


LATENCY_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""One set for all latencies of ours, so that objectives may name the same thresholds everywhere."""

# --- dispatcher ------------------------------------------------------------------------------------------------------

# --- receiver --------------------------------------------------------------------------------------------------------

# --- canary ----------------------------------------------------------------------------------------------------------

ALL: tuple[Metric, ...] = ()
"""Every metric of the catalogue, for documentation and for checks of objectives."""
