"""Prometheus rules from the objectives: multi-window, multi-burn-rate alerts and alerts on absent data.

The same selectors as in the report, as PromQL. Three facts of arithmetic:

* The ratio is bad ÷ total. 1 - good ÷ total loses the last digits, and then an error ratio of exactly the threshold
  fires.
* Thresholds are written out as decimals (0.0144), not as products that Prometheus would compute in binary
  (14.4 * 0.001 is 0.014400000000000001).
* `increase()` multiplies bad and total by the same factor of extrapolation, which is no exact binary number; their
  ratio may come out one unit in the last place too high. The thresholds allow for that noise, and for nothing more.

A threshold of 1 or more can never be exceeded, so such an objective is refused, rather than given an alert that is
always silent. Windows and factors: SRE workbook, chapter 5; factors scale with the period, windows do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import yaml

from assets.slo.budgets import BURN_WINDOWS
from assets.slo.objectives import Objective
from assets.slo.selectors import Selector
from eventing.errors import ConfigError

OBJECTIVE_LABEL = "objective"
ABSENT_AFTER = "10m"
"""Two slots without a scrape; shorter gaps happen when a process is replaced."""
ABSENT_MEMORY = "1h"
"""How long a group that fell silent is asked about, so that a removed subscription does not alert for ever."""
_NOMINAL_PERIOD = timedelta(days=30)
_NOISE = "(1 + 1e-12)"
"""A thousand times the noise of a double and a hundred-millionth of what any counter could show in a ratio."""


@dataclass(frozen=True, slots=True)
class AlertWindow:
    """Fire when both windows burn faster than `factor` (for a period of 30 days)."""

    severity: str
    factor: Decimal
    long: str
    short: str


ALERT_WINDOWS = (
    AlertWindow("page", Decimal("14.4"), "1h", "5m"),
    AlertWindow("page", Decimal(6), "6h", "30m"),
    AlertWindow("ticket", Decimal(3), "1d", "2h"),
    AlertWindow("ticket", Decimal(1), "3d", "6h"),
)


def scaled_factor(window: AlertWindow, objective: Objective) -> Decimal:
    """The burn rate at which an alert fires: so much of the period's budget goes in the long window, whatever the
    period. 13.44 instead of 14.4 for 28 days.
    """
    period = objective.window.duration.nominal
    return window.factor * Decimal(period // timedelta(seconds=1)) / Decimal(_NOMINAL_PERIOD // timedelta(seconds=1))


def rule_file(objectives: Sequence[Objective]) -> dict[str, Any]:
    """The rule file as one document: `{"groups": […]}`.

    Raises ConfigError for every objective with an alert that could never fire.
    """
    problems = [problem for objective in objectives for problem in _refusals(objective)]
    if problems:
        raise ConfigError(problems, subject="objectives")
    return {"groups": [group for objective in objectives for group in _groups(objective)]}


def render_rules(document: dict[str, Any]) -> str:
    """The rule file as YAML."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=118)


def _refusals(objective: Objective) -> list[str]:
    where = f"{objective.source}: objective {objective.name!r}: "
    taken = sorted(set(objective.group_by) & {OBJECTIVE_LABEL, "severity", "alertname"})
    if taken:
        return [f"{where}cannot group by {', '.join(taken)}, a label of every alert; relabel it when scraping"]
    if objective.budget == 0:
        return [f"{where}a target of 100 % leaves no budget to alert on; set a target below 1"]
    for window in ALERT_WINDOWS:
        factor = scaled_factor(window, objective)
        if factor * objective.budget >= 1:
            limit = 1 - 1 / max(scaled_factor(item, objective) for item in ALERT_WINDOWS)
            reason = (
                f"{where}the {window.severity} alert fires above {_decimal(factor)} * {_decimal(objective.budget)} = "
                f"{_decimal(factor * objective.budget)} errors per event, which no outage reaches; "
                f"set a target above {limit:.5f} or a shorter period"
            )
            return [reason]
    return []


def _groups(objective: Objective) -> list[dict[str, Any]]:
    # One group: its rules are evaluated in order, so that alerts see the ratios of the same moment.
    ratios = [_ratio(objective, name) for name in BURN_WINDOWS]
    return [{"name": f"slo-{objective.name}", "rules": [*ratios, *_alerts(objective), *_absent(objective)]}]


