"""How the program starts and ends: every wrong key at once, exit codes, and only what it needs loaded."""

import os
import socket
import subprocess
import sys

import pytest

from tests.dispatcher.conftest import ROOT


def run(*arguments, **env):
    clean = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "VIRTUAL_ENV"}}
    return subprocess.run(
        [sys.executable, "-m", "dispatcher_image", *arguments],
        env=clean | env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


GOOD = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "CHANNEL_KEY": "a/b", "KAFKA_TOPIC": "a.b"}


def test_every_wrong_key_is_named_at_once_and_the_exit_code_is_78():
    ended = run(
        "dispatch",
        KAFKA_BOOTSTRAP_SERVERS="nowhere",
        CHANNEL_KEY="no-slash",
        MAX_IN_FLIGHT="many",
        METRICS_PORT="0",
        GROUP_PROTOCOL="new",
        LOG_LEVEL="loud",
        DRAIN_TIMEOUT_SECONDS="nan",
    )
    assert ended.returncode == 78
    wrong = "KAFKA_BOOTSTRAP_SERVERS CHANNEL_KEY KAFKA_TOPIC MAX_IN_FLIGHT METRICS_PORT GROUP_PROTOCOL LOG_LEVEL"
    for key in [*wrong.split(), "DRAIN_TIMEOUT_SECONDS"]:
        assert key in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"CHANNEL_SOURCE": "/no/where/at/all"}, "CHANNEL_SOURCE"),
        ({"CHANNEL_SOURCE": "/tmp", "KAFKA_SECRET_DIR": "/no/where"}, "KAFKA_SECRET_DIR"),
    ],
)
def test_what_the_configuration_names_and_is_not_there_ends_with_78_too(env, words):
    ended = run("dispatch", **GOOD, **env)
    assert ended.returncode == 78
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("arguments", [[], ["deliver"], ["dispatch", "now"]])
def test_wrong_use_ends_with_2(arguments):
    ended = run(*arguments)
    assert ended.returncode == 2
    assert "usage" in ended.stderr


def test_a_port_that_is_taken_ends_with_1_and_says_so(tmp_path):
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        ended = run("dispatch", **GOOD, CHANNEL_SOURCE=str(tmp_path), METRICS_PORT=str(taken.getsockname()[1]))
    assert ended.returncode == 1
    assert "in use" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_each_program_loads_only_what_it_needs():
    code = (
        "import sys, dispatcher_image.__main__\n"
        "assert not {'confluent_kafka', 'kubernetes', 'aiohttp', 'uvloop'} & set(sys.modules), sys.modules\n"
        "import dispatcher_image.dispatch, dispatcher_image.native_sender\n"
        "assert not {'kubernetes', 'aiohttp', 'dispatcher_image.receiver'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
