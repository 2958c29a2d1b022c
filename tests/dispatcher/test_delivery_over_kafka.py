"""A dispatcher process against a real broker: nothing lost, order kept, changes followed, failures told."""

import base64
import time

import pytest

from tests.fakes.subscriber import Reply

pytestmark = pytest.mark.kafka


def one(uid, url, **more):
    return {"uid": uid, "generation": 1, "subscriberUri": url, **more}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("transport", ["native", "aiohttp"])
def test_every_event_reaches_every_subscriber_as_it_was(channel, subscriber, start, protocol, transport):
    channel.declare(one("a", subscriber.url("/a")), one("b", subscriber.url("/b")))
    dispatcher = start(channel, GROUP_PROTOCOL=protocol, TRANSPORT=transport).wait_ready()
    for number in range(200):
        channel.produce(number, f"k{number % 7}", value=b'{"n": %d}' % number, ce_subject="grüße %", other="x")
    channel.flush()
    subscriber.wait_for(lambda s: len(s.received) >= 400)
    for path in ("/a", "/b"):
        got = subscriber.of(path)
        assert sorted(int(r.id) for r in got) == list(range(200))
    sample = next(r for r in subscriber.of("/a") if r.id == "5")
    assert sample.body == b'{"n": 5}'
    assert sample.headers["ce-subject"] == "gr%C3%BC%C3%9Fe%20%25"
    assert sample.headers["prefer"] == "reply"
    assert sample.headers["content-type"] == "application/json"
    assert "other" not in sample.headers
    assert dispatcher.stop() == 0


def test_the_seeds_counter_counts_every_partition_from_the_start(channel, subscriber, start):
    channel.declare(one("a", subscriber.url()))
    dispatcher = start(channel).wait_ready()
    line = 'eventing_kafka_consumed_msg_count{consumer="rdkafka#consumer-1",partition="%d",topic="%s"} %d'
    for number in range(4):
        assert line % (number, channel.topic, 0) in dispatcher.metrics().splitlines()
    channel.produce(1, partition=2)
    channel.flush()
    subscriber.wait_for(lambda s: s.received)
    lines = dispatcher.metrics().splitlines()
    assert line % (2, channel.topic, 1) in lines
    assert line % (1, channel.topic, 0) in lines
    assert "# TYPE eventing_kafka_consumed_msg_count gauge" in lines
    assert "# HELP eventing_kafka_consumed_msg_count Consumed Message Count" in lines


def test_order_per_key_and_never_two_of_a_key_at_once(channel, subscriber, start):
    subscriber.answer = lambda r: Reply(delay=0.002 * (int(r.id) % 5))
    channel.declare(one("a", subscriber.url("/a")))
    start(channel).wait_ready()
    for number in range(1500):
        channel.produce(number, f"k{number % 20}")
    channel.flush()
    subscriber.wait_for(lambda s: len(s.received) >= 1500)
    for key in range(20):
        ids = [int(r.id) for r in subscriber.received if r.headers["ce-partitionkey"] == f"k{key}"]
        assert ids == sorted(ids)
        assert len(ids) == 75
    assert max(subscriber.most_under_way.values()) == 1


@pytest.mark.parametrize(("order", "most"), [("ordered", 1), ("unordered", 8)])
def test_order_annotation_and_in_flight_bound(channel, subscriber, start, order, most):
    subscriber.answer = lambda _: Reply(delay=0.02)
    channel.declare(one("a", subscriber.url("/a")), annotations={"kafka.eventing.knative.dev/delivery.order": order})
    start(channel, MAX_IN_FLIGHT="8").wait_ready()
    for number in range(100):
        channel.produce(number, "same")
    channel.flush()
    subscriber.wait_for(lambda s: len(s.answered) >= 100)
    assert max(subscriber.most_under_way.values()) == most
    ids = [int(r.id) for r in subscriber.received]
    assert (ids == sorted(ids)) if order == "ordered" else (sorted(ids) == list(range(100)))


