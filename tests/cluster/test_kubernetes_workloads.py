"""What Workloads in Kubernetes promise beyond the contract: ownership, other writers, failures, restarts."""

from __future__ import annotations

import json
import threading
import time
import uuid

import pytest

from eventing.errors import Conflict, Forbidden, NotFound, Refused, Unavailable
from orchestration.adapters.kubernetes_clients.connection import FieldConflict, KubernetesApi
from orchestration.adapters.kubernetes_workloads import KubernetesWorkloads
from orchestration.planning.names import ANNOTATION_CONFIG_HASH

pytestmark = pytest.mark.cluster

OURS = {"app.kubernetes.io/managed-by": "sluice", "app.kubernetes.io/component": "dispatcher"}


def deployment(namespace, name, *, image="sluice/dispatcher", replicas=1, labels=None):
    labels = {**(labels or OURS), "sluice.dev/channel": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "labels": labels,
            "annotations": {ANNOTATION_CONFIG_HASH: "abc"},
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": image}]},
            },
        },
    }


def eventually(claim, within_s=20.0):
    deadline = time.monotonic() + within_s
    while not (value := claim()):
        assert time.monotonic() < deadline, value
        time.sleep(0.05)
    return value


@pytest.fixture
def workloads(access, namespace):
    workloads = KubernetesWorkloads(access, namespace=namespace)
    yield workloads
    workloads.close()


def path(namespace, name):
    return f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"


