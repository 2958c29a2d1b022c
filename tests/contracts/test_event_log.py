"""What the receiver may expect of its log: the one in memory and real Kafka keep the same promises."""

from __future__ import annotations

import asyncio
import os
import uuid

import pytest

from dispatcher_image.receiver_intake import NotTaken
from dispatcher_image.receiver_producer import KafkaLog, producer_properties
from eventing.cloudevents import Record
from orchestration.local.ports import LOOPBACK, free_port
from tests.fakes.event_log import MemoryEventLog
from tests.receiver.topics import create_topic, records_of

HEADERS = [("ce_specversion", b"1.0"), ("ce_source", b"/s"), ("ce_type", b"t")]


def record(event_id: str, value: bytes | None = b"x", key: bytes | None = None) -> Record:
    return Record(key, value, [*HEADERS, ("ce_id", event_id.encode())])


class Verdicts(list):
    """What became of records, in the order in which it was told."""

    def of(self, event_id: str):
        return lambda error: self.append((event_id, error))


class EventLogContract:
    """Subclasses give `run(scenario)`, which calls `await scenario(log, topic, all_settled)`, and `stored(topic)`."""

    def test_settled_without_error_means_stored(self):
        async def scenario(log, topic, settled):
            verdicts = Verdicts()
            log.append(topic, record("1", b"\x00\xff", b"k"), verdicts.of("1"))
            log.append(topic, record("2", None), verdicts.of("2"))
            await settled(verdicts, 2)
            assert verdicts == [("1", None), ("2", None)]

        topic = self.run(scenario)
        assert self.stored(topic) == [record("1", b"\x00\xff", b"k"), record("2", None)]

    def test_records_of_a_partition_keep_their_order(self):
        async def scenario(log, topic, settled):
            verdicts = Verdicts()
            for number in range(500):
                log.append(topic, record(str(number)), verdicts.of(str(number)))
            await settled(verdicts, 500)
            assert verdicts == [(str(number), None) for number in range(500)]

        topic = self.run(scenario)
        assert [dict(stored.headers)["ce_id"] for stored in self.stored(topic)] == [b"%d" % i for i in range(500)]


class TestMemoryEventLog(EventLogContract):
    def run(self, scenario):
        self.log = MemoryEventLog()

        async def settled(verdicts, count):
            assert len(verdicts) == count

        asyncio.run(scenario(self.log, "topic", settled))
        return "topic"

    def stored(self, topic):
        return [stored for name, stored in self.log.records if name == topic]


async def wait_for(verdicts, count, seconds=30.0):
    async with asyncio.timeout(seconds):
        while len(verdicts) < count:  # noqa: ASYNC110  # the log calls back without an event
            await asyncio.sleep(0.005)


def kafka_log(bootstrap, *, timeout=20.0, max_event_bytes=1_048_576):
    properties = producer_properties(bootstrap, {}, delivery_timeout_s=timeout, max_event_bytes=max_event_bytes)
    return KafkaLog(properties, asyncio.get_running_loop())


@pytest.mark.kafka
class TestKafkaLog(EventLogContract):
    @pytest.fixture(autouse=True)
    def _kafka(self, kafka):
        self.bootstrap = kafka.bootstrap

    def run(self, scenario):
        topic = "log-" + uuid.uuid4().hex[:8]
        create_topic(self.bootstrap, topic)

        async def main():
            log = kafka_log(self.bootstrap)
            await scenario(log, topic, wait_for)
            assert log.owed == 0
            assert log.close(5) == 0

        asyncio.run(main())
        return topic

    def stored(self, topic):
        return [Record(m.key(), m.value(), m.headers()) for m in records_of(self.bootstrap, topic)]

    def test_new_properties_take_over_and_the_old_producer_finishes(self):
        async def scenario(log, topic, settled):
            verdicts = Verdicts()
            log.append(topic, record("1"), verdicts.of("1"))
            log.replace(log._properties)
            log.append(topic, record("2"), verdicts.of("2"))
            await settled(verdicts, 2)
            assert sorted(verdicts) == [("1", None), ("2", None)]
            async with asyncio.timeout(10):
                while log._retired:  # noqa: ASYNC110  # it ends in its own thread
                    await asyncio.sleep(0.01)

        self.run(scenario)

    def test_closing_waits_for_what_is_owed(self):
        async def scenario(log, topic, settled):
            verdicts = Verdicts()
            for number in range(1000):
                log.append(topic, record(str(number), os.urandom(1000)), verdicts.of(str(number)))
            assert log.close(20) == 0
            assert len(verdicts) == 1000

        assert len(self.stored(self.run(scenario))) == 1000

    def test_too_large_is_told_apart(self):
        async def main():
            log = kafka_log(self.bootstrap, max_event_bytes=2000)
            verdicts = Verdicts()
            log.append("any", record("1", bytes(200_000)), verdicts.of("1"))
            assert verdicts[0][1].is_too_large
            assert log.close(5) == 0

        asyncio.run(main())


def test_nobody_there_is_told_within_the_delivery_timeout():
    async def main():
        log = kafka_log(f"{LOOPBACK}:{free_port()}", timeout=0.5)
        verdicts = Verdicts()
        log.append("topic", record("1"), verdicts.of("1"))
        await wait_for(verdicts, 1, 5)
        ((_, error),) = verdicts
        assert isinstance(error, NotTaken)
        assert not error.is_too_large
        assert log.reach() is not None
        assert log.close(1) == 0

    asyncio.run(main())


def test_full_queue_is_told_at_once():
    async def main():
        log = kafka_log(f"{LOOPBACK}:{free_port()}", timeout=60)
        verdicts = Verdicts()
        for number in range(80):
            log.append("topic", record(str(number), bytes(1_000_000)), verdicts.of(str(number)))
        assert verdicts
        assert verdicts[0][1].reason.startswith("the queue")
        assert log.close(0) > 0

    asyncio.run(main())
