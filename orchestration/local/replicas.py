"""Which processes to start and to stop: the decision of the local controller, without clock and processes.

Desired Deployments and the replicas that exist go in, actions come out, as in Kubernetes' Deployment and ReplicaSet
controllers and its kubelet (restart in place with back-off). A replica is one process and its successors after crashes;
it keeps its name, slot and log.

All times are seconds of one monotonic clock.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SURGE = 1
"""Replicas beyond the desired number while a new revision replaces an old one: a laptop has little to spare."""

ROLLOUT_WAIT_S = 60.0
"""A new replica that has run for this long without ending, ready or not, is good enough to replace an old one.
Without a bound, a new revision that becomes ready only when the old one has gone would never take over."""

FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
STABLE_S = 1.0
"""A replica that was ready for this long before it ended did not fail at starting: its back-off begins anew, so that a
process that somebody kills again and again is back at once each time."""

EXIT_CONFIG = 78
"""The program says that its configuration is wrong (design §4.2): a restart alone will not mend it."""


class Phase(enum.Enum):
    """Where a replica is in its life."""

    RUNNING = "running"
    WAITING = "waiting"
    """It has ended and will be started again after its back-off."""
    STOPPING = "stopping"
    """It was told to end; nothing more is decided about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """What a Deployment asks for."""

    replicas: int
    revision: str
    """Changes when, and only when, the pod template does."""
    exclusive: bool = False
    """Two revisions, or two replicas, cannot run side by side: they would claim the same fixed port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica as observed."""

    id: str
    revision: str
    phase: Phase
    since: float
    """When it entered the phase."""
    ready: bool = False
    failures: int = 0
    """Ends in a row without a stable time between them."""
    exit_code: int | None = None
    """Of the last end; negative for a signal."""


@dataclass(frozen=True, slots=True)
class Create:
    """Make one more replica of this Deployment and start it."""

    deployment: str
    revision: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Start this replica, which has ended, again."""

    replica: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End this replica and forget it."""

    replica: str
    why: str


Action = Create | Restart | Stop


def backoff_s(failures: int, exit_code: int | None) -> float:
    """How long to wait before a replica that has ended is started again."""
    if exit_code == EXIT_CONFIG:
        return LONGEST_BACKOFF_S
    if failures <= 0:
        return 0.0
    # The exponent is bounded before it is used: failures can grow for days.
    return min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 16))


def failures_after_end(failures: int, ready_for_s: float | None) -> int:
    """The count after one more end; `ready_for_s` is how long the replica had been ready, None when it was not."""
    stable = ready_for_s is not None and ready_for_s >= STABLE_S
    return 1 if stable else failures + 1


def decide(desired: Mapping[str, Desired], replicas: Mapping[str, Sequence[Replica]], now: float) -> list[Action]:
    """What to do now, for all Deployments by their key; empty when all is as desired.

    Stops come before starts within a Deployment: they free ports and memory. Equal inputs give equal actions.
    """
    actions: list[Action] = []
    for key in sorted(desired.keys() | replicas.keys()):
        actions += _decide_one(key, desired.get(key), replicas.get(key, ()), now)
    return actions


def _decide_one(key: str, desired: Desired | None, replicas: Sequence[Replica], now: float) -> list[Action]:
    kept = [r for r in replicas if r.phase is not Phase.STOPPING]
    if desired is None or desired.replicas <= 0:
        why = "not wanted any more" if desired is None else "scaled to 0"
        return [Stop(r.id, why) for r in sorted(kept, key=_stop_order)]

    wanted = 1 if desired.exclusive else desired.replicas
    current = [r for r in kept if r.revision == desired.revision]
    old = [r for r in kept if r.revision != desired.revision]

    surplus = sorted(current, key=_stop_order)[: max(0, len(current) - wanted)]
    stops = [Stop(r.id, f"scaled to {wanted}") for r in surplus]
    current = [r for r in current if r not in surplus]

    retired = old if desired.exclusive else _retired(current, old, wanted, now)
    stops += [Stop(r.id, "replaced by a new revision") for r in sorted(retired, key=_stop_order)]

    starts: list[Action] = [
        Restart(r.id)
        for r in sorted(current, key=lambda r: r.id)
        if r.phase is Phase.WAITING and now >= r.since + backoff_s(r.failures, r.exit_code)
    ]
    missing = max(0, wanted - len(current))
    if desired.exclusive:
        # The port is free only when every process that may hold it has gone.
        missing = 0 if len(replicas) > len(current) else missing
    else:
        missing = min(missing, max(0, wanted + SURGE - len(current) - (len(old) - len(retired))))
    starts += [Create(key, desired.revision)] * missing
    return [*stops, *starts]


def _retired(current: Sequence[Replica], old: Sequence[Replica], wanted: int, now: float) -> list[Replica]:
    """Replicas of old revisions that can go without leaving fewer than `wanted` that work."""
    working = [r for r in old if r.phase is Phase.RUNNING and r.ready]
    idle = [r for r in old if r not in working]
    took_over = sum(r.phase is Phase.RUNNING and (r.ready or now - r.since >= ROLLOUT_WAIT_S) for r in current)
    dispensable = max(0, took_over + len(working) - wanted)
    return [*idle, *sorted(working, key=_stop_order)[:dispensable]]


def _stop_order(replica: Replica) -> tuple[bool, bool, float, str]:
    """Who goes first: what does not run, what is not ready, then the youngest; the id decides a tie."""
    return (replica.phase is Phase.RUNNING, replica.ready, -replica.since, replica.id)
