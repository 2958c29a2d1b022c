"""Where a Dagster run runs in a cluster: reconciliations in their code location, everything heavy in a Job of its own.

A Job costs a pod: scheduling, an image, imports; ten seconds before the first line. A reconciliation has to begin
within seconds and needs next to nothing, so it starts as a process in the pod of its code location, as it does on one
machine. Dagster has one run launcher per instance, so this one decides for each run by its code location.

    run_launcher:
      module: orchestration.adapters.kubernetes_run_launcher
      class: LocationRunLauncher
      config: {in_location: [orchestration], …all of K8sRunLauncher's}

A run in a location whose pod has gone is gone with it. Run monitoring asks the location and marks such a run as failed;
the next sensor tick plans from what there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from dagster import DagsterInstance, DagsterRun, Field, StringSource
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, LaunchRunContext, WorkerStatus
from dagster._core.launcher.base import ResumeRunContext
from dagster._grpc.types import CanCancelExecutionRequest, CanCancelExecutionResult
from dagster._serdes import ConfigurableClassData, deserialize_value
from dagster_k8s import K8sRunLauncher


class LocationRunLauncher(K8sRunLauncher):
    """See the module. `in_location` names the code locations whose runs stay there."""

    def __init__(
        self, *, in_location: Sequence[str] = (), inst_data: ConfigurableClassData | None = None, **jobs: Any
    ) -> None:
        super().__init__(inst_data=inst_data, **jobs)
        self._in_location = frozenset(in_location)
        self._near = DefaultRunLauncher()

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        own = Field(
            [StringSource], is_required=False, default_value=[], description="Code locations that run their own."
        )
        return {**super().config_type(), "in_location": own}  # type: ignore[no-untyped-call]  # not typed there

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData, config_value: Mapping[str, Any]) -> Self:
        return cls(inst_data=inst_data, **config_value)

    def register_instance(self, instance: DagsterInstance) -> None:
        super().register_instance(instance)
        self._near.register_instance(instance)

    def launch_run(self, context: LaunchRunContext) -> None:
        if self._is_near(context.dagster_run):
            self._near.launch_run(context)
        else:
            super().launch_run(context)

    def resume_run(self, context: ResumeRunContext) -> None:
        # Only what lost its Job is resumed: a reconciliation is planned anew instead.
        assert not self._is_near(context.dagster_run), "a run in its location cannot be resumed"
        super().resume_run(context)

    def terminate(self, run_id: str) -> bool:
        run = self._instance.get_run_by_id(run_id)
        if run is not None and self._is_near(run):
            return bool(self._near.terminate(run_id))  # type: ignore[no-untyped-call]  # not typed there
        return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]  # not typed there

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        if not self._is_near(run):
            result: CheckRunHealthResult = super().check_run_worker_health(run)
            return result
        # Private, and the one place that knows where a run was started.
        client = self._near._get_grpc_client_for_termination(run.run_id)  # type: ignore[no-untyped-call]  # noqa: SLF001
        if client is None:
            return CheckRunHealthResult(WorkerStatus.UNKNOWN, "it has not reached its code location")
        try:
            answer = client.can_cancel_execution(CanCancelExecutionRequest(run_id=run.run_id), timeout=10)
        except Exception as exc:  # noqa: BLE001  # Dagster's client lets gRPC's own errors through
            # Restarting, or cut off for a moment. If its processes have ended, it will say so when it answers again.
            return CheckRunHealthResult(
                WorkerStatus.RUNNING, f"its code location does not answer: {exc}", transient=True
            )
        if deserialize_value(answer, CanCancelExecutionResult).can_cancel:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.FAILED, "its code location was restarted and knows it no more")

    def get_run_worker_debug_info(
        self,
        run: DagsterRun,
        include_container_logs: bool | None = True,  # noqa: FBT001, FBT002  # Dagster's signature
    ) -> str | None:
        return None if self._is_near(run) else super().get_run_worker_debug_info(run, include_container_logs)

    def _is_near(self, run: DagsterRun) -> bool:
        origin = run.remote_job_origin
        return origin is not None and origin.repository_origin.code_location_origin.location_name in self._in_location
