"""Configuration of the images: written by orchestration with `to_env`, read by an image with `from_env`.

The environment is the only source and is read once, in each program's composition root. A wrong value stops the
program with exit code 78 and one message that lists *all* wrong keys.

Fields carry their unit in the name; a docstring under each says the default's reason where there is one.
"""

from __future__ import annotations

import enum
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from eventing.errors import ConfigError
from eventing.kafka_security import Secret

_Choice = TypeVar("_Choice", bound=enum.StrEnum)

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class EnvReader:
    """Reads typed values from an environment and collects every problem; `raise_problems` reports them at once."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.problems: list[str] = []

    def problem(self, key: str, reason: str) -> None:
        self.problems.append(f"{key} {reason}")

    def text(self, key: str, default: str | None = None) -> str:
        """A string; without a default the key must be set. An empty value counts as not set."""
        value = self._environ.get(key, "")
        if value:
            return value
        if default is None:
            self.problem(key, "is required")
            return ""
        return default

    def optional(self, key: str) -> str | None:
        return self._environ.get(key) or None

    def integer(self, key: str, default: int, *, low: int, high: int) -> int:
        value = self._environ.get(key, "").strip()
        if not value:
            return default
        try:
            number = int(value)
        except ValueError:
            self.problem(key, f"must be a whole number from {low} to {high}, not {value!r}")
            return default
        if not low <= number <= high:
            self.problem(key, f"must be from {low} to {high}, not {number}")
            return default
        return number

    def number(self, key: str, default: float, *, low: float, high: float) -> float:
        value = self._environ.get(key, "").strip()
        if not value:
            return default
        try:
            number = float(value)
        except ValueError:
            self.problem(key, f"must be a number from {low:g} to {high:g}, not {value!r}")
            return default
        if not low <= number <= high:  # also refuses NaN
            self.problem(key, f"must be from {low:g} to {high:g}, not {value}")
            return default
        return number

    def boolean(self, key: str, *, default: bool) -> bool:
        value = self._environ.get(key, "").strip().lower()
        if not value:
            return default
        if value in {"true", "t", "1", "yes"}:
            return True
        if value in {"false", "f", "0", "no"}:
            return False
        self.problem(key, f"must be true or false, not {value!r}")
        return default

    def choice(self, key: str, kind: type[_Choice], default: _Choice) -> _Choice:
        value = self._environ.get(key, "").strip()
        if not value:
            return default
        try:
            return kind(value)
        except ValueError:
            self.problem(key, f"must be one of {', '.join(kind)}, not {value!r}")
            return default

    def log_level(self) -> str:
        value = self._environ.get("LOG_LEVEL", "").strip().upper() or "INFO"
        if value not in LOG_LEVELS:
            self.problem("LOG_LEVEL", f"must be one of {', '.join(LOG_LEVELS)}, not {value!r}")
            return "INFO"
        return value

    def port(self, key: str, default: int) -> int:
        return self.integer(key, default, low=1, high=65535)

    def bootstrap_servers(self, default: str | None = None) -> str:
        """`host:port[,host:port…]`."""
        value = self.text("KAFKA_BOOTSTRAP_SERVERS", default)
        for item in value.split(",") if value else ():
            host, _, port = item.strip().rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                self.problem("KAFKA_BOOTSTRAP_SERVERS", f"must be host:port[,host:port…], not {value!r}")
                break
        return value

    def raise_problems(self) -> None:
        """Raise `ConfigError` with all problems, if there are any."""
        if self.problems:
            raise ConfigError(self.problems, subject="environment")


class GroupProtocol(enum.StrEnum):
    """Kafka's consumer group protocols: `classic` with the cooperative-sticky assignor, `consumer` = KIP-848."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class Transport(enum.StrEnum):
    """HTTP client of the dispatcher: our own for speed, aiohttp for proxies and odd TLS."""

    NATIVE = "native"
    AIOHTTP = "aiohttp"


