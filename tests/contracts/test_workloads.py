"""What every Workloads port promises: the same claims for processes of this machine and for Kubernetes."""

from __future__ import annotations

import copy
import threading
import time
import uuid

import pytest

from eventing.errors import NotFound, Refused
from tests.fakes.workloads import FakeWorkloads
from tests.local.controlled import controller

SERVER = (
    "import http.server, os;"
    "http.server.ThreadingHTTPServer(('127.0.0.1', int(os.environ['HEALTH_PORT'])),"
    " http.server.SimpleHTTPRequestHandler).serve_forever()"
)
LABELS = {"app.kubernetes.io/managed-by": "sluice", "app.kubernetes.io/component": "dispatcher"}
NAMESPACE = "contract"


def deployment(name, replicas=1, *, setting="1", annotations=None):
    """A Deployment of one small HTTP server; `setting` is part of the pod template."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "namespace": NAMESPACE,
            "name": name,
            "labels": dict(LABELS),
            "annotations": {"who": "contract", **(annotations or {})},
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 5,
                    "containers": [
                        {
                            "name": "server",
                            "image": "sluice/dispatcher",
                            "command": ["python", "-c", SERVER],
                            "env": [{"name": "SETTING", "value": setting}],
                            "ports": [{"name": "health", "containerPort": 8082}],
                            "readinessProbe": {"httpGet": {"path": "/", "port": "health"}, "periodSeconds": 1},
                        }
                    ],
                },
            },
        },
    }


def service(name, port=80):
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": NAMESPACE, "name": name, "labels": dict(LABELS)},
        "spec": {"ports": [{"port": port}]},
    }


def eventually(claim, within_s=15.0):
    deadline = time.monotonic() + within_s
    while not (value := claim()):
        assert time.monotonic() < deadline, value
        time.sleep(0.02)
    return value


class WorkloadsContract:
    """A subclass gives `workloads` and `declare_foreign`; each test uses a Deployment of its own."""

    @pytest.fixture
    def name(self, workloads):
        name = f"d-{uuid.uuid4().hex[:8]}"
        yield name
        workloads.delete_deployment(NAMESPACE, name)
        workloads.delete_service(NAMESPACE, name)

    def test_an_applied_deployment_becomes_ready_and_is_listed_as_it_was_asked_for(self, workloads, name):
        workloads.apply_deployment(deployment(name, 2))

        found = ready(workloads, name, 2)
        assert found["spec"]["replicas"] == 2
        assert found["metadata"]["labels"] == LABELS
        assert found["metadata"]["annotations"]["who"] == "contract"
        assert found["metadata"]["creationTimestamp"].endswith("Z")
        assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
        assert (found["status"]["replicas"], found["status"]["updatedReplicas"]) == (2, 2)

    def test_applying_the_same_again_changes_nothing(self, workloads, name):
        workloads.apply_deployment(deployment(name))
        before = ready(workloads, name, 1)
        workloads.apply_deployment(deployment(name))

        assert of(workloads, name)["metadata"] == before["metadata"]

    def test_the_manifest_is_not_changed_by_applying_it(self, workloads, name):
        manifest = deployment(name)
        before = copy.deepcopy(manifest)
        workloads.apply_deployment(manifest)

        assert manifest == before

    def test_every_change_has_a_resource_version_of_its_own(self, workloads, name):
        seen = []
        workloads.apply_deployment(deployment(name, 0))
        eventually(lambda: of(workloads, name)["status"]["observedGeneration"] == 1)
        seen.append(of(workloads, name)["metadata"]["resourceVersion"])
        workloads.scale_deployment(NAMESPACE, name, 1, {})
        ready(workloads, name, 1)
        seen.append(of(workloads, name)["metadata"]["resourceVersion"])
        workloads.scale_deployment(NAMESPACE, name, 0, {})
        eventually(lambda: of(workloads, name)["status"]["observedGeneration"] == 3)
        seen.append(of(workloads, name)["metadata"]["resourceVersion"])

        assert len(set(seen)) == 3

    def test_a_changed_template_replaces_the_replicas(self, workloads, name):
        workloads.apply_deployment(deployment(name))
        first = ready(workloads, name, 1)
        workloads.apply_deployment(deployment(name, setting="2"))

        assert of(workloads, name)["metadata"]["generation"] == first["metadata"]["generation"] + 1
        done = eventually(lambda: rolled_out(workloads, name))
        assert done["status"]["replicas"] == 1

    def test_scaling_keeps_the_template_and_merges_annotations(self, workloads, name):
        workloads.apply_deployment(deployment(name))
        ready(workloads, name, 1)
        workloads.scale_deployment(NAMESPACE, name, 2, {"sluice.dev/last-resize": "2026-11-20T03:00:00Z"})

        found = ready(workloads, name, 2)
        assert found["metadata"]["annotations"]["who"] == "contract"
        assert found["metadata"]["annotations"]["sluice.dev/last-resize"] == "2026-11-20T03:00:00Z"
        assert "annotations" not in found["spec"]["template"]["metadata"]

    def test_scaling_to_zero_and_back(self, workloads, name):
        workloads.apply_deployment(deployment(name))
        ready(workloads, name, 1)
        workloads.scale_deployment(NAMESPACE, name, 0, {})
        eventually(lambda: of(workloads, name)["status"]["replicas"] == 0)
        workloads.scale_deployment(NAMESPACE, name, 1, {})
        ready(workloads, name, 1)

    def test_scaling_what_is_not_there_is_told(self, workloads):
        with pytest.raises(NotFound):
            workloads.scale_deployment(NAMESPACE, "nothing", 1, {})

    def test_a_deleted_deployment_is_gone_when_deleting_returns(self, workloads, name):
        workloads.apply_deployment(deployment(name, 2))
        ready(workloads, name, 2)
        workloads.delete_deployment(NAMESPACE, name)

        assert of(workloads, name) is None

    def test_deleting_twice_is_success(self, workloads, name):
        workloads.apply_deployment(deployment(name))
        workloads.delete_deployment(NAMESPACE, name)
        workloads.delete_deployment(NAMESPACE, name)

    def test_a_deployment_may_be_declared_anew_after_its_deletion(self, workloads, name):
        workloads.apply_deployment(deployment(name))
        first = ready(workloads, name, 1)["metadata"]["resourceVersion"]
        workloads.delete_deployment(NAMESPACE, name)
        workloads.apply_deployment(deployment(name))

        assert ready(workloads, name, 1)["metadata"]["resourceVersion"] != first

    def test_what_is_not_managed_by_sluice_is_not_listed(self, workloads, declare_foreign):
        foreign = deployment(f"foreign-{uuid.uuid4().hex[:8]}", 0)
        foreign["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "somebody"
        declare_foreign(foreign)

        assert of(workloads, foreign["metadata"]["name"]) is None

    def test_a_change_ends_the_waiting(self, workloads, name):
        cursor = workloads.wait_for_change(None, 0.0)
        seen = []
        waiting = threading.Thread(target=lambda: seen.append(workloads.wait_for_change(cursor, 15.0)))
        waiting.start()
        workloads.apply_deployment(deployment(name))
        waiting.join(15.0)

        assert seen
        assert seen[0] != cursor

    def test_waiting_without_a_change_ends_with_the_same_cursor(self, workloads, name):
        workloads.apply_deployment(deployment(name))
        ready(workloads, name, 1)
        cursor = eventually_quiet(workloads)

        assert workloads.wait_for_change(cursor, 0.3) == cursor

    def test_services_are_kept_listed_and_deleted(self, workloads, name):
        workloads.apply_service(service(name))
        workloads.apply_service(service(name, 81))
        (found,) = [s for s in workloads.list_services() if s["metadata"]["name"] == name]
        assert [port["port"] for port in found["spec"]["ports"]] == [81]
        assert found["metadata"]["resourceVersion"]
        workloads.delete_service(NAMESPACE, name)
        workloads.delete_service(NAMESPACE, name)

        assert not [s for s in workloads.list_services() if s["metadata"]["name"] == name]


def of(workloads, name):
    return next((d for d in workloads.list_deployments() if d["metadata"]["name"] == name), None)


def ready(workloads, name, replicas):
    def claim():
        found = of(workloads, name)
        return found if found is not None and found["status"]["readyReplicas"] == replicas else None

    return eventually(claim)


def rolled_out(workloads, name):
    found = of(workloads, name)
    status = found["status"]
    current = status["observedGeneration"] == found["metadata"]["generation"]
    wanted = found["spec"]["replicas"]
    done = status["replicas"] == status["updatedReplicas"] == status["readyReplicas"] == wanted
    return found if current and done else None


def eventually_quiet(workloads):
    cursor = workloads.wait_for_change(None, 0.0)
    while (following := workloads.wait_for_change(cursor, 0.3)) != cursor:
        cursor = following
    return cursor


class TestFakeWorkloads(WorkloadsContract):
    @pytest.fixture
    def workloads(self):
        return FakeWorkloads(settles_at_once=True)

    @pytest.fixture
    def declare_foreign(self, workloads):
        return workloads.apply_deployment


@pytest.fixture(scope="module")
def local_workloads(tmp_path_factory):
    from orchestration.adapters.local_workloads import LocalWorkloads

    home = tmp_path_factory.mktemp("sluice")
    with controller(home):
        yield LocalWorkloads(home)


class TestLocalWorkloads(WorkloadsContract):
    @pytest.fixture
    def workloads(self, local_workloads):
        return local_workloads

    @pytest.fixture
    def declare_foreign(self, workloads):
        declared = []

        def declare(manifest):
            declared.append(manifest["metadata"]["name"])
            workloads.apply_deployment(manifest)

        yield declare
        for name in declared:
            workloads.delete_deployment(NAMESPACE, name)

    def test_a_manifest_that_no_process_can_run_is_refused(self, workloads):
        manifest = deployment("two")
        manifest["spec"]["template"]["spec"]["containers"] *= 2
        with pytest.raises(Refused, match="containers"):
            workloads.apply_deployment(manifest)


@pytest.fixture(scope="module")
def kubernetes_workloads(cluster):
    from orchestration.adapters.kubernetes_clients.connection import KubernetesApi
    from orchestration.adapters.kubernetes_workloads import KubernetesWorkloads

    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    workloads = KubernetesWorkloads(KubernetesApi.connect(cluster.kubeconfig()))
    yield workloads
    workloads.close()


@pytest.mark.cluster
class TestKubernetesWorkloads(WorkloadsContract):
    """Against a real API server with its controllers; what is more than the contract is in tests/cluster."""

    @pytest.fixture
    def workloads(self, kubernetes_workloads):
        return kubernetes_workloads

    @pytest.fixture
    def declare_foreign(self, cluster):
        return cluster.apply
