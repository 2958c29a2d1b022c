"""Dispatchers that die, come, go and are cut off: nothing lost, order per key kept, repeats bounded."""

import random
import threading
import time

import pytest
from confluent_kafka import TopicPartition

from orchestration.local.kafka_server import KafkaServer
from tests.dispatcher.conftest import Channel
from tests.dispatcher.test_delivery_over_kafka import one
from tests.fakes.subscriber import Reply

pytestmark = pytest.mark.kafka


def assert_all_in_order(received, count, keys):
    """Nothing lost, and per key a repeat may go back, never forward over a gap. Gives the number of repeats."""
    seen = {}
    for item in received:
        key, number = item.headers["ce-partitionkey"], int(item.headers["ce-position"])
        reached = seen.get(key, -1)
        assert number <= reached + 1, f"key {key}: {number} after {reached}"
        seen[key] = max(reached, number)
    assert seen == {f"k{key}": count // keys - 1 for key in range(keys)}
    return len(received) - count


def produce(channel, count, keys, rate=None):
    """Events of which each knows its position within its key."""
    for number in range(count):
        channel.produce(number, f"k{number % keys}", ce_position=str(number // keys))
        if rate is not None and number % (rate // 20) == 0:
            time.sleep(0.05)
    channel.flush()


@pytest.mark.parametrize("processes", [1, 2])
def test_nothing_is_lost_when_a_dispatcher_is_killed_every_three_seconds(channel, subscriber, start, processes):
    subscriber.answer = lambda _: Reply(delay=0.004)
    channel.declare(one("a", subscriber.url("/a")), one("b", subscriber.url("/b")))
    running = [start(channel) for _ in range(processes)]
    for dispatcher in running:
        dispatcher.wait_ready()
    producing = threading.Thread(target=produce, args=(channel, 10_000, 100, 800))
    producing.start()
    kills = 0
    deadline = time.monotonic() + 150
    while len({(r.path, r.id) for r in list(subscriber.received)}) < 20_000:
        assert time.monotonic() < deadline, "no end of it"
        began = time.monotonic()
        while time.monotonic() - began < 3.0 and len({(r.path, r.id) for r in list(subscriber.received)}) < 20_000:
            time.sleep(0.1)
        victim = kills % processes
        running[victim].kill()
        kills += 1
        running[victim] = start(channel, **running[victim].same_ports())
    producing.join()
    time.sleep(0.5)
    assert kills >= 4
    for path in ("/a", "/b"):
        repeats = assert_all_in_order(subscriber.of(path), 10_000, 100)
        print(f"{path}: {kills} kills, {repeats} repeats")
        assert repeats < 2_000


def test_members_that_join_and_leave_all_the_time_lose_and_disorder_nothing(channel, subscriber, start):
    subscriber.answer = lambda _: Reply(delay=0.002 * random.random())
    channel.declare(one("a", subscriber.url("/a")))
    stays = start(channel).wait_ready()
    producing = threading.Thread(target=produce, args=(channel, 10_000, 50, 600))
    producing.start()
    changes = 0
    while producing.is_alive():
        guest = start(channel)
        time.sleep(2)
        assert guest.stop() == 0
        changes += 1
    producing.join()
    subscriber.wait_for(lambda s: len({r.id for r in list(s.received)}) == 10_000, 60)
    repeats = assert_all_in_order(subscriber.received, 10_000, 50)
    print(f"{changes} joins and leaves, {repeats} repeats")
    assert repeats == 0, "a member that leaves in order repeats nothing"
    assert stays.metric("sluice_dispatcher_rebalances_total", kind="lost") == 0
    assert max(subscriber.most_under_way.values()) == 1


def test_a_clean_restart_repeats_nothing_even_in_the_middle_of_everything(channel, subscriber, start):
    """Half of the keys are slow, so that much is finished above the committed offset when the process is stopped."""
    slow = {f"k{number}" for number in range(0, 50, 2)}
    subscriber.answer = lambda r: Reply(delay=0.1 if r.headers["ce-partitionkey"] in slow else 0)
    channel.declare(one("a", subscriber.url("/a")))
    first = start(channel).wait_ready()
    produce(channel, 5_000, 50)
    for stops in (500, 1500, 2600):
        subscriber.wait_for(lambda s, stops=stops: len(s.received) >= stops)
        assert first.stop() == 0
        first = start(channel).wait_ready()
    subscriber.wait_for(lambda s: len(s.received) >= 5_000, 60)
    time.sleep(1)
    assert assert_all_in_order(subscriber.received, 5_000, 50) == 0


def test_attempts_are_counted_on_across_restarts(channel, subscriber, start):
    subscriber.answer = lambda _: Reply(500, body=b"never")
    channel.declare(
        one("a", subscriber.url("/a")), delivery={"retry": 5, "backoffPolicy": "linear", "backoffDelay": "PT0.7S"}
    )
    first = start(channel).wait_ready()
    channel.produce(1, "k")
    channel.flush()
    subscriber.wait_for(lambda s: len(s.received) == 2)
    assert first.stop() == 0
    second = start(channel).wait_ready()
    subscriber.wait_for(lambda s: len(s.received) == 4)
    time.sleep(1.2)  # a commit is made every second; what a crash finds is the last one
    second.kill()
    start(channel).wait_ready()
    (letter,) = channel.dead_letters(1)
    assert dict(letter.headers())["ce_knativeerrorcode"] == b"500"
    assert len(subscriber.received) in {6, 7}, "1 + 5, and one more where the crash fell between attempt and commit"


def test_a_group_that_lost_records_to_retention_goes_on_at_the_earliest_and_says_so(channel, subscriber, start):
    channel.declare(one("a", subscriber.url("/a")))
    dispatcher = start(channel).wait_ready()
    channel.produce(0, partition=0)
    channel.flush()
    subscriber.wait_for(lambda s: len(s.received) == 1)
    assert dispatcher.stop() == 0
    for number in range(1, 11):
        channel.produce(number, partition=0)
    channel.flush()
    channel.admin.delete_records([TopicPartition(channel.topic, 0, 6)])[TopicPartition(channel.topic, 0, 6)].result(20)
    dispatcher = start(channel).wait_ready()
    subscriber.wait_for(lambda s: len(s.received) == 6)
    time.sleep(0.3)
    assert [r.id for r in subscriber.received] == ["0", "6", "7", "8", "9", "10"]
    assert dispatcher.metric("sluice_dispatcher_expired_records_total") == 5


def test_partitions_that_are_added_begin_at_their_earliest(channel, subscriber, start):
    from confluent_kafka.admin import NewPartitions

    channel.declare(one("a", subscriber.url("/a")))
    start(channel).wait_ready()
    channel.produce(0, partition=0)
    channel.flush()
    subscriber.wait_for(lambda s: len(s.received) == 1)
    for future in channel.admin.create_partitions([NewPartitions(channel.topic, 6)]).values():
        future.result(20)
    time.sleep(1)
    channel.admin.list_topics(channel.topic, timeout=10)
    from confluent_kafka import Producer

    channel.producer = Producer({"bootstrap.servers": channel.bootstrap})
    channel.produce(1, partition=5)
    channel.flush()
    subscriber.wait_for(lambda s: len(s.received) == 2, 30)


def test_a_new_subscription_begins_at_the_latest_or_where_it_is_told(channel, subscriber, start):
    for number in range(3):
        channel.produce(number)
    channel.flush()
    channel.declare(one("a", subscriber.url("/a")))
    dispatcher = start(channel).wait_ready()
    channel.produce(3)
    channel.flush()
    subscriber.wait_for(lambda s: s.received)
    assert [r.id for r in subscriber.of("/a")] == ["3"]
    channel.declare(
        one("a", subscriber.url("/a")),
        one("b", subscriber.url("/b")),
        annotations={"sluice.dev/initial-offset": "earliest"},
    )
    subscriber.wait_for(lambda s: len(s.of("/b")) == 4)
    assert len(subscriber.of("/a")) == 1
    assert dispatcher.stop() == 0


def test_a_member_that_leaves_in_order_hands_over_at_once(channel, subscriber, start):
    channel.declare(one("a", subscriber.url("/a")))
    first = start(channel).wait_ready()
    second = start(channel).wait_ready()
    deadline = time.monotonic() + 15
    while len(second.status()["a"]["partitions"]) != 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first.stop()
    began = time.monotonic()
    while len(second.status()["a"]["partitions"]) != 4:
        assert time.monotonic() - began < 4, "the session timeout was waited for"
        time.sleep(0.05)


def test_kafka_away_for_long_is_survived_without_a_restart(tmp_path, subscriber, start):
    folder = tmp_path / "registry"
    folder.mkdir()
    with KafkaServer(tmp_path / "kafka") as server:
        channel = Channel(server.bootstrap, folder)
        channel.declare(one("a", subscriber.url("/a")))
        dispatcher = start(channel).wait_ready()
        for number in range(50):
            channel.produce(number, "k")
        channel.flush()
        subscriber.wait_for(lambda s: len(s.received) == 50)
        server.kill_broker(0)
        time.sleep(15)
        assert dispatcher.process.poll() is None
        server.start_broker(0)
        for number in range(50, 100):
            channel.produce(number, "k")
        channel.flush()
        subscriber.wait_for(lambda s: {r.id for r in s.received} == {str(n) for n in range(100)}, 60)
        dispatcher.wait_ready()
        assert dispatcher.stop() == 0


def test_a_dispatcher_without_kafka_and_without_topic_waits_and_ends_when_told(tmp_path, subscriber, start):
    folder = tmp_path / "registry"
    folder.mkdir()

    class Nowhere:
        bootstrap, name, topic, registry = "127.0.0.1:1", "c", "t.c", folder

    Channel.declare(Nowhere.__new__(type("C", (Nowhere, Channel), {"partitions": 1})), one("a", subscriber.url("/a")))
    dispatcher = start(Nowhere)
    deadline = time.monotonic() + 20
    while "Kafka" not in dispatcher.status_or_empty().get("a", {}).get("reason", ""):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    began = time.monotonic()
    assert dispatcher.stop() == 0
    assert time.monotonic() - began < 15
