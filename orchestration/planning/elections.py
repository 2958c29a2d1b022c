"""Preferred leader elections, decided from the leaders that are, not from those that were wished for.

Kafka looks for itself only every five minutes, and only where a broker is out of balance by a tenth. An election is
asked for where it can succeed and changes something: the leader is another than the first replica, and the first
replica is up and in sync. Everything else Kafka would refuse or ignore.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from orchestration.planning.actions import ElectLeaders, Plan, Remark, summarize
from orchestration.planning.findings import named
from orchestration.planning.snapshot import Broker, PartitionId, Snapshot, Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Elections:
    """What an election would do for one topic."""

    possible: tuple[PartitionId, ...]
    """Partitions that would get their preferred leader."""
    impossible: Mapping[PartitionId, str]
    """Partitions with a wrong leader, and why it must stay for now."""


def preferred_elections(topic: Topic, brokers: Sequence[Broker]) -> Elections:
    """Which partitions of a topic can get the leader they should have."""
    live = {broker.id for broker in brokers if broker.is_live}
    possible: list[PartitionId] = []
    impossible: dict[PartitionId, str] = {}
    for partition in topic.partitions or ():
        if partition.replicas is None or partition.leader is None or partition.leader == partition.replicas[0]:
            continue
        preferred = partition.replicas[0]
        if preferred not in live:
            impossible[partition.id] = f"broker {preferred} is not up"
        elif partition.isr is None:
            impossible[partition.id] = f"it is not known whether broker {preferred} is in sync"
        elif preferred not in partition.isr:
            impossible[partition.id] = f"broker {preferred} is not in sync"
        else:
            possible.append(partition.id)
    return Elections(possible=tuple(possible), impossible=impossible)


def plan_elections(snapshot: Snapshot, topics: Collection[str] | None = None, *, cause: str) -> Plan:
    """Elections for some topics, or for all of them: what an operator asks for by hand.

    Args:
        snapshot: Brokers and topics are used.
        topics: Names; None: every topic of the snapshot.
        cause: Who asks, for the record.
    """
    if snapshot.brokers is None or snapshot.topics is None:
        remark = Remark(object=cause, reason="brokers or topics could not be read")
        return Plan(waiting=(remark,), summary=summarize((), (), (remark,)))
    actions: list[ElectLeaders] = []
    rejected: list[Remark] = []
    waiting: list[Remark] = []
    for name in sorted(snapshot.topics if topics is None else topics):
        topic = snapshot.topics.get(name)
        if topic is None:
            rejected.append(Remark(object=cause, reason=f"there is no topic {name}"))
            continue
        if topic.reassigning:
            waiting.append(Remark(object=cause, reason=f"{name}: replicas of {_partitions(topic.reassigning)} move"))
            continue
        elections = preferred_elections(topic, snapshot.brokers)
        if elections.possible:
            actions.append(
                ElectLeaders(
                    cause=cause,
                    why=f"{_partitions(elections.possible)} of {name}: another broker leads than the first replica, "
                    "which is up and in sync",
                    topic=name,
                    partitions=elections.possible,
                )
            )
        for number, reason in elections.impossible.items():
            waiting.append(Remark(object=cause, reason=f"{name}: partition {number} keeps its leader: {reason}"))
    return Plan(
        actions=tuple(actions),
        rejected=tuple(rejected),
        waiting=tuple(waiting),
        summary=summarize(tuple(actions), tuple(rejected), tuple(waiting)),
    )


def _partitions(numbers: Sequence[PartitionId]) -> str:
    return named("partition", numbers)