def events(cluster, namespace):
    return {
        (event["reason"], event["regarding"]["kind"], event["regarding"]["name"])
        for event in cluster.request("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
        if event["reportingController"] == "sluice.dev/orchestration"
    }


class TestOwnership:
    def test_a_namesake_of_somebody_else_is_neither_changed_nor_scaled_nor_deleted(self, cluster, workloads, namespace):
        cluster.apply(deployment(namespace, "theirs", labels={"app": "theirs"}))
        before = cluster.request("GET", path(namespace, "theirs"))["spec"]
        for attempt in (
            lambda: workloads.apply_deployment(deployment(namespace, "theirs")),
            lambda: workloads.scale_deployment(namespace, "theirs", 5, {}),
            lambda: workloads.delete_deployment(namespace, "theirs"),
        ):
            with pytest.raises(Refused, match="not ours"):
                attempt()
        assert cluster.request("GET", path(namespace, "theirs"))["spec"] == before

    def test_a_service_of_somebody_else_is_left_alone(self, cluster, workloads, namespace):
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"namespace": namespace, "name": "orders-kn-channel"},
            "spec": {"ports": [{"port": 80}]},
        }
        cluster.apply(service)
        with pytest.raises(Refused, match="not ours"):
            workloads.delete_service(namespace, "orders-kn-channel")
        with pytest.raises(Refused, match="not ours"):
            workloads.apply_service({**service, "metadata": {**service["metadata"], "labels": OURS}})

    def test_the_api_servers_defaults_are_no_change(self, cluster, workloads, namespace):
        workloads.apply_deployment(deployment(namespace, "d"))
        version = eventually(lambda: _settled(workloads))
        workloads.apply_deployment(deployment(namespace, "d"))
        assert workloads.list_deployments()[0]["metadata"]["resourceVersion"] == version

    def test_what_others_add_stays_and_is_no_drift(self, cluster, workloads, namespace):
        workloads.apply_deployment(deployment(namespace, "d"))
        extra = {"spec": {"template": {"spec": {"nodeSelector": {"pool": "kafka"}}}}}
        _patch(cluster, namespace, "d", extra, "kubectl-edit")
        assert _listed(workloads)["metadata"]["annotations"][ANNOTATION_CONFIG_HASH] == "abc"
        workloads.apply_deployment(deployment(namespace, "d", image="sluice/dispatcher:2"))
        pod = _listed(workloads)["spec"]["template"]["spec"]
        assert (pod["nodeSelector"], pod["containers"][0]["image"]) == ({"pool": "kafka"}, "sluice/dispatcher:2")

    def test_an_edit_by_hand_is_seen_and_made_good(self, cluster, workloads, namespace):
        workloads.apply_deployment(deployment(namespace, "d"))
        edit = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "evil"}]}}}}
        _patch(cluster, namespace, "d", edit, "kubectl-edit")
        assert ANNOTATION_CONFIG_HASH not in _listed(workloads)["metadata"]["annotations"]
        workloads.apply_deployment(deployment(namespace, "d"))
        found = _listed(workloads)
        assert found["metadata"]["annotations"][ANNOTATION_CONFIG_HASH] == "abc"
        assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "sluice/dispatcher"
        assert ("Restored", "Deployment", "d") in events(cluster, namespace)

    def test_replicas_set_by_hand_are_set_back(self, cluster, workloads, namespace):
        workloads.apply_deployment(deployment(namespace, "d"))
        _patch(cluster, namespace, "d", {"spec": {"replicas": 3}}, "kubectl-scale")
        workloads.apply_deployment(deployment(namespace, "d"))
        assert _listed(workloads)["spec"]["replicas"] == 1

    def test_resizing_is_no_drift_and_an_apply_may_resize_again(self, workloads, namespace):
        workloads.apply_deployment(deployment(namespace, "d"))
        workloads.scale_deployment(namespace, "d", 3, {"sluice.dev/last-resize": "2026-11-20T03:00:00Z"})
        assert _listed(workloads)["metadata"]["annotations"][ANNOTATION_CONFIG_HASH] == "abc"
        workloads.apply_deployment(deployment(namespace, "d", replicas=2))
        assert _listed(workloads)["spec"]["replicas"] == 2

    def test_another_controllers_field_is_a_conflict_and_is_not_forced_over(self, cluster, workloads, namespace):
        workloads.apply_deployment(deployment(namespace, "d"))
        edit = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "theirs"}]}}}}
        _patch(cluster, namespace, "d", edit, "argocd-controller")
        with pytest.raises(FieldConflict, match="argocd-controller") as conflict:
            workloads.apply_deployment(deployment(namespace, "d"))
        assert isinstance(conflict.value, Conflict)
        assert conflict.value.owners == (("argocd-controller", '.spec.template.spec.containers[name="main"].image'),)
        assert _listed(workloads)["spec"]["template"]["spec"]["containers"][0]["image"] == "theirs"

    def test_a_document_that_fits_no_schema_is_refused_for_good(self, workloads, namespace):
        wrong = deployment(namespace, "d")
        wrong["spec"]["replicsa"] = 2
        with pytest.raises(Refused):
            workloads.apply_deployment(wrong)

    def test_a_disruption_budget_comes_and_goes_with_its_dispatcher(self, cluster, workloads, namespace):
        workloads.apply_deployment(deployment(namespace, "d"))
        budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
        (budget,) = cluster.request("GET", budgets)["items"]
        assert budget["spec"]["maxUnavailable"] == 1
        assert budget["spec"]["selector"]["matchLabels"]["sluice.dev/channel"] == "d"
        workloads.delete_deployment(namespace, "d")
        eventually(lambda: cluster.request("GET", budgets)["items"] == [])


