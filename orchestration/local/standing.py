"""The parts of the platform that are always there, as the same Deployment manifests that channels get.

So they are restarted, probed, logged and listed like every other workload. The receiver carries the labels that sluice
gives its own objects; the rest belongs to this machine (`managed-by: sluice-up`), and the control plane never sees it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from eventing.program_config import ReceiveConfig
from orchestration.local.ports import LOOPBACK
from orchestration.local.settings import SYSTEM_NAMESPACE, LocalSettings

JsonObject = dict[str, Any]

CODE_LOCATIONS = {"orchestration": "orchestration.definitions", "assets": "assets.definitions"}
"""Dagster's two code locations (workspace.yaml): name → module."""
CODE_SERVER_THREADS = 16
"""Sensors that long-poll hold a thread each; the rest is for the UI and for runs that start."""
PLATFORM = "sluice-up"
"""Value of `managed-by` for what only this machine has: the control plane neither lists nor touches it."""
GRACE_S = 10
DAGSTER_GRACE_S = 3
"""A code server waits up to 60 s for sensors that wait for changes; a run that is cut off is repeated by the next."""


def standing_deployments(settings: LocalSettings, code_ports: Mapping[str, int]) -> list[JsonObject]:
    """The manifests; `code_ports` has the port of each Dagster code location's server."""
    deployments = [
        _receiver(settings),
        _part(
            "sample-subscriber",
            ["python", "-m", "orchestration.local.sample_subscriber"],
            port=("http", settings.subscriber_port),
            ready="/healthz",
        ),
        _part("recorder", ["python", "-m", "orchestration.local.recorder"]),
        *(_code_server(location, module, code_ports[location]) for location, module in CODE_LOCATIONS.items()),
        _part(
            "dagster-webserver",
            [
                "dagster-webserver",
                *("-h", LOOPBACK, "-p", "$(DAGSTER_PORT)"),
                *("-w", str(settings.dagster_home / "workspace.yaml")),
            ],
            component="dagster",
            port=("dagster", settings.dagster_port),
            ready="/server_info",
        ),
        _part(
            "dagster-daemon",
            ["dagster-daemon", "run", "-w", str(settings.dagster_home / "workspace.yaml")],
            component="dagster",
        ),
    ]
    if shutil.which("prometheus"):
        folder = settings.home / "prometheus"
        command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=7d",
            f"--web.listen-address={LOOPBACK}:$(PROMETHEUS_PORT)",
        ]
        deployments.append(_part("prometheus", command, port=("prometheus", None), ready="/-/ready"))
    return deployments


def _receiver(settings: LocalSettings) -> JsonObject:
    config = ReceiveConfig(
        bootstrap_servers=settings.bootstrap,
        channel_source=str(settings.registry),
        kafka_secret_dir=settings.kafka_secret_dir,
        port=settings.receiver_port,
    )
    command = ["python", "-m", "dispatcher_image", "receive"]
    manifest = _part("receiver", command, component="receiver", env=config.to_env())
    manifest["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "sluice"
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    container["ports"] = [
        {"name": "http", "containerPort": config.port, "hostPort": settings.receiver_port},
        {"name": "metrics", "containerPort": config.metrics_port},
        {"name": "health", "containerPort": config.health_port},
    ]
    container["readinessProbe"] = {"httpGet": {"path": "/readyz", "port": "health"}, "periodSeconds": 2}
    container["livenessProbe"] = {"httpGet": {"path": "/healthz", "port": "health"}, "timeoutSeconds": 5}
    # As long as its own drain, and a little.
    manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = int(config.drain_timeout_seconds) + 5
    return manifest


def _code_server(location: str, module: str, port: int) -> JsonObject:
    # Runs of the control plane start warm; those of the other location are few, and import Spark.
    warm = location == "orchestration"
    server = ("python", "-m", "orchestration.local.code_server") if warm else ("dagster", "api", "grpc")
    command = [
        *(*server, "-h", LOOPBACK, "-p", "$(GRPC_PORT)", "-m", module),
        *("--location-name", location, "--max-workers", str(CODE_SERVER_THREADS)),
        # Runs start with this interpreter, whatever `dagster` the PATH has.
        "--use-python-environment-entry-point",
    ]
    return _part(f"dagster-code-{location}", command, component="dagster", port=("grpc", port))


def _part(
    name: str,
    command: Sequence[str],
    *,
    component: str | None = None,
    port: tuple[str, int | None] | None = None,
    ready: str | None = None,
    env: Mapping[str, str] | None = None,
) -> JsonObject:
    """One replica of one program; `ready` is the path that answers when it is, without one its port must accept."""
    labels = {
        "app.kubernetes.io/managed-by": PLATFORM,
        "app.kubernetes.io/component": component or name,
    }
    container: JsonObject = {"name": name, "image": "local", "command": list(command)}
    if env:
        container["env"] = [{"name": key, "value": value} for key, value in sorted(env.items())]
    if port is not None:
        port_name, number = port
        container["ports"] = [{"name": port_name, "containerPort": number or 1}]
        if number is not None:
            container["ports"][0]["hostPort"] = number
        asked: JsonObject = {"httpGet": {"path": ready, "port": port_name}} if ready else {}
        container["readinessProbe"] = {**(asked or {"tcpSocket": {"port": port_name}}), "periodSeconds": 5}
        container["readinessProbe"]["timeoutSeconds"] = 5
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"namespace": SYSTEM_NAMESPACE, "name": name, "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app.kubernetes.io/component": labels["app.kubernetes.io/component"]}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": DAGSTER_GRACE_S if component == "dagster" else GRACE_S,
                    "containers": [container],
                },
            },
        },
    }


DAGSTER_YAML = """\
# Written by `sluice up`; SQLite and the default launcher, for one machine.
telemetry:
  enabled: false
nux:
  enabled: false
run_coordinator:
  # Runs start at once: the queue would look for them every 5 s only.
  module: dagster._core.run_coordinator
  class: DefaultRunCoordinator
sensors:
  # Sensors that wait for changes must not wait for each other.
  use_threads: true
  num_workers: 8
  num_submit_workers: 4
schedules:
  use_threads: true
  num_workers: 2
run_monitoring:
  enabled: true
  start_timeout_seconds: 180
retention:
  sensor:
    purge_after_days: {skipped: 1, failure: 7, success: 7}
  schedule:
    purge_after_days: {skipped: 1, failure: 7, success: 7}
"""


def dagster_workspace(code_ports: Mapping[str, int]) -> str:
    """The workspace of webserver and daemon: both use the same code servers, which the controller keeps running."""
    entries = "".join(
        f"  - grpc_server: {{host: {LOOPBACK}, port: {port}, location_name: {location}}}\n"
        for location, port in code_ports.items()
    )
    return f"# Written by `sluice up`; the code locations are those of workspace.yaml.\nload_from:\n{entries}"


def prometheus_yaml(settings: LocalSettings, scrape_interval_s: float) -> str:
    """Prometheus on the targets that the controller writes."""
    return f"""\
# Written by `sluice up`.
global:
  scrape_interval: {scrape_interval_s:g}s
scrape_configs:
  - job_name: sluice
    # The labels of our own metrics (topic, partition, …) are those that objectives select by.
    honor_labels: true
    file_sd_configs:
      - files: ["{settings.home / "targets.json"}"]
        refresh_interval: 5s
"""
