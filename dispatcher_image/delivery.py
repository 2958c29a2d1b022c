"""What comes next for one event, given what just happened to it. Pure.

A delivery goes through stages: the subscriber; the reply, when the subscriber answered with an event and there is a
reply URI; the dead letter sink; the dead-letter topic. `next_step` is the only place that decides between them:

    outcome            at the subscriber           at the reply URI                  at the dead letter sink
    2xx                done, or on to the reply    done                              done
    retryable          again, up to `retry` times  the whole delivery again (spec)   again, up to `retry` times
    final, exhausted   dead letter                 dead letter, dest = reply URI     dead-letter topic

Retryable: no response, 404, 408, 409, 429, 5xx. Final: everything else from 300 on, and 1xx. Redirects are final.
Sources: Knative eventing control-plane and data-plane specification; where those before us disagree, docs/delivery.md.
"""

from __future__ import annotations

import base64
import email.utils
import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, timedelta
from typing import Final

from dispatcher_image.offsets import Attempts
from eventing.channels import MAX_BACKOFF, BackoffPolicy, DeliverySpec, KafkaChannel, Subscriber
from eventing.cloudevents import Undecodable
from eventing.cloudevents_http import HttpEvent, event_from_response

RETRYABLE: Final = frozenset({404, 408, 409, 429})
"""And every status from 500 on."""
RETRY_AFTER_STATUSES: Final = frozenset({429, 503})
DEFAULT_BACKOFF: Final = timedelta(seconds=1)
DEFAULT_TIMEOUT: Final = timedelta(minutes=10)
"""Of one attempt when the delivery names none; what Knative's dispatcher waits."""
ERROR_DATA_BYTES: Final = 1024
"""How much of an answer's body goes into `knativeerrordata`."""
MAX_REPLY_BYTES: Final = 1_048_576
"""Longest reply that is sent on; the same as the receiver takes by default."""


class Stage(enum.IntEnum):
    """Where a record is to be sent next."""

    SUBSCRIBER = 0
    REPLY = 1
    SINK = 2
    TOPIC = 3


class Fate(enum.StrEnum):
    """How a record was settled."""

    DELIVERED = "delivered"
    DEAD_LETTERED = "dead_lettered"
    """The dead letter sink took it."""
    DEAD_LETTER_TOPIC = "dead_letter_topic"
    DISCARDED = "discarded"
    """No CloudEvent; it is in the dead-letter topic with the reason."""
    DROPPED = "dropped"
    """Undeliverable, and the channel has switched its dead-letter topic off."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete response. `status` alone decides but for replies."""

    status: int
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes = b""
    truncated: bool = False
    """The body was longer than what is kept."""
    may_be_event: bool = False
    """Cheap first look: it has a `ce-specversion` or a content type `application/cloudevents…`."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No complete response: refused, reset, timed out, or not HTTP."""

    reason: str


Outcome = Answer | NoAnswer


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a record is on its way to a dead letter; becomes the attributes `knativeerror…`."""

    destination: str
    code: int | None = None
    data: bytes = b""
    reason: str = ""
    """For people and logs."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a delivery has come. The first attempt at the subscriber has none yet (`START`)."""

    stage: Stage = Stage.SUBSCRIBER
    attempts: int = 0
    """Made at the subscriber."""
    sink_attempts: int = 0
    failure: Failure | None = None
    reply: HttpEvent | None = None
    discarded: bool = False

    def as_attempts(self) -> Attempts:
        """What survives a restart."""
        code = self.failure.code if self.failure is not None else None
        return Attempts(self.attempts, code or 0, self.sink_attempts if self.stage >= Stage.SINK else -1)

    @classmethod
    def from_attempts(cls, attempts: Attempts, terms: Terms) -> Progress:
        """Take a delivery up where a former assignment left it; a reply is never taken up, its delivery begins anew."""
        exhausted = attempts.sink >= 0 or attempts.made > terms.retries
        stage = Stage.SUBSCRIBER
        if exhausted:
            sink_is_left = terms.sink_url is not None and attempts.sink <= terms.retries
            stage = Stage.SINK if sink_is_left else Stage.TOPIC
        reason = "failed before this dispatcher took over"
        return cls(
            stage=stage,
            attempts=attempts.made,
            sink_attempts=max(0, attempts.sink),
            failure=Failure(terms.destination, attempts.code or None, b"", reason) if exhausted else None,
        )


