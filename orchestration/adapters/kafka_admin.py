"""Kafka as orchestration sees it: brokers, topics, lag, and one method for each kind of change.

Two client libraries share the work. confluent-kafka does what it can; kafka-python (3.0 and later) has the two
requests that librdkafka lacks, partition reassignment and the listing of fenced brokers, and reads and writes the
offsets of groups, where librdkafka's admin client may crash. Importing them takes 0.3 s, so this module is imported
where a client is built (`wiring.py`), not where Dagster loads definitions.

Answers of Kafka are per partition or per key; each one is looked at. What is already as asked for is success, so that
an action may be applied twice. Every call ends within a named time.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from kafka import KafkaAdminClient, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError as PythonKafkaError

from eventing.errors import Conflict, NotFound, Refused, SluiceError, Unavailable
from eventing.kafka_security import KafkaSecurity
from orchestration.adapters.kafka_clients.errors import confluent_errors, error_of, python_error, translated
from orchestration.adapters.kafka_clients.security import python_properties
from orchestration.ports import JsonObject

READ_TIMEOUT_S = 5.0
"""For one answer while observing. A snapshot is worth little when it is older than that."""
WRITE_TIMEOUT_S = 15.0
"""For one change, until Kafka's controller has answered."""
PROPAGATION_TIMEOUT_S = 10.0
"""How long a new topic may stay unknown to the brokers that have to answer for it."""
GROUP_EMPTY_TIMEOUT_S = 20.0
"""How long to wait for a group's last members to leave: Kafka drops a killed member after its session timeout, which
may be longer; then the deletion is for the next reconciliation."""
RETRY_INTERVAL_S = 0.3
VISIBLE_POLL_S = 0.02
"""Between two looks for a change that was accepted: brokers follow the controller within milliseconds."""
GROUP_BATCH = 500
"""Groups in one request for committed offsets."""
CONFIG_BATCH = 500
"""Topics in one request for configurations; the answer has some thirty entries for each."""
GROUP_PREFIX = "kafka."
"""Groups of channels start so (`eventing.channels.group_prefix`)."""

SYSTEM = "Kafka"
_INTERNAL_TOPICS = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata", "__remote_log_metadata"}
)

