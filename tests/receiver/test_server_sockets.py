"""The server on real sockets: starting, stopping, many connections. Everything else is tested without a network."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import pytest
import uvloop

from dispatcher_image.receiver_http import HttpServer, Limits, Response
from orchestration.local.ports import LOOPBACK
from tests.receiver.conversation import RecordingHandler, read_answers, request


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request):
    """Both event loops: the image runs on uvloop, a profiler or debugger may want the other."""
    return uvloop.run if request.param == "uvloop" else asyncio.run


async def until(holds: Callable[[], object], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110  # what is waited for knows nothing of this test
            await asyncio.sleep(0.002)


async def converse(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def test_answers_are_written_before_the_connection_ends(run):
    async def main():
        server = HttpServer(RecordingHandler(), Limits())
        port = await server.start(0, host=LOOPBACK)
        answers = await asyncio.gather(*(converse(port, request(b"%d" % i) * 20) for i in range(50)))
        for i, data in enumerate(answers):
            assert [answer.body for answer in read_answers(data)] == [b"%d" % i] * 20
        await server.stop(last_call=0, timeout=5)
        assert server.connections == 0

    run(main())


def test_client_finds_the_refusal_of_a_body_that_it_is_still_sending(run):
    async def main():
        server = HttpServer(RecordingHandler(), Limits(max_body_bytes=1000))
        port = await server.start(0, host=LOOPBACK)
        (answer,) = read_answers(await converse(port, request(bytes(3_000_000))))
        assert answer.status == 413
        await server.stop(last_call=0, timeout=5)

    run(main())


def test_client_that_never_reads_is_held_and_then_dropped(run):
    async def main():
        handler = RecordingHandler()
        server = HttpServer(handler, Limits(write_timeout=60))
        port = await server.start(0, host=LOOPBACK)
        _, writer = await asyncio.open_connection(LOOPBACK, port, limit=1)
        writer.transport.pause_reading()
        # More than both kernels' buffers hold: the server stops reading, so the client cannot write any more.
        writer.write(request(bytes(1_000_000)) * 64)
        seen = -1
        while seen != len(handler.seen):
            seen = len(handler.seen)
            await asyncio.sleep(0.3)
        assert seen < 64
        server.sweep(time.monotonic() + 50)
        assert server.connections == 1
        server.sweep(time.monotonic() + 70)
        await until(lambda: server.connections == 0)
        writer.transport.abort()
        await server.stop(last_call=0, timeout=5)

    run(main())


def test_stop_answers_what_is_under_way_and_takes_no_new_connections(run):
    async def main():
        handler = RecordingHandler(holds=True)
        server = HttpServer(handler, Limits())
        port = await server.start(0, host=LOOPBACK)
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        idle_reader, idle_writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(request(b"x"))
        await until(lambda: handler.seen)
        stopping = asyncio.create_task(server.stop(last_call=0.05, timeout=5))
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(LOOPBACK, port)
        assert await idle_reader.read() == b""
        assert not stopping.done()
        handler.seen[0].respond(Response(200))
        (answer,) = read_answers(await reader.read())
        assert answer.status == 200
        await stopping
        for each in (writer, idle_writer):
            each.close()
            await each.wait_closed()

    run(main())


def test_request_that_was_on_its_way_is_answered_with_the_last_word(run):
    async def main():
        server = HttpServer(RecordingHandler(), Limits())
        port = await server.start(0, host=LOOPBACK)
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        await until(lambda: server.connections)
        stopping = asyncio.create_task(server.stop(last_call=2, timeout=5))
        await asyncio.sleep(0.01)
        writer.write(request(b"x"))
        (answer,) = read_answers(await reader.read())
        assert answer.headers["Connection"] == "close"
        writer.close()
        await writer.wait_closed()
        await stopping

    run(main())


def test_stop_is_bounded_by_its_timeout(run):
    async def main():
        handler = RecordingHandler(holds=True)
        server = HttpServer(handler, Limits())
        port = await server.start(0, host=LOOPBACK)
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(request(b"x"))
        await until(lambda: handler.seen)
        began = time.monotonic()
        await server.stop(last_call=0, timeout=0.2)
        assert time.monotonic() - began < 2
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.transport.abort()

    run(main())
