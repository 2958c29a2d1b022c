"""A registry in memory, which does what an API server does: generations, finalizers, deletion in the foreground.

Verified by tests/contracts/test_registry.py, which runs the same tests against a folder.
"""

from __future__ import annotations

import copy
import time
from typing import Any

from eventing.errors import NotFound
from orchestration.adapters.registry_folder import merge_patch
from orchestration.ports import InvalidDocument, RegistryView

DELETED_AT = "2026-11-20T03:00:00Z"


class FakeRegistry:
    """`orchestration.ports.Registry`. `declare` and `remove` are what teams do; `statuses` counts status writes."""

    def __init__(self, *channels: dict[str, Any]) -> None:
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.invalid: list[InvalidDocument] = []
        self.failures: dict[str, Exception] = {}
        self.status_writes: list[tuple[str, str]] = []
        self._revision = 0
        for channel in channels:
            self.declare(channel)

    # -- what teams do

    def declare(self, channel: dict[str, Any]) -> None:
        metadata = channel["metadata"]
        key = (metadata.get("namespace", "default"), metadata["name"])
        known = self._objects.get(key)
        declared = copy.deepcopy(channel)
        generation = 1
        if known is not None:
            changed = known.get("spec") != channel.get("spec")
            generation = known["metadata"]["generation"] + (1 if changed else 0)
        declared["metadata"] |= {
            "namespace": key[0],
            "generation": generation,
            "finalizers": known["metadata"]["finalizers"] if known else [],
        }
        declared["status"] = known["status"] if known else {}
        self._objects[key] = declared
        self._revision += 1

    def remove(self, namespace: str, name: str) -> None:
        known = self._objects[namespace, name]
        if known["metadata"]["finalizers"]:
            known["metadata"]["deletionTimestamp"] = DELETED_AT
        else:
            del self._objects[namespace, name]
        self._revision += 1

    # -- the port

    def list_channels(self) -> RegistryView:
        self._maybe_fail("list_channels")
        return RegistryView(
            channels=[copy.deepcopy(self._objects[key]) for key in sorted(self._objects)], invalid=list(self.invalid)
        )

    def update_status(self, namespace: str, name: str, patch: dict[str, Any], finalizers: list[str] | None) -> None:
        self._maybe_fail("update_status")
        known = self._objects.get((namespace, name))
        if known is None:
            if finalizers == []:
                return
            raise NotFound("registry", f"there is no channel {namespace}/{name}")
        known["status"] = merge_patch(known["status"], copy.deepcopy(patch))
        if finalizers is not None:
            known["metadata"]["finalizers"] = list(finalizers)
        self.status_writes.append((namespace, name))
        if known["metadata"].get("deletionTimestamp") and not known["metadata"]["finalizers"]:
            del self._objects[namespace, name]

    def wait_for_change(self, cursor: str | None, timeout_s: float) -> str:
        deadline = time.monotonic() + timeout_s
        while str(self._revision) == cursor and time.monotonic() < deadline:
            time.sleep(0.01)
        return str(self._revision)

    def _maybe_fail(self, method: str) -> None:
        if method in self.failures:
            raise self.failures[method]