def _record(name: str) -> str:
    return f"slo:error_ratio:increase{name}"


def _ratio(objective: Objective, name: str) -> dict[str, Any]:
    total = _sum(objective, objective.indicator.total, name)
    # A selector that has no series yet counts nothing, where the total has some: an outage from the very start must
    # not look like missing data. (`or` fills in those groups only.)
    nothing = f"{total} * 0"
    if objective.indicator.bad is not None:
        bad = f"({_sum(objective, objective.indicator.bad, name)} or {nothing})"
    else:
        assert objective.indicator.good is not None
        bad = f"({total} - ({_sum(objective, objective.indicator.good, name)} or {nothing}))"
    return {"record": _record(name), "expr": f"{bad} / {total}", "labels": {OBJECTIVE_LABEL: objective.name}}


def _sum(objective: Objective, selector: Selector, name: str) -> str:
    by = f" by ({', '.join(objective.group_by)})" if objective.group_by else ""
    return f"sum{by} (increase({selector}[{name}]))"


def _alerts(objective: Objective) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = []
    for severity in dict.fromkeys(window.severity for window in ALERT_WINDOWS):
        windows = [window for window in ALERT_WINDOWS if window.severity == severity]
        rules.append(
            {
                "alert": "SLOErrorBudgetBurn",
                "expr": "\nor\n".join(f"({_burns(objective, window)})" for window in windows),
                "labels": {"severity": severity, OBJECTIVE_LABEL: objective.name},
                "annotations": _annotations(objective, windows),
            }
        )
    return rules


def _burns(objective: Objective, window: AlertWindow) -> str:
    threshold = _decimal(scaled_factor(window, objective) * objective.budget)
    selected = f'{{{OBJECTIVE_LABEL}="{_escaped(objective.name)}"}}'
    return " and ".join(f"{_record(name)}{selected} > {threshold} * {_NOISE}" for name in (window.long, window.short))


def _annotations(objective: Objective, windows: Sequence[AlertWindow]) -> dict[str, str]:
    group = ", ".join(f"{name} {{{{ $labels.{name} }}}}" for name in objective.group_by)
    rates = " or ".join(
        f"{_decimal(scaled_factor(window, objective))} times over {window.long} and {window.short}"
        for window in windows
    )
    return {
        "summary": f"{objective.display_name} burns its error budget too fast" + (f" ({group})" if group else ""),
        "description": (
            f"{{{{ $value | humanizePercentage }}}} of events are bad; the target is {_percent(objective.target)} over "
            f"{objective.window.duration}. The budget burns at more than {rates} of what the period allows."
        ),
        "runbook": (
            f"1. `sluice slo report` or the report page: which label sets burn the budget of {objective.name}. "
            "2. `sluice status` and the Dagster runs of that time: what was changed, resized or restarted. "
            "3. Stop what started it, or move traffic; then look whether the short window recovers."
        ),
    }


def _absent(objective: Objective) -> list[dict[str, Any]]:
    total = objective.indicator.total
    if objective.group_by:
        by = f" by ({', '.join(objective.group_by)})"
        expression = (
            f"group{by} (last_over_time({total}[{ABSENT_MEMORY}])) unless group{by} "
            f"(last_over_time({total}[{ABSENT_AFTER}]))"
        )
    else:
        # `group` takes the selector's labels off, which absent_over_time would add.
        expression = f"group (absent_over_time({total}[{ABSENT_AFTER}]))"
    return [
        {
            "alert": "SLODataAbsent",
            "expr": expression,
            "labels": {"severity": "ticket", OBJECTIVE_LABEL: objective.name},
            "annotations": {
                "summary": f"{objective.display_name}: nothing was measured for {ABSENT_AFTER}",
                "description": f"There is no sample of {total}. The objective is neither met nor breached: unknown.",
                "runbook": "Look whether the target is up and scraped; then whether the metric was renamed.",
            },
        }
    ]


def _decimal(value: Decimal) -> str:
    """Plain notation without trailing zeros."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _percent(target: Decimal) -> str:
    return f"{_decimal(target * 100)} %"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