START: Final = Progress()


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The delivery options of one subscription, ready for use. Durations in seconds."""

    subscriber_url: str
    reply_url: str | None = None
    """None also where the subscriber *is* the reply URI: an event that answers a reply goes nowhere."""
    sink_url: str | None = None
    retries: int = 0
    backoff_policy: BackoffPolicy = BackoffPolicy.EXPONENTIAL
    backoff_delay_s: float = DEFAULT_BACKOFF.total_seconds()
    timeout_s: float = DEFAULT_TIMEOUT.total_seconds()
    retry_after_max_s: float = 0.0
    topic_enabled: bool = True

    @property
    def destination(self) -> str:
        return self.subscriber_url

    def backoff_s(self, retry: int) -> float:
        """The wait before the n-th retry, n from 1: linear n·delay, exponential 2^n·delay, never above ten minutes."""
        # 2^60 is beyond every limit; a larger exponent would only overflow.
        factor = retry if self.backoff_policy is BackoffPolicy.LINEAR else 2 ** min(retry, 60)
        return min(factor * self.backoff_delay_s, MAX_BACKOFF.total_seconds())


def terms_of(channel: KafkaChannel, subscriber: Subscriber) -> Terms:
    """The options that hold for a subscriber, with the defaults filled in."""
    spec: DeliverySpec = channel.effective_delivery(subscriber)
    # Without both policy and delay neither counts: one alone says nothing about the wait.
    policy, delay = BackoffPolicy.EXPONENTIAL, DEFAULT_BACKOFF
    if spec.backoff_policy is not None and spec.backoff_delay is not None:
        policy, delay = spec.backoff_policy, spec.backoff_delay
    subscriber_url = subscriber.subscriber_uri or subscriber.reply_uri
    assert subscriber_url is not None, "parse_channel refuses a subscriber without any URI"
    return Terms(
        subscriber_url=subscriber_url,
        reply_url=subscriber.reply_uri if subscriber.subscriber_uri is not None else None,
        sink_url=spec.dead_letter_sink,
        retries=spec.retry or 0,
        backoff_policy=policy,
        backoff_delay_s=delay.total_seconds(),
        timeout_s=(spec.timeout or DEFAULT_TIMEOUT).total_seconds(),
        retry_after_max_s=(spec.retry_after_max or timedelta()).total_seconds(),
        topic_enabled=channel.dead_letter_topic_enabled,
    )


# --- steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settle:
    """Finished; the offset may be committed past it."""

    fate: Fate


@dataclass(frozen=True, slots=True)
class Send:
    """Send it now, to the stage that `progress` names (TOPIC: write it to the dead-letter topic)."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Wait:
    """Send it after `seconds`; its key waits with it, other keys go on."""

    progress: Progress
    seconds: float


Step = Settle | Send | Wait


def next_step(terms: Terms, progress: Progress, outcome: Outcome, *, wall_clock_s: float) -> Step:
    """Decide what follows an attempt at `progress.stage`.

    Args:
        terms: The subscription's options *now*; a change applies to deliveries under way from their next step on.
        progress: As it was when the attempt began.
        outcome: What came of it.
        wall_clock_s: Seconds since the epoch, for a `Retry-After` that is a date.
    """
    if progress.stage is Stage.SUBSCRIBER:
        return _after_subscriber(terms, progress, outcome, wall_clock_s)
    if progress.stage is Stage.REPLY:
        return _after_reply(terms, progress, outcome, wall_clock_s)
    assert progress.stage is Stage.SINK, "the dead-letter topic gives no answer"
    return _after_sink(terms, progress, outcome, wall_clock_s)


def _after_subscriber(terms: Terms, progress: Progress, outcome: Outcome, wall_clock_s: float) -> Step:
    made = replace(progress, attempts=progress.attempts + 1)
    if isinstance(outcome, Answer) and 200 <= outcome.status < 300:
        if outcome.may_be_event and outcome.status != 202 and terms.reply_url is not None:
            if outcome.truncated:
                reason = f"the reply is longer than {MAX_REPLY_BYTES} bytes"
                return _dead_letter(terms, made, Failure(terms.reply_url, outcome.status, b"", reason))
            reply = event_from_response(outcome.headers, outcome.body)
            if reply is not None and not isinstance(reply, Undecodable):
                return Send(replace(made, stage=Stage.REPLY, reply=reply))
        return Settle(Fate.DELIVERED)
    failure = failure_of(terms.subscriber_url, outcome)
    if _is_retryable(outcome) and made.attempts <= terms.retries:
        again = replace(made, failure=failure)
        return Wait(again, _wait_s(terms, made.attempts, outcome, wall_clock_s))
    return _dead_letter(terms, made, failure)


