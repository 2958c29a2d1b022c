"""The environment names Kubernetes, and that is all there is to say."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from orchestration.settings import Settings
from orchestration.wiring import build_ports
from tests.cluster.conftest import channel

pytestmark = pytest.mark.cluster

ENVIRONMENT = {
    "SLUICE_REGISTRY": "kubernetes",
    "SLUICE_WORKLOADS": "kubernetes",
    "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9",
    "PATH": "/usr/bin:/bin",
}


@pytest.fixture
def kubeconfig(deployed):
    """As a pod of orchestration would be: with its service account's token."""
    token = deployed.token_of("sluice-system", "sluice-orchestration")
    return str(deployed.kubeconfig("sluice-orchestration", token=token))


def test_registry_and_workloads_are_those_of_the_kubeconfig(deployed, kubeconfig, namespace, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    deployed.apply(channel(namespace))
    ports = build_ports(Settings.from_env({**ENVIRONMENT, "SLUICE_HOME": str(tmp_path)}))
    found = ports.registry.list_channels().channels
    assert (namespace, "orders") in {(c["metadata"]["namespace"], c["metadata"]["name"]) for c in found}
    assert all(d["metadata"]["namespace"] == "sluice-system" for d in ports.workloads.list_deployments())


def test_sluice_snapshot_shows_the_cluster(deployed, kubeconfig, namespace, tmp_path):
    deployed.apply(channel(namespace))
    environment = {**ENVIRONMENT, "KUBECONFIG": kubeconfig, "SLUICE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "orchestration.cli", "snapshot"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    document = json.loads(done.stdout)
    assert [c["metadata"]["name"] for c in document["channels"] if c["metadata"]["namespace"] == namespace] == [
        "orders"
    ]
    assert document["deployments"] is not None
    assert document["brokers"] is None  # there is no Kafka: unknown, and not an empty cluster


def test_a_cluster_that_is_not_configured_is_a_wrong_configuration(tmp_path):
    environment = {
        **ENVIRONMENT,
        "KUBECONFIG": str(tmp_path / "nothing"),
        "SLUICE_HOME": str(tmp_path),
        "HOME": str(tmp_path),
    }
    command = [sys.executable, "-m", "orchestration.cli", "snapshot"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (78, "")
    assert "no cluster is configured" in done.stderr
