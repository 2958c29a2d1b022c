"""From settings to the ports and the policy of a running system.

The composition roots (`resources.py` for Dagster, `cli.py` for a terminal) call this; client libraries are imported
here, when a port is built, so that loading definitions and `sluice --help` stay fast.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from eventing.errors import Unavailable
from orchestration.planning import CanaryDeployment, CanaryPolicy, DispatcherPolicy, Policy
from orchestration.ports import KafkaCluster, Ports, Registry, Workloads
from orchestration.settings import KUBERNETES, Settings, WorkloadsKind

if TYPE_CHECKING:
    from collections.abc import Callable

LOCK_LIMIT_S = 120.0
"""How long one reconciliation waits for another; longer than the longest one that makes progress."""


def build_ports(settings: Settings) -> Ports:
    """The three ports. Connects to nothing yet.

    Raises:
        ConfigError: no cluster is configured, or the Kafka Secret cannot be used.
    """
    return Ports(registry=_registry(settings), workloads=_workloads(settings), kafka=_kafka(settings))


def _registry(settings: Settings) -> Registry:
    if settings.registry == KUBERNETES:
        from orchestration.adapters.kubernetes_clients.connection import KubernetesApi
        from orchestration.adapters.kubernetes_registry import KubernetesRegistry

        return KubernetesRegistry(KubernetesApi.connect())
    from orchestration.adapters.registry_folder import FolderRegistry

    return FolderRegistry(settings.registry)


def _workloads(settings: Settings) -> Workloads:
    if settings.workloads is WorkloadsKind.KUBERNETES:
        from orchestration.adapters.kubernetes_clients.connection import KubernetesApi
        from orchestration.adapters.kubernetes_workloads import KubernetesWorkloads

        # Only there: the service account has no right to Deployments elsewhere (deploy/base/rbac-orchestration.yaml).
        return KubernetesWorkloads(KubernetesApi.connect(), namespace=settings.system_namespace)
    from orchestration.adapters.local_workloads import LocalWorkloads

    return LocalWorkloads(settings.home)


def _kafka(settings: Settings) -> KafkaCluster:
    from eventing.kafka_security import read_secret_dir
    from orchestration.adapters.kafka_admin import KafkaAdmin

    return KafkaAdmin(settings.bootstrap_servers, read_secret_dir(settings.kafka_secret_dir))


def live_policy(settings: Settings) -> Policy:
    """What is wanted besides the channels, with the canary as a Deployment."""
    config = settings.canary
    return Policy(
        bootstrap_servers=settings.bootstrap_servers,
        channel_source=settings.registry,
        system_namespace=settings.system_namespace,
        topic_template=settings.topic_template,
        kafka_secret=settings.kafka_secret,
        kafka_secret_dir=settings.kafka_secret_dir,
        receiver_url=settings.receiver_url,
        dispatcher=DispatcherPolicy(image=settings.dispatcher_image),
        canary=CanaryPolicy(
            enabled=settings.canary_enabled,
            topic=config.topic,
            configs=dict(config.topic_config),
            manage_topic=settings.canary_manages_topic,
            grace=timedelta(seconds=settings.canary_grace_s),
            deployment=CanaryDeployment(
                image=settings.canary_image, env=config.to_env(), host_port=settings.canary_port
            ),
        ),
    )


def exclusively(settings: Settings) -> contextlib.AbstractContextManager[None]:
    """Let one reconciliation run at a time, where that can be had.

    In a cluster each run has a file system of its own and there is nothing to lock: what two do at once is done twice,
    or is refused as a conflict and planned anew.
    """
    return one_at_a_time(settings.home) if settings.workloads is WorkloadsKind.LOCAL else contextlib.nullcontext()


@contextlib.contextmanager
def one_at_a_time(
    home: Path, *, limit_s: float = LOCK_LIMIT_S, sleep: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Let one reconciliation run at a time on this machine.

    Two at once would do no harm, since each action may be applied twice; they would only do the same work, and the one
    that observed earlier could undo for a moment what the other did. Released by the system when a process ends.

    Raises:
        Unavailable: another one holds on for longer than `limit_s` seconds.
    """
    home.mkdir(parents=True, exist_ok=True)
    with (home / "reconcile.lock").open("a") as lock:
        deadline = time.monotonic() + limit_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as exc:
                if time.monotonic() >= deadline:
                    raise Unavailable("reconciliation", f"another one has been running for {limit_s:g} s") from exc
            sleep(0.05)
        yield
