"""The running platform: starts Kafka, the controller and through it everything else, watches over them, stops them.

    python -m orchestration.local.platform_process [brokers]      (what `sluice up --detach` leaves running)

This process starts brokers and the controller itself and starts them again when they end; all other processes are the
controller's. Order of stopping: the controller with its workloads first, Kafka last.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import FrameType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from eventing.errors import EXIT_CONFIG, ConfigError, SluiceError, Unavailable
from orchestration.adapters.local_workloads import MANAGED_BY, LocalWorkloads
from orchestration.adapters.registry_folder import FolderRegistry
from orchestration.local import replicas
from orchestration.local.java import find_java
from orchestration.local.kafka_server import KafkaServer
from orchestration.local.platform_state import (
    INSTANCE,
    PlatformState,
    end_leftovers,
    own_created,
    platform_lock,
    read_state,
)
from orchestration.local.ports import free_port, is_free
from orchestration.local.processes import LOG_BYTES
from orchestration.local.settings import CHECKOUT, SYSTEM_NAMESPACE, LocalSettings
from orchestration.local.standing import (
    CODE_LOCATIONS,
    DAGSTER_YAML,
    PLATFORM,
    dagster_workspace,
    prometheus_yaml,
    standing_deployments,
)
from orchestration.local.tether import tethered
from orchestration.local.workload_files import JsonObject, WorkloadFiles, write_atomically

LEAST_FREE_BYTES = 1024**3  # Kafka alone preallocates tens of MB for each busy partition
EXTERNAL_KAFKA_WAIT_S = 10.0
PARTS_WAIT_S = 180.0  # imports of Dagster and its code locations take 10 to 20 s on two busy cores
CONTROLLER_START_S = 30.0
HOPELESS_RESTARTS = 5  # a part that ends so often at its start will not come up: 15 s of back-off, then say why
DAGSTER_STORAGE_WAIT_S = 120.0
CHANNELS_WAIT_S = 60.0  # after the parts: then the table is printed with what is not ready yet
CONTROLLER_STOP_S = 75.0  # longer than the longest stages of graces: receiver, dispatchers, the rest
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the last: its terminal was closed
WATCH_S = 0.5
FOLLOWED_BYTES = 64 * 1024  # of the subscriber's log at a look: more is not read by a person anyway
STABLE_S = 60.0  # a broker or controller that ran for this long may be started again at once
EXAMPLE = CHECKOUT / "examples" / "channels" / "orders.yaml"
EXAMPLE_SUBSCRIBER = "http://127.0.0.1:8090"

Say = Callable[[str], None]


class StopRequested(BaseException):
    """SIGTERM or Ctrl-C: unwinds whatever is being waited for."""


def check_machine(settings: LocalSettings) -> None:
    """What must be so before anything is started.

    Raises:
        ConfigError: naming every port that is taken, what for and how to move it; Java; disk.
    """
    problems = []
    if settings.kafka_bootstrap is None:
        find_java()
    claimed: dict[int, str] = {}
    for port, purpose, variable in settings.required_ports():
        if port in claimed:
            problems.append(f"port {port} is asked for by {claimed[port]} and by {purpose}: set {variable}")
        elif not is_free(port):
            problems.append(f"port {port} for {purpose} is taken: free it, or choose another with {variable}=…")
        claimed.setdefault(port, purpose)
    settings.home.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(settings.home).free
    if free < LEAST_FREE_BYTES:
        problems.append(f"{settings.home} has {free // 1024**2} MB free, 1024 are needed: make room or set SLUICE_HOME")
    if problems:
        raise ConfigError(problems, subject="set-up of this machine")


class Platform:
    """One start, from the checks to the last process's end.

    `ready` is called with what is not ready yet, in words; `received`, where there is a terminal, with each line that
    the sample subscriber prints from then on.
    """

    def __init__(
        self, settings: LocalSettings, say: Say, ready: Callable[[list[str]], None], received: Say | None = None
    ) -> None:
        self._settings = settings
        self._received = received
        self._say = say
        self._ready = ready
        self._files = WorkloadFiles(settings.home)
        self._registry = FolderRegistry(settings.registry)
        self._kafka: KafkaServer | None = None
        self._controller: subprocess.Popen[bytes] | None = None
        self._state = PlatformState(
            instance=uuid.uuid4().hex,
            pid=os.getpid(),
            created=own_created(),
            phase="starting",
            # Every setting, not only those that have a field: a command in another shell must plan the same.
            environ={k: v for k, v in os.environ.items() if k.startswith("SLUICE_")} | settings.environ(),
        )
        self._environ = {**os.environ, **self._state.environ, INSTANCE: self._state.instance}
        self._starts: dict[str, tuple[int, float]] = {}
        self._broker_restarts: dict[int, int] = {}

    def run(self) -> int:
        """Until SIGTERM or Ctrl-C; then all of it is stopped. Returns the exit code."""
        settings = self._settings
        with platform_lock(settings.home) as alone:
            if not alone:
                self._say("the platform runs already: `sluice status` shows it, `sluice down` stops it")
                return 1
            before = read_state(settings.home)
            if before is not None and end_leftovers(before.instance):
                self._say("ended what a platform that crashed had left running")
            check_machine(settings)
            settings.logs.mkdir(parents=True, exist_ok=True)
            handlers = {number: signal.signal(number, _request_stop) for number in STOP_SIGNALS}
            try:
                self._start()
                events = LogFollower(settings.logs / f"{SYSTEM_NAMESPACE}.sample-subscriber.0.log")
                while True:
                    self._watch()
                    for line in events.new_lines():
                        if self._received is not None:
                            self._received(line)
                    time.sleep(WATCH_S)
            except StopRequested:
                return 0
            finally:
                for number in handlers:
                    signal.signal(number, signal.SIG_IGN)
                self._stop()
                for number, handler in handlers.items():
                    signal.signal(number, handler)

    # -- starting ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        settings = self._settings
        self._state.write(settings.home)
        self._seed_registry()
        code_ports = {location: free_port() for location in CODE_LOCATIONS}
        self._write_configuration(code_ports)
        # Declared before the controller starts, so that its first look starts all of it; Dagster takes longest.
        workloads = LocalWorkloads(settings.home)
        self._forget_last_run()
        manifests = standing_deployments(settings, code_ports)
        for manifest in manifests:
            workloads.apply_deployment(manifest)
        preparing = self._prepare_dagster()
        if settings.kafka_bootstrap is None:
            self._say(f"starting Apache Kafka, {settings.brokers} broker(s)")
            self._kafka = KafkaServer(
                settings.home / "kafka", settings.brokers, settings.kafka_ports, progress=self._say
            )
            self._kafka.start()
        else:
            self._say(f"using Kafka at {settings.bootstrap}")
            _check_kafka(settings.bootstrap)
        if preparing is not None:
            self._finish(preparing, "Dagster's storage could not be prepared", DAGSTER_STORAGE_WAIT_S)
            self._dagster_marker().touch()
        self._say("starting the controller, and through it receiver, dispatchers, subscriber, recorder and Dagster")
        self._start_controller()
        self._wait_for_controller()
        names = [(m["metadata"]["namespace"], m["metadata"]["name"]) for m in manifests]
        self._wait_for_parts(names)
        late = self._wait_for_channels()
        self._state.phase = "ready"
        self._state.write(settings.home)
        self._ready(late)

    def _seed_registry(self) -> None:
        """The example channel, at the first start of this home only: what a user deletes stays deleted."""
        marker = self._settings.home / "registry-seeded"
        if marker.exists():
            return
        registry = self._settings.registry
        registry.mkdir(parents=True, exist_ok=True)
        if not any(registry.glob("*.y*ml")):
            # Only the address differs: the file stays the one that the documentation shows.
            text = EXAMPLE.read_text().replace(EXAMPLE_SUBSCRIBER, self._settings.urls["subscriber"])
            write_atomically(registry / EXAMPLE.name, text.encode())
            self._say(f"put the example channel into {registry}")
        marker.touch()

    def _write_configuration(self, code_ports: dict[str, int]) -> None:
        settings = self._settings
        write_atomically(settings.dagster_home / "dagster.yaml", DAGSTER_YAML.encode())
        write_atomically(settings.dagster_home / "workspace.yaml", dagster_workspace(code_ports).encode())
        scrape_s = float(self._environ.get("SLUICE_SCRAPE_INTERVAL_SECONDS", "5"))
        write_atomically(settings.home / "prometheus" / "prometheus.yml", prometheus_yaml(settings, scrape_s).encode())

    def _dagster_marker(self) -> Path:
        return self._settings.dagster_home / f".storage-{metadata.version('dagster')}"

    def _prepare_dagster(self) -> subprocess.Popen[bytes] | None:
        """Create or migrate Dagster's databases, once for each version, while Kafka starts; None when it was done.

        Dagster's own processes would do it, all at once, and each find the others' half-made tables.
        """
        if self._dagster_marker().exists():
            return None
        return self._run_beside("prepare-dagster", ["-m", "dagster", "instance", "migrate"])

    def _run_beside(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        """A Python program of a few seconds, logged to `<name>.log`; it ends with this process."""
        path = self._settings.logs / f"{name}.log"
        if path.exists() and path.stat().st_size > LOG_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
        with path.open("ab") as log:
            return subprocess.Popen(
                tethered([sys.executable, *arguments]),
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=CHECKOUT,
            )

    def _finish(self, process: subprocess.Popen[bytes], problem: str, limit_s: float) -> None:
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired as exc:
            raise Unavailable("platform", f"{problem} in {limit_s:.0f} s; see {self._settings.logs}") from exc
        if code != 0:
            raise Unavailable("platform", f"{problem} (status {code}); see {self._settings.logs}")

    def _forget_last_run(self) -> None:
        """Nothing runs yet: old statuses are wrong, and a deletion that was interrupted has come to its end.

        Parts of the platform are declared anew at each start; one that is not any more must not come back.
        """
        for key in self._files.keys("status"):
            self._files.remove("status", key)
        for key, stored in self._files.read_all("deployments").items():
            named = stored["object"]["metadata"]
            if "deletionTimestamp" in named or (named.get("labels") or {}).get(MANAGED_BY) == PLATFORM:
                self._files.remove("deployments", key)

    def _start_controller(self) -> None:
        # In a session of its own: Ctrl-C is for this process, which stops things in order.
        self._controller = self._run_beside("controller", ["-m", "orchestration.local.controller"])

    def _wait_for_controller(self) -> None:
        """Raises Unavailable when it does not take over the workloads in time."""
        patience = _Patience(self._say)
        while not self._files.is_controlled():
            if patience.waited_s > CONTROLLER_START_S:
                raise Unavailable("platform", f"the controller does not start; see {self._settings.logs}")
            patience.wait_for(["the controller"])
            self._watch()

    def _wait_for_parts(self, names: list[tuple[str, str]]) -> None:
        """Raises Unavailable, with each part's own words, when one does not answer in time."""
        patience = _Patience(self._say)
        while late := [name for name in names if not _is_available(self._files.read("status", name))]:
            statuses = {name: self._files.read("status", name) for name in late}
            hopeless = any(_restarts(status) >= HOPELESS_RESTARTS for status in statuses.values())
            if hopeless or patience.waited_s > PARTS_WAIT_S:
                reasons = "; ".join(f"{name[1]}: {_reason(status)}" for name, status in statuses.items())
                raise Unavailable("platform", f"not ready after {patience.waited_s:.0f} s: {reasons}")
            patience.wait_for([name for _, name in late])
            self._watch()

    def _wait_for_channels(self) -> list[str]:
        """What is not ready when the time is over, in words: somebody's broken channel must not hold up the rest.

        Dagster makes them ready, so that its runs tell from the beginning what was done and why.
        """
        patience = _Patience(self._say)
        while late := self._late():
            if patience.waited_s > CHANNELS_WAIT_S:
                return late
            patience.wait_for(sorted(each.split(":")[0] for each in late))
            self._watch()
        return []

    def _late(self) -> list[str]:
        late = []
        deployments = self._files.read_all("deployments")
        if not any(_component(stored) == "canary" for stored in deployments.values()):
            late.append("canary: not deployed yet")
        for key in deployments:
            status = self._files.read("status", key)
            if not _is_available(status):
                late.append(f"{key[1]}: {_reason(status)}")
        try:
            channels = self._registry.list_channels().channels
        except Unavailable as problem:
            return [*late, f"registry: {problem.reason}"]
        for channel in channels:
            conditions: list[JsonObject] = (channel.get("status") or {}).get("conditions") or []
            ready: JsonObject = next((c for c in conditions if c.get("type") == "Ready"), {})
            if ready.get("status") != "True":
                named = channel["metadata"]
                why = ready.get("message") or ready.get("reason") or "not reconciled yet"
                late.append(f"channel {named['namespace']}/{named['name']}: {why}")
        return late

    # -- watching ---------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Start again what has ended, with back-off, and keep the state file true."""
        problems = []
        now = time.monotonic()
        if self._controller is not None and self._controller.poll() is not None:
            problems.append(f"the controller ended with status {self._controller.returncode}")
            if self._is_due("controller", now):
                self._state.controller_restarts += 1
                self._start_controller()
        ended = []
        if self._kafka is not None:
            ended = [broker for broker in self._kafka.broker_ids if broker not in self._kafka.pids]
            problems += [f"Kafka broker {broker} has ended; its log: {self._kafka.logs(broker)}" for broker in ended]
        self._tell(problems)
        for broker in ended:
            if self._is_due(f"broker {broker}", now):
                self._start_broker(broker)

    def _start_broker(self, broker: int) -> None:
        assert self._kafka is not None
        self._broker_restarts[broker] = self._broker_restarts.get(broker, 0) + 1
        try:
            self._kafka.start_broker(broker)
        except Unavailable as problem:
            self._say(problem.reason)
            return
        self._say(f"Kafka broker {broker} is back")
        self._tell([])

    def _tell(self, problems: list[str]) -> None:
        """Put what is so into the state file, and new problems to the person."""
        if self._kafka is not None:
            self._state.brokers = [
                {
                    "id": broker,
                    "pid": self._kafka.pids.get(broker),
                    "restarts": self._broker_restarts.get(broker, 0),
                    "logs": str(self._kafka.logs(broker) / "server.log"),
                }
                for broker in self._kafka.broker_ids
            ]
        for words in problems:
            if words not in self._state.problems:
                self._say(words)
        self._state.problems = problems
        if read_state(self._settings.home) != self._state:
            self._state.write(self._settings.home)

    def _is_due(self, part: str, now: float) -> bool:
        """Whether a part that has ended may be started again; counts it as a start when it may."""
        failures, started = self._starts.get(part, (0, -math.inf))
        if now - started < replicas.backoff_s(failures, None):
            return False
        self._starts[part] = (1 if now - started > STABLE_S else failures + 1, now)
        return True

    # -- stopping ---------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._state.phase = "stopping"
        self._state.write(self._settings.home)
        if self._controller is not None and self._controller.poll() is None:
            self._say("stopping Dagster, receiver, dispatchers and the rest")
            self._controller.send_signal(signal.SIGTERM)
            try:
                self._controller.wait(CONTROLLER_STOP_S)
            except subprocess.TimeoutExpired:
                self._controller.kill()
                self._controller.wait()
        # Runs that Dagster had started have sessions of their own.
        end_leftovers(self._state.instance, spare=self._kafka.pids.values() if self._kafka else ())
        if self._kafka is not None:
            self._say("stopping Kafka")
            self._kafka.stop()
        (self._settings.home / "platform.json").unlink(missing_ok=True)
        self._say("stopped; the data stays in " + str(self._settings.home))


