"""The controller with real processes: what a person does to them, and what must be so afterwards."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request

import psutil
import pytest

from eventing.errors import Unavailable
from orchestration.adapters.local_workloads import LocalWorkloads
from tests.contracts.test_workloads import NAMESPACE, deployment, eventually, of, ready
from tests.local.controlled import alive, controller, pods, start_controller, stop


@pytest.fixture
def home(tmp_path):
    return tmp_path / "sluice"


@pytest.fixture
def controlled(home):
    with controller(home) as process:
        yield process


@pytest.fixture
def workloads(home, controlled):
    return LocalWorkloads(home)


def pids(home, name):
    return [pod["pid"] for pod in pods(home, NAMESPACE, name) if pod["pid"]]


def command(name, code, **changes):
    manifest = deployment(name)
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    container["command"] = ["python", "-c", code]
    container.pop("readinessProbe")
    container |= changes
    return manifest


def test_a_killed_process_is_back_under_its_name_and_counted(home, workloads):
    workloads.apply_deployment(deployment("a"))
    ready(workloads, "a", 1)
    (before,) = pods(home, NAMESPACE, "a")
    os.kill(before["pid"], signal.SIGKILL)
    eventually(lambda: of(workloads, "a")["status"]["readyReplicas"] == 0)
    ready(workloads, "a", 1)

    (after,) = pods(home, NAMESPACE, "a")
    assert after["name"] == before["name"]
    assert (after["restarts"], after["exit_code"]) == (1, -signal.SIGKILL)
    assert after["pid"] != before["pid"]


def test_a_process_that_fails_says_why_and_is_tried_ever_more_rarely(home, workloads):
    workloads.apply_deployment(command("a", "raise SystemExit('there is no such topic')"))
    eventually(lambda: pods(home, NAMESPACE, "a") and pods(home, NAMESPACE, "a")[0]["restarts"] >= 2)

    (condition,) = of(workloads, "a")["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Available", "False")
    assert "there is no such topic" in condition["message"]
    assert "there is no such topic" in (home / "logs" / f"{NAMESPACE}.a.0.log").read_text()


def test_a_rollout_never_leaves_the_service_without_an_answer(home, workloads):
    workloads.apply_deployment(deployment("a"))
    ready(workloads, "a", 1)
    (first,) = pids(home, "a")
    workloads.apply_deployment(deployment("a", setting="2"))
    while alive(first):
        assert [p for p in pods(home, NAMESPACE, "a") if p["ready"]]
        time.sleep(0.02)

    (second,) = eventually(lambda: [pid for pid in pids(home, "a") if pid != first])
    assert psutil.Process(second).environ()["SETTING"] == "2"


def test_a_fixed_port_is_used_and_handed_over(home, workloads):
    from orchestration.local.ports import free_port

    port = free_port()
    manifest = deployment("a")
    manifest["spec"]["template"]["spec"]["containers"][0]["ports"][0]["hostPort"] = port
    workloads.apply_deployment(manifest)
    ready(workloads, "a", 1)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
        assert answer.status == 200
    manifest["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] = "2"
    workloads.apply_deployment(manifest)
    eventually(lambda: of(workloads, "a")["status"]["observedGeneration"] == 2)
    ready(workloads, "a", 1)

    (pid,) = pids(home, "a")
    assert psutil.Process(pid).environ()["SETTING"] == "2"


def test_a_process_that_hangs_is_started_again(home, workloads):
    code = (
        "import os, socket, time;"
        "listening = socket.create_server(('127.0.0.1', int(os.environ['HEALTH_PORT']))); time.sleep(60)"
    )
    probe = {"httpGet": {"path": "/", "port": "health"}, "periodSeconds": 0.2, "timeoutSeconds": 0.2}
    workloads.apply_deployment(command("a", code, livenessProbe={**probe, "failureThreshold": 2}))

    eventually(lambda: pods(home, NAMESPACE, "a") and pods(home, NAMESPACE, "a")[0]["restarts"] >= 1)
    assert pods(home, NAMESPACE, "a")[0]["exit_code"] == -signal.SIGKILL


def test_what_ignores_sigterm_is_killed_after_its_grace_with_what_it_has_started(home, workloads):
    code = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "print(f'child {child.pid} ', flush=True); time.sleep(60)"
    )
    manifest = command("a", code)
    manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    workloads.apply_deployment(manifest)
    log = home / "logs" / f"{NAMESPACE}.a.0.log"
    eventually(lambda: log.exists() and len(log.read_text().split()) == 2)
    family = [int(log.read_text().split()[1]), *pids(home, "a")]
    began = time.monotonic()
    workloads.delete_deployment(NAMESPACE, "a")

    assert 1.0 <= time.monotonic() - began < 5.0
    assert not [pid for pid in family if alive(pid)]


def test_a_killed_controller_leaves_no_process_and_its_successor_starts_all_again(home):
    process = start_controller(home)
    workloads = LocalWorkloads(home)
    try:
        workloads.apply_deployment(deployment("a", 2))
        ready(workloads, "a", 2)
        orphans = pids(home, "a")
        process.kill()
        process.wait()
        eventually(lambda: not [pid for pid in orphans if alive(pid)])
        process = start_controller(home)

        ready(workloads, "a", 2)
        assert not set(orphans) & set(pids(home, "a"))
    finally:
        stop(process)


def test_a_stopped_controller_stops_whoever_decides_before_dispatchers_and_those_before_the_rest(home):
    """Each process writes when it was told to stop, and takes a moment for it."""
    code = (
        "import os, signal, sys, time\n"
        "def end(*_):\n"
        "    open(os.environ['ORDER'], 'a').write(os.environ['SETTING'] + '\\n'); time.sleep(0.3); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    order = home / "order"
    process = start_controller(home)
    workloads = LocalWorkloads(home)
    components = ["sample-subscriber", "dispatcher", "dagster", "receiver", "canary"]
    for component in components:
        env = [{"name": "ORDER", "value": str(order)}, {"name": "SETTING", "value": component}]
        manifest = command(component, code, env=env)
        manifest["metadata"]["labels"] = {"app.kubernetes.io/component": component}
        workloads.apply_deployment(manifest)
    logs = [home / "logs" / f"{NAMESPACE}.{component}.0.log" for component in components]
    eventually(lambda: all(log.exists() and "up" in log.read_text() for log in logs))
    stop(process)

    told = order.read_text().split()
    assert told[:2] == ["dagster", "receiver"]
    assert set(told[2:4]) == {"dispatcher", "canary"}
    assert told[4:] == ["sample-subscriber"]


def test_targets_are_written_in_prometheus_form_and_go_with_their_replica(home, workloads):
    manifest = deployment("a")
    manifest["metadata"]["labels"] |= {"sluice.dev/channel": "orders", "sluice.dev/channel-namespace": "default"}
    ports = manifest["spec"]["template"]["spec"]["containers"][0]["ports"]
    ports.append({"name": "metrics", "containerPort": 8081})
    workloads.apply_deployment(manifest)
    ready(workloads, "a", 1)

    def targets():
        return json.loads((home / "targets.json").read_bytes())

    (pod,) = pods(home, NAMESPACE, "a")
    assert targets() == [
        {
            "targets": [f"127.0.0.1:{pod['ports']['metrics']}"],
            "labels": {
                "job": "dispatcher",
                "component": "dispatcher",
                "channel": "orders",
                "namespace": "default",
                "instance": pod["name"],
            },
        }
    ]
    workloads.delete_deployment(NAMESPACE, "a")
    eventually(lambda: targets() == [])


def test_a_manifest_that_somebody_has_broken_by_hand_stops_nothing(home, workloads):
    workloads.apply_deployment(deployment("a"))
    ready(workloads, "a", 1)
    before = pids(home, "a")
    file = home / "workloads" / "deployments" / NAMESPACE / "a.json"
    good = file.read_bytes()
    file.write_text("{ not json")
    (home / "workloads" / "deployments" / NAMESPACE / "b.json").write_text('{"object": {"metadata": {}}}')
    status = home / "workloads" / "status" / NAMESPACE / "a.json"
    eventually(lambda: "cannot be used" in status.read_text())
    with pytest.raises(Unavailable, match=r"a\.json"):
        workloads.list_deployments()
    file.write_bytes(good)
    (home / "workloads" / "deployments" / NAMESPACE / "b.json").unlink()

    eventually(lambda: "cannot be used" not in status.read_text())
    assert pids(home, "a") == before


def test_a_second_controller_of_the_same_home_refuses(home, controlled):
    import subprocess
    import sys

    second = subprocess.run(
        [sys.executable, "-m", "orchestration.local.controller"],
        env={**os.environ, "SLUICE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert second.returncode == 1
    assert "another controller" in second.stderr


def test_deleting_without_a_controller_needs_nobody(home):
    process = start_controller(home)
    workloads = LocalWorkloads(home)
    workloads.apply_deployment(deployment("a"))
    ready(workloads, "a", 1)
    stop(process)
    workloads.delete_deployment(NAMESPACE, "a")

    assert not (home / "workloads" / "deployments" / NAMESPACE / "a.json").exists()
