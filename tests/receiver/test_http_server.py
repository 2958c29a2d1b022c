"""HTTP/1.1 as a sender may expect it, and everything that a sender can make grow."""

from __future__ import annotations

import httptools
import pytest

from dispatcher_image.receiver_http import ACCEPTED, HttpServer, Limits, Response, refusal
from tests.receiver.conversation import Client, RecordingHandler, chunked, request

SMALL = Limits(max_body_bytes=100, max_head_bytes=1000, max_headers=10, max_target_bytes=50, max_pipelined=4)


class TestRequests:
    def test_answers_in_full(self):
        client = Client().send(request(b"hello"))
        assert [(a.status, a.body) for a in client.answers] == [(200, b"hello")]
        assert client.answers[0].headers["Date"].endswith("GMT")

    def test_connection_stays_open_for_the_next_one(self):
        client = Client().send(request(b"1")).send(request(b"2"))
        assert [a.body for a in client.answers] == [b"1", b"2"]
        assert not client.is_ended

    def test_chunked_body_is_put_together(self):
        assert Client().send(chunked(b"he", b"l", b"lo")).answers[0].body == b"hello"

    def test_chunk_extensions_and_trailers_are_ignored(self):
        raw = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nce-id: 5\r\n\r\n"
        client = Client().send(raw)
        assert client.answers[0].body == b"abc"
        assert b"ce-id" not in dict(client.handler.seen[0].headers)

    @pytest.mark.parametrize("raw", [request(b"hello", "X: y"), chunked(b"hel", b"lo")], ids=["length", "chunked"])
    def test_may_be_split_at_every_byte(self, raw):
        for position in range(1, len(raw)):
            assert Client().send(raw[:position], raw[position:]).answers[0].body == b"hello"

    def test_may_come_byte_by_byte(self):
        raw = request(b"hello") + chunked(b"world")
        client = Client().send(*(raw[i : i + 1] for i in range(len(raw))))
        assert [a.body for a in client.answers] == [b"hello", b"world"]

    def test_empty_lines_before_are_skipped(self):
        assert Client().send(b"\r\n\r\n" + request(b"x")).statuses == [200]

    def test_head_gets_no_body(self):
        client = Client(RecordingHandler(refuses=refusal(405, "no"))).send(request(method="HEAD"))
        assert client.transport.written.endswith(b"\r\n\r\n")

    def test_old_clients_are_answered_and_closed(self):
        client = Client().send(b"POST / HTTP/1.0\r\nContent-Length: 1\r\n\r\nx")
        assert client.statuses == [200]
        assert client.answers[0].headers["Connection"] == "close"
        assert client.transport.is_closed

    def test_old_clients_may_ask_to_keep_the_connection(self):
        client = Client().send(b"POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx")
        assert client.answers[0].headers["Connection"] == "keep-alive"
        assert not client.is_ended

    def test_offer_to_switch_protocols_is_ignored(self):
        head = "POST / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        raw = (head + "Content-Length: 5\r\n\r\nhello").encode() + request(b"next")
        assert [a.body for a in Client().send(raw).answers] == [b"hello", b"next"]
        assert [a.body for a in Client().send(*(raw[i : i + 1] for i in range(len(raw)))).answers] == [
            b"hello",
            b"next",
        ]
        chunked_raw = (head + "Transfer-Encoding: chunked\r\n\r\n").encode() + b"5\r\nhello\r\n0\r\n\r\n"
        assert [a.body for a in Client().send(chunked_raw + request(b"next")).answers] == [b"hello", b"next"]


class TestPipelining:
    def test_answers_come_in_the_order_of_requests(self):
        client = Client(RecordingHandler(holds=True)).send(request(b"1") + request(b"2") + request(b"3"))
        first, second, third = client.handler.seen
        third.respond(Response(200, b"3"))
        second.respond(Response(200, b"2"))
        assert client.answers == []
        first.respond(Response(200, b"1"))
        assert [a.body for a in client.answers] == [b"1", b"2", b"3"]

    def test_input_waits_while_too_many_are_unanswered(self):
        client = Client(RecordingHandler(holds=True), SMALL).send(request() * 4)
        assert not client.transport.is_reading
        client.handler.seen[0].respond(Response(200))
        assert not client.transport.is_reading
        for exchange in client.handler.seen[1:3]:
            exchange.respond(Response(200))
        assert client.transport.is_reading

    def test_bad_request_is_answered_after_the_good_ones_before_it(self):
        client = Client(RecordingHandler(holds=True)).send(request(b"1") + b"NONSENSE\r\n\r\n")
        assert client.answers == []
        client.handler.seen[0].respond(Response(200))
        assert client.statuses == [200, 400]
        assert client.is_ended

    def test_nothing_after_connection_close_is_served(self):
        client = Client().send(request(b"1", "Connection: close") + request(b"2"))
        assert client.statuses == [200]
        assert client.transport.is_closed

    def test_second_answer_to_a_request_is_ignored(self):
        client = Client(RecordingHandler(holds=True)).send(request())
        client.handler.seen[0].respond(Response(200))
        client.handler.seen[0].respond(Response(500))
        assert client.statuses == [200]


