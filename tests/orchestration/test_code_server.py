"""Runs that start warm: Dagster still makes the choice that is replaced, and what is forked from bears it."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
from dagster._grpc import server

from orchestration.local.code_server import PRELOADED, ForkedStarts


def test_dagster_still_asks_for_spawn_where_it_is_replaced():
    assert 'multiprocessing.get_context("spawn")' in inspect.getsource(server.DagsterApiServer.__init__)
    assert server.multiprocessing.__name__ == "multiprocessing"


def test_a_run_is_forked_and_anything_else_is_refused():
    assert ForkedStarts().get_context("spawn").get_start_method() == "forkserver"
    assert ForkedStarts().Process.__name__ == "Process"
    with pytest.raises(AssertionError, match="no longer for spawn"):
        ForkedStarts().get_context("fork")


def test_what_is_forked_from_has_no_threads_and_no_connections():
    """A fork tears both: locks stay locked, and two processes read one socket."""
    code = (
        f"import importlib, os, pathlib, threading\n[importlib.import_module(name) for name in {PRELOADED!r}[1:]]\n"
        "sockets = [fd.name for fd in pathlib.Path('/proc/self/fd').iterdir() if fd.is_socket()]\n"
        "print(threading.active_count(), len(os.listdir('/proc/self/task')), sockets)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "1 1 []"
