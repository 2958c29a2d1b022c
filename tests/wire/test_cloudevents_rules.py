"""The rules of the CloudEvents bindings one by one, and that bad input is a value."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventing import cloudevents_http
from eventing.cloudevents import (
    BATCH_CONTENT_TYPE,
    Record,
    Undecodable,
    binary_record,
    json_from_record,
    with_attributes,
)
from eventing.cloudevents_http import event_from_response, records_from_request, request_from_record

REQUIRED = {b"ce-specversion": b"1.0", b"ce-id": b"1", b"ce-source": b"/s", b"ce-type": b"t"}
RECORD = [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"/s"), ("ce_type", b"t")]
MINIMAL = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
JSON_EVENT = b"application/cloudevents+json"


def binary(body=b"", **headers):
    """One binary request; keyword `ce_x` is the header `ce-x`, None leaves a required one out."""
    fields = dict(REQUIRED)
    for name, value in headers.items():
        fields[name.replace("_", "-").encode()] = value
    return records_from_request([item for item in fields.items() if item[1] is not None], body)


def structured(event, content_type=JSON_EVENT, headers=()):
    body = event if isinstance(event, bytes) else json.dumps(event).encode()
    return records_from_request([(b"Content-Type", content_type), *headers], body)


def only(records) -> Record:
    assert isinstance(records, list), records
    assert len(records) == 1
    return records[0]


def header(records, name):
    return dict(only(records).headers).get(name)


class TestHeaderValues:
    @pytest.mark.parametrize(
        ("sent", "stored"),
        [
            pytest.param(b"plain", "plain", id="as it is"),
            pytest.param(b"Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀", id="the example of the specification"),
            pytest.param(b"%e2%82%ac", "€", id="lower-case hexadecimal"),
            pytest.param(b"%41%42", "AB", id="needless escapes"),
            pytest.param(b"%2541", "%41", id="one round only"),
            pytest.param(b'"quoted text"', "quoted text", id="double quotes come off first"),
            pytest.param(rb'"a \"b\" \\ c"', r'a "b" \ c', id="backslash escapes inside quotes"),
            pytest.param(b'"%22"', '"', id="quotes first, percent after"),
            pytest.param(b"with space", "with space", id="a bare space, legal before 1.0.1"),
            pytest.param("é".encode(), "é", id="raw UTF-8 from a sloppy sender"),
            pytest.param(b"100%", "100%", id="a percent sign that starts no escape"),
            pytest.param(b"%zz", "%zz", id="not hexadecimal"),
            pytest.param(b"  padded\t", "padded", id="white space around is not the value"),
        ],
    )
    def test_are_decoded_into_utf8(self, sent, stored):
        assert header(binary(ce_subject=sent), "ce_subject") == stored.encode()

    @pytest.mark.parametrize("sent", [b"%C0%A0", b"%ff", b"\xff\xfe", b"%ED%A0%80"])
    def test_that_are_not_utf8_are_refused(self, sent):
        assert binary(ce_subject=sent) == Undecodable("the attribute subject is not valid UTF-8")

    @pytest.mark.parametrize("sent", [b"%0D%0AX-Evil:%201", b"%00", b"%C2%85", b"%EF%BF%BF"])
    def test_with_control_characters_are_refused(self, sent):
        assert isinstance(binary(ce_subject=sent), Undecodable)

    @pytest.mark.parametrize(
        ("stored", "sent"),
        [
            ("Euro € 😀", b"Euro%20%E2%82%AC%20%F0%9F%98%80"),
            ('say "hi" 100%', b"say%20%22hi%22%20100%25"),
            ("~!#$&'()*+,-./:;<=>?@[\\]^_`{|}", b"~!#$&'()*+,-./:;<=>?@[\\]^_`{|}"),
            ("a\r\nHost: evil", b"a%0D%0AHost:%20evil"),
            ("\x7f", b"%7F"),
        ],
    )
    def test_are_percent_encoded_with_upper_case_hexadecimal(self, stored, sent):
        head, _ = request_from_record([*RECORD, ("ce_subject", stored.encode())], None)
        assert b"ce-subject: " + sent + b"\r\n" in head

    def test_that_are_not_utf8_in_a_record_make_it_undecodable(self):
        assert isinstance(request_from_record([*RECORD, ("ce_x", b"\xff")], None), Undecodable)


class TestBinaryRequest:
    def test_attributes_content_type_and_data_become_a_binary_record(self):
        assert only(binary(b'{"a":1}', content_type=b"application/json")) == (
            None,
            b'{"a":1}',
            [*RECORD, ("content-type", b"application/json")],
        )

    def test_no_data_is_a_null_value(self):
        assert only(binary()).value is None

    def test_header_names_are_case_insensitive(self):
        fields = [(name.upper(), value) for name, value in REQUIRED.items()]
        assert only(records_from_request(fields, b"")).headers == RECORD

    def test_partition_key_is_the_record_key_and_stays_in_the_event(self):
        record = only(binary(ce_partitionkey=b"caf%C3%A9"))
        assert record.key == "café".encode()
        assert ("ce_partitionkey", "café".encode()) in record.headers

    def test_key_is_never_the_subject(self):
        assert only(binary(ce_subject=b"s")).key is None

    @pytest.mark.parametrize(
        "headers",
        [
            pytest.param({"ce_specversion": None}, id="no specversion"),
            pytest.param({"ce_specversion": b"2.0"}, id="unknown specversion"),
            pytest.param({"ce_specversion": b"1.0.1"}, id="patch level is no specversion"),
            pytest.param({"ce_id": None}, id="no id"),
            pytest.param({"ce_id": b""}, id="empty id"),
            pytest.param({"ce_source": None}, id="no source"),
            pytest.param({"ce_source": b""}, id="empty source"),
            pytest.param({"ce_type": None}, id="no type"),
            pytest.param({"ce_type": b" "}, id="blank type"),
            pytest.param({"ce_partitionkey": b""}, id="empty partitionkey"),
            pytest.param({"ce_subject": b""}, id="empty subject"),
            pytest.param({"ce_time": b"yesterday"}, id="time is no timestamp"),
            pytest.param({"ce_time": b"2026-13-01T00:00:00Z"}, id="month 13"),
            pytest.param({"ce_time": b"2026-01-01T00:00:00"}, id="time without a zone"),
            pytest.param({"ce_datacontenttype": b"text/plain"}, id="datacontenttype has no header of its own"),
            pytest.param({"ce_data": b"x"}, id="data is no attribute"),
            pytest.param({"ce_my_ext": b"x"}, id="dash in a name"),
            pytest.param({"ce_": b"x"}, id="no name"),
        ],
    )
    def test_that_breaks_a_rule_is_refused(self, headers):
        assert isinstance(binary(**headers), Undecodable)

    def test_that_names_an_attribute_twice_is_refused(self):
        assert isinstance(records_from_request([*REQUIRED.items(), (b"CE-ID", b"2")], b""), Undecodable)

    @pytest.mark.parametrize(
        "time", [b"2026-11-20T03:00:00Z", b"2026-11-20t03:00:00.123456789z", b"2016-12-31T23:59:60-08:00"]
    )
    def test_takes_every_rfc3339_time(self, time):
        assert header(binary(ce_time=time), "ce_time") == time

    def test_of_version_0_3_keeps_its_own_attributes(self):
        records = binary(b"aGk=", ce_specversion=b"0.3", ce_datacontentencoding=b"base64", ce_schemaurl=b"http://x")
        assert header(records, "ce_datacontentencoding") == b"base64"
        assert only(records).value == b"aGk="


class TestPassedHeaders:
    PASSED = (
        (b"traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        (b"tracestate", b"congo=t61rcWkgMzE"),
        (b"x-request-id", b"r-1"),
        (b"knative-hello", b"world"),
        (b"x-b3-traceid", b"80f198ee56343ba8"),
        (b"retry-after", b"5"),
    )

    def test_travel_from_request_to_subscriber(self):
        record = only(records_from_request([*REQUIRED.items(), *self.PASSED], b""))
        head, _ = request_from_record(record.headers, record.value)
        for name, value in self.PASSED:
            assert (name.decode(), value) in record.headers
            assert b"%b: %b\r\n" % (name, value) in head

    def test_travel_beside_a_structured_event_too(self):
        record = only(structured(MINIMAL, headers=[(b"Knative-Hello", b"world")]))
        assert ("knative-hello", b"world") in record.headers

    def test_others_stay_behind(self):
        fields = [*REQUIRED.items(), (b"authorization", b"Bearer x"), (b"cookie", b"c"), (b"user-agent", b"u")]
        assert only(records_from_request(fields, b"")).headers == RECORD

    @pytest.mark.parametrize("name", ["host", "content-length", "Transfer-Encoding", "connection", "foo", "prefer"])
    def test_record_headers_cannot_become_headers_of_the_request(self, name):
        head, _ = request_from_record([*RECORD, (name, b"evil")], b"x")
        assert b"evil" not in head

    def test_that_could_end_the_header_early_are_left_out(self):
        head, _ = request_from_record([*RECORD, ("knative-x", b"a\r\nHost: evil"), ("knative-\r\ny", b"1")], None)
        assert head.count(b"\r\n") == len(RECORD)

    def test_repeated_ones_become_a_list(self):
        fields = [*REQUIRED.items(), (b"tracestate", b"a=1"), (b"TraceState", b"b=2")]
        assert header(records_from_request(fields, b""), "tracestate") == b"a=1, b=2"

    def test_trace_extension_is_independent_of_the_header(self):
        record = only(records_from_request([*REQUIRED.items(), (b"ce-traceparent", b"A"), (b"traceparent", b"B")], b""))
        head, _ = request_from_record(record.headers, None)
        assert b"ce-traceparent: A\r\n" in head
        assert b"\r\ntraceparent: B\r\n" in head


class TestStructuredRequest:
    @pytest.mark.parametrize(
        "content_type",
        [JSON_EVENT, b"Application/CloudEvents+JSON", b"application/cloudevents+json; charset=UTF-8"],
    )
    def test_is_known_by_its_content_type_in_any_case(self, content_type):
        assert only(structured(MINIMAL, content_type)).headers == RECORD

    def test_content_type_outweighs_headers(self):
        record = only(structured({**MINIMAL, "id": "inside"}, headers=list(REQUIRED.items())))
        assert dict(record.headers)["ce_id"] == b"inside"

    @pytest.mark.parametrize(
        ("members", "value", "content_type"),
        [
            pytest.param('"data":{"a":1.10, "b":[1e400]}', b'{"a":1.10, "b":[1e400]}', b"application/json", id="JSON"),
            pytest.param('"data":"x"', b'"x"', b"application/json", id="a JSON string stays one"),
            pytest.param('"data":0', b"0", b"application/json", id="a JSON number"),
            pytest.param(
                '"data":' + "9" * 5000, b"9" * 5000, b"application/json", id="more digits than Python reads by itself"
            ),
            pytest.param(
                '"datacontenttype":"text/plain","data":"x"', b"x", b"text/plain", id="text is the text itself"
            ),
            pytest.param(
                '"datacontenttype":"text/plain","data":{"a":1}', b'{"a":1}', b"text/plain", id="not JSON, but an object"
            ),
            pytest.param(
                '"datacontenttype":"image/png","data_base64":"aGk="', b"hi", b"image/png", id="base64 is bytes"
            ),
            pytest.param('"datacontenttype":"x/y+JSON","data":{}', b"{}", b"x/y+JSON", id="+json in any case"),
            pytest.param('"data":null', None, None, id="null is no data"),
            pytest.param('"subject":null', None, None, id="null is no attribute"),
            pytest.param('"data_base64":""', b"", b"application/json", id="empty data is data"),
        ],
    )
    def test_data_is_taken_byte_for_byte(self, members, value, content_type):
        record = only(structured(b'{"specversion":"1.0","id":"1","source":"/s","type":"t",' + members.encode() + b"}"))
        assert record.value == value
        assert dict(record.headers).get("content-type") == content_type

    def test_base64_of_version_0_3_becomes_the_bytes_and_the_attribute_goes(self):
        event = {**MINIMAL, "specversion": "0.3", "datacontentencoding": "base64", "data": "aGk="}
        record = only(structured(event))
        assert record.value == b"hi"
        assert "ce_datacontentencoding" not in dict(record.headers)

    def test_booleans_and_integers_take_their_canonical_strings(self):
        headers = dict(only(structured({**MINIMAL, "flag": True, "off": False, "number": -7})).headers)
        assert (headers["ce_flag"], headers["ce_off"], headers["ce_number"]) == (b"true", b"false", b"-7")

    @pytest.mark.parametrize(
        "event",
        [
            pytest.param(b"", id="empty"),
            pytest.param(b"[]", id="an array"),
            pytest.param(b'"x"', id="a string"),
            pytest.param(b"{", id="cut off"),
            pytest.param(b'{"specversion":"1.0","id":"1","source":"/s","type":"t",}', id="trailing comma"),
            pytest.param(b'{"specversion":"1.0","id":"1","source":"/s","type":"t"} x', id="something behind"),
            pytest.param(b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":NaN}', id="NaN"),
            pytest.param(b'{"specversion":"1.0","id":"1","id":"2","source":"/s","type":"t"}', id="id twice"),
            pytest.param(b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":1,"data":2}', id="data twice"),
            pytest.param(b'{"specversion":"1.0","id":"\\ud800","source":"/s","type":"t"}', id="half a surrogate pair"),
            pytest.param(b'{"data":' + b"[" * 100_000, id="nested without end"),
            pytest.param(b"\xff\xfe", id="not UTF-8"),
            pytest.param({**MINIMAL, "id": ""}, id="empty id"),
            pytest.param({**MINIMAL, "id": None}, id="null id"),
            pytest.param({**MINIMAL, "id": 5}, id="id is no string"),
            pytest.param({**MINIMAL, "partitionkey": 5}, id="partitionkey is no string"),
            pytest.param({**MINIMAL, "specversion": "2.0"}, id="unknown version"),
            pytest.param({**MINIMAL, "ID": "2"}, id="capitals in a name"),
            pytest.param({**MINIMAL, "my-ext": "2"}, id="dash in a name"),
            pytest.param({**MINIMAL, "x": 1.5}, id="a float"),
            pytest.param({**MINIMAL, "x": 2**31}, id="more than 32 bits"),
            pytest.param({**MINIMAL, "x": {}}, id="an object"),
            pytest.param({**MINIMAL, "x": []}, id="a list"),
            pytest.param({**MINIMAL, "x": "a\nb"}, id="a control character"),
            pytest.param({**MINIMAL, "time": "soon"}, id="time"),
            pytest.param({**MINIMAL, "partitionkey": ""}, id="empty partitionkey"),
            pytest.param({**MINIMAL, "data": 1, "data_base64": "aGk="}, id="two kinds of data"),
            pytest.param({**MINIMAL, "data_base64": "a=b"}, id="not base64"),
            pytest.param({**MINIMAL, "data_base64": 5}, id="base64 is no string"),
            pytest.param({**MINIMAL, "datacontenttype": 5}, id="datacontenttype is no string"),
            pytest.param({**MINIMAL, "datacontenttype": ""}, id="empty datacontenttype"),
            pytest.param({**MINIMAL, "datacontenttype": "a\r\nHost: evil"}, id="datacontenttype with a line end"),
            pytest.param({**MINIMAL, "datacontenttype": "application/cloudevents+json"}, id="an event in an event"),
        ],
    )  # fmt: skip
    def test_that_breaks_a_rule_is_refused(self, event):
        assert isinstance(structured(event), Undecodable)

    @pytest.mark.parametrize(
        "content_type",
        [b"application/cloudevents+avro", b"application/cloudevents+xml", b"application/cloudeventsjson",
         b"application/cloudevents+json; charset=utf-16"],
    )  # fmt: skip
    def test_in_a_format_that_is_not_spoken_is_refused(self, content_type):
        assert isinstance(structured(MINIMAL, content_type), Undecodable)


class TestBatch:
    def test_gives_its_events_in_order(self):
        events = [{**MINIMAL, "id": str(i), "data": i} for i in range(3)]
        records = structured(json.dumps(events, indent=1).encode(), BATCH_CONTENT_TYPE)
        assert [(dict(r.headers)["ce_id"], r.value) for r in records] == [(b"0", b"0"), (b"1", b"1"), (b"2", b"2")]

    def test_may_be_empty(self):
        assert structured(b" [ ] ", BATCH_CONTENT_TYPE) == []

    def test_versions_may_be_mixed(self):
        records = structured(json.dumps([MINIMAL, {**MINIMAL, "specversion": "0.3"}]).encode(), BATCH_CONTENT_TYPE)
        assert [dict(record.headers)["ce_specversion"] for record in records] == [b"1.0", b"0.3"]

    def test_with_one_bad_event_is_refused_as_a_whole_and_names_it(self):
        result = structured(json.dumps([MINIMAL, {**MINIMAL, "id": ""}]).encode(), BATCH_CONTENT_TYPE)
        assert result == Undecodable("event 1 of the batch: the attribute id is required and must not be empty")

    @pytest.mark.parametrize("text", [b"", b"{}", b"[", b"[,]", b"[{}", b"[] []", b"[1]", b"[[]]", b"[null]"])
    def test_that_is_none_is_refused(self, text):
        assert isinstance(structured(text, BATCH_CONTENT_TYPE), Undecodable)

    def test_with_a_comma_before_its_end_is_refused(self):
        assert isinstance(structured(b"[" + json.dumps(MINIMAL).encode() + b",]", BATCH_CONTENT_TYPE), Undecodable)


class TestRecord:
    def test_without_headers_is_no_event(self):
        assert isinstance(request_from_record(None, b"x"), Undecodable)
        assert isinstance(request_from_record([], b"x"), Undecodable)

    @pytest.mark.parametrize("missing", ["ce_specversion", "ce_id", "ce_source", "ce_type"])
    def test_that_lacks_an_attribute_is_undecodable(self, missing):
        assert isinstance(request_from_record([h for h in RECORD if h[0] != missing], b"x"), Undecodable)

    def test_null_value_is_an_event_without_data(self):
        assert request_from_record(RECORD, None)[1] == b""

    def test_header_names_are_read_in_any_case(self):
        upper = [(name.upper(), value) for name, value in RECORD]
        assert request_from_record(upper, None)[0].lower() == request_from_record(RECORD, None)[0].lower()

    def test_last_of_equal_headers_counts(self):
        head, _ = request_from_record([*RECORD, ("ce_x", b"old"), ("ce_x", b"new")], None)
        assert head.count(b"ce-x: ") == 1
        assert b"ce-x: new\r\n" in head

    def test_null_header_is_none(self):
        head, _ = request_from_record([*RECORD, ("ce_x", None), ("content-type", None)], None)
        assert b"ce-x" not in head
        assert b"content-type" not in head

    def test_null_required_header_is_missing(self):
        assert isinstance(request_from_record([("ce_id", None), *RECORD[:1], *RECORD[2:]], None), Undecodable)

    def test_datacontenttype_never_becomes_a_header_of_its_own(self):
        head, _ = request_from_record([*RECORD, ("ce_datacontenttype", b"text/plain")], b"x")
        assert b"ce-datacontenttype" not in head

    def test_attribute_name_that_is_none_is_undecodable(self):
        assert isinstance(request_from_record([*RECORD, ("ce_a b", b"x")], None), Undecodable)
        assert isinstance(request_from_record([*RECORD, ("ce_a\r\nHost", b"x")], None), Undecodable)

    def test_content_type_with_a_line_end_is_undecodable(self):
        assert isinstance(request_from_record([*RECORD, ("content-type", b"a\r\nb: c")], None), Undecodable)

    def test_in_structured_mode_is_sent_in_binary_mode(self):
        event = json.dumps({**MINIMAL, "subject": "€", "data": {"a": 1}}).encode()
        head, body = request_from_record([("content-type", JSON_EVENT), ("traceparent", b"x")], event)
        assert b"ce-subject: %E2%82%AC\r\n" in head
        assert b"content-type: application/json\r\n" in head
        assert b"traceparent: x\r\n" in head
        assert body == b'{"a": 1}'

    def test_in_structured_mode_with_repeated_attributes_counts_by_its_value(self):
        event = json.dumps({**MINIMAL, "id": "inside"}).encode()
        head, _ = request_from_record([*RECORD, ("content-type", JSON_EVENT)], event)
        assert b"ce-id: inside\r\n" in head

    @pytest.mark.parametrize("content_type", [JSON_EVENT, BATCH_CONTENT_TYPE, b"application/cloudevents+avro"])
    def test_in_structured_mode_that_is_broken_is_undecodable(self, content_type):
        assert isinstance(request_from_record([("content-type", content_type)], b"{"), Undecodable)
        assert isinstance(request_from_record([("content-type", content_type)], None), Undecodable)

    def test_rendered_headers_are_the_same_the_second_time(self):
        first = request_from_record([*RECORD, ("ce_x", "ü".encode())], b"x")
        assert request_from_record([*RECORD, ("ce_x", "ü".encode())], b"x") == first

    def test_lookup_tables_are_bounded(self):
        for i in range(2 * cloudevents_http.MAX_CACHED):
            request_from_record([*RECORD, (f"ce_x{i}", b"%d" % i)], None)
            binary(**{f"ce_x{i}": b"1"})
        assert len(cloudevents_http._rendered) <= cloudevents_http.MAX_CACHED
        assert len(cloudevents_http._record_names) <= cloudevents_http.MAX_CACHED


class TestDeadLetterAttributes:
    def test_are_added_and_replace_older_ones(self):
        headers = [*RECORD, ("ce_knativeerrorcode", b"404"), ("content-type", b"text/plain")]
        added = with_attributes(headers, {"knativeerrordest": "http://sink", "knativeerrorcode": "503"})
        assert dict(added)["ce_knativeerrorcode"] == b"503"
        assert [name for name, _ in added].count("ce_knativeerrorcode") == 1
        assert dict(added)["ce_id"] == b"1"

    def test_keep_the_specification_version(self):
        headers = [("ce_specversion", b"0.3"), *RECORD[1:]]
        assert dict(with_attributes(headers, {"knativeerrordest": "x"}))["ce_specversion"] == b"0.3"

    def test_structured_record_is_made_binary_first(self):
        record = binary_record([("content-type", JSON_EVENT)], json.dumps({**MINIMAL, "partitionkey": "k"}).encode())
        assert record.key == b"k"
        assert dict(with_attributes(record.headers, {"knativeerrordest": "x"}))["ce_knativeerrordest"] == b"x"


class TestReply:
    @pytest.mark.parametrize(
        ("headers", "body"),
        [
            ([], b""),
            ([(b"content-type", b"text/plain")], b"thanks"),
            ([(b"content-type", b"application/json")], b"{}"),
            ([(b"ce-id", b"1"), (b"ce-type", b"t")], b""),
        ],
    )
    def test_answer_that_claims_nothing_is_none(self, headers, body):
        assert event_from_response(headers, body) is None

    def test_answer_that_claims_to_be_an_event_and_is_none_says_why(self):
        assert isinstance(event_from_response([(b"ce-specversion", b"1.0")], b""), Undecodable)
        assert isinstance(event_from_response([(b"Content-Type", JSON_EVENT)], b"{}"), Undecodable)

    def test_batch_is_no_reply(self):
        body = json.dumps([MINIMAL]).encode()
        assert isinstance(event_from_response([(b"Content-Type", BATCH_CONTENT_TYPE)], body), Undecodable)

    def test_headers_that_travel_with_events_travel_with_replies(self):
        answer = [*REQUIRED.items(), (b"Knative-Hello", b"world"), (b"Server", b"x")]
        assert b"knative-hello: world\r\n" in event_from_response(answer, b"")[0]
        assert b"server" not in event_from_response(answer, b"")[0]


class TestJsonFromRecord:
    @pytest.mark.parametrize(
        ("content_type", "value", "member"),
        [
            (b"application/json", b'{"a": 1.10}', '"data":{"a": 1.10}'),
            (b"text/plain", "€".encode(), '"data":"€"'),
            (b"image/png", b"\xff", '"data_base64":"/w=="'),
            (b"application/json", b"{", '"data_base64":"ew=="'),
            (b"application/json", b"\xff", '"data_base64":"/w=="'),
        ],
    )
    def test_data_keeps_its_bytes(self, content_type, value, member):
        text = json_from_record([*RECORD, ("content-type", content_type)], value).decode()
        assert member in text
        json.loads(text)

    def test_of_version_0_3_has_its_own_base64(self):
        record = [("ce_specversion", b"0.3"), *RECORD[1:], ("content-type", b"image/png")]
        event = json.loads(json_from_record(record, b"\xff"))
        assert event["datacontentencoding"] == "base64"
        assert base64.b64decode(event["data"]) == b"\xff"

    def test_of_version_0_3_that_is_base64_already_is_not_encoded_twice(self):
        record = [("ce_specversion", b"0.3"), *RECORD[1:], ("ce_datacontentencoding", b"base64")]
        text = json_from_record(record, b"aGk=")
        assert text.count(b"datacontentencoding") == 1
        assert only(structured(text)).value == b"hi"

    def test_of_no_event_is_undecodable(self):
        assert isinstance(json_from_record([], b"x"), Undecodable)


header_names = st.sampled_from(
    [b"ce-id", b"CE-Type", b"ce-source", b"ce-specversion", b"ce-time", b"content-type", b"traceparent", b"ce-", b"x"]
) | st.binary(max_size=10)
header_values = st.sampled_from(
    [b"1.0", b"0.3", JSON_EVENT, BATCH_CONTENT_TYPE, b'"', b'"\\', b"%", b"%E2%82"]
) | st.binary(max_size=20)
bodies = st.binary(max_size=60) | st.sampled_from([json.dumps(MINIMAL).encode(), b"[" + json.dumps(MINIMAL).encode()])


@given(st.lists(st.tuples(header_names, header_values), max_size=8), bodies)
def test_any_request_is_an_event_or_undecodable(headers, body):
    result = records_from_request(headers, body)
    assert isinstance(result, Undecodable) or all(isinstance(record, Record) for record in result)
    answer = event_from_response(headers, body)
    assert answer is None or isinstance(answer, Undecodable | tuple)


record_names = st.sampled_from(["ce_id", "ce_specversion", "ce_type", "ce_source", "content-type", "CE_X"]) | st.text(
    max_size=10
)


@given(st.lists(st.tuples(record_names, st.none() | header_values), max_size=8), st.none() | bodies)
def test_any_record_is_a_clean_request_or_undecodable(headers, value):
    for given_headers in (headers, [*RECORD, *headers]):
        request = request_from_record(given_headers, value)
        if not isinstance(request, Undecodable):
            head, _ = request
            # Whatever was in the record: only whole header lines of printable characters come out.
            for line in head.split(b"\r\n")[:-1]:
                name, separator, content = line.partition(b": ")
                assert separator
                assert name.decode("ascii").isprintable()
                assert not set(content) & {0, 10, 13}
        assert isinstance(json_from_record(given_headers, value), bytes | Undecodable)
