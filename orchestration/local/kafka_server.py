"""Real Apache Kafka on this machine: one to ten KRaft brokers on loopback, for trying, developing and testing.

    with KafkaServer(Path("data"), brokers=3) as kafka:
        kafka.bootstrap          # "127.0.0.1:20481,127.0.0.1:…"
        kafka.kill_broker(2)     # SIGKILL: what a power cut does
        kafka.start_broker(2)

The data folder holds everything: `cluster.json` (cluster id, ports, which nodes vote), and for each broker its log
directory, its `server.properties` and its logs. Starting again on the same folder is the same cluster with its data.
Node ids are 0, 1, 2, …; the first three (with two brokers: the first) are controllers as well.
"""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from eventing.errors import ConfigError, Unavailable
from orchestration.local.java import find_java
from orchestration.local.kafka_jars import Progress, kafka_jars
from orchestration.local.ports import LOOPBACK, answers, free_port, is_free
from orchestration.local.tether import tethered

MOST_BROKERS = 10
CONTROLLERS = 3  # of KRaft: survives the loss of one; more would only cost memory on one machine
FORMAT_TIMEOUT_S = 60.0
GROUPS_TIMEOUT_S = 30.0
GROUPS_OF_EACH_PARTITION = ("a", "b", "c", "d")  # of __consumer_offsets: the partition is Java's hash of the name mod 4
START_TIMEOUT_S = 90.0  # ready after 3 s on two idle cores; three brokers on a busy machine were seen to take 30 s
STOP_TIMEOUT_S = 15.0  # then SIGKILL: the last controller of a quorum can wait for the others without end
LOG_TAIL_LINES = 80  # a stack trace and what stands above it
HEAP = "512m"

# A development machine starts brokers often and runs them briefly: compile little, share classes, collect simply.
JVM_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Djava.awt.headless=true")

LOG4J = """\
status = error
# Or the broker's last lines would be lost: it ends in a shutdown hook too.
shutdownHook = disable
rootLogger.level = info
rootLogger.appenderRefs = file
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = ${sys:kafka.logs.dir}/server.log
appender.file.filePattern = ${sys:kafka.logs.dir}/server.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = [%d{ISO8601}] %p %m (%c)%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One broker as `cluster.json` remembers it."""

    id: int
    port: int
    controller_port: int
    controller: bool
    rack: str | None


