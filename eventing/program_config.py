"""Configuration of the images: written by orchestration with `to_env`, read by an image with `from_env`.

The environment is the only source and is read once, in each program's composition root. A wrong value stops the
program with exit code 78 and one message that lists *all* wrong keys.

Fields carry their unit in the name; a docstring under each says the default's reason where there is one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from eventing.errors import ConfigError

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
        if value in {"true", "1", "yes"}:
            return True
        if value in {"false", "0", "no"}:
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
    """Records per partition and subscription that are read and not settled; 256 is what Sarama buffered."""
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
