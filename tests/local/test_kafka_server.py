"""Brokers of this machine: what is refused, and what outlives a start, a stop and a kill."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid

import pytest

from eventing.errors import ConfigError, Unavailable
from orchestration.local.kafka_server import KafkaServer
from orchestration.local.ports import LOOPBACK, answers, free_port
from tests.contracts.test_workloads import eventually
from tests.local.controlled import alive


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"brokers": 0}, "1 to 10"),
        ({"brokers": 11}, "1 to 10"),
        ({"brokers": 2, "ports": [9092]}, "ports names 1 of 2"),
        ({"brokers": 1, "racks": ["a", "b"]}, "racks names 2 of 1"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(tmp_path, arguments, words):
    with pytest.raises(ConfigError, match=words):
        KafkaServer(tmp_path, **arguments)


def test_fewer_brokers_than_there_is_data_of_are_refused(tmp_path):
    server = KafkaServer(tmp_path, brokers=3)
    server._write_files()

    with pytest.raises(ConfigError, match="3 brokers"):
        KafkaServer(tmp_path, brokers=1)
    grown = KafkaServer(tmp_path, brokers=4)
    assert grown.cluster_id == server.cluster_id
    assert grown.bootstrap.startswith(server.bootstrap)
    assert grown.settings(3)["process.roles"] == "broker"


def test_a_damaged_memory_is_told(tmp_path):
    (tmp_path / "cluster.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        KafkaServer(tmp_path)


@pytest.mark.parametrize(("brokers", "controllers"), [(1, [0]), (2, [0]), (3, [0, 1, 2]), (5, [0, 1, 2])])
def test_the_first_three_vote_and_two_would_be_worse_than_one(tmp_path, brokers, controllers):
    server = KafkaServer(tmp_path, brokers=brokers)

    voters = [i for i in range(brokers) if "controller" in server.settings(i)["process.roles"]]
    assert voters == controllers
    for i in range(brokers):
        assert server.settings(i)["controller.quorum.voters"].count("@") == len(controllers)


def test_racks_and_properties_reach_the_broker(tmp_path):
    server = KafkaServer(tmp_path, brokers=2, racks=["a", "b"], properties={"num.partitions": "7"})

    assert [server.settings(i)["broker.rack"] for i in (0, 1)] == ["a", "b"]
    assert server.settings(0)["num.partitions"] == "7"


def test_a_given_port_that_is_taken_is_told(tmp_path):
    import socket

    with socket.create_server((LOOPBACK, 0)) as taken:
        server = KafkaServer(tmp_path, ports=[taken.getsockname()[1]])
        with pytest.raises(ConfigError, match="taken"):
            server._avoid_taken_ports()


def test_a_cluster_id_never_looks_like_an_option(monkeypatch):
    from orchestration.local import kafka_server

    drawn = iter([uuid.UUID(bytes=b"\xf8" * 16), uuid.UUID(bytes=b"\x00" * 16)])
    monkeypatch.setattr(kafka_server.uuid, "uuid4", lambda: next(drawn))

    assert kafka_server._new_cluster_id() == "A" * 22


@pytest.mark.kafka
def test_topics_and_ports_outlive_a_stop_and_a_kill(tmp_path):
    from confluent_kafka.admin import NewTopic

    with KafkaServer(tmp_path) as server:
        client = admin(server)
        client.create_topics([NewTopic("kept", 2, 1)])["kept"].result(10)
        bootstrap = server.bootstrap
    assert not answers(int(bootstrap.split(":")[1]))

    with KafkaServer(tmp_path) as server:
        assert server.bootstrap == bootstrap
        assert len(admin(server).list_topics(timeout=10).topics["kept"].partitions) == 2
        server.kill_broker(0)
        server.start_broker(0)
        assert "kept" in admin(server).list_topics(timeout=10).topics


@pytest.mark.kafka
def test_a_cluster_of_three_goes_on_without_any_one_of_them(tmp_path):
    from confluent_kafka.admin import NewTopic

    with KafkaServer(tmp_path, brokers=3, racks=["a", "b", "c"]) as server:
        client = admin(server)
        client.create_topics([NewTopic("spread", 3, 3)])["spread"].result(20)
        # The first is a controller like the others, and the one that clients name first.
        for broker in (0, 2):
            server.kill_broker(broker)
            gone = {-1, broker}
            eventually(lambda gone=gone: all(p.leader not in gone for p in partitions(client)), within_s=40)
            server.start_broker(broker)
            eventually(lambda: all(len(p.isrs) == 3 for p in partitions(client)), within_s=40)
        assert sorted(server.pids) == [0, 1, 2]
    assert server.pids == {}


@pytest.mark.kafka
def test_brokers_end_with_the_process_that_started_them(tmp_path):
    program = (
        "import sys, time\n"
        "from orchestration.local.kafka_server import KafkaServer\n"
        f"server = KafkaServer({str(tmp_path)!r}); server.start()\n"
        "print(server.pids[0], flush=True); time.sleep(100)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    port = json.loads((tmp_path / "cluster.json").read_text())["nodes"][0]["port"]
    eventually(lambda: not answers(port) and not alive(pid), within_s=10)


@pytest.mark.kafka
def test_a_broker_that_cannot_start_says_why(tmp_path):
    server = KafkaServer(tmp_path, properties={"log.retention.ms": "soon"}, progress=lambda _: None)
    with pytest.raises(Unavailable, match="soon"):
        server.start()
    assert server.pids == {}


def admin(server):
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})


def partitions(client):
    return client.list_topics("spread", timeout=10).topics["spread"].partitions.values()


def test_drawn_ports_are_free_and_not_drawn_twice():
    ports = [free_port() for _ in range(50)]

    assert len(set(ports)) == 50
