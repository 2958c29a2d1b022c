"""Where the programs of this image learn which channels there are: a seam with two real implementations.

    async with open_channel_source("registry/") as source:
        async for channels in source.views():
            ...                      # {("team-a", "orders"): KafkaChannel(...), …}: all of them, every time

A view is the *whole* present state, never a difference: whoever missed one is right again with the next. The first
view comes as soon as the registry was read once, and then one for each change, within a second.

What is broken keeps what was good: a document that does not parse leaves its channel as it was, a folder that
vanishes or an API server that does not answer leaves the whole view as it was. Only a registry that can be read and
no longer names a channel takes it away. Each problem is logged once, as `channel_source.*`.

The specification is `CHANNEL_SOURCE`: the word `kubernetes`, or the path of a file or folder of KafkaChannel YAML.
In a folder the persisted topic name is read from `.status/<namespace>.<name>.yaml` (docs/architecture.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import watchfiles
import yaml

from eventing.channels import API_VERSION, KIND, KafkaChannel, parse_channel, resource_key
from eventing.errors import ConfigError, InvalidResource

ChannelKey = tuple[str, str]
"""(namespace, name)"""
ChannelView = Mapping[ChannelKey, KafkaChannel]

SETTLE_S = 0.1
"""A file younger than this may still be being written; it is read once it has been quiet for so long."""
ABSENCE_S = 0.4
"""How long a channel must be missing before it counts as gone: editors replace a file by deleting it first."""
LOOK_AGAIN_S = 0.5
"""Between two looks at a folder that is not there, and for changes that the file system did not report."""
WATCH_TIMEOUT_S = 60
"""Length of one watch request to an API server: a connection that died silently is noticed after this time."""
BACKOFF_LONGEST_S = 15.0

_ANNOTATION_SOURCE = "sluice.dev/source-file"
"""In a status file: which file declared the channel first, and therefore wins over a copy."""

log = logging.getLogger(__name__)


class ChannelSource(Protocol):
    """All channels, again at each change."""

    def views(self) -> AsyncIterator[ChannelView]:
        """Yield the whole view as soon as it is known, then at each change.

        It never ends by itself and never raises for something that may pass.
        """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_channel_source(specification: str, *, only: ChannelKey | None = None) -> ChannelSource:
    """Choose the source that `CHANNEL_SOURCE` names; `only` is the one channel that is of interest.

    Raises:
        ConfigError: the path's folder does not exist, or no cluster is configured.
    """
    if specification == "kubernetes":
        return KubernetesSource(only=only)
    path = Path(specification)
    if not path.exists() and not path.parent.is_dir():
        raise ConfigError([f"CHANNEL_SOURCE {specification!r} is neither a file nor a folder"], subject="environment")
    return FileSource(path, only=only)


# --- files -----------------------------------------------------------------------------------------------------------

_Stamp = tuple[int, int, int]
"""(mtime in ns, size, inode): changes whenever a file's content does."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the C parser where it is built
    """YAML without timestamps: a time stays the text that it was, as in JSON."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(slots=True)
class _File:
    """What one file said when it was last read."""

    stamp: _Stamp
    objects: dict[ChannelKey, Mapping[str, Any]]
    """Declared objects, unparsed: a status that changes re-parses them without reading the file again."""


class FileSource:
    """A file or a folder of KafkaChannel YAML, watched. Reading happens in a worker thread."""

    def __init__(self, path: Path, *, only: ChannelKey | None = None) -> None:
        self._path = path
        self._only = only
        self._folder = path if path.is_dir() or not path.exists() else path.parent
        self._files: dict[Path, _File] = {}
        self._status: dict[Path, tuple[_Stamp, Mapping[str, Any]]] = {}
        self._good: dict[ChannelKey, KafkaChannel] = {}
        self._told: set[str] = set()
        self._stop = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()

    async def views(self) -> AsyncIterator[ChannelView]:
        shown: dict[ChannelKey, KafkaChannel] | None = None
        changes = self._changes()
        async with contextlib.aclosing(changes):
            async for _ in changes:
                view = await self._settled_view(shown or {})
                if view is not None and view != shown:
                    shown = view
                    yield dict(view)

    async def _changes(self) -> AsyncGenerator[None, None]:
        """Tick at once and whenever something may have changed in the folder, at least every `LOOK_AGAIN_S`."""
        yield
        while not self._stop.is_set():
            if not self._folder.is_dir():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), LOOK_AGAIN_S)
                yield
                continue
            inode = self._folder.stat().st_ino
            watch = watchfiles.awatch(
                self._folder,
                watch_filter=None,
                debounce=200,
                step=20,
                rust_timeout=int(LOOK_AGAIN_S * 1000),
                yield_on_timeout=True,
                stop_event=self._stop,
            )
            try:
                async with contextlib.aclosing(watch):
                    async for _ in watch:
                        yield
                        # A folder that was replaced has another inode, and the old watch would stay silent for ever.
                        if not self._folder.is_dir() or self._folder.stat().st_ino != inode:
                            break
            except (OSError, RuntimeError) as exc:  # watchfiles: a watched path that vanished while being watched
                log.warning("channel_source.watch_ended path=%s reason=%r", self._folder, str(exc))
                await asyncio.sleep(LOOK_AGAIN_S)

    async def _settled_view(self, shown: Mapping[ChannelKey, KafkaChannel]) -> dict[ChannelKey, KafkaChannel] | None:
        view = await asyncio.to_thread(self._read)
        if view is not None and shown.keys() - view.keys():
            await asyncio.sleep(ABSENCE_S)
            view = await asyncio.to_thread(self._read)
        return view

    def _read(self) -> dict[ChannelKey, KafkaChannel] | None:
        """The present view, or None when the registry cannot be read now."""
        try:
            paths = self._yaml_files()
            self._refresh_files(paths)
            status = self._refresh_status()
        except OSError as exc:
            self._tell(f"path={self._path} reason={exc.strerror or exc}")
            return None
        view: dict[ChannelKey, KafkaChannel] = {}
        for key, declared in self._declared(status).items():
            merged = _with_status(declared, status.get(key))
            try:
                view[key] = parse_channel(merged)
            except InvalidResource as exc:
                self._tell(f"channel={key[0]}/{key[1]} reason={exc}")
                if key in self._good:
                    view[key] = self._good[key]
        self._good = view
        return view

    def _yaml_files(self) -> list[Path]:
        if self._path.is_dir():
            with os.scandir(self._path) as entries:
                return sorted(
                    Path(entry.path)
                    for entry in entries
                    if not entry.name.startswith(".") and entry.name.endswith((".yaml", ".yml")) and entry.is_file()
                )
        self._path.stat()  # raises for the caller when it is not there
        return [self._path]

    def _refresh_files(self, paths: list[Path]) -> None:
        """Read the files that changed. Parsing thousands takes seconds, looking at them milliseconds."""
        for gone in self._files.keys() - set(paths):
            del self._files[gone]
        for path in paths:
            known = self._files.get(path)
            try:
                stamp = _settled_stamp(path)
                if known is not None and known.stamp == stamp:
                    continue
                objects = _objects(path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                continue
            except (UnicodeDecodeError, yaml.YAMLError) as exc:
                # None of its channels is taken for deleted: the next good version of the file will say.
                reason = "not UTF-8 text" if isinstance(exc, UnicodeDecodeError) else " ".join(str(exc).split())
                self._tell(f"file={path} reason={reason!r}")
                objects = known.objects if known is not None else {}
            self._files[path] = _File(stamp, objects)

    def _refresh_status(self) -> dict[ChannelKey, Mapping[str, Any]]:
        folder = self._folder / ".status"
        found: dict[Path, tuple[_Stamp, Mapping[str, Any]]] = {}
        try:
            paths = sorted(folder.iterdir())
        except FileNotFoundError:
            paths = []
        for path in paths:
            if path.name.startswith(".") or path.suffix != ".yaml":
                continue
            known = self._status.get(path)
            with contextlib.suppress(FileNotFoundError):
                stamp = _stamp(path)
                if known is not None and known[0] == stamp:
                    found[path] = known
                    continue
                try:
                    document = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506  # a safe loader
                except (yaml.YAMLError, UnicodeDecodeError):
                    document = None
                if isinstance(document, Mapping):
                    found[path] = (stamp, document)
                elif known is not None:
                    found[path] = known
        self._status = found
        return {key: document for _, document in found.values() if (key := _key(document)) is not None}

    def _declared(self, status: Mapping[ChannelKey, Mapping[str, Any]]) -> dict[ChannelKey, Mapping[str, Any]]:
        """Each channel once: the file that declared it first stays in force, a copy changes nothing."""
        chosen: dict[ChannelKey, tuple[Path, Mapping[str, Any]]] = {}
        for path in sorted(self._files):
            for key, obj in self._files[path].objects.items():
                if self._only is not None and key != self._only:
                    continue
                first = (status.get(key, {}).get("metadata") or {}).get("annotations") or {}
                if key not in chosen or first.get(_ANNOTATION_SOURCE) == path.name:
                    chosen[key] = (path, obj)
        return {key: obj for key, (_, obj) in chosen.items()}

    def _tell(self, message: str) -> None:
        """Log a problem once, not at every look."""
        if message not in self._told:
            if len(self._told) >= 1000:
                self._told.clear()
            self._told.add(message)
            log.warning("channel_source.invalid %s (what was good before stays in force)", message)


def _objects(text: str) -> dict[ChannelKey, Mapping[str, Any]]:
    """The KafkaChannel documents of a file by key, the first of each; what else is in it is none of our business."""
    found: dict[ChannelKey, Mapping[str, Any]] = {}
    for document in yaml.load_all(text, Loader=_Loader):
        if isinstance(document, Mapping) and document.get("kind") == KIND:
            key = _key(document)
            if key is not None:
                found.setdefault(key, document)
    return found


def _key(obj: Mapping[str, Any]) -> ChannelKey | None:
    namespace, _, name = resource_key(obj).partition("/")
    return None if name == "?" else (namespace, name)


def _with_status(declared: Mapping[str, Any], kept: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The object as a cluster would show it: the declaration, with the status and what the registry keeps beside it."""
    if kept is None:
        return declared
    metadata = declared.get("metadata")
    kept_metadata = kept.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(kept_metadata, Mapping):
        return declared
    added = {key: kept_metadata[key] for key in ("generation", "deletionTimestamp") if key in kept_metadata}
    return {**declared, "metadata": {**metadata, **added}, "status": kept.get("status")}