def _after_reply(terms: Terms, progress: Progress, outcome: Outcome, wall_clock_s: float) -> Step:
    if isinstance(outcome, Answer) and 200 <= outcome.status < 300:
        return Settle(Fate.DELIVERED)
    # `attempts` counts the one at the subscriber that brought this reply, so the number of rounds stays 1 + retry.
    failure = failure_of(terms.reply_url or terms.subscriber_url, outcome)
    if _is_retryable(outcome) and progress.attempts <= terms.retries:
        again = replace(progress, stage=Stage.SUBSCRIBER, reply=None, failure=failure)
        return Wait(again, _wait_s(terms, progress.attempts, outcome, wall_clock_s))
    return _dead_letter(terms, progress, failure)


def _after_sink(terms: Terms, progress: Progress, outcome: Outcome, wall_clock_s: float) -> Step:
    if isinstance(outcome, Answer) and 200 <= outcome.status < 300:
        return Settle(Fate.DEAD_LETTERED)
    made = replace(progress, sink_attempts=progress.sink_attempts + 1)
    if terms.sink_url is not None and _is_retryable(outcome) and made.sink_attempts <= terms.retries:
        return Wait(made, _wait_s(terms, made.sink_attempts, outcome, wall_clock_s))
    return _to_topic(terms, made)


def _dead_letter(terms: Terms, progress: Progress, failure: Failure) -> Step:
    lost = replace(progress, failure=failure, reply=None, sink_attempts=0)
    if terms.sink_url is not None:
        return Send(replace(lost, stage=Stage.SINK))
    return _to_topic(terms, lost)


def _to_topic(terms: Terms, progress: Progress) -> Step:
    if terms.topic_enabled:
        return Send(replace(progress, stage=Stage.TOPIC))
    return Settle(Fate.DROPPED)


def discard(terms: Terms, reason: str) -> Step:
    """What becomes of a record that is no CloudEvent: no sink could take it, the dead-letter topic takes anything."""
    failure = Failure(terms.destination, None, reason.encode(), reason)
    if not terms.topic_enabled:
        return Settle(Fate.DISCARDED)
    return Send(Progress(stage=Stage.TOPIC, failure=failure, discarded=True))


def fate_in_topic(progress: Progress) -> Fate:
    """How a record that reached the dead-letter topic is counted."""
    return Fate.DISCARDED if progress.discarded else Fate.DEAD_LETTER_TOPIC


def failure_of(destination: str, outcome: Outcome) -> Failure:
    """What an attempt that failed says about itself."""
    if isinstance(outcome, NoAnswer):
        return Failure(destination, None, b"", outcome.reason)
    return Failure(destination, outcome.status, outcome.body[:ERROR_DATA_BYTES], f"status {outcome.status}")


def error_attributes(failure: Failure) -> dict[str, str]:
    """The extension attributes of a dead letter.

    `knativeerrorcode` only where there was a response, `knativeerrordata` only where it had a body.
    """
    attributes = {"knativeerrordest": failure.destination}
    if failure.code is not None:
        attributes["knativeerrorcode"] = str(failure.code)
    if failure.data:
        attributes["knativeerrordata"] = base64.b64encode(failure.data[:ERROR_DATA_BYTES]).decode()
    return attributes


# --- waits -----------------------------------------------------------------------------------------------------------


def _is_retryable(outcome: Outcome) -> bool:
    return isinstance(outcome, NoAnswer) or outcome.status >= 500 or outcome.status in RETRYABLE


def _wait_s(terms: Terms, retry: int, outcome: Outcome, wall_clock_s: float) -> float:
    wait = terms.backoff_s(retry)
    if isinstance(outcome, Answer) and outcome.status in RETRY_AFTER_STATUSES and terms.retry_after_max_s > 0:
        asked = retry_after_s(outcome.headers, wall_clock_s)
        if asked is not None:
            wait = max(wait, min(asked, terms.retry_after_max_s))
    return min(wait, MAX_BACKOFF.total_seconds())


def retry_after_s(headers: Sequence[tuple[bytes, bytes]], wall_clock_s: float) -> float | None:
    """The seconds that a `Retry-After` asks for, as a number or an HTTP date (RFC 9110 §10.2.3); None: not usable."""
    for name, value in headers:
        if name.lower() != b"retry-after":
            continue
        text = value.decode("latin-1").strip()
        if re.fullmatch(r"\d{1,9}", text):
            return float(text)
        try:
            date = email.utils.parsedate_to_datetime(text)
        except ValueError:
            return None
        date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
        return max(0.0, date.timestamp() - wall_clock_s)
    return None
