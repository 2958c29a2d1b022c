"""Reports on disk: a page for people, JSON and CSV for programs, Parquet for further analysis; one folder a report.

    <reports>/latest/                 declared windows up to now
    <reports>/daily/2026-11-19/       a calendar day
    <reports>/monthly/2026-11/        a calendar month
        report.html  report.json  report.csv  report.parquet

`report.parquet` has one row a report, with the schema below; equal reports are equal bytes. Files appear by a rename.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from assets.slo.budgets import BURN_WINDOWS
from assets.slo.report import Report, as_number
from assets.slo.report_documents import report_document, to_document

SCHEMA = pa.schema(
    [
        pa.field("objective", pa.string(), nullable=False),
        pa.field("group", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("window_from", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("window_to", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("window_kind", pa.string(), nullable=False),
        pa.field("time_zone", pa.string(), nullable=False),
        pa.field("method", pa.string(), nullable=False),
        pa.field("target", pa.float64(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("at_risk", pa.bool_(), nullable=False),
        pa.field("good", pa.float64(), nullable=False),
        pa.field("valid", pa.float64(), nullable=False),
        pa.field("bad", pa.float64(), nullable=False),
        pa.field("sli", pa.float64()),
        pa.field("budget_events", pa.float64()),
        pa.field("budget_minutes", pa.float64(), nullable=False),
        pa.field("budget_consumed_ratio", pa.float64()),
        pa.field("budget_remaining_ratio", pa.float64()),
        *(pa.field(f"burn_rate_{name}", pa.float64()) for name in BURN_WINDOWS),
        pa.field("coverage", pa.float64()),
        pa.field("resets", pa.int64(), nullable=False),
        pa.field("exhausted_at", pa.timestamp("ms", tz="UTC")),
        pa.field("corrected_good", pa.float64()),
        pa.field("corrected_valid", pa.float64()),
        pa.field("corrected_sli", pa.float64()),
        pa.field("corrected_consumed_ratio", pa.float64()),
        pa.field("previous_sli", pa.float64()),
    ]
)


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Where a report was written."""

    html: Path
    json: Path
    csv: Path
    parquet: Path


def write_report(folder: Path, reports: Sequence[Report], page: str) -> ReportFiles:
    """Write the four files, replacing those of an earlier computation."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist([_row(report) for report in reports], schema=SCHEMA)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    document = json.dumps(to_document(reports), indent=2, allow_nan=False) + "\n"
    return ReportFiles(
        html=_replace(folder / "report.html", page.encode()),
        json=_replace(folder / "report.json", document.encode()),
        csv=_replace(folder / "report.csv", _csv(reports).encode()),
        parquet=_replace(folder / "report.parquet", buffer.getvalue()),
    )


def _replace(path: Path, content: bytes) -> Path:
    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.write_bytes(content)
    unfinished.replace(path)
    return path


def _row(report: Report) -> dict[str, Any]:
    budget, corrected = report.budget, report.corrected
    remaining = as_number(budget.remaining)
    return {
        "objective": report.objective.name,
        "group": list(report.labels.items()),
        "window_from": report.window.start,
        "window_to": report.window.end,
        "window_kind": report.objective.window.kind,
        "time_zone": report.objective.window.time_zone,
        "method": report.objective.method.value,
        "target": float(report.objective.target),
        "state": report.state.value,
        "at_risk": report.is_at_risk,
        "good": float(report.counts.good),
        "valid": float(report.counts.valid),
        "bad": float(report.counts.bad),
        "sli": as_number(report.sli),
        "budget_events": as_number(budget.events),
        "budget_minutes": float(budget.minutes),
        "budget_consumed_ratio": as_number(budget.consumed),
        # Infinitely overspent is minus infinity of what remains.
        "budget_remaining_ratio": -remaining if remaining == float("inf") else remaining,
        **{f"burn_rate_{name}": as_number(rate) for name, rate in report.burn_rates.items()},
        "coverage": report.coverage,
        "resets": report.resets,
        "exhausted_at": report.exhausted_at,
        "corrected_good": None if corrected is None else float(corrected.counts.good),
        "corrected_valid": None if corrected is None else float(corrected.counts.valid),
        "corrected_sli": None if corrected is None else as_number(corrected.sli),
        "corrected_consumed_ratio": None if corrected is None else as_number(corrected.budget.consumed),
        "previous_sli": None if report.previous is None else as_number(report.previous.sli(report.objective.method)),
    }


def _csv(reports: Sequence[Report]) -> str:
    """One line a report, nested fields as `budget.events`; contributors are left to the other files."""
    rows = [_flat(report_document(report)) for report in reports]
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if name == "contributors":
            continue
        if name == "group":
            flat[name] = ",".join(f"{label}={text}" for label, text in value.items())
        elif isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
