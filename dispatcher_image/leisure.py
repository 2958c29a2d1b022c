"""How much of its time a thread has nothing to do: whether more concurrency could help it.

A loop that computes all the time gains nothing from more connections; one that waits does. Time in which the thread
could run but another one had its processor is not leisure, so the scheduler's own account is asked
(`/proc/thread-self/schedstat`: nanoseconds on a processor, nanoseconds waiting for one). Where there is no such file
the processor time alone must do.
"""

from __future__ import annotations

import contextlib
import time
from typing import BinaryIO


class Leisure:
    """Belongs to the thread that made it."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        with contextlib.suppress(OSError):
            self._file = open("/proc/thread-self/schedstat", "rb", buffering=0)  # noqa: PTH123, SIM115  # kept open
        self._seen = time.monotonic(), self._occupied_s()

    def share(self) -> float:
        """Idle time since the last call ÷ time since the last call, from 0 to 1."""
        now, occupied = time.monotonic(), self._occupied_s()
        before, occupied_before = self._seen
        self._seen = now, occupied
        if now <= before:
            return 0.0
        return min(1.0, max(0.0, 1.0 - (occupied - occupied_before) / (now - before)))

    def _occupied_s(self) -> float:
        if self._file is not None:
            try:
                self._file.seek(0)
                running, waiting, *_ = self._file.read(128).split()
                return (int(running) + int(waiting)) / 1e9
            except (OSError, ValueError):
                self._file = None
        return time.thread_time()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
