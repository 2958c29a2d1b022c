"""The topics of a channel, and where its consumer groups start.

A channel has a topic and, unless it is switched off, a dead-letter topic of the same shape that keeps records for
four weeks. Topics grow with `numPartitions` and never shrink, because Kafka cannot. What is declared but cannot be
done is said on the object, and the channel goes on as it is.

First offsets are committed before a subscriber is reported ready, so that everything sent from then on is delivered:
a new group starts where `sluice.dev/initial-offset` says; partitions that a known group has no offset for start at
`earliest`, so that nothing is missed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from eventing.channels import InitialOffset, KafkaChannel, dead_letter_topic, group_id
from orchestration.planning.actions import (
    AlterTopicConfig,
    CreatePartitions,
    CreateTopic,
    DeleteGroup,
    InitializeOffsets,
    Offset,
)
from orchestration.planning.findings import Findings, named
from orchestration.planning.placement import Replicas, place
from orchestration.planning.snapshot import Broker, BrokerId, GroupLag, PartitionId, Snapshot, Topic

DEAD_LETTER_RETENTION = timedelta(weeks=4)
MIN_ISR = "min.insync.replicas"
RETENTION = "retention.ms"
CLEANUP = "cleanup.policy"


@dataclass(slots=True)
class Places:
    """Where replicas are, kept up to date while a plan is made, so that each new topic fills the emptiest brokers."""

    live: tuple[Broker, ...]
    members: int
    """Brokers that count, those included that are away for less than the grace time."""
    leads: Counter[BrokerId]
    carries: Counter[BrokerId]

    @classmethod
    def of(cls, snapshot: Snapshot, members: int) -> Places:
        """Count what the snapshot's topics put where."""
        leads: Counter[BrokerId] = Counter()
        carries: Counter[BrokerId] = Counter()
        for topic in (snapshot.topics or {}).values():
            for partition in topic.partitions or ():
                if partition.replicas:
                    leads[partition.replicas[0]] += 1
                    carries.update(partition.replicas)
        return cls(tuple(b for b in snapshot.brokers or () if b.is_live), members, leads, carries)

    def choose(self, count: int, factor: int, topic: Topic | None = None) -> list[Replicas]:
        """Replicas of `count` new partitions, on live brokers; `topic` is the one they are added to."""
        own = Counter(p.replicas[0] for p in (topic.partitions or () if topic else ()) if p.replicas)
        order = sorted(self.live, key=lambda b: (own[b.id], self.leads[b.id], self.carries[b.id], b.id))
        lists = place(order, partitions=count, replication_factor=factor)
        for replicas in lists:
            self.leads[replicas[0]] += 1
            self.carries.update(replicas)
        return lists


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOutcome:
    """How it stands with a channel's topics after the planned actions."""

    partitions: int | None
    """Of the topic; None where there is none, or it is not known."""
    problem: tuple[str, str] | None = None
    """Reason (a word for programs) and message why the topics are not as they must be."""
    warning: tuple[str, str] | None = None
    """The same, for what is declared and not done, while events flow all the same."""
    is_known: bool = True
    """False: topics or brokers could not be read, so that nothing new can be said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """One of a channel's two topics, as it is to be."""

    channel: KafkaChannel
    name: str
    what: str
    retention: timedelta


def plan_topics(
    findings: Findings, channel: KafkaChannel, name: str, topics: Mapping[str, Topic], places: Places | None
) -> TopicOutcome:
    """Create or adapt the topic and the dead-letter topic of a channel.

    Args:
        findings: Gets the actions and remarks.
        channel: What is declared.
        name: Of the topic.
        topics: Those that there are.
        places: None: the brokers could not be read.
    """
    main = _Wanted(channel=channel, name=name, what="topic", retention=channel.retention)
    topic = topics.get(name)
    if topic is None:
        failed = _create(findings, main, channel.num_partitions, channel.replication_factor, places)
        if failed is not None:
            return failed
        outcome = TopicOutcome(partitions=channel.num_partitions)
        factor = channel.replication_factor
    else:
        if "compact" in (topic.configs or {}).get(CLEANUP, "") and channel.persisted_topic is None:
            message = f"topic {name} exists already and is compacted, so it is somebody else's; it is left alone"
            findings.reject(message)
            return TopicOutcome(partitions=None, problem=("TopicIsForeign", message))
        present = [p.replicas for p in topic.partitions or () if p.replicas is not None]
        if not topic.is_contiguous or len(present) != len(topic.partitions or ()):
            findings.wait(f"the partitions of {name} could not be read completely")
            return TopicOutcome(partitions=None, is_known=False)
        factor = len(present[0])
        grown = max(channel.num_partitions, len(present))
        if grown > len(present):
            waiting = _why_not_grow(topic, factor, places)
            if waiting is not None:
                findings.wait(f"{name} is to grow from {len(present)} to {grown} partitions; {waiting}")
                grown = len(present)
        outcome = TopicOutcome(partitions=grown, warning=_declared_otherwise(findings, channel, name, present))

    partitions = outcome.partitions or 0
    if channel.dead_letter_topic_enabled:
        letters = _Wanted(
            channel=channel,
            name=dead_letter_topic(name),
            what="dead-letter topic",
            retention=DEAD_LETTER_RETENTION,
        )
        existing = topics.get(letters.name)
        if existing is None:
            failed = _create(findings, letters, partitions, factor, places)
            if failed is not None:
                # Events flow all the same; only those that nobody takes have nowhere to go.
                outcome = replace(failed, partitions=outcome.partitions, warning=outcome.warning)
        else:
            # It grows first: a record of a new partition may need its dead-letter partition at once.
            _grow(findings, letters, existing, partitions, places)
            _configure(findings, letters, existing)
    if topic is not None:
        _grow(findings, main, topic, partitions, places)
        _configure(findings, main, topic)
    return outcome


