"""A sink for the benchmark: answers each POST after a delay and notes the age of events that say when they were sent.

    python benchmarks/dispatch_sink.py PORT DELAY_MS LATENCY_FILE FAILING_KEYS

One pass over what is due every millisecond instead of a timer for each request, so that the sink is not the limit.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
from collections import deque
from pathlib import Path

import uvloop

OK = b"HTTP/1.1 204 No Content\r\n\r\n"
NO = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
SENT = re.compile(rb"ce-sentns: (\d+)")
KEY = re.compile(rb"ce-partitionkey: ([^\r]+)")


class Sink(asyncio.Protocol):
    def __init__(self, state):
        self.state = state
        self.buffer = b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        state = self.state
        buffer = self.buffer + data if self.buffer else data
        while True:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                break
            length = int(LENGTH.search(buffer, 0, end)[1])
            if len(buffer) < end + 4 + length:
                break
            answer = OK
            sent = SENT.search(buffer, 0, end)
            if sent is not None:
                state.ages.append((time.time_ns() - int(sent[1])) / 1e6)
            if state.failing and KEY.search(buffer, 0, end)[1] in state.failing:
                answer = NO
            if state.delay:
                state.due.append((time.monotonic() + state.delay, self.transport, answer))
            else:
                self.transport.write(answer)
            buffer = buffer[end + 4 + length :]
        self.buffer = buffer


class State:
    def __init__(self, delay, failing):
        self.delay = delay
        self.failing = failing
        self.due = deque()
        self.ages = []


async def serve():
    port, delay = int(sys.argv[1]), float(sys.argv[2]) / 1000
    failing = {key.encode() for key in sys.argv[4].split(",") if key}
    state = State(delay, failing)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    await loop.create_server(lambda: Sink(state), "127.0.0.1", port, backlog=8192)

    def answer_due():
        now = time.monotonic()
        due = state.due
        while due and due[0][0] <= now:
            _, transport, answer = due.popleft()
            transport.write(answer)
        loop.call_later(0.001, answer_due)

    if delay:
        answer_due()
    await stop.wait()
    return state.ages


if __name__ == "__main__":
    found = uvloop.run(serve())
    Path(sys.argv[3]).write_text("\n".join(f"{age:.3f}" for age in found))
