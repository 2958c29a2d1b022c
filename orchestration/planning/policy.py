"""What is wanted apart from the channels themselves: names, images, and how the canary is kept.

The default policy is what `sluice plan --snapshot FILE` uses: it needs no configuration, keeps the canary's topic and
deploys no canary, because a canary without the address of a cluster is of no use. The live policy, made from the
configuration of the code location, adds `canary.deployment`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from eventing.channels import DEFAULT_TOPIC_TEMPLATE
from orchestration.planning import documents
from orchestration.planning.documents import DocumentError

DEFAULT_CANARY_TOPIC = "__strimzi_canary"
DEFAULT_GRACE = timedelta(minutes=10)
DEFAULT_SYSTEM_NAMESPACE = "sluice-system"


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryDeployment:
    """How the canary image is run."""

    image: str
    env: Mapping[str, str] = field(default_factory=dict)
    """`CanaryConfig.to_env()`; the planner sets `TOPIC` and `KAFKA_BOOTSTRAP_SERVERS` from the policy over it."""
    host_port: int | None = None
    """Fixed port of `/metrics` and `/status` on this machine; None: only the container's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryPolicy:
    """How one Kafka cluster is proven from outside."""

    enabled: bool = True
    topic: str = DEFAULT_CANARY_TOPIC
    configs: Mapping[str, str] = field(default_factory=dict)
    """strimzi-canary's TOPIC_CONFIG: laid over our defaults."""
    manage_topic: bool = True
    """False: a managed cluster, where we may not create or change topics; what is there is probed."""
    grace: timedelta = DEFAULT_GRACE
    """How long a broker may be away before it counts as gone. Longer than a rolling restart keeps one broker down."""
    deployment: CanaryDeployment | None = None
    """None: no canary is deployed, and none that is there is touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherPolicy:
    """What all dispatchers have in common."""

    image: str = "sluice/dispatcher"
    max_in_flight: int = 256
    """Records per partition and subscription that are read and not settled."""
    drain_timeout_s: float = 10.0
    event_bytes: int = 10_240
    """Size of an event for which memory is planned (sizing.py); 10 kB is what Knative's own sizing assumes."""
    extra_env: Mapping[str, str] = field(default_factory=dict)
    """For what is not known here, such as `OTEL_*`; never lowers what the planner sets itself."""
    service_account: str | None = "sluice-dispatcher"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything a plan depends on besides the snapshot and the time."""

    bootstrap_servers: str = "localhost:9092"
    channel_source: str = "kubernetes"
    """What the programs read channels from: `kubernetes`, or a folder's path."""
    system_namespace: str = DEFAULT_SYSTEM_NAMESPACE
    """Where dispatchers and the canary run."""
    topic_template: str = DEFAULT_TOPIC_TEMPLATE
    kafka_secret: str | None = None
    """Name of a Secret in the system namespace, mounted into each program."""
    kafka_secret_dir: str | None = None
    """Folder with the Secret's keys, where they are on disk already (one machine); the mount point otherwise."""
    receiver_service: str = "sluice-receiver"
    """Service of the receiver in the system namespace, to which each channel's Service points."""
    receiver_url: str | None = None
    """Base to which `/<namespace>/<name>` is appended for `status.address.url`; None: the channel's Service."""
    dispatcher: DispatcherPolicy = field(default_factory=DispatcherPolicy)
    canary: CanaryPolicy = field(default_factory=CanaryPolicy)

    def overridden_by(self, override: PolicyOverride | None) -> Policy:
        """This policy with what a snapshot document says otherwise."""
        if override is None:
            return self
        canary = self.canary
        if override.topic is not None:
            canary = replace(canary, topic=override.topic)
        if override.configs is not None:
            canary = replace(canary, configs=override.configs)
        if override.manage_topic is not None:
            canary = replace(canary, manage_topic=override.manage_topic)
        if override.grace is not None:
            canary = replace(canary, grace=override.grace)
        return replace(self, canary=canary)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOverride:
    """`"policy": {"canary": {…}}` of a snapshot document; None = as in the policy."""

    topic: str | None = None
    configs: Mapping[str, str] | None = None
    manage_topic: bool | None = None
    grace: timedelta | None = None

    @classmethod
    def from_document(cls, document: object) -> PolicyOverride:
        """Read it. Raises `DocumentError` with the place."""
        top = documents.mapping(document, "policy")
        _only(top, {"canary"}, "policy")
        canary = documents.optional_mapping(top.get("canary"), "policy.canary") or {}
        _only(canary, {"topic", "configs", "manage_topic", "grace_seconds"}, "policy.canary")
        topic = documents.optional_text(canary.get("topic"), "policy.canary.topic")
        if topic is not None and not is_topic_name(topic):
            raise DocumentError("policy.canary.topic", f"{topic!r} is no name of a Kafka topic")
        configs = documents.optional_mapping(canary.get("configs"), "policy.canary.configs")
        grace = canary.get("grace_seconds")
        if grace is not None and (
            isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace <= 1e9
        ):
            raise DocumentError("policy.canary.grace_seconds", f"must be a number of seconds from 0, not {grace!r}")
        return cls(
            topic=topic,
            configs=None
            if configs is None
            else {
                key: _config(value, f"policy.canary.configs[{key!r}]")
                for key, value in configs.items()
                if value is not None
            },
            manage_topic=documents.optional_boolean(canary.get("manage_topic"), "policy.canary.manage_topic"),
            grace=None if grace is None else timedelta(seconds=grace),
        )

    def to_document(self) -> dict[str, Any]:
        """The document that `from_document` reads back."""
        canary = {
            "topic": self.topic,
            "configs": None if self.configs is None else dict(sorted(self.configs.items())),
            "manage_topic": self.manage_topic,
            "grace_seconds": None if self.grace is None else self.grace.total_seconds(),
        }
        return {"canary": {key: value for key, value in canary.items() if value is not None}}


def is_topic_name(name: str) -> bool:
    """Kafka's rule: 1 to 249 of letters, digits, '.', '_' and '-', and not '.' or '..'."""
    return (
        0 < len(name) <= 249
        and name not in {".", ".."}
        and all(c.isascii() and (c.isalnum() or c in "._-") for c in name)
    )


def _only(entry: Mapping[str, Any], known: set[str], path: str) -> None:
    # A misspelt setting that is ignored would answer another question than the one asked.
    for key in sorted(set(entry) - known):
        raise DocumentError(f"{path}.{key}", f"is not known here; known are {', '.join(sorted(known))}")


def _config(value: object, path: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else documents.text(value, path)
