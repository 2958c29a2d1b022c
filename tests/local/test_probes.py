"""How probes are judged, and what counts as an answer."""

from __future__ import annotations

import asyncio

import pytest

from orchestration.local.pod_template import Probe
from orchestration.local.ports import free_port
from orchestration.local.probes import Verdict, ask, judge


def verdicts(start, answers, **thresholds):
    probe, verdict, seen = Probe(path="/", port="health", **thresholds), Verdict(healthy=start), []
    for success in answers:
        verdict = judge(verdict, probe, success=success)
        seen.append(verdict.healthy)
    return seen


def test_one_good_answer_makes_ready_and_three_bad_ones_in_a_row_unready():
    answers = [False, True, False, False, True, False, False, False]

    assert verdicts(False, answers) == [False, True, True, True, True, True, True, False]


def test_thresholds_are_those_of_the_probe():
    assert verdicts(False, [True, True, True], success_threshold=3) == [False, False, True]
    assert verdicts(True, [False, False], failure_threshold=1) == [False, False]


@pytest.mark.parametrize(
    ("answer", "good"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
        (b"HTTP/1.1 302 Found\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False),
        (b"", False),
        (b"nonsense\r\n", False),
    ],
)
def test_only_a_status_from_200_to_399_is_a_good_answer(answer, good):
    assert asyncio.run(_asked(answer)) is good


def test_nobody_listening_is_a_bad_answer():
    assert asyncio.run(ask(free_port(), "/", 1.0)) is False


def test_an_answer_that_does_not_come_in_time_is_a_bad_one():
    assert asyncio.run(_asked(None, timeout_s=0.05)) is False


def test_without_a_path_a_connection_is_enough():
    assert asyncio.run(_asked(None, path=None)) is True


async def _asked(answer, *, path="/readyz", timeout_s=5.0):
    served = asyncio.Event()

    async def serve(reader, writer):
        if answer is not None:
            await reader.readline()
            writer.write(answer)
        else:
            await reader.read()
        writer.close()
        await writer.wait_closed()
        served.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        good = await ask(server.sockets[0].getsockname()[1], path, timeout_s)
        await served.wait()
        return good
