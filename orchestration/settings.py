"""What orchestration itself is told by its environment. Read once, by a composition root; no other module looks there.

One machine is the default: a folder as registry, processes as workloads, everything under `SLUICE_HOME`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eventing.channels import DEFAULT_TOPIC_TEMPLATE
from eventing.errors import ConfigError
from eventing.program_config import CanaryConfig, EnvReader

CHECKOUT = Path(__file__).resolve().parent.parent
KUBERNETES = "kubernetes"
CANARY_PREFIX = "SLUICE_CANARY_"
LOCAL_PROBE_INTERVAL_MS = "1000"
"""On one machine somebody is watching: a probe each second. strimzi-canary's default of 30 s is for production."""
_SECRET = {"SASL_PASSWORD", "TLS_CLIENT_KEY"}
_NOT_FOR_THE_IMAGE = {"PORT", "ENABLED", "IMAGE", "MANAGE_TOPIC", "GRACE_SECONDS"}


class WorkloadsKind(enum.StrEnum):
    """Where Deployments run."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that the composition roots need."""

    home: Path
    """`SLUICE_HOME`: state of the platform on this machine."""
    registry: str
    """`SLUICE_REGISTRY`: path of a folder, or `kubernetes`."""
    workloads: WorkloadsKind
    bootstrap_servers: str
    kafka_secret_dir: str | None = None
    """`KAFKA_SECRET_DIR`: for orchestration's own clients and, on one machine, for the programs."""
    kafka_secret: str | None = None
    """`SLUICE_KAFKA_SECRET`: name of the Secret that programs in a cluster mount."""
    system_namespace: str = "sluice-system"
    topic_template: str = DEFAULT_TOPIC_TEMPLATE
    receiver_url: str | None = None
    """Base of the channels' addresses; None: each channel's own Service."""
    dispatcher_image: str = "sluice/dispatcher"
    canary_image: str = "sluice/canary"
    canary_enabled: bool = True
    canary_manages_topic: bool = True
    """False for managed clusters, where topics may not be created or changed."""
    canary_grace_s: float = 600.0
    """How long a broker may be away before it counts as gone: longer than a restart takes."""
    canary_port: int | None = None
    """Fixed port of the canary on this machine; None in a cluster."""
    canary: CanaryConfig = field(default_factory=CanaryConfig)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Read the environment.

        Raises:
            ConfigError: listing every wrong key.
        """
        env = EnvReader(environ)
        home = Path(env.text("SLUICE_HOME", str(CHECKOUT / ".sluice"))).expanduser().absolute()
        workloads = env.choice("SLUICE_WORKLOADS", WorkloadsKind, WorkloadsKind.LOCAL)
        local = workloads is WorkloadsKind.LOCAL
        registry = env.text("SLUICE_REGISTRY", str(home / "registry") if local else KUBERNETES)
        default_bootstrap = f"127.0.0.1:{env.port('SLUICE_KAFKA_PORT', 9092)}" if local else None
        template = env.text("SLUICE_TOPIC_TEMPLATE", DEFAULT_TOPIC_TEMPLATE)
        if not _is_template(template):
            env.problem(
                "SLUICE_TOPIC_TEMPLATE",
                f"must hold {{namespace}} and {{name}} and nothing else in braces, not {template!r}",
            )
        receiver = f"http://127.0.0.1:{env.port('SLUICE_RECEIVER_PORT', 8080)}" if local else None
        bootstrap = env.bootstrap_servers(default_bootstrap)
        problems = list(env.problems)
        settings = cls(
            home=home,
            registry=registry if registry == KUBERNETES else str(Path(registry).expanduser().absolute()),
            workloads=workloads,
            bootstrap_servers=bootstrap,
            kafka_secret_dir=env.optional("KAFKA_SECRET_DIR"),
            kafka_secret=env.optional("SLUICE_KAFKA_SECRET"),
            system_namespace=env.text("SLUICE_SYSTEM_NAMESPACE", "sluice-system"),
            topic_template=template,
            receiver_url=env.optional("SLUICE_RECEIVER_URL") or receiver,
            dispatcher_image=env.text("SLUICE_DISPATCHER_IMAGE", "sluice/dispatcher"),
            canary_image=env.text("SLUICE_CANARY_IMAGE", "sluice/canary"),
            canary_enabled=env.boolean("SLUICE_CANARY_ENABLED", default=True),
            canary_manages_topic=env.boolean("SLUICE_CANARY_MANAGE_TOPIC", default=True),
            canary_grace_s=env.number("SLUICE_CANARY_GRACE_SECONDS", 600.0, low=0.0, high=86_400.0),
            canary_port=env.port("SLUICE_CANARY_PORT", 8091) if local else None,
            canary=_canary(environ, bootstrap, env, problems, local=local),
        )
        env.raise_problems()
        return settings


def _canary(
    environ: Mapping[str, str], bootstrap: str, env: EnvReader, problems: list[str], *, local: bool
) -> CanaryConfig:
    """`SLUICE_CANARY_<NAME>` is `<NAME>` of the canary image: all of its settings, and no second list of them."""
    own = {
        name: value
        for key, value in environ.items()
        if key.startswith(CANARY_PREFIX) and (name := key.removeprefix(CANARY_PREFIX)) not in _NOT_FOR_THE_IMAGE
    }
    for name in sorted(_SECRET & own.keys()):
        # It would stand in the Deployment, and in every plan, in the clear.
        env.problem(
            CANARY_PREFIX + name, "is a secret: mount it (SLUICE_KAFKA_SECRET, or KAFKA_SECRET_DIR on one machine)"
        )
        del own[name]
    if local:
        own.setdefault("RECONCILE_INTERVAL_MS", LOCAL_PROBE_INTERVAL_MS)
    if not problems:
        own["KAFKA_BOOTSTRAP_SERVERS"] = bootstrap
    try:
        return CanaryConfig.from_env(own)
    except ConfigError as exc:
        env.problems.extend(CANARY_PREFIX + problem for problem in exc.problems)
        return CanaryConfig()


def _is_template(template: str) -> bool:
    try:
        return template.format(namespace="a", name="b") != template.format(namespace="c", name="d") and (
            "{namespace}" in template and "{name}" in template
        )
    except (KeyError, IndexError, ValueError):
        return False
