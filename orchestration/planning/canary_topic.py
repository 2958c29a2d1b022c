"""The canary's topic: one partition led by each broker, kept so as brokers come and go, and otherwise left in peace.

For N brokers there are max(present, N) partitions with min(N, 3) replicas and min ISR max(1, replicas - 1), laid out
by `placement`. A layout that is already as good (every broker leads its share, racks and brokers as evenly used) is
kept even if the rule would have chosen another: a needless move costs latency in the very thing that measures it.

The order of the steps makes each of them safe by itself, also if the next one never comes:

1. lower min ISR, before there are fewer replicas than it asks for;
2. move replicas; then wait until nothing moves any more;
3. create partitions, with as many replicas as partition 0 really has (Kafka takes no others);
4. raise min ISR, once the replicas are there;
5. elect preferred leaders: moving replicas does not move a leader.

A step that relies on a move having ended comes in a later plan, made from a later observation. A broker that is away
counts as gone only after the grace time, so that a rolling restart changes nothing at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from orchestration.planning.actions import (
    CANARY,
    AlterTopicConfig,
    CreatePartitions,
    CreateTopic,
    ElectLeaders,
    ReassignPartitions,
)
from orchestration.planning.documents import format_time
from orchestration.planning.elections import preferred_elections
from orchestration.planning.findings import Findings, named
from orchestration.planning.placement import Replicas, place, racks_of, spreads_over_racks, unevenness
from orchestration.planning.policy import CanaryPolicy
from orchestration.planning.snapshot import Broker, BrokerId, PartitionId, Snapshot, Topic

MAX_REPLICATION_FACTOR = 3
LEAST_SEGMENT_BYTES = 1_048_576
"""Kafka 4 refuses less (KIP-1030, KAFKA-19080)."""
MIN_ISR = "min.insync.replicas"
DEFAULT_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "delete",  # records have no key, which a compacted topic refuses
    "segment.bytes": str(LEAST_SEGMENT_BYTES),
    "segment.ms": "600000",  # retention does not touch the active segment, so it must roll as well
    "retention.ms": "600000",
    "retention.bytes": str(4 * 1024 * 1024),
}


def members(snapshot: Snapshot, policy: CanaryPolicy, now: datetime) -> tuple[Broker, ...]:
    """The brokers that count: those that are up, and those that are away for less than the grace time.

    With `expected_brokers` an absent broker never counts as gone.
    """
    brokers = snapshot.brokers or ()
    if snapshot.expected_brokers is not None:
        return brokers
    return tuple(b for b in brokers if b.is_live or b.last_seen is None or now - b.last_seen < policy.grace)


def plan_canary_topic(snapshot: Snapshot, policy: CanaryPolicy, now: datetime) -> Findings:
    """The next safe steps of the canary's topic."""
    findings = Findings(CANARY)
    if snapshot.brokers is None:
        findings.wait("brokers could not be read")
        return findings
    if snapshot.topics is None:
        findings.wait("topics could not be read")
        return findings
    counted = members(snapshot, policy, now)
    if not any(broker.is_live for broker in counted):
        findings.wait("no broker is up" if snapshot.brokers else "no broker is known")
        return findings
    for broker in counted:
        if not broker.is_live:
            findings.wait(_absence(broker, snapshot, policy))
    if racks_of(counted) is None and any(broker.rack for broker in counted):
        without = named("broker", [broker.id for broker in counted if broker.rack is None])
        findings.wait(f"racks are ignored, because none is known of {without}")
    is_complete = _is_as_expected(findings, len(counted), snapshot.expected_brokers)

    topic = snapshot.topics.get(policy.topic)
    if topic is None:
        if is_complete:
            _create(findings, policy, counted)
    else:
        _keep(findings, policy, topic, counted, snapshot.brokers, is_complete=is_complete)
    return findings if policy.manage_topic else _hands_off(findings, policy, exists=topic is not None)


