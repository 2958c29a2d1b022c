"""The value of a record, as strimzi-canary's readers know it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary_image.payload import Payload, decode, encode


def test_three_keys_in_order_without_blanks():
    assert encode(Payload("producer-id", 1, 12345)) == b'{"producerId":"producer-id","messageId":1,"timestamp":12345}'


@given(st.text(max_size=40), st.integers(1, 2**53), st.integers(0, 2**53), st.integers(0, 500))
def test_what_is_encoded_is_decoded_at_any_size(producer, message, timestamp, size):
    payload = Payload(producer, message, timestamp)
    value = encode(payload, size)

    assert decode(value) == payload
    assert len(value) >= size


def test_a_size_is_reached_exactly():
    assert len(encode(Payload("p", 1, 2), 1000)) == 1000


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"hello",
        b"[]",
        b"null",
        b'{"producerId":"p","messageId":1}',
        b'{"producerId":"p","messageId":"1","timestamp":2}',
        b'{"producerId":"p","messageId":true,"timestamp":2}',
        b'{"producerId":1,"messageId":1,"timestamp":2}',
        b'{"producerId":"p","messageId":1.5,"timestamp":2}',
        b"\xff\xfe\x00",
        b"[" * 100_000,
    ],
)
def test_anything_else_is_no_canary_record(value):
    assert decode(value) is None


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(value):
    decode(value)