def _stamp(path: Path) -> _Stamp:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _settled_stamp(path: Path) -> _Stamp:
    """The stamp of a file once it was quiet for `SETTLE_S`, waiting at most ten times as long."""
    stamp = _stamp(path)
    for _ in range(10):
        if abs(time.time_ns() - stamp[0]) >= SETTLE_S * 1e9:
            break
        time.sleep(SETTLE_S / 2)
        stamp = _stamp(path)
    return stamp


# --- Kubernetes ------------------------------------------------------------------------------------------------------


class KubernetesSource:
    """KafkaChannel objects of a cluster: one list, then a watch from its resourceVersion, again and again.

    The client is synchronous, so a daemon thread reads and the event loop is told. An API server that does not answer
    is asked again with growing pauses; the last view stays in force meanwhile.
    """

    def __init__(self, *, only: ChannelKey | None = None) -> None:
        self._only = only
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._stopped = threading.Event()
        self._objects: dict[ChannelKey, Mapping[str, Any]] = {}
        self._good: dict[ChannelKey, KafkaChannel] = {}
        self._listed = False
        self._lock = threading.Lock()
        self._watch: Any = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, name="channel-watch", daemon=True).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self._watch is not None:
            self._watch.stop()
        self._changed.set()

    async def views(self) -> AsyncIterator[ChannelView]:
        shown: dict[ChannelKey, KafkaChannel] | None = None
        while True:
            await self._changed.wait()
            if self._stopped.is_set():
                return
            self._changed.clear()
            view = self._view()
            if view != shown:
                shown = view
                yield dict(view)

    def _view(self) -> dict[ChannelKey, KafkaChannel]:
        with self._lock:
            objects = dict(self._objects)
        view: dict[ChannelKey, KafkaChannel] = {}
        for key, obj in objects.items():
            try:
                view[key] = parse_channel(obj)
            except InvalidResource as exc:
                log.warning("channel_source.invalid channel=%s/%s reason=%r", *key, str(exc))
                if key in self._good:
                    view[key] = self._good[key]
        self._good = view
        return view

    def _run(self) -> None:
        pause = 0.5
        while not self._stopped.is_set():
            try:
                self._list_and_watch()
                pause = 0.5
            except Exception as exc:  # noqa: BLE001  # the top loop of this thread: whatever it is, try again
                if self._stopped.wait(pause):
                    return
                pause = min(pause * 2, BACKOFF_LONGEST_S)
                log.warning("channel_source.unavailable system=kubernetes reason=%r", str(exc).strip()[:500])

    def _list_and_watch(self) -> None:
        from kubernetes import client, config, watch  # noqa: PLC0415  # slow to import, and only needed in a cluster

        try:
            config.load_incluster_config()
        except config.ConfigException:
            config.load_kube_config()
        api = client.CustomObjectsApi()
        group, _, version = API_VERSION.partition("/")
        arguments: dict[str, Any] = {"group": group, "version": version, "plural": "kafkachannels"}
        call = api.list_cluster_custom_object
        if self._only is not None:
            call = api.list_namespaced_custom_object
            arguments |= {"namespace": self._only[0], "field_selector": f"metadata.name={self._only[1]}"}
        listing = call(**arguments, _request_timeout=(5, WATCH_TIMEOUT_S))
        self._replace(listing["items"])
        resource_version = listing["metadata"]["resourceVersion"]
        while not self._stopped.is_set():
            self._watch = watch.Watch()
            stream = self._watch.stream(
                call,
                **arguments,
                resource_version=resource_version,
                timeout_seconds=WATCH_TIMEOUT_S,
                _request_timeout=(5, WATCH_TIMEOUT_S + 10),
            )
            for event in stream:
                obj = event["raw_object"] if "raw_object" in event else event["object"]
                if event["type"] == "ERROR":  # 410 Gone: the version is too old, list again
                    return
                self._apply(event["type"], obj)
            # The server ended the watch in time: go on from the last version that the client saw.
            resource_version = self._watch.resource_version or resource_version

    def _replace(self, items: Iterable[Mapping[str, Any]]) -> None:
        # Items of a list carry neither kind nor apiVersion.
        objects = {key: obj for item in items if (key := _key(obj := _typed(item))) is not None}
        with self._lock:
            self._objects = objects
            self._listed = True
        self._tell()

    def _apply(self, kind: str, obj: Mapping[str, Any]) -> None:
        key = _key(obj)
        if key is None:
            return
        with self._lock:
            if kind == "DELETED":
                self._objects.pop(key, None)
            else:
                self._objects[key] = _typed(obj)
        self._tell()

    def _tell(self) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop ended first
            self._loop.call_soon_threadsafe(self._changed.set)


def _typed(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"apiVersion": API_VERSION, "kind": KIND, **item}
