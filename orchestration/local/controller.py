"""The local controller: makes the processes of this machine what the Deployments in the workload folder say.

    python -m orchestration.local.controller        (SLUICE_HOME says where the folder is)

Observe (files, processes, probes) → decide (`replicas.decide`, pure) → act, several times a second. Its processes end
with it, so after a restart it begins with none and starts what is desired; nothing is taken over and nothing is left
behind. It writes what runs to the status files and the scrape targets to `targets.json`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eventing.errors import SluiceError
from orchestration.local import probes, replicas
from orchestration.local.pod_template import PodTemplate, Probe, parse_deployment
from orchestration.local.ports import LOOPBACK, free_port, give_back, is_free
from orchestration.local.processes import Processes, ProcessSpec
from orchestration.local.replicas import Phase
from orchestration.local.workload_files import JsonObject, Key, WorkloadFiles, to_json, write_atomically

log = logging.getLogger("sluice.controller")

TICK_S = 0.1
LAST_WORDS_BYTES = 2000
LAST_WORDS_CHARACTERS = 300
STOP_STAGES = (("dagster",), ("receiver",), ("dispatcher", "canary"))
"""Components in the order in which they are stopped; all others come last. Who decides goes first, or it would start
again what stops; then nothing new is accepted; dispatchers can still reach their subscribers while they drain."""

TARGET_LABELS = {
    "app.kubernetes.io/component": "component",
    "sluice.dev/channel": "channel",
    "sluice.dev/channel-namespace": "namespace",
}


@dataclass(slots=True, kw_only=True, eq=False)
class Running:
    """A replica with everything that only the shell needs to know."""

    id: str
    template: PodTemplate
    slot: int
    """The smallest number that no other replica of the Deployment has: names the log, so that logs stay few."""
    log: Path
    phase: Phase = Phase.RUNNING
    since: float = 0.0
    attempt: int = 0
    """Starts so far; restarts are one fewer."""
    pid: int | None = None
    ports: dict[str, int] = field(default_factory=dict)
    ready_since: float | None = None
    failures: int = 0
    exit_code: int | None = None
    last_words: str = ""
    ended_at: str = ""
    starting: asyncio.Task[None] | None = None
    probing: asyncio.Task[None] | None = None

    @property
    def process_name(self) -> str:
        return f"{self.id}.{self.attempt}"

    def observed(self) -> replicas.Replica:
        return replicas.Replica(
            id=self.id,
            revision=self.template.revision,
            phase=self.phase,
            since=self.since,
            ready=self.ready_since is not None,
            failures=self.failures,
            exit_code=self.exit_code,
        )


class Controller:
    """See the module."""

    def __init__(self, home: Path, environ: dict[str, str], working_dir: Path) -> None:
        self._home = home
        self._files = WorkloadFiles(home)
        self._environ = environ
        self._working_dir = working_dir
        self._processes: Processes
        self._running: dict[str, Running] = {}
        self._templates: dict[Key, PodTemplate] = {}
        self._generations: dict[Key, int] = {}
        self._leaving: set[Key] = set()
        self._problems: dict[Key, str] = {}
        self._signature = ""
        self._written: dict[Key, JsonObject] = {}
        self._targets: bytes = b""
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Until `stop` is called or SIGTERM or SIGINT comes; then everything that runs is stopped."""
        self._processes = Processes(self._ended)
        await self._processes.open()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # After circus, which has installed its own handlers.
            loop.add_signal_handler(number, self.stop)
        while not self._stopping.is_set():
            self._tick()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), TICK_S)
        for stage in range(len(STOP_STAGES) + 1):
            while any(_stop_stage(r.template) <= stage for r in self._running.values()):
                self._tick(stopped_stages=stage + 1)
                await asyncio.sleep(TICK_S)
        self._write_status()
        await self._processes.close()

    def stop(self) -> None:
        self._stopping.set()

    # -- observe, decide, act ---------------------------------------------------------------------------------------

    def _tick(self, *, stopped_stages: int = 0) -> None:
        self._read_manifests()
        self._processes.reap()
        now = time.monotonic()
        desired = {
            template.key: replicas.Desired(
                replicas=template.replicas, revision=template.revision, exclusive=template.exclusive
            )
            for key, template in self._templates.items()
            if key not in self._leaving and _stop_stage(template) >= stopped_stages
        }
        observed: dict[str, list[replicas.Replica]] = {}
        for running in self._running.values():
            observed.setdefault(running.template.key, []).append(running.observed())
        for action in replicas.decide(desired, observed, now):
            self._apply(action)
        self._forget_deleted()
        self._write_status()

    def _read_manifests(self) -> None:
        signature = self._files.signature("deployments")
        if signature == self._signature:
            return
        self._signature = signature
        templates: dict[Key, PodTemplate] = {}
        self._leaving, self._generations, self._problems = set(), {}, {}
        for key in self._files.keys("deployments"):
            try:
                stored = self._files.read("deployments", key)
                if stored is None:
                    continue
                metadata = stored["object"]["metadata"]
                self._generations[key] = metadata["generation"]
                if "deletionTimestamp" in metadata:
                    self._leaving.add(key)
                templates[key] = parse_deployment(stored["object"])
            except (SluiceError, ValueError, KeyError, TypeError, AttributeError) as problem:
                # The adapter refuses such a manifest; an editor does not. What runs goes on as it was.
                self._problems[key] = f"the manifest cannot be used: {problem}"
                self._generations.setdefault(key, 0)
                if key in self._templates:
                    templates[key] = self._templates[key]
        self._templates = templates

    def _apply(self, action: replicas.Action) -> None:
        match action:
            case replicas.Create(deployment, _):
                self._create(next(t for t in self._templates.values() if t.key == deployment))
            case replicas.Restart(replica):
                self._launch(self._running[replica])
            case replicas.Stop(replica, why):
                self._stop_replica(self._running[replica], why)

    def _create(self, template: PodTemplate) -> None:
        taken = {r.slot for r in self._running.values() if r.template.key == template.key}
        slot = next(n for n in range(len(taken) + 1) if n not in taken)
        replica = Running(
            id=f"{template.name}-{template.revision[:6]}-{secrets.token_hex(3)}",
            template=template,
            slot=slot,
            log=self._home / "logs" / f"{template.namespace}.{template.name}.{slot}.log",
        )
        self._running[replica.id] = replica
        self._launch(replica)

    def _launch(self, replica: Running) -> None:
        template = replica.template
        previous = replica.process_name if replica.attempt else None
        for port in template.ports:
            known = replica.ports.get(port.name)
            if port.fixed is not None:
                replica.ports[port.name] = port.fixed
            elif known is None or not is_free(known):
                replica.ports[port.name] = free_port()
        replica.attempt += 1
        replica.phase, replica.since = Phase.RUNNING, time.monotonic()
        replica.ready_since = None
        env = {**self._environ, **template.environment(replica.id, replica.ports)}
        spec = ProcessSpec(
            name=replica.process_name,
            command=template.argv(env),
            env=env,
            working_dir=Path(template.working_dir or self._working_dir),
            log=replica.log,
        )
        log.info("replica.start replica=%s attempt=%d", replica.id, replica.attempt)
        replica.starting = self._spawn_task(self._start(replica, spec, previous))

    async def _start(self, replica: Running, spec: ProcessSpec, previous: str | None) -> None:
        if previous is not None:
            await self._processes.forget(previous)
        pid = await self._processes.start(spec)
        # It may have ended already, or be wanted no more.
        if replica.phase is Phase.RUNNING:
            replica.pid = pid
            replica.probing = self._spawn_task(self._probe(replica))

    def _stop_replica(self, replica: Running, why: str) -> None:
        log.info("replica.stop replica=%s reason=%s", replica.id, why)
        alive = replica.phase is Phase.RUNNING
        replica.phase, replica.since, replica.ready_since = Phase.STOPPING, time.monotonic(), None
        self._spawn_task(self._stop(replica, alive=alive))

    async def _stop(self, replica: Running, *, alive: bool) -> None:
        if replica.starting is not None:
            await replica.starting
        self._stop_probing(replica)
        if alive:
            await self._processes.stop(replica.process_name, replica.template.grace_s)
        else:
            await self._processes.forget(replica.process_name)
        for port in replica.ports.values():
            give_back(port)
        del self._running[replica.id]

    def _ended(self, process_name: str, exit_code: int) -> None:
        """A process has ended; called while reaping, in the loop's thread."""
        replica = next((r for r in self._running.values() if r.process_name == process_name), None)
        if replica is None or replica.phase is not Phase.RUNNING:
            return
        now = time.monotonic()
        ready_for = None if replica.ready_since is None else now - replica.ready_since
        replica.failures = replicas.failures_after_end(replica.failures, ready_for)
        replica.phase, replica.since, replica.exit_code = Phase.WAITING, now, exit_code
        replica.pid, replica.ready_since = None, None
        replica.last_words, replica.ended_at = _last_words(replica.log), _timestamp()
        self._stop_probing(replica)
        log.warning("replica.end replica=%s code=%d failures=%d", replica.id, exit_code, replica.failures)

    # -- probes -----------------------------------------------------------------------------------------------------

    async def _probe(self, replica: Running) -> None:
        """Follow one process: set `ready_since`, and end what is not alive any more."""
        template = replica.template
        watches: list[Coroutine[Any, Any, None]] = []
        if template.readiness is None:
            replica.ready_since = time.monotonic()
        else:
            watches.append(self._watch(replica, template.readiness, self._set_ready, healthy=False))
        if template.liveness is not None:
            watches.append(self._watch(replica, template.liveness, self._set_alive, healthy=True))
        await asyncio.gather(*watches)

    async def _watch(
        self,
        replica: Running,
        probe: Probe,
        tell: Callable[[Running, bool], None],
        *,
        healthy: bool,
    ) -> None:
        await asyncio.sleep(0.0 if not healthy else probe.initial_delay_s)
        verdict = probes.Verdict(healthy=healthy)
        while True:
            success = await probes.ask(replica.ports[probe.port], probe.path, probe.timeout_s)
            verdict = probes.judge(verdict, probe, success=success)
            tell(replica, verdict.healthy)
            eager = probe is replica.template.readiness and not verdict.healthy
            await asyncio.sleep(min(probe.period_s, probes.EAGER_PERIOD_S) if eager else probe.period_s)

    def _set_ready(self, replica: Running, ready: bool) -> None:  # noqa: FBT001 - a callback
        if replica.phase is not Phase.RUNNING or ready == (replica.ready_since is not None):
            return
        replica.ready_since = time.monotonic() if ready else None
        log.info("replica.%s replica=%s", "ready" if ready else "unready", replica.id)

    def _set_alive(self, replica: Running, alive: bool) -> None:  # noqa: FBT001 - a callback
        if not alive and replica.pid is not None and replica.phase is Phase.RUNNING:
            log.warning("replica.hangs replica=%s", replica.id)
            # It is our child and not reaped yet, so the pid is its own. Its end is noticed as any other.
            os.kill(replica.pid, signal.SIGKILL)

    def _stop_probing(self, replica: Running) -> None:
        if replica.probing is not None:
            replica.probing.cancel()
            replica.probing = None

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish_task)
        return task

    def _finish_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            # A task that fails would leave a replica that nobody decides about: end, and be started again, clean.
            log.error("controller.broken", exc_info=problem)
            os._exit(1)

    # -- telling ----------------------------------------------------------------------------------------------------

    def _forget_deleted(self) -> None:
        for key in list(self._leaving):
            if any((r.template.namespace, r.template.name) == key for r in self._running.values()):
                continue
            with self._files.locked():
                stored = self._files.read("deployments", key)
                # Read again under the lock: it may have been declared anew meanwhile.
                if stored is not None and "deletionTimestamp" in stored["object"]["metadata"]:
                    self._files.remove("status", key)
                    self._files.remove("deployments", key)
            self._leaving.discard(key)
            self._written.pop(key, None)
            self._signature = ""

    def _write_status(self) -> None:
        for key in self._generations:
            if key in self._leaving and not self._of(key):
                continue
            told = self._status_of(key)
            if self._written.get(key) != told:
                self._written[key] = told
                # The revision only grows, over restarts too: the clock moves on.
                self._files.write("status", key, {**told, "revision": time.time_ns() // 1_000_000})
        targets = to_json(self._scrape_targets())
        if targets != self._targets:
            write_atomically(self._home / "targets.json", targets)
            self._targets = targets

    def _of(self, key: Key) -> list[Running]:
        return sorted(
            (r for r in self._running.values() if (r.template.namespace, r.template.name) == key),
            key=lambda r: (r.slot, r.id),
        )

    def _status_of(self, key: Key) -> JsonObject:
        all_of_it = self._of(key)
        kept = [r for r in all_of_it if r.phase is not Phase.STOPPING]
        template = self._templates.get(key)
        wanted = template.replicas if template else 0
        ready = sum(r.ready_since is not None for r in kept)
        updated = sum(template is not None and r.template.revision == template.revision for r in kept)
        available = template is not None and ready >= wanted
        reason = self._problems.get(key) or _why_not(kept)
        return {
            "status": {
                "replicas": len(kept),
                "readyReplicas": ready,
                "updatedReplicas": updated,
                "observedGeneration": self._generations[key],
                "conditions": [
                    {
                        "type": "Available",
                        "status": "True" if available and key not in self._problems else "False",
                        "reason": "MinimumReplicasAvailable" if available else "MinimumReplicasUnavailable",
                        "message": "" if available and key not in self._problems else reason,
                    }
                ],
            },
            "pods": [
                {
                    "name": r.id,
                    "phase": r.phase.value,
                    "pid": r.pid,
                    "ready": r.ready_since is not None,
                    "restarts": r.attempt - 1,
                    "ports": dict(r.ports),
                    "log": str(r.log),
                    "exit_code": r.exit_code,
                    "last_words": r.last_words,
                    "ended_at": r.ended_at,
                }
                for r in all_of_it
            ],
        }

    def _scrape_targets(self) -> list[JsonObject]:
        """Prometheus' file_sd form; a target for each replica that lives and has a port named `metrics`."""
        targets = []
        for replica in sorted(self._running.values(), key=lambda r: r.id):
            port = replica.ports.get("metrics")
            if port is None or replica.phase is Phase.STOPPING:
                continue
            labels = {
                ours: replica.template.labels[theirs]
                for theirs, ours in TARGET_LABELS.items()
                if theirs in replica.template.labels
            }
            labels.setdefault("component", replica.template.name)
            labels |= {"job": labels["component"], "instance": replica.id}
            targets.append({"targets": [f"{LOOPBACK}:{port}"], "labels": labels})
        return targets


def _stop_stage(template: PodTemplate) -> int:
    component = template.labels.get("app.kubernetes.io/component")
    return next((n for n, components in enumerate(STOP_STAGES) if component in components), len(STOP_STAGES))


def _why_not(kept: list[Running]) -> str:
    for replica in kept:
        if replica.failures and replica.ready_since is None:
            words = f": {replica.last_words}" if replica.last_words else ""
            return f"{replica.id} ended with status {replica.exit_code}{words} (log: {replica.log})"
    for replica in kept:
        if replica.ready_since is None:
            return f"{replica.id} is not ready yet (log: {replica.log})"
    return "no replica runs yet"


def _last_words(path: Path) -> str:
    """The last line of a log, for a message."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LAST_WORDS_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip()[:LAST_WORDS_CHARACTERS] if lines else ""


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def main() -> int:
    # By force: importing circus has configured logging already.
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr, force=True
    )
    # Circus tells each step of each process at INFO; ours are enough.
    logging.getLogger("circus").setLevel(logging.WARNING)
    home = Path(os.environ["SLUICE_HOME"]).absolute()
    # Children log line by line: a dead process keeps nothing back.
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with WorkloadFiles(home).controlling() as alone:
        if not alone:
            log.error("another controller runs for %s", home)
            return 1
        asyncio.run(Controller(home, environ, Path(__file__).parents[2]).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
