"""Profiles are taken while it works, one at a time and for a bounded time."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request

import pytest

from dispatcher_image.profiling import serve_profiles


def fetch(port, target):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{target}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def answers(*targets):
    """What a running loop answers to requests that are made at once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def ask():
        server = await serve_profiles(port)
        try:
            return await asyncio.gather(*(asyncio.to_thread(fetch, port, target) for target in targets))
        finally:
            await server.stop(last_call=0, timeout=0)

    return asyncio.run(ask())


def test_a_profile_names_the_functions_of_the_loop():
    ((code, text),) = answers("/debug/profile?seconds=0.2")

    assert code == 200
    assert "tottime" in text


@pytest.mark.parametrize("seconds", ["0", "-1", "61", "nan", "soon"])
def test_a_time_without_a_bound_is_refused(seconds):
    ((code, text),) = answers(f"/debug/profile?seconds={seconds}")

    assert (code, "seconds" in text) == (400, True)


def test_a_second_profile_waits_for_the_first():
    codes = sorted(code for code, _ in answers("/debug/profile?seconds=0.5", "/debug/profile?seconds=0.5"))

    assert codes == [200, 503]


def test_any_other_path_says_what_there_is():
    ((code, text),) = answers("/")

    assert (code, "/debug/profile" in text) == (404, True)
