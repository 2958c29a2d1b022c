"""What follows an attempt: tables of outcomes, and the sums that must come out whatever happens."""

import base64
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher_image.delivery import (
    START,
    Answer,
    Failure,
    Fate,
    NoAnswer,
    Progress,
    Send,
    Settle,
    Stage,
    Terms,
    Wait,
    discard,
    error_attributes,
    next_step,
    retry_after_s,
    terms_of,
)
from dispatcher_image.offsets import Attempts
from eventing.channels import BackoffPolicy, parse_channel

NOW = 1_700_000_000.0
EVENT = ((b"ce-specversion", b"1.0"), (b"ce-id", b"r"), (b"ce-source", b"/s"), (b"ce-type", b"t"))
TERMS = Terms(subscriber_url="http://s/", retries=2, backoff_policy=BackoffPolicy.LINEAR, backoff_delay_s=1.0)
WITH_SINK = Terms(
    subscriber_url="http://s/",
    sink_url="http://d/",
    reply_url="http://r/",
    retries=1,
    backoff_policy=BackoffPolicy.LINEAR,
    backoff_delay_s=1.0,
)


def step(outcome, progress=START, terms=TERMS):
    return next_step(terms, progress, outcome, wall_clock_s=NOW)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_is_a_delivery(status):
    assert step(Answer(status)) == Settle(Fate.DELIVERED)


@pytest.mark.parametrize(
    "outcome",
    [NoAnswer("refused"), *(Answer(status) for status in (404, 408, 409, 429, 500, 502, 503, 504, 599))],
    ids=str,
)
def test_retryable_outcomes_wait_for_their_retry(outcome):
    result = step(outcome)
    assert isinstance(result, Wait)
    assert result.seconds == 1.0
    assert (result.progress.stage, result.progress.attempts) == (Stage.SUBSCRIBER, 1)


@pytest.mark.parametrize(
    "status", [100, 101, 199, 300, 301, 302, 304, 307, 308, 400, 401, 403, 405, 410, 413, 422, 451]
)
def test_everything_else_is_final(status):
    result = step(Answer(status))
    assert isinstance(result, Send)
    assert result.progress.stage is Stage.TOPIC
    assert result.progress.attempts == 1


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        pytest.param(BackoffPolicy.LINEAR, [0.5, 1.0, 1.5, 2.0], id="n·delay"),
        pytest.param(BackoffPolicy.EXPONENTIAL, [1.0, 2.0, 4.0, 8.0], id="2^n·delay"),
    ],
)
def test_backoff_of_the_nth_retry(policy, waits):
    terms = Terms(subscriber_url="http://s/", retries=4, backoff_policy=policy, backoff_delay_s=0.5)
    progress, found = START, []
    while isinstance(result := step(Answer(500), progress, terms), Wait):
        found.append(result.seconds)
        progress = result.progress
    assert found == waits
    assert result.progress.stage is Stage.TOPIC
    assert result.progress.attempts == 5, "1 + retry"


def test_no_wait_is_longer_than_ten_minutes():
    terms = Terms(subscriber_url="http://s/", retries=1000, backoff_delay_s=3600.0, retry_after_max_s=7200.0)
    assert step(Answer(503, ((b"retry-after", b"7200"),)), terms=terms).seconds == 600.0
    assert terms.backoff_s(1000) == 600.0


def channel(delivery=None, subscriber_delivery=None, **subscriber):
    entry = {"uid": "u", "subscriberUri": "http://s/", **subscriber}
    if subscriber_delivery is not None:
        entry["delivery"] = subscriber_delivery
    entry = {name: value for name, value in entry.items() if value is not None}
    spec = {"subscribers": [entry]}
    if delivery is not None:
        spec["delivery"] = delivery
    parsed = parse_channel(
        {
            "apiVersion": "messaging.knative.dev/v1beta1",
            "kind": "KafkaChannel",
            "metadata": {"namespace": "n", "name": "c"},
            "spec": spec,
        }
    )
    return terms_of(parsed, parsed.subscribers[0])