_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class KafkaAdmin:
    """`orchestration.ports.KafkaCluster` over a real cluster. Clients are made on first use and kept."""

    bootstrap_servers: str
    security: KafkaSecurity = field(default_factory=KafkaSecurity)
    client_id: str = "sluice-orchestration"
    _confluent: AdminClient | None = field(default=None, init=False, repr=False)
    _python: KafkaAdminClient | None = field(default=None, init=False, repr=False)
    # One client of each kind, however many threads observe: an AdminClient that is given up while it still waits for
    # an answer takes the process with it (confluent-kafka 2.16). Calls of kafka-python go one after another.
    _making: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _asking: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)

    def close(self) -> None:
        """Give the connections back."""
        if self._python is not None:
            self._python.close()
        self._python = self._confluent = None

    # ------------------------------------------------------------------ observing

    def brokers(self) -> list[JsonObject]:
        answer = self._ask_python("listing the brokers", lambda admin: admin.describe_cluster())
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        brokers = [
            {
                "id": int(broker["broker_id"]),
                "rack": broker.get("rack") or None,
                "fenced": bool(broker.get("is_fenced", False)),
                "last_seen": None if broker.get("is_fenced", False) else now,
            }
            for broker in answer["brokers"]
        ]
        if not brokers:
            raise Unavailable(SYSTEM, "the cluster lists no broker")
        return sorted(brokers, key=lambda broker: int(str(broker["id"])))

    def topics(self) -> dict[str, JsonObject]:

        # Before the topics: a move that ends in between is then still called one, and never a finished move with the
        # replicas of an unfinished one.
        moving = self._ask_python(
            "listing the reassignments",
            lambda admin: admin.list_partition_reassignments(timeout_ms=_ms(READ_TIMEOUT_S)),
        )
        with confluent_errors("listing the topics"):
            metadata = self._admin().list_topics(timeout=READ_TIMEOUT_S)
        names = sorted(name for name in metadata.topics if name not in _INTERNAL_TOPICS)
        reassigning: dict[str, list[int]] = {}
        targets: dict[tuple[str, int], list[int]] = {}
        for place, state in moving.items():
            reassigning.setdefault(place.topic, []).append(place.partition)
            targets[place.topic, place.partition] = _target_first(state)
        configs = self._topic_configs(names)
        topics: dict[str, JsonObject] = {}
        for name in names:
            described = metadata.topics[name]
            topics[name] = {
                "partitions": [
                    {
                        "id": partition.id,
                        "replicas": targets.get((name, partition.id), list(partition.replicas)),
                        "isr": list(partition.isrs),
                        "leader": partition.leader,
                    }
                    for partition in sorted(described.partitions.values(), key=lambda each: int(each.id))
                ]
                or None,
                "reassigning": sorted(reassigning.get(name, [])),
                "configs": configs.get(name),
            }
        return topics

    def _topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """What is set on each topic itself; a topic whose configuration cannot be read is left out."""
        pending: dict[Any, concurrent.futures.Future[Any]] = {}
        for start in range(0, len(names), CONFIG_BATCH):
            resources = [
                ConfigResource(ConfigResource.Type.TOPIC, name) for name in names[start : start + CONFIG_BATCH]
            ]
            pending |= self._admin().describe_configs(resources, request_timeout=READ_TIMEOUT_S)
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        found = {}
        deadline = time.monotonic() + READ_TIMEOUT_S
        for resource, future in pending.items():
            try:
                entries = _result(future, deadline, f"reading the configuration of topic {resource.name}")
            except SluiceError as exc:
                _log.warning("kafka.config_unreadable topic=%s reason=%s", resource.name, exc)
                continue
            found[resource.name] = {key: entry.value for key, entry in sorted(entries.items()) if entry.source == own}
        return found

    def lag(self, expected: Mapping[str, str]) -> dict[str, JsonObject]:
        existing, is_complete = self._our_groups()
        # A group that is not listed has no offsets; where some broker did not answer, it has to be asked.
        groups = sorted(existing if is_complete else existing | set(expected))
        committed, unreadable = self._offsets_of(groups)
        ends = self._end_offsets({place for offsets in committed.values() for place in offsets})
        lags: dict[str, JsonObject] = {}
        for group in groups:
            topic = expected.get(group) or _main_topic(committed.get(group, {}))
            if group in unreadable:
                # Better an unknown lag for all than a missing one: missing means that there is no offset.
                lags[group] = {"topic": topic, "partitions": None}
                continue
            partitions = {
                str(partition): None if (end := ends.get((name, partition))) is None else max(0, end - offset)
                for (name, partition), offset in sorted(committed[group].items())
                if name == topic
            }
            if partitions:
                lags[group] = {"topic": topic, "partitions": partitions}
        return lags

    def _our_groups(self) -> tuple[set[str], bool]:
        """Groups of channels that exist, and whether every broker told its own."""
        try:
            answer = self._change(
                "listing the groups", lambda admin: admin.list_consumer_groups(request_timeout=READ_TIMEOUT_S)
            )
        except Unavailable as exc:
            _log.warning("kafka.groups_unreadable reason=%s", exc)
            return set(), False
        ours = {group.group_id for group in answer.valid if group.group_id.startswith(GROUP_PREFIX)}
        return ours, not answer.errors

    def _offsets_of(self, groups: Sequence[str]) -> tuple[dict[str, dict[tuple[str, int], int]], set[str]]:
        """Committed offsets by group, and the groups whose offsets could not be read.

        By kafka-python: librdkafka's admin client ends the process when a coordinator answers that it is none, which
        every broker does for a moment after its start (https://github.com/confluentinc/librdkafka/issues/5040).
        One question for many groups; only where that fails, one for each, as long as there is time.
        """
        read: dict[str, dict[tuple[str, int], int]] = {}
        unreadable: set[str] = set()
        deadline = time.monotonic() + READ_TIMEOUT_S
        for start in range(0, len(groups), GROUP_BATCH):
            batch = groups[start : start + GROUP_BATCH]
            try:
                read |= self._ask_offsets(batch)
                continue
            except SluiceError as exc:
                _log.info("kafka.offsets_unreadable groups=%s reason=%s", len(batch), exc)
            for group in batch:
                try:
                    if time.monotonic() > deadline:
                        raise Unavailable(SYSTEM, "no time left")
                    read |= self._ask_offsets([group])
                except SluiceError as exc:
                    _log.warning("kafka.offsets_unreadable group=%s reason=%s", group, exc)
                    unreadable.add(group)
        return read, unreadable

    def _ask_offsets(self, groups: Sequence[str]) -> dict[str, dict[tuple[str, int], int]]:
        answer = self._ask_python(
            f"reading the offsets of group {groups[0]}" + (f" and {len(groups) - 1} more" if len(groups) > 1 else ""),
            lambda admin: admin.list_group_offsets(dict.fromkeys(groups)),
        )
        return {
            group: {
                (place.topic, place.partition): committed.offset
                for place, committed in answer.get(group, {}).items()
                if committed.offset >= 0
            }
            for group in groups
        }

    def _end_offsets(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """End of each partition's log; one that cannot be read is left out."""
        if not places:
            return {}

        pending = self._admin().list_offsets(
            {Place(topic, partition): _LATEST for topic, partition in sorted(places)},
            request_timeout=READ_TIMEOUT_S,
        )
        deadline = time.monotonic() + READ_TIMEOUT_S + 1.0
        ends = {}
        for place, future in pending.items():
            try:
                end = _result(future, deadline, f"reading the end of {place.topic}[{place.partition}]")
                ends[place.topic, place.partition] = end.offset
            except SluiceError as exc:
                _log.warning("kafka.end_unreadable topic=%s partition=%s reason=%s", place.topic, place.partition, exc)
        return ends

    # ------------------------------------------------------------------ topics

    def create_topic(self, topic: str, assignments: Mapping[int, Sequence[int]], configs: Mapping[str, str]) -> None:

        if sorted(assignments) != list(range(len(assignments))):
            raise Refused(SYSTEM, f"creating topic {topic}: partitions must be numbered from 0 without a gap")
        new = NewTopic(
            topic,
            num_partitions=len(assignments),
            replica_assignment=[list(assignments[partition]) for partition in sorted(assignments)],
            config=dict(configs),
        )
        self._change(
            f"creating topic {topic}",
            lambda admin: admin.create_topics([new], request_timeout=WRITE_TIMEOUT_S)[topic],
            fine=(KafkaError.TOPIC_ALREADY_EXISTS,),
        )
        self._await_topic(topic, len(assignments))

    def _await_topic(self, topic: str, partitions: int) -> None:
        """Wait, bounded, until brokers know what the controller has accepted: the next action relies on it."""
        deadline = time.monotonic() + PROPAGATION_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                if self._partition_count(topic) >= partitions:
                    return
            except (NotFound, Unavailable):
                pass
            time.sleep(VISIBLE_POLL_S)

    def create_partitions(self, topic: str, total: int, assignments: Mapping[int, Sequence[int]]) -> None:

        doing = f"growing topic {topic} to {total} partitions"
        present = self._partition_count(topic)
        if present >= total:
            if present > total:
                raise Refused(SYSTEM, f"{doing}: it has {present}, and partitions cannot be removed")
            return
        if sorted(assignments) != list(range(present, total)):
            raise Conflict(SYSTEM, f"{doing}: it has {present} partitions now, observe again")
        new = NewPartitions(topic, total, [list(assignments[partition]) for partition in sorted(assignments)])
        self._change(doing, lambda admin: admin.create_partitions([new], request_timeout=WRITE_TIMEOUT_S)[topic])
        self._await_topic(topic, total)

    def _partition_count(self, topic: str) -> int:
        # Not a metadata request: that may create the topic on a broker that creates topics by itself.
        described = self._change(
            f"reading topic {topic}",
            lambda admin: admin.describe_topics(TopicCollection([topic]), request_timeout=READ_TIMEOUT_S)[topic],
        )
        return len(described.partitions)

    def reassign_partitions(self, topic: str, assignments: Mapping[int, Sequence[int]]) -> None:

        doing = f"reassigning topic {topic}"
        answer = self._ask_python(
            doing,
            lambda admin: admin.alter_partition_reassignments(
                {TopicPartition(topic, partition): list(replicas) for partition, replicas in assignments.items()},
                timeout_ms=_ms(WRITE_TIMEOUT_S),
            ),
        )
        failed = []
        for partition in sorted(assignments):
            place = TopicPartition(topic, partition)
            if place not in answer:
                failed.append((partition, "Kafka did not answer for it", True))
            elif answer[place] is not None:
                failed.append((partition, answer[place].__name__, bool(getattr(answer[place], "retriable", False))))
        if failed:
            others = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
            partition, name, retriable = failed[0]
            raise python_error(name, f"{doing}, partition {partition}{others}", retriable=retriable)

    def alter_topic_config(self, topic: str, configs: Mapping[str, str | None]) -> None:

        entries = [
            ConfigEntry(
                key, value, incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            )
            for key, value in sorted(configs.items())
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        self._change(
            f"configuring topic {topic}",
            lambda admin: admin.incremental_alter_configs([resource], request_timeout=WRITE_TIMEOUT_S)[resource],
        )

    def elect_leaders(self, topic: str, partitions: Collection[int]) -> None:

        doing = f"electing the preferred leaders of topic {topic}"
        places = [Place(topic, partition) for partition in sorted(partitions)]
        if not places:
            return
        answer = self._change(
            doing,
            # Without its timeouts: confluent-kafka 2.16 documents them and fails when they are given. The client's
            # socket.timeout.ms holds.
            lambda admin: admin.elect_leaders(ElectionType.PREFERRED, places),
            fine=(KafkaError.ELECTION_NOT_NEEDED,),
        )
        for place, problem in sorted((answer or {}).items(), key=lambda item: int(item[0].partition)):
            error = problem.args[0] if problem is not None and hasattr(problem, "args") and problem.args else problem
            if error is not None and error.code() not in {KafkaError.NO_ERROR, KafkaError.ELECTION_NOT_NEEDED}:
                raise translated(error, f"{doing}, partition {place.partition}")

    def delete_topic(self, topic: str) -> None:

        self._change(
            f"deleting topic {topic}",
            lambda admin: admin.delete_topics([topic], request_timeout=WRITE_TIMEOUT_S)[topic],
            fine=(KafkaError.UNKNOWN_TOPIC_OR_PART,),
        )

    # ------------------------------------------------------------------ groups

    def initialize_offsets(
        self, group: str, topic: str, partitions: Collection[int], offset: Literal["latest", "earliest"]
    ) -> None:

        doing = f"writing the first offsets of group {group}"
        committed = self._committed(group, topic)
        missing = sorted(partition for partition in partitions if partition not in committed)
        if not missing:
            return
        starts = self._starts(topic, missing, offset, doing)
        try:
            self._retried(lambda: self._commit(group, topic, starts, doing), PROPAGATION_TIMEOUT_S, Unavailable)
        except Conflict as exc:
            # Kafka takes no offsets from outside while the group has members. A running dispatcher starts new
            # partitions of its topic at earliest, and says so in the group, by itself.
            if offset == "earliest" and committed:
                _log.info("kafka.offsets_left_to_members group=%s topic=%s partitions=%s", group, topic, missing)
                return
            raise Conflict(SYSTEM, f"{exc.reason}; the group has members already") from exc

    def _commit(self, group: str, topic: str, offsets: Mapping[int, int], doing: str) -> None:
        # Without metadata: that belongs to the dispatcher, which keeps the state of unfinished deliveries there.
        wanted = {
            TopicPartition(topic, partition): OffsetAndMetadata(offset, "", None)
            for partition, offset in sorted(offsets.items())
        }
        answer = self._ask_python(doing, lambda admin: admin.alter_group_offsets(group, wanted))
        for place in wanted:
            error = answer.get(place)
            if error is None or error.errno != 0:
                # Whoever is no coordinator any more must not be asked again.
                self._forget_python()
                name = "Kafka did not answer for it" if error is None else error.__name__
                retriable = error is None or bool(getattr(error, "retriable", False))
                raise python_error(name, f"{doing}, partition {place.partition}", retriable=retriable)

    def _committed(self, group: str, topic: str) -> set[int]:
        # Retried: the first group of a cluster makes Kafka create its offsets topic.
        offsets = self._retried(lambda: self._ask_offsets([group]), PROPAGATION_TIMEOUT_S, Unavailable)[group]
        return {partition for name, partition in offsets if name == topic}

    def _starts(self, topic: str, partitions: Iterable[int], offset: str, doing: str) -> dict[int, int]:
        """First offset of each partition. A topic that was created a moment ago is waited for."""
        spec = _LATEST if offset == "latest" else _EARLIEST
        wanted = {Place(topic, partition): spec for partition in partitions}

        def ask() -> dict[int, int]:
            pending = self._admin().list_offsets(wanted, request_timeout=READ_TIMEOUT_S)
            deadline = time.monotonic() + READ_TIMEOUT_S + 1.0
            return {place.partition: _result(future, deadline, doing).offset for place, future in pending.items()}

        return self._retried(ask, PROPAGATION_TIMEOUT_S, NotFound, Unavailable)

    def delete_group(self, group: str) -> None:

        self._retried(
            lambda: self._change(
                f"deleting group {group}",
                lambda admin: admin.delete_consumer_groups([group], request_timeout=WRITE_TIMEOUT_S)[group],
                fine=(KafkaError.GROUP_ID_NOT_FOUND,),
            ),
            GROUP_EMPTY_TIMEOUT_S,
            Conflict,
        )

    # ------------------------------------------------------------------ clients

    def _admin(self) -> AdminClient:
        with self._making:
            if self._confluent is None:
                self._confluent = AdminClient(
                    {
                        "bootstrap.servers": self.bootstrap_servers,
                        "client.id": self.client_id,
                        "socket.timeout.ms": _ms(WRITE_TIMEOUT_S),
                        "socket.connection.setup.timeout.ms": _ms(READ_TIMEOUT_S),
                        # A broker that comes back is tried again soon; the default waits up to 10 s.
                        "reconnect.backoff.max.ms": 1000,
                        **self.security.client_properties(),
                    },
                    logger=_log,
                )
            return self._confluent

    def _change(
        self,
        doing: str,
        start: Callable[[AdminClient], concurrent.futures.Future[Any]],
        *,
        fine: Collection[int] = (),
    ) -> Any:
        """Wait for one answer; None where Kafka said one of the `fine` errors: that it is so already."""
        with confluent_errors(doing):
            try:
                return start(self._admin()).result(timeout=WRITE_TIMEOUT_S + 1.0)
            except KafkaException as exc:
                if error_of(exc).code() in fine:
                    return None
                raise

    def _ask_python(self, doing: str, ask: Callable[[KafkaAdminClient], Any]) -> Any:

        try:
            with self._asking:
                return ask(self._python_admin())
        except PythonKafkaError as exc:
            self._forget_python()
            name = type(exc).__name__
            # What is not an answer of a broker (no connection, no controller) passes by itself.
            transient = bool(getattr(exc, "retriable", False)) or not getattr(exc, "errno", None)
            raise python_error(name, doing, str(exc), retriable=transient) from exc
        except (OSError, RuntimeError, TimeoutError) as exc:
            self._forget_python()
            raise Unavailable(SYSTEM, f"{doing}: {exc}") from exc

    def _forget_python(self) -> None:
        """A client of kafka-python that failed keeps what it believed about the cluster: the next call starts anew."""
        with self._asking:
            client, self._python = self._python, None
        if client is not None:
            try:
                client.close()
            except Exception:  # noqa: BLE001  # it is given up in any case
                _log.debug("kafka.close_failed", exc_info=True)

    def _python_admin(self) -> KafkaAdminClient:
        if self._python is None:
            # kafka-python leaves the sockets of refused connections open: it gets the brokers that are up.
            cluster = self._change("connecting", lambda admin: admin.describe_cluster(request_timeout=READ_TIMEOUT_S))
            logging.getLogger("kafka").setLevel(logging.ERROR)  # a broker that is down is our news, not its
            self._python = KafkaAdminClient(
                bootstrap_servers=[f"{node.host}:{node.port}" for node in cluster.nodes],
                client_id=self.client_id,
                request_timeout_ms=_ms(WRITE_TIMEOUT_S),
                bootstrap_timeout_ms=_ms(READ_TIMEOUT_S),
                reconnect_backoff_max_ms=1000,
                **python_properties(self.security),
            )
        return self._python

    def _retried(self, attempt: Callable[[], T], limit_s: float, *kinds: type[SluiceError]) -> T:
        """Repeat `attempt` while it fails with one of `kinds`, at most `limit_s` seconds."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                return attempt()
            except kinds:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(RETRY_INTERVAL_S)


def _result(future: concurrent.futures.Future[Any], deadline: float, doing: str) -> Any:

    with confluent_errors(doing):
        return future.result(timeout=max(0.05, deadline - time.monotonic()))


def _target_first(state: Mapping[str, list[int]]) -> list[int]:
    """Replicas of a moving partition: the target in its order, then what is to go."""
    target = [broker for broker in state["replicas"] if broker not in state["removing_replicas"]]
    return target + [broker for broker in state["replicas"] if broker in state["removing_replicas"]]


def _main_topic(offsets: Mapping[tuple[str, int], int]) -> str | None:
    """The topic of a group that nobody declares any more: the one with most partitions, then by name."""
    counts: dict[str, int] = {}
    for topic, _ in offsets:
        counts[topic] = counts.get(topic, 0) + 1
    return min(counts, key=lambda topic: (-counts[topic], topic), default=None)


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
