"""Asset checks of the report: what another pipeline, or a release, may be made to depend on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from fractions import Fraction

import dagster as dg

from assets.resources import ReportPlaces
from assets.slo.budgets import State
from assets.slo.page import LEAST_COVERAGE
from assets.slo.report import Report, ReportResult
from assets.slo.report_documents import percent
from eventing.errors import SluiceError

KEY = dg.AssetKey(["slo", "report"])
MOST_AGE = timedelta(minutes=10)
"""Two slots."""


def met_check(name: str) -> str:
    """The check's name for an objective: Dagster allows letters, digits and underscores."""
    return f"met_{re.sub(r'[^A-Za-z0-9_]', '_', name)}"


def _names() -> list[str]:
    """The objectives at load time. Broken ones must not keep the location from loading: the report's run says why."""
    try:
        return [objective.name for objective in ReportPlaces.from_env().load_objectives()]
    except SluiceError:
        return []


NAMES = _names()
CHECKS_OF_REPORT = [
    *(
        dg.AssetCheckSpec(met_check(name), asset=KEY, description=f"{name}: no group of it is breached or unknown.")
        for name in NAMES
    ),
    dg.AssetCheckSpec(
        "coverage_sufficient",
        asset=KEY,
        description="At least nine of ten expected scrapes were seen; a new platform stays below for its first window.",
    ),
    dg.AssetCheckSpec("good_within_valid", asset=KEY, description="No slot counts more good or bad than valid events."),
    dg.AssetCheckSpec("samples_fresh", asset=KEY, description="The newest sample is at most two slots old."),
]


def check_results(
    key: dg.AssetKey, result: ReportResult, newest: datetime | None, now: datetime
) -> Iterator[dg.AssetCheckResult]:
    """The outcome of every check."""
    for name in NAMES:
        yield _met(key, name, [report for report in result.reports if report.objective.name == name])
    yield _coverage(key, result.reports)
    clamped = [warning for warning in result.warnings if "exceeded valid" in warning]
    yield dg.AssetCheckResult(
        asset_key=key,
        check_name="good_within_valid",
        passed=not clamped,
        severity=dg.AssetCheckSeverity.WARN,
        description="; ".join(clamped) or "good and bad never exceed valid",
    )
    age = None if newest is None else now - newest
    yield dg.AssetCheckResult(
        asset_key=key,
        check_name="samples_fresh",
        passed=age is not None and age <= MOST_AGE,
        severity=dg.AssetCheckSeverity.ERROR,
        description="there are no samples" if age is None else f"the newest sample is {age.total_seconds():.0f} s old",
        metadata={} if age is None else {"age in seconds": age.total_seconds()},
    )


def unknown_results(key: dg.AssetKey, why: str) -> Iterator[dg.AssetCheckResult]:
    """Every check when there is nothing to look at: not passed, and nobody's fault."""
    for spec in CHECKS_OF_REPORT:
        yield dg.AssetCheckResult(
            asset_key=key,
            check_name=spec.name,
            passed=False,
            severity=dg.AssetCheckSeverity.WARN,
            description=why,
        )


def _met(key: dg.AssetKey, name: str, reports: Sequence[Report]) -> dg.AssetCheckResult:
    """Breached is an error; unknown and at risk are warnings; without traffic there is nothing to blame."""
    breached = [report for report in reports if report.state is State.BREACHED]
    unknown = [report for report in reports if report.state is State.NO_DATA]
    at_risk = [report for report in reports if report.is_at_risk]
    said = [f"{_group(report)}breached: {percent(report.sli, 4)}" for report in breached]
    said += [f"{_group(report)}without data" for report in unknown]
    said += [f"{_group(report)}at risk" for report in at_risk]
    if not reports:
        said.append("could not be computed; see the run's warnings")
    slis = [report.sli for report in reports if report.sli is not None]
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=met_check(name),
        passed=not breached and not unknown and not at_risk and bool(reports),
        severity=dg.AssetCheckSeverity.ERROR if breached else dg.AssetCheckSeverity.WARN,
        description="; ".join(said[:20]) or "kept",
        metadata={"lowest SLI": float(min(slis))} if slis else {},
    )


def _coverage(key: dg.AssetKey, reports: Sequence[Report]) -> dg.AssetCheckResult:
    low = [report for report in reports if (report.coverage or 0.0) < LEAST_COVERAGE]
    least = min((report.coverage or 0.0 for report in reports), default=0.0)
    said = "; ".join(
        f"{report.objective.name} {_group(report)}{percent(Fraction(report.coverage or 0), 1)}" for report in low[:10]
    )
    return dg.AssetCheckResult(
        asset_key=key,
        check_name="coverage_sufficient",
        passed=not low,
        severity=dg.AssetCheckSeverity.WARN,
        description=said or "enough was seen",
        metadata={"least coverage": least},
    )


def _group(report: Report) -> str:
    return "".join(f"{name}={value} " for name, value in report.labels.items())
