"""Server-side apply by one field manager, and whether what was applied is still as we left it.

Fields that a manifest names are ours, all others are not: an API server's defaults, other controllers' annotations and
an operator's additions stay (https://kubernetes.io/docs/reference/using-api/server-side-apply/).

* *Other controllers are not overridden.* A field of ours that another manager has taken is a `FieldConflict`: to be
  observed again, and for people to settle.
* *People are.* What somebody changed by hand (`kubectl edit`, `kubectl scale`, …) is drift, and the declared state
  wins. So that it is seen at all, each object carries the fingerprint of the fields that we own in its spec: the API
  server takes a field from us as soon as somebody else changes it, and `is_as_applied` is False from then on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from eventing.channels import LABEL_MANAGED_BY, MANAGED_BY
from eventing.errors import Conflict, NotFound, Refused
from orchestration.adapters.kubernetes_clients.connection import (
    APPLY,
    SYSTEM,
    FieldConflict,
    JsonObject,
    KubernetesApi,
)

FIELD_MANAGER = "sluice"
HANDS = ("kubectl", "k9s", "Lens", "node-fetch", "Mozilla")
"""Beginnings of the names under which tools of people write. Programs have names of their own."""
SHAPES = 1000
"""Of manifests that are remembered; there is one for each program and number of settings."""
_LIST_KEYS = frozenset({"name", "containerPort", "port", "protocol", "mountPath", "topologyKey", "whenUnsatisfiable"})
"""By which entries of lists are told apart, and so part of the fields' names."""
ANNOTATION_FIELDS = "sluice.dev/applied-fields"
"""Fingerprint of the spec's fields that we own since the last apply."""


def is_ours(document: JsonObject) -> bool:
    """Only what carries this label is ever changed or deleted."""
    return (document["metadata"].get("labels") or {}).get(LABEL_MANAGED_BY) == MANAGED_BY


def find_ours(api: KubernetesApi, path: str, what: str) -> JsonObject | None:
    """The object, or None where there is none. Raises `Refused` where it is somebody else's."""
    try:
        found = api.get(path, doing=f"reading {what}")
    except NotFound:
        return None
    if not is_ours(found):
        raise Refused(SYSTEM, f"{what} exists and is not ours (it lacks the label {LABEL_MANAGED_BY}={MANAGED_BY})")
    return found


def apply(api: KubernetesApi, path: str, manifest: JsonObject, what: str) -> tuple[JsonObject, JsonObject | None]:
    """Make `path` as `manifest` says; returns the object as it is now, and as it was (None: created).

    Raises:
        Refused: an object of that name exists without our label. Conflict: it is being deleted, or was replaced by
        another one meanwhile. FieldConflict: another controller holds fields of the manifest.
    """
    before = find_ours(api, path, what)
    body: JsonObject = {**manifest, "metadata": dict(manifest["metadata"])}
    if before is not None:
        if before["metadata"].get("deletionTimestamp") is not None:
            raise Conflict(SYSTEM, f"{what} is being deleted; observe again when it is gone")
        # A precondition: if that object has gone meanwhile, nothing is made in its place.
        body["metadata"]["uid"] = before["metadata"]["uid"]
    annotations = body["metadata"]["annotations"] = {**(manifest["metadata"].get("annotations") or {})}

    def ask(**options: str) -> JsonObject:
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict", **options}
        try:
            return api.request("PATCH", path, query, body, content_type=APPLY, doing=f"applying {what}")
        except FieldConflict as conflict:
            if not all(manager == FIELD_MANAGER or manager.startswith(HANDS) for manager, _ in conflict.owners):
                raise
            query["force"] = "true"
            return api.request("PATCH", path, query, body, content_type=APPLY, doing=f"applying {what}")

    # Which fields will be ours is known only to the API server, and only once it has seen them. So it is asked twice,
    # unless a manifest of the same shape was applied before.
    shape = _shape(manifest)
    known = _fingerprints.get(shape)
    annotations[ANNOTATION_FIELDS] = known or ""
    if known is None:
        annotations[ANNOTATION_FIELDS] = fields_fingerprint(ask(dryRun="All"))
    now = ask()
    if not is_as_applied(now):
        # Not the shape that it seemed to be.
        annotations[ANNOTATION_FIELDS] = fields_fingerprint(now)
        now = ask()
    if len(_fingerprints) >= SHAPES:
        _fingerprints.clear()
    _fingerprints[shape] = annotations[ANNOTATION_FIELDS]
    return now, before


_fingerprints: dict[str, str] = {}
"""Of manifests that were applied, by their shape; a guess that is verified each time."""


def _shape(manifest: JsonObject) -> str:
    """What a manifest has in common with others that own the same fields: keys, and names in lists, but no values."""

    def shape(value: object) -> object:
        if isinstance(value, dict):
            return {key: inner if key in _LIST_KEYS else shape(inner) for key, inner in value.items()}
        return [shape(item) for item in value] if isinstance(value, list) else None

    return json.dumps([manifest["kind"], shape(manifest.get("spec"))], sort_keys=True)


def is_as_applied(document: JsonObject) -> bool:
    """True as long as nobody has changed a field of the spec that we applied."""
    kept = (document["metadata"].get("annotations") or {}).get(ANNOTATION_FIELDS)
    return bool(kept == fields_fingerprint(document))


def fields_fingerprint(document: JsonObject) -> str:
    """Of the paths below `spec` that our last apply owns, in 16 hexadecimal digits.

    Without `spec.replicas`: resizing is an update of its own, and takes that one field from the apply.
    """
    owned: dict[str, Any] = {}
    for entry in document["metadata"].get("managedFields") or ():
        if (entry.get("manager"), entry.get("operation"), entry.get("subresource")) == (FIELD_MANAGER, "Apply", None):
            owned = dict((entry.get("fieldsV1") or {}).get("f:spec") or {})
    owned.pop("f:replicas", None)
    return hashlib.sha256(json.dumps(owned, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def shown(document: JsonObject, hide: Iterable[str] = ()) -> JsonObject:
    """The document as others see it: without `managedFields`, which are ours to read, and the annotations `hide`."""
    metadata = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
    hidden = {ANNOTATION_FIELDS, *hide}
    if metadata.get("annotations"):
        metadata["annotations"] = {key: value for key, value in metadata["annotations"].items() if key not in hidden}
    return {**document, "metadata": metadata}
