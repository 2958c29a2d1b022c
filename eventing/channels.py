"""KafkaChannel objects as every program reads them, and the names that follow from them.

A `KafkaChannel` (`messaging.knative.dev/v1beta1`) declares a topic and the subscribers of its events. Orchestration
plans from it, the receiver maps requests to its topic, the dispatcher delivers to its subscribers; all three must
derive the same topic, group and Service from the same object.

`parse_channel` is the only way in: it reads the object once, reports *all* problems with their field paths, and the
rest of the code sees typed values only. Fields: Knative's CRD, see `deploy/`. Names: docs/architecture.md.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

from eventing.errors import FieldProblem, InvalidResource

API_VERSION = "messaging.knative.dev/v1beta1"
KIND = "KafkaChannel"

LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_COMPONENT = "app.kubernetes.io/component"
LABEL_CHANNEL = "sluice.dev/channel"
LABEL_CHANNEL_NAMESPACE = "sluice.dev/channel-namespace"
MANAGED_BY = "sluice"

ANNOTATION_DELIVERY_ORDER = "kafka.eventing.knative.dev/delivery.order"
ANNOTATION_MIN_SCALE = "autoscaling.eventing.knative.dev/min-scale"
ANNOTATION_MAX_SCALE = "autoscaling.eventing.knative.dev/max-scale"
ANNOTATION_LAG_THRESHOLD = "autoscaling.eventing.knative.dev/lag-threshold"
ANNOTATION_COOLDOWN = "autoscaling.eventing.knative.dev/cooldown-period"
ANNOTATION_INITIAL_OFFSET = "sluice.dev/initial-offset"
ANNOTATION_DELETION_POLICY = "sluice.dev/deletion-policy"
ANNOTATION_DEAD_LETTER_TOPIC = "sluice.dev/dead-letter-topic"
STATUS_ANNOTATION_TOPIC = "default.topic"
"""Key in `status.annotations` under which the topic's name is kept; read back from there ever after."""

DEFAULT_TOPIC_TEMPLATE = "{namespace}.{name}"
DEFAULT_RETENTION = timedelta(hours=168)
DEFAULT_LAG_THRESHOLD = 100
DEFAULT_COOLDOWN = timedelta(seconds=30)
MAX_TOPIC_NAME = 249
"""Kafka's limit, which comes from the folder name `<topic>-<partition>` of at most 255 characters."""
DEAD_LETTER_SUFFIX = ".dead-letter"
MAX_PARTITIONS = 10_000
MAX_REPLICATION_FACTOR = 32_767
"""replicationFactor must fit int16 in Kafka's protocol."""
MAX_RETRY = 1_000
MAX_BACKOFF = timedelta(minutes=10)
"""No wait between two attempts is longer (docs/delivery.md)."""

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_UID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,126}[A-Za-z0-9])?")
_SERVICE_SUFFIX = "-kn-channel"
_SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_DURATION = re.compile(
    r"P(?:(?P<days>\d+(?:[.,]\d+)?)D)?"
    r"(?:T(?:(?P<hours>\d+(?:[.,]\d+)?)H)?(?:(?P<minutes>\d+(?:[.,]\d+)?)M)?(?:(?P<seconds>\d+(?:[.,]\d+)?)S)?)?"
)


class DeliveryOrder(enum.StrEnum):
    """`key`: per record key, null keys unordered; `ordered`: per partition; `unordered`: none."""

    KEY = "key"
    ORDERED = "ordered"
    UNORDERED = "unordered"


class BackoffPolicy(enum.StrEnum):
    """How the wait grows: linear n·delay, exponential 2^n·delay, n from 1."""

    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class InitialOffset(enum.StrEnum):
    """Where a new subscription starts."""

    LATEST = "latest"
    EARLIEST = "earliest"