class TestExpectContinue:
    HEAD = request(b"hello", "Expect: 100-continue")[:-5]

    def test_is_invited_when_the_request_will_be_read(self):
        client = Client().send(self.HEAD)
        assert client.statuses == [100]
        assert client.send(b"hello").statuses == [100, 200]

    def test_is_not_invited_when_the_body_came_already(self):
        assert Client().send(self.HEAD + b"hello").statuses in ([100, 200], [200])

    def test_final_answer_comes_instead_of_an_invitation(self):
        client = Client(RecordingHandler(refuses=refusal(404, "no"))).send(self.HEAD)
        assert client.statuses == [404]
        assert client.answers[0].headers["Connection"] == "close"
        assert client.is_ended

    def test_too_large_is_said_before_the_body_is_sent(self):
        assert Client(limits=SMALL).send(request(b"x" * 101, "Expect: 100-continue")[:-101]).statuses == [413]

    def test_invitation_waits_for_earlier_answers(self):
        client = Client(RecordingHandler(holds=True)).send(request(b"1") + self.HEAD)
        assert client.answers == []
        client.handler.seen[0].respond(Response(200))
        assert client.statuses == [200, 100]

    def test_without_a_body_nothing_is_invited(self):
        assert Client().send(request(b"", "Expect: 100-continue")).statuses == [200]

    def test_unknown_expectation_is_refused(self):
        assert Client().send(request(b"", "Expect: miracles")).statuses == [417]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        pytest.param(b"NONSENSE\r\n\r\n", 400, id="no request line"),
        pytest.param(b"POST / HTTP/1.1\r\n\r\n", 400, id="no Host"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, id="two Hosts"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400, id="one Host twice"),
        pytest.param(b"POST / HTTP/1.1\r\nHost : a\r\n\r\n", 400, id="space before the colon"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400, id="folded header"),
        pytest.param(b"POST / HTTP/1.1\nHost: a\n\n", 400, id="bare line feeds"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", 400, id="null byte"),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, id="lengths"
        ),
        pytest.param(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400, id="negative length"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", 400, id="signed length"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1e2\r\n\r\n", 400, id="length is no number"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n", 400, id="overflow"),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, id="both"
        ),
        pytest.param(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, id="chunked in HTTP/1.0"),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, id="other coding"
        ),
        pytest.param(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400, id="chunk size"),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", 400, id="chunk end"
        ),
        pytest.param(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\n\r\n", 415, id="compressed"),
        pytest.param(b"POST / HTTP/2.0\r\nHost: a\r\n\r\n", 505, id="HTTP/2.0 in a request line"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, id="HTTP/2 without asking"),
        pytest.param(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 405, id="CONNECT"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400, id="a TLS greeting"),
    ],
)
def test_malformed_request_is_refused_once_and_the_connection_ends(raw, status):
    client = Client().send(raw).send(b"more")
    assert client.statuses == [status]
    assert client.answers[0].headers["Connection"] == "close"
    assert client.is_ended
    assert client.handler.seen == []


