"""Fixtures of the cluster tests: deploy/ applied to the session's real API server."""

from __future__ import annotations

import uuid

import pytest

from tests.cluster.manifests import kustomized


@pytest.fixture(scope="session")
def deployed(registry_cluster):
    """The cluster with all that deploy/ lays down."""
    for document in kustomized("base"):
        registry_cluster.apply(document)
    return registry_cluster


@pytest.fixture
def namespace(cluster):
    """A namespace of the test's own; deleted at the end, and with it what is in it."""
    name = f"team-{uuid.uuid4().hex[:8]}"
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    cluster.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def access(cluster):
    """A connection of the adapters as the administrator."""
    from orchestration.adapters.kubernetes_clients.connection import KubernetesApi

    return KubernetesApi.connect(cluster.kubeconfig())


@pytest.fixture
def as_service_account(cluster):
    """A connection of the adapters as a service account of sluice-system: with its rights and no more."""
    from orchestration.adapters.kubernetes_clients.connection import KubernetesApi

    def connect(name):
        token = cluster.token_of("sluice-system", name)
        return KubernetesApi.connect(cluster.kubeconfig(name, token=token))

    return connect


def channel(namespace, name="orders", *, finalizers=None, annotations=None, **spec):
    """A KafkaChannel as a team declares it."""
    metadata = {"namespace": namespace, "name": name}
    if finalizers is not None:
        metadata["finalizers"] = finalizers
    if annotations is not None:
        metadata["annotations"] = annotations
    return {"apiVersion": "messaging.knative.dev/v1beta1", "kind": "KafkaChannel", "metadata": metadata, "spec": spec}
