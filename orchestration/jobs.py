"""Jobs: what an operator sees as runs. Each observes for itself, right before it acts.

All steps run in the run's own process (`in_process_executor`): a process per step would cost seconds each.
"""

import time

import dagster as dg

from orchestration import run_metadata
from orchestration.apply import apply
from orchestration.planning import Plan
from orchestration.planning.actions import CANARY, summarize
from orchestration.planning.elections import plan_elections
from orchestration.planning.planner import plan
from orchestration.resources import ControlPlane

JOB_RECONCILE = "reconcile"
OP_RECONCILE = "observe_plan_apply"
STEP_POLL_S = 1.0
"""Between two looks at a reassignment that has to end before the next step."""


class ReconcileConfig(dg.Config):
    """Why the run was started. What it does, it decides by what it observes."""

    trigger: str = "by hand"
    expected: str = ""
    """Summary of the plan that the sensor saw."""


@dg.op(name=OP_RECONCILE, description="Observe the world, plan, and apply the plan.")
def reconcile_op(
    context: dg.OpExecutionContext, config: ReconcileConfig, control_plane: dg.ResourceParam[ControlPlane]
) -> None:
    with control_plane.exclusively():
        done = control_plane.reconcile()
    for outcome in done.applied.outcomes:
        said = f"{outcome.action.kind} {outcome.target}: {outcome.result} ({outcome.action.why})"
        if outcome.error:
            said += f" — {outcome.error}. {outcome.advice or ''}"
        (context.log.error if outcome.result == "failed" else context.log.info)(said)
    metadata = run_metadata.of_reconciliation(done, config.trigger)
    if done.applied.outcomes:
        after = control_plane.observe()
        metadata["before and after"] = run_metadata.table(run_metadata.before_and_after(done, after))
        for event in run_metadata.changes(done, after):
            context.log_event(event)
    if not done.succeeded:
        raise dg.Failure(description=done.applied.summary, metadata=metadata, allow_retries=False)
    if done.observation.unreadable:
        # Nothing was done wrong, but nobody knows how things stand: that must not look like success.
        raise dg.Failure(description="; ".join(done.observation.unreadable), metadata=metadata, allow_retries=False)
    context.add_output_metadata(metadata)


@dg.job(
    name=JOB_RECONCILE,
    executor_def=dg.in_process_executor,
    description="One round of observe → plan → apply over all channels, brokers and workloads. Safe to start any time.",
)
def reconcile_job() -> None:
    reconcile_op()


class ExpandConfig(dg.Config):
    """How far to go."""

    preview: bool = False
    """True: say what the first step would be, and change nothing."""
    limit_s: float = 600.0
    """How long to wait for replicas to move before leaving the rest to the sensors."""


@dg.op(description="Bring the canary's topic to one partition per broker, one safe step after another.")
def expand_canary_topic_op(
    context: dg.OpExecutionContext, config: ExpandConfig, control_plane: dg.ResourceParam[ControlPlane]
) -> None:
    topic, deadline = control_plane.policy.canary.topic, time.monotonic() + config.limit_s
    before = control_plane.observe()
    rows: list[run_metadata.Row] = []
    while True:
        with control_plane.exclusively():
            observation = control_plane.observe()
            step = _only(plan(observation.snapshot, control_plane.policy, observation.snapshot.observed_at), CANARY)
            if config.preview:
                rows += run_metadata.planned_rows(step)
                break
            applied = apply(step, control_plane.ports, now=observation.snapshot.observed_at)
        rows += [run_metadata.outcome_row(outcome) for outcome in applied.outcomes]
        context.log.info(applied.summary if step.actions else step.summary)
        moving = (observation.document["topics"] or {}).get(topic, {}).get("reassigning")
        if applied.failed or time.monotonic() > deadline or not (step.actions or moving):
            break
        if not step.actions:
            time.sleep(STEP_POLL_S)
    after = control_plane.observe()
    metadata = {
        "steps": run_metadata.table(rows),
        "before": run_metadata.topic_table(before.document, [topic]),
        "after": run_metadata.topic_table(after.document, [topic]),
        "summary": step.summary,
    }
    if any(row["result"] == "failed" for row in rows):
        raise dg.Failure(description="a step failed", metadata=metadata, allow_retries=False)
    context.add_output_metadata(metadata)


@dg.job(
    executor_def=dg.in_process_executor,
    description="Give every broker a partition of the canary's topic to lead, now; sensors do it by themselves.",
)
def expand_canary_topic() -> None:
    expand_canary_topic_op()


class ElectConfig(dg.Config):
    """Which leaders to elect."""

    topics: list[str] | None = None
    """Names; none given: every topic of the cluster."""
    preview: bool = False
    """True: say what would move, and change nothing."""


@dg.op(description="Let the first replica of each partition lead again, where it is up and in sync.")
def elect_preferred_leaders_op(
    context: dg.OpExecutionContext, config: ElectConfig, control_plane: dg.ResourceParam[ControlPlane]
) -> None:
    with control_plane.exclusively():
        before = control_plane.observe()
        wanted = plan_elections(before.snapshot, config.topics, cause="by hand")
        applied = None if config.preview else apply(wanted, control_plane.ports, now=before.snapshot.observed_at)
    touched = sorted({action.topic for action in wanted.actions if hasattr(action, "topic")})
    after = before if config.preview else control_plane.observe()
    rows = (
        run_metadata.planned_rows(wanted)
        if applied is None
        else [run_metadata.outcome_row(outcome) for outcome in applied.outcomes]
    )
    metadata = {
        "elections": run_metadata.table(rows),
        "not now": run_metadata.remarks_table([*wanted.rejected, *wanted.waiting]),
        "before": run_metadata.topic_table(before.document, touched),
        "after": run_metadata.topic_table(after.document, touched),
        "summary": wanted.summary,
    }
    context.log.info(wanted.summary)
    if applied is not None and applied.failed:
        raise dg.Failure(description=applied.summary, metadata=metadata, allow_retries=False)
    context.add_output_metadata(metadata)


@dg.job(
    executor_def=dg.in_process_executor,
    description="Preferred leader election for some topics or all; with preview it only says what would move.",
)
def elect_preferred_leaders() -> None:
    elect_preferred_leaders_op()


def _only(whole: Plan, cause: str) -> Plan:
    """The part of a plan that is for one object."""
    actions = tuple(action for action in whole.actions if action.cause == cause)
    rejected = tuple(remark for remark in whole.rejected if remark.object == cause)
    waiting = tuple(remark for remark in whole.waiting if remark.object == cause)
    return Plan(actions=actions, rejected=rejected, waiting=waiting, summary=summarize(actions, rejected, waiting))


JOBS = [reconcile_job, expand_canary_topic, elect_preferred_leaders]