class TestLimits:
    def test_body_of_the_largest_size_is_taken(self):
        assert Client(limits=SMALL).send(request(b"x" * 100)).statuses == [200]
        assert Client(limits=SMALL).send(chunked(b"x" * 50, b"x" * 50)).statuses == [200]

    def test_larger_body_is_refused_by_its_length_alone(self):
        client = Client(limits=SMALL).send(request(b"x" * 101)[:-101])
        assert client.statuses == [413]
        assert client.is_ended

    def test_larger_body_in_chunks_is_refused_when_it_grows_too_large(self):
        client = Client(limits=SMALL).send(chunked(b"x" * 60, b"x" * 60))
        assert client.statuses == [413]
        assert client.is_ended

    def test_rest_of_a_refused_body_is_dropped_so_that_the_client_finds_the_answer(self):
        client = Client(limits=SMALL).send(request(b"x" * 101)[:-101])
        assert client.transport.wrote_eof
        assert not client.transport.is_closed
        client.send(b"x" * 101)
        assert client.half_close().transport.is_closed

    def test_rest_is_dropped_over_tls_too_which_cannot_half_close(self):
        client = Client(limits=SMALL, can_write_eof=False).send(request(b"x" * 101)[:-50])
        assert client.statuses == [413]
        assert not client.transport.is_closed
        client.send(b"x" * 50)
        assert client.half_close().transport.is_closed

    def test_too_many_headers_are_refused(self):
        assert Client(limits=SMALL).send(request(b"", *["X: y"] * 8)).statuses == [200]
        assert Client(limits=SMALL).send(request(b"", *["X: y"] * 9)).statuses == [431]

    @pytest.mark.parametrize("size", [2000, 300_000])
    def test_large_headers_are_refused_in_one_piece_and_in_many(self, size):
        raw = request(b"", "X: " + "y" * size)
        assert Client(limits=SMALL).send(raw).statuses == [431]
        assert Client(limits=SMALL).send(*(raw[i : i + 500] for i in range(0, len(raw), 500))).statuses == [431]

    def test_large_head_of_many_small_headers_is_refused(self):
        raw = request(b"", *["X: " + "y" * 150] * 7)
        assert Client(limits=SMALL).send(raw).statuses == [431]
        assert Client(limits=SMALL).send(*(raw[i : i + 50] for i in range(0, len(raw), 50))).statuses == [431]

    def test_head_without_end_is_refused_before_it_is_complete(self):
        client = Client(limits=SMALL).send(b"POST / HTTP/1.1\r\nHost: h\r\nX: ")
        for _ in range(200):
            client.send(b"y" * 10)
        assert client.statuses == [431]

    def test_large_body_before_does_not_count_as_head(self):
        limits = Limits(max_body_bytes=5000, max_head_bytes=1000)
        raw = request(b"x" * 5000) + request(b"next")
        assert Client(limits=limits).send(raw[:-60], raw[-60:]).statuses == [200, 200]

    def test_long_target_is_refused(self):
        assert Client(limits=SMALL).send(request(target="/" + "x" * 50)).statuses == [414]

    def test_trailers_and_chunk_extensions_without_end_are_refused(self):
        for endless in (b"1;" + b"x" * 2000, b"0\r\nX: " + b"y" * 2000):
            client = Client(limits=SMALL).send(chunked()[:-5])
            client.send(*(endless[i : i + 100] for i in range(0, len(endless), 100)))
            assert client.statuses == [400]

    def test_bodies_of_all_connections_together_are_bounded(self):
        server = HttpServer(RecordingHandler(), Limits(max_body_bytes=100, max_buffered_bytes=150))
        clients = [Client(server=server).send(request(b"x" * 100)[:-40]) for _ in range(3)]
        assert [client.statuses for client in clients] == [[], [], [503]]
        assert server.buffered_bytes == 120
        clients[0].send(b"x" * 40)
        clients[1].transport.close()
        assert server.buffered_bytes == 0

    def test_connections_beyond_the_limit_are_closed_at_once(self):
        server = HttpServer(RecordingHandler(), Limits(max_connections=1))
        first, second = Client(server=server), Client(server=server)
        assert second.transport.is_closed
        first.transport.close()
        assert not Client(server=server).transport.is_closed


class TestTimeouts:
    LIMITS = Limits(head_timeout=10, body_timeout=20, idle_timeout=30, write_timeout=40, linger=5)

    def client(self, handler=None):
        client = Client(handler, self.LIMITS)
        self.start = client.server.now
        return client

    def after(self, client, seconds):
        client.server.sweep(self.start + seconds)
        return client

    def test_idle_connection_is_closed_without_a_word(self):
        client = self.client().send(request())
        written = bytes(client.transport.written)
        assert not self.after(client, 29).transport.is_closed
        assert self.after(client, 31).transport.is_closed
        assert client.transport.written == written

    def test_connection_that_never_says_anything_is_closed(self):
        assert self.after(self.client(), 11).transport.is_closed

    def test_slow_head_is_told_and_closed(self):
        client = self.client().send(b"POST / HT")
        self.after(client, 5).send(b"TP/1.1\r\n")
        assert self.after(client, 11).statuses == [408]
        assert client.is_ended

    def test_slow_body_is_told_and_closed(self):
        client = self.client().send(request(b"xx")[:-1])
        assert self.after(client, 19).statuses == []
        assert self.after(client, 21).statuses == [408]
        assert client.server.buffered_bytes == 0

    def test_connection_that_waits_for_us_is_never_closed(self):
        client = self.client(RecordingHandler(holds=True)).send(request())
        assert not self.after(client, 1000).transport.is_closed
        client.handler.seen[0].respond(Response(200))
        assert client.statuses == [200]

    def test_slow_request_behind_one_that_waits_for_us_is_answered_in_order(self):
        client = self.client(RecordingHandler(holds=True)).send(request() + b"POST")
        self.after(client, 11)
        assert not self.after(client, 500).transport.is_closed
        client.handler.seen[0].respond(Response(200))
        assert client.statuses == [200, 408]

    def test_client_that_does_not_read_its_answers_is_dropped(self):
        client = self.client().send(request())
        client.connection.pause_writing()
        assert not client.transport.is_reading
        assert not self.after(client, 39).transport.is_closed
        assert self.after(client, 41).transport.was_aborted

    def test_client_that_reads_again_goes_on(self):
        client = self.client().send(request())
        client.connection.pause_writing()
        client.connection.resume_writing()
        assert client.transport.is_reading
        assert client.send(request()).statuses == [200, 200]

    def test_refused_client_that_goes_on_sending_is_cut_off(self):
        client = self.client().send(b"NONSENSE\r\n\r\n")
        assert not self.after(client, 4).transport.is_closed
        assert self.after(client, 6).transport.was_aborted


