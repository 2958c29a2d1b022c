"""Workloads in Kubernetes: the port `Workloads` over Deployments and Services of a cluster.

Listed and touched is only what carries `app.kubernetes.io/managed-by=sluice`. How an object is made so, and what
becomes of changes by others, says `kubernetes_clients.ownership`. Beside each dispatcher Deployment goes a
PodDisruptionBudget that belongs to it, so that draining nodes never takes all replicas of a channel at once.

Where pods do not come up, a Deployment's own status says nothing for ten minutes. What its pods wait for is added as
the condition `PodsFailing`, with the kubelet's reason (`ImagePullBackOff`, `CreateContainerConfigError`, `OOMKilled`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from eventing.channels import LABEL_COMPONENT, LABEL_MANAGED_BY, MANAGED_BY
from eventing.errors import NotFound, Refused, SluiceError, Unavailable
from orchestration.adapters.kubernetes_clients.changes import Collection, Followed
from orchestration.adapters.kubernetes_clients.connection import (
    MERGE_PATCH,
    SYSTEM,
    JsonObject,
    KubernetesApi,
    namespaced,
)
from orchestration.adapters.kubernetes_clients.journal import Journal
from orchestration.adapters.kubernetes_clients.ownership import (
    FIELD_MANAGER,
    apply,
    fields_fingerprint,
    find_ours,
    is_as_applied,
    shown,
)
from orchestration.planning.names import ANNOTATION_CONFIG_HASH, CONDITION_PODS_FAILING

APPS, CORE, POLICY = "/apis/apps/v1", "/api/v1", "/apis/policy/v1"
OURS = {"labelSelector": f"{LABEL_MANAGED_BY}={MANAGED_BY}"}
DELETE_MARGIN_SECONDS = 20.0
"""Beyond the pods' grace period: SIGKILL, and a kubelet and garbage collector that have more to do."""
DEFAULT_GRACE_S = 30.0
FIRST_LOOK_S, LONGEST_LOOK_S = 0.05, 1.0

_HARMLESS = frozenset({"ContainerCreating", "PodInitializing"})
_NO_IMAGE = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"})
_COUNTS = ("replicas", "readyReplicas", "updatedReplicas", "observedGeneration")


