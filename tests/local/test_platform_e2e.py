"""The platform as processes: a terminal that is interrupted, and a platform that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import psutil
import pytest

from orchestration.local.ports import answers
from tests.e2e.platform import ROOT, SLUICE, START_LIMIT_S, Platform, eventually, processes_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def platform(tmp_path_factory):
    """One home for all tests here: later starts are quicker than first ones."""
    platform = Platform(tmp_path_factory.mktemp("platform"))
    yield platform
    platform.down()


def nothing_left(platform):
    return not processes_of(platform.home) and not [port for port in platform.ports if answers(port)]


def test_ctrl_c_in_the_terminal_stops_all_of_it(platform):
    with (platform.home / "terminal").open("w+") as terminal:
        process = subprocess.Popen(
            [SLUICE, "up"],
            cwd=ROOT,
            env=platform.environ,
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            shown = platform.home / "terminal"
            eventually(lambda: "Try:" in shown.read_text(), within_s=START_LIMIT_S)
            assert platform.send("orders", "from-a-terminal") == 202
            eventually(lambda: "id=from-a-terminal" in shown.read_text(), within_s=20)
            # As a terminal does: to the whole foreground process group.
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(90) == 0
        finally:
            process.kill()
            process.wait()

    eventually(lambda: nothing_left(platform), within_s=5)


def test_a_killed_platform_leaves_nothing_and_the_next_start_has_its_data(platform):
    platform.up()
    assert platform.send("orders", "before-the-kill") == 202
    eventually(lambda: "before-the-kill" in platform.received(), within_s=20)
    (state,) = [p for p in map(psutil.Process, (pid for pid, _ in processes_of(platform.home))) if _is_platform(p)]
    state.kill()
    eventually(lambda: nothing_left(platform), within_s=15)

    platform.up()
    assert platform.send("orders", "after-the-kill") == 202
    eventually(lambda: "after-the-kill" in platform.received(), within_s=20)


def test_a_killed_controller_and_a_killed_broker_are_back(platform):
    if not processes_of(platform.home):
        platform.up()
    for part in ("orchestration.local.controller", "kafka.Kafka"):
        (process,) = [
            psutil.Process(pid) for pid, _ in processes_of(platform.home) if part in psutil.Process(pid).cmdline()
        ]
        process.kill()
        time.sleep(1)
        eventually(lambda: platform.status()["ready"], within_s=90)
        assert platform.send("orders", f"after-{part}") == 202
        eventually(lambda event=f"after-{part}": event in platform.received(), within_s=30)


def _is_platform(process):
    return "orchestration.local.platform_process" in process.cmdline()
