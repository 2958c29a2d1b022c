"""The fast way renders what the careful way renders, byte for byte, first time and every time after."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher_image import rendering
from dispatcher_image.rendering import render
from eventing.cloudevents_http import request_from_record

BASE = [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"/s"), ("ce_type", b"t")]


def same(headers, value=b"x"):
    for _ in range(3):
        assert render(headers, value) == request_from_record(headers, value)


@pytest.mark.parametrize(
    "more",
    [
        [],
        [("content-type", b"application/json")],
        [("content-type", b"application/json; charset=utf-8")],
        [("Content-Type", b"text/plain")],
        [("content-type", b"application/cloudevents+json")],
        [("content-type", None)],
        [("ce_subject", "grüße".encode())],
        [("ce_subject", b"a b")],
        [("ce_subject", b'"%')],
        [("ce_subject", b"\xff")],
        [("ce_subject", b"a\r\nevil: 1")],
        [("ce_subject", b"")],
        [("ce_subject", None)],
        [("ce_sub ject", b"x")],
        [("ce_Subject", b"x")],
        [("ce_datacontenttype", b"text/plain")],
        [("traceparent", b"00-1-2-01"), ("other", b"x")],
        [("traceparent", b"00-1\r\n")],
        [("knative-hello", b"a b c")],
        [("x-b3-\u00e9", b"1")],
        [("host", b"evil"), ("content-length", b"7")],
        [("100%b", b"x"), ("%d", b"y")],
        [("ce_id", b"2")],
        [("CE_ID", b"2")],
        [("ce_specversion", b"1.0")],
        [("sluice-origin", "ä".encode())],
    ],
)
def test_every_kind_of_header(more):
    same([*BASE, *more])
    same([*more, *BASE])


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("value", [b"", None, b"\xff", b"0.3", b"9", b"a b"])
def test_values_of_what_makes_it_an_event(index, value):
    good = [*BASE, ("content-type", b"text/plain")]
    same(good)
    same([*good[:index], (good[index][0], value), *good[index + 1 :]])


@pytest.mark.parametrize("headers", [None, [], [("a", b"b")], BASE[:3]])
def test_what_is_no_event(headers):
    same(headers)


@pytest.mark.parametrize("value", [None, b"", b"data"])
def test_data(value):
    same(BASE, value)


def test_a_structured_value_after_a_binary_one_of_the_same_layout():
    headers = [*BASE, ("content-type", b"text/plain")]
    same(headers)
    document = b'{"specversion":"1.0","id":"9","source":"/s","type":"t"}'
    same([*BASE, ("content-type", b"application/cloudevents+json")], document)


names = st.one_of(
    st.sampled_from(
        ["ce_specversion", "ce_id", "ce_source", "ce_type", "ce_subject", "ce_time", "content-type", "traceparent",
         "knative-x", "other", "ce_x", "CE_X", "ce_datacontenttype", "%b"]
    ),
    st.text(max_size=8),
)  # fmt: skip
values = st.one_of(st.sampled_from([b"1.0", b"0.3", b"text/plain", b"a", b"", None]), st.binary(max_size=12))


@given(st.lists(st.tuples(names, values), max_size=9), st.one_of(st.none(), st.binary(max_size=9)))
def test_any_record(headers, value):
    same(headers, value)
    same([*BASE, *headers], value)


def test_what_is_remembered_is_bounded():
    for number in range(2 * rendering.MAX_LAYOUTS):
        render([*BASE, (f"ce_x{number}", b"1"), ("content-type", b"a/%d" % number)], None)
    assert len(rendering.layouts) <= rendering.MAX_LAYOUTS
    assert len(rendering.content_types) <= rendering.MAX_CONTENT_TYPES
