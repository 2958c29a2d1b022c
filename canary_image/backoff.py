"""How long to wait before the next try to reach Kafka or to find the topic.

The n-th wait doubles the one before, up to five minutes. After the last attempt that the configuration allows the
longest wait so far is repeated for ever: a canary that gave up would be absent just when it has something to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

LONGEST_WAIT = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """`scale` (≥ 1 ms) is the first wait, `max_attempts` (≥ 1) how many waits may grow."""

    scale: timedelta
    max_attempts: int

    def wait(self, attempt: int) -> timedelta:
        """The wait after failed attempt number `attempt`, counted from 1."""
        assert attempt >= 1, f"attempts are counted from 1, not {attempt}"
        # A million milliseconds are beyond the cap already; more would only overflow.
        doublings = min(attempt, self.max_attempts, 21) - 1
        return min(self.scale * (1 << doublings), LONGEST_WAIT)
