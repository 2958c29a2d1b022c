"""The report as JSON for scripts and as a table for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from assets.slo.budgets import Budget, Consumed, Counts, Infinite
from assets.slo.instants import render_instant
from assets.slo.report import Report

_LARGEST_EXACT = 2**53


def number(value: Consumed | float | None, *, sign: int = 1) -> float | int | str | None:
    """A number as JSON can hold it: whole ones without a fraction, infinite ones as text, unknown as null."""
    if value is None:
        return None
    if isinstance(value, Infinite):
        return "+Inf" if sign > 0 else "-Inf"
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "+Inf" if value > 0 else "-Inf"
    whole = int(value)
    return whole if value == whole and abs(whole) < _LARGEST_EXACT else float(value)


def to_document(reports: Sequence[Report]) -> dict[str, Any]:
    """`{"reports": […]}` as `sluice slo report --output json` prints it."""
    return {"reports": [report_document(report) for report in reports]}


def report_document(report: Report) -> dict[str, Any]:
    """One element; the names are part of the command line's contract."""
    objective = report.objective
    return {
        "objective": objective.name,
        "group": report.labels,
        "window": {
            "from": render_instant(report.window.start),
            "to": render_instant(report.window.end),
            "kind": objective.window.kind,
            "time_zone": objective.window.time_zone,
        },
        "method": objective.method.value,
        **_counts(report.counts),
        "sli": number(report.sli),
        "target": number(Fraction(objective.target)),
        "budget": _budget(report.budget),
        "burn_rates": {name: number(rate) for name, rate in report.burn_rates.items()},
        "state": report.state.value,
        "at_risk": report.is_at_risk,
        "coverage": report.coverage,
        "resets": report.resets,
        "corrected": None
        if report.corrected is None
        else {
            **_counts(report.corrected.counts),
            "sli": number(report.corrected.sli),
            "budget": _budget(report.corrected.budget),
        },
        "contributors": [{"labels": dict(item.labels), "bad": number(item.bad)} for item in report.contributors],
        "exhausted_at": None if report.exhausted_at is None else render_instant(report.exhausted_at),
    }


def _counts(counts: Counts) -> dict[str, Any]:
    return {"good": number(counts.good), "valid": number(counts.valid), "bad": number(counts.bad)}


def _budget(budget: Budget) -> dict[str, Any]:
    return {
        "events": number(budget.events),
        "minutes": number(budget.minutes),
        "consumed_ratio": number(budget.consumed),
        "remaining_ratio": number(budget.remaining, sign=-1),
    }


def percent(value: Consumed | None, digits: int = 2) -> str:
    """For people: a share in percent, rounded, never rounded up to 100 %."""
    if value is None:
        return "-"
    if isinstance(value, Infinite):
        return "∞"
    scaled = value * 100
    text = f"{float(scaled):.{digits}f}"
    if 99 < scaled < 100 and float(text) == 100:
        text = "99." + "9" * max(digits, 1)
    return f"{text} %"


def render_text(reports: Sequence[Report]) -> str:
    """A table, one line a report."""
    header = ("OBJECTIVE", "GROUP", "WINDOW", "STATE", "SLI", "TARGET", "BUDGET LEFT", "GOOD", "VALID", "COVERAGE")
    rows = [header]
    for report in reports:
        state = report.state.value + (" (at risk)" if report.is_at_risk else "")
        remaining = report.budget.remaining
        rows.append(
            (
                report.objective.name,
                ",".join(f"{name}={value}" for name, value in report.labels.items()) or "-",
                f"{render_instant(report.window.start)} to {render_instant(report.window.end)}",
                state,
                percent(report.sli, 4),
                percent(Fraction(report.objective.target), 4),
                "-∞" if isinstance(remaining, Infinite) else percent(remaining),
                str(number(report.counts.good)),
                str(number(report.counts.valid)),
                "-" if report.coverage is None else f"{report.coverage:.1%}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
