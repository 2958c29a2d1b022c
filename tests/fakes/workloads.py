"""Deployments and Services in memory. What is applied is ready when a test says so (`settle`), or at once.

Verified by tests/contracts/test_workloads.py, with processes of this machine and with Kubernetes.
"""

from __future__ import annotations

import copy
import time
from typing import Any

from eventing.errors import NotFound

CREATED = "2026-11-20T02:00:00Z"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"


class FakeWorkloads:
    """`orchestration.ports.Workloads`. `writes` lists what was asked for, in order."""

    def __init__(self, *, settles_at_once: bool = False) -> None:
        self._settles_at_once = settles_at_once
        self.deployments: dict[tuple[str, str], dict[str, Any]] = {}
        self.services: dict[tuple[str, str], dict[str, Any]] = {}
        self.failures: dict[str, Exception] = {}
        self.writes: list[tuple[str, str]] = []
        self._scaled: dict[tuple[str, str], dict[str, str]] = {}
        self._revision = 0

    # -- the world, for tests

    def settle(self) -> None:
        """Every Deployment is rolled out."""
        for deployment in self.deployments.values():
            replicas = deployment["spec"].get("replicas", 1)
            deployment["status"] = {
                "replicas": replicas,
                "readyReplicas": replicas,
                "updatedReplicas": replicas,
                "observedGeneration": deployment["metadata"]["generation"],
            }
        self._revision += 1

    # -- the port

    def list_deployments(self) -> list[dict[str, Any]]:
        self._maybe_fail("list_deployments")
        return [copy.deepcopy(d) for _, d in sorted(self.deployments.items()) if _is_ours(d)]

    def list_services(self) -> list[dict[str, Any]]:
        self._maybe_fail("list_services")
        return [copy.deepcopy(s) for _, s in sorted(self.services.items()) if _is_ours(s)]

    def apply_deployment(self, manifest: dict[str, Any]) -> None:
        self._maybe_fail("apply_deployment")
        key = _key(manifest)
        known = self.deployments.get(key)
        applied = copy.deepcopy(manifest)
        annotations = {**self._scaled.get(key, {}), **(manifest["metadata"].get("annotations") or {})}
        if annotations:
            applied["metadata"]["annotations"] = annotations
        self._store(key, applied, known)
        self.writes.append(("apply_deployment", key[1]))

    def scale_deployment(self, namespace: str, name: str, replicas: int, annotations: dict[str, str]) -> None:
        self._maybe_fail("scale_deployment")
        key = (namespace, name)
        known = self.deployments.get(key)
        if known is None:
            raise NotFound("workloads", f"there is no Deployment {namespace}/{name}")
        scaled = copy.deepcopy(known)
        scaled["spec"]["replicas"] = replicas
        scaled["metadata"]["annotations"] = {**(scaled["metadata"].get("annotations") or {}), **annotations}
        self._scaled.setdefault(key, {}).update(annotations)
        self._store(key, scaled, known)
        self.writes.append(("scale_deployment", name))

    def delete_deployment(self, namespace: str, name: str) -> None:
        self._maybe_fail("delete_deployment")
        if self.deployments.pop((namespace, name), None) is not None:
            self._scaled.pop((namespace, name), None)
            self._revision += 1
            self.writes.append(("delete_deployment", name))

    def apply_service(self, manifest: dict[str, Any]) -> None:
        self._maybe_fail("apply_service")
        key = _key(manifest)
        applied = copy.deepcopy(manifest)
        known = self.services.get(key)
        applied["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"] if known else None
        if applied == known:
            return
        applied["metadata"]["resourceVersion"] = self._next()
        self.services[key] = applied
        self.writes.append(("apply_service", key[1]))

    def delete_service(self, namespace: str, name: str) -> None:
        self._maybe_fail("delete_service")
        if self.services.pop((namespace, name), None) is not None:
            self._revision += 1
            self.writes.append(("delete_service", name))

    def wait_for_change(self, cursor: str | None, timeout_s: float) -> str:
        deadline = time.monotonic() + timeout_s
        while str(self._revision) == cursor and time.monotonic() < deadline:
            time.sleep(0.01)
        return str(self._revision)

    def _store(self, key: tuple[str, str], wanted: dict[str, Any], known: dict[str, Any] | None) -> None:
        before = known["metadata"] if known else {"generation": 0, "creationTimestamp": CREATED}
        changed = known is None or known["spec"] != wanted["spec"]
        wanted["metadata"] |= {
            "creationTimestamp": before["creationTimestamp"],
            "generation": before["generation"] + (1 if changed else 0),
            "resourceVersion": before.get("resourceVersion"),
        }
        wanted["status"] = known["status"] if known else {"replicas": 0, "readyReplicas": 0, "updatedReplicas": 0}
        if wanted == known:
            return
        wanted["metadata"]["resourceVersion"] = self._next()
        self.deployments[key] = wanted
        if self._settles_at_once:
            self.settle()

    def _next(self) -> str:
        self._revision += 1
        return str(self._revision)

    def _maybe_fail(self, method: str) -> None:
        if method in self.failures:
            raise self.failures[method]


def _key(manifest: dict[str, Any]) -> tuple[str, str]:
    return manifest["metadata"].get("namespace") or "default", manifest["metadata"]["name"]


def _is_ours(document: dict[str, Any]) -> bool:
    return (document["metadata"].get("labels") or {}).get(LABEL_MANAGED_BY) == "sluice"