def test_a_changed_uri_is_used_within_two_seconds_without_losing_anything(channel, subscriber, start):
    channel.declare(one("a", subscriber.url("/old")))
    start(channel).wait_ready()
    channel.produce(0)
    channel.flush()
    subscriber.wait_for(lambda s: s.of("/old"))
    channel.declare(one("a", subscriber.url("/new")))
    began = time.monotonic()
    number = 0
    while not subscriber.of("/new"):
        number += 1
        channel.produce(number)
        channel.flush()
        time.sleep(0.02)
        assert time.monotonic() - began < 2.0
    subscriber.wait_for(lambda s: len(s.received) >= number + 1)
    assert sorted(int(r.id) for r in subscriber.received) == list(range(number + 1))


def test_subscribers_come_and_go_without_disturbing_others(channel, subscriber, start):
    channel.declare(one("a", subscriber.url("/a")))
    dispatcher = start(channel).wait_ready()
    channel.declare(one("a", subscriber.url("/a")), one("b", subscriber.url("/b")))
    deadline = time.monotonic() + 10
    while not dispatcher.status().get("b", {}).get("ready"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    channel.produce(1)
    channel.flush()
    subscriber.wait_for(lambda s: s.of("/a") and s.of("/b"))
    channel.declare(one("b", subscriber.url("/b")))
    while "a" in dispatcher.status():
        assert time.monotonic() < deadline + 10
        time.sleep(0.05)
    channel.produce(2)
    channel.flush()
    subscriber.wait_for(lambda s: len(s.of("/b")) == 2)
    assert [r.id for r in subscriber.of("/a")] == ["1"]
    assert dispatcher.metric("sluice_dispatcher_rebalances_total", subscription="b", kind="revoked") == 0


def test_a_hanging_subscriber_costs_the_others_nothing(channel, subscriber, start):
    subscriber.answer = lambda r: Reply(delay=60 if r.path == "/hangs" else 0)
    channel.declare(one("a", subscriber.url("/a")), one("b", subscriber.url("/hangs")))
    dispatcher = start(channel, MAX_IN_FLIGHT="16", DRAIN_TIMEOUT_SECONDS="1").wait_ready()
    for number in range(3000):
        channel.produce(number, f"k{number % 100}", value=b"x" * 500)
    channel.flush()
    began = time.monotonic()
    subscriber.wait_for(lambda s: len(s.of("/a")) >= 3000)
    assert time.monotonic() - began < 10
    time.sleep(8)  # longer than the session timeout of the group
    assert dispatcher.status()["b"]["partitions"] == [0, 1, 2, 3]
    assert dispatcher.metric("sluice_dispatcher_rebalances_total", kind="lost") == 0
    assert len(subscriber.of("/hangs")) <= 4 * 16
    assert dispatcher.metric("sluice_dispatcher_in_flight", subscription="b") <= 4 * 16
    assert dispatcher.metric("sluice_dispatcher_backlog_records", subscription="a") == 0
    subscriber.wait_for(lambda _: dispatcher.metric("sluice_dispatcher_backlog_records", subscription="b") == 3000, 8)
    assert dispatcher.stop() == 0


def test_a_timeout_ends_an_attempt_and_other_keys_go_on_meanwhile(channel, subscriber, start):
    subscriber.answer = lambda r: Reply(delay=30 if r.headers["ce-partitionkey"] == "bad" else 0)
    channel.declare(
        one("a", subscriber.url("/a"), delivery={"timeout": "PT0.3S", "retry": 1, "backoffPolicy": "linear",
            "backoffDelay": "PT0.2S"})
    )  # fmt: skip
    dispatcher = start(channel).wait_ready()
    channel.produce(0, "bad", partition=0)
    for number in range(1, 100):
        channel.produce(number, f"k{number}", partition=0)
    channel.flush()
    subscriber.wait_for(lambda s: len(s.of("/a")) >= 101)
    times = [r.at for r in subscriber.received if r.id == "0"]
    assert 0.4 < times[1] - times[0] < 1.0
    (letter,) = channel.dead_letters(1)
    headers = dict(letter.headers())
    assert headers["ce_knativeerrordest"].decode() == subscriber.url("/a")
    assert "ce_knativeerrorcode" not in headers
    assert "ce_knativeerrordata" not in headers
    assert dispatcher.metric("sluice_dispatcher_attempts_total", outcome="no_answer") == 2
    assert dispatcher.metric("sluice_dispatcher_events_settled_total", fate="dead_letter_topic") == 1


def test_retries_back_off_and_then_the_dead_letter_sink_gets_the_event_with_the_reason(channel, subscriber, start):
    def answer(received):
        if received.path == "/sink":
            return Reply(202)
        return Reply(503, body=b"not now \x00\xff")

    subscriber.answer = answer
    channel.declare(
        one("a", subscriber.url("/a")),
        delivery={"retry": 2, "backoffPolicy": "exponential", "backoffDelay": "PT0.1S",
                  "deadLetterSink": {"uri": subscriber.url("/sink")}},
    )  # fmt: skip
    start(channel).wait_ready()
    channel.produce(7, "k", value=b"data", ce_specversion="0.3", traceparent="00-1-2-01")
    channel.produce(8, "k")
    channel.flush()
    subscriber.wait_for(lambda s: len(s.of("/sink")) >= 2)
    attempts = [r.at for r in subscriber.of("/a") if r.id == "7"]
    assert len(attempts) == 3
    assert 0.18 < attempts[1] - attempts[0] < 0.3
    assert 0.38 < attempts[2] - attempts[1] < 0.55
    first = subscriber.of("/sink")[0]
    assert first.id == "7"
    assert first.body == b"data"
    assert first.headers["ce-specversion"] == "0.3"
    assert first.headers["ce-knativeerrordest"] == subscriber.url("/a")
    assert first.headers["ce-knativeerrorcode"] == "503"
    assert base64.b64decode(first.headers["ce-knativeerrordata"]) == b"not now \x00\xff"
    assert first.headers["traceparent"] == "00-1-2-01"
    assert "prefer" not in first.headers
    assert [r.id for r in subscriber.of("/a")] == ["7", "7", "7", "8", "8", "8"]


def test_when_the_sink_fails_too_the_record_is_durable_in_the_topic_before_its_offset_passes(
    channel, subscriber, start
):
    subscriber.answer = lambda r: Reply(500 if r.path == "/sink" else 400, body=b"no")
    channel.declare(
        one("a", subscriber.url("/a")),
        delivery={"retry": 1, "backoffPolicy": "linear", "backoffDelay": "PT0.05S",
                  "deadLetterSink": {"uri": subscriber.url("/sink")}},
    )  # fmt: skip
    start(channel).wait_ready()
    channel.produce(7, "k", value=b"data", partition=1)
    channel.flush()
    (letter,) = channel.dead_letters(1)
    headers = dict(letter.headers())
    assert (letter.partition(), letter.key(), letter.value()) == (1, b"k", b"data")
    assert headers["ce_id"] == b"7"
    assert headers["ce_knativeerrordest"].decode() == subscriber.url("/a")
    assert headers["ce_knativeerrorcode"] == b"400"
    assert base64.b64decode(headers["ce_knativeerrordata"]) == b"no"
    assert headers["sluice-subscription"] == b"a"
    assert headers["sluice-origin"].decode() == f"{channel.topic}/1/0"
    assert len(subscriber.of("/a")) == 1, "400 is final"
    assert len(subscriber.of("/sink")) == 2


def test_what_is_no_event_goes_to_the_topic_with_the_reason(channel, subscriber, start):
    channel.declare(one("a", subscriber.url("/a")))
    dispatcher = start(channel).wait_ready()
    channel.producer.produce(channel.topic, value=b"garbage", key=b"k", partition=0)
    channel.producer.produce(
        channel.topic, value=b"{", headers={"content-type": b"application/cloudevents+json"}, partition=0
    )
    channel.produce(1, "k", partition=0)
    channel.flush()
    subscriber.wait_for(lambda s: s.received)
    letters = channel.dead_letters(2)
    assert {letter.value() for letter in letters} == {b"garbage", b"{"}
    assert all(dict(letter.headers())["sluice-reason"] for letter in letters)
    assert [r.id for r in subscriber.received] == ["1"]
    assert dispatcher.metric("sluice_dispatcher_events_settled_total", fate="discarded") == 2


def test_structured_records_are_delivered_in_binary_mode(channel, subscriber, start):
    channel.declare(one("a", subscriber.url("/a")))
    start(channel).wait_ready()
    document = b'{"specversion":"1.0","id":"9","source":"/s","type":"t","data":{"x":1.10}}'
    channel.producer.produce(channel.topic, value=document, headers={"content-type": b"application/cloudevents+json"})
    channel.flush()
    subscriber.wait_for(lambda s: s.received)
    (received,) = subscriber.received
    assert (received.id, received.body) == ("9", b'{"x":1.10}')


def test_replies_go_to_the_reply_uri_but_not_those_with_202(channel, subscriber, start):
    def answer(received):
        if received.path == "/reply":
            return Reply(202)
        headers = {"ce-specversion": "1.0", "ce-id": f"r{received.id}", "ce-source": "/s", "ce-type": "t"}
        return {
            "1": Reply(200, headers, b"answer"),
            "2": Reply(202, headers, b"answer"),
            "3": Reply(200, {"content-type": "text/plain"}, b"fine"),
        }[received.id]

    subscriber.answer = answer
    channel.declare(one("a", subscriber.url("/a"), replyUri=subscriber.url("/reply")))
    dispatcher = start(channel).wait_ready()
    for number in (1, 2, 3):
        channel.produce(number)
    channel.flush()
    subscriber.wait_for(lambda s: len(s.of("/a")) >= 3 and s.of("/reply"))
    time.sleep(0.3)
    (reply,) = subscriber.of("/reply")
    assert (reply.id, reply.body) == ("r1", b"answer")
    assert dispatcher.metric("sluice_dispatcher_events_settled_total", fate="delivered") == 3


def test_a_reply_that_fails_repeats_the_whole_delivery_and_ends_as_dead_letter_of_the_reply_uri(
    channel, subscriber, start
):
    headers = {"ce-specversion": "1.0", "ce-id": "r", "ce-source": "/s", "ce-type": "t"}
    subscriber.answer = lambda r: Reply(500) if r.path == "/reply" else Reply(200, headers, b"answer")
    channel.declare(
        one("a", subscriber.url("/a"), replyUri=subscriber.url("/reply")),
        delivery={"retry": 2, "backoffPolicy": "linear", "backoffDelay": "PT0.05S"},
    )
    start(channel).wait_ready()
    channel.produce(1)
    channel.flush()
    (letter,) = channel.dead_letters(1)
    assert dict(letter.headers())["ce_knativeerrordest"].decode() == subscriber.url("/reply")
    assert dict(letter.headers())["ce_knativeerrorcode"] == b"500"
    assert dict(letter.headers())["ce_id"] == b"1", "the original event, not the reply"
    assert (len(subscriber.of("/a")), len(subscriber.of("/reply"))) == (3, 3)


def test_retry_after_is_honoured_up_to_its_limit(channel, subscriber, start):
    subscriber.answer = lambda r: Reply(429, {"retry-after": "60"}) if len(subscriber.received) == 1 else Reply()
    channel.declare(
        one("a", subscriber.url("/a")),
        delivery={"retry": 2, "backoffPolicy": "linear", "backoffDelay": "PT0.01S", "retryAfterMax": "PT1S"},
    )
    start(channel).wait_ready()
    channel.produce(1)
    channel.flush()
    subscriber.wait_for(lambda s: len(s.received) == 2)
    assert 0.95 < subscriber.received[1].at - subscriber.received[0].at < 1.3
