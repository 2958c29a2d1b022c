"""One snapshot of the world, from all ports, within a bounded time.

What could not be read is null in the snapshot and named in `unreadable`; it never makes the rest unreadable, and it is
never taken for empty. Each call has a limit of its own on top of the adapters' timeouts, because a sensor that waits
for one dead system stops reconciling everything else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from eventing.channels import group_id, parse_channel, topic_name
from eventing.errors import InvalidResource, SluiceError, Unavailable
from orchestration import membership
from orchestration.planning import Snapshot
from orchestration.planning.documents import format_time
from orchestration.ports import InvalidDocument, JsonObject, Ports, RegistryView

CALL_LIMIT_S = 10.0
"""For one port call; each asks for two or three answers that have limits of their own."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A snapshot, and what it cannot say."""

    document: JsonObject
    """The snapshot document (design §4.5)."""
    snapshot: Snapshot
    invalid: tuple[InvalidDocument, ...] = ()
    """Declarations that the registry refuses, whether or not they are of a listed channel."""
    unreadable: tuple[str, ...] = ()
    """Why a part of the snapshot is null, in words."""
    listed_brokers: Sequence[JsonObject] | None = field(default=None, repr=False)
    """Brokers as the cluster listed them, before what is remembered was added."""


class _Call(Generic[T]):
    """One port call in a thread of its own, so that it can be given up."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: T | None = None
        self._error: Exception | None = None
        # A daemon: a call that never returns must not keep the program alive.
        self._thread = threading.Thread(target=self._run, name="observe", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except Exception as exc:  # noqa: BLE001  # raised again by `result` where it is awaited
            self._error = exc

    def result(self, system: str, limit_s: float) -> T:
        self._thread.join(limit_s)
        if self._thread.is_alive():
            raise Unavailable(system, f"no answer within {limit_s:g} s")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # the call has returned


def observe(
    ports: Ports, *, now: datetime, expected_brokers: int | None = None, call_limit_s: float = CALL_LIMIT_S
) -> Observation:
    """Read everything once. `now` becomes `observed_at`."""
    unreadable: list[str] = []

    def settle(call: _Call[T], system: str) -> T | None:
        try:
            return call.result(system, call_limit_s)
        except SluiceError as exc:
            unreadable.append(str(exc))
            return None

    registry = _Call(ports.registry.list_channels)
    deployments_call = _Call(ports.workloads.list_deployments)
    services_call = _Call(ports.workloads.list_services)
    brokers_call = _Call(ports.kafka.brokers)
    topics_call = _Call(ports.kafka.topics)

    view: RegistryView | None = settle(registry, "registry")
    topics = settle(topics_call, "Kafka")
    expected = {} if view is None else expected_groups(view.channels)
    # Not worth another wait where the cluster did not answer just now.
    lag = None if topics is None else settle(_Call(lambda: ports.kafka.lag(expected)), "Kafka")
    deployments = settle(deployments_call, "workloads")
    services = settle(services_call, "workloads")
    listed = settle(brokers_call, "Kafka")

    document: JsonObject = {
        "observed_at": format_time(now),
        "brokers": None if listed is None else _brokers(listed, deployments, now),
        "expected_brokers": expected_brokers,
        "topics": topics,
        "channels": None if view is None else view.channels,
        "deployments": deployments,
        "services": services,
        "lag": None if lag is None or topics is None else _with_unknown_partitions(lag, topics),
    }
    return Observation(
        document=document,
        snapshot=Snapshot.from_document(document),
        invalid=() if view is None else tuple(view.invalid),
        unreadable=tuple(dict.fromkeys(unreadable)),
        listed_brokers=listed,
    )


def _brokers(listed: Sequence[JsonObject], deployments: Sequence[JsonObject] | None, now: datetime) -> list[JsonObject]:
    """Brokers with what is remembered of them. One that is up was seen at the time of this snapshot, not after it."""
    seen = [{**broker, "last_seen": None if broker["last_seen"] is None else format_time(now)} for broker in listed]
    return membership.with_memory(seen, membership.remembered(deployments))


def expected_groups(channels: Sequence[JsonObject]) -> dict[str, str]:
    """Group → topic of every declared subscription; a channel that does not parse has none to read."""
    groups: dict[str, str] = {}
    for declared in channels:
        try:
            channel = parse_channel(declared)
        except InvalidResource:
            continue
        topic = topic_name(channel)
        groups.update((group_id(channel, subscriber.uid), topic) for subscriber in channel.subscribers)
    return groups


def _with_unknown_partitions(lag: Mapping[str, JsonObject], topics: Mapping[str, JsonObject]) -> dict[str, Any]:
    """Spell out, for groups that could not be read, that the lag of each partition is unknown.

    A partition that is missing has no committed offset, which is knowledge; these are not known. A group whose topic
    is not there has nothing to spell out.
    """
    known: dict[str, Any] = {}
    for group, entry in lag.items():
        if entry["partitions"] is not None:
            known[group] = entry
            continue
        partitions = (topics.get(entry["topic"] or "") or {}).get("partitions")
        known[group] = {
            **entry,
            "partitions": {str(p["id"]): None for p in partitions} if partitions else {"0": None},
        }
    return known
