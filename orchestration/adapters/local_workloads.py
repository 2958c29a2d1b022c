"""Workloads as processes of this machine: the port `Workloads` over the folder that the local controller follows.

What an API server would do is done here, on files: generation, resourceVersion, creation time, deletion in the
foreground. What controllers and kubelets would do is done by `orchestration.local.controller`. While that does not run,
what runs is unknown, and reading raises `Unavailable`; declaring works all the same.
"""

from __future__ import annotations

import copy
import hashlib
import json
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eventing.errors import Conflict, InvalidResource, NotFound, Refused, Unavailable
from orchestration.local.pod_template import DEFAULT_GRACE_S, parse_deployment
from orchestration.local.workload_files import JsonObject, Key, WorkloadFiles

SYSTEM = "workloads"
MANAGED_BY = "app.kubernetes.io/managed-by"
DELETE_MARGIN_SECONDS = 20.0  # beyond the grace period: SIGKILL, reaping, and a busy machine
POLL_SECONDS = 0.1
SCALED = "scaledAnnotations"
"""Key, beside the manifest, of the annotations that came with a resize: applying the manifest keeps them, as a
server-side apply keeps the fields of other managers."""


class LocalWorkloads:
    """See the module. `home` is `$SLUICE_HOME`."""

    def __init__(self, home: Path) -> None:
        self._files = WorkloadFiles(home)

    # -- reading ----------------------------------------------------------------------------------------------------

    def list_deployments(self) -> list[JsonObject]:
        if not self._files.is_controlled():
            raise Unavailable(SYSTEM, "the local controller does not run; start the platform with `sluice up`")
        return [
            _observed(stored, self._files.read("status", key))
            for key, stored in self._files.read_all("deployments").items()
            if _is_ours(stored)
        ]

    def list_services(self) -> list[JsonObject]:
        return [stored["object"] for stored in self._files.read_all("services").values() if _is_ours(stored)]

    def wait_for_change(self, cursor: str | None, timeout_s: float) -> str:
        deadline = time.monotonic() + timeout_s
        signature: str | None = None
        while True:
            # The files change with every probe's news; the cursor only with what the port promises to tell.
            now = self._files.signature("deployments", "services", "status")
            if now != signature:
                signature, seen = now, self._cursor()
                if seen != cursor:
                    return seen
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return seen
            time.sleep(min(POLL_SECONDS, remaining))

    def _cursor(self) -> str:
        told: list[Any] = [self._files.keys("services")]
        for key, stored in self._files.read_all("deployments").items():
            status = _counts(self._files.read("status", key))
            metadata = stored["object"]["metadata"]
            told.append([key, metadata["generation"], metadata.get("deletionTimestamp"), status])
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]

    # -- changing ---------------------------------------------------------------------------------------------------

    def apply_deployment(self, manifest: JsonObject) -> None:
        try:
            parse_deployment(manifest)
        except InvalidResource as problem:
            raise Refused(SYSTEM, str(problem)) from problem
        key = _key(manifest)
        with self._files.locked():
            stored = self._files.read("deployments", key)
            if stored is None:
                self._files.write("deployments", key, {"object": _born(manifest), SCALED: {}})
                return
            self._refuse_while_deleted(key, stored)
            changed = copy.deepcopy(manifest)
            kept = {k: v for k, v in stored["object"]["metadata"].items() if k in _SERVER_OWNED}
            changed["metadata"] = {**manifest["metadata"], **kept}
            annotations = {**stored[SCALED], **(manifest["metadata"].get("annotations") or {})}
            if annotations:
                changed["metadata"]["annotations"] = annotations
            self._replace(key, stored, changed, stored[SCALED])

    def scale_deployment(self, namespace: str, name: str, replicas: int, annotations: dict[str, str]) -> None:
        key = (namespace, name)
        with self._files.locked():
            stored = self._files.read("deployments", key)
            if stored is None:
                raise NotFound(SYSTEM, f"there is no Deployment {namespace}/{name}")
            self._refuse_while_deleted(key, stored)
            changed = copy.deepcopy(stored["object"])
            changed["spec"]["replicas"] = replicas
            if annotations:
                changed["metadata"]["annotations"] = {**(changed["metadata"].get("annotations") or {}), **annotations}
            self._replace(key, stored, changed, {**stored[SCALED], **annotations})

    def delete_deployment(self, namespace: str, name: str) -> None:
        key = (namespace, name)
        with self._files.locked():
            stored = self._files.read("deployments", key)
            if stored is None:
                return
            if not self._files.is_controlled():
                # The processes of a controller end with it: without one there is nothing to wait for.
                self._files.remove("deployments", key)
                self._files.remove("status", key)
                return
            metadata = stored["object"]["metadata"]
            if "deletionTimestamp" not in metadata:
                metadata["deletionTimestamp"] = _timestamp()
                metadata["resourceVersion"] = _next_version(metadata)
                self._files.write("deployments", key, stored)
        grace = stored["object"]["spec"]["template"]["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
        deadline = time.monotonic() + grace + DELETE_MARGIN_SECONDS
        while self._files.path("deployments", key).exists():
            if time.monotonic() > deadline:
                raise Unavailable(SYSTEM, f"processes of {namespace}/{name} did not end in {grace:.0f} s and some")
            if not self._files.is_controlled():
                self.delete_deployment(namespace, name)
                return
            time.sleep(POLL_SECONDS)

    def apply_service(self, manifest: JsonObject) -> None:
        key = _key(manifest)
        with self._files.locked():
            stored = self._files.read("services", key)
            if stored is None:
                self._files.write("services", key, {"object": _born(manifest)})
                return
            changed = copy.deepcopy(manifest)
            kept = {k: v for k, v in stored["object"]["metadata"].items() if k in _SERVER_OWNED - {"generation"}}
            changed["metadata"] = {**manifest["metadata"], **kept}
            if changed != stored["object"]:
                changed["metadata"]["resourceVersion"] = _next_version(changed["metadata"])
                self._files.write("services", key, {"object": changed})

    def delete_service(self, namespace: str, name: str) -> None:
        with self._files.locked():
            self._files.remove("services", (namespace, name))

    def _replace(self, key: Key, stored: JsonObject, changed: JsonObject, scaled: dict[str, str]) -> None:
        if changed == stored["object"] and scaled == stored[SCALED]:
            return
        metadata = changed["metadata"]
        # As in Kubernetes: metadata may change without a new generation, the desired state may not.
        if changed["spec"] != stored["object"]["spec"]:
            metadata["generation"] += 1
        metadata["resourceVersion"] = _next_version(metadata)
        self._files.write("deployments", key, {"object": changed, SCALED: scaled})

    def _refuse_while_deleted(self, key: Key, stored: JsonObject) -> None:
        if "deletionTimestamp" in stored["object"]["metadata"] and self._files.is_controlled():
            raise Conflict(SYSTEM, f"{key[0]}/{key[1]} is being deleted; observe again when it is gone")


_SERVER_OWNED = frozenset({"uid", "creationTimestamp", "generation", "resourceVersion"})


def _key(manifest: JsonObject) -> Key:
    metadata = manifest["metadata"]
    return metadata.get("namespace") or "default", metadata["name"]


def _is_ours(stored: JsonObject) -> bool:
    return (stored["object"]["metadata"].get("labels") or {}).get(MANAGED_BY) == "sluice"


def _born(manifest: JsonObject) -> JsonObject:
    newborn = copy.deepcopy(manifest)
    newborn["metadata"] = {
        **manifest["metadata"],
        "namespace": manifest["metadata"].get("namespace") or "default",
        "uid": str(uuid.uuid4()),
        "creationTimestamp": _timestamp(),
        "generation": 1,
    }
    newborn["metadata"]["resourceVersion"] = _next_version(newborn["metadata"])
    return newborn


def _next_version(metadata: JsonObject) -> str:
    """Greater than every version before, those of a deleted object of the same name included: the clock moves on."""
    return str(max(int(metadata.get("resourceVersion", 0)) + 1, time.time_ns() // 1_000_000))


def _observed(stored: JsonObject, status: JsonObject | None) -> JsonObject:
    observed: JsonObject = copy.deepcopy(stored["object"])
    observed["status"] = {**_counts(status)}
    if status is not None:
        observed["status"]["conditions"] = status["status"].get("conditions", [])
        # Either writer's change is a new version: the sum of two numbers that only grow.
        version = int(observed["metadata"]["resourceVersion"]) + int(status["revision"])
        observed["metadata"]["resourceVersion"] = str(version)
    return observed


def _counts(status: JsonObject | None) -> dict[str, int]:
    told = {} if status is None else status["status"]
    return {
        field: told.get(field, 0) for field in ("replicas", "readyReplicas", "updatedReplicas", "observedGeneration")
    }


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
