"""Code location 1: the control plane. Gathers what the other modules define, and nothing else.

It must load fast, because every run imports it anew: no Spark (that is location 2, `assets.definitions`), and Kafka's
and Kubernetes' clients are imported when a port is first used.
"""

from __future__ import annotations

import dagster as dg

from orchestration.jobs import JOBS
from orchestration.resources import ControlPlaneResource
from orchestration.schedules import SCHEDULES
from orchestration.sensors import SENSORS
from orchestration.state_assets import CHECKS, platform_state, take_stock

defs = dg.Definitions(
    assets=[platform_state],
    asset_checks=CHECKS,
    jobs=[*JOBS, take_stock],
    sensors=SENSORS,
    schedules=SCHEDULES,
    resources={"control_plane": ControlPlaneResource()},
)
