"""Sensors: wait for a change, observe, plan, and ask for a run when there is something to do.

A tick holds on for up to `WATCH_S` seconds and returns at the first change, so that a run starts within seconds
although Dagster looks for due sensors every five. The run observes and plans again for itself: a sensor's plan only
says *that* something is to be done. So it does not matter which sensor asked, or whether two did, and nothing that a
cursor remembers decides what is done; it holds what was seen last and how often the same was asked for in vain.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Self

import dagster as dg

from eventing.errors import SluiceError
from orchestration.apply import target
from orchestration.jobs import JOB_RECONCILE, OP_RECONCILE
from orchestration.planning import Plan
from orchestration.resources import ControlPlane
from orchestration.wiring import LOCK_LIMIT_S

WATCH_S = 20.0
"""How long a tick waits for a change; with everything else it stays far below the 60 s that Dagster allows."""
MEMBERSHIP_POLL_S = 2.0
"""Between two looks at the list of brokers: Kafka tells nobody when it changes."""
FIRST_RETRY_S = 10.0
LONGEST_RETRY_S = 300.0
"""What failed is asked for again after 10, 20, 40 … seconds, at most 5 minutes; something else is asked for at once."""
ASKED_S = 10.0
"""How long what one sensor asked for is left to it."""
RUN_POLL_S = 0.3
RUN_START_LIMIT_S = 60.0
"""A run that has not started for so long is no longer counted on."""

_PENDING = (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING)


@dataclass(frozen=True, slots=True)
class Memory:
    """The cursor of a sensor."""

    seen: str | None = None
    """Cursor of the port that the sensor watches."""
    asked: str | None = None
    """Fingerprint of the plan that a run was last requested for."""
    times: int = 0
    """How often it was requested in a row."""
    at: float = 0.0
    """When last, in seconds since the epoch."""

    @classmethod
    def from_cursor(cls, cursor: str | None) -> Self:
        """What cannot be read is forgotten: it only saves work."""
        try:
            return cls(**json.loads(cursor)) if cursor else cls()
        except (ValueError, TypeError):
            return cls()

    def to_cursor(self) -> str:
        return json.dumps(asdict(self))

    def retry_in(self, fingerprint: str, now: float) -> float:
        """Seconds until this plan may be asked for again; 0 where it was not asked for last."""
        if fingerprint != self.asked:
            return 0.0
        wait = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(self.times - 1, 10))
        return max(0.0, self.at + wait - now)


class Asked:
    """What the sensors of this process asked for a moment ago, so that two do not ask for the same at once.

    It saves a run, and nothing more: a second one would find nothing to do.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, tuple[str, float]] = {}

    def claim(self, fingerprint: str, trigger: str, now: float) -> str | None:
        """None: ask for it. Otherwise why not; a sensor is not kept from asking again by itself."""
        with self._lock:
            self._last = {key: last for key, last in self._last.items() if now - last[1] < ASKED_S}
            other = self._last.get(fingerprint)
            if other is not None and other[0] != trigger:
                return f"the {other[0]} sensor asked for it already"
            self._last[fingerprint] = (trigger, now)
            return None


_asked = Asked()


def fingerprint(plan: Plan) -> str:
    """What a plan is about, without times and numbers that grow by themselves."""
    about = sorted((action.kind, action.cause, target(action)) for action in plan.actions)
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


def _tick(
    context: dg.SensorEvaluationContext,
    control_plane: ControlPlane,
    trigger: str,
    wait: Callable[[str | None, float], str],
    *,
    look_first: bool,
) -> dg.SensorResult:
    """Observe and plan at once (`look_first`) or after a change, and ask for a run where there is something to do."""
    deadline = time.monotonic() + WATCH_S
    memory = Memory.from_cursor(context.cursor)
    seen = wait(memory.seen, 0.0) if look_first else memory.seen
    plan = _plan_when_idle(context, control_plane, deadline) if look_first else None
    if plan is not None and not plan.actions:
        # What was asked for was achieved: the same kind of change may come again at once and is no retry.
        memory = replace(memory, asked=None, times=0)
    if plan is None or not plan.actions or _not_yet(memory, plan):
        before, seen = seen, wait(seen, max(0.0, deadline - time.monotonic()))
        if seen != before:
            plan = _plan_when_idle(context, control_plane, time.monotonic() + WATCH_S / 2)
    memory = replace(memory, seen=seen)
    if plan is None:
        return dg.SensorResult(skip_reason="nothing changed", cursor=memory.to_cursor())
    if not plan.actions:
        memory = replace(memory, asked=None, times=0)
        return dg.SensorResult(skip_reason=plan.summary, cursor=memory.to_cursor())
    about = fingerprint(plan)
    if reason := _not_yet(memory, plan) or _on_its_way(context) or _asked.claim(about, trigger, time.monotonic()):
        return dg.SensorResult(skip_reason=f"{reason}. {plan.summary}", cursor=memory.to_cursor())
    memory = replace(memory, asked=about, times=memory.times + 1 if about == memory.asked else 1, at=time.time())
    return dg.SensorResult(run_requests=[_run_request(plan, trigger)], cursor=memory.to_cursor())


