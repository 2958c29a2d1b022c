"""Schedules: what happens even if no sensor notices anything."""

from __future__ import annotations

import dagster as dg

from orchestration.jobs import JOB_RECONCILE, OP_RECONCILE


@dg.schedule(
    job_name=JOB_RECONCILE,
    cron_schedule="*/10 * * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="A full reconciliation every ten minutes: the net below the sensors, and a sign of life.",
)
def full_reconciliation() -> dg.RunRequest:
    return dg.RunRequest(
        run_config={"ops": {OP_RECONCILE: {"config": {"trigger": "schedule"}}}}, tags={"sluice/trigger": "schedule"}
    )


checkup = dg.ScheduleDefinition(
    name="checkup",
    job_name="take_stock",
    cron_schedule="5-59/15 * * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Takes stock of all assets of this location and runs their checks, every quarter of an hour.",
)

SCHEDULES = [full_reconciliation, checkup]
