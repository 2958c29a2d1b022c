"""Kubernetes Events: what was done to an object and what was refused, where `kubectl describe` shows it.

An Event never stands in the way: one that cannot be written is logged and forgotten. The same words about the same
object are written once in `REPEAT_S`, so that an object that is refused every few seconds does not fill etcd.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import threading
import time
from datetime import UTC, datetime
from typing import Literal

from eventing.errors import SluiceError
from orchestration.adapters.kubernetes_clients.connection import JsonObject, KubernetesApi, namespaced

CONTROLLER = "sluice.dev/orchestration"
REPEAT_S = 600.0
REMEMBERED = 10_000
NOTE_LIMIT = 1024
"""Bytes of a note, https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/"""

log = logging.getLogger(__name__)


class Journal:
    """Writes Events of one program."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._instance = f"{socket.gethostname()}-{os.getpid()}"[:128]
        self._lock = threading.Lock()
        self._told: dict[str, float] = {}

    def tell(self, about: JsonObject, kind: Literal["Normal", "Warning"], reason: str, action: str, note: str) -> None:
        """Write one Event; `about` needs apiVersion, kind and metadata. `reason` and `action` are CamelCase words."""
        metadata = about["metadata"]
        said = hashlib.sha256(repr((about["kind"], metadata.get("uid"), reason, note)).encode()).hexdigest()
        now = time.monotonic()
        with self._lock:
            if now - self._told.get(said, -REPEAT_S) < REPEAT_S:
                return
            if len(self._told) >= REMEMBERED:
                self._told.clear()
            self._told[said] = now
        namespace = str(metadata.get("namespace") or "default")
        # The name must be new each time: the same words may come back after an hour.
        name = f"{metadata['name'][:200]}.{said[:8]}{time.time_ns():x}"
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "type": kind,
            "reason": reason[:128],
            "action": action[:128],
            "note": note.encode()[:NOTE_LIMIT].decode(errors="ignore"),
            "regarding": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "namespace": namespace,
                "name": metadata["name"],
                "uid": metadata.get("uid", ""),
                "resourceVersion": metadata.get("resourceVersion", ""),
            },
        }
        try:
            self._api.request(
                "POST", namespaced("/apis/events.k8s.io/v1", namespace, "events"), None, event, doing="writing an Event"
            )
        except SluiceError as problem:
            log.warning("journal.unwritten object=%s/%s reason=%s", namespace, metadata["name"], problem)