@pytest.mark.parametrize(
    ("delivery", "waits"),
    [
        pytest.param({"retry": 2}, [2.0, 4.0], id="neither: 1 s exponential"),
        pytest.param({"retry": 2, "backoffDelay": "PT5S"}, [2.0, 4.0], id="not both: 1 s exponential"),
        pytest.param({"retry": 2, "backoffPolicy": "linear"}, [2.0, 4.0], id="not both: 1 s exponential (policy)"),
        pytest.param({"retry": 2, "backoffPolicy": "linear", "backoffDelay": "PT0S"}, [0.0, 0.0], id="zero is a delay"),
    ],
)
def test_backoff_defaults(delivery, waits):
    terms = channel(delivery)
    assert [terms.backoff_s(n) for n in (1, 2)] == waits


def test_any_option_of_the_subscriber_switches_the_channels_off_as_a_whole():
    delivery = {"retry": 5, "deadLetterSink": {"uri": "http://d/"}}
    assert channel(delivery).sink_url == "http://d/"
    own = channel(delivery, {"timeout": "PT3S"})
    assert (own.retries, own.sink_url, own.timeout_s) == (0, None, 3.0)


def test_a_subscriber_with_a_reply_uri_alone_gets_the_event_there():
    terms = channel(subscriberUri=None, replyUri="http://r/")
    assert (terms.subscriber_url, terms.reply_url) == ("http://r/", None)


@pytest.mark.parametrize(
    ("status", "header", "limit", "seconds"),
    [
        pytest.param(503, b"5", 10.0, 5.0, id="seconds on 503"),
        pytest.param(429, b"5", 10.0, 5.0, id="seconds on 429"),
        pytest.param(500, b"5", 10.0, 1.0, id="not on 500"),
        pytest.param(503, b"5", 0.0, 1.0, id="limit absent or PT0S: ignored"),
        pytest.param(503, b"50", 10.0, 10.0, id="up to the limit"),
        pytest.param(503, b"0", 10.0, 1.0, id="never shorter than the backoff"),
        pytest.param(503, b"soon", 10.0, 1.0, id="nonsense"),
        pytest.param(503, b"Tue, 14 Nov 2023 22:13:27 GMT", 10.0, 7.0, id="a date"),
        pytest.param(503, b"Tue, 14 Nov 2000 22:13:27 GMT", 10.0, 1.0, id="a date that is over"),
    ],
)
def test_retry_after(status, header, limit, seconds):
    terms = Terms(
        subscriber_url="http://s/",
        retries=1,
        backoff_policy=BackoffPolicy.LINEAR,
        backoff_delay_s=1.0,
        retry_after_max_s=limit,
    )
    assert step(Answer(status, ((b"Retry-After", header),)), terms=terms).seconds == seconds


@given(st.binary(max_size=60))
def test_any_retry_after_is_read_without_error(value):
    seconds = retry_after_s([(b"retry-after", value)], NOW)
    assert seconds is None or seconds >= 0


@pytest.mark.parametrize(
    ("status", "reply_url", "headers", "goes_on"),
    [
        pytest.param(200, "http://r/", EVENT, True, id="200 with an event"),
        pytest.param(202, "http://r/", EVENT, False, id="202 must not be processed"),
        pytest.param(200, None, EVENT, False, id="no reply URI"),
        pytest.param(200, "http://r/", ((b"content-type", b"text/plain"),), False, id="no event"),
        pytest.param(200, "http://r/", ((b"ce-specversion", b"7"),), False, id="claims to be one and is not"),
    ],
)
def test_replies(status, reply_url, headers, goes_on):
    terms = Terms(subscriber_url="http://s/", reply_url=reply_url)
    result = step(Answer(status, headers, b"body", may_be_event=b"ce-specversion" in dict(headers)), terms=terms)
    if goes_on:
        assert isinstance(result, Send)
        assert result.progress.stage is Stage.REPLY
        assert result.progress.reply[1] == b"body"
    else:
        assert result == Settle(Fate.DELIVERED)


def replied(attempts):
    return Progress(stage=Stage.REPLY, attempts=attempts, reply=(b"", b""))


def test_a_reply_that_fails_repeats_the_whole_delivery_and_then_is_a_dead_letter_of_the_reply_uri():
    result = step(Answer(500), replied(1), WITH_SINK)
    assert isinstance(result, Wait)
    assert (result.progress.stage, result.progress.reply) == (Stage.SUBSCRIBER, None)
    result = step(Answer(500, (), b"why"), replied(2), WITH_SINK)
    assert isinstance(result, Send)
    assert result.progress.stage is Stage.SINK
    assert result.progress.failure.destination == "http://r/"
    assert result.progress.failure.data == b"why"


