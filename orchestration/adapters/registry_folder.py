"""The subscription registry as a folder of KafkaChannel YAML files: what an API server does, on files.

A file holds one or several documents; only `*.yaml` and `*.yml` directly in the folder are read, hidden files and
what editors leave behind are not. Status goes to `.status/<namespace>.<name>.yaml`, which is the registry's memory
of the object as well (`status_files`). The rules that follow from it:

* *Reading changes nothing.* The generation of a changed spec is the kept one + 1 until the next status write keeps
  it, so `sluice plan` may look at any registry.
* *A refused document freezes its channel.* An API server refuses a bad update and the old object stays. Here the
  channel stays listed with its last good declaration (or, where there never was one, with what the document says) and
  the annotation `sluice.dev/invalid-document`, which tells planning to leave it alone and to report why.
* *Where a file cannot be understood, none of its channels is taken for deleted.*
* *A document that is gone is looked for twice*, because editors replace files by deleting them first; then its
  channel is being deleted, as its status file keeps it, until its finalizers are gone. Declared anew meanwhile, it
  waits for that end and then starts as a new object.
* *A folder that cannot be read is `Unavailable`*, never a registry without channels.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eventing.errors import NotFound, Unavailable
from orchestration.adapters.folder.documents import Document, read_documents, unreadable
from orchestration.adapters.folder.status_files import (
    ANNOTATION_SOURCE,
    Damaged,
    KeptChannel,
    write_atomically,
)
from orchestration.planning.names import ANNOTATION_INVALID_DOCUMENT
from orchestration.ports import InvalidDocument, JsonObject, RegistryView

POLL_INTERVAL_S = 0.2
"""Between two looks at the folder while waiting for a change: far below what a person notices."""
MAX_POLL_SHARE = 0.05
"""Waiting costs at most this share of a core: with many files it looks less often."""
SETTLE_S = 0.25
"""A file younger than this may still be being written; it is read once it has not changed for so long."""
SETTLE_LIMIT_S = 2.0
"""A file that keeps changing is read as it is after this time."""
ABSENCE_S = 0.6
"""How long a document must be gone before its channel counts as deleted: longer than an editor's replace."""

_SYSTEM = "registry"

Key = tuple[str, str]
"""Namespace and name."""
Stamp = tuple[str, int, int, int]
"""Name, mtime in ns, size and inode of a file: equal stamps, equal content."""


