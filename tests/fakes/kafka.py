"""A Kafka cluster in memory, with the controller's rules that matter to a planner.

Verified by tests/contracts/test_kafka_cluster.py, which runs the same tests against a real broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from eventing.errors import Conflict, NotFound, Refused, Unavailable


class FakeKafkaCluster:
    """`orchestration.ports.KafkaCluster`. `writes` lists every change that was asked for and accepted.

    `failures[method]` is raised by that method as long as it is set. `unreadable_groups` have offsets that cannot be
    read. A group in `members` has consumers.
    """

    def __init__(self, brokers: int | Sequence[dict[str, Any]] = 1) -> None:
        if isinstance(brokers, int):
            brokers = [{"id": i, "rack": None, "fenced": False} for i in range(brokers)]
        self.broker_list = [dict(broker) for broker in brokers]
        self.partitions: dict[str, dict[int, dict[str, Any]]] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.reassigning: dict[str, list[int]] = {}
        self.ends: dict[tuple[str, int], int] = {}
        self.committed: dict[str, dict[tuple[str, int], int]] = {}
        self.members: set[str] = set()
        self.unreadable_groups: set[str] = set()
        self.failures: dict[str, Exception] = {}
        self.writes: list[tuple[str, str]] = []
        self.now = "2026-11-20T03:00:00Z"

    # -- the world, for tests

    def produce(self, topic: str, partition: int, records: int) -> None:
        self.ends[topic, partition] = self.ends.get((topic, partition), 0) + records

    def fence(self, broker: int, fenced: bool = True) -> None:
        next(b for b in self.broker_list if b["id"] == broker)["fenced"] = fenced
        up = self._up()
        for partitions in self.partitions.values():
            for partition in partitions.values():
                isr = [b for b in partition["replicas"] if b in up]
                partition["isr"] = isr or partition["isr"]
                if partition["leader"] not in up:
                    partition["leader"] = isr[0] if isr else -1

    def finish_reassignments(self) -> None:
        for topic, ids in self.reassigning.items():
            for id_ in ids:
                partition = self.partitions[topic][id_]
                target = partition.pop("target")
                partition["replicas"] = partition["isr"] = target
                if partition["leader"] not in target:
                    partition["leader"] = target[0]
        self.reassigning = {}

    def _up(self) -> set[int]:
        return {broker["id"] for broker in self.broker_list if not broker["fenced"]}

    # -- observing

    def brokers(self) -> list[dict[str, Any]]:
        self._maybe_fail("brokers")
        if not self.broker_list:
            raise Unavailable("Kafka", "the cluster lists no broker")
        return [{**b, "last_seen": None if b["fenced"] else self.now} for b in self.broker_list]

    def topics(self) -> dict[str, dict[str, Any]]:
        self._maybe_fail("topics")
        return {
            topic: {
                "partitions": [
                    {"id": id_, **{key: p[key] for key in ("replicas", "isr", "leader")}}
                    for id_, p in sorted(partitions.items())
                ],
                "reassigning": sorted(self.reassigning.get(topic, [])),
                "configs": dict(self.configs[topic]),
            }
            for topic, partitions in sorted(self.partitions.items())
        }

    def lag(self, expected: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        self._maybe_fail("lag")
        lags: dict[str, dict[str, Any]] = {}
        for group in sorted({*expected, *(g for g in self.committed if g.startswith("kafka."))}):
            offsets = self.committed.get(group, {})
            topic = expected.get(group) or min((t for t, _ in offsets), default=None)
            if group in self.unreadable_groups:
                lags[group] = {"topic": topic, "partitions": None}
            elif partitions := {
                str(id_): max(0, self.ends.get((t, id_), 0) - offset)
                for (t, id_), offset in sorted(offsets.items())
                if t == topic
            }:
                lags[group] = {"topic": topic, "partitions": partitions}
        return lags

    # -- changing

    def create_topic(self, topic: str, assignments: Mapping[int, Sequence[int]], configs: Mapping[str, str]) -> None:
        self._maybe_fail("create_topic")
        if sorted(assignments) != list(range(len(assignments))) or not assignments:
            raise Refused("Kafka", f"creating topic {topic}: partitions must be numbered from 0 without a gap")
        self._check(assignments)
        if topic in self.partitions:
            return
        self.partitions[topic] = {id_: self._partition(replicas) for id_, replicas in assignments.items()}
        self.configs[topic] = dict(configs)
        self.writes.append(("create_topic", topic))

    def create_partitions(self, topic: str, total: int, assignments: Mapping[int, Sequence[int]]) -> None:
        self._maybe_fail("create_partitions")
        present = self._topic(topic)
        if len(present) == total:
            return
        if len(present) > total:
            raise Refused("Kafka", f"{topic} has {len(present)} partitions, and partitions cannot be removed")
        if sorted(assignments) != list(range(len(present), total)):
            raise Conflict("Kafka", f"{topic} has {len(present)} partitions now, observe again")
        self._check(assignments)
        if any(len(replicas) != len(present[0]["replicas"]) for replicas in assignments.values()):
            raise Refused("Kafka", "INVALID_REPLICA_ASSIGNMENT: another replication factor than partition 0 has")
        present |= {id_: self._partition(replicas) for id_, replicas in assignments.items()}
        self.writes.append(("create_partitions", topic))

    def reassign_partitions(self, topic: str, assignments: Mapping[int, Sequence[int]]) -> None:
        self._maybe_fail("reassign_partitions")
        present = self._topic(topic)
        self._check(assignments)
        for id_, replicas in assignments.items():
            if id_ not in present:
                raise NotFound("Kafka", f"{topic} has no partition {id_}")
            partition = present[id_]
            if set(partition["replicas"]) == set(replicas):
                partition["replicas"] = list(replicas)  # reordering completes at once and moves no leader
                continue
            partition["target"] = list(replicas)
            partition["replicas"] = [*replicas, *(b for b in partition["replicas"] if b not in replicas)]
            self.reassigning.setdefault(topic, []).append(id_)
        self.writes.append(("reassign_partitions", topic))

    def alter_topic_config(self, topic: str, configs: Mapping[str, str | None]) -> None:
        self._maybe_fail("alter_topic_config")
        self._topic(topic)
        for key, value in configs.items():
            if value is None:
                self.configs[topic].pop(key, None)
            else:
                self.configs[topic][key] = value
        self.writes.append(("alter_topic_config", topic))

    def elect_leaders(self, topic: str, partitions: Collection[int]) -> None:
        self._maybe_fail("elect_leaders")
        present = self._topic(topic)
        for id_ in sorted(partitions):
            if id_ not in present:
                raise NotFound("Kafka", f"{topic} has no partition {id_}")
            first = present[id_]["replicas"][0]
            if first not in self._up() or first not in present[id_]["isr"]:
                raise Unavailable("Kafka", f"PREFERRED_LEADER_NOT_AVAILABLE for {topic}[{id_}]")
            present[id_]["leader"] = first
        self.writes.append(("elect_leaders", topic))

    def delete_topic(self, topic: str) -> None:
        self._maybe_fail("delete_topic")
        if self.partitions.pop(topic, None) is None:
            return
        del self.configs[topic]
        for offsets in self.committed.values():
            for place in [place for place in offsets if place[0] == topic]:
                del offsets[place]
        self.ends = {place: end for place, end in self.ends.items() if place[0] != topic}
        self.writes.append(("delete_topic", topic))

    def initialize_offsets(self, group: str, topic: str, partitions: Collection[int], offset: str) -> None:
        self._maybe_fail("initialize_offsets")
        offsets = self.committed.get(group, {})
        missing = sorted(id_ for id_ in partitions if (topic, id_) not in offsets)
        if not missing:
            return
        present = self._topic(topic)
        if any(id_ not in present for id_ in missing):
            raise NotFound("Kafka", f"{topic} has not all of the partitions {missing}")
        if group in self.members:
            if offset == "earliest" and offsets:
                return
            raise Conflict("Kafka", f"group {group} has members already")
        offsets = self.committed.setdefault(group, {})
        for id_ in missing:
            offsets[topic, id_] = self.ends.get((topic, id_), 0) if offset == "latest" else 0
        self.writes.append(("initialize_offsets", group))

    def delete_group(self, group: str) -> None:
        self._maybe_fail("delete_group")
        if group in self.members:
            raise Conflict("Kafka", f"group {group} has members")
        if self.committed.pop(group, None) is not None:
            self.writes.append(("delete_group", group))

    # -- rules

    def _maybe_fail(self, method: str) -> None:
        if method in self.failures:
            raise self.failures[method]

    def _topic(self, topic: str) -> dict[int, dict[str, Any]]:
        if topic not in self.partitions:
            raise NotFound("Kafka", f"there is no topic {topic}")
        return self.partitions[topic]

    def _check(self, assignments: Mapping[int, Sequence[int]]) -> None:
        known = {broker["id"] for broker in self.broker_list}
        for id_, replicas in assignments.items():
            if not replicas or len(set(replicas)) != len(replicas):
                raise Refused("Kafka", f"INVALID_REPLICA_ASSIGNMENT of partition {id_}: {list(replicas)}")
            if not set(replicas) <= known:
                raise Refused("Kafka", f"INVALID_REPLICA_ASSIGNMENT of partition {id_}: unknown broker")

    def _partition(self, replicas: Sequence[int]) -> dict[str, Any]:
        isr = [broker for broker in replicas if broker in self._up()]
        return {"replicas": list(replicas), "isr": isr, "leader": isr[0] if isr else -1}
