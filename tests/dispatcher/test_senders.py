"""Both transports against a scripted server: every attempt ends exactly once, with what really happened."""

import asyncio
import ssl
import subprocess
import time
from collections import deque
from contextlib import asynccontextmanager

import pytest
import uvloop

from dispatcher_image.aiohttp_sender import AiohttpSender
from dispatcher_image.delivery import Answer, NoAnswer
from dispatcher_image.native_sender import NativeSender
from dispatcher_image.sender import MAX_DISCARDED_BYTES, parse_target

OK = b"HTTP/1.1 204 No Content\r\n\r\n"
NO = b"HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\nwhy"
BOTH = pytest.mark.parametrize("transport", [NativeSender, AiohttpSender])


class Work:
    """Requests to send and what became of them."""

    def __init__(self, count=1, body=b"{}"):
        self.waiting = deque((n, b"ce-id: %d\r\ncontent-type: text/plain\r\n" % n, body) for n in range(count))
        self.outcomes = {}
        self.times = {}
        self.expected = count
        self.all_done = asyncio.Event()

    def take(self):
        return self.waiting.popleft() if self.waiting else None

    def settle(self, token, outcome, started, now):
        assert token not in self.outcomes, "an attempt ended twice"
        assert started <= now
        self.outcomes[token] = outcome
        self.times[token] = now - started
        if len(self.outcomes) == self.expected:
            self.all_done.set()

    async def done(self, within=5.0):
        await asyncio.wait_for(self.all_done.wait(), within)
        return self.outcomes


class Server:
    """Runs `script(server, reader, writer)` for each connection; `requests` is what `read` has seen."""

    def __init__(self, script, tls=None):
        self._script = script
        self._tls = tls
        self.requests = []
        self.connections = 0
        self.open = 0
        self.most_open = 0
        self._tasks = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._run, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        self.connections += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        number = self.connections
        try:
            await self._script(self, number, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError, ssl.SSLError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def read(self, reader):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        )
        body = await reader.readexactly(length)
        self.requests.append((head, body))
        return head, body


def always(answer):
    async def script(server, _, reader, writer):
        while True:
            await server.read(reader)
            writer.write(answer)

    return script


@asynccontextmanager
async def sending(transport, server, work, *, timeout=2.0, limit=64, path="/p?q=1", tls_ca=None):  # noqa: ASYNC109
    scheme = "https" if tls_ca else "http"
    target = parse_target(f"{scheme}://127.0.0.1:{server.port}{path}", prefer_reply=True, ca_pem=tls_ca)
    sender = transport(target, work, timeout, limit)
    sender.kick()
    try:
        yield sender
    finally:
        sender.abort()
        await asyncio.sleep(0.05)


def run(coroutine):
    uvloop.run(coroutine)


@BOTH
def test_a_request_is_what_it_should_be(transport):
    async def check():
        async with Server(always(OK)) as server:
            work = Work(body=b"data")
            async with sending(transport, server, work):
                assert (await work.done())[0] == Answer(204)
            (head, body) = server.requests[0]
            lines = head.decode().split("\r\n")
            assert lines[0] == "POST /p?q=1 HTTP/1.1"
            fields = sorted(line.lower() for line in lines[1:] if line and not line.lower().startswith("connection"))
            assert fields == sorted(
                [
                    f"host: 127.0.0.1:{server.port}",
                    "user-agent: sluice",
                    "prefer: reply",
                    "ce-id: 0",
                    "content-type: text/plain",
                    "content-length: 4",
                ]
            )
            assert body == b"data"

    run(check())


@BOTH
def test_connections_are_kept_and_used_again(transport):
    async def check():
        async with Server(always(OK)) as server:
            work = Work(300)
            async with sending(transport, server, work, limit=10) as sender:
                await work.done()
                assert server.connections <= 10
                assert sender.in_flight == 0

    run(check())


@BOTH
def test_an_answer_with_a_body_comes_whole(transport):
    async def check():
        async with Server(always(NO)) as server:
            work = Work()
            async with sending(transport, server, work):
                outcome = (await work.done())[0]
                assert (outcome.status, outcome.body) == (500, b"why")
                assert (b"content-length", b"3") in outcome.headers

    run(check())


async def chunked(server, _, reader, writer):
    await server.read(reader)
    writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    await asyncio.sleep(0.05)
    writer.write(b"2\r\nde\r\n0\r\n\r\n")
    await asyncio.sleep(1)


async def until_close(server, _, reader, writer):
    await server.read(reader)
    writer.write(b"HTTP/1.1 200 OK\r\n\r\nab")
    await asyncio.sleep(0.05)
    writer.write(b"cde")


@BOTH
@pytest.mark.parametrize("script", [chunked, until_close])
def test_bodies_of_every_kind(transport, script):
    async def check():
        async with Server(script) as server:
            work = Work()
            async with sending(transport, server, work):
                outcome = (await work.done())[0]
                assert (outcome.status, outcome.body) == (200, b"abcde")

    run(check())


