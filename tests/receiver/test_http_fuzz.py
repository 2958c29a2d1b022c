"""Whatever comes over the wire: no crash, no hang, bounded memory, and an answer or an end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatcher_image.receiver_http import Limits
from tests.receiver.conversation import Client, RecordingHandler, chunked, request
from tests.receiver.test_intake import EVENT, Receiver

LIMITS = Limits(max_body_bytes=200, max_head_bytes=400, max_headers=12, max_target_bytes=60, max_pipelined=3)

fragments = st.sampled_from(
    [
        b"POST / HTTP/1.1\r\n", b"POST ", b"GET", b"/", b" HTTP/1.1", b" HTTP/1.0", b" HTTP/9.9", b"\r\n", b"\n", b"\r",
        b"Host: h\r\n", b"Host:", b"Content-Length: 5\r\n", b"Content-Length: 18446744073709551616\r\n",
        b"Content-Length:", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked, chunked\r\n",
        b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"hello",
        b"5\r\nhello\r\n", b"0\r\n\r\n", b"0\r\n", b"ffffffffffffffff\r\n", b";a=b", b"\x00", b"\xff" * 9, b"x" * 500,
        b"ce-id: 1\r\n", b"OPTIONS * HTTP/1.1\r\n", b"CONNECT a:1 HTTP/1.1\r\n",
        request(b"ok"), chunked(b"ok"), request(b"x" * 201), request(b"", "Expect: 100-continue"),
    ]
)  # fmt: skip
streams = st.lists(fragments | st.binary(max_size=20), max_size=12)


def invariants(client: Client) -> None:
    server = client.server
    assert 0 <= server.buffered_bytes <= 3 * LIMITS.max_body_bytes
    if client.transport.is_closed:
        assert server.buffered_bytes == 0
        assert server.connections == 0
    statuses = client.statuses  # raises where answers are not whole
    assert statuses[:-1].count(400) <= 1
    assert 500 not in statuses


@given(streams)
def test_any_bytes_get_whole_answers(chunks):
    client = Client(limits=LIMITS)
    for chunk in chunks:
        client.send(chunk)
        invariants(client)
    client.server.sweep(client.server.now + 1000)
    client.server.sweep(client.server.now + 1000)
    assert client.transport.is_closed


@given(streams, st.data())
def test_answers_do_not_depend_on_how_the_bytes_are_cut(chunks, data):
    whole = b"".join(chunks)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    # Large limits: a head that is refused by its size alone is refused earlier when it comes in pieces.
    one, many = (Client(limits=Limits(max_body_bytes=200)) for _ in range(2))
    one.send(whole)
    many.send(*pieces)
    assert many.statuses == one.statuses
    assert [(e.method, e.target, e.headers, e.body) for e in many.handler.seen] == [
        (e.method, e.target, e.headers, e.body) for e in one.handler.seen
    ]


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5), st.permutations(range(5)))
def test_answers_keep_the_order_of_requests_whatever_the_order_of_work(bodies, order):
    client = Client(RecordingHandler(holds=True), Limits(max_pipelined=2))
    client.send(
        b"".join(request(body) if i % 2 else chunked(*([body] if body else [])) for i, body in enumerate(bodies))
    )
    for index in order:
        if index < len(bodies):
            exchange = client.handler.seen[index]
            exchange.respond(client.server.too_large._replace(status=200, body=exchange.body))
    assert [answer.body for answer in client.answers] == bodies


mutations = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6)


@given(mutations)
def test_damaged_events_are_accepted_or_refused_never_a_failure(changes):
    raw = bytearray(request(b'{"a":1}', *EVENT, "Content-Type: application/json", target="/team-a/orders") * 2)
    for position, value in changes:
        raw[position % len(raw)] = value
    receiver = Receiver().send(bytes(raw))
    statuses = receiver.statuses
    assert set(statuses) <= {100, 200, 202, 400, 404, 405, 413, 415, 417, 431, 501, 505}
    assert statuses.count(202) == len(receiver.log.records)
