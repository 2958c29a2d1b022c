"""The environment of orchestration: every wrong key is named at once, and the rest has a default."""

from __future__ import annotations

import pytest

from eventing.errors import ConfigError, Unavailable
from orchestration.settings import KUBERNETES, Settings, WorkloadsKind
from orchestration.wiring import live_policy, one_at_a_time


def test_one_machine_is_the_default(tmp_path):
    settings = Settings.from_env({"SLUICE_HOME": str(tmp_path)})
    assert settings.registry == str(tmp_path / "registry")
    assert settings.bootstrap_servers == "127.0.0.1:9092"
    assert settings.receiver_url == "http://127.0.0.1:8080"
    assert settings.canary_port == 8091
    assert settings.canary.reconcile_interval_ms == 1000


def test_a_cluster_needs_the_address_of_kafka_and_nothing_else():
    environ = {"SLUICE_WORKLOADS": "kubernetes"}
    with pytest.raises(ConfigError) as caught:
        Settings.from_env(environ)
    assert caught.value.problems == ("KAFKA_BOOTSTRAP_SERVERS is required",)
    settings = Settings.from_env({**environ, "KAFKA_BOOTSTRAP_SERVERS": "kafka:9092"})
    assert (settings.registry, settings.workloads) == (KUBERNETES, WorkloadsKind.KUBERNETES)
    assert (settings.receiver_url, settings.canary_port) == (None, None)
    assert settings.canary.reconcile_interval_ms == 30_000


def test_all_wrong_keys_are_named_at_once():
    with pytest.raises(ConfigError) as caught:
        Settings.from_env(
            {
                "SLUICE_WORKLOADS": "moon",
                "SLUICE_TOPIC_TEMPLATE": "{namespace}.{oops}",
                "KAFKA_BOOTSTRAP_SERVERS": "kafka",
                "SLUICE_RECEIVER_PORT": "0",
                "SLUICE_CANARY_TOPIC": "a b",
                "SLUICE_CANARY_RECONCILE_INTERVAL_MS": "soon",
                "SLUICE_CANARY_GRACE_SECONDS": "-1",
            }
        )
    assert [problem.split()[0] for problem in caught.value.problems] == [
        "SLUICE_WORKLOADS",
        "SLUICE_TOPIC_TEMPLATE",
        "SLUICE_RECEIVER_PORT",
        "KAFKA_BOOTSTRAP_SERVERS",
        "SLUICE_CANARY_GRACE_SECONDS",
        "SLUICE_CANARY_TOPIC",
        "SLUICE_CANARY_RECONCILE_INTERVAL_MS",
    ]


@pytest.mark.parametrize(
    "template", ["topic", "{name}", "{namespace}", "{0}", "{namespace}{name", "{namespace!x}{name}"]
)
def test_a_template_that_would_give_two_channels_one_topic_is_refused(template):
    with pytest.raises(ConfigError, match="SLUICE_TOPIC_TEMPLATE"):
        Settings.from_env({"SLUICE_TOPIC_TEMPLATE": template})


def test_every_setting_of_the_canary_image_is_within_reach(tmp_path):
    settings = Settings.from_env(
        {
            "SLUICE_HOME": str(tmp_path),
            "SLUICE_CANARY_TOPIC": "probe",
            "SLUICE_CANARY_CLIENT_ID": "mine",
            "SLUICE_CANARY_TOPIC_CONFIG": "retention.ms=60000",
            "SLUICE_CANARY_EXPECTED_CLUSTER_SIZE": "3",
            "SLUICE_CANARY_PORT": "9999",
        }
    )
    canary = live_policy(settings).canary
    assert (canary.topic, canary.configs) == ("probe", {"retention.ms": "60000"})
    assert canary.deployment.env["CLIENT_ID"] == "mine"
    assert canary.deployment.host_port == 9999
    assert settings.canary.expected_cluster_size == 3


@pytest.mark.parametrize("name", ["SLUICE_CANARY_SASL_PASSWORD", "SLUICE_CANARY_TLS_CLIENT_KEY"])
def test_secrets_are_not_taken_from_the_environment_and_not_repeated(tmp_path, name):
    with pytest.raises(ConfigError) as caught:
        Settings.from_env({"SLUICE_HOME": str(tmp_path), name: "hunter2"})
    assert name in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_reconciliation_does_not_wait_for_another_one_for_ever(tmp_path):
    with (
        one_at_a_time(tmp_path),
        pytest.raises(Unavailable, match="another one has been running"),
        one_at_a_time(tmp_path, limit_s=0.1),
    ):
        pass
    with one_at_a_time(tmp_path, limit_s=0.1):
        pass