def _is_as_expected(findings: Findings, count: int, expected: int | None) -> bool:
    if expected is None or count == expected:
        return True
    if count < expected:
        findings.wait(f"{count} of the {expected} expected brokers are known; the topic is left as it is until all are")
    else:
        findings.reject(
            f"{count} brokers are registered and {expected} expected; correct expected_brokers, or unregister those "
            "that will not come back"
        )
    return False


def _absence(broker: Broker, snapshot: Snapshot, policy: CanaryPolicy) -> str:
    if snapshot.expected_brokers is not None:
        return f"broker {broker.id} is away; it never counts as gone, because expected_brokers is set"
    if broker.last_seen is None:
        return f"broker {broker.id} is away; it is not known since when, so it does not count as gone"
    return (
        f"broker {broker.id} was last seen at {format_time(broker.last_seen)}; it counts as gone "
        f"{policy.grace.total_seconds():g} s after that"
    )


def _create(findings: Findings, policy: CanaryPolicy, counted: Sequence[Broker]) -> None:
    factor = min(len(counted), MAX_REPLICATION_FACTOR)
    lists = place(counted, partitions=len(counted), replication_factor=factor)
    if not _can_be_created(findings, dict(enumerate(lists)), counted):
        return
    configs = _wanted_configs(findings, policy, min_isr=max(1, factor - 1))
    findings.actions.append(
        CreateTopic(
            cause=CANARY,
            why=f"the canary's topic {policy.topic} does not exist; {_counted(len(counted), 'broker')} "
            f"need{'s' if len(counted) == 1 else ''} as many partitions",
            topic=policy.topic,
            assignments=_numbered(dict(enumerate(lists))),
            configs=configs,
        )
    )


def _keep(
    findings: Findings,
    policy: CanaryPolicy,
    topic: Topic,
    counted: Sequence[Broker],
    brokers: Sequence[Broker],
    *,
    is_complete: bool,
) -> None:
    cleanup = (topic.configs or {}).get("cleanup.policy", "")
    if "compact" in cleanup:
        findings.reject(
            f"topic {policy.topic} exists and is compacted (cleanup.policy={cleanup}), so it is not a canary's; it is "
            "left alone. Name another topic, or set cleanup.policy=delete on this one if nobody needs its records"
        )
        return
    present = [partition.replicas for partition in topic.partitions or ()]
    lists = [replicas for replicas in present if replicas is not None]
    if not topic.is_contiguous or len(lists) != len(present):
        findings.wait(f"the partitions of {policy.topic} could not be read completely")
        return
    if topic.reassigning:
        findings.wait(f"replicas of {named('partition', topic.reassigning)} of {policy.topic} are moving")
        return

    steps = Findings(CANARY)
    if is_complete:
        _steps(steps, policy, topic, lists, counted)
    else:
        _alter(steps, policy, topic, _changed_configs(steps, policy, topic), "differs from what the canary needs")
    if not any(isinstance(step, ReassignPartitions) for step in steps.actions):
        _elect(steps, policy, topic, brokers)
    if steps.actions and topic.reassigning is None:
        findings.wait(f"it is not known whether replicas of {policy.topic} are moving, so nothing is changed")
        steps.actions.clear()
    findings.actions += steps.actions
    findings.rejected += steps.rejected
    findings.waiting += steps.waiting


