"""What a kubelet would say of pods, said without one: the control plane alone has no node to run them on.

Pods become Running and ready as soon as they are seen. One whose image is named `…/missing` waits as if the image
could not be pulled, so that failures can be observed as well. Real pods run in the node tier (tests/cluster/node.py).
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any, Self

from tests.cluster.control_plane import ControlPlane

LOOK_EVERY_S = 0.05


class PretendedKubelet:
    """Looks after all pods that have no node, until it is closed."""

    def __init__(self, cluster: ControlPlane) -> None:
        self._cluster = cluster
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pretended kubelet", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            try:
                pods = self._cluster.request("GET", "/api/v1/pods?fieldSelector=status.phase=Pending")["items"]
            except OSError:
                continue  # a test has stopped the API server
            for pod in pods:
                metadata = pod["metadata"]
                if pod["status"].get("containerStatuses") or "deletionTimestamp" in metadata:
                    continue
                path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
                try:
                    self._cluster.request(
                        "PATCH", path, {"status": _status(pod)}, content_type="application/strategic-merge-patch+json"
                    )
                except OSError:
                    continue  # gone meanwhile


def _status(pod: dict[str, Any]) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    missing = any(container["image"].endswith("/missing") for container in pod["spec"]["containers"])
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    return {
        "phase": "Pending" if missing else "Running",
        "conditions": [
            {"type": kind, "status": "False" if missing else "True", "lastTransitionTime": now}
            for kind in ("ContainersReady", "Ready")
        ],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": not missing,
                "restartCount": 0,
                "state": waiting if missing else {"running": {"startedAt": now}},
            }
            for container in pod["spec"]["containers"]
        ],
    }
