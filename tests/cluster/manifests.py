"""The manifests of deploy/, as kustomize would hand them to the API server (without needing it)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.cluster.control_plane import CLUSTER_WIDE

DEPLOY = Path(__file__).parents[2] / "deploy"


def documents(path: Path) -> list[dict[str, Any]]:
    """The objects of one file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def kustomized(folder: str) -> list[dict[str, Any]]:
    """The objects that deploy/<folder>/kustomization.yaml lists, in its namespace."""
    (customization,) = documents(DEPLOY / folder / "kustomization.yaml")
    found = [document for name in customization["resources"] for document in documents(DEPLOY / folder / name)]
    for document in found:
        if document["kind"] not in CLUSTER_WIDE and "namespace" in customization:
            document["metadata"].setdefault("namespace", customization["namespace"])
    return found
