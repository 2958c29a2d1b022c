"""The newcomer's view: everything that the README promises, by the commands that it names, on real parts."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.e2e.platform import ROOT, Platform, eventually, free_ports, processes_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def platform(tmp_path_factory):
    platform = Platform(tmp_path_factory.mktemp("platform"))
    platform.up()
    yield platform
    platform.down()
    left = processes_of(platform.home)
    assert left == [], "sluice down leaves no process"
    for port in platform.ports:
        with socket.socket() as s:
            assert s.connect_ex(("127.0.0.1", port)) != 0, f"port {port} is still open"


@pytest.fixture
def sink():
    """A subscriber of the test's own, with the ids it has seen per path."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            server.seen.append((self.path, self.headers["ce-id"], self.headers.get("ce-partitionkey")))
            self.send_response(server.answer)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.seen, server.answer = [], 200
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_event_travels_from_curl_to_the_sample_subscriber(platform):
    assert platform.send("orders", "first") == 202

    eventually(lambda: "first" in platform.received("/orders"), within_s=15)


def test_status_has_the_documented_shape(platform):
    status = eventually(lambda: (s := platform.status())["ready"] and s, within_s=30)

    assert set(status["urls"]) >= {"dagster", "receiver", "subscriber", "canary"}
    assert all(set(w) >= {"name", "replicas", "ready", "restarts", "logs"} for w in status["workloads"])
    (orders,) = [c for c in status["channels"] if c["name"] == "orders"]
    assert set(orders) >= {"namespace", "name", "ready", "reason", "subscribers"}
    assert orders["ready"] is True


def test_a_second_up_says_that_it_already_runs(platform):
    result = platform.sluice("up", "--detach", check=False)

    assert "already" in (result.stdout + result.stderr)
    assert "Traceback" not in result.stderr
    assert platform.send("orders", "after-second-up") == 202


def test_a_taken_port_is_said_in_one_line_with_the_remedy(tmp_path):
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    other = Platform(tmp_path, SLUICE_RECEIVER_PORT=str(taken.getsockname()[1]))
    result = other.sluice("up", "--detach", check=False)
    taken.close()

    assert result.returncode in {1, 78}
    assert str(other.environ["SLUICE_RECEIVER_PORT"]) in result.stderr
    assert "SLUICE_RECEIVER_PORT" in result.stderr
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(("java", "words"), [("missing", "17"), ("old", "17")])
def test_a_missing_or_old_java_is_said_in_one_line(tmp_path, java, words):
    tools = tmp_path / "bin"
    tools.mkdir()
    if java == "old":
        (tools / "java").write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
        (tools / "java").chmod(0o755)
    other = Platform(tmp_path / "home", PATH=str(tools), JAVA_HOME="")
    result = other.sluice("up", "--detach", check=False)

    assert result.returncode in {1, 78}
    assert "Java" in result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_channel_file_becomes_a_delivering_channel_and_goes_again(platform, sink):
    from confluent_kafka.admin import AdminClient

    platform.declare("books.yaml", "books", subscribers={"a": f"{sink.url}/one"})
    eventually(lambda: platform.channel("books")["ready"], within_s=20)
    topics = AdminClient({"bootstrap.servers": platform.kafka_bootstrap}).list_topics(timeout=10).topics
    assert len(topics["default.books"].partitions) == 2
    assert len(topics["default.books.dead-letter"].partitions) == 2

    assert platform.send("books", "b1") == 202
    eventually(lambda: ("/one", "b1", None) in sink.seen, within_s=10)

    platform.declare("books.yaml", "books", subscribers={"a": f"{sink.url}/two"})

    def reaches_the_new_address():
        event = f"b{len(sink.seen)}-{os.urandom(4).hex()}"
        platform.send("books", event)
        return eventually(lambda: any(p == "/two" and i == event for p, i, _ in sink.seen), within_s=0.5)

    eventually(reaches_the_new_address, within_s=4)

    (platform.registry / "books.yaml").unlink()
    eventually(lambda: all(c["name"] != "books" for c in platform.status()["channels"]), within_s=40)
    assert all("books" not in w["name"] for w in platform.status()["workloads"])
    remaining = AdminClient({"bootstrap.servers": platform.kafka_bootstrap}).list_topics(timeout=10).topics
    assert not [t for t in remaining if t.startswith("default.books")]


