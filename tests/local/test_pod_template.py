"""What a local process takes from a Deployment's manifest."""

from __future__ import annotations

import copy
import sys

import pytest

from eventing.errors import InvalidResource
from orchestration.local.pod_template import ContainerPort, parse_deployment


def manifest(**container):
    return {
        "metadata": {"namespace": "default", "name": "orders-dispatcher"},
        "spec": {
            "replicas": 2,
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "command": ["python", "-m", "dispatcher_image"], **container}]},
            },
        },
    }


def test_python_is_the_interpreter_of_the_platform():
    template = parse_deployment(manifest(args=["dispatch"]))

    assert template.argv({}) == [sys.executable, "-m", "dispatcher_image", "dispatch"]


def test_variables_in_the_command_are_replaced_as_in_kubernetes():
    template = parse_deployment(manifest(command=["python", "-p", "$(PORT)", "$(NOT_THERE)"]))

    assert template.argv({"PORT": "1234"})[1:] == ["-p", "1234", "$(NOT_THERE)"]


def test_each_named_port_reaches_the_process_by_its_variable():
    template = parse_deployment(
        manifest(
            env=[{"name": "METRICS_PORT", "value": "8081"}, {"name": "LOG_LEVEL", "value": "DEBUG"}],
            ports=[
                {"name": "metrics", "containerPort": 8081},
                {"name": "health", "containerPort": 8082},
                {"name": "http", "containerPort": 8080},
            ],
        )
    )

    assert template.environment("pod-1", {"metrics": 1, "health": 2, "http": 3}) == {
        "LOG_LEVEL": "DEBUG",
        "METRICS_PORT": "1",
        "HEALTH_PORT": "2",
        "PORT": "3",
    }


def test_the_downward_api_is_answered():
    template = parse_deployment(
        manifest(
            env=[
                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "NS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            ]
        )
    )

    assert template.environment("pod-1", {}) == {"POD": "pod-1", "NS": "default"}


def test_a_host_port_is_fixed_and_excludes_a_second_one():
    one = manifest(ports=[{"name": "http", "containerPort": 8080, "hostPort": 9000}])
    one["spec"]["replicas"] = 1
    template = parse_deployment(one)

    assert template.ports == (ContainerPort(name="http", fixed=9000),)
    assert template.exclusive


def test_the_revision_follows_the_template_and_nothing_else():
    original = manifest()
    scaled, labelled, changed = (copy.deepcopy(original) for _ in range(3))
    scaled["spec"]["replicas"] = 7
    labelled["metadata"]["annotations"] = {"x": "y"}
    changed["spec"]["template"]["metadata"]["annotations"] = {"x": "y"}

    revision = parse_deployment(original).revision
    assert parse_deployment(scaled).revision == revision
    assert parse_deployment(labelled).revision == revision
    assert parse_deployment(changed).revision != revision


def test_probes_take_kubernetes_defaults_and_ports_by_name_or_number():
    ports = [{"name": "health", "containerPort": 8082}]
    template = parse_deployment(
        manifest(
            ports=ports,
            readinessProbe={"httpGet": {"path": "/readyz", "port": 8082}, "periodSeconds": 3},
            livenessProbe={"tcpSocket": {"port": "health"}},
        )
    )

    assert (template.readiness.path, template.readiness.port, template.readiness.period_s) == ("/readyz", "health", 3)
    assert (template.liveness.path, template.liveness.period_s, template.liveness.failure_threshold) == (None, 10, 3)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param({"command": []}, "command", id="no command"),
        pytest.param({"readinessProbe": {"exec": {"command": ["x"]}}}, "readinessProbe", id="probe by a command"),
        pytest.param({"readinessProbe": {"httpGet": {"port": "nowhere"}}}, "readinessProbe", id="probe of no port"),
        pytest.param(
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}, "env.A", id="secret"
        ),
        pytest.param(
            {"ports": [{"name": "http", "containerPort": 1, "hostPort": 1}]}, "spec.replicas", id="two on a fixed port"
        ),
    ],
)
def test_what_a_local_process_cannot_do_is_refused_by_its_field(change, field):
    with pytest.raises(InvalidResource, match=field) as refused:
        parse_deployment(manifest(**change))
    assert refused.value.resource == "default/orders-dispatcher"