def test_a_reply_that_is_refused_for_good_is_not_repeated():
    assert step(Answer(400), replied(1), WITH_SINK).progress.stage is Stage.SINK


def test_the_sink_has_the_same_policy_and_then_the_topic_takes_over():
    progress = Progress(stage=Stage.SINK, attempts=2, failure=Failure("http://s/", 500))
    assert step(Answer(202), progress, WITH_SINK) == Settle(Fate.DEAD_LETTERED)
    waiting = step(NoAnswer("refused"), progress, WITH_SINK)
    assert isinstance(waiting, Wait)
    assert waiting.progress.stage is Stage.SINK
    last = step(NoAnswer("refused"), waiting.progress, WITH_SINK)
    assert isinstance(last, Send)
    assert last.progress.stage is Stage.TOPIC
    assert last.progress.failure == Failure("http://s/", 500), "the attributes tell why it failed first"


def test_without_a_topic_what_cannot_be_delivered_is_dropped_and_counted_as_such():
    terms = Terms(subscriber_url="http://s/", topic_enabled=False)
    assert step(Answer(400), terms=terms) == Settle(Fate.DROPPED)
    assert discard(terms, "no event") == Settle(Fate.DISCARDED)


@pytest.mark.parametrize(
    ("failure", "attributes"),
    [
        (Failure("http://s/"), {"knativeerrordest": "http://s/"}),
        (Failure("http://s/", 404), {"knativeerrordest": "http://s/", "knativeerrorcode": "404"}),
        (
            Failure("http://s/", 500, b"\xff" * 2000),
            {
                "knativeerrordest": "http://s/",
                "knativeerrorcode": "500",
                "knativeerrordata": base64.b64encode(b"\xff" * 1024).decode(),
            },
        ),
    ],
)
def test_error_attributes(failure, attributes):
    assert error_attributes(failure) == attributes


@given(
    retries=st.integers(0, 6),
    has_sink=st.booleans(),
    has_reply=st.booleans(),
    outcomes=st.lists(
        st.one_of(
            st.builds(NoAnswer, st.just("x")),
            st.builds(Answer, st.sampled_from([200, 202, 204, 302, 400, 404, 429, 500, 503])),
            st.just(Answer(200, EVENT, b"", may_be_event=True)),
        ),
        min_size=30,
        max_size=30,
    ),
    restarts=st.sets(st.integers(0, 29)),
)
def test_attempts_never_exceed_one_plus_retry_at_any_stage_and_every_delivery_ends(
    retries, has_sink, has_reply, outcomes, restarts
):
    """Also when a restart in between knows nothing but the attempts in the commit metadata."""
    terms = Terms(
        subscriber_url="http://s/",
        retries=retries,
        sink_url="http://d/" if has_sink else None,
        reply_url="http://r/" if has_reply else None,
    )
    progress, made = START, {Stage.SUBSCRIBER: 0, Stage.SINK: 0, Stage.REPLY: 0}
    for number, outcome in enumerate(outcomes):
        made[progress.stage] += 1
        result = step(outcome, progress, terms)
        if isinstance(result, Settle) or result.progress.stage is Stage.TOPIC:
            break
        progress = result.progress
        if number in restarts and progress.stage is not Stage.REPLY:
            progress = Progress.from_attempts(progress.as_attempts(), terms)
            if progress.stage is Stage.TOPIC:
                break
    else:
        raise AssertionError("no end of it")
    assert made[Stage.SUBSCRIBER] <= 1 + retries
    assert made[Stage.REPLY] <= made[Stage.SUBSCRIBER]
    assert made[Stage.SINK] <= 1 + retries


def test_a_delivery_that_was_exhausted_before_a_restart_does_not_go_to_the_subscriber_again():
    progress = Progress.from_attempts(Attempts(2, 503, 0), WITH_SINK)
    assert progress.stage is Stage.SINK
    assert progress.failure.code == 503
    assert Progress.from_attempts(Attempts(1, 503), WITH_SINK).stage is Stage.SUBSCRIBER
    assert timedelta(seconds=WITH_SINK.backoff_s(1)) == timedelta(seconds=1)
