"""strimzi-canary's environment: every name, every default, and every wrong value told at once."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventing.errors import ConfigError
from eventing.kafka_security import Secret
from eventing.program_config import CanaryConfig, SaslMechanism, TracingExporter


def problems(**environ: str) -> set[str]:
    """The keys that a wrong environment is told about."""
    with pytest.raises(ConfigError) as caught:
        CanaryConfig.from_env(environ)
    return {problem.split()[0] for problem in caught.value.problems}


def test_an_empty_environment_gives_strimzi_canarys_defaults():
    config = CanaryConfig.from_env({})

    assert config == CanaryConfig()
    assert (config.bootstrap_servers, config.topic) == ("localhost:9092", "__strimzi_canary")
    assert (config.bootstrap_backoff_max_attempts, config.bootstrap_backoff_scale_ms) == (10, 5000)
    assert (config.client_id, config.consumer_group_id) == ("strimzi-canary-client", "strimzi-canary-group")
    assert config.reconcile_interval_ms == config.status_check_interval_ms == 30_000
    assert config.producer_latency_buckets_ms == (2, 5, 10, 20, 50, 100, 200, 400)
    assert config.endtoend_latency_buckets_ms == (5, 10, 20, 50, 100, 200, 400, 800)
    assert config.connection_check_latency_buckets_ms == (100, 200, 400, 800, 1600)
    assert (config.connection_check_interval_ms, config.status_time_window_ms) == (120_000, 300_000)
    assert (config.expected_cluster_size, config.verbosity_log_level, config.metrics_port) == (None, 0, 8080)
    assert (config.dynamic_config_watcher_interval_ms, config.dynamic_config_file) == (30_000, None)
    assert config.status_samples == 10


def test_custom_values_as_in_an_old_manifest():
    config = CanaryConfig.from_env(
        {
            "KAFKA_BOOTSTRAP_SERVERS": "my-cluster-kafka:9093,other:9093",
            "TOPIC": "my-topic",
            "TOPIC_CONFIG": "retention.ms=600000;segment.bytes=16384;",
            "EXPECTED_CLUSTER_SIZE": "3",
            "KAFKA_VERSION": "3.2.0",
            "SARAMA_LOG_ENABLED": "true",
            "PRODUCER_LATENCY_BUCKETS": "400,800,1600",
            "TLS_ENABLED": "true",
            "SASL_MECHANISM": "SCRAM-SHA-512",
            "SASL_USER": "user",
            "SASL_PASSWORD": "password",
            "EXPORTER_TYPE_TRACING": "otlp",
            "PROMETHEUS_CONSTANT_LABELS": "cluster=east;team=",
        }
    )

    assert config.topic_config == (("retention.ms", "600000"), ("segment.bytes", "16384"))
    assert config.expected_cluster_size == 3
    assert config.producer_latency_buckets_ms == (400, 800, 1600)
    assert config.sasl_mechanism is SaslMechanism.SCRAM_SHA_512
    assert config.exporter_type_tracing is TracingExporter.OTLP
    assert config.prometheus_constant_labels == (("cluster", "east"), ("team", ""))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("KAFKA_BOOTSTRAP_SERVERS", "kafka"),
        ("KAFKA_BOOTSTRAP_BACKOFF_MAX_ATTEMPTS", "0"),
        ("KAFKA_BOOTSTRAP_BACKOFF_SCALE", "5s"),
        ("TOPIC", "a topic"),
        ("TOPIC", ".."),
        ("TOPIC", "x" * 250),
        ("TOPIC_CONFIG", "=600000;segment.bytes=1"),
        ("TOPIC_CONFIG", "aaaaa;segment.bytes=1"),
        ("TOPIC_CONFIG", ";;;;segment.bytes=1"),
        ("TOPIC_CONFIG", "a=1;;b=2"),
        ("TOPIC_CONFIG", "a=b=c"),
        ("TOPIC_CONFIG", "a=1;a=2"),
        ("RECONCILE_INTERVAL_MS", "0"),
        ("RECONCILE_INTERVAL_MS", "-1"),
        ("RECONCILE_INTERVAL_MS", "fast"),
        ("RECONCILE_INTERVAL_MS", "1.5"),
        ("PRODUCER_LATENCY_BUCKETS", "2,5,x"),
        ("PRODUCER_LATENCY_BUCKETS", "5,2"),
        ("ENDTOEND_LATENCY_BUCKETS", "5,5"),
        ("ENDTOEND_LATENCY_BUCKETS", "-1,5"),
        ("CONNECTION_CHECK_LATENCY_BUCKETS", "100,inf"),
        ("CONNECTION_CHECK_LATENCY_BUCKETS", "nan"),
        ("EXPECTED_CLUSTER_SIZE", "0"),
        ("EXPECTED_CLUSTER_SIZE", "-2"),
        ("VERBOSITY_LOG_LEVEL", "3"),
        ("TLS_ENABLED", "si"),
        ("TLS_INSECURE_SKIP_VERIFY", "2"),
        ("SASL_MECHANISM", "GSSAPI"),
        ("CONNECTION_CHECK_INTERVAL_MS", "0"),
        ("STATUS_CHECK_INTERVAL_MS", "0"),
        ("STATUS_TIME_WINDOW_MS", "29999"),
        ("DYNAMIC_CONFIG_WATCHER_INTERVAL", "0"),
        ("EXPORTER_TYPE_TRACING", "zipkin"),
        ("PROMETHEUS_CONSTANT_LABELS", "a-b=c"),
        ("PROMETHEUS_CONSTANT_LABELS", "partition=1"),
        ("PROMETHEUS_CONSTANT_LABELS", "__name__=x"),
        ("METRICS_PORT", "65536"),
        ("LOG_LEVEL", "loud"),
        ("RECORD_SIZE_BYTES", "-1"),
        ("PROBE_ORPHANS", "perhaps"),
        ("PRODUCE_TIMEOUT_MS", "1"),
        ("ROUND_TRIP_LIMIT_MS", "0"),
        ("SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL", "file:///etc/passwd"),
    ],
)
def test_a_wrong_value_is_told_by_its_key(key, value):
    assert problems(**{key: value}) == {key}


def test_every_wrong_value_is_told_at_once():
    assert problems(
        TOPIC="a topic", RECONCILE_INTERVAL_MS="x", STATUS_CHECK_INTERVAL_MS="0", TLS_ENABLED="x", METRICS_PORT="x"
    ) == {"TOPIC", "RECONCILE_INTERVAL_MS", "STATUS_CHECK_INTERVAL_MS", "TLS_ENABLED", "METRICS_PORT"}


def test_credentials_that_belong_together_are_asked_for_together():
    assert problems(SASL_MECHANISM="PLAIN") == {"SASL_USER", "SASL_PASSWORD"}
    assert problems(SASL_MECHANISM="OAUTHBEARER", SASL_USER="u", SASL_PASSWORD="p") == {
        "SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL"
    }
    assert problems(TLS_CLIENT_CERT="/cert.pem") == {"TLS_CLIENT_KEY"}


@pytest.mark.parametrize("value", ["1", "t", "T", "TRUE", "true", "True"])
def test_booleans_are_read_as_go_reads_them(value):
    assert CanaryConfig.from_env({"TLS_ENABLED": value}).tls_enabled


def test_what_means_nothing_here_is_accepted_with_any_value():
    assert CanaryConfig.from_env({"SARAMA_LOG_ENABLED": "perhaps", "KAFKA_VERSION": "new"}) == CanaryConfig()


def test_secrets_do_not_show():
    config = CanaryConfig(sasl_password=Secret("hunter2"), tls_client_key=Secret("KEY"), tls_client_cert="C")

    assert "hunter2" not in f"{config} {config!r}"
    assert "KEY" not in repr(config)


buckets = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=8, unique=True).map(lambda b: tuple(sorted(b)))
words = st.text(st.characters(min_codepoint=48, max_codepoint=122, categories=["L", "N"]), min_size=1, max_size=12)


@given(
    st.builds(
        CanaryConfig,
        topic=st.sampled_from(["__strimzi_canary", "a.b-c_d"]),
        topic_config=st.dictionaries(words, words, max_size=3).map(lambda d: tuple(d.items())),
        reconcile_interval_ms=st.integers(100, 86_400_000),
        producer_latency_buckets_ms=buckets,
        endtoend_latency_buckets_ms=buckets,
        connection_check_latency_buckets_ms=buckets,
        expected_cluster_size=st.none() | st.integers(1, 1000),
        tls_enabled=st.booleans(),
        tls_ca_cert=st.none() | words,
        sasl_mechanism=st.sampled_from([None, SaslMechanism.PLAIN]),
        sasl_user=words,
        sasl_password=words.map(Secret),
        exporter_type_tracing=st.sampled_from([None, *TracingExporter]),
        prometheus_constant_labels=st.dictionaries(words.map("l_{}".format), words, max_size=3).map(
            lambda d: tuple(d.items())
        ),
        probe_orphans=st.booleans(),
        record_size_bytes=st.integers(0, 1_000_000),
        produce_timeout_ms=st.integers(100, 600_000),
    )
)
def test_what_orchestration_writes_the_canary_reads(config):
    assert CanaryConfig.from_env(config.to_env()) == config


def test_to_env_names_every_field():
    """A field that was forgotten in `to_env` would silently be its default in the image."""
    full = CanaryConfig(
        tls_ca_cert="a",
        tls_client_cert="b",
        tls_client_key=Secret("c"),
        sasl_mechanism=SaslMechanism.PLAIN,
        sasl_user="u",
        sasl_password=Secret("p"),
        sasl_token_endpoint_url="https://x",
        sasl_token_scope="s",
        dynamic_config_file="f",
        exporter_type_tracing=TracingExporter.OTLP,
        prometheus_constant_labels=(("a", "b"),),
        topic_config=(("a", "b"),),
        kafka_secret_dir="d",
    )

    assert len(full.to_env()) == len(dataclasses.fields(CanaryConfig))
