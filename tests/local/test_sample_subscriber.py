"""The sample subscriber shows a newcomer every event that came."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from orchestration.local.ports import LOOPBACK, free_port, give_back
from orchestration.local.sample_subscriber import MAX_EVENTS, SampleSubscriber

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
EVENT = [(b"ce-specversion", b"1.0"), (b"ce-id", b"1"), (b"ce-source", b"/s"), (b"ce-type", b"t")]


def post(subscriber, headers, body=b"", path="/"):
    status, content, _ = subscriber.answer("POST", path, headers, body, NOW)
    assert (status, content) == ("202 Accepted", b"")


def events(subscriber):
    status, content, content_type = subscriber.answer("GET", "/events", [], b"", NOW)
    assert (status, content_type) == ("200 OK", "application/json")
    return json.loads(content)


def test_event_is_shown_with_its_attributes_data_path_and_time(capsys):
    subscriber = SampleSubscriber()
    headers = [*EVENT, (b"ce-subject", b"%E2%82%AC"), (b"content-type", b"application/json"), (b"x-other", b"x")]
    post(subscriber, headers, b'{"a":1}', "/orders")
    assert events(subscriber) == [
        {
            "path": "/orders",
            "received_at": "2026-11-20T03:00:00.000+00:00",
            "attributes": {
                "specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": "€",
                "datacontenttype": "application/json",
            },
            "data": {"a": 1},
        }
    ]  # fmt: skip
    assert capsys.readouterr().out == '#1 2026-11-20T03:00:00.000+00:00 /orders t id=1 source=/s {"a": 1}\n'


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"", {"data": None}),
        (b"plain", {"data": "plain"}),
        (b"[1]", {"data": [1]}),
        (b"\xff", {"data": None, "data_base64": "/w=="}),
        (b"[" * 100_000, {"data": "[" * 100_000}),
    ],
)
def test_data_is_shown_as_well_as_it_can_be_read(body, shown):
    subscriber = SampleSubscriber()
    post(subscriber, EVENT, body)
    (event,) = events(subscriber)
    assert {name: value for name, value in event.items() if name.startswith("data")} == shown


def test_structured_events_and_batches_are_taken():
    subscriber = SampleSubscriber()
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
    post(subscriber, [(b"content-type", b"application/cloudevents+json")], json.dumps(event).encode())
    batch = json.dumps([{**event, "id": "2"}, {**event, "id": "3"}]).encode()
    post(subscriber, [(b"content-type", b"application/cloudevents-batch+json")], batch)
    assert [event["attributes"]["id"] for event in events(subscriber)] == ["1", "2", "3"]


def test_what_is_no_event_is_shown_with_the_reason(capsys):
    subscriber = SampleSubscriber()
    post(subscriber, [], b"hello")
    (event,) = events(subscriber)
    assert event["attributes"] == {}
    assert event["problem"].startswith("not a CloudEvent")
    assert "not an event" in capsys.readouterr().out


def test_old_events_are_forgotten():
    subscriber = SampleSubscriber()
    for number in range(MAX_EVENTS + 5):
        post(subscriber, [*EVENT[:1], (b"ce-id", b"%d" % number), *EVENT[2:]])
    shown = events(subscriber)
    assert len(shown) == MAX_EVENTS
    assert shown[-1]["attributes"]["id"] == str(MAX_EVENTS + 4)


def test_other_paths_and_methods_say_what_there_is():
    subscriber = SampleSubscriber()
    assert subscriber.answer("GET", "/healthz", [], b"", NOW)[0] == "200 OK"
    assert subscriber.answer("GET", "/", [], b"", NOW)[0].startswith("404")
    assert subscriber.answer("PUT", "/", [], b"", NOW)[0].startswith("405")


@pytest.fixture
def port():
    number = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestration.local.sample_subscriber", "--port", str(number)],
        stdout=subprocess.PIPE,
    )
    assert b"sample subscriber on" in process.stdout.readline()
    yield number
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 0, output
    give_back(number)


def test_serves_over_http_as_any_sender_speaks_it(port):
    headers = {name.decode(): value.decode() for name, value in EVENT}
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=10)
    connection.request("POST", "/a", b"whole", headers)
    assert connection.getresponse().read() == b""
    connection.request("POST", "/b", iter([b"in ", b"chunks"]), headers, encode_chunked=True)
    assert connection.getresponse().read() == b""
    connection.request("POST", "/c", b"waits", {**headers, "Expect": "100-continue", "Connection": "close"})
    assert connection.getresponse().status == 202
    connection.close()
    connection.request("GET", "/events")
    shown = json.loads(connection.getresponse().read())
    assert [(event["path"], event["data"]) for event in shown] == [
        ("/a", "whole"),
        ("/b", "in chunks"),
        ("/c", "waits"),
    ]
    for bad in ({"Content-Length": "x"}, {"Content-Length": "99999999999"}, {"X": "y" * 100_000}):
        connection.close()
        connection.putrequest("POST", "/")
        for name, value in bad.items():
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status in {400, 413, 431}
    connection.close()


def test_taken_port_is_said_in_one_line(port):
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "orchestration.local.sample_subscriber", "--port", str(port)],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"cannot start: ")
    assert b"Traceback" not in done.stderr
    assert time.monotonic() - began < 20
