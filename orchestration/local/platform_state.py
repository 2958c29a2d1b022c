"""What is remembered of a running platform, and how it is found again: `$SLUICE_HOME/platform.json`.

A pid alone proves nothing, because it may have been given to another process since: the state has the start time too.
Every process of one start carries `SLUICE_INSTANCE` in its environment, so that what a crashed platform has left can be
recognised without guessing by names.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from orchestration.local.workload_files import to_json, write_atomically

INSTANCE = "SLUICE_INSTANCE"
KILL_WAIT_S = 5.0


@dataclass(slots=True, kw_only=True)
class PlatformState:
    """One start of the platform."""

    instance: str
    pid: int
    created: float
    """Start time of the process as psutil tells it."""
    phase: str
    """`starting`, `ready`, `stopping`."""
    environ: dict[str, str]
    """The wiring that its processes were given."""
    brokers: list[dict[str, object]] = field(default_factory=list)
    """`{"id", "pid", "restarts", "logs"}` of each broker of ours."""
    controller_restarts: int = 0
    problems: list[str] = field(default_factory=list)
    """What is wrong now, in words."""

    def write(self, home: Path) -> None:
        write_atomically(home / "platform.json", to_json(asdict(self)))

    def is_alive(self) -> bool:
        """Whether that very process still runs."""
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.created) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def read_state(home: Path) -> PlatformState | None:
    """The last start's state; None when there is none, or when it cannot be read."""
    try:
        return PlatformState(**json.loads((home / "platform.json").read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def own_created() -> float:
    return float(psutil.Process().create_time())


@contextmanager
def platform_lock(home: Path) -> Iterator[bool]:
    """Be the platform of this home; False when another process is. The kernel frees it when its holder ends."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "platform.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def end_leftovers(instance: str, spare: Collection[int] = ()) -> list[int]:
    """SIGKILL to every process of that instance except this one and those to `spare`; returns their pids."""
    mine = os.getpid()
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.pid != mine and process.pid not in spare and process.environ().get(INSTANCE) == instance:
                found.append(process)
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(found, timeout=KILL_WAIT_S)
    return [process.pid for process in found]
