"""The whole path on a real node: our images as pods under `restricted`, from a KafkaChannel to a subscriber.

Real are Kafka, API server, controllers, scheduler, kubelet, containerd, the images and the adapters with
orchestration's own rights. Not there are DNS and kube-proxy: the receiver's pod is addressed by its IP and told the
channel by the Host header, and the subscriber listens on the machine.
"""

from __future__ import annotations

import http.client
import http.server
import json
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cluster.conftest import channel
from tests.cluster.manifests import kustomized

pytestmark = [pytest.mark.cluster, pytest.mark.kafka]

TEAM = "team-a"
CHANNEL = f"/apis/messaging.knative.dev/v1beta1/namespaces/{TEAM}/kafkachannels/orders"


@pytest.fixture(scope="module")
def world(tmp_path_factory, builds_kubernetes):
    from orchestration.local.kafka_server import KafkaServer
    from orchestration.local.ports import free_port
    from tests.cluster.binaries import CONTROL_PLANE, NODE, CannotBuild, binaries
    from tests.cluster.control_plane import ControlPlane
    from tests.cluster.images import image_archives
    from tests.cluster.node import Node, network, why_not

    reason = why_not()
    if reason:
        pytest.skip(f"no node: {reason}")
    try:
        binaries((*CONTROL_PLANE, *NODE), build=builds_kubernetes)
        archives = image_archives(tmp_path_factory.mktemp("images"), build=builds_kubernetes)
    except CannotBuild as problem:
        pytest.skip(f"no images: {problem}")
    with network() as net, ControlPlane(tmp_path_factory.mktemp("kubernetes"), address=net.host) as plane:
        port = free_port()
        kafka = KafkaServer(tmp_path_factory.mktemp("kafka"), ports=[port])
        # Pods reach the broker by the machine's end of their cable.
        kafka._properties["listeners"] = kafka.settings(0)["listeners"].replace("PLAINTEXT://127.0.0.1", "PLAINTEXT://")
        kafka._properties["advertised.listeners"] = f"PLAINTEXT://{net.host}:{port}"
        with kafka, Node(plane, net) as node:
            for archive in archives.values():
                node.load_image(archive)
            with Subscriber(net.host) as subscriber:
                world = World(plane, net, f"{net.host}:{port}", subscriber)
                world.lay_down()
                try:
                    yield world
                finally:
                    world.ports.kafka.close()


class Subscriber:
    """Answers every event, and remembers it."""

    def __init__(self, address):
        self.received = received = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                received.append((dict(self.headers), body))
                self.send_response(202)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer((address, 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{address}:{self._server.server_port}/"

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class World:
    def __init__(self, plane, net, bootstrap, subscriber):
        self.plane, self.net, self.bootstrap, self.subscriber = plane, net, bootstrap, subscriber

    def lay_down(self):
        from eventing.program_config import CanaryConfig
        from orchestration.adapters.kafka_admin import KafkaAdmin
        from orchestration.adapters.kubernetes_clients.connection import KubernetesApi
        from orchestration.adapters.kubernetes_registry import KubernetesRegistry
        from orchestration.adapters.kubernetes_workloads import KubernetesWorkloads
        from orchestration.planning import CanaryDeployment, CanaryPolicy, DispatcherPolicy, Policy
        from orchestration.ports import Ports

        for document in kustomized("crd"):
            self.plane.apply(document)
        for document in kustomized("base"):
            if document["kind"] == "ConfigMap":
                document["data"]["KAFKA_BOOTSTRAP_SERVERS"] = self.bootstrap
            if document["kind"] == "Deployment":
                document["spec"]["replicas"] = 1
                document["spec"]["template"]["spec"]["containers"][0]["image"] = "localhost/sluice/dispatcher:test"
            self.plane.apply(document)
        self.plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}})
        token = self.plane.token_of("sluice-system", "sluice-orchestration")
        access = KubernetesApi.connect(self.plane.kubeconfig("sluice-orchestration", token=token))
        self.ports = Ports(
            registry=KubernetesRegistry(access),
            workloads=KubernetesWorkloads(access, namespace="sluice-system"),
            kafka=KafkaAdmin(self.bootstrap),
        )
        canary = CanaryConfig(reconcile_interval_ms=1000)
        self.policy = Policy(
            bootstrap_servers=self.bootstrap,
            dispatcher=DispatcherPolicy(image="localhost/sluice/dispatcher:test"),
            canary=CanaryPolicy(deployment=CanaryDeployment(image="localhost/sluice/canary:test", env=canary.to_env())),
        )

    def reconcile(self):
        from orchestration.apply import reconcile_once

        return reconcile_once(self.ports, self.policy, datetime.now(UTC).replace(microsecond=0))

    def until(self, claim, within_s=120.0):
        """Reconcile until it is so."""
        deadline = time.monotonic() + within_s
        while True:
            done = self.reconcile()
            if value := claim():
                return value
            assert time.monotonic() < deadline, (done.to_document(), self.pods_as_they_are())
            time.sleep(0.5)

    def pods(self, component):
        selector = f"labelSelector=app.kubernetes.io/component={component}"
        return self.plane.request("GET", f"/api/v1/namespaces/sluice-system/pods?{selector}")["items"]

    def ready_pod(self, component):
        for pod in self.pods(component):
            conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", ())}
            if conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]:
                return pod
        return None

    def pods_as_they_are(self):
        pods = self.plane.request("GET", "/api/v1/namespaces/sluice-system/pods")["items"]
        return [(p["metadata"]["name"], p["status"].get("phase"), p["status"].get("containerStatuses")) for p in pods]

    def ask(self, address, port, *, method="GET", path="/", body=None, headers=None):
        connection = http.client.HTTPConnection(address, port, timeout=15)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def send(self, event_id):
        headers = {
            "Host": f"orders-kn-channel.{TEAM}.svc.cluster.local",
            "Content-Type": "application/json",
            "ce-id": event_id,
            "ce-source": "/testsource",
            "ce-specversion": "1.0",
            "ce-type": "test.type.v1",
        }
        receiver = self.ready_pod("receiver")["status"]["podIP"]
        return self.ask(receiver, 8080, method="POST", body=json.dumps({"id": event_id}), headers=headers)[0]

    def has_received(self, event_id, within_s=30.0):
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if any(headers.get("ce-id") == event_id for headers, _ in list(self.subscriber.received)):
                return True
            time.sleep(0.1)
        return False

    def ready_condition(self):
        found = self.plane.request("GET", CHANNEL)
        return next((c for c in found.get("status", {}).get("conditions", ()) if c["type"] == "Ready"), {})