def _steps(
    findings: Findings, policy: CanaryPolicy, topic: Topic, lists: Sequence[Replicas], counted: Sequence[Broker]
) -> None:
    """Steps 1 to 4 of the module's docstring."""
    factor = min(len(counted), MAX_REPLICATION_FACTOR)
    min_isr = max(1, factor - 1)
    wanted = place(counted, partitions=max(len(lists), len(counted)), replication_factor=factor)
    if _is_as_good(lists, wanted, counted):
        wanted = list(lists)
    moves = {p: replicas for p, replicas in enumerate(wanted[: len(lists)]) if replicas != lists[p]}
    added = dict(enumerate(wanted[len(lists) :], start=len(lists)))
    configs = _changed_configs(findings, policy, topic)
    set_isr = _number((topic.configs or {}).get(MIN_ISR))

    if moves:
        falls = max(map(len, lists)) > factor
        if topic.configs is not None and (set_isr > min_isr if set_isr is not None else falls):
            configs[MIN_ISR] = str(min_isr)
        elif topic.configs is None and falls:
            findings.wait(f"the configs of {policy.topic} could not be read, so its replicas must not become fewer")
            return
        _alter(findings, policy, topic, configs, "differs from what the canary needs; fewer replicas are to follow")
        away = sorted({b.id for b in counted if not b.is_live} & {b for replicas in moves.values() for b in replicas})
        if away:
            findings.wait(f"replicas are to move, but not while {named('broker', away)} is away")
            return
        findings.actions.append(
            ReassignPartitions(
                cause=CANARY,
                why=_why_move(lists, counted, factor, policy),
                topic=policy.topic,
                assignments=_numbered(moves),
            )
        )
        if added:
            findings.wait(f"{named('partition', added)} of {policy.topic} can be created when no replica moves")
        if set_isr is None or set_isr < min_isr:
            findings.wait(f"{MIN_ISR}={min_isr} can be set when all replicas are there")
        return

    if added and _can_be_created(findings, added, counted):
        findings.actions.append(
            CreatePartitions(
                cause=CANARY,
                why=f"{_counted(len(counted), 'broker')} and {_counted(len(lists), 'partition')}: each is to lead one",
                topic=policy.topic,
                partitions=len(wanted),
                assignments=_numbered(added),
            )
        )
    if topic.configs is not None and set_isr != min_isr:
        short = [p.id for p in topic.partitions or () if p.isr is None or len(p.isr) < min_isr]
        if short and (set_isr is None or set_isr < min_isr):
            findings.wait(
                f"{MIN_ISR}={min_isr} must wait until {named('partition', short)} has enough replicas in sync"
            )
        else:
            configs[MIN_ISR] = str(min_isr)
    _alter(findings, policy, topic, configs, "differs from what the canary needs")


