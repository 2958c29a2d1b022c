"""The environment that orchestration writes is the one that an image reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventing.errors import ConfigError
from eventing.program_config import DispatchConfig, GroupProtocol, ReceiveConfig, Transport

words = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
ports = st.integers(1, 65535)

dispatch_configs = st.builds(
    DispatchConfig,
    bootstrap_servers=st.sampled_from(["localhost:9092", "a:1,b:2", "[::1]:9092"]),
    channel_key=st.just("shop/orders"),
    kafka_topic=words,
    channel_source=words,
    kafka_secret_dir=st.none() | words,
    max_in_flight=st.integers(1, 100_000),
    max_in_flight_bytes=st.integers(1024, 2**31),
    drain_timeout_seconds=st.floats(0, 600),
    group_protocol=st.sampled_from(GroupProtocol),
    transport=st.sampled_from(Transport),
    metrics_port=ports,
    health_port=ports,
    profiling_port=st.none() | ports,
    client_rack=st.none() | words,
)


@given(dispatch_configs)
def test_what_orchestration_writes_the_dispatcher_reads(config):
    assert DispatchConfig.from_env(config.to_env()) == config


def test_what_orchestration_writes_the_receiver_reads():
    config = ReceiveConfig(bootstrap_servers="a:1", channel_source="/registry", tls_cert_file="/c", tls_key_file="/k")

    assert ReceiveConfig.from_env(config.to_env()) == config


def test_every_wrong_key_is_told_at_once():
    with pytest.raises(ConfigError) as caught:
        DispatchConfig.from_env(
            {
                "CHANNEL_KEY": "orders",
                "KAFKA_BOOTSTRAP_SERVERS": "localhost",
                "MAX_IN_FLIGHT": "0",
                "GROUP_PROTOCOL": "modern",
                "METRICS_PORT": "http",
                "LOG_LEVEL": "loud",
                "DRAIN_TIMEOUT_SECONDS": "nan",
            }
        )

    assert {problem.split()[0] for problem in caught.value.problems} == {
        "CHANNEL_KEY",
        "KAFKA_BOOTSTRAP_SERVERS",
        "KAFKA_TOPIC",
        "MAX_IN_FLIGHT",
        "GROUP_PROTOCOL",
        "METRICS_PORT",
        "LOG_LEVEL",
        "DRAIN_TIMEOUT_SECONDS",
    }
