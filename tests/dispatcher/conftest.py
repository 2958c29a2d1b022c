"""A channel on a real broker, a dispatcher process for it, and a subscriber that records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from orchestration.local.ports import free_port
from tests.fakes.subscriber import RecordingSubscriber

ROOT = Path(__file__).parents[2]


def get(port, path):
    """(status, body); (0, reason) when nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()
    except OSError as exc:
        return 0, str(exc)


def event(number, key=None, **attributes):
    """Record headers and key of a CloudEvent in binary mode."""
    headers = {
        "ce_specversion": "1.0",
        "ce_id": str(number),
        "ce_source": "/test",
        "ce_type": "test.type.v1",
        "content-type": "application/json",
        **({} if key is None else {"ce_partitionkey": key}),
        **attributes,
    }
    return {"headers": {name: value.encode() for name, value in headers.items()}, "key": key and key.encode()}


class Channel:
    """One KafkaChannel in a registry folder of its own, its topics, and its dispatchers."""

    def __init__(self, bootstrap, folder, partitions=4):
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic

        self.bootstrap = bootstrap
        self.registry = folder
        self.name = f"c{uuid.uuid4().hex[:8]}"
        self.topic = f"t.{self.name}"
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        topics = [NewTopic(self.topic, partitions, 1), NewTopic(f"{self.topic}.dead-letter", partitions, 1)]
        for future in self.admin.create_topics(topics).values():
            future.result(30)
        self.producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 2})
        self.partitions = partitions

    def declare(self, *subscribers, annotations=None, **spec):
        document = {
            "apiVersion": "messaging.knative.dev/v1beta1",
            "kind": "KafkaChannel",
            "metadata": {"namespace": "t", "name": self.name, "annotations": annotations or {}},
            "spec": {"subscribers": list(subscribers), "numPartitions": self.partitions, **spec},
        }
        path = self.registry / f"{self.name}.yaml"
        path.with_suffix(".new").write_text(yaml.safe_dump(document))
        path.with_suffix(".new").rename(path)

    def group(self, uid):
        return f"kafka.t.{self.name}.{uid}"

    def produce(self, number, key=None, value=b"{}", partition=-1, **attributes):
        self.producer.produce(self.topic, value=value, partition=partition, **event(number, key, **attributes))
        self.producer.poll(0)

    def flush(self):
        assert self.producer.flush(30) == 0

    def committed(self, uid):
        """Committed offset and metadata by partition."""
        from confluent_kafka import Consumer, TopicPartition

        # Not by the admin client: its list_consumer_group_offsets ends the process while a coordinator settles
        # (librdkafka issue 5040). This consumer joins nothing.
        reader = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group(uid)})
        try:
            wanted = [TopicPartition(self.topic, number) for number in range(self.partitions)]
            return {item.partition: (item.offset, item.metadata) for item in reader.committed(wanted, timeout=20)}
        finally:
            reader.close()

    def dead_letters(self, count, within=20.0):
        """Messages of the dead-letter topic, once there are `count`."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "reader", "enable.auto.commit": False})
        consumer.assign(
            [TopicPartition(f"{self.topic}.dead-letter", n, OFFSET_BEGINNING) for n in range(self.partitions)]
        )
        found, deadline = [], time.monotonic() + within
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append(message)
        consumer.close()
        assert len(found) == count, f"{len(found)} dead letters instead of {count}"
        return found


class Dispatcher:
    """A dispatcher process."""

    def __init__(self, channel, log_path, **env):
        self.health_port = int(env.get("HEALTH_PORT") or free_port())
        self.metrics_port = int(env.get("METRICS_PORT") or free_port())
        self._log = log_path.open("ab")
        environment = {
            **os.environ,
            "KAFKA_BOOTSTRAP_SERVERS": channel.bootstrap,
            "CHANNEL_KEY": f"t/{channel.name}",
            "KAFKA_TOPIC": channel.topic,
            "CHANNEL_SOURCE": str(channel.registry),
            "HEALTH_PORT": str(self.health_port),
            "METRICS_PORT": str(self.metrics_port),
            **env,
        }
        command = [sys.executable, "-m", "dispatcher_image", "dispatch"]
        self.process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=self._log, stderr=self._log)

    def wait_ready(self, within=30.0):
        deadline = time.monotonic() + within
        while (answer := get(self.health_port, "/readyz"))[0] != 200:
            assert self.process.poll() is None, f"ended with {self.process.returncode}"
            assert time.monotonic() < deadline, f"not ready: {answer}"
            time.sleep(0.05)
        return self

    def status(self):
        return {item["uid"]: item for item in json.loads(get(self.health_port, "/subscriptions")[1])["subscriptions"]}

    def status_or_empty(self):
        """The same; empty while nobody answers."""
        return self.status() if get(self.health_port, "/healthz")[0] == 200 else {}

    def same_ports(self):
        """Environment for the process that takes this one's place."""
        return {"HEALTH_PORT": str(self.health_port), "METRICS_PORT": str(self.metrics_port)}

    def metrics(self):
        return get(self.metrics_port, "/metrics")[1]

    def metric(self, name, **labels):
        """Sum of the series that have these labels."""
        from prometheus_client.parser import text_string_to_metric_families

        total = None
        for family in text_string_to_metric_families(self.metrics()):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    total = (total or 0.0) + sample.value
        return total

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self, within=20.0):
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within)

    def close(self):
        if self.process.poll() is None:
            self.kill()
        self._log.close()


@pytest.fixture
def subscriber():
    with RecordingSubscriber() as running:
        yield running


@pytest.fixture
def channel(kafka, tmp_path):
    folder = tmp_path / "registry"
    folder.mkdir()
    return Channel(kafka.bootstrap, folder)


@pytest.fixture
def start(tmp_path, request):
    """Start dispatchers; all are ended with the test, and their log is shown when it failed."""
    running = []

    def begin(channel, **env):
        running.append(Dispatcher(channel, tmp_path / "dispatcher.log", **env))
        return running[-1]

    yield begin
    for dispatcher in running:
        dispatcher.close()
    log = tmp_path / "dispatcher.log"
    if log.exists():
        lines = log.read_text().splitlines()
        print("\n".join(lines[-60:]))
        assert "Traceback" not in log.read_text(), "a dispatcher had an error that nobody expected"


@contextmanager
def within(seconds, what):
    """Assert that the block takes no longer."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took <= seconds, f"{what} took {took:.2f} s"