class TestEnds:
    def test_half_closed_client_gets_its_answers(self):
        client = Client(RecordingHandler(holds=True)).send(request(b"1") + request(b"2")).half_close()
        assert not client.transport.is_closed
        for exchange in client.handler.seen:
            exchange.respond(Response(200, exchange.body))
        assert [a.body for a in client.answers] == [b"1", b"2"]
        assert client.transport.is_closed

    def test_half_close_in_the_middle_of_a_request_ends_it(self):
        assert Client().send(request(b"xx")[:-1]).half_close().transport.is_closed

    def test_answer_for_a_client_that_left_harms_nobody(self):
        client = Client(RecordingHandler(holds=True)).send(request())
        client.transport.close()
        client.handler.seen[0].respond(Response(200))
        assert client.statuses == []
        assert client.server.connections == 0

    def test_while_draining_each_answer_is_the_connections_last(self):
        client = Client()
        client.server.is_draining = True
        client.send(request() + request())
        assert client.statuses == [200]
        assert client.answers[0].headers["Connection"] == "close"
        assert client.transport.is_closed

    def test_idle_connections_are_closed_when_draining(self):
        client = Client().send(request())
        client.connection.close_if_idle()
        assert client.transport.is_closed

    def test_busy_connections_are_not(self):
        client = Client(RecordingHandler(holds=True)).send(request())
        client.connection.close_if_idle()
        assert not client.transport.is_closed


class TestHandler:
    def test_refusal_by_the_head_keeps_the_connection_when_the_body_is_small(self):
        client = Client(RecordingHandler(refuses=refusal(404, "no"))).send(request(b"hello") + request(b"hello"))
        assert client.statuses == [404, 404]
        assert not client.is_ended
        assert client.server.buffered_bytes == 0

    def test_refusal_by_the_head_ends_the_connection_when_the_body_is_large(self):
        client = Client(RecordingHandler(refuses=refusal(404, "no")), SMALL).send(request(b"x" * 101))
        assert client.statuses == [404]
        assert client.is_ended
        client = Client(RecordingHandler(refuses=refusal(404, "no")), SMALL).send(chunked(b"x" * 101))
        assert client.statuses == [404]
        assert client.is_ended

    def test_handler_that_fails_is_a_500_and_a_log_line(self, caplog):
        class Broken(RecordingHandler):
            def on_request(self, exchange):
                raise RuntimeError("oops")

        client = Client(Broken()).send(request() + request())
        assert client.statuses == [500, 500]
        assert "oops" in caplog.text

    def test_handler_that_fails_at_the_head_is_a_500_and_a_log_line(self, caplog):
        class Broken(RecordingHandler):
            def on_head(self, exchange):
                raise RuntimeError("oops")

        client = Client(Broken()).send(request())
        assert client.statuses == [500]
        assert client.is_ended
        assert "oops" in caplog.text

    def test_every_answer_is_observed_once(self):
        seen = []
        server = HttpServer(RecordingHandler(), SMALL, lambda status, seconds: seen.append((status, seconds >= 0)))
        Client(server=server).send(request() + request() + b"NONSENSE\r\n\r\n")
        assert seen == [(200, True), (200, True), (400, True)]

    def test_accepted_is_the_same_answer_whether_made_before_or_now(self):
        server = HttpServer(RecordingHandler(), SMALL)
        quick = server.render(ACCEPTED, keep_alive=True)
        assert quick == server.render(Response(202), keep_alive=True)

    def test_parser_is_the_one_whose_habits_are_known(self):
        """Bodies of requests with an offer to switch protocols depend on how httptools stops."""
        assert httptools.__version__.startswith("0.")
