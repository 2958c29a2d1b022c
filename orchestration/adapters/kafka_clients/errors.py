"""What each library calls a failure, in our words: whose fault, and would a retry help?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from confluent_kafka import KafkaError, KafkaException

from eventing.errors import Conflict, Forbidden, NotFound, Refused, SluiceError, Unavailable

SYSTEM = "Kafka"

_FORBIDDEN = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,  # noqa: SLF001  # librdkafka's name for it
    }
)
_NOT_FOUND = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.GROUP_ID_NOT_FOUND,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
_CONFLICT = frozenset(
    {
        KafkaError.TOPIC_ALREADY_EXISTS,
        KafkaError.NON_EMPTY_GROUP,
        KafkaError.UNKNOWN_MEMBER_ID,  # an offset commit from outside to a group that has members
        KafkaError.REASSIGNMENT_IN_PROGRESS,
        KafkaError.REBALANCE_IN_PROGRESS,
    }
)
_TRANSIENT = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError._WAIT_COORD,  # noqa: SLF001
        KafkaError._NOENT,  # noqa: SLF001  # "no leaders found": of a topic that was created a moment ago
        KafkaError._DESTROY,  # noqa: SLF001
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
        KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        KafkaError.NOT_ENOUGH_REPLICAS,
    }
)


def translated(error: KafkaError, doing: str) -> SluiceError:
    """`error` of confluent-kafka, while `doing` something, as one of ours."""
    code, reason = error.code(), f"{doing}: {error.str()} ({error.name()})"
    if code in _FORBIDDEN:
        return Forbidden(SYSTEM, reason)
    if code in _NOT_FOUND:
        return NotFound(SYSTEM, reason)
    if code in _CONFLICT:
        return Conflict(SYSTEM, reason)
    if code in _TRANSIENT or error.retriable():
        return Unavailable(SYSTEM, reason)
    return Refused(SYSTEM, reason)


def error_of(exc: KafkaException) -> KafkaError:
    """The error that an exception of confluent-kafka carries."""
    error: KafkaError = exc.args[0]
    return error


@contextlib.contextmanager
def confluent_errors(doing: str) -> Iterator[None]:
    """Let no exception of confluent-kafka through, nor that of a future that did not come in time."""
    try:
        yield
    except KafkaException as exc:
        raise translated(error_of(exc), doing) from exc
    except TimeoutError as exc:
        raise Unavailable(SYSTEM, f"{doing}: no answer in time") from exc
    except (ValueError, TypeError) as exc:  # refused by the library before it was sent
        raise Refused(SYSTEM, f"{doing}: {exc}") from exc


_PYTHON_FORBIDDEN = ("AuthorizationFailed", "AuthenticationFailed", "SaslAuthentication")
_PYTHON_CONFLICT = ("ReassignmentInProgress", "UnknownMemberId", "NonEmptyGroup", "RebalanceInProgress")
_PYTHON_NOT_FOUND = ("UnknownTopicOrPartition", "GroupIdNotFound")


def python_error(name: str, doing: str, detail: str = "", *, retriable: bool) -> SluiceError:
    """An error class of kafka-python, by its name: its hierarchy has no families to catch."""
    reason = f"{doing}: {name}" + (f" ({detail})" if detail else "")
    if name.startswith(_PYTHON_FORBIDDEN):
        return Forbidden(SYSTEM, reason)
    if name.startswith(_PYTHON_CONFLICT):
        return Conflict(SYSTEM, reason)
    if name.startswith(_PYTHON_NOT_FOUND):
        return NotFound(SYSTEM, reason)
    return Unavailable(SYSTEM, reason) if retriable else Refused(SYSTEM, reason)
