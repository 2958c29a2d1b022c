"""Which brokers hold the replicas of a partition: leaders over brokers, replicas over racks.

The rule of strimzi-canary comes first, because topics that it laid out must stay where they are: put the brokers in
an order that takes one of each rack in turn, and give partition p the replicas p, p+1, p+2 … of that order, round
and round. With racks of equal size, or without racks, neighbours in that order are of different racks, and every
broker is first replica of the same number of partitions.

With racks of unequal size the order runs out of racks at its end, and neighbours may share one. Then each further
replica goes to the rack that the partition uses least, of those to the one with the least to carry, and in it to
the broker with the least to carry.

Nothing is random and nothing depends on the order of the input, except where the caller orders brokers on purpose
(channels put the brokers with the least to carry first).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from orchestration.planning.snapshot import Broker, BrokerId

Replicas = tuple[BrokerId, ...]


def racks_of(brokers: Iterable[Broker]) -> dict[BrokerId, str] | None:
    """The rack of each broker; None where not all have one, because half a map cannot be kept to."""
    racks = {broker.id: broker.rack for broker in brokers}
    known = {broker: rack for broker, rack in racks.items() if rack is not None}
    return known if known and len(known) == len(racks) else None


def in_turns(brokers: Sequence[Broker]) -> list[BrokerId]:
    """One broker of each rack in turn, racks in the order in which they first appear; as given without racks."""
    racks = racks_of(brokers)
    if racks is None:
        return [broker.id for broker in brokers]
    by_rack: dict[str, list[BrokerId]] = {}
    for broker in brokers:
        by_rack.setdefault(racks[broker.id], []).append(broker.id)
    longest = max(len(members) for members in by_rack.values())
    return [members[turn] for turn in range(longest) for members in by_rack.values() if turn < len(members)]


def place(brokers: Sequence[Broker], *, partitions: int, replication_factor: int) -> list[Replicas]:
    """Replicas of each of `partitions` partitions, preferred leader first.

    Args:
        brokers: Those that may hold replicas, in the order of preference; at least `replication_factor` of them.
        partitions: How many lists are wanted. The lists of a smaller number are a prefix of those of a larger one.
        replication_factor: Length of each list.
    """
    assert 1 <= replication_factor <= len(brokers), f"{replication_factor} replicas on {len(brokers)} brokers"
    racks = racks_of(brokers)
    order = in_turns(brokers)
    count = len(order)
    if racks is None or _can_rotate(order, racks, replication_factor):
        return [tuple(order[(p + r) % count] for r in range(replication_factor)) for p in range(partitions)]
    return _over_uneven_racks(order, racks, partitions, replication_factor)


def _can_rotate(order: Sequence[BrokerId], racks: dict[BrokerId, str], replication_factor: int) -> bool:
    """Whether neighbours in the order are of different racks all the way round, so that the Go rule will do."""
    if len(set(Counter(racks.values()).values())) == 1:
        return True
    around = [*order, *order[: replication_factor - 1]]
    windows = (tuple(around[p : p + replication_factor]) for p in range(len(order)))
    return all(spreads_over_racks(replicas, racks) for replicas in windows)


def spreads_over_racks(replicas: Replicas, racks: dict[BrokerId, str]) -> bool:
    """As many racks as there can be: min(replicas, racks)."""
    used = {racks[broker] for broker in replicas if broker in racks}
    return len(used) == len(replicas) or len(used) >= min(len(replicas), len(set(racks.values())))


def unevenness(assignments: Iterable[Replicas], brokers: Iterable[Broker]) -> int:
    """Replicas on the fullest broker minus those on the emptiest."""
    carried = Counter({broker.id: 0 for broker in brokers})
    for replicas in assignments:
        carried.update(replicas)
    return max(carried.values()) - min(carried.values())


def _over_uneven_racks(
    order: Sequence[BrokerId], racks: dict[BrokerId, str], partitions: int, replication_factor: int
) -> list[Replicas]:
    members: dict[str, list[BrokerId]] = {}
    for broker in order:
        members.setdefault(racks[broker], []).append(broker)
    position = {rack: index for index, rack in enumerate(members)}
    # Leading is shared out evenly by the order itself; what is balanced here is following.
    carried = dict.fromkeys(order, 0)
    rack_carried = dict.fromkeys(members, 0)
    result: list[Replicas] = []
    for partition in range(partitions):
        leader = order[partition % len(order)]
        replicas = [leader]
        used = Counter({racks[leader]: 1})
        home = position[racks[leader]]
        for _ in range(replication_factor - 1):
            rack = min(
                (rack for rack in members if used[rack] < len(members[rack])),
                key=lambda rack: (
                    used[rack],
                    rack_carried[rack] / len(members[rack]),
                    (position[rack] - home) % len(members),
                ),
            )
            broker = min((b for b in members[rack] if b not in replicas), key=carried.__getitem__)
            replicas.append(broker)
            used[rack] += 1
            carried[broker] += 1
            rack_carried[rack] += 1
        result.append(tuple(replicas))
    return result
