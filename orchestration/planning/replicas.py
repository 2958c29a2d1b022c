"""How many replicas a dispatcher needs: clamp(ceil(lag / lag-threshold), min-scale, min(max-scale, partitions)).

Each subscription asks for its own number and the neediest decides. More at once; fewer only when the last resize is
a cooldown ago, because every resize costs a rebalance. An unknown lag asks for the size there is: it is no zero. More
replicas than partitions would be idle members of the consumer groups
(https://kafka.apache.org/documentation/#intro_consumers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from eventing.channels import KafkaChannel
from orchestration.planning.documents import format_time
from orchestration.planning.snapshot import GroupLag, PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many replicas, and why."""

    replicas: int
    why: str
    waiting: str | None = None
    """Why it is not (yet) another number."""


def total_lag(group: GroupLag | None, partitions: int) -> int | None:
    """Records that a group has still to read; None where any of its partitions is unknown.

    A negative lag means that the log is shorter than the commit, as after a topic was made anew: as good as unknown.
    """
    if group is None:
        return None
    total = 0
    for number in range(partitions):
        lag = group.partitions.get(PartitionId(number))
        if lag is None or lag < 0:
            return None
        total += lag
    return total


def bounds(channel: KafkaChannel, partitions: int) -> tuple[int, int]:
    """Least and most replicas. Where min-scale is above the most, the most wins."""
    most = partitions if channel.max_scale is None else min(channel.max_scale, partitions)
    return min(channel.min_scale, most), most


def decide_size(
    channel: KafkaChannel,
    *,
    partitions: int,
    lags: Mapping[str, int | None],
    current: int | None,
    last_resize: datetime | None,
    now: datetime,
) -> Size:
    """The number of replicas of a channel's dispatcher.

    Args:
        channel: For its bounds, threshold and cooldown.
        partitions: Of its topic.
        lags: Records by subscription; None: unknown.
        current: Replicas asked for at present; None: there is no Deployment.
        last_resize: When `current` was set; None: not known, so that no cooldown is known to have passed.
        now: When the lags were read.
    """
    least, most = bounds(channel, partitions)
    asked, why = 0, "there are no subscriptions" if not lags else "no subscription lags behind"
    for uid, lag in sorted(lags.items()):
        if lag is None:
            continue
        replicas = -(-lag // channel.lag_threshold)
        if replicas > asked:
            asked = replicas
            why = f"subscription {uid} lags {lag} records behind, at {channel.lag_threshold} per replica"
    wanted = max(least, min(asked, most))
    if asked > most:
        why += f"; {most} is the most ({partitions} partitions, max-scale {_or_none(channel.max_scale)})"
    elif asked < least:
        why += f"; {least} is the least (min-scale {channel.min_scale})"

    unknown = sorted(uid for uid, lag in lags.items() if lag is None)
    if current is None:
        if unknown and wanted == 0:
            # Unknown is not zero: whether events wait is not known, so somebody looks after them.
            return Size(replicas=min(1, most), why=f"the lag of subscription {unknown[0]} is not known yet")
        return Size(replicas=wanted, why=why)
    if wanted > current:
        return Size(replicas=wanted, why=why)
    if unknown:
        return Size(
            replicas=current,
            why="the lag is unknown, so the size stays",
            waiting=f"the lag of subscription {unknown[0]} is unknown; it stays at {_replicas(current)}",
        )
    if wanted == current:
        return Size(replicas=current, why=why)
    waiting = _cooldown(channel, last_resize, now)
    if waiting is not None:
        return Size(replicas=current, why="cooldown", waiting=f"{_replicas(wanted)} would do; {waiting}")
    return Size(replicas=wanted, why=why)


def _cooldown(channel: KafkaChannel, last_resize: datetime | None, now: datetime) -> str | None:
    """Why there may not be fewer replicas yet; None when there may."""
    if last_resize is None:
        return "it is not known when the size was last changed, so it stays"
    if now - last_resize >= channel.cooldown:
        return None
    return f"the size stays for {channel.cooldown.total_seconds():g} s after {format_time(last_resize)}"


def _replicas(number: int) -> str:
    return "1 replica" if number == 1 else f"{number} replicas"


def _or_none(value: int | None) -> str:
    return "not set" if value is None else str(value)
