"""The receiver as users run it: `python -m dispatcher_image receive` in a process of its own."""

from __future__ import annotations

import http.client
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from orchestration.local.ports import LOOPBACK, free_port, give_back

READY_S = 30.0
EVENT = {"ce-specversion": "1.0", "ce-source": "/testsource", "ce-type": "test.type.v1"}


def declare(registry: Path, *names: str, namespace: str = "team-a") -> None:
    """Put channels into a folder registry."""
    registry.mkdir(exist_ok=True)
    for name in names:
        (registry / f"{name}.yaml").write_text(
            "apiVersion: messaging.knative.dev/v1beta1\nkind: KafkaChannel\n"
            f"metadata: {{name: {name}, namespace: {namespace}}}\nspec: {{numPartitions: 1}}\n"
        )


class ReceiverProcess:
    """A context: ready when entered, unless `wait` says otherwise; stopped when left."""

    def __init__(self, bootstrap: str, registry: Path, *, wait: bool = True, tls: Path | None = None, **env: str):
        self.port, self.metrics_port, self.health_port = free_port(), free_port(), free_port()
        self._tls = tls
        self._wait = wait
        self._log = registry.parent / f"receiver-{self.port}.log"
        self._environ = {
            **os.environ,
            "KAFKA_BOOTSTRAP_SERVERS": bootstrap,
            "CHANNEL_SOURCE": str(registry),
            "PORT": str(self.port),
            "METRICS_PORT": str(self.metrics_port),
            "HEALTH_PORT": str(self.health_port),
            **({} if tls is None else {"TLS_CERT_FILE": f"{tls}/tls.crt", "TLS_KEY_FILE": f"{tls}/tls.key"}),
            **env,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dispatcher_image", "receive"], env=self._environ, stderr=log
            )
        if self._wait:
            self.wait_until(lambda: self.readiness()[0] == 200)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for port in (self.port, self.metrics_port, self.health_port):
            give_back(port)

    def wait_until(self, holds, seconds: float = READY_S) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                if holds():
                    return
            except OSError:
                pass
            assert self._process is not None
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, f"waited {seconds} s: {self.log}"
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    def terminate(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = 30.0) -> int:
        assert self._process is not None
        return self._process.wait(seconds)

    # --- requests ----------------------------------------------------------------------------------------------------

    def connect(self, timeout: float = 30.0) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(LOOPBACK, self.port, timeout=timeout)
        context = ssl.create_default_context(cafile=f"{self._tls}/tls.crt")
        return http.client.HTTPSConnection("localhost", self.port, timeout=timeout, context=context)

    def post(
        self,
        path: str,
        event_id: str,
        body: bytes = b"x",
        headers: Mapping[str, str] | None = None,
        connection: http.client.HTTPConnection | None = None,
    ) -> int:
        """Send one binary event; gives the status."""
        used = connection or self.connect()
        try:
            used.request("POST", path, body, {**EVENT, "ce-id": event_id, **(headers or {})})
            response = used.getresponse()
            response.read()
            return response.status
        finally:
            if connection is None:
                used.close()

    def get(self, port: int, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def readiness(self) -> tuple[int, str]:
        return self.get(self.health_port, "/readyz")

    def metric(self, series: str) -> float:
        """The value of one series, spelled as it is exposed."""
        _, page = self.get(self.metrics_port, "/metrics")
        for line in page.splitlines():
            if line.startswith(series + " "):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"{series} is not exposed")
