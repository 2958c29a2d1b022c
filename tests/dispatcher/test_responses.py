"""Bytes of a subscriber become an answer, the same however they are cut, and nothing breaks the parser."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher_image import responses
from dispatcher_image.responses import BrokenResponse, ResponseParser
from dispatcher_image.sender import MAX_DISCARDED_BYTES, MAX_HEADER_BYTES


@pytest.fixture(autouse=True)
def forget():
    responses.remembered.clear()


def parse(*chunks):
    """(status, body, keep_alive), None while it is not complete, or "broken"."""
    parser = ResponseParser()
    parsed = None
    try:
        for chunk in chunks:
            parsed = parser.feed(chunk)
    except BrokenResponse:
        return "broken"
    return parsed and (parsed.answer.status, parsed.answer.body, parsed.keep_alive)


CASES = [
    pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"", True), id="204"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", (200, b"abc", True), id="length"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", (200, b"", True), id="empty"),
    pytest.param(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: 1\r\n\r\n",
        (200, b"abcde", True),
        id="chunked with extension and trailer",
    ),
    pytest.param(b"HTTP/1.1 500 No\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", (500, b"x", False), id="close"),
    pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", (200, b"x", False), id="HTTP/1.0"),
    pytest.param(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        b"HTTP/1.1 202 OK\r\nContent-Length: 0\r\n\r\n",
        (202, b"", True),
        id="interim answers first",
    ),
    pytest.param(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", (304, b"", True), id="304 has no body"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", None, id="half a body"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-", None, id="half a header"),
    pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n", None, id="only an interim answer"),
    pytest.param(b"SMTP ready\r\n", "broken", id="no HTTP"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "broken", id="two lengths"),
    pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "broken", id="bad chunk"),
]


@pytest.mark.parametrize(("data", "result"), CASES)
def test_answers(data, result):
    assert parse(data) == result
    assert parse(data) == result, "remembered or not"


@pytest.mark.parametrize(("data", "result"), CASES)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_answers_are_the_same_however_they_are_cut(data, result, size):
    assert parse(*(data[i : i + size] for i in range(0, len(data), size))) == result


def test_101_is_final_and_ends_the_connection():
    assert parse(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n") == (101, b"", False)


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 2", b"nonsense"])
def test_more_than_was_asked_for_ends_the_connection(more):
    """Else the surplus would be taken for the answer to the next event."""
    assert parse(b"HTTP/1.1 204 No Content\r\n\r\n" + more) == (204, b"", False)


def test_a_body_without_length_ends_with_the_connection():
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.1 200 OK\r\n\r\nabc") is None
    assert parser.feed(b"def") is None
    ended = parser.end()
    assert (ended.answer.status, ended.answer.body, ended.keep_alive) == (200, b"abcdef", False)


def test_a_body_with_a_length_that_ends_early_is_no_answer():
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc")
    assert parser.end() is None


def test_one_parser_reads_one_answer_after_the_other():
    parser = ResponseParser()
    first = parser.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na")
    second = parser.feed(b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nbc")
    assert [(p.answer.status, p.answer.body) for p in (first, second)] == [(200, b"a"), (404, b"bc")]


def test_headers_without_end_are_refused():
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 200 OK\r\nX: ")
    parser.feed(b"a" * (MAX_HEADER_BYTES // 2))
    with pytest.raises(BrokenResponse):
        parser.feed(b"a" * (MAX_HEADER_BYTES // 2))


def test_too_many_headers_are_refused():
    assert parse(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * (MAX_HEADER_BYTES // 4)) == "broken"


def test_a_huge_body_is_read_only_so_far_and_its_status_counts():
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
    parsed, sent = None, 0
    while parsed is None:
        parsed = parser.feed(b"x" * 1_000_000)
        sent += 1_000_000
        assert sent <= MAX_DISCARDED_BYTES + 1_000_000
    assert (parsed.answer.status, parsed.answer.truncated, parsed.keep_alive) == (200, True, False)
    assert len(parsed.answer.body) <= 1_048_576


def test_claims_to_be_an_event_are_noticed():
    for line in (b"Ce-SpecVersion: 1.0", b"content-type: Application/CloudEvents+json; charset=utf-8"):
        parser = ResponseParser()
        assert parser.feed(b"HTTP/1.1 200 OK\r\n%b\r\nContent-Length: 0\r\n\r\n" % line).answer.may_be_event


def test_what_is_remembered_is_bounded():
    for number in range(2 * responses.MAX_REMEMBERED):
        parse(b"HTTP/1.1 204 No Content\r\nX: %d\r\n\r\n" % number)
    assert len(responses.remembered) <= responses.MAX_REMEMBERED


fragments = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 101 X\r\nUpgrade: h2c\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"\r\n",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"abc",
        b"\x00",
    ]
)


@given(st.lists(st.one_of(fragments, st.binary(max_size=20)), max_size=12), st.integers(1, 40))
def test_nothing_breaks_the_parser(parts, size):
    data = b"".join(parts)
    parser = ResponseParser()
    try:
        for i in range(0, len(data), size):
            parsed = parser.feed(data[i : i + size])
            if parsed is not None:
                assert 100 <= parsed.answer.status <= 999
                if not parsed.keep_alive:
                    return
        parser.end()
    except BrokenResponse:
        pass
