"""How much memory a dispatcher may need: the published formula.

    bound   = base + subscriptions x partitions x max_in_flight_bytes
    request = base + subscriptions x partitions x min(max_in_flight x event bytes, max_in_flight_bytes)

One replica may have to take all partitions alone, when it is the only one left, so each is sized for that. A slot (one
partition of one subscription) never holds more than `max_in_flight` records nor `max_in_flight_bytes` bytes, whichever
comes first. For 10 subscriptions on 4 partitions with events of 10 kB this is Knative's own figure: 100 MB above base.

Requests and limits move in steps that double, because a changed one restarts the pods, and adding a subscription must
not do so each time.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024
BASE_BYTES = 96 * MIB
"""An interpreter with librdkafka and no subscription."""
LEAST_STEP = 128 * MIB
CPU_REQUEST = "100m"
"""No limit on CPU: a throttled dispatcher answers its health checks late and gets restarted for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What to write into a manifest, in bytes."""

    request: int
    limit: int


def dispatcher_memory(
    *, subscriptions: int, partitions: int, max_in_flight: int, max_in_flight_bytes: int, event_bytes: int
) -> Memory:
    """Memory of one dispatcher replica. All sizes in bytes."""
    slots = subscriptions * partitions
    expected = BASE_BYTES + slots * min(max_in_flight * event_bytes, max_in_flight_bytes)
    bound = BASE_BYTES + slots * max_in_flight_bytes
    request = stepped(expected)
    return Memory(request=request, limit=max(stepped(bound), 2 * request))


def stepped(size: int) -> int:
    """The next of 128 MiB, 256 MiB, 512 MiB, …"""
    step = LEAST_STEP
    while step < size:
        step *= 2
    return step


def mebibytes(size: int) -> str:
    """A Kubernetes quantity."""
    return f"{-(-size // MIB)}Mi"
