"""The processes of the local controller, kept by circus: spawned in sessions of their own, logged to rotating files,
stopped with grace, reaped.

Circus restarts processes too, but not with a back-off, nor does it know readiness or revisions; that is decided in
`replicas.py`, and circus is told each single step: one watcher for each process, which is never respawned. Its control
and event sockets are `inproc`: no port, no file.

While an arbiter lives, it waits for *any* child of this process (`waitpid(-1)`): nothing else here may start processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from circus.arbiter import Arbiter
from circus.stream import FileStream
from tornado.ioloop import IOLoop

from orchestration.local.tether import tethered

LOG_BYTES = 10 * 1024 * 1024
LOG_FILES = 3  # besides the current one: a replica's logs take 40 MB at most
READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """What to run."""

    name: str
    """Unique among all processes that were ever started here."""
    command: Sequence[str]
    env: Mapping[str, str]
    working_dir: Path
    log: Path


class Processes:
    """All processes of this controller; `on_end(name, exit_code)` is called for each that ends by itself.

    Made and used inside a running asyncio loop, in the main thread.
    """

    def __init__(self, on_end: Callable[[str, int], None]) -> None:
        self._on_end = on_end
        self._arbiter = Arbiter(
            [], "inproc://sluice-control", "inproc://sluice-events", loop=IOLoop.current(), check_delay=-1
        )
        # Circus refuses a command while another one is under way, instead of letting it wait.
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        await self._arbiter.start()

    async def start(self, spec: ProcessSpec) -> int:
        """Start it and return its pid. Its end, however early, is told by `on_end`."""
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        program, *arguments = tethered(list(spec.command))
        pids: list[int] = []

        def spawned(*, pid: int, **_: object) -> bool:
            pids.append(pid)
            return True

        hooks: dict[str, tuple[Callable[..., bool], bool]] = {
            "after_spawn": (spawned, True),
            "before_reap": (_drain, True),
            "after_reap": (self._reaped, True),
        }
        log = {"stream": FileStream(filename=str(spec.log), max_bytes=LOG_BYTES, backup_count=LOG_FILES)}
        async with self._turn:
            watcher = self._arbiter.add_watcher(
                spec.name,
                program,
                args=arguments,
                env=dict(spec.env),
                working_dir=str(spec.working_dir),
                stdout_stream=log,
                stderr_stream=log,
                respawn=False,
                singleton=True,
                hooks=hooks,
                loop=IOLoop.current(),
            )
            await self._arbiter.start_watcher(watcher)
        # Not from the watcher: the process may have ended and been reaped already.
        return pids[0]

    def reap(self) -> None:
        """Notice the processes that have ended; call it a few times a second."""
        self._arbiter.reap_processes()

    async def stop(self, name: str, grace_s: float) -> None:
        """End the process and what it has started: SIGTERM, after `grace_s` SIGKILL. Returns when all of it is gone."""
        watcher = self._arbiter.get_watcher(name)
        family: list[psutil.Process] = []
        for process in watcher.get_active_processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                family += psutil.Process(process.pid).children(recursive=True)
            await watcher.kill_process(process, graceful_timeout=grace_s)
        for orphan in family:
            # psutil compares start times: a pid that was given to another process meanwhile is not signalled.
            with contextlib.suppress(psutil.NoSuchProcess):
                orphan.kill()
        await self.forget(name)

    async def forget(self, name: str) -> None:
        """Let go of a process that has ended: its log is closed."""
        async with self._turn:
            watcher = self._arbiter.get_watcher(name)
            await watcher.stop()
            # Circus ends a command in a callback of the loop: give it its turn before the next command.
            await asyncio.sleep(0)
            await self._arbiter.rm_watcher(name, nostop=True)
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Let go of circus; every process must have been stopped before."""
        await self._arbiter.stop()

    def _reaped(self, *, watcher: Any, exit_code: int | None, **_: object) -> bool:
        self._on_end(watcher.name, -1 if exit_code is None else exit_code)
        return True


def _drain(*, watcher: Any, process_pid: int, **_: object) -> bool:
    """Move what the process wrote last from its pipes to its log: circus closes them as soon as it has reaped it."""
    process = watcher.processes.get(process_pid)
    redirector = watcher.stream_redirector
    if process is None or redirector is None:
        return True
    for name, pipe in redirector.get_process_pipes(process):
        if pipe.closed:
            continue
        descriptor = pipe.fileno()
        os.set_blocking(descriptor, False)
        # A grandchild may hold the pipe open: then there is no end of file, but nothing to read either.
        with contextlib.suppress(BlockingIOError):
            while data := os.read(descriptor, READ_BYTES):
                redirector.redirect[name]({"data": data, "pid": process_pid, "name": name})
        redirector.remove_fd(descriptor)
    return True
