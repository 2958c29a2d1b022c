"""The program's edges: wrong configuration, a taken port, signals."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from canary_image.__main__ import main
from orchestration.local.ports import free_port
from tests.canary.canary_process import CanaryProcess

ROOT = Path(__file__).parent.parent.parent


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "canary_image", *arguments],
        env={"PATH": os.environ["PATH"], **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_wrong_configuration_is_78_and_one_message_with_all_of_it():
    ended = run(RECONCILE_INTERVAL_MS="0", TOPIC_CONFIG="=x", STATUS_CHECK_INTERVAL_MS="0", TLS_CA_CERT="/nowhere")

    assert ended.returncode == 78
    assert len(ended.stderr.splitlines()) == 1
    for key in ("RECONCILE_INTERVAL_MS", "TOPIC_CONFIG", "STATUS_CHECK_INTERVAL_MS", "TLS_CA_CERT"):
        assert key in ended.stderr


def test_arguments_are_wrong_use(capsys):
    assert main(["--help"], {}) == 2
    assert "environment" in capsys.readouterr().err


def test_a_taken_port_is_told():
    with socket.create_server(("0.0.0.0", 0)) as taken:
        ended = run(METRICS_PORT=str(taken.getsockname()[1]))

    assert ended.returncode == 1
    assert "METRICS_PORT" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_while_kafka_is_away(tmp_path, number):
    nowhere = f"127.0.0.1:{free_port()}"
    with CanaryProcess({"KAFKA_BOOTSTRAP_SERVERS": nowhere}, tmp_path / "log") as canary:
        assert (canary.get("/liveness")[0], canary.get("/readiness")[0]) == (200, 503)
        assert canary.get("/status")[1].startswith('{"Consuming":{"TimeWindow":')
        began = time.monotonic()
        canary.process.send_signal(number)

        assert canary.process.wait(15) == 0
        assert time.monotonic() - began < 12
        assert "Traceback" not in canary.log.read_text()
