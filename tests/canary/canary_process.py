"""The program as a user starts it, and what it says over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

from orchestration.local.ports import free_port

ROOT = Path(__file__).parent.parent.parent
DEFAULTS = {
    "RECONCILE_INTERVAL_MS": "500",
    "KAFKA_BOOTSTRAP_BACKOFF_SCALE": "200",
    "KAFKA_BOOTSTRAP_BACKOFF_MAX_ATTEMPTS": "3",
    "CONNECTION_CHECK_INTERVAL_MS": "1000",
    "STATUS_CHECK_INTERVAL_MS": "500",
    "STATUS_TIME_WINDOW_MS": "5000",
}


class CanaryProcess:
    """`with CanaryProcess(environment) as canary`: runs it, and expects it to end with 0 on SIGTERM."""

    def __init__(self, environ: dict[str, str], log: Path) -> None:
        self.port = free_port()
        self.log = log
        self._environ = {**DEFAULTS, **environ, "METRICS_PORT": str(self.port), "PATH": os.environ["PATH"]}

    def __enter__(self) -> Self:
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "canary_image"], env=self._environ, cwd=ROOT, stderr=output, stdout=output
            )
        self.eventually(lambda: self.get("/liveness")[0] == 200, 15)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            code = self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
        assert code == 0, self.log.read_text()

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.read().decode()
        except OSError:
            return 0, ""

    def is_ready(self) -> bool:
        return self.get("/readiness")[0] == 200

    def percentage(self) -> float:
        return json.loads(self.get("/status")[1])["Consuming"]["Percentage"]

    def series(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        return {
            tuple(sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
            if sample.name == name
        }

    def count(self, name: str, **labels: str) -> float:
        """The sum over all series with these labels."""
        return sum(value for found, value in self.series(name).items() if labels.items() <= dict(found).items())

    def produced(self, partition: int) -> float:
        return self.count("strimzi_canary_records_produced_total", partition=str(partition))

    def failed(self, partition: int) -> float:
        return self.count("strimzi_canary_records_produced_failed_total", partition=str(partition))

    def consumed(self, partition: int) -> float:
        return self.count("strimzi_canary_records_consumed_total", partition=str(partition))

    def eventually(self, fact: Callable[[], bool], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        pause = threading.Event()
        while not fact():
            assert self.process.poll() is None, f"the canary has ended:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"it did not come true:\n{self.log.read_text()}\n{self._numbers()}"
            pause.wait(0.1)

    def wait(self, seconds: float) -> None:
        """Let the canary run for a while."""
        threading.Event().wait(seconds)

    def _numbers(self) -> str:
        return "\n".join(
            line
            for line in self.get("/metrics")[1].splitlines()
            if "_canary_" in line and not line.startswith("#") and "_bucket" not in line and not line.endswith(" 0.0")
        )