class KubernetesWorkloads:
    """See the module.

    Args:
        api: The connection.
        namespace: Where Deployments are: only there are they listed, so that no right to others' is needed. None: all.
    """

    def __init__(self, api: KubernetesApi, *, namespace: str | None = None) -> None:
        self._api = api
        self._journal = Journal(api)
        self._deployments = _collection(APPS, "deployments", namespace)
        self._pods = _collection(CORE, "pods", namespace)
        self._services = _collection(CORE, "services", None)
        self._followed = Followed(
            api,
            Collection(self._deployments, OURS, _told_deployment),
            Collection(self._services, OURS, _told_service),
        )

    def close(self) -> None:
        """Stop following."""
        self._followed.close()

    # -- reading -----------------------------------------------------------------------------------------------------

    def list_deployments(self) -> list[JsonObject]:
        deployments, _ = self._api.pages(self._deployments, OURS, doing="listing Deployments")
        failing: dict[tuple[str, str], tuple[str, str]] = {}
        if any(not _is_rolled_out(deployment) for deployment in deployments):
            pods, _ = self._api.pages(self._pods, OURS, doing="listing pods")
            failing = _failures(pods)
        return [_observed(deployment, failing) for deployment in deployments]

    def list_services(self) -> list[JsonObject]:
        services, _ = self._api.pages(self._services, OURS, doing="listing Services")
        return [_shown(service) for service in services]

    def wait_for_change(self, cursor: str | None, timeout_s: float) -> str:
        return self._followed.wait(cursor, timeout_s)

    # -- changing ----------------------------------------------------------------------------------------------------

    def apply_deployment(self, manifest: JsonObject) -> None:
        metadata = manifest["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        with self._refusals(manifest, "Apply"):
            now, before = apply(
                self._api, _path(APPS, "deployments", namespace, name), manifest, f"Deployment {namespace}/{name}"
            )
            if (metadata.get("labels") or {}).get(LABEL_COMPONENT) == "dispatcher":
                budget = disruption_budget(now)
                apply(
                    self._api,
                    _path(POLICY, "poddisruptionbudgets", namespace, name),
                    budget,
                    f"PodDisruptionBudget {namespace}/{name}",
                )
        self._say_applied(now, before)

    def scale_deployment(self, namespace: str, name: str, replicas: int, annotations: dict[str, str]) -> None:
        path, what = _path(APPS, "deployments", namespace, name), f"Deployment {namespace}/{name}"
        found = find_ours(self._api, path, what)
        if found is None:
            raise NotFound(SYSTEM, f"there is no {what}")
        patch: JsonObject = {"metadata": {"uid": found["metadata"]["uid"]}, "spec": {"replicas": replicas}}
        if annotations:
            patch["metadata"]["annotations"] = annotations
        self._api.request(
            "PATCH", path, {"fieldManager": FIELD_MANAGER}, patch, content_type=MERGE_PATCH, doing=f"scaling {what}"
        )
        if found["spec"].get("replicas") != replicas:
            self._journal.tell(
                found, "Normal", "Scaled", "Scale", f"from {found['spec'].get('replicas')} to {replicas} replicas"
            )

    def delete_deployment(self, namespace: str, name: str) -> None:
        path, what = _path(APPS, "deployments", namespace, name), f"Deployment {namespace}/{name}"
        found = find_ours(self._api, path, what)
        if found is None:
            return
        uid = found["metadata"]["uid"]
        if found["metadata"].get("deletionTimestamp") is None:
            # In the foreground: the object stays until its pods are gone, so that one can see when they are.
            self._delete(path, uid, what, "Foreground")
        template = found["spec"]["template"]["spec"]
        bound_s = float(template.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)) + DELETE_MARGIN_SECONDS
        selector = ",".join(f"{key}={value}" for key, value in sorted(found["spec"]["selector"]["matchLabels"].items()))
        deadline, pause = time.monotonic() + bound_s, FIRST_LOOK_S
        while self._is_there(path, uid, what) or self._has_pods(namespace, selector):
            if time.monotonic() > deadline:
                raise Unavailable(SYSTEM, f"{what} and its pods are not gone after {bound_s:.0f} s")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_LOOK_S)

    def apply_service(self, manifest: JsonObject) -> None:
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        with self._refusals(manifest, "Apply"):
            apply(self._api, _path(CORE, "services", namespace, name), manifest, f"Service {namespace}/{name}")

    def delete_service(self, namespace: str, name: str) -> None:
        path, what = _path(CORE, "services", namespace, name), f"Service {namespace}/{name}"
        found = find_ours(self._api, path, what)
        if found is not None:
            self._delete(path, found["metadata"]["uid"], what, "Background")

    # -- inside ------------------------------------------------------------------------------------------------------

    def _delete(self, path: str, uid: str, what: str, propagation: Literal["Foreground", "Background"]) -> None:
        """Delete this very object: never a namesake that somebody made meanwhile."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
            "preconditions": {"uid": uid},
        }
        try:
            self._api.request("DELETE", path, None, options, doing=f"deleting {what}")
        except NotFound:
            return

    def _is_there(self, path: str, uid: str, what: str) -> bool:
        try:
            found = self._api.get(path, doing=f"waiting for the end of {what}")
        except NotFound:
            return False
        return bool(found["metadata"]["uid"] == uid)

    def _has_pods(self, namespace: str, selector: str) -> bool:
        # Somebody may have deleted the Deployment in the background before us: its pods go on for a while.
        page = self._api.get(
            namespaced(CORE, namespace, "pods"), {"labelSelector": selector, "limit": "1"}, doing="looking for pods"
        )
        return bool(page.get("items"))

    @contextmanager
    def _refusals(self, manifest: JsonObject, action: str) -> Iterator[None]:
        """What the API server refuses is told on an object that is there, if there is one."""
        try:
            yield
        except Refused as refusal:
            metadata = manifest["metadata"]
            plural = f"{manifest['kind'].lower()}s"
            root = APPS if manifest["kind"] == "Deployment" else CORE
            try:
                there = find_ours(self._api, _path(root, plural, metadata["namespace"], metadata["name"]), "it")
            except SluiceError:
                there = None
            if there is not None:
                self._journal.tell(there, "Warning", type(refusal).__name__, action, refusal.reason)
            raise

    def _say_applied(self, now: JsonObject, before: JsonObject | None) -> None:
        if before is None:
            self._journal.tell(now, "Normal", "Created", "Apply", "created as planned")
        elif not is_as_applied(before):
            self._journal.tell(now, "Normal", "Restored", "Apply", "changed by hand; made again as declared")
        elif before["metadata"].get("generation") != now["metadata"].get("generation"):
            self._journal.tell(now, "Normal", "Updated", "Apply", "updated as planned")


def disruption_budget(deployment: JsonObject) -> JsonObject:
    """At most one replica of a channel goes at a time; one that is broken anyway never blocks a drain."""
    metadata = deployment["metadata"]
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": metadata["labels"],
            "ownerReferences": [owner],
        },
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": deployment["spec"]["selector"],
        },
    }


def _collection(root: str, plural: str, namespace: str | None) -> str:
    return f"{root}/{plural}" if namespace is None else namespaced(root, namespace, plural)


def _path(root: str, plural: str, namespace: str, name: str) -> str:
    return namespaced(root, namespace, plural, name)


def _shown(document: JsonObject) -> JsonObject:
    # What was changed by others is not what was rendered, whatever the annotation says.
    return shown(document, hide=() if is_as_applied(document) else (ANNOTATION_CONFIG_HASH,))


def _observed(deployment: JsonObject, failing: Mapping[tuple[str, str], tuple[str, str]]) -> JsonObject:
    document = _shown(deployment)
    status = {**dict.fromkeys(_COUNTS, 0), **(deployment.get("status") or {})}
    conditions = [c for c in status.get("conditions") or () if c.get("type") != CONDITION_PODS_FAILING]
    failure = failing.get(_selected(deployment))
    if failure is not None:
        reason, message = failure
        conditions.append({"type": CONDITION_PODS_FAILING, "status": "True", "reason": reason, "message": message})
    status["conditions"] = conditions
    return {**document, "status": status}


def _is_rolled_out(deployment: JsonObject) -> bool:
    status, wanted = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    return all(status.get(count, 0) == wanted for count in ("replicas", "readyReplicas", "updatedReplicas"))


def _selected(document: JsonObject) -> tuple[str, str]:
    """Namespace and labels, as text: a Deployment and its pods agree in them."""
    labels = document["metadata"].get("labels") or {}
    told = {key: value for key, value in labels.items() if key != "pod-template-hash"}
    return (str(document["metadata"]["namespace"]), repr(sorted(told.items())))


def _failures(pods: list[JsonObject]) -> dict[tuple[str, str], tuple[str, str]]:
    """Per Deployment the first thing that keeps a pod of it from being ready: reason and message.

    The message holds neither names nor numbers that change with each restart: it ends in a status, which is written
    whenever it differs.
    """
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        failure = _failure(pod.get("status") or {})
        if failure is not None:
            found.setdefault(_selected(pod), failure)
    return found


def _failure(status: Mapping[str, Any]) -> tuple[str, str] | None:
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        name, image = container.get("name"), container.get("image")
        waiting = str(((container.get("state") or {}).get("waiting") or {}).get("reason") or "")
        ended = (container.get("lastState") or {}).get("terminated") or {}
        if waiting in _NO_IMAGE:
            # The kubelet says the two in turns.
            return "ImagePullBackOff", f"the image {image} of container {name} cannot be pulled"
        if ended and (waiting == "CrashLoopBackOff" or not container.get("ready")):
            reason = str(ended.get("reason") or "Error")
            return reason, f"container {name} ended with exit code {ended.get('exitCode')} ({reason}); see its log"
        if waiting and waiting not in _HARMLESS:
            message = (container.get("state") or {})["waiting"].get("message")
            return waiting, f"container {name} does not start: {message or waiting}"
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("reason") or "Unschedulable"), str(condition.get("message") or "not scheduled")
    return None


def _told_deployment(deployment: JsonObject) -> object:
    """What a change is: existence, what is wanted, what is there, what somebody changed; not every heartbeat."""
    metadata, status = deployment["metadata"], deployment.get("status") or {}
    broken = [
        [condition.get("type"), condition.get("reason")]
        for condition in status.get("conditions") or ()
        if (condition.get("type"), condition.get("status")) in {("ReplicaFailure", "True"), ("Progressing", "False")}
    ]
    return [
        metadata["uid"],
        metadata.get("generation"),
        metadata.get("deletionTimestamp"),
        (metadata.get("annotations") or {}).get(ANNOTATION_CONFIG_HASH),
        fields_fingerprint(deployment),
        [status.get(count, 0) for count in _COUNTS],
        broken,
    ]


def _told_service(service: JsonObject) -> object:
    metadata = service["metadata"]
    return [metadata["uid"], metadata.get("deletionTimestamp"), metadata.get("annotations"), service.get("spec")]