@pytest.fixture
def orders(world):
    """The channel, ready, with one subscriber."""
    subscriber = {"uid": "first", "generation": 1, "subscriberUri": world.subscriber.url}
    world.plane.apply(channel(TEAM, numPartitions=2, subscribers=[subscriber]))
    world.until(lambda: world.ready_condition().get("status") == "True" and world.ready_pod("dispatcher"))
    world.until(lambda: world.ready_pod("receiver"))
    return world


def test_an_event_reaches_its_subscriber_through_pods_of_our_images(orders):
    assert orders.send("123") == 202
    assert orders.has_received("123")
    address = orders.ready_pod("dispatcher")["status"]["podIP"]
    status, metrics = orders.ask(address, 8081, path="/metrics")
    assert status == 200
    assert "eventing_kafka_consumed_msg_count{" in metrics


def test_the_canary_is_ready_in_a_pod_of_its_own(orders):
    pod = orders.until(lambda: orders.ready_pod("canary"))
    status, metrics = orders.ask(pod["status"]["podIP"], 8080, path="/metrics")
    assert status == 200
    assert "strimzi_canary_records_consumed_total" in metrics


def test_a_moved_subscriber_gets_the_next_event_without_a_new_pod(orders):
    before = orders.ready_pod("dispatcher")["metadata"]["uid"]
    with Subscriber(orders.net.host) as moved:
        subscriber = {"uid": "first", "generation": 2, "subscriberUri": moved.url}
        orders.plane.apply(channel(TEAM, numPartitions=2, subscribers=[subscriber]))
        time.sleep(2.0)  # the promise: used within two seconds
        assert orders.send("moved") == 202
        deadline = time.monotonic() + 20
        while not moved.received:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert orders.ready_pod("dispatcher")["metadata"]["uid"] == before


def test_rolling_the_dispatcher_loses_nothing(orders):
    (deployment,) = [
        d for d in orders.ports.workloads.list_deployments()
        if d["metadata"]["labels"]["app.kubernetes.io/component"] == "dispatcher"
    ]  # fmt: skip
    name, sent, over = deployment["metadata"]["name"], [], threading.Event()

    def send():
        while not over.is_set():
            event_id = f"roll-{len(sent)}"
            if orders.send(event_id) == 202:
                sent.append(event_id)
            over.wait(0.02)

    sending = threading.Thread(target=send)
    sending.start()
    before = orders.ready_pod("dispatcher")["metadata"]["uid"]
    stamp = {"spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}}}
    path = f"/apis/apps/v1/namespaces/sluice-system/deployments/{name}"
    orders.plane.request("PATCH", path, stamp, content_type="application/merge-patch+json")
    deadline = time.monotonic() + 120
    while [pod["metadata"]["uid"] for pod in orders.pods("dispatcher")].count(before) or not orders.ready_pod(
        "dispatcher"
    ):
        assert time.monotonic() < deadline, orders.pods_as_they_are()
        time.sleep(0.3)
    over.set()
    sending.join()
    assert len(sent) > 20
    assert all(orders.has_received(event_id) for event_id in sent)


def test_pods_run_as_nobody_and_write_nowhere(orders):
    pod = orders.ready_pod("dispatcher")
    log = orders.plane.request("GET", f"/api/v1/namespaces/sluice-system/pods/{pod['metadata']['name']}/log")["text"]
    assert "Traceback" not in log
    (container,) = pod["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    processes = [p for p in Path("/proc").glob("[0-9]*") if "dispatcher_image" in _command(p)]
    ours = [p for p in processes if _uid(p) == "65532"]
    assert ours, "no dispatcher runs as user 65532"


def test_a_deleted_channel_leaves_no_pod_topic_or_service(orders):
    orders.plane.request("DELETE", CHANNEL)

    def gone():
        try:
            orders.plane.request("GET", CHANNEL)
        except OSError:
            return True
        return False

    orders.until(gone)
    assert orders.pods("dispatcher") == []
    assert not [topic for topic in orders.ports.kafka.topics() if topic.startswith(TEAM)]
    assert orders.plane.request("GET", f"/api/v1/namespaces/{TEAM}/services")["items"] == []


def _command(process):
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _uid(process):
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return ""
    return next(line.split()[1] for line in lines if line.startswith("Uid:"))