def _without_none(env: dict[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in env.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchConfig:
    """`python -m dispatcher_image dispatch`."""

    bootstrap_servers: str
    channel_key: str
    """`namespace/name` of the one KafkaChannel that this process serves."""
    kafka_topic: str
    channel_source: str
    """`kubernetes`, or the path of a file or folder of KafkaChannel YAML."""
    kafka_secret_dir: str | None = None
    max_in_flight: int = 256
    """Requests under way per partition and subscription; 256 is what Sarama buffered. What is read ahead and waits for
    its key is bounded by a multiple of it (`dispatcher_image/lanes.py`) and by `max_in_flight_bytes`."""
    max_in_flight_bytes: int = 8 * 1024 * 1024
    """Bytes per partition and subscription that are read and not settled; the other half of the memory formula."""
    drain_timeout_seconds: float = 10.0
    """How long a revoke or SIGTERM waits for requests that are under way."""
    group_protocol: GroupProtocol = GroupProtocol.CLASSIC
    transport: Transport = Transport.NATIVE
    metrics_port: int = 8081
    health_port: int = 8082
    profiling_port: int | None = None
    """None: off. 8008 by convention when on."""
    client_rack: str | None = None
    log_level: str = "INFO"

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> DispatchConfig:
        """Read the environment. Raises ConfigError with every wrong key."""
        env = EnvReader(environ)
        channel_key = env.text("CHANNEL_KEY")
        if channel_key and (channel_key.count("/") != 1 or not all(channel_key.split("/"))):
            env.problem("CHANNEL_KEY", f"must be namespace/name, not {channel_key!r}")
        profiling = env.optional("PROFILING_PORT")
        config = cls(
            bootstrap_servers=env.bootstrap_servers(),
            channel_key=channel_key,
            kafka_topic=env.text("KAFKA_TOPIC"),
            channel_source=env.text("CHANNEL_SOURCE", "kubernetes"),
            kafka_secret_dir=env.optional("KAFKA_SECRET_DIR"),
            max_in_flight=env.integer("MAX_IN_FLIGHT", 256, low=1, high=100_000),
            max_in_flight_bytes=env.integer("MAX_IN_FLIGHT_BYTES", 8 * 1024 * 1024, low=1024, high=2**31),
            drain_timeout_seconds=env.number("DRAIN_TIMEOUT_SECONDS", 10.0, low=0.0, high=600.0),
            group_protocol=env.choice("GROUP_PROTOCOL", GroupProtocol, GroupProtocol.CLASSIC),
            transport=env.choice("TRANSPORT", Transport, Transport.NATIVE),
            metrics_port=env.port("METRICS_PORT", 8081),
            health_port=env.port("HEALTH_PORT", 8082),
            profiling_port=env.port("PROFILING_PORT", 8008) if profiling else None,
            client_rack=env.optional("CLIENT_RACK"),
            log_level=env.log_level(),
        )
        env.raise_problems()
        return config

    def to_env(self) -> dict[str, str]:
        """The environment that `from_env` reads back as an equal object."""
        return _without_none(
            {
                "KAFKA_BOOTSTRAP_SERVERS": self.bootstrap_servers,
                "CHANNEL_KEY": self.channel_key,
                "KAFKA_TOPIC": self.kafka_topic,
                "CHANNEL_SOURCE": self.channel_source,
                "KAFKA_SECRET_DIR": self.kafka_secret_dir,
                "MAX_IN_FLIGHT": str(self.max_in_flight),
                "MAX_IN_FLIGHT_BYTES": str(self.max_in_flight_bytes),
                "DRAIN_TIMEOUT_SECONDS": repr(self.drain_timeout_seconds),
                "GROUP_PROTOCOL": self.group_protocol.value,
                "TRANSPORT": self.transport.value,
                "METRICS_PORT": str(self.metrics_port),
                "HEALTH_PORT": str(self.health_port),
                "PROFILING_PORT": None if self.profiling_port is None else str(self.profiling_port),
                "CLIENT_RACK": self.client_rack,
                "LOG_LEVEL": self.log_level,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveConfig:
    """`python -m dispatcher_image receive`."""

    bootstrap_servers: str
    channel_source: str
    kafka_secret_dir: str | None = None
    port: int = 8080
    max_event_bytes: int = 1_048_576
    """Kafka's own default limit of a batch."""
    delivery_timeout_seconds: float = 10.0
    """How long Kafka may take to make an event durable before the answer is 503."""
    drain_timeout_seconds: float = 10.0
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    metrics_port: int = 8081
    health_port: int = 8082
    log_level: str = "INFO"

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> ReceiveConfig:
        """Read the environment. Raises ConfigError with every wrong key."""
        env = EnvReader(environ)
        cert, key = env.optional("TLS_CERT_FILE"), env.optional("TLS_KEY_FILE")
        if (cert is None) != (key is None):
            env.problem("TLS_KEY_FILE" if key is None else "TLS_CERT_FILE", "is required when the other one is set")
        config = cls(
            bootstrap_servers=env.bootstrap_servers(),
            channel_source=env.text("CHANNEL_SOURCE", "kubernetes"),
            kafka_secret_dir=env.optional("KAFKA_SECRET_DIR"),
            port=env.port("PORT", 8080),
            max_event_bytes=env.integer("MAX_EVENT_BYTES", 1_048_576, low=1024, high=2**30),
            delivery_timeout_seconds=env.number("DELIVERY_TIMEOUT_SECONDS", 10.0, low=0.1, high=300.0),
            drain_timeout_seconds=env.number("DRAIN_TIMEOUT_SECONDS", 10.0, low=0.0, high=600.0),
            tls_cert_file=cert,
            tls_key_file=key,
            metrics_port=env.port("METRICS_PORT", 8081),
            health_port=env.port("HEALTH_PORT", 8082),
            log_level=env.log_level(),
        )
        env.raise_problems()
        return config

    def to_env(self) -> dict[str, str]:
        """The environment that `from_env` reads back as an equal object."""
        return _without_none(
            {
                "KAFKA_BOOTSTRAP_SERVERS": self.bootstrap_servers,
                "CHANNEL_SOURCE": self.channel_source,
                "KAFKA_SECRET_DIR": self.kafka_secret_dir,
                "PORT": str(self.port),
                "MAX_EVENT_BYTES": str(self.max_event_bytes),
                "DELIVERY_TIMEOUT_SECONDS": repr(self.delivery_timeout_seconds),
                "DRAIN_TIMEOUT_SECONDS": repr(self.drain_timeout_seconds),
                "TLS_CERT_FILE": self.tls_cert_file,
                "TLS_KEY_FILE": self.tls_key_file,
                "METRICS_PORT": str(self.metrics_port),
                "HEALTH_PORT": str(self.health_port),
                "LOG_LEVEL": self.log_level,
            }
        )


MAX_STATUS_SAMPLES = 384
"""How many samples `/status` keeps at most, whatever the window and the interval say."""

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")
_CANARY_LABELS = frozenset({"clientid", "partition", "topic", "brokerid", "connected", "result", "reason", "le"})


class SaslMechanism(enum.StrEnum):
    """What `SASL_MECHANISM` may name."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


class TracingExporter(enum.StrEnum):
    """What `EXPORTER_TYPE_TRACING` may name."""

    JAEGER = "jaeger"
    OTLP = "otlp"


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryConfig:
    """`python -m canary_image`: every name and default of strimzi-canary, so that an existing manifest works.

    `SARAMA_LOG_ENABLED` and `KAFKA_VERSION` are accepted and mean nothing here: librdkafka needs neither.
    """

    bootstrap_servers: str = "localhost:9092"
    bootstrap_backoff_max_attempts: int = 10
    """After so many attempts the wait grows no further; the canary never gives up."""
    bootstrap_backoff_scale_ms: int = 5000
    """First wait; doubles, at most 5 minutes."""
    topic: str = "__strimzi_canary"
    topic_config: tuple[tuple[str, str], ...] = ()
    """Topic configs as declared; orchestration sets them, the image only checks their form."""
    reconcile_interval_ms: int = 30_000
    """One record to each probed partition in each interval."""
    client_id: str = "strimzi-canary-client"
    """Also the `producerId` in each record: several canaries side by side need different ones."""
    consumer_group_id: str = "strimzi-canary-group"
    producer_latency_buckets_ms: tuple[float, ...] = (2, 5, 10, 20, 50, 100, 200, 400)
    endtoend_latency_buckets_ms: tuple[float, ...] = (5, 10, 20, 50, 100, 200, 400, 800)
    expected_cluster_size: int | None = None
    """None (-1 in the environment): the brokers are those that are there."""
    verbosity_log_level: int = 0
    """0 INFO, 1 DEBUG, 2 TRACE."""
    tls_enabled: bool = False
    tls_ca_cert: str | None = None
    """PEM text or a path; added to the system's authorities."""
    tls_client_cert: str | None = None
    tls_client_key: Secret | None = None
    tls_insecure_skip_verify: bool = False
    sasl_mechanism: SaslMechanism | None = None
    sasl_user: str | None = None
    sasl_password: Secret | None = None
    sasl_token_endpoint_url: str | None = None
    """Where OAUTHBEARER gets its token by client credentials (`SASL_USER`, `SASL_PASSWORD`)."""
    sasl_token_scope: str | None = None
    connection_check_interval_ms: int = 120_000
    connection_check_latency_buckets_ms: tuple[float, ...] = (100, 200, 400, 800, 1600)
    status_check_interval_ms: int = 30_000
    status_time_window_ms: int = 300_000
    dynamic_config_file: str | None = None
    dynamic_config_watcher_interval_ms: int = 30_000
    exporter_type_tracing: TracingExporter | None = None
    prometheus_constant_labels: tuple[tuple[str, str], ...] = ()
    kafka_secret_dir: str | None = None
    """A mounted Secret; where it is given, `TLS_*` and `SASL_*` are not used."""
    produce_timeout_ms: int = 15_000
    """How long a leader that answers may take to acknowledge. Longer than Kafka needs to notice a dead follower (9 s by
    default, and acks=all waits for it), so that a dead broker shows in its own partitions alone. A record whose leader
    cannot be reached fails at once."""
    round_trip_limit_ms: int = 20_000
    """A record that is not back by then is lost; when it comes after all it is late as well."""
    record_size_bytes: int = 0
    """The value is filled with blanks up to this size; 0: as small as it is."""
    probe_orphans: bool = False
    metrics_port: int = 8080
    log_level: str = "INFO"

    @property
    def status_samples(self) -> int:
        """How many samples the window of `/status` holds."""
        return min(self.status_time_window_ms // self.status_check_interval_ms, MAX_STATUS_SAMPLES)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> CanaryConfig:
        """Read the environment. Raises ConfigError with every wrong key."""
        env = EnvReader(environ)
        expected = env.integer("EXPECTED_CLUSTER_SIZE", -1, low=-1, high=100_000)
        if expected == 0:
            env.problem("EXPECTED_CLUSTER_SIZE", "must be -1 (as many as there are) or at least 1, not 0")
        certificate, key = env.optional("TLS_CLIENT_CERT"), env.optional("TLS_CLIENT_KEY")
        if (certificate is None) != (key is None):
            env.problem("TLS_CLIENT_KEY" if key is None else "TLS_CLIENT_CERT", "is required when the other one is set")
        password = env.optional("SASL_PASSWORD")
        config = cls(
            bootstrap_servers=env.bootstrap_servers("localhost:9092"),
            bootstrap_backoff_max_attempts=env.integer(
                "KAFKA_BOOTSTRAP_BACKOFF_MAX_ATTEMPTS", 10, low=1, high=1_000_000
            ),
            bootstrap_backoff_scale_ms=env.integer("KAFKA_BOOTSTRAP_BACKOFF_SCALE", 5000, low=1, high=_HOUR_MS),
            topic=_topic(env),
            topic_config=_pairs(env, "TOPIC_CONFIG"),
            reconcile_interval_ms=env.integer("RECONCILE_INTERVAL_MS", 30_000, low=100, high=_DAY_MS),
            client_id=env.text("CLIENT_ID", "strimzi-canary-client"),
            consumer_group_id=env.text("CONSUMER_GROUP_ID", "strimzi-canary-group"),
            producer_latency_buckets_ms=_buckets(env, "PRODUCER_LATENCY_BUCKETS", cls().producer_latency_buckets_ms),
            endtoend_latency_buckets_ms=_buckets(env, "ENDTOEND_LATENCY_BUCKETS", cls().endtoend_latency_buckets_ms),
            expected_cluster_size=expected if expected > 0 else None,
            verbosity_log_level=env.integer("VERBOSITY_LOG_LEVEL", 0, low=0, high=2),
            tls_enabled=env.boolean("TLS_ENABLED", default=False),
            tls_ca_cert=env.optional("TLS_CA_CERT"),
            tls_client_cert=certificate,
            tls_client_key=None if key is None else Secret(key),
            tls_insecure_skip_verify=env.boolean("TLS_INSECURE_SKIP_VERIFY", default=False),
            sasl_mechanism=_sasl_mechanism(env),
            sasl_user=env.optional("SASL_USER"),
            sasl_password=None if password is None else Secret(password),
            sasl_token_endpoint_url=_token_url(env),
            sasl_token_scope=env.optional("SASL_OAUTHBEARER_SCOPE"),
            connection_check_interval_ms=env.integer("CONNECTION_CHECK_INTERVAL_MS", 120_000, low=100, high=_DAY_MS),
            connection_check_latency_buckets_ms=_buckets(
                env, "CONNECTION_CHECK_LATENCY_BUCKETS", cls().connection_check_latency_buckets_ms
            ),
            status_check_interval_ms=env.integer("STATUS_CHECK_INTERVAL_MS", 30_000, low=100, high=_DAY_MS),
            status_time_window_ms=env.integer("STATUS_TIME_WINDOW_MS", 300_000, low=100, high=1000 * _DAY_MS),
            dynamic_config_file=env.optional("DYNAMIC_CONFIG_FILE"),
            dynamic_config_watcher_interval_ms=env.integer(
                "DYNAMIC_CONFIG_WATCHER_INTERVAL", 30_000, low=100, high=_DAY_MS
            ),
            exporter_type_tracing=_tracing(env),
            prometheus_constant_labels=_constant_labels(env),
            kafka_secret_dir=env.optional("KAFKA_SECRET_DIR"),
            produce_timeout_ms=env.integer("PRODUCE_TIMEOUT_MS", 15_000, low=100, high=600_000),
            round_trip_limit_ms=env.integer("ROUND_TRIP_LIMIT_MS", 20_000, low=100, high=_HOUR_MS),
            record_size_bytes=env.integer("RECORD_SIZE_BYTES", 0, low=0, high=1_000_000),
            probe_orphans=env.boolean("PROBE_ORPHANS", default=False),
            metrics_port=env.port("METRICS_PORT", 8080),
            log_level=env.log_level(),
        )
        if config.status_samples < 1:
            env.problem(
                "STATUS_TIME_WINDOW_MS",
                f"must be at least STATUS_CHECK_INTERVAL_MS ({config.status_check_interval_ms}), "
                f"not {config.status_time_window_ms}",
            )
        env.raise_problems()
        return config

    def to_env(self) -> dict[str, str]:
        """The environment that `from_env` reads back as an equal object. Holds secrets in the clear."""
        return _without_none(
            {
                "KAFKA_BOOTSTRAP_SERVERS": self.bootstrap_servers,
                "KAFKA_BOOTSTRAP_BACKOFF_MAX_ATTEMPTS": str(self.bootstrap_backoff_max_attempts),
                "KAFKA_BOOTSTRAP_BACKOFF_SCALE": str(self.bootstrap_backoff_scale_ms),
                "TOPIC": self.topic,
                "TOPIC_CONFIG": _joined(self.topic_config),
                "RECONCILE_INTERVAL_MS": str(self.reconcile_interval_ms),
                "CLIENT_ID": self.client_id,
                "CONSUMER_GROUP_ID": self.consumer_group_id,
                "PRODUCER_LATENCY_BUCKETS": _listed(self.producer_latency_buckets_ms),
                "ENDTOEND_LATENCY_BUCKETS": _listed(self.endtoend_latency_buckets_ms),
                "EXPECTED_CLUSTER_SIZE": str(self.expected_cluster_size or -1),
                "VERBOSITY_LOG_LEVEL": str(self.verbosity_log_level),
                "TLS_ENABLED": str(self.tls_enabled).lower(),
                "TLS_CA_CERT": self.tls_ca_cert,
                "TLS_CLIENT_CERT": self.tls_client_cert,
                "TLS_CLIENT_KEY": None if self.tls_client_key is None else self.tls_client_key.reveal(),
                "TLS_INSECURE_SKIP_VERIFY": str(self.tls_insecure_skip_verify).lower(),
                "SASL_MECHANISM": None if self.sasl_mechanism is None else self.sasl_mechanism.value,
                "SASL_USER": self.sasl_user,
                "SASL_PASSWORD": None if self.sasl_password is None else self.sasl_password.reveal(),
                "SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": self.sasl_token_endpoint_url,
                "SASL_OAUTHBEARER_SCOPE": self.sasl_token_scope,
                "CONNECTION_CHECK_INTERVAL_MS": str(self.connection_check_interval_ms),
                "CONNECTION_CHECK_LATENCY_BUCKETS": _listed(self.connection_check_latency_buckets_ms),
                "STATUS_CHECK_INTERVAL_MS": str(self.status_check_interval_ms),
                "STATUS_TIME_WINDOW_MS": str(self.status_time_window_ms),
                "DYNAMIC_CONFIG_FILE": self.dynamic_config_file,
                "DYNAMIC_CONFIG_WATCHER_INTERVAL": str(self.dynamic_config_watcher_interval_ms),
                "EXPORTER_TYPE_TRACING": None
                if self.exporter_type_tracing is None
                else self.exporter_type_tracing.value,
                "PROMETHEUS_CONSTANT_LABELS": _joined(self.prometheus_constant_labels),
                "KAFKA_SECRET_DIR": self.kafka_secret_dir,
                "PRODUCE_TIMEOUT_MS": str(self.produce_timeout_ms),
                "ROUND_TRIP_LIMIT_MS": str(self.round_trip_limit_ms),
                "RECORD_SIZE_BYTES": str(self.record_size_bytes),
                "PROBE_ORPHANS": str(self.probe_orphans).lower(),
                "METRICS_PORT": str(self.metrics_port),
                "LOG_LEVEL": self.log_level,
            }
        )


_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


def _topic(env: EnvReader) -> str:
    """https://kafka.apache.org/documentation/#topicconfigs: letters, digits, `.`, `_`, `-`; at most 249."""
    topic = env.text("TOPIC", "__strimzi_canary")
    if not _TOPIC_NAME.match(topic) or topic in {".", ".."}:
        env.problem("TOPIC", f"must be a Kafka topic name, not {topic!r}")
    return topic


def _pairs(env: EnvReader, key: str) -> tuple[tuple[str, str], ...]:
    """`k=v;k=v`, a final `;` allowed; nothing is trimmed, and a value cannot hold `=` or `;`."""
    text = env.optional(key)
    if text is None:
        return ()
    pairs: dict[str, str] = {}
    for item in text.removesuffix(";").split(";"):
        parts = item.split("=")
        if len(parts) != 2 or not parts[0]:
            env.problem(key, f"must be key=value;key=value, but holds {item!r}")
            return ()
        if parts[0] in pairs:
            env.problem(key, f"names {parts[0]!r} twice")
            return ()
        pairs[parts[0]] = parts[1]
    return tuple(pairs.items())


def _constant_labels(env: EnvReader) -> tuple[tuple[str, str], ...]:
    key = "PROMETHEUS_CONSTANT_LABELS"
    labels = _pairs(env, key)
    for name, _ in labels:
        if not _LABEL_NAME.match(name) or name.startswith("__"):
            env.problem(key, f"holds {name!r}, which is no Prometheus label name")
        elif name in _CANARY_LABELS:
            env.problem(key, f"holds {name!r}, which the canary's own series use")
    return labels


def _buckets(env: EnvReader, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
    """Upper bounds in milliseconds, separated by commas, growing."""
    text = env.optional(key)
    if text is None:
        return default
    try:
        bounds = tuple(float(item) for item in text.split(","))
    except ValueError:
        bounds = ()
    if not bounds or not all(math.isfinite(bound) and bound > 0 for bound in bounds):
        env.problem(key, f"must be positive numbers separated by commas, not {text!r}")
        return default
    if any(low >= high for low, high in itertools.pairwise(bounds)):
        env.problem(key, f"must grow from one bound to the next, not {text!r}")
        return default
    return bounds


def _sasl_mechanism(env: EnvReader) -> SaslMechanism | None:
    if env.optional("SASL_MECHANISM") is None:
        return None
    before = len(env.problems)
    mechanism = env.choice("SASL_MECHANISM", SaslMechanism, SaslMechanism.PLAIN)
    if len(env.problems) > before:
        return mechanism
    needed = ["SASL_USER", "SASL_PASSWORD"]
    if mechanism is SaslMechanism.OAUTHBEARER:
        needed.append("SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL")
    for key in needed:
        if env.optional(key) is None:
            env.problem(key, f"is required with SASL_MECHANISM {mechanism.value}")
    return mechanism


def _token_url(env: EnvReader) -> str | None:
    key = "SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL"
    url = env.optional(key)
    if url is not None and not url.startswith(("https://", "http://")):
        env.problem(key, f"must be an http or https URL, not {url!r}")
    return url


def _tracing(env: EnvReader) -> TracingExporter | None:
    if env.optional("EXPORTER_TYPE_TRACING") is None:
        return None
    return env.choice("EXPORTER_TYPE_TRACING", TracingExporter, TracingExporter.OTLP)


def _joined(pairs: tuple[tuple[str, str], ...]) -> str | None:
    return ";".join(f"{name}={value}" for name, value in pairs) or None


def _listed(bounds: tuple[float, ...]) -> str:
    return ",".join(repr(bound) for bound in bounds)
