"""The CloudEvents SDK as an independent oracle: what it writes we understand, what we write it understands."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from cloudevents.core.bindings import http, kafka
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v03.event import CloudEvent as CloudEventV03
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from eventing.cloudevents import Record, json_from_record
from eventing.cloudevents_http import event_from_response, records_from_request, request_from_record

FORMAT = JSONFormat()
# What an attribute may hold: any Unicode but control characters, surrogates and noncharacters (spec, "String").
attribute_text = st.text(
    st.characters(
        blacklist_categories=("Cc", "Cs"), blacklist_characters="".join(map(chr, range(0xFDD0, 0xFDF0)))
    ).filter(lambda c: ord(c) & 0xFFFE != 0xFFFE),
    min_size=1,
    max_size=40,
)
extension_name = st.from_regex(r"[a-z][a-z0-9]{0,19}", fullmatch=True).filter(
    lambda name: name
    not in {
        "id", "source", "type", "specversion", "subject", "time", "data", "dataschema", "schemaurl",
        "datacontenttype", "datacontentencoding",
    }
)  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def events(draw, data):
    attributes = {
        "specversion": draw(st.sampled_from(["1.0", "0.3"])),
        "id": draw(attribute_text),
        "source": draw(attribute_text),
        "type": draw(attribute_text),
        "time": datetime(2026, 11, 20, 3, 0, draw(st.integers(0, 59)), tzinfo=UTC),
        **draw(st.dictionaries(extension_name, attribute_text, max_size=4)),
    }
    if draw(st.booleans()):
        attributes["subject"] = draw(attribute_text)
    content_type, payload = draw(data)
    if content_type is not None:
        attributes["datacontenttype"] = content_type
    return (CloudEvent if attributes["specversion"] == "1.0" else CloudEventV03)(attributes, payload)


json_data = st.tuples(
    st.sampled_from(["application/json", "application/vnd.example+json", "application/json; charset=utf-8"]),
    st.dictionaries(st.text(max_size=5), json_values, max_size=4),
)
text_data = st.tuples(st.just("text/plain"), st.text(st.characters(blacklist_categories=("Cs",)), min_size=1))
byte_data = st.tuples(st.just("application/octet-stream"), st.binary(min_size=1, max_size=60))
any_data = json_data | text_data | byte_data | st.just((None, None))


def wire_headers(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def sdk_reads(request) -> object:
    """Our request as the SDK understands it. The body stays bytes: how data is parsed is not our business."""
    head, body = request
    headers = dict(line.split(": ", 1) for line in head.decode("ascii").split("\r\n") if line)
    return http.from_binary_event(http.HTTPMessage(headers=headers, body=body))


def attributes_of(event) -> dict[str, object]:
    return {name: value for name, value in event.get_attributes().items() if value is not None}


def only(records: object) -> Record:
    assert isinstance(records, list), records
    assert len(records) == 1
    return records[0]


def body_of(event) -> bytes | None:
    data = event.get_data()
    return None if data is None else FORMAT.write_data(data, event.get_datacontenttype())


@given(events(any_data))
def test_binary_request_of_the_sdk_becomes_a_record_with_utf8_headers(event):
    message = http.to_binary_event(event)
    record = only(records_from_request(wire_headers(message.headers), message.body))

    headers = dict(record.headers)
    for name, value in event.get_attributes().items():
        if name == "datacontenttype":
            assert headers["content-type"] == value.encode()
        elif name != "time":
            assert headers["ce_" + name] == value.encode()
    assert record.value == (body_of(event) or None)
    assert record.key == headers.get("ce_partitionkey")


@given(events(any_data))
def test_what_a_subscriber_gets_is_what_the_sender_sent_in_binary_mode(event):
    message = http.to_binary_event(event)
    record = only(records_from_request(wire_headers(message.headers), message.body))
    request = request_from_record(record.headers, record.value)

    assert attributes_of(sdk_reads(request)) == attributes_of(event)
    assert request[1] == message.body


@given(events(json_data | byte_data | st.just((None, None))))
def test_what_a_subscriber_gets_is_what_the_sender_sent_in_structured_mode(event):
    message = http.to_structured_event(event)
    record = only(records_from_request(wire_headers(message.headers), message.body))
    request = request_from_record(record.headers, record.value)
    seen = sdk_reads(request)

    assert attributes_of(seen) == attributes_of(event)
    data = event.get_data()
    if isinstance(data, dict):
        assert json.loads(request[1]) == json.loads(json.dumps(data))
    else:
        assert request[1] == (data or b"")


@given(events(text_data))
def test_text_in_structured_mode_arrives_as_text(event):
    message = http.to_structured_event(event)
    record = only(records_from_request(wire_headers(message.headers), message.body))
    assert record.value == event.get_data().encode()


@given(events(json_data | byte_data | st.just((None, None))))
def test_structured_record_of_the_sdk_is_delivered_in_binary_mode(event):
    message = kafka.to_structured_event(event)
    request = request_from_record(list(message.headers.items()), message.value)
    assert attributes_of(sdk_reads(request)) == attributes_of(event)


@given(events(any_data))
def test_json_that_we_write_is_read_back_by_the_sdk(event):
    message = http.to_binary_event(event)
    record = only(records_from_request(wire_headers(message.headers), message.body))
    text = json_from_record(record.headers, record.value)
    assert isinstance(text, bytes), text
    seen = FORMAT.read(None, text)

    seen_attributes = attributes_of(seen)
    seen_attributes.pop("datacontentencoding", None)
    assert seen_attributes == attributes_of(event)
    data = seen.get_data()
    assert (FORMAT.write_data(data, "application/octet-stream") if isinstance(data, str | bytes) else data) == (
        event.get_data() if isinstance(event.get_data(), dict) else body_of(event)
    )


@given(events(any_data))
def test_json_that_we_write_is_read_back_by_us(event):
    message = http.to_binary_event(event)
    record = only(records_from_request(wire_headers(message.headers), message.body))
    text = json_from_record(record.headers, record.value)
    again = only(records_from_request([(b"content-type", b"application/cloudevents+json")], text))

    assert sorted(again.headers) == sorted(record.headers)
    assert again.key == record.key
    if record.value is None or (record.headers and b"json" not in dict(record.headers).get("content-type", b"json")):
        assert again.value == record.value
    else:
        assert json.loads(again.value) == json.loads(record.value)


@given(events(any_data))
def test_event_in_an_answer_is_a_reply(event):
    for message in (http.to_binary_event(event), http.to_structured_event(event)):
        reply = event_from_response(wire_headers(message.headers), message.body)
        assert attributes_of(sdk_reads(reply)) == attributes_of(event)


@pytest.mark.parametrize("version", ["1.0", "0.3"])
def test_specification_version_is_kept(version):
    headers = {"ce-specversion": version, "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
    record = only(records_from_request(wire_headers(headers), b""))
    assert attributes_of(sdk_reads(request_from_record(record.headers, record.value)))["specversion"] == version
