"""The folder through which Deployments of this machine are declared and observed: `$SLUICE_HOME/workloads`.

    deployments/<namespace>/<name>.json   what should run; written by the adapter, read by the controller
    services/<namespace>/<name>.json      kept and listed; on loopback nothing has to route to them
    status/<namespace>/<name>.json        what runs; written by the controller, read by everybody
    lock                                  held while a Deployment is read, changed and written
    controller.claim, controller.lock     held by the controller for as long as it lives

A file is replaced by a rename, so that readers, which take no lock, see the old or the new one. Deleting marks the
object with `metadata.deletionTimestamp`; the controller removes its files when its last process has ended.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eventing.errors import Unavailable

JsonObject = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name."""


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step: a reader or a power cut sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, fresh = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(fresh).replace(path)
    except BaseException:
        Path(fresh).unlink(missing_ok=True)
        raise


def to_json(document: object) -> bytes:
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"


class WorkloadFiles:
    """The folder; see the module."""

    def __init__(self, home: Path) -> None:
        self.root = home / "workloads"

    def path(self, kind: str, key: Key) -> Path:
        return self.root / kind / key[0] / f"{key[1]}.json"

    def read(self, kind: str, key: Key) -> JsonObject | None:
        """The document, None when there is none.

        Raises:
            Unavailable: it is damaged: that is unknown, not absent.
        """
        path = self.path(kind, key)
        try:
            document: JsonObject = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as problem:
            raise Unavailable("workloads", f"{path} is damaged: {problem}") from problem
        return document

    def write(self, kind: str, key: Key, document: JsonObject) -> None:
        write_atomically(self.path(kind, key), to_json(document))

    def remove(self, kind: str, key: Key) -> None:
        self.path(kind, key).unlink(missing_ok=True)

    def keys(self, kind: str) -> list[Key]:
        """What there is of this kind, sorted."""
        return sorted((p.parent.name, p.stem) for p in (self.root / kind).glob("*/*.json") if p.name[0] != ".")

    def read_all(self, kind: str) -> dict[Key, JsonObject]:
        """All documents of a kind; one that is removed meanwhile is not there."""
        found = ((key, self.read(kind, key)) for key in self.keys(kind))
        return {key: document for key, document in found if document is not None}

    def signature(self, *kinds: str) -> str:
        """Differs as soon as a file of these kinds was added, replaced or removed; cheap, reads no file."""
        digest = hashlib.sha256()
        for kind in kinds:
            for path in sorted((self.root / kind).glob("*/*.json")):
                try:
                    state = path.stat()
                except FileNotFoundError:
                    continue
                # A replaced file is another inode, even within one tick of the file system's clock.
                digest.update(f"{path} {state.st_ino} {state.st_mtime_ns} {state.st_size}\n".encode())
        return digest.hexdigest()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among those who change a Deployment. Held for a few file operations, so waiting needs no bound."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # -- the controller's life --------------------------------------------------------------------------------------

    @contextmanager
    def controlling(self) -> Iterator[bool]:
        """Be the controller of this folder; False when another process is.

        Two locks: the first keeps a second controller out, the second says that the statuses are true. In between,
        those of the last controller are removed, because its processes have ended with it.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "controller.claim").open("a") as claim, (self.root / "controller.lock").open("a") as lock:
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            for key in self.keys("status"):
                self.remove("status", key)
            # Readers hold it, shared, for a moment when they ask whether a controller lives.
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield True

    def is_controlled(self) -> bool:
        """Whether a controller lives: only then does the status say how things are."""
        try:
            lock = (self.root / "controller.lock").open("a")
        except FileNotFoundError:
            return False
        with lock:
            try:
                # Shared, so that several who ask at once do not take each other for a controller.
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False
