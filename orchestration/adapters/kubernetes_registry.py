"""The subscription registry in Kubernetes: the port `Registry` over KafkaChannel custom resources.

The API server does what the folder registry does by itself: refuses what its schema forbids, counts generations, keeps
a deleted object until its finalizers are gone. Three things remain:

* *A status is written only when it differs*, to the status subresource, and only to the very object that was listed:
  a namesake that was made anew meanwhile is a `Conflict`.
* *Finalizers of others are never lost*: what planning adds and removes is applied to the list as it is now, under the
  object's resourceVersion.
* *A condition that turns is told* as an Event on the channel, so that `kubectl describe` has its story.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal

from eventing.channels import API_VERSION
from eventing.errors import Conflict, NotFound, Unavailable
from orchestration.adapters.kubernetes_clients.changes import Collection, Followed
from orchestration.adapters.kubernetes_clients.connection import MERGE_PATCH, JsonObject, KubernetesApi, namespaced
from orchestration.adapters.kubernetes_clients.journal import Journal
from orchestration.adapters.kubernetes_clients.ownership import FIELD_MANAGER, shown
from orchestration.ports import RegistryView

SYSTEM = "registry"
ROOT = f"/apis/{API_VERSION}"
PLURAL = "kafkachannels"
FINALIZER_ATTEMPTS = 5
"""Of a write that meets another writer of the same object each time."""

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Listed:
    """What must not have changed between a list and a write."""

    uid: str
    finalizers: tuple[str, ...]


class KubernetesRegistry:
    """See the module.

    Args:
        api: The connection.
        namespace: The only namespace whose channels count; None: all.
    """

    def __init__(self, api: KubernetesApi, *, namespace: str | None = None) -> None:
        self._api = api
        self._journal = Journal(api)
        self._path = f"{ROOT}/{PLURAL}" if namespace is None else namespaced(ROOT, namespace, PLURAL)
        self._followed = Followed(api, Collection(self._path, {}, _told))
        self._listed: dict[Key, _Listed] = {}
        """As last listed: what a plan that is applied now was made from."""

    def close(self) -> None:
        """Stop following."""
        self._followed.close()

    def list_channels(self) -> RegistryView:
        try:
            items, _ = self._api.pages(self._path, doing="listing KafkaChannels")
        except NotFound as exc:
            # Without its definition the cluster has no registry, which is not the same as one without channels.
            raise Unavailable(
                SYSTEM, "the cluster has no KafkaChannels: install deploy/crd (docs/kubernetes.md)"
            ) from exc
        channels = [_complete(shown(item)) for item in items]
        channels.sort(key=_key)
        self._listed = {
            _key(channel): _Listed(channel["metadata"]["uid"], tuple(channel["metadata"]["finalizers"]))
            for channel in channels
        }
        return RegistryView(channels=channels)

    def update_status(self, namespace: str, name: str, patch: JsonObject, finalizers: list[str] | None) -> None:
        listed = self._listed.get((namespace, name))
        path, what = namespaced(ROOT, namespace, PLURAL, name), f"KafkaChannel {namespace}/{name}"
        try:
            current = self._current(path, listed, what)
            ending = finalizers is not None and len(finalizers) < len(current["metadata"].get("finalizers") or ())
            if not ending and finalizers is not None:
                # Before anything is made that it has to protect.
                self._set_finalizers(path, current, listed, finalizers, what)
            self._merge_status(path, current, patch, what)
            if ending and finalizers is not None:
                self._set_finalizers(path, current, listed, finalizers, what)
        except NotFound as exc:
            if finalizers == []:
                return  # the last finalizer went before, and the channel with it
            raise NotFound(SYSTEM, f"there is no channel {namespace}/{name}") from exc

    def wait_for_change(self, cursor: str | None, timeout_s: float) -> str:
        return self._followed.wait(cursor, timeout_s)

    # ----------------------------------------------------------------------------------------------------------------

    def _current(self, path: str, listed: _Listed | None, what: str) -> JsonObject:
        current = self._api.get(path, doing=f"reading {what}")
        if listed is not None and listed.uid != current["metadata"]["uid"]:
            raise Conflict(SYSTEM, f"{what} was deleted and made anew; observe again")
        return current

    def _merge_status(self, path: str, current: JsonObject, patch: JsonObject, what: str) -> None:
        before = current.get("status") or {}
        if merged(before, patch) == before:
            return
        body = {"metadata": {"uid": current["metadata"]["uid"]}, "status": patch}
        after = self._api.request(
            "PATCH",
            f"{path}/status",
            {"fieldManager": FIELD_MANAGER},
            body,
            content_type=MERGE_PATCH,
            doing=f"writing the status of {what}",
        )
        self._tell_turned(after, before)

    def _set_finalizers(
        self, path: str, current: JsonObject, listed: _Listed | None, wanted: list[str], what: str
    ) -> None:
        planned_from = tuple(current["metadata"].get("finalizers") or ()) if listed is None else listed.finalizers
        added = [entry for entry in wanted if entry not in planned_from]
        removed = [entry for entry in planned_from if entry not in wanted]
        for attempt in range(1, FINALIZER_ATTEMPTS + 1):
            there = list(current["metadata"].get("finalizers") or ())
            now = [entry for entry in there if entry not in removed]
            now += [entry for entry in added if entry not in now]
            if now == there:
                return
            version = current["metadata"]["resourceVersion"]
            body = {"metadata": {"finalizers": now, "resourceVersion": version}}
            try:
                self._api.request(
                    "PATCH",
                    path,
                    {"fieldManager": FIELD_MANAGER},
                    body,
                    content_type=MERGE_PATCH,
                    doing=f"writing the finalizers of {what}",
                )
            except Conflict:
                if attempt == FINALIZER_ATTEMPTS:
                    raise
                current = self._current(path, listed, what)
            else:
                return

    def _tell_turned(self, after: JsonObject, before: JsonObject) -> None:
        for kind, condition in sorted(_conditions(after.get("status") or {}).items()):
            old = _conditions(before).get(kind, {})
            if (old.get("status"), old.get("reason")) == (condition.get("status"), condition.get("reason")):
                continue
            good = condition.get("status") == "True"
            # Only what an operator waits for or has to act upon: parts that are not yet there are told by Ready.
            if kind == "Ready" or condition.get("status") == "False":
                severity: Literal["Normal", "Warning"] = "Normal" if good else "Warning"
                reason = str(condition.get("reason") or (kind if good else f"{kind}Not"))
                note = str(condition.get("message") or f"{kind} is {condition.get('status')}")
                self._journal.tell(after, severity, reason, "Reconcile", note)


def merged(document: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = copy.deepcopy(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def _complete(channel: JsonObject) -> JsonObject:
    """With the lists and maps that an API server leaves out while they are empty."""
    metadata = {**channel["metadata"], "finalizers": channel["metadata"].get("finalizers") or []}
    return {**channel, "metadata": metadata, "status": channel.get("status") or {}}


def _conditions(status: JsonObject) -> dict[str, JsonObject]:
    return {str(c["type"]): c for c in status.get("conditions") or () if isinstance(c, dict) and "type" in c}


def _key(channel: JsonObject) -> Key:
    return (str(channel["metadata"]["namespace"]), str(channel["metadata"]["name"]))


def _told(channel: JsonObject) -> object:
    """What people declare. Status and finalizers are ours; neither is a change."""
    metadata = channel["metadata"]
    return [
        metadata["uid"],
        metadata.get("generation"),
        metadata.get("deletionTimestamp"),
        metadata.get("labels"),
        metadata.get("annotations"),
    ]