class DeletionPolicy(enum.StrEnum):
    """What becomes of the topic when its channel is deleted."""

    DELETE = "delete"
    RETAIN = "retain"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySpec:
    """How a delivery is tried, and where an event goes that could not be delivered. None = not set."""

    retry: int | None = None
    """Retries after the first attempt."""
    backoff_policy: BackoffPolicy | None = None
    backoff_delay: timedelta | None = None
    timeout: timedelta | None = None
    """Per attempt."""
    retry_after_max: timedelta | None = None
    """Longest `Retry-After` that is honoured; None or zero: the header is ignored."""
    dead_letter_sink: str | None = None
    """URL of the dead letter sink."""
    dead_letter_ca_certs: str | None = None
    """PEM bundle to trust for the dead letter sink, in addition to the system's."""

    @property
    def is_empty(self) -> bool:
        """True when no option at all is set."""
        return self == DeliverySpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """One entry of `spec.subscribers`: a Subscription bound to this channel."""

    uid: str
    generation: int
    subscriber_uri: str | None
    reply_uri: str | None = None
    delivery: DeliverySpec | None = None
    name: str | None = None
    subscriber_ca_certs: str | None = None
    reply_ca_certs: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaChannel:
    """A valid KafkaChannel. Raw parts that only pass through (status, finalizers) are kept as they are."""

    namespace: str
    name: str
    generation: int
    num_partitions: int
    replication_factor: int
    retention: timedelta
    subscribers: tuple[Subscriber, ...]
    delivery: DeliverySpec | None
    order: DeliveryOrder
    min_scale: int
    max_scale: int | None
    """None: as many as there are partitions."""
    lag_threshold: int
    """Records per replica."""
    cooldown: timedelta
    initial_offset: InitialOffset
    deletion_policy: DeletionPolicy
    dead_letter_topic_enabled: bool
    persisted_topic: str | None
    """The topic's name as kept in the status, None before the first reconciliation."""
    deletion_timestamp: str | None
    finalizers: tuple[str, ...]
    uid: str | None
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_being_deleted(self) -> bool:
        """True once somebody asked for its deletion."""
        return self.deletion_timestamp is not None

    def effective_delivery(self, subscriber: Subscriber) -> DeliverySpec:
        """The options that hold for one subscriber.

        Any option on the subscriber switches the channel's off as a whole
        (Knative eventing control-plane specification, "delivery").
        """
        if subscriber.delivery is not None and not subscriber.delivery.is_empty:
            return subscriber.delivery
        return self.delivery or DeliverySpec()


def topic_name(channel: KafkaChannel, template: str = DEFAULT_TOPIC_TEMPLATE) -> str:
    """The channel's topic: the name that was kept in its status, else the template filled in.

    The kept name wins for ever: executing the template again after it was changed would orphan the topic.
    """
    return channel.persisted_topic or template.format(namespace=channel.namespace, name=channel.name)


def dead_letter_topic(topic: str) -> str:
    """Where records of `topic` go that no sink took."""
    return topic + DEAD_LETTER_SUFFIX


def group_prefix(namespace: str, name: str) -> str:
    """What the consumer groups of one channel start with; the rest, the subscription's uid, holds no dot."""
    return f"kafka.{namespace}.{name}."


def group_id(channel: KafkaChannel, subscriber_uid: str) -> str:
    """The consumer group of one subscription."""
    return group_prefix(channel.namespace, channel.name) + subscriber_uid


def service_name(channel_name: str) -> str:
    """The Service by which producers address the channel: `<name>-kn-channel`.

    A Service's name is a DNS label of at most 63 characters that starts with a letter, a channel's may be longer and
    hold dots. Such a one is cut and made unique by a hash, so a program that maps a host to its channel must compare
    with this function's result instead of taking the suffix off.
    """
    plain = channel_name + _SERVICE_SUFFIX
    if _SERVICE_NAME.fullmatch(plain):
        return plain
    digest = hashlib.sha256(channel_name.encode()).hexdigest()[:8]
    letters = re.sub(r"[^a-z0-9]+", "-", channel_name.lower()).strip("-")
    readable = (letters if letters[:1].isalpha() else f"c-{letters}")[: 63 - len(_SERVICE_SUFFIX) - 9].rstrip("-")
    return f"{readable}-{digest}{_SERVICE_SUFFIX}"


def channel_url(namespace: str, name: str) -> str:
    """`status.address.url`."""
    return f"http://{service_name(name)}.{namespace}.svc.cluster.local"


