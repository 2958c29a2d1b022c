"""Code location 2, as Dagster loads it: gathers, and nothing else."""

from __future__ import annotations

import dagster as dg

from assets.pipeline import ASSETS
from assets.schedules import JOBS, SCHEDULES

defs = dg.Definitions(assets=ASSETS, jobs=JOBS, schedules=SCHEDULES)
