"""How fast samples become a report.

    python benchmarks/slo.py                      1,000 series every 15 s for 24 hours
    python benchmarks/slo.py --hours 720          a month: 172.8 million samples (takes 2 GB of disk)

Writes the samples as the recorder would, reduces all hours, and reports over them; then does the report once more in a
new process, as a schedule does it. Prints JSON. Figures depend on what else the machine does: look at the load.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

START = datetime(2026, 10, 1, tzinfo=UTC)
SPACING_MS = 15_000
PER_HOUR = 3_600_000 // SPACING_MS

OBJECTIVE = {
    "apiVersion": "openslo/v1",
    "kind": "SLO",
    "metadata": {"name": "delivery", "annotations": {"sluice.dev/group-by": "namespace,channel"}},
    "spec": {
        "service": "benchmark",
        "indicator": {
            "spec": {
                "ratioMetric": {
                    "counter": True,
                    "good": {
                        "metricSource": {"type": "Prometheus", "spec": {"query": 'events_total{fate="delivered"}'}}
                    },
                    "total": {"metricSource": {"type": "Prometheus", "spec": {"query": "events_total"}}},
                }
            }
        },
        "timeWindow": [{"duration": "30d", "isRolling": True}],
        "budgetingMethod": "Occurrences",
        "objectives": [{"target": 0.999}],
    },
}


def write_samples(folder: Path, hours: int, series: int) -> int:
    """Counters with labels as dispatchers have them; each restarts once a day. Returns the bytes written."""
    labels = [
        [
            ("namespace", f"team-{number % 10}"),
            ("channel", f"channel-{number % 50}"),
            ("subscription", f"{number:08x}-subscription"),
            ("instance", f"10.0.{number % 8}.{number % 250}:8081"),
            ("component", "dispatcher"),
            ("fate", "delivered" if number % 4 else "dead_lettered"),
        ]
        for number in range(series)
    ]
    column = pa.array([own for own in labels for _ in range(PER_HOUR)], pa.map_(pa.string(), pa.string()))
    metric = pa.array(["events_total"] * (series * PER_HOUR), pa.string())
    random = np.random.default_rng(1)
    last = np.zeros(series)
    size = 0
    for hour in range(hours):
        begin = START + timedelta(hours=hour)
        moments = int(begin.timestamp() * 1000) + np.arange(PER_HOUR) * SPACING_MS
        if hour % 24 == 12:
            last[:] = 0
        values = last[:, None] + np.cumsum(random.integers(0, 20, (series, PER_HOUR)), axis=1)
        last = values[:, -1]
        table = pa.table(
            {
                "metric": metric,
                "labels": column,
                "timestamp": pa.array(np.tile(moments, series), pa.timestamp("ms", tz="UTC")),
                "value": values.ravel(),
            }
        )
        path = folder / f"date={begin:%Y-%m-%d}" / f"hour={begin:%H}" / "merged-1.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, compression="zstd")
        size += path.stat().st_size
    return size


def report(home: Path, hours: int, *, is_first: bool) -> dict[str, object]:
    """Reduce what is stale, and report; timed from before Spark starts."""
    began = time.monotonic()
    from assets.computation import compute_report
    from assets.objective_files import load_objectives
    from assets.resources import ReportPlaces
    from assets.slo.windows import Range
    from assets.spark import session

    places = ReportPlaces.from_env({"SLUICE_HOME": str(home)})
    objectives = load_objectives(home / "objectives")
    store = places.store(objectives)
    end = START + timedelta(hours=hours)
    spark = session(input_rows=None if is_first else store.rows())
    spark.range(1).count()
    started = time.monotonic()
    reduced = store.compute(spark, store.stale_hours())
    after_hours = time.monotonic()
    result = compute_report(spark, store, objectives, Range(end - timedelta(days=1), end)).result
    done = time.monotonic()
    samples = sum(hour.samples for hour in reduced)
    figures: dict[str, object] = {
        "Spark's start, s": round(started - began, 2),
        "report, s": round(done - after_hours, 2),
        "all, s": round(done - began, 2),
        "reports": len(result.reports),
        "events": float(sum(item.counts.valid for item in result.reports)),
    }
    if is_first:
        figures |= {
            "samples": samples,
            "samples to increments, s": round(after_hours - started, 2),
            "samples per second": round(samples / (after_hours - started)),
            "samples per second, report included": round(samples / (done - started)),
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--series", type=int, default=1000)
    parser.add_argument("--keep", type=Path, help="Folder for samples and aggregates; used again when it is there.")
    parser.add_argument("--step", choices=["first", "again"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        print(json.dumps(report(options.keep, options.hours, is_first=options.step == "first")))
        return
    with tempfile.TemporaryDirectory() as temporary:
        home = options.keep or Path(temporary)
        figures: dict[str, object] = {"load average before": os.getloadavg()[0], "cores": os.cpu_count()}
        if not (home / "samples").exists():
            figures["bytes of samples"] = write_samples(home / "samples", options.hours, options.series)
            (home / "objectives").mkdir(parents=True, exist_ok=True)
            (home / "objectives" / "delivery.yaml").write_text(yaml.safe_dump(OBJECTIVE))
        for step in ("first", "again"):
            command = [sys.executable, __file__, "--step", step, "--keep", str(home), "--hours", str(options.hours)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent)
            figures[step] = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