def parse_duration(text: str) -> timedelta:
    """Read an ISO 8601 duration of days, hours, minutes and seconds (`PT30S`, `P7D`, `PT0.5S`).

    Years and months are refused: their length depends on the calendar.

    Raises:
        ValueError: with what is wrong and an example.
    """
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None or text in {"P", "PT"} or text.endswith("T"):
        msg = f"{text!r} is not an ISO 8601 duration such as PT30S or P7D"
        raise ValueError(msg)
    parts = {unit: float(value.replace(",", ".")) for unit, value in match.groupdict().items() if value is not None}
    try:
        return timedelta(**parts)
    except OverflowError as exc:
        msg = f"{text!r} is too long a duration"
        raise ValueError(msg) from exc


def format_duration(value: timedelta) -> str:
    """The ISO 8601 form of a duration, in seconds: `PT30S`, `PT0.25S`."""
    seconds = value.total_seconds()
    return f"PT{int(seconds)}S" if seconds == int(seconds) else f"PT{seconds:.6f}".rstrip("0") + "S"


_Choice = TypeVar("_Choice", bound=enum.StrEnum)


class _Reader:
    """Collects problems while it reads; every method returns something usable so that reading can go on."""

    def __init__(self) -> None:
        self.problems: list[FieldProblem] = []

    def problem(self, path: str, reason: str) -> None:
        self.problems.append(FieldProblem(path, reason))

    def mapping(self, value: object, path: str) -> Mapping[str, Any]:
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return value
        self.problem(path, f"must be a mapping, not {_kind_of(value)}")
        return {}

    def text(self, value: object, path: str) -> str | None:
        if value is None:
            return None
        if isinstance(value, str):
            return value
        self.problem(path, f"must be a string, not {_kind_of(value)}")
        return None

    def integer(self, value: object, path: str, *, default: int, low: int, high: int) -> int:
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            self.problem(path, f"must be a whole number from {low} to {high}, not {value!r}")
            return default
        if not low <= value <= high:
            self.problem(path, f"must be from {low} to {high}, not {value}")
            return default
        return value

    def duration(self, value: object, path: str, *, positive: bool = True) -> timedelta | None:
        if value is None:
            return None
        try:
            duration = parse_duration(value)  # type: ignore[arg-type]  # anything else is a ValueError too
        except ValueError as exc:
            self.problem(path, str(exc))
            return None
        if positive and duration <= timedelta(0):
            self.problem(path, f"must be longer than zero, not {value!r}")
            return None
        return duration

    def url(self, value: object, path: str) -> str | None:
        text = self.text(value, path)
        if text is None:
            return None
        try:
            parts = urlsplit(text)
            valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid or any(c.isspace() or ord(c) < 0x21 for c in text):
            self.problem(path, f"must be an http or https URL, not {text!r}")
            return None
        return text

    def choice(self, value: object, path: str, kind: type[_Choice], default: _Choice) -> _Choice:
        if value is None:
            return default
        try:
            return kind(value)  # type: ignore[arg-type]  # anything else is a ValueError too
        except ValueError:
            self.problem(path, f"must be one of {', '.join(kind)}, not {value!r}")
            return default


def _kind_of(value: object) -> str:
    names: dict[type, str] = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "a mapping" if isinstance(value, Mapping) else type(value).__name__)


def resource_key(obj: Mapping[str, Any]) -> str:
    """`namespace/name` of any object, as far as it can be read, for messages about objects that do not parse."""
    metadata = obj.get("metadata") if isinstance(obj, Mapping) else None
    metadata = metadata if isinstance(metadata, Mapping) else {}
    return f"{metadata.get('namespace') or 'default'}/{metadata.get('name') or '?'}"


