"""A report as Dagster shows it: numbers that plot over time, a table, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import dagster as dg

from assets.report_files import ReportFiles
from assets.slo.budgets import Infinite
from assets.slo.charts import burn_down, data_uri, shown_state
from assets.slo.report import Report, as_number
from assets.slo.report_documents import percent

MOST_ROWS = 100
"""Metadata is stored with every event; the whole table is in the files."""
_URGENCY = ["breached", "at_risk", "met", "no_data", "no_traffic"]
_MARKS = {"breached": "🔴", "at_risk": "🟠", "met": "🟢", "no_data": "⚪", "no_traffic": "⚪"}


def by_urgency(reports: Sequence[Report]) -> list[Report]:
    """The most urgent first; among equals, who has least budget left."""
    return sorted(reports, key=lambda report: (_URGENCY.index(shown_state(report)), _remaining(report)))


def report_metadata(reports: Sequence[Report], files: ReportFiles) -> dict[str, dg.MetadataValue]:
    """Metadata of a report's materialisation.

    For each objective the lowest SLI and remaining budget of its groups, as numbers, so that Dagster plots them.
    """
    ordered = by_urgency(reports)
    metadata: dict[str, dg.MetadataValue] = {
        "report": dg.MetadataValue.md(_markdown(ordered)),
        "page": dg.MetadataValue.path(str(files.html)),
        "json": dg.MetadataValue.path(str(files.json)),
        "csv": dg.MetadataValue.path(str(files.csv)),
        "table": _table(ordered),
        "breached": dg.MetadataValue.int(sum(shown_state(report) == "breached" for report in reports)),
        "at risk": dg.MetadataValue.int(sum(report.is_at_risk for report in reports)),
        "met": dg.MetadataValue.int(sum(report.state.value == "met" for report in reports)),
        "unknown": dg.MetadataValue.int(sum(report.state.value == "no_data" for report in reports)),
    }
    for name in sorted({report.objective.name for report in reports}):
        own = [report for report in reports if report.objective.name == name]
        shares = [report.sli for report in own if report.sli is not None]
        left = [rest for report in own if isinstance(rest := report.budget.remaining, Fraction)]
        if shares:
            metadata[f"sli {name}"] = dg.MetadataValue.float(float(min(shares)))
        if left:
            metadata[f"budget left {name}"] = dg.MetadataValue.float(float(min(left)))
    return metadata


def _remaining(report: Report) -> float:
    remaining = report.budget.remaining
    if isinstance(remaining, Infinite):
        return float("-inf")
    return as_number(remaining) or 0.0


def _markdown(reports: Sequence[Report]) -> str:
    """A summary line by objective, and the burn-down of the most urgent one with events (an image as a data URI)."""
    lines = ["| | objective | group | SLI | target | budget left |", "|---|---|---|---|---|---|"]
    for report in reports[:20]:
        remaining = report.budget.remaining
        left = "overspent" if isinstance(remaining, Infinite) else percent(remaining, 1)
        group = ", ".join(f"{name}={value}" for name, value in report.labels.items()).replace("|", "\\|")
        state = shown_state(report)
        lines.append(
            f"| {_MARKS[state]} {state.replace('_', ' ')} | {report.objective.display_name} | {group} "
            f"| {percent(report.sli, 3)} | {percent(Fraction(report.objective.target), 3)} | {left} |"
        )
    if len(reports) > 20:
        lines.append(f"| | and {len(reports) - 20} more | | | | |")
    drawn = next((report for report in reports if len(report.timeline) > 0), None)
    if drawn is not None:
        name = drawn.objective.display_name
        lines += ["", f"**{name}**: budget left over the window", "", f"![{name}]({data_uri(burn_down(drawn))})"]
    return "\n".join(lines)


def _table(reports: Sequence[Report]) -> dg.TableMetadataValue:
    records = [
        dg.TableRecord(
            {
                "objective": report.objective.name,
                "group": ", ".join(f"{name}={value}" for name, value in report.labels.items()),
                "state": shown_state(report),
                "sli": _or_empty(as_number(report.sli)),
                "target": float(report.objective.target),
                "budget left": _or_empty(_remaining(report) if report.budget.consumed is not None else None),
                "bad": float(report.counts.bad),
                "valid": float(report.counts.valid),
                "burn 1h": _or_empty(as_number(report.burn_rates["1h"])),
                "burn 3d": _or_empty(as_number(report.burn_rates["3d"])),
                "coverage": _or_empty(report.coverage),
                "resets": report.resets,
            }
        )
        for report in reports[:MOST_ROWS]
    ]
    columns = ["objective", "group", "state", "sli", "target", "budget left", "bad", "valid", "burn 1h", "burn 3d"]
    schema = dg.TableSchema([dg.TableColumn(name, "string") for name in [*columns, "coverage", "resets"]])
    return dg.MetadataValue.table(records, schema)


def _or_empty(value: float | None) -> str | float:
    return "" if value is None else value if abs(value) != float("inf") else str(value)
