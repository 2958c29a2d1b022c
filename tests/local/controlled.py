"""A real controller for tests, as a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time

import psutil

from orchestration.local.tether import tethered
from orchestration.local.workload_files import WorkloadFiles


@contextlib.contextmanager
def controller(home):
    """The controller of this home; stopped at the end, with all of its processes."""
    process = start_controller(home)
    try:
        yield process
    finally:
        stop(process)


def start_controller(home):
    home.mkdir(parents=True, exist_ok=True)
    with (home / "controller.log").open("ab") as log:
        process = subprocess.Popen(
            tethered([sys.executable, "-m", "orchestration.local.controller"]),
            env={**os.environ, "SLUICE_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    deadline = time.monotonic() + 20
    while not WorkloadFiles(home).is_controlled():
        assert process.poll() is None, (home / "controller.log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


def stop(process):
    process.terminate()
    try:
        process.wait(30)
    finally:
        process.kill()
        process.wait()


def pods(home, namespace, name):
    """The replicas as the controller tells them; none when it has not told yet."""
    try:
        return json.loads((home / "workloads" / "status" / namespace / f"{name}.json").read_bytes())["pods"]
    except FileNotFoundError:
        return []


def alive(pid):
    """Whether this process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