def test_a_growing_channel_gets_its_partitions_and_a_shrinking_one_a_reason(platform, sink):
    from confluent_kafka.admin import AdminClient

    platform.declare("growing.yaml", "growing", subscribers={"a": f"{sink.url}/g"}, partitions=2)
    eventually(lambda: platform.channel("growing")["ready"], within_s=20)
    platform.declare("growing.yaml", "growing", subscribers={"a": f"{sink.url}/g"}, partitions=4)
    admin = AdminClient({"bootstrap.servers": platform.kafka_bootstrap})
    eventually(lambda: len(admin.list_topics(timeout=10).topics["default.growing"].partitions) == 4, within_s=20)
    eventually(lambda: platform.channel("growing")["ready"], within_s=20)
    platform.declare("growing.yaml", "growing", subscribers={"a": f"{sink.url}/g"}, partitions=1)

    eventually(lambda: "partition" in str(platform.channel("growing")["reason"]).lower(), within_s=20)
    (platform.registry / "growing.yaml").unlink()


@pytest.mark.parametrize(
    ("file", "content", "word"),
    [
        pytest.param("broken.yaml", "kind: [KafkaChannel\nmetadata: {", "broken.yaml", id="does not parse"),
        pytest.param(
            "unknown.yaml",
            "apiVersion: messaging.knative.dev/v1beta1\nkind: KafkaChannel\nmetadata: {name: unknown}\n"
            "spec:\n  numPartition: 3\n",
            "numPartition",
            id="unknown field",
        ),
        pytest.param(
            "nouri.yaml",
            "apiVersion: messaging.knative.dev/v1beta1\nkind: KafkaChannel\nmetadata: {name: nouri}\n"
            "spec:\n  subscribers: [{uid: a}]\n",
            "subscriberUri",
            id="subscriber without URI",
        ),
        pytest.param(
            "manyreplicas.yaml",
            "apiVersion: messaging.knative.dev/v1beta1\nkind: KafkaChannel\nmetadata: {name: manyreplicas}\n"
            "spec: {replicationFactor: 3}\n",
            "replication",
            id="more replicas than brokers",
        ),
    ],
)
def test_a_wrong_document_is_told_on_its_object_and_harms_no_other(platform, file, content, word):
    (platform.registry / file).write_text(content)

    def told():
        result = platform.sluice("status", "--output", "json")
        return word in result.stdout + result.stderr

    try:
        eventually(told, within_s=20)
        assert platform.send("orders", f"beside-{file}") == 202
        eventually(lambda: f"beside-{file}" in platform.received(), within_s=10)
    finally:
        (platform.registry / file).unlink()
    eventually(lambda: not told(), within_s=30)


def test_a_killed_dispatcher_is_back_and_nothing_is_lost(platform, sink):
    import psutil

    platform.declare("kill.yaml", "kill", subscribers={"a": f"{sink.url}/k"})
    eventually(lambda: platform.channel("kill")["ready"], within_s=20)
    sent = [f"k{n}" for n in range(200)]
    for number, event in enumerate(sent):
        assert platform.send("kill", event, key=f"key{number % 10}") == 202
        if number == 100:
            dispatchers = [
                p
                for p in psutil.process_iter()
                if _environ(p).get("SLUICE_HOME") == str(platform.home)
                and _environ(p).get("CHANNEL_KEY") == "default/kill"
            ]
            assert dispatchers
            for process in dispatchers:
                os.kill(process.pid, signal.SIGKILL)

    eventually(lambda: {i for p, i, _ in sink.seen if p == "/k"} >= set(sent), within_s=60)
    eventually(lambda: platform.workload("kill")["ready"] >= 1, within_s=30)
    for key in range(10):
        of_key = [int(i[1:]) for p, i, k in sink.seen if p == "/k" and k == f"key{key}"]
        expected, position = sorted(set(of_key)), 0
        for number in of_key:
            index = expected.index(number)
            assert index <= position, f"{key}: {number} came before its predecessor"
            position = max(position, index + 1)
    (platform.registry / "kill.yaml").unlink()


def _environ(process):
    import psutil

    try:
        return process.environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return {}