def _run_request(plan: Plan, trigger: str) -> dg.RunRequest:
    # A run key is for ever: with the time in it, A → B → A starts three runs.
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    return dg.RunRequest(
        run_key=f"{trigger}/{now}",
        run_config={"ops": {OP_RECONCILE: {"config": {"trigger": trigger, "expected": plan.summary}}}},
        tags={"sluice/trigger": trigger},
    )


def _not_yet(memory: Memory, plan: Plan) -> str | None:
    wait = memory.retry_in(fingerprint(plan), time.time())
    return f"the last run did not achieve this; tried again in {wait:.0f} s" if wait > 0 else None


def _plan_when_idle(context: dg.SensorEvaluationContext, control_plane: ControlPlane, deadline: float) -> Plan:
    """Plan, but not on a world that a run is just changing: what is left when it ends is what is to be done."""
    while _is_running(context) and time.monotonic() < deadline:
        time.sleep(RUN_POLL_S)
    return control_plane.plan()[1]


def _is_running(context: dg.SensorEvaluationContext) -> bool:
    """A run that goes on for longer than any that makes progress has lost its process; it is not waited for."""
    now = time.time()
    started = (record.start_time for record in _runs(context, (dg.DagsterRunStatus.STARTED,)))
    return any(start is None or now - start < LOCK_LIMIT_S for start in started)


def _on_its_way(context: dg.SensorEvaluationContext) -> str | None:
    """A run that has not begun will observe all that this sensor has seen."""
    for record in _runs(context, _PENDING):
        if (datetime.now(UTC) - record.create_timestamp).total_seconds() < RUN_START_LIMIT_S:
            return "a run is on its way"
    return None


def _runs(context: dg.SensorEvaluationContext, statuses: tuple[dg.DagsterRunStatus, ...]) -> list[dg.RunRecord]:
    chosen = dg.RunsFilter(job_name=JOB_RECONCILE, statuses=list(statuses))
    return list(context.instance.get_run_records(chosen, limit=10))


@dg.sensor(
    job_name=JOB_RECONCILE,
    minimum_interval_seconds=1,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Declared channels and everything that they need: looks at the whole world, then waits for a change.",
)
def registry_sensor(
    context: dg.SensorEvaluationContext, control_plane: dg.ResourceParam[ControlPlane]
) -> dg.SensorResult:
    wait = control_plane.ports.registry.wait_for_change
    return _tick(context, control_plane, "registry", wait, look_first=True)


@dg.sensor(
    job_name=JOB_RECONCILE,
    minimum_interval_seconds=1,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Brokers that come, go or come back: the canary's topic follows.",
)
def broker_sensor(
    context: dg.SensorEvaluationContext, control_plane: dg.ResourceParam[ControlPlane]
) -> dg.SensorResult:
    def wait(cursor: str | None, timeout_s: float) -> str:
        deadline = time.monotonic() + timeout_s
        while True:
            seen = _membership(control_plane)
            if seen != cursor or time.monotonic() + MEMBERSHIP_POLL_S > deadline:
                return seen
            time.sleep(MEMBERSHIP_POLL_S)

    return _tick(context, control_plane, "brokers", wait, look_first=False)


def _membership(control_plane: ControlPlane) -> str:
    try:
        brokers = control_plane.ports.kafka.brokers()
    except SluiceError:
        return "unreadable"
    return ",".join(f"{b['id']}{'-' if b['fenced'] else '+'}{b['rack'] or ''}" for b in brokers)


@dg.sensor(
    job_name=JOB_RECONCILE,
    minimum_interval_seconds=1,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="What runs, against what should run: Deployments that became ready, shrank, or vanished.",
)
def drift_sensor(context: dg.SensorEvaluationContext, control_plane: dg.ResourceParam[ControlPlane]) -> dg.SensorResult:
    wait = control_plane.ports.workloads.wait_for_change
    return _tick(context, control_plane, "drift", wait, look_first=False)


SENSORS = [registry_sensor, broker_sensor, drift_sensor]
