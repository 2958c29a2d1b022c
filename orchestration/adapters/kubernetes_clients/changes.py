"""Collections that are followed in the background: a list of each, then watches from where it was, for ever.

    followed = Followed(api, Collection("/apis/apps/v1/deployments", query, told=lambda deployment: [...]))
    cursor = followed.wait(None, 20.0)      # at once
    cursor = followed.wait(cursor, 20.0)    # as soon as what is told of some object differs

The cursor stands for the *content*, so it is good in another process and after a restart. It is the sum of a hash of
each object: an event changes one addend, however many objects there are.

The threads are daemons. They start with the first `wait` and end by themselves when nobody has waited for `IDLE_S`.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from eventing.errors import SluiceError, Unavailable
from orchestration.adapters.kubernetes_clients.connection import (
    READ_TIMEOUT_S,
    SYSTEM,
    Expired,
    JsonObject,
    KubernetesApi,
)

WATCH_S = 240
"""Length of one watch; API servers end theirs after 5 to 10 minutes by themselves."""
IDLE_S = 300.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
_BITS = 128

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Collection:
    """What is followed: a path of the API with its selectors, and what of each object counts."""

    path: str
    query: Mapping[str, str]
    told: Callable[[JsonObject], object]
    """The part of an object that matters, as something that JSON can write."""


@dataclass(slots=True)
class _Seen:
    """What is known of one collection; touched under the condition's lock only."""

    thread: threading.Thread | None = None
    hashes: dict[Key, int] = field(default_factory=dict)
    sum: int | None = None
    """None before the first list."""
    problem: SluiceError | None = None


class Followed:
    """See the module."""

    def __init__(self, api: KubernetesApi, *collections: Collection) -> None:
        self._api = api
        self._seen = [(collection, _Seen()) for collection in collections]
        self._changed = threading.Condition()
        self._last_asked = 0.0
        self._closed = False

    def wait(self, cursor: str | None, timeout_s: float) -> str:
        """As `Registry.wait_for_change`.

        Raises:
            Unavailable (or what else the API server said): it does not answer, and did not within the timeout.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._last_asked = time.monotonic()
            self._closed = False
            for collection, seen in self._seen:
                if seen.thread is None or not seen.thread.is_alive():
                    seen.sum = None  # what was seen before a pause is no news
                    seen.thread = threading.Thread(
                        target=self._follow, args=(collection, seen), name=f"follow {collection.path}", daemon=True
                    )
                    seen.thread.start()
            first_list_by = time.monotonic() + READ_TIMEOUT_S
            while True:
                current = self._cursor()
                if current is not None and current != cursor:
                    return current
                # Nothing can be said before the first list, however short the time to wait for a change is.
                unknown = current is None and all(seen.problem is None for _, seen in self._seen)
                remaining = (first_list_by if unknown else deadline) - time.monotonic()
                if remaining <= 0:
                    break
                self._changed.wait(remaining)
            for _, seen in self._seen:
                if seen.problem is not None:
                    raise seen.problem
            if current is None:
                raise Unavailable(SYSTEM, f"the first list took longer than {READ_TIMEOUT_S:.0f} s")
            return current

    def close(self) -> None:
        """Let the threads end when their watches do."""
        self._closed = True

    def _cursor(self) -> str | None:
        if any(seen.sum is None for _, seen in self._seen):
            return None
        return "+".join(f"{len(seen.hashes)}-{seen.sum:032x}" for _, seen in self._seen)

    def _follow(self, collection: Collection, seen: _Seen) -> None:
        pause = FIRST_PAUSE_S
        version: str | None = None
        while not self._is_over():
            try:
                if version is None:
                    version = self._list(collection, seen)
                for event in self._api.watch(collection.path, collection.query, version, WATCH_S):
                    self._take(collection, seen, event)
                    version = str(event["object"]["metadata"]["resourceVersion"])
                    pause = FIRST_PAUSE_S
                    if self._is_over():
                        return
            except Expired:
                version = None
            except SluiceError as problem:
                # Whatever it was, a version of a server that was replaced meanwhile would never be good again.
                version = None
                with self._changed:
                    seen.problem = problem
                    self._changed.notify_all()
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                # The server ended the watch in time. One that does so at once must not be asked in a tight loop.
                time.sleep(FIRST_PAUSE_S)

    def _is_over(self) -> bool:
        return self._closed or time.monotonic() - self._last_asked > IDLE_S

    def _list(self, collection: Collection, seen: _Seen) -> str:
        items, version = self._api.pages(collection.path, collection.query, doing=f"listing {collection.path}")
        hashes = {_key(item): _hash(collection, item) for item in items}
        with self._changed:
            seen.hashes = hashes
            seen.sum = sum(hashes.values()) % 2**_BITS
            seen.problem = None
            self._changed.notify_all()
        return version

    def _take(self, collection: Collection, seen: _Seen, event: JsonObject) -> None:
        kind, item = event["type"], event["object"]
        with self._changed:
            seen.problem = None
            if kind == "BOOKMARK":
                return
            assert seen.sum is not None, "a watch begins after a list"
            old, new = seen.hashes.pop(_key(item), 0), 0
            if kind != "DELETED":
                new = seen.hashes[_key(item)] = _hash(collection, item)
            seen.sum = (seen.sum - old + new) % 2**_BITS
            self._changed.notify_all()


def _hash(collection: Collection, item: JsonObject) -> int:
    text = json.dumps([_key(item), collection.told(item)], sort_keys=True, default=str)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[: _BITS // 8], "big")


def _key(item: JsonObject) -> Key:
    return (str(item["metadata"].get("namespace") or ""), str(item["metadata"]["name"]))