def _create(
    findings: Findings, wanted: _Wanted, partitions: int, factor: int, places: Places | None
) -> TopicOutcome | None:
    """Create a topic; an outcome where that cannot be done."""
    if places is None:
        findings.wait(f"topic {wanted.name} does not exist, and the brokers could not be read")
        return TopicOutcome(partitions=None, is_known=False)
    if not places.live:
        message = f"topic {wanted.name} does not exist, and no broker is up"
        findings.wait(message)
        return TopicOutcome(partitions=None, problem=("BrokersAway", message))
    if factor > places.members:
        message = (
            f"replicationFactor {factor} needs as many brokers, and there "
            f"{'is 1' if places.members == 1 else f'are {places.members}'}; topic {wanted.name} cannot be created"
        )
        findings.reject(message)
        return TopicOutcome(partitions=None, problem=("TooFewBrokers", message))
    if factor > len(places.live):
        message = f"topic {wanted.name} needs {factor} brokers, and {len(places.live)} are up"
        findings.wait(message)
        return TopicOutcome(partitions=None, problem=("BrokersAway", message))
    lists = places.choose(partitions, factor)
    findings.actions.append(
        CreateTopic(
            cause=wanted.channel.key,
            why=f"the channel's {wanted.what} does not exist; {_spread(lists)}",
            topic=wanted.name,
            assignments=_numbered(lists, start=0),
            configs=_configs(wanted.retention, factor),
        )
    )
    return None


def _why_not_grow(topic: Topic, factor: int, places: Places | None) -> str | None:
    if places is None:
        return "the brokers could not be read"
    if topic.reassigning is None:
        return "it is not known whether its replicas are moving"
    if topic.reassigning:
        return f"replicas of {named('partition', topic.reassigning)} are moving"
    if factor > len(places.live):
        return f"that needs {factor} brokers, and {len(places.live)} are up"
    return None


def _grow(findings: Findings, wanted: _Wanted, topic: Topic, total: int, places: Places | None) -> None:
    listed = topic.partitions or ()
    present = len(listed)
    if present >= total:
        return
    factor = len(listed[0].replicas or ()) if topic.is_contiguous else 0
    waiting = _why_not_grow(topic, factor, places) if factor else "its partitions could not be read completely"
    if waiting is not None or places is None:
        findings.wait(f"{wanted.name} is to grow from {present} to {total} partitions; {waiting}")
        return
    lists = places.choose(total - present, factor, topic)
    findings.actions.append(
        CreatePartitions(
            cause=wanted.channel.key,
            why=f"{total} partitions are declared and {wanted.name} has {present}; {_spread(lists)}",
            topic=wanted.name,
            partitions=total,
            assignments=_numbered(lists, start=present),
        )
    )


def _configure(findings: Findings, wanted: _Wanted, topic: Topic) -> None:
    """Bring the configs of an existing topic to what is declared; only those that differ."""
    if topic.configs is None:
        findings.wait(f"the configs of {wanted.name} could not be read")
        return
    configs = _configs(wanted.retention, len(topic.partitions[0].replicas or ()) if topic.partitions else 1)
    if topic.configs.get(CLEANUP, "delete") == "delete":
        del configs[CLEANUP]
    if topic.configs.get(MIN_ISR) != configs[MIN_ISR]:
        least = int(configs[MIN_ISR])
        short = [p.id for p in topic.partitions or () if p.isr is None or len(p.isr) < least]
        if topic.reassigning is None or topic.reassigning:
            del configs[MIN_ISR]  # while replicas move, their number is not what it is going to be
        elif short and not _is_lowered(topic.configs.get(MIN_ISR), least):
            findings.wait(f"{MIN_ISR}={least} of {wanted.name} must wait until {named('partition', short)} is in sync")
            del configs[MIN_ISR]
    changed = {key: value for key, value in configs.items() if topic.configs.get(key) != value}
    if changed:
        told = ", ".join(f"{key} is {topic.configs.get(key, 'not set')}" for key in sorted(changed))
        findings.actions.append(
            AlterTopicConfig(
                cause=wanted.channel.key,
                why=f"{told} on {wanted.name}, which is not what the channel declares",
                topic=wanted.name,
                configs=dict(sorted(changed.items())),
            )
        )


