"""The status file of a channel: what the registry keeps of an object that its author declares elsewhere.

`<folder>/.status/<namespace>.<name>.yaml` is shaped as the object in a cluster, without its spec. Its annotations
carry what is needed once the declaration is gone or cannot be used: the last good one (as kubectl's annotation
`last-applied-configuration`) and the file that it came from.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from eventing.channels import API_VERSION, KIND
from orchestration.adapters.folder.documents import Loader
from orchestration.ports import JsonObject

ANNOTATION_LAST_APPLIED = "sluice.dev/last-applied-configuration"
"""JSON of the last good labels, annotations and spec."""
ANNOTATION_SOURCE = "sluice.dev/source-file"
"""File that declares the channel, relative to the folder."""


class Damaged(Exception):
    """A status file that does not say what one has to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptChannel:
    """What the status file of one channel keeps."""

    namespace: str
    name: str
    generation: int
    finalizers: tuple[str, ...] = ()
    deletion_timestamp: str | None = None
    creation_timestamp: str | None = None
    source: str | None = None
    declared: JsonObject | None = None
    """The last good declaration: `{"metadata": {"labels", "annotations"}, "spec"}`; None: there never was one."""
    status: JsonObject

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    @property
    def object(self) -> JsonObject:
        """The channel as it was last good."""
        declared = self.declared or {}
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {**declared.get("metadata", {}), "namespace": self.namespace, "name": self.name},
            "spec": declared.get("spec"),
        }

    def to_document(self) -> JsonObject:
        annotations: JsonObject = {}
        if self.source is not None:
            annotations[ANNOTATION_SOURCE] = self.source
        if self.declared is not None:
            annotations[ANNOTATION_LAST_APPLIED] = json.dumps(self.declared, sort_keys=True, separators=(",", ":"))
        metadata: JsonObject = {"namespace": self.namespace, "name": self.name, "generation": self.generation}
        if self.creation_timestamp is not None:
            metadata["creationTimestamp"] = self.creation_timestamp
        if self.deletion_timestamp is not None:
            metadata["deletionTimestamp"] = self.deletion_timestamp
        if self.finalizers:
            metadata["finalizers"] = list(self.finalizers)
        if annotations:
            metadata["annotations"] = annotations
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "status": self.status}

    @classmethod
    def from_text(cls, text: str) -> KeptChannel:
        """Raises `Damaged`."""
        try:
            document: Any = yaml.load(text, Loader=Loader)  # noqa: S506  # a SafeLoader
            metadata = document["metadata"]
            annotations = metadata.get("annotations") or {}
            declared = annotations.get(ANNOTATION_LAST_APPLIED)
            return cls(
                namespace=str(metadata["namespace"]),
                name=str(metadata["name"]),
                generation=int(metadata["generation"]),
                finalizers=tuple(metadata.get("finalizers") or ()),
                deletion_timestamp=metadata.get("deletionTimestamp"),
                creation_timestamp=metadata.get("creationTimestamp"),
                source=annotations.get(ANNOTATION_SOURCE),
                declared=None if declared is None else json.loads(declared),
                status=dict(document.get("status") or {}),
            )
        except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as exc:
            raise Damaged(str(exc)) from exc


def write_atomically(path: Path, kept: KeptChannel) -> None:
    """A reader sees the old file or the new one; a crash leaves a hidden file, which nobody reads."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text = yaml.dump(kept.to_document(), Dumper=dumper, sort_keys=False, allow_unicode=True, width=10_000)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
