"""Fixtures that every kind of test may use; the real servers behind them are started once and stopped at the end."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory):
    """One real broker for the whole session; each test uses topics and groups of its own."""
    from orchestration.local.kafka_server import KafkaServer

    with KafkaServer(tmp_path_factory.mktemp("kafka")) as server:
        yield server


SLOW_FIRST = ("e2e", "cluster", "kafka", "spark")
"""Where several workers share the tests, what takes longest begins first, so that none is left alone with it."""


def pytest_collection_modifyitems(items):
    slowness = {}
    for item in items:
        if item.get_closest_marker("cluster") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))  # the first one may have to build an API server
        marks = [rank for rank, name in enumerate(SLOW_FIRST) if item.get_closest_marker(name)]
        slowness[item.path] = min([slowness.get(item.path, len(SLOW_FIRST)), *marks])
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: slowness[item.path])


@pytest.fixture(scope="session")
def builds_kubernetes(pytestconfig):
    """Whether Kubernetes is built where it never was: in CI, and for whoever asks for the cluster tests by name."""
    asked = any("tests/cluster" in argument for argument in pytestconfig.args)
    expression = pytestconfig.option.markexpr or ""
    return "CI" in os.environ or asked or ("cluster" in expression and "not cluster" not in expression)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory, builds_kubernetes):
    """One real Kubernetes control plane for the whole session; each test uses namespaces of its own."""
    from tests.cluster.binaries import CannotBuild
    from tests.cluster.control_plane import ControlPlane
    from tests.cluster.kubelet import PretendedKubelet

    plane = ControlPlane(tmp_path_factory.mktemp("kubernetes"), build=builds_kubernetes)
    try:
        plane.start()
    except CannotBuild as reason:
        pytest.skip(f"no Kubernetes: {reason}")
    try:
        with PretendedKubelet(plane):
            yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def registry_cluster(cluster):
    """The cluster with our definition of KafkaChannel."""
    from tests.cluster.manifests import kustomized

    for document in kustomized("crd"):
        cluster.apply(document)
    path = "/apis/messaging.knative.dev/v1beta1/kafkachannels"
    deadline = time.monotonic() + 20
    while True:
        try:
            cluster.request("GET", path)
        except OSError:
            assert time.monotonic() < deadline, "KafkaChannels are not served"
            time.sleep(0.1)
        else:
            return cluster