class LogFollower:
    """New lines of a log from now on, over its rotations."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = path.stat().st_size if path.exists() else 0

    def new_lines(self) -> list[str]:
        """Whole lines only: what is not ended yet comes the next time."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._position:
                    self._position = 0
                file.seek(self._position)
                whole = file.read(FOLLOWED_BYTES).rpartition(b"\n")[0]
        except FileNotFoundError:
            return []
        self._position += len(whole) + 1 if whole else 0
        return whole.decode(errors="replace").splitlines()


class _Patience:
    """Waits in small steps and says now and then, ever more rarely, for what."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._began = time.monotonic()
        self._tell_after_s = 5.0

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self._began

    def wait_for(self, names: list[str]) -> None:
        if self.waited_s >= self._tell_after_s:
            self._tell_after_s *= 2
            self._say(f"waiting for {', '.join(names)} ({self.waited_s:.0f} s)")
        time.sleep(0.2)


def _request_stop(_number: int, _frame: FrameType | None) -> None:
    raise StopRequested


def _check_kafka(bootstrap: str) -> None:
    try:
        AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=EXTERNAL_KAFKA_WAIT_S)
    except KafkaException as problem:
        raise Unavailable(
            "Kafka", f"nothing answers at {bootstrap} (KAFKA_BOOTSTRAP_SERVERS): {problem.args[0].str()}"
        ) from problem


def _component(stored: JsonObject) -> str | None:
    labels = stored["object"]["metadata"].get("labels") or {}
    return labels.get("app.kubernetes.io/component")


def _is_available(status: JsonObject | None) -> bool:
    return any(c["type"] == "Available" and c["status"] == "True" for c in _conditions(status))


def _reason(status: JsonObject | None) -> str:
    return next((c["message"] for c in _conditions(status) if c["type"] == "Available"), "not started yet")


def _restarts(status: JsonObject | None) -> int:
    return 0 if status is None else max((pod["restarts"] for pod in status["pods"]), default=0)


def _conditions(status: JsonObject | None) -> list[JsonObject]:
    return [] if status is None else status["status"]["conditions"]


def main() -> int:
    """The detached platform: progress goes to stderr, which `sluice up --detach` has pointed at a log."""
    brokers = int(sys.argv[1]) if len(sys.argv) > 1 else None
    try:
        settings = LocalSettings.from_env(os.environ, brokers=brokers)
        return Platform(
            settings, say_to_stderr, lambda late: say_to_stderr("ready" + "".join(f"; {x}" for x in late))
        ).run()
    except ConfigError as problem:
        say_to_stderr(str(problem))
        return EXIT_CONFIG
    except SluiceError as problem:
        say_to_stderr(str(problem))
        return 1


def say_to_stderr(message: str) -> None:
    sys.stderr.write(f"sluice: {message}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