def _new_cluster_id() -> str:
    """A UUID in URL-safe base64, as Kafka draws it: never with a leading dash, which its tools take for an option."""
    while (cluster_id := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return cluster_id


def remembered_brokers(data_dir: Path) -> int | None:
    """How many brokers' data the folder holds; None when it holds none, or cannot tell."""
    try:
        return len(json.loads((data_dir / "cluster.json").read_text())["nodes"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def say_to_stderr(message: str) -> None:
    """Progress for a person who waits."""
    sys.stderr.write(f"kafka: {message}\n")
    sys.stderr.flush()


class KafkaServer:
    """A Kafka cluster of this process: its brokers end with it, its data stays.

    Args:
        data_dir: The cluster's folder; made when it is not there.
        brokers: 1 to 10. May grow from one start to the next, never shrink.
        ports: The client port of each broker, in order. None: those of the last start, at first free ones.
        racks: The rack of each broker, in order. None: those of the last start.
        properties: Broker settings that override ours, as in `server.properties`.
        progress: Called with a line for people whenever something takes time.

    Raises:
        ConfigError: arguments that do not fit each other or the data; no usable Java.
    """

    def __init__(  # noqa: PLR0917 - in the order in which a test thinks of them
        self,
        data_dir: Path | str,
        brokers: int = 1,
        ports: Sequence[int] | None = None,
        racks: Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        progress: Progress = say_to_stderr,
    ) -> None:
        problems = []
        if not 1 <= brokers <= MOST_BROKERS:
            problems.append(f"brokers must be 1 to {MOST_BROKERS}, not {brokers}")
        for name, given in (("ports", ports), ("racks", racks)):
            if given is not None and len(given) != brokers:
                problems.append(f"{name} names {len(given)} of {brokers} brokers")
        if problems:
            raise ConfigError(problems, subject="Kafka cluster")
        self.data_dir = Path(data_dir).absolute()
        self._properties = dict(properties or {})
        self._progress = progress
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._java: Path | None = None
        self._cluster_id, self._nodes = self._remembered_or_new(brokers, ports, racks)

    # -- what clients need ------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """`host:port` of every broker, separated by commas, in the order of their ids."""
        return ",".join(f"{LOOPBACK}:{node.port}" for node in self._nodes)

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def broker_ids(self) -> list[int]:
        return [node.id for node in self._nodes]

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the brokers that run, by broker id."""
        return {i: process.pid for i, process in sorted(self._processes.items()) if process.poll() is None}

    def logs(self, broker: int) -> Path:
        """The folder with the broker's `server.log` and `console.log`."""
        return self._folder(broker) / "logs"

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every broker and return when all of them answer.

        Raises:
            ConfigError: no usable Java.
            Unavailable: jars cannot be had, or the brokers do not answer in time; everything started is stopped.
        """
        self._java = find_java()
        jars = kafka_jars(self._progress)
        self._avoid_taken_ports()
        self._write_files()
        try:
            self._format(jars)
            for node in self._nodes:
                self._launch(node, jars)
            self._wait_until_ready([node.id for node in self._nodes])
            self._wait_for_groups()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop every broker: SIGTERM to all at once, so that none waits for one that is gone, in the end SIGKILL."""
        self._signal_and_wait(list(self._processes))

    def kill(self) -> None:
        """SIGKILL to every broker."""
        for broker in list(self._processes):
            self.kill_broker(broker)

    def start_broker(self, broker: int) -> None:
        """Start one broker that was stopped or killed, on its port and data; return when it answers."""
        assert broker not in self.pids, f"broker {broker} runs already"
        self._java = self._java or find_java()
        jars = kafka_jars(self._progress)
        self._launch(self._node(broker), jars)
        self._wait_until_ready([broker])

    def stop_broker(self, broker: int) -> None:
        """Stop one broker cleanly: it hands its leaderships over first."""
        self._signal_and_wait([broker])

    def kill_broker(self, broker: int) -> None:
        """SIGKILL to one broker: the others notice after the session timeout (6 s here)."""
        process = self._processes.pop(broker, None)
        if process is not None:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- the folder -------------------------------------------------------------------------------------------------

    def _remembered_or_new(
        self, brokers: int, ports: Sequence[int] | None, racks: Sequence[str] | None
    ) -> tuple[str, list[Node]]:
        memory = self.data_dir / "cluster.json"
        known: list[Node] = []
        cluster_id = _new_cluster_id()
        if memory.exists():
            try:
                document = json.loads(memory.read_text())
                cluster_id, known = document["cluster_id"], [Node(**node) for node in document["nodes"]]
            except (ValueError, TypeError, KeyError) as problem:
                raise ConfigError(
                    [f"{memory} is damaged ({problem}); remove {self.data_dir} to begin anew"], subject="Kafka cluster"
                ) from problem
        if len(known) > brokers:
            found = f"{self.data_dir} holds the data of {len(known)} brokers"
            raise ConfigError([f"{found}: ask for as many, or remove it to begin anew"], subject="Kafka cluster")
        # The voters of a quorum are fixed when it is formatted; brokers that come later only store data.
        voters = CONTROLLERS if brokers >= CONTROLLERS else 1
        nodes = []
        for i in range(brokers):
            if i < len(known):
                node = known[i]
            else:
                is_voter = not known and i < voters
                node = Node(
                    id=i, port=0, controller_port=free_port() if is_voter else 0, controller=is_voter, rack=None
                )
            port = ports[i] if ports is not None else node.port or free_port()
            nodes.append(replace(node, port=port, rack=racks[i] if racks is not None else node.rack))
        self._ports_are_given = ports is not None
        return cluster_id, nodes

    def _avoid_taken_ports(self) -> None:
        """Remembered ports that somebody else has taken meanwhile are replaced; given ones are an error."""
        nodes = []
        for node in self._nodes:
            port, controller_port = node.port, node.controller_port
            if not is_free(port):
                if self._ports_are_given:
                    raise ConfigError([f"port {port} for Kafka broker {node.id} is taken"], subject="Kafka cluster")
                port = free_port()
            if node.controller and not is_free(controller_port):
                controller_port = free_port()
            nodes.append(replace(node, port=port, controller_port=controller_port))
        self._nodes = nodes

    def _write_files(self) -> None:
        for node in self._nodes:
            self.logs(node.id).mkdir(parents=True, exist_ok=True)
            settings = self.settings(node.id)
            text = "".join(f"{key}={value}\n" for key, value in sorted(settings.items()))
            (self._folder(node.id) / "server.properties").write_text(text)
        (self.data_dir / "log4j2.properties").write_text(LOG4J)
        memory = self.data_dir / "cluster.json"
        document = {"cluster_id": self._cluster_id, "nodes": [asdict(node) for node in self._nodes]}
        fresh = memory.with_suffix(".json.new")
        fresh.write_text(json.dumps(document, indent=1))
        fresh.replace(memory)

    def settings(self, broker: int) -> dict[str, str]:
        """The broker's `server.properties`: for development, see the comments."""
        node = self._node(broker)
        copies = min(3, len(self._nodes))
        listeners = [f"PLAINTEXT://{LOOPBACK}:{node.port}"]
        if node.controller:
            listeners.append(f"CONTROLLER://{LOOPBACK}:{node.controller_port}")
        settings = {
            "node.id": str(node.id),
            "process.roles": "broker,controller" if node.controller else "broker",
            "listeners": ",".join(listeners),
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{node.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.quorum.voters": ",".join(
                f"{n.id}@{LOOPBACK}:{n.controller_port}" for n in self._nodes if n.controller
            ),
            "log.dirs": str(self._folder(node.id) / "data"),
            # A topic that appears by itself hides mistakes; Sluice creates what it needs.
            "auto.create.topics.enable": "false",
            "num.partitions": "1",
            "default.replication.factor": str(copies),
            # Internal topics: few partitions, because each costs files and start time.
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": str(copies),
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.replication.factor": str(copies),
            "transaction.state.log.min.isr": str(max(1, copies - 1)),
            "share.coordinator.state.topic.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": str(copies),
            "share.coordinator.state.topic.min.isr": str(max(1, copies - 1)),
            # The default of 3 s is for deployments of many consumers; here it would delay every first join.
            "group.initial.rebalance.delay.ms": "0",
            # A killed broker may register again only when its session has ended; the default of 9 s is a long wait in
            # front of a terminal, less than this would fence brokers of a busy laptop.
            "broker.session.timeout.ms": "6000",
            "broker.heartbeat.interval.ms": "1000",
        }
        if node.rack is not None:
            settings["broker.rack"] = node.rack
        return settings | self._properties

    def _folder(self, broker: int) -> Path:
        return self.data_dir / f"broker-{broker}"

    def _node(self, broker: int) -> Node:
        return next(node for node in self._nodes if node.id == broker)

    # -- processes --------------------------------------------------------------------------------------------------

    def _java_command(
        self, broker: int, jars: Sequence[Path], main: str, *arguments: str, heap: str = HEAP
    ) -> list[str]:
        return [
            str(self._java),
            f"-Xmx{heap}",
            *JVM_FLAGS,
            f"-Dlog4j2.configurationFile={self.data_dir / 'log4j2.properties'}",
            f"-Dkafka.logs.dir={self.logs(broker)}",
            "-cp",
            f"{jars[0].parent}/*",
            main,
            *arguments,
        ]

    def _format(self, jars: Sequence[Path]) -> None:
        """Give each broker that has none its storage, marked with the cluster id; brokers side by side."""
        running: list[tuple[int, subprocess.Popen[bytes]]] = []
        for node in self._nodes:
            if (self._folder(node.id) / "data" / "meta.properties").exists():
                continue
            self._progress(f"formatting the storage of broker {node.id}")
            properties = str(self._folder(node.id) / "server.properties")
            command = self._java_command(
                node.id,
                jars,
                "kafka.tools.StorageTool",
                "format",
                "-t",
                self._cluster_id,
                "-c",
                properties,
                heap="128m",
            )
            with (self.logs(node.id) / "console.log").open("ab") as console:
                process = subprocess.Popen(tethered(command), stdin=subprocess.DEVNULL, stdout=console, stderr=console)
            running.append((node.id, process))
        deadline = time.monotonic() + FORMAT_TIMEOUT_S
        try:
            for broker, process in running:
                try:
                    code = process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired as problem:
                    raise Unavailable("Kafka", f"formatting took longer than {FORMAT_TIMEOUT_S:.0f} s") from problem
                if code != 0:
                    raise Unavailable(
                        "Kafka", f"broker {broker}'s storage was not formatted: {self._last_words(broker)}"
                    )
        finally:
            for _, process in running:
                if process.poll() is None:
                    process.kill()
                    process.wait()

    def _launch(self, node: Node, jars: Sequence[Path]) -> None:
        command = self._java_command(node.id, jars, "kafka.Kafka", str(self._folder(node.id) / "server.properties"))
        with (self.logs(node.id) / "console.log").open("wb") as console:
            # In a session of its own: Ctrl-C is for the platform, which stops the brokers last.
            self._processes[node.id] = subprocess.Popen(
                tethered(command), stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True
            )

    def _wait_until_ready(self, brokers: Sequence[int]) -> None:
        """Return when the cluster lists these brokers as registered and unfenced.

        Raises:
            Unavailable: one of them has ended, or the time is over; with its last words.
        """
        began = time.monotonic()
        tell_at = began + 5.0
        admin: AdminClient | None = None
        while True:
            for broker in brokers:
                process = self._processes[broker]
                if process.poll() is not None:
                    raise Unavailable(
                        "Kafka", f"broker {broker} ended with status {process.returncode}: {self._last_words(broker)}"
                    )
            if all(answers(self._node(broker).port) for broker in brokers):
                # Only now: a client made before would wait out its reconnect back-off. Quiet: what fails is expected.
                admin = admin or AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
                try:
                    if set(brokers) <= set(admin.list_topics(timeout=2.0).brokers):
                        return
                except KafkaException:
                    pass
            waited = time.monotonic() - began
            if waited > START_TIMEOUT_S:
                words = self._last_words(brokers[0])
                raise Unavailable("Kafka", f"the brokers do not answer after {START_TIMEOUT_S:.0f} s: {words}")
            if time.monotonic() > tell_at:
                self._progress(f"waiting for {len(brokers)} broker(s), {waited:.0f} s")
                tell_at += 5.0
            time.sleep(0.1)

    def _wait_for_groups(self) -> None:
        """Have the topic of consumer groups made and loaded, so that nobody's first offsets are "still loading".

        By consumers, not by an admin client: librdkafka's list_consumer_group_offsets crashes the process when the
        coordinator is not settled yet (https://github.com/confluentinc/librdkafka/issues/5040).

        Raises:
            Unavailable: it takes too long.
        """
        deadline = time.monotonic() + GROUPS_TIMEOUT_S
        for group in GROUPS_OF_EACH_PARTITION:
            consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0})
            try:
                while True:
                    try:
                        consumer.committed([TopicPartition("none", 0)], timeout=1.0)
                        break
                    except KafkaException as problem:
                        if time.monotonic() > deadline:
                            words = problem.args[0].str()
                            raise Unavailable("Kafka", f"consumer groups are not served: {words}") from problem
                        time.sleep(0.05)
            finally:
                consumer.close()

    def _signal_and_wait(self, brokers: Sequence[int]) -> None:
        stopping = [self._processes[broker] for broker in brokers if broker in self._processes]
        for process in stopping:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in stopping:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for broker in brokers:
            self._processes.pop(broker, None)

    def _last_words(self, broker: int) -> str:
        """The end of the broker's log, for a message."""
        lines: list[str] = []
        for name in ("server.log", "console.log"):
            path = self.logs(broker) / name
            if path.exists():
                lines += path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        # The exception rather than where it was thrown.
        telling = [line for line in lines if "ERROR" in line or "Exception" in line or "FATAL" in line]
        telling = [line for line in telling if not line.lstrip().startswith(("at ", "..."))] or lines
        return " | ".join(line.strip() for line in telling[-3:]) + f" (see {self.logs(broker)})"
