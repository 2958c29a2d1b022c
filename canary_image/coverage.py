"""Which partition proves which broker.

The first replica of a partition is its *preferred leader*: the broker that the partition is there to prove. A
partition is an *orphan* when one with a lower id has the same preferred leader, as it happens after a scale-down.
Orphans are not probed (strimzi proposal 013), unless that is asked for.

What is probed depends on replica lists alone, never on which brokers are up: a dead broker must show as failing
probes and not as missing ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NO_LEADER = -1


@dataclass(frozen=True, slots=True, order=True)
class Broker:
    """A broker as a client is told to reach it."""

    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as observed. `replicas` has the preferred leader first; `leader` is -1 where there is none."""

    id: int
    replicas: tuple[int, ...]
    leader: int


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One look at the cluster; `partitions` is None where the topic does not exist."""

    brokers: tuple[Broker, ...]
    partitions: tuple[Partition, ...] | None


@dataclass(frozen=True, slots=True)
class Target:
    """A partition to probe, the broker that it proves and the one that leads it now."""

    partition: int
    proves: int
    leader: int

    @property
    def blamed(self) -> int:
        """The broker on whose account a probe goes: the leader, or the preferred one while there is none."""
        return self.proves if self.leader == NO_LEADER else self.leader


def preferred_leader(partition: Partition) -> int:
    """The first replica; -1 for the degenerate answer without replicas."""
    return partition.replicas[0] if partition.replicas else NO_LEADER


def orphans(partitions: Iterable[Partition]) -> frozenset[int]:
    """Ids of partitions whose broker a partition with a lower id proves already."""
    proven: set[int] = set()
    found: set[int] = set()
    for partition in sorted(partitions, key=lambda partition: partition.id):
        broker = preferred_leader(partition)
        if broker in proven:
            found.add(partition.id)
        proven.add(broker)
    return frozenset(found)


def targets(partitions: Sequence[Partition], *, probe_orphans: bool = False) -> tuple[Target, ...]:
    """The partitions to probe, by id."""
    left_out = frozenset[int]() if probe_orphans else orphans(partitions)
    return tuple(
        Target(partition.id, preferred_leader(partition), partition.leader)
        for partition in sorted(partitions, key=lambda partition: partition.id)
        if partition.id not in left_out
    )


def moved(before: Iterable[Target], after: Iterable[Target]) -> frozenset[int]:
    """Partitions that are new or have another leader: clients do not know of it, and a producer refuses new ones."""
    leaders = {target.partition: target.leader for target in before}
    return frozenset(target.partition for target in after if leaders.get(target.partition) != target.leader)


@dataclass(frozen=True, slots=True)
class CheckedBrokers:
    """The brokers that the connection check visits.

    With an expected size the list stays as it is once that many were seen, so that a dead broker is counted as not
    connected and not forgotten; a listed broker that comes back under another address is followed.
    Without one it is what the cluster said last.
    """

    brokers: tuple[Broker, ...] = ()
    frozen: bool = False

    def after(self, seen: Iterable[Broker], expected: int | None) -> CheckedBrokers:
        brokers = tuple(sorted(seen))
        if self.frozen:
            latest = {broker.id: broker for broker in brokers}
            return CheckedBrokers(tuple(latest.get(broker.id, broker) for broker in self.brokers), frozen=True)
        return CheckedBrokers(brokers, frozen=expected is not None and len(brokers) >= expected)
