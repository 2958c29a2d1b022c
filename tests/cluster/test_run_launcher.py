"""Which runs stay in their code location and which become Jobs: a real Dagster instance and a real API server."""

from __future__ import annotations

import contextlib
import time

import pytest

pytestmark = pytest.mark.cluster

TWO_LOCATIONS = """
import os
import dagster as dg

@dg.op
def say(context):
    context.log.info(f"pid {os.getpid()}")

@dg.op
def wait_long():
    import time
    time.sleep(120)

@dg.job(executor_def=dg.in_process_executor)
def quick():
    say()

@dg.job(executor_def=dg.in_process_executor)
def slow():
    wait_long()

defs = dg.Definitions(jobs=[quick, slow])
"""


@pytest.fixture
def dagster(cluster, namespace, tmp_path):
    """`launch(location, job)` → run id, in an instance whose launcher keeps the runs of `near` in their location."""
    from dagster._core.remote_representation.grpc_server_registry import GrpcServerRegistry
    from dagster._core.test_utils import instance_for_test
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import WorkspaceFileTarget
    from dagster._grpc.server import GrpcServerCommand

    file = tmp_path / "two.py"
    file.write_text(TWO_LOCATIONS)
    workspace = tmp_path / "workspace.yaml"
    workspace.write_text(
        "load_from:\n"
        + "".join(f"  - python_file: {{relative_path: {file}, location_name: {name}}}\n" for name in ("near", "far"))
    )
    config = {
        "module": "orchestration.adapters.kubernetes_run_launcher",
        "class": "LocationRunLauncher",
        "config": {
            "in_location": ["near"],
            "load_incluster_config": False,
            "kubeconfig_file": str(cluster.kubeconfig()),
            "job_namespace": namespace,
            "service_account_name": "default",
            "job_image": "sluice/slo",
            "instance_config_map": "dagster-instance",
            "dagster_home": "/opt/dagster",
        },
    }
    with contextlib.ExitStack() as stack:
        instance = stack.enter_context(instance_for_test(overrides={"run_launcher": config}))
        servers = stack.enter_context(
            GrpcServerRegistry(
                instance_ref=instance.get_ref(),
                server_command=GrpcServerCommand.API_GRPC,
                heartbeat_ttl=30,
                startup_timeout=120,
                wait_for_processes_on_shutdown=True,
            )
        )
        context = stack.enter_context(
            WorkspaceProcessContext(instance, WorkspaceFileTarget([str(workspace)]), grpc_server_registry=servers)
        )
        yield Dagster(instance, context)


class Dagster:
    def __init__(self, instance, context):
        self.instance = instance
        self._context = context

    def launch(self, location, job):
        from dagster._core.test_utils import create_run_for_test

        workspace = self._context.create_request_context()
        remote = workspace.get_code_location(location).get_repository("__repository__").get_full_job(job)
        run = create_run_for_test(
            self.instance,
            job_name=job,
            remote_job_origin=remote.get_remote_origin(),
            job_code_origin=remote.get_python_origin(),
        )
        self.instance.launch_run(run.run_id, workspace)
        return run.run_id

    def run(self, run_id):
        return self.instance.get_run_by_id(run_id)

    def started(self, run_id, within_s=60.0):
        """Wait until its step works: an interrupt between the start of a run and that of its step is lost."""
        from dagster import DagsterEventType

        deadline = time.monotonic() + within_s
        while not self.instance.all_logs(run_id, of_type=DagsterEventType.STEP_START):
            assert time.monotonic() < deadline, self.run(run_id).status
            time.sleep(0.1)

    def finished(self, run_id, within_s=60.0):
        deadline = time.monotonic() + within_s
        while not (run := self.run(run_id)).is_finished:
            assert time.monotonic() < deadline, run.status
            time.sleep(0.1)
        return run


def jobs(cluster, namespace):
    return [
        job["metadata"]["name"]
        for job in cluster.request("GET", f"/apis/batch/v1/namespaces/{namespace}/jobs")["items"]
    ]


def test_a_run_of_a_near_location_needs_no_pod(cluster, namespace, dagster):
    from dagster import DagsterRunStatus

    run = dagster.finished(dagster.launch("near", "quick"))
    assert run.status is DagsterRunStatus.SUCCESS
    assert jobs(cluster, namespace) == []


def test_a_run_of_any_other_location_is_a_job_of_its_own(cluster, namespace, dagster):
    run_id = dagster.launch("far", "quick")
    assert jobs(cluster, namespace) == [f"dagster-run-{run_id}"]


def test_a_near_run_is_known_to_live_and_can_be_stopped(dagster):
    from dagster import DagsterRunStatus
    from dagster._core.launcher import WorkerStatus

    run_id = dagster.launch("near", "slow")
    launcher = dagster.instance.run_launcher
    dagster.started(run_id)
    assert launcher.check_run_worker_health(dagster.run(run_id)).status is WorkerStatus.RUNNING
    assert launcher.terminate(run_id)
    assert dagster.finished(run_id).status is DagsterRunStatus.CANCELED