def parse_channel(obj: Mapping[str, Any]) -> KafkaChannel:
    """Read one KafkaChannel object.

    Unknown fields are left to the registry (a cluster's API server prunes them; the folder registry reports them),
    because an object that a newer version wrote must not stop an older program.

    Raises:
        InvalidResource: with every problem found, each with its field path.
    """
    reader = _Reader()
    if not isinstance(obj, Mapping):
        raise InvalidResource("default/?", [FieldProblem("", f"must be a mapping, not {_kind_of(obj)}")])
    if obj.get("kind") != KIND:
        reader.problem("kind", f"must be {KIND}, not {obj.get('kind')!r}")
    api_version = obj.get("apiVersion")
    if api_version != API_VERSION:
        reader.problem("apiVersion", f"must be {API_VERSION}, not {api_version!r}")

    metadata = reader.mapping(obj.get("metadata"), "metadata")
    namespace = reader.text(metadata.get("namespace"), "metadata.namespace") or "default"
    name = reader.text(metadata.get("name"), "metadata.name") or ""
    if not _DNS_LABEL.fullmatch(namespace):
        reader.problem("metadata.namespace", f"must be a DNS label of at most 63 characters, not {namespace!r}")
    if not _DNS_SUBDOMAIN.fullmatch(name) or len(name) > 253:
        reader.problem("metadata.name", f"must be a DNS name of lower-case letters, digits, '-' and '.', not {name!r}")

    spec = reader.mapping(obj.get("spec"), "spec")
    # A status is ours, not the user's: a damaged one is written anew and must not make the object invalid.
    status = obj.get("status")
    status = status if isinstance(status, Mapping) else {}
    persisted = status.get("annotations")
    persisted_topic = persisted.get(STATUS_ANNOTATION_TOPIC) if isinstance(persisted, Mapping) else None

    channel = KafkaChannel(
        namespace=namespace,
        name=name,
        generation=reader.integer(metadata.get("generation"), "metadata.generation", default=1, low=0, high=2**63 - 1),
        num_partitions=reader.integer(
            spec.get("numPartitions"), "spec.numPartitions", default=1, low=1, high=MAX_PARTITIONS
        ),
        replication_factor=reader.integer(
            spec.get("replicationFactor"), "spec.replicationFactor", default=1, low=1, high=MAX_REPLICATION_FACTOR
        ),
        retention=reader.duration(spec.get("retentionDuration"), "spec.retentionDuration") or DEFAULT_RETENTION,
        subscribers=_subscribers(reader, spec.get("subscribers")),
        delivery=_delivery(reader, spec.get("delivery"), "spec.delivery"),
        **_annotations(reader, metadata),
        persisted_topic=persisted_topic if isinstance(persisted_topic, str) and persisted_topic else None,
        deletion_timestamp=reader.text(metadata.get("deletionTimestamp"), "metadata.deletionTimestamp"),
        finalizers=tuple(f for f in metadata.get("finalizers") or () if isinstance(f, str)),
        uid=reader.text(metadata.get("uid"), "metadata.uid"),
        status=status,
    )
    if len(dead_letter_topic(topic_name(channel))) > MAX_TOPIC_NAME:
        reader.problem(
            "metadata.name", f"the topic names that follow from it exceed Kafka's {MAX_TOPIC_NAME} characters"
        )
    if reader.problems:
        raise InvalidResource(resource_key(obj), reader.problems)
    return channel