def _is_lowered(present: str | None, wanted: int) -> bool:
    return present is not None and present.isdecimal() and int(present) > wanted


def _declared_otherwise(
    findings: Findings, channel: KafkaChannel, name: str, present: list[Replicas]
) -> tuple[str, str] | None:
    """What is declared of an existing topic and cannot be had."""
    if channel.num_partitions < len(present):
        message = (
            f"numPartitions {channel.num_partitions} is less than the {len(present)} partitions that topic {name} has; "
            "Kafka cannot take partitions away"
        )
        findings.reject(message)
        return ("PartitionsCannotShrink", message)
    if channel.replication_factor > len(present[0]):
        message = (
            f"replicationFactor {channel.replication_factor} is declared and topic {name} has {len(present[0])}; "
            "the replicas of an existing topic are not changed"
        )
        findings.reject(message)
        return ("ReplicationFactorIsFixed", message)
    return None


def plan_offsets(
    findings: Findings,
    channel: KafkaChannel,
    *,
    topic: str,
    present: int,
    partitions: int,
    groups: Mapping[str, GroupLag] | None,
) -> dict[str, GroupLag | None]:
    """Commit first offsets where a subscription has none.

    Args:
        findings: Gets the actions and remarks.
        channel: Whose subscriptions.
        topic: Its topic.
        present: Partitions that the topic has now; later ones are empty when this plan creates them.
        partitions: Partitions that it is going to have.
        groups: The channel's groups by subscription uid; None: they could not be read.

    Returns:
        What each subscription's group is going to have committed; None: not known.
    """
    if groups is None:
        if channel.subscribers:
            findings.wait("consumer groups could not be read, so first offsets cannot be written")
        return {subscriber.uid: None for subscriber in channel.subscribers}
    predicted: dict[str, GroupLag | None] = {}
    for subscriber in sorted(channel.subscribers, key=lambda s: s.uid):
        group = groups.get(subscriber.uid)
        # A commit on another topic says nothing about this one.
        committed = {} if group is None or group.topic not in {topic, None} else group.partitions
        missing = tuple(PartitionId(p) for p in range(partitions) if p not in committed)
        predicted[subscriber.uid] = GroupLag(topic=topic, partitions=committed)
        if not missing:
            continue
        if committed and all(lag is None for lag in committed.values()):
            # Nothing shows that the group ever committed: it may be new (and start at latest) or have grown.
            findings.wait(f"the offsets of subscription {subscriber.uid} could not be read, so none are written")
            continue
        offset: Offset
        if committed:
            offset, why = "earliest", "partitions were added, and nothing in them may be missed"
        elif was_ready(channel.status, subscriber.uid):
            offset, why = "earliest", "its committed offsets are lost, and nothing that is left may be missed"
        else:
            offset = "latest" if channel.initial_offset is InitialOffset.LATEST else "earliest"
            why = f"the subscription is new and starts at {offset}"
        findings.actions.append(
            InitializeOffsets(
                cause=channel.key,
                why=f"subscription {subscriber.uid} has no committed offset for {named('partition', missing)}: {why}",
                group=group_id(channel, subscriber.uid),
                topic=topic,
                partitions=missing,
                offset=offset,
            )
        )
        empty = {p: 0 if offset == "latest" or p >= present else None for p in missing}
        predicted[subscriber.uid] = GroupLag(topic=topic, partitions={**committed, **empty})
    return predicted


def plan_vanished_groups(
    findings: Findings, channel: KafkaChannel, topic: str, groups: Mapping[str, GroupLag] | None
) -> None:
    """Delete the groups of subscriptions that are no longer declared."""
    declared = {subscriber.uid for subscriber in channel.subscribers}
    for uid in sorted(set(groups or {}) - declared):
        # The name alone does not prove that a group is ours; what it has read must be our topic as well.
        if groups is not None and groups[uid].topic == topic:
            findings.actions.append(
                DeleteGroup(
                    cause=channel.key,
                    why=f"subscription {uid} is no longer declared",
                    group=group_id(channel, uid),
                )
            )


def was_ready(status: Mapping[str, Any], uid: str) -> bool:
    """Whether the status says that this subscription was ready before."""
    listed = status.get("subscribers")
    return isinstance(listed, list | tuple) and any(
        isinstance(entry, Mapping) and entry.get("uid") == uid and entry.get("ready") == "True" for entry in listed
    )


def _configs(retention: timedelta, factor: int) -> dict[str, str]:
    return {
        CLEANUP: "delete",
        MIN_ISR: str(max(1, factor - 1)),
        RETENTION: str(retention // timedelta(milliseconds=1)),
    }


def _spread(lists: list[Replicas]) -> str:
    leaders = Counter(replicas[0] for replicas in lists)
    return f"{len(lists)} partition{'s' if len(lists) != 1 else ''} led by {named('broker', sorted(leaders))}"


def _numbered(lists: list[Replicas], *, start: int) -> dict[PartitionId, tuple[BrokerId, ...]]:
    return {PartitionId(number): replicas for number, replicas in enumerate(lists, start=start)}
