"""The receiver as a process, with real Kafka behind it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestration.local.kafka_server import KafkaServer
from orchestration.local.ports import LOOPBACK, free_port
from tests.receiver.process import EVENT, ReceiverProcess, declare
from tests.receiver.topics import create_topic, ids_of, records_of


@pytest.fixture
def channel():
    """A name that no other test uses."""
    return "c" + uuid.uuid4().hex[:8]


@pytest.fixture
def registry(tmp_path):
    folder = tmp_path / "registry"
    folder.mkdir()
    return folder


def test_wrong_environment_ends_with_78_and_names_every_key():
    done = subprocess.run(
        [sys.executable, "-m", "dispatcher_image", "receive"],
        env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": "", "PORT": "x", "MAX_EVENT_BYTES": "-1", "TLS_CERT_FILE": "/c"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 78
    for key in (b"KAFKA_BOOTSTRAP_SERVERS", b"PORT", b"MAX_EVENT_BYTES", b"TLS_KEY_FILE"):
        assert key in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "env",
    [
        {"KAFKA_SECRET_DIR": "/does/not/exist"},
        {"CHANNEL_SOURCE": "/does/not/exist"},
        {"TLS_CERT_FILE": "/does/not/exist", "TLS_KEY_FILE": "/does/not/exist"},
    ],
    ids=lambda env: next(iter(env)),
)
def test_files_that_are_missing_end_with_78(env, registry):
    with ReceiverProcess("127.0.0.1:1", registry, wait=False, **env) as receiver:
        assert receiver.wait() == 78
        assert next(iter(env)) in receiver.log
        assert "Traceback" not in receiver.log


def test_taken_port_ends_with_1(registry):
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        env = {"PORT": str(other.getsockname()[1])}
        with ReceiverProcess("127.0.0.1:1", registry, wait=False, **env) as receiver:
            assert receiver.wait() == 1
            assert "Traceback" not in receiver.log


def test_without_kafka_it_lives_is_not_ready_and_answers_503(registry):
    declare(registry, "orders")
    bootstrap = f"{LOOPBACK}:{free_port()}"
    with ReceiverProcess(bootstrap, registry, wait=False, DELIVERY_TIMEOUT_SECONDS="3") as receiver:
        receiver.wait_until(lambda: receiver.get(receiver.health_port, "/healthz")[0] == 200)
        receiver.wait_until(lambda: receiver.post("/team-a/orders", "1") != 404)
        began = time.monotonic()
        assert receiver.post("/team-a/orders", "2") == 503
        assert time.monotonic() - began < 3 + 0.5  # the timeout, and a machine with other work
        status, reason = receiver.readiness()
        assert status == 503
        assert "Kafka" in reason
        receiver.terminate()
        assert receiver.wait() == 0


@pytest.mark.kafka
class TestWithKafka:
    def test_accepted_event_is_in_the_topic_as_the_binding_says(self, kafka, registry, channel):
        create_topic(kafka.bootstrap, f"team-a.{channel}", 4)
        declare(registry, channel)
        with ReceiverProcess(kafka.bootstrap, registry) as receiver:
            headers = {"Content-Type": "application/json", "ce-partitionkey": "k%20%C3%BC", "Knative-Hello": "world"}
            assert receiver.post(f"/team-a/{channel}", "123", b'{"a":1}', headers) == 202
            assert receiver.post("/", "124", b"", {"Host": f"{channel}-kn-channel.team-a.svc.cluster.local"}) == 202
            assert receiver.metric('sluice_receiver_requests_total{code="202"}') == 2
            assert receiver.metric(f'sluice_receiver_events_total{{channel="{channel}",namespace="team-a"}}') == 2
            assert receiver.metric('sluice_receiver_requests_total{code="503"}') == 0
        records = {dict(r.headers())["ce_id"]: r for r in records_of(kafka.bootstrap, f"team-a.{channel}")}
        assert records[b"123"].key() == "k ü".encode()
        assert records[b"123"].value() == b'{"a":1}'
        assert dict(records[b"123"].headers()) == {
            "ce_specversion": b"1.0",
            "ce_source": b"/testsource",
            "ce_type": b"test.type.v1",
            "ce_id": b"123",
            "ce_partitionkey": "k ü".encode(),
            "content-type": b"application/json",
            "knative-hello": b"world",
        }
        assert records[b"124"].value() is None
        assert records[b"124"].key() is None

    def test_batch_is_durable_in_order(self, kafka, registry, channel):
        create_topic(kafka.bootstrap, f"team-a.{channel}")
        declare(registry, channel)
        events = [{"specversion": "1.0", "id": str(i), "source": "/s", "type": "t", "data": i} for i in range(200)]
        with ReceiverProcess(kafka.bootstrap, registry) as receiver:
            connection = receiver.connect()
            headers = {"Content-Type": "application/cloudevents-batch+json"}
            connection.request("POST", f"/team-a/{channel}", json.dumps(events), headers)
            assert connection.getresponse().status == 202
            connection.close()
        assert ids_of(kafka.bootstrap, f"team-a.{channel}") == [str(i) for i in range(200)]

    def test_events_with_one_key_keep_their_order_on_one_connection(self, kafka, registry, channel):
        create_topic(kafka.bootstrap, f"team-a.{channel}", 4)
        declare(registry, channel)
        head = "".join(f"{name}: {value}\r\n" for name, value in EVENT.items())
        pipelined = "".join(
            f"POST /team-a/{channel} HTTP/1.1\r\nHost: h\r\n{head}ce-id: {i}\r\nce-partitionkey: k\r\n"
            "Content-Length: 1\r\n\r\nx"
            for i in range(500)
        )
        with (
            ReceiverProcess(kafka.bootstrap, registry) as receiver,
            socket.create_connection((LOOPBACK, receiver.port), 30) as connection,
        ):
            sender = threading.Thread(target=connection.sendall, args=(pipelined.encode(),))
            sender.start()
            answers = b""
            while answers.count(b"HTTP/1.1 202") < 500:
                received = connection.recv(65536)
                assert received
                answers += received
            sender.join()
        assert ids_of(kafka.bootstrap, f"team-a.{channel}") == [str(i) for i in range(500)]

    def test_too_large_events_get_413_whoever_says_so(self, kafka, registry, channel):
        create_topic(kafka.bootstrap, f"team-a.{channel}", max_message_bytes="5000")
        declare(registry, channel)
        with ReceiverProcess(kafka.bootstrap, registry, MAX_EVENT_BYTES="100000") as receiver:
            assert receiver.post(f"/team-a/{channel}", "1", b"x" * 100_001) == 413
            assert receiver.post(f"/team-a/{channel}", "2", os.urandom(90_000)) == 413
            assert receiver.post(f"/team-a/{channel}", "3", b"fits") == 202
        assert ids_of(kafka.bootstrap, f"team-a.{channel}") == ["3"]

    def test_largest_event_is_accepted(self, kafka, registry, channel):
        create_topic(kafka.bootstrap, f"team-a.{channel}", max_message_bytes="1200000")
        declare(registry, channel)
        with ReceiverProcess(kafka.bootstrap, registry) as receiver:
            assert receiver.post(f"/team-a/{channel}", "1", os.urandom(1_048_576)) == 202
            assert receiver.post(f"/team-a/{channel}", "2", bytes(1_048_577)) == 413
        assert ids_of(kafka.bootstrap, f"team-a.{channel}") == ["1"]

    def test_channel_without_its_topic_gets_503_and_no_topic_appears(self, kafka, registry, channel):
        declare(registry, channel)
        with ReceiverProcess(kafka.bootstrap, registry, DELIVERY_TIMEOUT_SECONDS="2") as receiver:
            assert receiver.post(f"/team-a/{channel}", "1") == 503
            create_topic(kafka.bootstrap, f"team-a.{channel}")
            receiver.wait_until(lambda: receiver.post(f"/team-a/{channel}", "2") == 202)
        assert "1" not in ids_of(kafka.bootstrap, f"team-a.{channel}")

    def test_channels_are_followed_while_it_runs(self, kafka, registry, channel):
        create_topic(kafka.bootstrap, f"team-a.{channel}")
        with ReceiverProcess(kafka.bootstrap, registry) as receiver:
            assert receiver.post(f"/team-a/{channel}", "1") == 404
            declare(registry, channel)
            receiver.wait_until(lambda: receiver.post(f"/team-a/{channel}", "2") == 202, 5)
            (registry / f"{channel}.yaml").unlink()
            receiver.wait_until(lambda: receiver.post(f"/team-a/{channel}", "3") == 404, 5)

    def test_sigterm_loses_nothing_that_was_acknowledged(self, kafka, registry, channel):
        create_topic(kafka.bootstrap, f"team-a.{channel}", 4)
        declare(registry, channel)
        acknowledged: list[list[str]] = [[] for _ in range(8)]
        unanswered: list[BaseException] = []

        def send(worker: int) -> None:
            """On one keep-alive connection until the receiver says that it was the last request."""
            connection = receiver.connect()
            for number in range(100_000):
                event_id = f"{worker}-{number}"
                try:
                    connection.request("POST", f"/team-a/{channel}", b"x", {**EVENT, "ce-id": event_id})
                    response = connection.getresponse()
                    response.read()
                except (OSError, http.client.HTTPException) as exc:
                    unanswered.append(exc)
                    return
                if response.status == 202:
                    acknowledged[worker].append(event_id)
                if response.will_close:
                    return

        with ReceiverProcess(kafka.bootstrap, registry) as receiver, ThreadPoolExecutor(8) as pool:
            workers = [pool.submit(send, worker) for worker in range(8)]
            receiver.wait_until(lambda: all(len(ids) > 20 for ids in acknowledged))
            receiver.terminate()
            for worker in workers:
                worker.result(30)
            assert receiver.wait() == 0
            assert "unconfirmed=0" in receiver.log
        # Busy connections are told; none of them finds a reset.
        assert unanswered == []
        assert {i for ids in acknowledged for i in ids} <= set(ids_of(kafka.bootstrap, f"team-a.{channel}"))

    def test_after_sigterm_no_connection_is_accepted(self, kafka, registry, channel):
        with ReceiverProcess(kafka.bootstrap, registry) as receiver:
            idle = receiver.connect()
            idle.connect()
            receiver.terminate()
            assert receiver.wait(10) == 0
            idle.close()
            with pytest.raises(ConnectionRefusedError):
                receiver.connect().connect()


@pytest.mark.kafka
class TestOutage:
    """Clusters of their own, because they die."""

    @pytest.mark.parametrize("how", ["kill", "pause"])
    def test_broker_away_means_503_and_what_was_acknowledged_stays(self, tmp_path, registry, how):
        declare(registry, "orders")
        with KafkaServer(tmp_path / "kafka") as kafka:
            create_topic(kafka.bootstrap, "team-a.orders")
            with ReceiverProcess(kafka.bootstrap, registry, DELIVERY_TIMEOUT_SECONDS="3") as receiver:
                acknowledged, refused = [], []
                stop = threading.Event()

                def send() -> None:
                    number = 0
                    while not stop.is_set():
                        number += 1
                        began = time.monotonic()
                        status = receiver.post("/team-a/orders", str(number))
                        (acknowledged if status == 202 else refused).append(str(number))
                        assert status in {202, 503}
                        assert time.monotonic() - began < 3 + 0.5
                        time.sleep(0.01)

                with ThreadPoolExecutor(1) as pool:
                    sender = pool.submit(send)
                    try:
                        receiver.wait_until(lambda: len(acknowledged) > 50)
                        pid = kafka.pids[0]
                        if how == "kill":
                            kafka.kill_broker(0)
                        else:
                            os.kill(pid, signal.SIGSTOP)
                        receiver.wait_until(lambda: receiver.readiness()[0] == 503)
                        receiver.wait_until(lambda: len(refused) > 2)
                        before = len(acknowledged)
                        if how == "kill":
                            kafka.start_broker(0)
                        else:
                            os.kill(pid, signal.SIGCONT)
                        receiver.wait_until(lambda: receiver.readiness()[0] == 200)
                        receiver.wait_until(lambda: len(acknowledged) > before + 50)
                    finally:
                        stop.set()
                    sender.result(30)
                receiver.terminate()
                assert receiver.wait() == 0
            durable = ids_of(kafka.bootstrap, "team-a.orders")
        assert set(acknowledged) <= set(durable)
        assert len(refused) > 0

    def test_brokers_that_die_one_by_one_lose_nothing_that_was_acknowledged(self, tmp_path, registry):
        declare(registry, "orders")
        with KafkaServer(tmp_path / "kafka", brokers=3) as kafka:
            create_topic(kafka.bootstrap, "team-a.orders", 6, copies=3, min_insync_replicas="2")
            with ReceiverProcess(kafka.bootstrap, registry) as receiver:
                acknowledged: list[list[str]] = [[] for _ in range(4)]
                stop = threading.Event()

                def send(worker: int) -> None:
                    number = 0
                    while not stop.is_set():
                        number += 1
                        event_id = f"{worker}-{number}"
                        status = receiver.post("/team-a/orders", event_id, headers={"ce-partitionkey": event_id})
                        assert status in {202, 503}
                        if status == 202:
                            acknowledged[worker].append(event_id)

                with ThreadPoolExecutor(4) as pool:
                    senders = [pool.submit(send, worker) for worker in range(4)]
                    try:
                        for broker in kafka.broker_ids:
                            before = sum(map(len, acknowledged))
                            receiver.wait_until(lambda before=before: sum(map(len, acknowledged)) > before + 100)
                            kafka.kill_broker(broker)
                            before = sum(map(len, acknowledged))
                            receiver.wait_until(lambda before=before: sum(map(len, acknowledged)) > before + 100, 60)
                            kafka.start_broker(broker)
                    finally:
                        stop.set()
                    for sender in senders:
                        sender.result(30)
                receiver.terminate()
                assert receiver.wait() == 0
            durable = set(ids_of(kafka.bootstrap, "team-a.orders"))
        assert {event_id for ids in acknowledged for event_id in ids} <= durable

    def test_full_queue_answers_503_at_once(self, tmp_path, registry):
        declare(registry, "orders")
        with ReceiverProcess(
            f"{LOOPBACK}:{free_port()}", registry, wait=False, DELIVERY_TIMEOUT_SECONDS="60"
        ) as receiver:
            receiver.wait_until(lambda: receiver.post("/none", "1") == 404)
            receiver.wait_until(lambda: receiver.metric("sluice_receiver_channels") == 1)
            sockets = []
            body = bytes(1_000_000)
            head = "".join(f"{name}: {value}\r\n" for name, value in EVENT.items())
            request = (
                f"POST /team-a/orders HTTP/1.1\r\nHost: h\r\n{head}ce-id: 1\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            try:
                for _ in range(70):  # 64 MiB and a little
                    connection = socket.create_connection((LOOPBACK, receiver.port), 30)
                    connection.sendall(request.encode() + body)
                    sockets.append(connection)
                receiver.wait_until(lambda: receiver.metric('sluice_receiver_requests_total{code="503"}') >= 1)
                began = time.monotonic()
                assert receiver.post("/team-a/orders", "2", body) == 503
                assert time.monotonic() - began < 5
            finally:
                for connection in sockets:
                    connection.close()
            # Waiting events are held once, by the producer.
            lines = Path(f"/proc/{receiver.pid}/status").read_text().splitlines()
            status = dict(line.split(":", 1) for line in lines)
            assert int(status["VmRSS"].split()[0]) < 250_000


@pytest.mark.kafka
class TestCredentials:
    USERS = 'user_admin="admin" user_app="right"'

    def cluster(self, folder):
        """One broker with a second listener that wants SASL; administration goes over the first."""
        server = KafkaServer(folder)
        node = server._nodes[0]
        sasl = free_port()
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        server._properties |= {
            "listeners": f"PLAINTEXT://{LOOPBACK}:{node.port},CONTROLLER://{LOOPBACK}:{node.controller_port},"
            f"SECURED://{LOOPBACK}:{sasl}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{node.port},SECURED://{LOOPBACK}:{sasl}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secured.plain.sasl.jaas.config": f"{module} required {self.USERS};",
        }
        return server, f"{LOOPBACK}:{sasl}"

    def test_are_followed_without_a_restart_and_never_logged(self, tmp_path, registry):
        declare(registry, "orders")
        secret = tmp_path / "secret"
        secret.mkdir()
        for name, value in {
            "protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "user": "app", "password": "wr0ng-pass",
        }.items():  # fmt: skip
            (secret / name).write_text(value)
        server, secured = self.cluster(tmp_path / "kafka")
        with server:
            create_topic(server.bootstrap, "team-a.orders")
            with ReceiverProcess(
                secured, registry, wait=False, KAFKA_SECRET_DIR=str(secret), DELIVERY_TIMEOUT_SECONDS="2"
            ) as receiver:
                receiver.wait_until(lambda: receiver.get(receiver.health_port, "/healthz")[0] == 200)
                receiver.wait_until(lambda: receiver.post("/team-a/orders", "1") == 503)
                assert receiver.readiness()[0] == 503
                (secret / "password").write_text("right")
                receiver.wait_until(lambda: receiver.post("/team-a/orders", "2") == 202)
                receiver.wait_until(lambda: receiver.readiness()[0] == 200)
                # What cannot be used leaves the good ones in force.
                (secret / "protocol").write_text("NONSENSE")
                receiver.wait_until(lambda: "receiver.secret_refused" in receiver.log)
                assert receiver.post("/team-a/orders", "3") == 202
                receiver.terminate()
                assert receiver.wait() == 0
                assert "wr0ng-pass" not in receiver.log
            assert set(ids_of(server.bootstrap, "team-a.orders")) >= {"2", "3"}


@pytest.mark.kafka
class TestTls:
    @staticmethod
    def make_certificate(folder, name="localhost"):
        folder.mkdir(exist_ok=True)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
             "-addext", f"subjectAltName=DNS:{name}", "-keyout", "tls.key", "-out", "tls.crt"],
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip

    def test_events_come_over_tls_and_a_renewed_certificate_is_used(self, kafka, registry, channel, tmp_path):
        create_topic(kafka.bootstrap, f"team-a.{channel}")
        declare(registry, channel)
        tls = tmp_path / "tls"
        self.make_certificate(tls)
        with ReceiverProcess(kafka.bootstrap, registry, tls=tls) as receiver:
            assert receiver.post(f"/team-a/{channel}", "1", b"x" * 100_000) == 202
            self.make_certificate(tls)
            receiver.wait_until(lambda: receiver.post(f"/team-a/{channel}", "2") == 202)
            # A plain-text client is turned away and harms nobody.
            with socket.create_connection((LOOPBACK, receiver.port), 5) as plain:
                plain.sendall(b"POST / HTTP/1.1\r\n\r\n")
                assert b"202" not in plain.recv(1000)
            assert receiver.post(f"/team-a/{channel}", "3") == 202
            receiver.terminate()
            assert receiver.wait() == 0
        assert ids_of(kafka.bootstrap, f"team-a.{channel}") == ["1", "2", "3"]
