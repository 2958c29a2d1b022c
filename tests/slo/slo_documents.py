"""OpenSLO documents for tests: one valid SLO, changed in the one point that a test is about."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import yaml

from assets.slo.objectives import Objective, parse_objectives


def query(text: str) -> dict[str, Any]:
    return {"metricSource": {"type": "Prometheus", "spec": {"query": text}}}


def slo(
    name: str = "availability",
    *,
    good: str | None = None,
    bad: str | None = None,
    total: str = "requests_total",
    target: str | None = "0.999",
    window: dict[str, Any] | None = None,
    method: str = "Occurrences",
    group_by: str | None = None,
    **objective: Any,
) -> dict[str, Any]:
    """A document; `bad` is requests_total{code=~"5.."} unless good or bad is given."""
    ratio: dict[str, Any] = {"counter": True, "total": query(total)}
    if good is not None:
        ratio["good"] = query(good)
    else:
        ratio["bad"] = query(bad or 'requests_total{code=~"5.."}')
    entry = dict(objective)
    if target is not None:
        entry["target"] = float(target)
    metadata: dict[str, Any] = {"name": name}
    if group_by is not None:
        metadata["annotations"] = {"sluice.dev/group-by": group_by}
    return {
        "apiVersion": "openslo/v1",
        "kind": "SLO",
        "metadata": metadata,
        "spec": {
            "service": "test",
            "indicator": {"metadata": {"name": "sli"}, "spec": {"ratioMetric": ratio}},
            "timeWindow": [window or {"duration": "30d", "isRolling": True}],
            "budgetingMethod": method,
            "objectives": [entry],
        },
    }


def parse(*documents: dict[str, Any], source: str = "test.yaml") -> list[Objective]:
    return parse_objectives([(source, yaml.safe_dump_all(documents))])


def objective(**changes: Any) -> Objective:
    """One parsed objective."""
    return parse(slo(**changes))[0]


def decimal(text: str) -> Decimal:
    return Decimal(text)
