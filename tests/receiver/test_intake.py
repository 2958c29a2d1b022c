"""The receiver's answers: 202 for what is durable and for nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher_image.receiver_http import HttpServer, Limits
from dispatcher_image.receiver_intake import Intake, NotTaken
from dispatcher_image.receiver_routing import RoutingTable
from tests.fakes.event_log import MemoryEventLog
from tests.receiver.conversation import Client, request
from tests.receiver.test_routing import ORDERS, channel

EVENT = ("ce-specversion: 1.0", "ce-id: 123", "ce-source: /testsource", "ce-type: test.type.v1")
MINIMAL = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
LIMITS = Limits(max_body_bytes=1000)
DOWN = NotTaken("all brokers are down")


class Receiver(Client):
    def __init__(self, event_log: MemoryEventLog | None = None) -> None:
        self.log = event_log or MemoryEventLog()
        self.table = RoutingTable()
        self.table.replace({ORDERS: channel()})
        super().__init__(server=HttpServer(Intake(self.table, self.log), LIMITS))

    def post(self, body: bytes = b"", *headers: str, target: str = "/team-a/orders", **more: str) -> Receiver:
        self.send(request(body, *headers, target=target, **more))
        return self

    @property
    def accepted(self) -> int:
        return sum(route.accepted for route in self.table.routes())


def batch(*ids: str) -> bytes:
    return json.dumps([{**MINIMAL, "id": event_id} for event_id in ids]).encode()


BATCH = "Content-Type: application/cloudevents-batch+json"


class TestAccepted:
    def test_event_is_durable_and_answered_with_202_without_a_body(self):
        receiver = Receiver().post(b'{"a":1}', *EVENT, "Content-Type: application/json")
        assert receiver.statuses == [202]
        assert receiver.answers[0].body == b""
        ((topic, record),) = receiver.log.records
        assert topic == "team-a.orders"
        assert record.value == b'{"a":1}'
        assert dict(record.headers)["ce_id"] == b"123"

    def test_answer_waits_until_the_event_is_durable(self):
        receiver = Receiver(MemoryEventLog(holds=True)).post(b"x", *EVENT)
        assert receiver.statuses == []
        receiver.log.settle()
        assert receiver.statuses == [202]

    def test_channel_is_known_by_its_host(self):
        assert Receiver().post(b"x", *EVENT, target="/", host="orders-kn-channel.team-a.svc:80").statuses == [202]

    def test_structured_event_is_accepted(self):
        receiver = Receiver().post(json.dumps(MINIMAL).encode(), "Content-Type: application/cloudevents+json")
        assert receiver.statuses == [202]
        assert dict(receiver.log.records[0][1].headers)["ce_id"] == b"1"

    def test_batch_is_accepted_when_every_event_is_durable(self):
        receiver = Receiver(MemoryEventLog(holds=True)).post(batch("1", "2", "3"), BATCH)
        receiver.log.settle(2)
        assert receiver.statuses == []
        receiver.log.settle()
        assert receiver.statuses == [202]
        assert [dict(record.headers)["ce_id"] for _, record in receiver.log.records] == [b"1", b"2", b"3"]
        assert receiver.accepted == 3

    def test_empty_batch_is_accepted(self):
        assert Receiver().post(b"[]", BATCH).statuses == [202]

    def test_new_channel_takes_events_at_once(self):
        receiver = Receiver().post(b"x", *EVENT, target="/team-a/new")
        receiver.table.replace({("team-a", "new"): channel("new")})
        assert receiver.post(b"x", *EVENT, target="/team-a/new").statuses == [404, 202]

    def test_accepted_events_are_counted_by_channel(self):
        receiver = Receiver().post(b"x", *EVENT).post(b"", *EVENT)
        assert receiver.accepted == 2


class TestRefused:
    @pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "TRACE"])
    def test_other_methods_get_405_and_the_allowed_ones(self, method):
        receiver = Receiver().post(method=method)
        assert receiver.statuses == [405]
        assert receiver.answers[0].headers["Allow"] == "POST, OPTIONS"

    def test_options_gets_the_webhook_handshake(self):
        answer = Receiver().post(b"", "WebHook-Request-Origin: eventemitter.example.com", method="OPTIONS").answers[0]
        assert answer.status == 200
        assert answer.headers["Allow"] == "POST, OPTIONS"
        assert answer.headers["WebHook-Allowed-Origin"] == "*"
        assert answer.headers["WebHook-Allowed-Rate"] == "*"

    @pytest.mark.parametrize("target", ["/", "/team-a/other", "/other", "/team-a/orders/more"])
    def test_unknown_channel_gets_404(self, target):
        assert Receiver().post(b"x", *EVENT, target=target).statuses == [404]

    @pytest.mark.parametrize(
        ("body", "headers"),
        [
            pytest.param(b"x", (), id="no event at all"),
            pytest.param(b"x", EVENT[:3], id="no type"),
            pytest.param(b"{", ("Content-Type: application/cloudevents+json",), id="damaged JSON"),
            pytest.param(batch("1", ""), (BATCH,), id="one bad event in a batch"),
            pytest.param(b"x", (*EVENT, "ce-partitionkey:"), id="empty partitionkey"),
            pytest.param(b"x", (*EVENT, "ce-subject: %C0%A0"), id="not UTF-8"),
        ],
    )
    def test_what_is_no_event_gets_400_with_the_reason_and_writes_nothing(self, body, headers):
        receiver = Receiver().post(body, *headers)
        assert receiver.statuses == [400]
        assert len(receiver.answers[0].body) > 10
        assert receiver.log.records == []

    def test_too_large_an_event_gets_413(self):
        assert Receiver().post(b"x" * 1001, *EVENT).statuses == [413]

    def test_event_larger_than_its_topic_takes_gets_413(self):
        receiver = Receiver(MemoryEventLog(holds=True)).post(b"x", *EVENT)
        receiver.log.settle(error=NotTaken("too large", is_too_large=True))
        assert receiver.statuses == [413]


class TestStarting:
    def test_unknown_channel_gets_503_until_the_registry_was_read(self):
        receiver = Receiver()
        receiver.table.is_known = False
        receiver.post(b"x", *EVENT, target="/team-a/other").post(b"x", *EVENT)
        receiver.table.replace({ORDERS: channel()})
        receiver.post(b"x", *EVENT, target="/team-a/other")
        assert receiver.statuses == [503, 202, 404]


class TestKafkaAway:
    def test_event_gets_503_and_the_connection_goes_on(self):
        receiver = Receiver()
        receiver.log.error = DOWN
        receiver.post(b"x", *EVENT)
        receiver.log.error = None
        receiver.post(b"x", *EVENT)
        assert receiver.statuses == [503, 202]
        assert receiver.answers[0].headers["Retry-After"] == "1"
        assert receiver.accepted == 1

    def test_batch_gets_503_once_when_one_event_fails(self):
        receiver = Receiver(MemoryEventLog(holds=True)).post(batch("1", "2", "3"), BATCH)
        receiver.log.settle()
        receiver.log.settle(error=DOWN)
        assert receiver.statuses == [503]
        receiver.log.settle()
        assert receiver.statuses == [503]
        assert receiver.accepted == 2

    def test_rest_of_a_batch_is_not_written_once_one_was_refused(self):
        receiver = Receiver()
        receiver.log.error = DOWN
        receiver.post(batch("1", "2", "3"), BATCH)
        assert receiver.statuses == [503]
        assert receiver.log.waiting == 0

    def test_outage_is_logged_now_and_then_not_for_each_event(self, caplog):
        receiver = Receiver()
        receiver.log.error = DOWN
        for _ in range(50):
            receiver.post(b"x", *EVENT)
        assert receiver.statuses == [503] * 50
        assert caplog.text.count("receiver.not_durable") == 1


@given(st.lists(st.tuples(st.sampled_from(["append", "settle", "fail"]), st.integers(1, 3)), max_size=40))
def test_202_is_never_said_for_what_is_not_durable(steps):
    """Whatever the order of requests, confirmations and failures: each 202 stands for a record in the log."""
    receiver = Receiver(MemoryEventLog(holds=True))
    events_of_request: list[set[bytes]] = []
    number = 0
    for step, count in steps:
        if step == "append":
            ids = [str(number + i) for i in range(count)]
            number += count
            events_of_request.append({event_id.encode() for event_id in ids})
            receiver.post(batch(*ids), BATCH)
        elif receiver.log.waiting:
            receiver.log.settle(1, error=None if step == "settle" else DOWN)
        durable = {dict(record.headers)["ce_id"] for _, record in receiver.log.records}
        for status, ids in zip(receiver.statuses, events_of_request, strict=False):
            assert status == (202 if ids <= durable else 503)