def _is_as_good(lists: Sequence[Replicas], wanted: Sequence[Replicas], counted: Sequence[Broker]) -> bool:
    """What is there does all that the rule would do, so that moving it would gain nothing."""
    if len(lists) < len(wanted):
        return False
    ids = {broker.id for broker in counted}
    racks = racks_of(counted)
    leads = Counter(replicas[0] for replicas in lists)
    return (
        all(len(replicas) == len(wanted[0]) and ids.issuperset(replicas) for replicas in lists)
        and all(leads[broker] >= len(lists) // len(ids) for broker in ids)
        and (racks is None or all(spreads_over_racks(replicas, racks) for replicas in lists))
        and unevenness(lists, counted) <= max(1, unevenness(wanted, counted))
    )


def _why_move(lists: Sequence[Replicas], counted: Sequence[Broker], factor: int, policy: CanaryPolicy) -> str:
    ids = {broker.id for broker in counted}
    gone = sorted({broker for replicas in lists for broker in replicas} - ids)
    unled = sorted(ids - {replicas[0] for replicas in lists})
    reasons = []
    if gone:
        reasons.append(f"{named('broker', gone)} counts as gone after {policy.grace.total_seconds():g} s")
    if any(len(replicas) != factor for replicas in lists):
        reasons.append(f"{_counted(len(counted), 'broker')} ask for {_counted(factor, 'replica')} of each partition")
    if unled:
        reasons.append(f"{named('broker', unled)} leads no partition")
    if not reasons:
        reasons.append("replicas are not spread over racks and brokers as they can be")
    return "; ".join(reasons)


def _can_be_created(findings: Findings, lists: Mapping[int, Replicas], counted: Sequence[Broker]) -> bool:
    """Kafka refuses a partition all of whose replicas are stopped."""
    live = {broker.id for broker in counted if broker.is_live}
    dark = [p for p, replicas in lists.items() if live.isdisjoint(replicas)]
    if dark:
        findings.wait(f"{named('partition', dark)} cannot be created while none of its brokers is up")
    return not dark


def _elect(findings: Findings, policy: CanaryPolicy, topic: Topic, brokers: Sequence[Broker]) -> None:
    elections = preferred_elections(topic, brokers)
    if elections.possible:
        findings.actions.append(
            ElectLeaders(
                cause=CANARY,
                why=f"{named('partition', elections.possible)}: another broker leads than the first replica, "
                "which is up and in sync",
                topic=policy.topic,
                partitions=elections.possible,
            )
        )
    for partition, reason in elections.impossible.items():
        findings.wait(f"partition {partition} of {policy.topic} keeps its leader: {reason}")


def _wanted_configs(findings: Findings, policy: CanaryPolicy, *, min_isr: int) -> dict[str, str]:
    """All configs of a new topic: our defaults, the policy over them, and what nobody may change over both."""
    configs = {**DEFAULT_CONFIGS, **policy.configs}
    if configs["cleanup.policy"] != "delete":
        findings.reject(f"cleanup.policy={configs['cleanup.policy']} is not used: probes have no key; it stays delete")
        configs["cleanup.policy"] = "delete"
    if MIN_ISR in policy.configs and policy.configs[MIN_ISR] != str(min_isr):
        findings.reject(f"{MIN_ISR}={policy.configs[MIN_ISR]} is not used: it follows the replicas and is {min_isr}")
    configs[MIN_ISR] = str(min_isr)
    segment = _number(configs["segment.bytes"])
    if segment is None:
        findings.reject(f"segment.bytes={configs['segment.bytes']} is no number; {LEAST_SEGMENT_BYTES} is used")
        configs["segment.bytes"] = str(LEAST_SEGMENT_BYTES)
    elif segment < LEAST_SEGMENT_BYTES:
        findings.reject(f"segment.bytes={segment} is less than Kafka 4 takes; {LEAST_SEGMENT_BYTES} is used")
        configs["segment.bytes"] = str(LEAST_SEGMENT_BYTES)
    return configs


def _changed_configs(findings: Findings, policy: CanaryPolicy, topic: Topic) -> dict[str, str]:
    """Configs that differ, without min ISR, which has a step of its own."""
    if topic.configs is None:
        findings.wait(f"the configs of {policy.topic} could not be read")
        return {}
    factor = len(topic.partitions[0].replicas or ()) if topic.partitions else 1
    wanted = _wanted_configs(findings, policy, min_isr=max(1, factor - 1))
    del wanted[MIN_ISR]
    return {key: value for key, value in wanted.items() if topic.configs.get(key) != value}


def _alter(findings: Findings, policy: CanaryPolicy, topic: Topic, configs: Mapping[str, str], because: str) -> None:
    if not configs:
        return
    present = topic.configs or {}
    told = ", ".join(f"{key} is {present.get(key, 'not set')}" for key in sorted(configs))
    findings.actions.append(
        AlterTopicConfig(
            cause=CANARY, why=f"{told}: {because}", topic=policy.topic, configs=dict(sorted(configs.items()))
        )
    )


def _hands_off(findings: Findings, policy: CanaryPolicy, *, exists: bool) -> Findings:
    """Without the right to manage topics: say what would be done, and probe what is there."""
    kept = Findings(CANARY, rejected=findings.rejected, waiting=findings.waiting)
    if not exists:
        kept.wait(f"topic {policy.topic} does not exist, and manage_topic is off: create it by hand")
    elif findings.actions:
        told = "; ".join(f"{action.kind} ({action.why})" for action in findings.actions)
        kept.wait(f"manage_topic is off, so what is there is probed and this is left undone: {told}")
    return kept


def _numbered(lists: Mapping[int, Replicas]) -> dict[PartitionId, tuple[BrokerId, ...]]:
    return {PartitionId(number): replicas for number, replicas in lists.items()}


def _number(value: str | None) -> int | None:
    text = (value or "").strip()
    return int(text) if text.isascii() and text.isdecimal() else None


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