def _subscribers(reader: _Reader, value: object) -> tuple[Subscriber, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        reader.problem("spec.subscribers", f"must be a list, not {_kind_of(value)}")
        return ()
    subscribers: list[Subscriber] = []
    seen: dict[str, int] = {}
    for index, item in enumerate(value):
        path = f"spec.subscribers[{index}]"
        entry = reader.mapping(item, path)
        uid = reader.text(entry.get("uid"), f"{path}.uid") or ""
        if not _UID.fullmatch(uid):
            reader.problem(f"{path}.uid", f"must be letters, digits, '-' or '_' (at most 128), not {uid!r}")
        elif uid in seen:
            reader.problem(f"{path}.uid", f"{uid!r} is already used by spec.subscribers[{seen[uid]}]")
        seen.setdefault(uid, index)
        subscriber = Subscriber(
            uid=uid,
            generation=reader.integer(entry.get("generation"), f"{path}.generation", default=0, low=0, high=2**63 - 1),
            subscriber_uri=reader.url(entry.get("subscriberUri"), f"{path}.subscriberUri"),
            reply_uri=reader.url(entry.get("replyUri"), f"{path}.replyUri"),
            delivery=_delivery(reader, entry.get("delivery"), f"{path}.delivery"),
            name=reader.text(entry.get("name"), f"{path}.name"),
            subscriber_ca_certs=reader.text(entry.get("subscriberCACerts"), f"{path}.subscriberCACerts"),
            reply_ca_certs=reader.text(entry.get("replyCACerts"), f"{path}.replyCACerts"),
        )
        if entry.get("subscriberUri") is None and entry.get("replyUri") is None:
            reader.problem(f"{path}.subscriberUri", "is missing: every subscriber needs a subscriberUri or a replyUri")
        subscribers.append(subscriber)
    return tuple(subscribers)


def _delivery(reader: _Reader, value: object, path: str) -> DeliverySpec | None:
    if value is None:
        return None
    entry = reader.mapping(value, path)
    sink = reader.mapping(entry.get("deadLetterSink"), f"{path}.deadLetterSink")
    sink_url = reader.url(sink.get("uri"), f"{path}.deadLetterSink.uri")
    if sink and sink_url is None and not any(p.path.startswith(f"{path}.deadLetterSink") for p in reader.problems):
        reader.problem(f"{path}.deadLetterSink", "needs a resolved uri (an http or https URL)")
    retry = entry.get("retry")
    policy = entry.get("backoffPolicy")
    return DeliverySpec(
        retry=None if retry is None else reader.integer(retry, f"{path}.retry", default=0, low=0, high=MAX_RETRY),
        backoff_policy=None
        if policy is None
        else reader.choice(policy, f"{path}.backoffPolicy", BackoffPolicy, BackoffPolicy.EXPONENTIAL),
        backoff_delay=reader.duration(entry.get("backoffDelay"), f"{path}.backoffDelay", positive=False),
        timeout=reader.duration(entry.get("timeout"), f"{path}.timeout"),
        retry_after_max=reader.duration(entry.get("retryAfterMax"), f"{path}.retryAfterMax", positive=False),
        dead_letter_sink=sink_url,
        dead_letter_ca_certs=reader.text(sink.get("CACerts"), f"{path}.deadLetterSink.CACerts"),
    )


def _annotations(reader: _Reader, metadata: Mapping[str, Any]) -> dict[str, Any]:
    annotations = reader.mapping(metadata.get("annotations"), "metadata.annotations")

    def path(key: str) -> str:
        return f"metadata.annotations[{key}]"

    def integer(key: str, *, low: int) -> int | None:
        text = reader.text(annotations.get(key), path(key))
        if text is None:
            return None
        if not re.fullmatch(r"\d{1,9}", text) or int(text) < low:
            reader.problem(path(key), f"must be a whole number of at least {low}, not {text!r}")
            return None
        return int(text)

    def choice(key: str, kind: type[_Choice], default: _Choice) -> _Choice:
        return reader.choice(annotations.get(key), path(key), kind, default)

    min_scale = integer(ANNOTATION_MIN_SCALE, low=0)
    max_scale = integer(ANNOTATION_MAX_SCALE, low=1)
    threshold = integer(ANNOTATION_LAG_THRESHOLD, low=1)
    cooldown = integer(ANNOTATION_COOLDOWN, low=0)
    switch = annotations.get(ANNOTATION_DEAD_LETTER_TOPIC)
    if switch not in {None, "enabled", "disabled"}:
        reader.problem(path(ANNOTATION_DEAD_LETTER_TOPIC), f"must be enabled or disabled, not {switch!r}")
    return {
        "order": choice(ANNOTATION_DELIVERY_ORDER, DeliveryOrder, DeliveryOrder.KEY),
        "min_scale": 1 if min_scale is None else min_scale,
        "max_scale": max_scale,
        "lag_threshold": DEFAULT_LAG_THRESHOLD if threshold is None else threshold,
        "cooldown": DEFAULT_COOLDOWN if cooldown is None else timedelta(seconds=cooldown),
        "initial_offset": choice(ANNOTATION_INITIAL_OFFSET, InitialOffset, InitialOffset.LATEST),
        "deletion_policy": choice(ANNOTATION_DELETION_POLICY, DeletionPolicy, DeletionPolicy.DELETE),
        "dead_letter_topic_enabled": switch != "disabled",
    }