async def half(server, _, reader, writer):
    await server.read(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
    await writer.drain()


async def half_head(server, _, reader, writer):
    await server.read(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-")
    await writer.drain()


async def nonsense(server, _, reader, writer):
    await server.read(reader)
    writer.write(b"220 smtp.example.org ESMTP\r\n")
    await asyncio.sleep(1)


async def nothing(server, _, reader, writer):
    await server.read(reader)


async def slams(server, _, reader, writer):
    writer.transport.abort()


async def hangs(server, _, reader, writer):
    await server.read(reader)
    await asyncio.sleep(30)


async def drips(server, _, reader, writer):
    await server.read(reader)
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"x" * 100:
        writer.write(bytes([byte]))
        await asyncio.sleep(0.05)


@BOTH
@pytest.mark.parametrize("script", [half, half_head, nonsense, nothing, slams, hangs, drips])
def test_what_is_not_a_complete_answer_is_none(transport, script):
    async def check():
        async with Server(script) as server:
            work = Work()
            async with sending(transport, server, work, timeout=0.4) as sender:
                outcome = (await work.done())[0]
                assert isinstance(outcome, NoAnswer), outcome
                assert outcome.reason
                assert work.times[0] < 0.7
                await asyncio.sleep(0.05)
                assert (sender.in_flight, sender.connections) == (0, 0)

    run(check())


@BOTH
def test_nobody_listens(transport):
    async def check():
        async with Server(always(OK)) as server:
            pass
        work = Work(5)
        async with sending(transport, server, work):
            assert all(isinstance(outcome, NoAnswer) for outcome in (await work.done()).values())

    run(check())


async def serves_then_closes_idle(server, number, reader, writer):
    """The race of RFC 9112 §9.3.1: an answer, and the connection is closed when the next request arrives."""
    await server.read(reader)
    writer.write(OK)
    if number <= 3:
        await reader.read(10)  # the beginning of the next request: close without a word
        writer.transport.abort()
        return
    await always(OK)(server, number, reader, writer)


def test_a_request_that_met_a_closing_connection_is_sent_once_more_as_the_same_attempt():
    async def check():
        async with Server(serves_then_closes_idle) as server:
            work = Work(6)
            async with sending(NativeSender, server, work, limit=1):
                outcomes = await work.done()
                assert all(outcome == Answer(204) for outcome in outcomes.values())
                assert server.connections == 4

    run(check())


async def closes_at_the_second(server, number, reader, writer):
    if number == 1:
        await server.read(reader)
        writer.write(OK)
    await server.read(reader)
    writer.transport.abort()


def test_it_is_not_sent_a_third_time():
    async def check():
        async with Server(closes_at_the_second) as server:
            work = Work(2)
            async with sending(NativeSender, server, work, limit=1):
                outcomes = await work.done()
                assert outcomes[0] == Answer(204)
                assert isinstance(outcomes[1], NoAnswer)
                assert len(server.requests) == 3

    run(check())


async def answers_half_at_the_second(server, number, reader, writer):
    await server.read(reader)
    writer.write(OK)
    await server.read(reader)
    writer.write(b"HTTP/1.1 2")


def test_once_a_byte_of_the_answer_came_it_is_not_sent_again():
    async def check():
        async with Server(answers_half_at_the_second) as server:
            work = Work(2)
            async with sending(NativeSender, server, work, limit=1):
                assert isinstance((await work.done())[1], NoAnswer)
                assert len(server.requests) == 2

    run(check())


async def says_close(server, number, reader, writer):
    await server.read(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    await reader.read(1)


@BOTH
def test_connection_close_is_obeyed(transport):
    async def check():
        async with Server(says_close) as server:
            work = Work(4)
            async with sending(transport, server, work, limit=1):
                assert {outcome.status for outcome in (await work.done()).values()} == {200}
                assert server.connections == 4

    run(check())


async def says_too_much(server, number, reader, writer):
    await server.read(reader)
    writer.write(OK + b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
    await server.read(reader)
    writer.write(OK)
    await reader.read(1)


def test_a_surplus_answer_is_never_taken_for_that_of_the_next_event():
    async def check():
        async with Server(says_too_much) as server:
            work = Work(4)
            async with sending(NativeSender, server, work, limit=1):
                assert {outcome.status for outcome in (await work.done()).values()} == {204}
                assert server.connections == 4

    run(check())


async def answers_late(server, number, reader, writer):
    await server.read(reader)
    await asyncio.sleep(0.3 if number == 1 else 0)
    writer.write(OK)
    await server.read(reader)
    writer.write(OK)


def test_an_answer_after_the_timeout_belongs_to_nobody():
    async def check():
        async with Server(answers_late) as server:
            work = Work(2)
            async with sending(NativeSender, server, work, limit=1, timeout=0.15):
                outcomes = await work.done()
                assert isinstance(outcomes[0], NoAnswer)
                assert outcomes[1] == Answer(204)

    run(check())


async def floods(server, number, reader, writer):
    await server.read(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n")
    for _ in range(2 * MAX_DISCARDED_BYTES // 65536):
        writer.write(b"x" * 65536)
        await writer.drain()


@BOTH
def test_a_flood_is_cut_off_and_its_status_counts(transport):
    async def check():
        async with Server(floods) as server:
            work = Work()
            async with sending(transport, server, work, timeout=5.0):
                outcome = (await work.done())[0]
                assert (outcome.status, outcome.truncated) == (200, True)

    run(check())


@BOTH
def test_redirects_are_not_followed(transport):
    async def check():
        async with Server(always(b"HTTP/1.1 307 X\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")) as server:
            work = Work()
            async with sending(transport, server, work):
                assert (await work.done())[0].status == 307
            assert len(server.requests) == 1

    run(check())


@BOTH
@pytest.mark.parametrize("size", [0, 100_000, 3_000_000])
def test_bodies_of_every_size_arrive_whole(transport, size):
    async def check():
        async with Server(always(OK)) as server:
            work = Work(2, body=b"x" * size)
            async with sending(transport, server, work, timeout=10):
                await work.done(10)
            assert [len(body) for _, body in server.requests] == [size, size]

    run(check())


def test_connections_grow_while_the_subscriber_is_slow_and_age_when_idle(monkeypatch):
    from dispatcher_image import native_sender

    monkeypatch.setattr(native_sender, "IDLE_TIMEOUT_S", 0.2)

    async def slow(server, _, reader, writer):
        while True:
            await server.read(reader)
            await asyncio.sleep(0.1)
            writer.write(OK)

    async def check():
        async with Server(slow) as server:
            work = Work(2000)
            async with sending(NativeSender, server, work, limit=200) as sender:
                began = time.monotonic()
                await work.done(20)
                assert server.most_open <= 200
                assert time.monotonic() - began < 2000 / 64 * 0.1, "more connections than at first were opened"
                await asyncio.sleep(0.6)
                assert sender.connections == 0
                assert server.open == 0

    run(check())


@BOTH
def test_a_retired_sender_finishes_and_takes_no_more(transport):
    async def check():
        async with Server(always(OK)) as server:
            work = Work(3)
            async with sending(transport, server, work, limit=1) as sender:
                sender.retire()
                await asyncio.sleep(0.3)
                assert list(work.outcomes.values()) == [Answer(204)]
                sender.kick()
                assert len(work.waiting) == 2
                assert (sender.in_flight, sender.connections) == (0, 0)

    run(check())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """(server context, PEM of its authority): a certificate for 127.0.0.1 that signs itself."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context, (folder / "cert.pem").read_text()


@BOTH
def test_https_with_an_authority_of_its_own(transport, certificate):
    context, pem = certificate

    async def check():
        async with Server(always(OK), tls=context) as server:
            work = Work(20)
            async with sending(transport, server, work, tls_ca=pem):
                assert set((await work.done()).values()) == {Answer(204)}

    run(check())


@BOTH
def test_https_with_an_unknown_authority_is_refused(transport, certificate):
    context, _ = certificate

    async def check():
        async with Server(always(OK), tls=context) as server:
            target = parse_target(f"https://127.0.0.1:{server.port}/", prefer_reply=False)
            work = Work()
            sender = transport(target, work, 2.0, 4)
            sender.kick()
            outcome = (await work.done())[0]
            assert isinstance(outcome, NoAnswer)
            assert "certificate" in outcome.reason.lower()
            assert not server.requests
            sender.abort()
            await asyncio.sleep(0.05)

    run(check())


@pytest.mark.parametrize(
    ("url", "line", "host"),
    [
        ("http://h", "POST / HTTP/1.1", "h"),
        ("http://h:80/a", "POST /a HTTP/1.1", "h"),
        ("http://h:8080/a?b=c#d", "POST /a?b=c HTTP/1.1", "h:8080"),
        ("https://h:443/", "POST / HTTP/1.1", "h"),
        ("https://h:80/", "POST / HTTP/1.1", "h:80"),
        ("http://[::1]:81/", "POST / HTTP/1.1", "[::1]:81"),
        ("http://h/ü x", "POST /%C3%BC%20x HTTP/1.1", "h"),
        ("http://bücher.example/", "POST / HTTP/1.1", "xn--bcher-kva.example"),
    ],
)
def test_targets(url, line, host):
    head = parse_target(url, prefer_reply=False).head.decode().split("\r\n")
    assert head[0] == line
    assert f"host: {host}" in head


def test_credentials_in_the_url_become_an_authorization():
    target = parse_target("http://me:se%40cret@h/", prefer_reply=False)
    assert b"authorization: Basic bWU6c2VAY3JldA==\r\n" in target.head
    assert b"me:" not in target.head