class TestFailures:
    def test_an_image_that_cannot_be_pulled_is_told_with_the_kubelets_reason(self, workloads, namespace):
        workloads.apply_deployment(deployment(namespace, "d", image="registry.example.com/missing"))

        def failing():
            return [c for c in _listed(workloads)["status"]["conditions"] if c["type"] == "PodsFailing"]

        (condition,) = eventually(failing)
        assert (condition["status"], condition["reason"]) == ("True", "ImagePullBackOff")
        assert condition["message"] == "the image registry.example.com/missing of container main cannot be pulled"

    def test_a_token_that_expired_is_read_again(self, cluster, namespace, tmp_path):
        kubeconfig = tmp_path / "kubeconfig"
        good = cluster.kubeconfig().read_text()
        kubeconfig.write_text(good.replace(cluster.token(), "expired"))
        workloads = KubernetesWorkloads(KubernetesApi.connect(kubeconfig), namespace=namespace)
        with pytest.raises(Forbidden, match="credentials"):
            workloads.list_deployments()
        kubeconfig.write_text(good)
        assert workloads.list_deployments() == []

    def test_missing_rights_are_forbidden_and_say_which(self, deployed, as_service_account, namespace):
        workloads = KubernetesWorkloads(as_service_account("sluice-canary"), namespace=namespace)
        with pytest.raises(Forbidden, match="cannot list resource"):
            workloads.list_deployments()

    def test_a_server_that_does_not_listen_is_unavailable(self, cluster, tmp_path):
        from orchestration.local.ports import free_port

        document = json.loads(cluster.kubeconfig().read_text())
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{free_port()}"
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(json.dumps(document))
        workloads = KubernetesWorkloads(KubernetesApi.connect(kubeconfig))
        with pytest.raises(Unavailable):
            workloads.list_deployments()
        with pytest.raises(Unavailable):
            workloads.wait_for_change(None, 0.1)
        workloads.close()

    def test_a_restarted_api_server_ends_no_waiting_for_good(self, cluster, workloads, namespace):
        cursor = workloads.wait_for_change(None, 5.0)
        seen = []
        waiting = threading.Thread(target=lambda: seen.append(workloads.wait_for_change(cursor, 60.0)))
        waiting.start()
        cluster.restart_api_server()
        assert waiting.is_alive()
        eventually(lambda: _is_applied(workloads, namespace))
        waiting.join(60.0)
        assert seen
        assert seen[0] != cursor
        assert [d["metadata"]["name"] for d in workloads.list_deployments()] == ["d"]

    def test_two_that_apply_the_same_at_once_do_not_disturb_each_other(self, cluster, workloads, namespace):
        errors = []

        def apply():
            try:
                workloads.apply_deployment(deployment(namespace, "d"))
            except Conflict as conflict:
                errors.append(conflict)  # observed again by whoever gets it

        threads = [threading.Thread(target=apply) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(errors) < len(threads)
        assert _listed(workloads)["metadata"]["generation"] == 1

    def test_deleting_waits_for_pods_of_a_deployment_that_somebody_deletes_meanwhile(
        self, cluster, workloads, namespace
    ):
        workloads.apply_deployment(deployment(namespace, "d"))
        eventually(lambda: _listed(workloads)["status"]["readyReplicas"] == 1)
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
        cluster.request("DELETE", path(namespace, "d"), options)
        workloads.delete_deployment(namespace, "d")
        assert cluster.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"] == []

    def test_scaling_what_is_gone_is_not_found(self, workloads, namespace):
        with pytest.raises(NotFound):
            workloads.scale_deployment(namespace, f"d-{uuid.uuid4().hex[:6]}", 1, {})


def _listed(workloads):
    (found,) = workloads.list_deployments()
    return found


def _settled(workloads):
    """The resourceVersion once the Deployment's controller has nothing more to say."""
    first = _listed(workloads)
    if first["status"]["readyReplicas"] != 1:
        return None
    time.sleep(0.5)
    again = _listed(workloads)["metadata"]["resourceVersion"]
    return again if again == first["metadata"]["resourceVersion"] else None


def _is_applied(workloads, namespace):
    try:
        workloads.apply_deployment(deployment(namespace, "d"))
    except (Unavailable, Forbidden):
        return False
    return True


def _patch(cluster, namespace, name, body, manager):
    cluster.request(
        "PATCH",
        f"{path(namespace, name)}?fieldManager={manager}",
        body,
        content_type="application/strategic-merge-patch+json",
    )