def test_kafka_that_stands_still_for_thirty_seconds_makes_503s_and_everything_recovers_by_itself(platform, sink):
    """Paused, not ended: connections stay open and nothing answers, which is the meaner of the two outages."""
    platform.declare("outage.yaml", "outage", subscribers={"a": f"{sink.url}/o"})
    eventually(lambda: platform.channel("outage")["ready"], within_s=20)
    before = {w["name"]: w["pids"] for w in platform.status()["workloads"]}
    broker = platform.workload("kafka-broker")["pids"][0]
    os.kill(broker, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 30
        codes = []
        while time.monotonic() < deadline:
            codes.append((event := f"during-{len(codes)}", platform.send("outage", event, timeout_s=25)))
    finally:
        os.kill(broker, signal.SIGCONT)
    assert {code for _, code in codes} == {503}

    eventually(lambda: platform.send("outage", "after") == 202, within_s=30)
    eventually(lambda: ("/o", "after", None) in sink.seen, within_s=30)
    ready = eventually(lambda: (s := platform.status())["ready"] and s, within_s=60)
    after = {w["name"]: w["pids"] for w in ready["workloads"]}
    for part in ("receiver", "outage", "canary"):
        name = next(n for n in before if part in n)
        assert after[name] == before[name], f"{name} was started anew"
    (platform.registry / "outage.yaml").unlink()


def test_dagster_shows_sensors_runs_with_why_and_one_asset_graph(platform):
    ticks = platform.graphql(
        """{ repositoriesOrError { ... on RepositoryConnection { nodes { name location { name }
             sensors { name sensorState { status ticks(limit: 3) { status } } } } } } }"""
    )
    sensors = {s["name"]: s for n in ticks["repositoriesOrError"]["nodes"] for s in n["sensors"]}
    assert sensors
    assert any(s["sensorState"]["status"] == "RUNNING" and s["sensorState"]["ticks"] for s in sensors.values())

    assets = platform.graphql("{ assetNodes { assetKey { path } dependencyKeys { path } } }")
    graph = {
        "/".join(a["assetKey"]["path"]): ["/".join(d["path"]) for d in a["dependencyKeys"]]
        for a in assets["assetNodes"]
    }
    reached, todo = set(), [key for key in graph if "report" in key]
    assert todo, graph
    while todo:
        key = todo.pop()
        if key not in reached:
            reached.add(key)
            todo.extend(graph.get(key, []))
    assert any(key.startswith("registry") for key in reached), "the graph leads from the registry to the report"

    def a_run_that_says_why():
        runs = platform.graphql(
            """{ runsOrError(limit: 50) { ... on Runs { results { jobName status
                 eventConnection(limit: 200) { events { __typename ... on MessageEvent { message } } } } } } }"""
        )
        return "default/orders" in str(runs)

    eventually(a_run_that_says_why, within_s=30)


def test_a_first_slo_report_appears_with_numbers_and_a_picture(platform):
    def report():
        data = platform.graphql(
            """{ assetNodes { assetKey { path } assetMaterializations(limit: 1) {
                 metadataEntries { label ... on MarkdownMetadataEntry { mdStr }
                                   ... on FloatMetadataEntry { floatValue } } } } }"""
        )
        for node in data["assetNodes"]:
            if "report" in node["assetKey"]["path"][-1] and node["assetMaterializations"]:
                entries = node["assetMaterializations"][0]["metadataEntries"]
                if any("data:image" in (e.get("mdStr") or "") for e in entries):
                    return entries
        return None

    entries = eventually(report, within_s=420, every_s=5)
    assert any(e.get("floatValue") is not None for e in entries)


def test_stopped_processes_are_started_with_their_data_on_the_next_up(tmp_path):
    platform = Platform(tmp_path)
    platform.up()
    try:
        assert platform.send("orders", "kept") == 202
        eventually(lambda: "kept" in platform.received(), within_s=15)
        platform.down()
        assert processes_of(tmp_path) == []
        platform.up()
        del platform._urls
        assert platform.send("orders", "later") == 202
        eventually(lambda: "later" in platform.received(), within_s=15)
        assert "kept" not in platform.received(), "a clean restart delivers nothing twice"
    finally:
        platform.down()
    assert processes_of(tmp_path) == []


def test_help_and_wrong_use_have_their_exit_codes(tmp_path):
    other = Platform(tmp_path)

    assert other.sluice("--help").returncode == 0
    assert other.sluice("no-such-command", check=False).returncode == 2
    assert (ROOT / "workspace.yaml").exists()
    assert free_ports(1)
