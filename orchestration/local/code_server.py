"""Dagster's code server, with runs that start warm.

    python -m orchestration.local.code_server -h 127.0.0.1 -p 4000 -m orchestration.definitions …

The arguments are those of `dagster api grpc`, and the launcher is Dagster's default one. That one starts a new
interpreter for every run, which imports Dagster and this project anew: 3 s of a core, twice for each new channel, on a
machine of two cores that has other things to do. Here runs are forked from a process that has imported everything and
done nothing else, Python's own `forkserver`: it has no threads and no connections that a fork could tear.

Only the choice of the start method is replaced, in the one module of Dagster that makes it (`dagster._grpc.server`,
pinned by the lock file); tests/orchestration/test_code_server.py sees that it is still made there. In a cluster runs
are pods, and this module is not used.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import sys
from typing import Any

PRELOADED = [
    "__main__",
    # What a run of this location imports, in the order of its cost.
    "dagster._grpc.server",
    "dagster._core.storage.runs.sqlite",
    "dagster._core.storage.event_log.sqlite",
    "dagster._core.storage.schedules.sqlite",
    "dagster._core.storage.sqlite_storage",
    "dagster._core.launcher.default_run_launcher",
    "dagster._core.run_coordinator",
    "dagster._core.secrets",
    "dotenv",
    "fsspec.implementations.local",
    "upath.implementations.local",
    "watchdog.observers.polling",
    "orchestration.definitions",
    "orchestration.adapters.kafka_admin",
    "orchestration.adapters.registry_folder",
    "orchestration.adapters.local_workloads",
]


class ForkedStarts:
    """Stands for the module `multiprocessing` where Dagster asks it how to start processes."""

    def get_context(self, method: str | None = None) -> multiprocessing.context.ForkServerContext:
        assert method == "spawn", f"Dagster asked for {method!r}, and no longer for spawn"
        return multiprocessing.get_context("forkserver")

    def __getattr__(self, name: str) -> Any:
        return getattr(multiprocessing, name)


def main(arguments: list[str]) -> None:
    """Be `dagster api grpc` with these arguments."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    # It imports while this process does; by the time of the first run it is ready.
    multiprocessing.forkserver.ensure_running()
    from dagster._cli import main as dagster  # noqa: PLC0415  # only here: children of the fork server import this too
    from dagster._grpc import server  # noqa: PLC0415

    server.multiprocessing = ForkedStarts()  # type: ignore[assignment, attr-defined]
    sys.argv = ["dagster", "api", "grpc", *arguments]
    dagster()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(sys.argv[1:])