class FolderRegistry:
    """`orchestration.ports.Registry` over a folder. `monotonic` and `sleep` are the clock that waiting uses."""

    def __init__(
        self,
        folder: Path | str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder = Path(folder)
        self._status_folder = self._folder / ".status"
        self._monotonic = monotonic
        self._sleep = sleep
        # What a file said when it had this stamp: parsing 10,000 files takes seconds, looking at them milliseconds.
        self._documents: dict[str, tuple[Stamp, list[Document]]] = {}
        self._kept: dict[str, tuple[Stamp, KeptChannel | None]] = {}
        self._confirmed_gone: set[Key] = set()
        self._listed: dict[Key, JsonObject] = {}

    def list_channels(self) -> RegistryView:
        documents, (kept, damaged) = self._read_documents(), self._read_kept()
        gone = _gone(documents, kept)
        if gone - self._confirmed_gone:
            # Missed for the first time: wait out an editor that replaces the file, then look again.
            self._sleep(ABSENCE_S)
            documents, (kept, damaged) = self._read_documents(), self._read_kept()
            gone = _gone(documents, kept)
        self._confirmed_gone = gone
        view = _view(documents, kept, gone, deleted_at=_rfc3339(self._folder_mtime()))
        self._listed = {(c["metadata"]["namespace"], c["metadata"]["name"]): c for c in view.channels}
        return replace(view, invalid=sorted({*view.invalid, *damaged}, key=_place))

    def update_status(self, namespace: str, name: str, patch: JsonObject, finalizers: list[str] | None) -> None:
        """The status is of the object as this registry last listed it, as if it carried that resourceVersion."""
        key = (namespace, name)
        if key not in self._listed:
            self.list_channels()
        listed = self._listed.get(key)
        path = self._status_folder / f"{namespace}.{name}.yaml"
        with self._locked():
            try:
                kept = self._read_one(path)
            except Damaged:
                kept = None  # reported when it is listed; written anew here
            if listed is None:
                if finalizers == []:
                    return  # the last finalizer went before, and the channel with it
                raise NotFound(_SYSTEM, f"there is no channel {namespace}/{name}")
            self._forget_gone()
            updated = _updated(listed, kept, patch, finalizers, now=_rfc3339(time.time()))
            if updated.deletion_timestamp is not None and not updated.finalizers:
                path.unlink(missing_ok=True)
                del self._listed[key]
            elif updated != kept:
                write_atomically(path, updated)

    def wait_for_change(self, cursor: str | None, timeout_s: float) -> str:
        deadline = self._monotonic() + timeout_s
        while True:
            started = self._monotonic()
            seen = self._cursor()
            now = self._monotonic()
            if seen != cursor or now >= deadline:
                return seen
            self._sleep(min(deadline - now, max(POLL_INTERVAL_S, (now - started) / MAX_POLL_SHARE)))

    # ------------------------------------------------------------------ files

    def _cursor(self) -> str:
        try:
            stamps = self._stamps(self._folder, (".yaml", ".yml"))
        except Unavailable:
            return "unreadable"
        return hashlib.sha256(repr(stamps).encode()).hexdigest()[:32]

    def _stamps(self, folder: Path, endings: tuple[str, ...]) -> list[Stamp]:
        found: list[Stamp] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or not entry.name.endswith(endings):
                        continue
                    with contextlib.suppress(FileNotFoundError):  # removed between the listing and the look
                        if entry.is_file():
                            stat = entry.stat()
                            found.append((entry.name, stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except OSError as exc:
            raise Unavailable(_SYSTEM, f"folder {folder} cannot be read: {exc.strerror or exc}") from exc
        return sorted(found)

    def _folder_mtime(self) -> float:
        """When the folder last lost or gained a file: the best there is for the time of a deletion."""
        try:
            return self._folder.stat().st_mtime
        except OSError as exc:
            raise Unavailable(_SYSTEM, f"folder {self._folder} cannot be read: {exc.strerror or exc}") from exc

    def _read_documents(self) -> dict[str, list[Document]]:
        """What each file says, read while none of the files that are new to us was being written."""
        deadline = self._monotonic() + SETTLE_LIMIT_S
        stamps = self._stamps(self._folder, (".yaml", ".yml"))
        while self._unsettled(stamps) and self._monotonic() < deadline:
            self._sleep(SETTLE_S)
            before, stamps = stamps, self._stamps(self._folder, (".yaml", ".yml"))
            if stamps == before:
                break
        read = {}
        for stamp in stamps:
            known = self._documents.get(stamp[0])
            read[stamp[0]] = known if known and known[0] == stamp else (stamp, self._read_file(stamp[0]))
        self._documents = read
        return {name: documents for name, (_, documents) in read.items()}

    def _unsettled(self, stamps: list[Stamp]) -> bool:
        now_ns = time.time_ns()
        return any(
            abs(now_ns - stamp[1]) < SETTLE_S * 1e9
            for stamp in stamps
            if (known := self._documents.get(stamp[0])) is None or known[0] != stamp
        )

    def _read_file(self, name: str) -> list[Document]:
        try:
            return read_documents(name, (self._folder / name).read_text(encoding="utf-8"))
        except OSError as exc:
            return [unreadable(name, None, f"cannot be read: {exc.strerror or exc}")]
        except UnicodeDecodeError:
            return [unreadable(name, None, "is not UTF-8 text")]

    def _read_kept(self) -> tuple[dict[Key, KeptChannel], list[InvalidDocument]]:
        """All status files. One that is damaged is reported and counts as absent; the others go on."""
        stamps = self._stamps(self._status_folder, (".yaml",)) if self._status_folder.exists() else []
        read: dict[str, tuple[Stamp, KeptChannel | None]] = {}
        damaged: list[InvalidDocument] = []
        for stamp in stamps:
            known = self._kept.get(stamp[0])
            if known is None or known[0] != stamp:
                try:
                    known = (stamp, self._read_one(self._status_folder / stamp[0]))
                except Damaged as exc:
                    damaged.append(_damaged(stamp[0], exc))
                    continue
            read[stamp[0]] = known
        self._kept = read
        return {kept.key: kept for _, kept in read.values() if kept is not None}, damaged

    def _read_one(self, path: Path) -> KeptChannel | None:
        try:
            return KeptChannel.from_text(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as exc:
            raise Damaged("is not UTF-8 text") from exc
        except OSError as exc:
            # Without its status a channel would get generation and topic name anew: better wait.
            raise Unavailable(_SYSTEM, f"{path} cannot be read: {exc.strerror or exc}") from exc

    def _forget_gone(self) -> None:
        """Remove the status of channels that went without a finalizer, so that a namesake starts anew."""
        for _, kept in self._kept.values():
            if kept is not None and kept.key in self._confirmed_gone and not kept.finalizers:
                (self._status_folder / f"{kept.namespace}.{kept.name}.yaml").unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time over all processes: a status is read, merged and written."""
        try:
            self._folder_mtime()
            self._status_folder.mkdir(exist_ok=True)
            with (self._status_folder / ".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as exc:
            raise Unavailable(_SYSTEM, f"{self._status_folder} cannot be written: {exc.strerror or exc}") from exc


# ---------------------------------------------------------------------- what the files mean; no I/O from here on


def _gone(documents: Mapping[str, list[Document]], kept: Mapping[Key, KeptChannel]) -> set[Key]:
    """Channels that have a status file, but no document any more that is or could be theirs."""
    declared = {document.key for listed in documents.values() for document in listed}
    unclear = {name for name, listed in documents.items() if any(document.key is None for document in listed)}
    return {key for key, memory in kept.items() if key not in declared and memory.source not in unclear}


def _view(
    documents: Mapping[str, list[Document]],
    kept: Mapping[Key, KeptChannel],
    gone: Collection[Key],
    *,
    deleted_at: str,
) -> RegistryView:
    """The objects that documents and status files together make."""
    invalid: list[InvalidDocument] = []
    chosen: dict[Key, Document] = {}
    unclear: dict[str, list[InvalidDocument]] = {}
    for document in (document for name in sorted(documents) for document in documents[name]):
        invalid.extend(document.problems)
        if document.key is None:
            unclear.setdefault(document.file, []).extend(document.problems)
            continue
        first, memory = chosen.setdefault(document.key, document), kept.get(document.key)
        if first is document:
            continue
        # The one that was there before stays in force: a copied file must not change what runs.
        if memory is not None and memory.source == document.file != first.file:
            chosen[document.key] = document
            invalid.append(_duplicate(first, document))
        else:
            invalid.append(_duplicate(document, first))

    channels = []
    for key in sorted(chosen.keys() | kept.keys()):
        memory, declared = kept.get(key), chosen.get(key)
        if memory is not None and memory.deletion_timestamp is not None:
            channels.append(_object(memory.object, memory, deleted_at=memory.deletion_timestamp))
        elif declared is not None:
            refused = declared.problems and memory is not None and memory.declared is not None
            said = memory.object if refused and memory is not None else declared.object
            assert said is not None
            channels.append(_object(said, memory, problems=declared.problems, source=declared.file))
        elif memory is not None and key in gone:
            if memory.finalizers:
                channels.append(_object(memory.object, memory, deleted_at=deleted_at))
        elif memory is not None:
            # Its file has a document that cannot be understood: this may be the one.
            problems = [replace(p, object="/".join(key)) for p in unclear.get(memory.source or "", ())]
            channels.append(_object(memory.object, memory, problems=problems))
            invalid.extend(problems)
    return RegistryView(channels=channels, invalid=invalid)


def _object(
    said: JsonObject,
    memory: KeptChannel | None,
    *,
    problems: Collection[InvalidDocument] = (),
    deleted_at: str | None = None,
    source: str | None = None,
) -> JsonObject:
    """The channel as the registry shows it: the declaration, and what the registry knows about it."""
    metadata = dict(said["metadata"])
    source = source or (memory.source if memory is not None else None)
    annotations = metadata.get("annotations")
    annotations = dict(annotations) if isinstance(annotations, dict) else {}
    if source is not None:
        annotations[ANNOTATION_SOURCE] = source
    if problems:
        annotations[ANNOTATION_INVALID_DOCUMENT] = "; ".join(str(problem) for problem in problems)
    metadata["annotations"] = annotations
    changed = memory is not None and memory.declared is not None and memory.declared.get("spec") != said.get("spec")
    metadata["generation"] = 1 if memory is None else memory.generation + (1 if changed else 0)
    metadata["finalizers"] = [] if memory is None else list(memory.finalizers)
    if memory is not None and memory.creation_timestamp is not None:
        metadata["creationTimestamp"] = memory.creation_timestamp
    if deleted_at is not None:
        metadata["deletionTimestamp"] = deleted_at
    return {**said, "metadata": metadata, "status": {} if memory is None else memory.status}


def _updated(
    listed: JsonObject, kept: KeptChannel | None, patch: JsonObject, finalizers: list[str] | None, *, now: str
) -> KeptChannel:
    """What the status file has to say after a status write for the object `listed`."""
    metadata = listed["metadata"]
    annotations = metadata["annotations"]
    own = (ANNOTATION_SOURCE, ANNOTATION_INVALID_DOCUMENT)
    declared: JsonObject | None = {
        "metadata": {
            **({"labels": metadata["labels"]} if metadata.get("labels") else {}),
            "annotations": {key: value for key, value in annotations.items() if key not in own},
        },
        "spec": listed.get("spec"),
    }
    if ANNOTATION_INVALID_DOCUMENT in annotations:
        declared = kept.declared if kept is not None else None
    newer = kept is not None and kept.generation > metadata["generation"]
    return KeptChannel(
        namespace=metadata["namespace"],
        name=metadata["name"],
        # Another process may have listed, and written, a later generation meanwhile.
        generation=kept.generation if newer and kept is not None else metadata["generation"],
        declared=kept.declared if newer and kept is not None else declared,
        finalizers=tuple(finalizers) if finalizers is not None else (kept.finalizers if kept is not None else ()),
        deletion_timestamp=metadata.get("deletionTimestamp"),
        creation_timestamp=(kept.creation_timestamp if kept is not None else None) or now,
        source=annotations.get(ANNOTATION_SOURCE),
        status=merge_patch(kept.status if kept is not None else {}, patch),
    )


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, mappings merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def _duplicate(newcomer: Document, first: Document) -> InvalidDocument:
    assert newcomer.key is not None
    return InvalidDocument(
        object="/".join(newcomer.key),
        file=newcomer.file,
        line=newcomer.line,
        field="metadata.name",
        reason=f"this channel is already declared in {first.file}:{first.line}, which stays in force",
    )


def _damaged(name: str, exc: Damaged) -> InvalidDocument:
    return InvalidDocument(
        object=name.removesuffix(".yaml").replace(".", "/", 1),
        file=f".status/{name}",
        line=None,
        field="",
        reason=f"is damaged and counts as absent; it is written anew with the next change ({exc})".replace("\n", " "),
    )


def _place(problem: InvalidDocument) -> tuple[str, str, int, str]:
    return problem.object, problem.file, problem.line or 0, problem.field


def _rfc3339(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
