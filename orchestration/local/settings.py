"""Where the platform of this machine lives and on which ports; read from the environment once.

Every port can be moved by `SLUICE_<NAME>_PORT`, which is also what a message about a taken port names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eventing.errors import ConfigError
from eventing.program_config import EnvReader
from orchestration.local.kafka_server import remembered_brokers
from orchestration.local.ports import LOOPBACK

CHECKOUT = Path(__file__).parents[2]
SYSTEM_NAMESPACE = "sluice-system"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """The platform's places and ports."""

    home: Path
    """`SLUICE_HOME`; all state of the platform."""
    registry: Path
    """`SLUICE_REGISTRY`; the folder of KafkaChannel YAML."""
    dagster_port: int = 3000
    receiver_port: int = 8080
    subscriber_port: int = 8090
    canary_port: int = 8091
    kafka_port: int = 9092
    """Of the first broker; the next brokers have the next ports."""
    kafka_bootstrap: str | None = None
    """`KAFKA_BOOTSTRAP_SERVERS`: a cluster of the user's; None: brokers of ours."""
    kafka_secret_dir: str | None = None
    """`KAFKA_SECRET_DIR`: how to log in there."""
    brokers: int = 1

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ, *, brokers: int | None = None) -> LocalSettings:
        """Read the environment. Raises ConfigError with every wrong key."""
        env = EnvReader(environ)
        home = Path(env.text("SLUICE_HOME", str(CHECKOUT / ".sluice"))).expanduser().absolute()
        registry = env.text("SLUICE_REGISTRY", str(home / "registry"))
        if registry == "kubernetes":
            env.problem("SLUICE_REGISTRY", "must be a folder for the platform on one machine, not kubernetes")
        bootstrap = env.bootstrap_servers("") or None
        settings = cls(
            home=home,
            registry=Path(registry).expanduser().absolute(),
            dagster_port=env.port("SLUICE_DAGSTER_PORT", 3000),
            receiver_port=env.port("SLUICE_RECEIVER_PORT", 8080),
            subscriber_port=env.port("SLUICE_SUBSCRIBER_PORT", 8090),
            canary_port=env.port("SLUICE_CANARY_PORT", 8091),
            kafka_port=env.port("SLUICE_KAFKA_PORT", 9092),
            kafka_bootstrap=bootstrap,
            kafka_secret_dir=env.optional("KAFKA_SECRET_DIR") if bootstrap else None,
            # As many as the data is of: fewer would lose some of it.
            brokers=brokers or remembered_brokers(home / "kafka") or 1,
        )
        env.raise_problems()
        if brokers is not None and bootstrap is not None:
            raise ConfigError(
                ["--brokers starts brokers, KAFKA_BOOTSTRAP_SERVERS names a cluster that is there: give one of them"]
            )
        return settings

    @property
    def bootstrap(self) -> str:
        """Where clients find Kafka."""
        return self.kafka_bootstrap or ",".join(f"{LOOPBACK}:{port}" for port in self.kafka_ports)

    @property
    def kafka_ports(self) -> list[int]:
        """The ports of our brokers; none with a cluster of the user's."""
        return [] if self.kafka_bootstrap else [self.kafka_port + n for n in range(self.brokers)]

    @property
    def dagster_home(self) -> Path:
        return self.home / "dagster"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def samples(self) -> Path:
        return self.home / "samples"

    @property
    def urls(self) -> dict[str, str]:
        """Where people and scripts find each part."""
        ports = {
            "dagster": self.dagster_port,
            "receiver": self.receiver_port,
            "subscriber": self.subscriber_port,
            "canary": self.canary_port,
        }
        return {name: f"http://{LOOPBACK}:{port}" for name, port in ports.items()}

    def required_ports(self) -> list[tuple[int, str, str]]:
        """Each port that must be free: its number, what it is for, and the variable that moves it."""
        return [
            (self.dagster_port, "the Dagster UI", "SLUICE_DAGSTER_PORT"),
            (self.receiver_port, "the receiver", "SLUICE_RECEIVER_PORT"),
            (self.subscriber_port, "the sample subscriber", "SLUICE_SUBSCRIBER_PORT"),
            (self.canary_port, "the canary", "SLUICE_CANARY_PORT"),
            *((port, f"Kafka broker {n}", "SLUICE_KAFKA_PORT") for n, port in enumerate(self.kafka_ports)),
        ]

    def environ(self) -> dict[str, str]:
        """The wiring that every process of the platform reads."""
        secret = {} if self.kafka_secret_dir is None else {"KAFKA_SECRET_DIR": self.kafka_secret_dir}
        return secret | {
            "SLUICE_HOME": str(self.home),
            "SLUICE_REGISTRY": str(self.registry),
            "SLUICE_WORKLOADS": "local",
            "KAFKA_BOOTSTRAP_SERVERS": self.bootstrap,
            "DAGSTER_HOME": str(self.dagster_home),
            "SLUICE_DAGSTER_PORT": str(self.dagster_port),
            "SLUICE_RECEIVER_PORT": str(self.receiver_port),
            "SLUICE_SUBSCRIBER_PORT": str(self.subscriber_port),
            "SLUICE_CANARY_PORT": str(self.canary_port),
            "SLUICE_KAFKA_PORT": str(self.kafka_port),
        }
