"""Where reports find their inputs and put their results: read from the environment, once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from assets.hour_store import HourStore, selected_metrics
from assets.objective_files import SHIPPED, load_corrections, load_objectives
from assets.slo.corrections import Correction
from assets.slo.objectives import Objective, common_grid
from assets.slo.report import metrics_of

CHECKOUT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPlaces:
    """Folders and files."""

    samples: Path
    """`SLUICE_SAMPLES`, default `$SLUICE_HOME/samples`: Parquet by date and hour."""
    hours: Path
    """`$SLUICE_HOME/slo`: hourly aggregates; may be deleted, they are recomputed."""
    reports: Path
    """`SLUICE_REPORTS`, default `$SLUICE_HOME/reports`."""
    objectives: tuple[Path, ...]
    """The shipped ones and, where it exists, `SLUICE_OBJECTIVES`, default `$SLUICE_HOME/objectives`."""
    corrections: Path
    """`SLUICE_CORRECTIONS`, default `$SLUICE_HOME/corrections.yaml`; need not exist."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> ReportPlaces:
        """The places of this environment; nothing is touched."""
        env = os.environ if environ is None else environ
        home = Path(env.get("SLUICE_HOME") or CHECKOUT / ".sluice").expanduser().absolute()
        own = Path(env.get("SLUICE_OBJECTIVES") or home / "objectives")
        return cls(
            samples=Path(env.get("SLUICE_SAMPLES") or home / "samples"),
            hours=home / "slo",
            reports=Path(env.get("SLUICE_REPORTS") or home / "reports"),
            objectives=(SHIPPED, own) if own.exists() else (SHIPPED,),
            corrections=Path(env.get("SLUICE_CORRECTIONS") or home / "corrections.yaml"),
        )

    def load_objectives(self) -> list[Objective]:
        """All objectives. Raises ConfigError or DamagedInput."""
        return load_objectives(*self.objectives)

    def load_corrections(self) -> list[Correction]:
        """The agreed times; none where there is no file."""
        return load_corrections(self.corrections) if self.corrections.exists() else []

    def store(self, objectives: list[Objective]) -> HourStore:
        """The hourly aggregates in the grain that these objectives need."""
        grid_ms = common_grid(objectives) // timedelta(milliseconds=1)
        return HourStore(
            samples=self.samples,
            folder=self.hours / f"slot={grid_ms // 1000}s",
            grid_ms=grid_ms,
            selected=selected_metrics(metrics_of(objectives)),
        )
