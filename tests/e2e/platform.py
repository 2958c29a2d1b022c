"""A platform for the end-to-end tests, started, asked and stopped by the commands that a person types."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]
SLUICE = Path(sys.executable).with_name("sluice")
START_LIMIT_S = 180
"""A first start resolves the broker's jars; later ones take seconds."""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def eventually(claim, *, within_s, every_s=0.2):
    """Repeat `claim` until it returns a true value, and return that; after `within_s` tell the last failure."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            value = claim()
            if value:
                return value
            failure = f"last value: {value!r}"
        except (AssertionError, OSError, KeyError, LookupError) as exc:
            failure = repr(exc)
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {failure}")
        time.sleep(every_s)


class Platform:
    def __init__(self, home, **settings):
        dagster, receiver, subscriber, canary, kafka = free_ports(5)
        self.home = Path(home)
        self.registry = self.home / "registry"
        self.environ = {
            **os.environ,
            "SLUICE_HOME": str(home),
            "SLUICE_DAGSTER_PORT": str(dagster),
            "SLUICE_RECEIVER_PORT": str(receiver),
            "SLUICE_SUBSCRIBER_PORT": str(subscriber),
            "SLUICE_CANARY_PORT": str(canary),
            "SLUICE_KAFKA_PORT": str(kafka),
            **settings,
        }
        self.ports = [dagster, receiver, subscriber, canary, kafka]
        self.kafka_bootstrap = f"127.0.0.1:{kafka}"

    def sluice(self, *arguments, limit_s=60, check=True):
        result = subprocess.run(
            [SLUICE, *arguments],
            cwd=ROOT,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if check and result.returncode != 0:
            raise AssertionError(
                f"sluice {' '.join(arguments)} → {result.returncode}\n{result.stdout}\n{result.stderr}"
            )
        return result

    def up(self, *arguments):
        return self.sluice("up", "--detach", *arguments, limit_s=START_LIMIT_S)

    def down(self):
        return self.sluice("down", limit_s=90)

    def status(self):
        return json.loads(self.sluice("status", "--output", "json").stdout)

    def channel(self, name, namespace="default"):
        return next(c for c in self.status()["channels"] if (c["namespace"], c["name"]) == (namespace, name))

    def workload(self, part):
        return next(w for w in self.status()["workloads"] if part in w["name"])

    def declare(self, file, name, *, subscribers, partitions=2, annotations=None, **spec):
        """Write a channel as a person would: `subscribers` maps uid → URI."""
        import yaml

        document = {
            "apiVersion": "messaging.knative.dev/v1beta1",
            "kind": "KafkaChannel",
            "metadata": {"name": name, "namespace": "default", "annotations": annotations or {}},
            "spec": {
                "numPartitions": partitions,
                "replicationFactor": 1,
                "subscribers": [{"uid": u, "generation": 1, "subscriberUri": uri} for u, uri in subscribers.items()],
                **spec,
            },
        }
        (self.registry / file).write_text(yaml.safe_dump(document))

    def send(self, channel, event_id, *, data=b"{}", key=None, timeout_s=15):
        """POST one binary-mode event; returns the status code (also of an error answer)."""
        url = f"{self.urls['receiver'].rstrip('/')}/default/{channel}"
        headers = {
            "Content-Type": "application/json",
            "ce-specversion": "1.0",
            "ce-type": "test.type.v1",
            "ce-source": "/testsource",
            "ce-id": event_id,
        }
        if key is not None:
            headers["ce-partitionkey"] = key
        request = urllib.request.Request(url, data=data, headers=headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code

    @property
    def urls(self):
        if not hasattr(self, "_urls"):
            self._urls = self.status()["urls"]
        return self._urls

    def get_json(self, url, timeout_s=10):
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            return json.load(response)

    def received(self, path=None):
        """Ids of the events that the sample subscriber has, oldest first."""
        events = self.get_json(self.urls["subscriber"].rstrip("/") + "/events")
        events = events["events"] if isinstance(events, dict) else events
        return [e["attributes"]["id"] for e in events if path is None or e["path"] == path]

    def graphql(self, query, **variables):
        request = urllib.request.Request(
            self.urls["dagster"].rstrip("/") + "/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer
        return answer["data"]


def processes_of(home):
    """Pids of live processes that were started with this SLUICE_HOME."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SLUICE_HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found.append((process.pid, " ".join(process.cmdline())[:120]))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
