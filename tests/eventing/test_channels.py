"""KafkaChannel objects: what is accepted, what is refused and with which words, and the names that follow."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventing import channels
from eventing.channels import BackoffPolicy, DeliveryOrder, DeliverySpec, InitialOffset, parse_channel
from eventing.errors import InvalidResource


def channel(spec=None, annotations=None, status=None, **metadata):
    return {
        "apiVersion": channels.API_VERSION,
        "kind": channels.KIND,
        "metadata": {"name": "orders", "namespace": "shop", "annotations": annotations or {}, **metadata},
        "spec": spec or {},
        "status": status or {},
    }


def problems(obj):
    with pytest.raises(InvalidResource) as caught:
        parse_channel(obj)
    return {problem.path: problem.reason for problem in caught.value.problems}


def test_an_empty_spec_has_the_defaults_of_the_crd():
    parsed = parse_channel(channel())

    assert (parsed.num_partitions, parsed.replication_factor, parsed.retention) == (1, 1, timedelta(days=7))
    assert (parsed.order, parsed.min_scale, parsed.max_scale) == (DeliveryOrder.KEY, 1, None)
    assert (parsed.lag_threshold, parsed.cooldown) == (100, timedelta(seconds=30))
    assert parsed.initial_offset is InitialOffset.LATEST
    assert parsed.dead_letter_topic_enabled


def test_all_problems_of_an_object_are_told_at_once():
    found = problems(
        channel(
            spec={
                "numPartitions": 0,
                "replicationFactor": "three",
                "retentionDuration": "7 days",
                "subscribers": [
                    {"uid": "a"},
                    {"uid": "a", "subscriberUri": "orders.svc"},
                    {"subscriberUri": "http://x"},
                ],
            },
            annotations={channels.ANNOTATION_MIN_SCALE: "many", channels.ANNOTATION_DELIVERY_ORDER: "sorted"},
        )
    )

    assert set(found) == {
        "spec.numPartitions",
        "spec.replicationFactor",
        "spec.retentionDuration",
        "spec.subscribers[0].subscriberUri",
        "spec.subscribers[1].uid",
        "spec.subscribers[1].subscriberUri",
        "spec.subscribers[2].uid",
        f"metadata.annotations[{channels.ANNOTATION_MIN_SCALE}]",
        f"metadata.annotations[{channels.ANNOTATION_DELIVERY_ORDER}]",
    }
    assert "already used by spec.subscribers[0]" in found["spec.subscribers[1].uid"]


@pytest.mark.parametrize(
    ("obj", "path"),
    [
        pytest.param({**channel(), "kind": "Channel"}, "kind", id="another kind"),
        pytest.param({**channel(), "apiVersion": "v1"}, "apiVersion", id="another version"),
        pytest.param(channel(name="Orders"), "metadata.name", id="upper case"),
        pytest.param(channel(namespace="a.b"), "metadata.namespace", id="a namespace is a label"),
        pytest.param(channel(name="o" * 250), "metadata.name", id="topic name too long"),
        pytest.param({**channel(), "spec": []}, "spec", id="spec is a list"),
        pytest.param(channel(spec={"subscribers": {}}), "spec.subscribers", id="subscribers is a mapping"),
        pytest.param(channel(spec={"delivery": {"retry": -1}}), "spec.delivery.retry", id="negative retry"),
        pytest.param(channel(spec={"delivery": {"timeout": "PT0S"}}), "spec.delivery.timeout", id="no time at all"),
        pytest.param(
            channel(spec={"delivery": {"deadLetterSink": {"ref": {}}}}),
            "spec.delivery.deadLetterSink",
            id="unresolved dead letter sink",
        ),
        pytest.param(channel(spec={"numPartitions": True}), "spec.numPartitions", id="a boolean is no number"),
    ],
)
def test_what_is_wrong_is_named_by_its_field(obj, path):
    assert path in problems(obj)


def test_any_option_of_a_subscriber_switches_the_channels_options_off_as_a_whole():
    parsed = parse_channel(
        channel(
            spec={
                "delivery": {"retry": 5, "deadLetterSink": {"uri": "http://dls/"}},
                "subscribers": [
                    {"uid": "own", "subscriberUri": "http://a/", "delivery": {"backoffPolicy": "linear"}},
                    {"uid": "none", "subscriberUri": "http://b/"},
                    {"uid": "empty", "subscriberUri": "http://c/", "delivery": {}},
                ],
            }
        )
    )
    own, none, empty = (parsed.effective_delivery(subscriber) for subscriber in parsed.subscribers)

    assert own == DeliverySpec(backoff_policy=BackoffPolicy.LINEAR)
    assert none == empty == DeliverySpec(retry=5, dead_letter_sink="http://dls/")


def test_the_persisted_topic_outlives_a_changed_template():
    parsed = parse_channel(channel(status={"annotations": {"default.topic": "old.name"}}))

    assert channels.topic_name(parsed, "new.{namespace}.{name}") == "old.name"
    assert channels.topic_name(parse_channel(channel()), "new.{namespace}.{name}") == "new.shop.orders"


def test_names_follow_from_the_object_as_the_design_says():
    parsed = parse_channel(channel())

    assert channels.topic_name(parsed) == "shop.orders"
    assert channels.dead_letter_topic("shop.orders") == "shop.orders.dead-letter"
    assert channels.group_id(parsed, "0f3a") == "kafka.shop.orders.0f3a"
    assert channels.service_name("orders") == "orders-kn-channel"
    assert channels.channel_url("shop", "orders") == "http://orders-kn-channel.shop.svc.cluster.local"


@pytest.mark.parametrize("name", ["a.b", "1st", "x" * 60, "x" * 253, "a" * 52 + ".b"])
def test_a_service_name_is_a_dns_label_whatever_the_channel_is_called(name):
    service = channels.service_name(name)

    assert len(service) <= 63
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", service)
    assert service.endswith("-kn-channel")


def test_cut_service_names_stay_different():
    assert channels.service_name("x" * 60) != channels.service_name("x" * 61)


@pytest.mark.parametrize(
    ("text", "seconds"), [("PT30S", 30), ("PT0.25S", 0.25), ("P7D", 604800), ("P1DT2H3M4S", 93784), ("PT168H", 604800)]
)
def test_durations_are_iso_8601(text, seconds):
    assert channels.parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1Y", "P1M", "P1DT", "30s", "PT-5S", "PT1e3S", "P99999999999D", None, 5]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="duration"):
        channels.parse_duration(text)


@given(st.integers(min_value=0, max_value=10**12))
def test_a_formatted_duration_reads_back(microseconds):
    value = timedelta(microseconds=microseconds)

    assert channels.parse_duration(channels.format_duration(value)) == value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["numPartitions", "subscribers", "delivery", "retentionDuration"]), json_values))
def test_no_object_whatsoever_breaks_the_reader(spec):
    """A registry holds what people typed: it is read, or refused with reasons, and nothing else happens."""
    try:
        parse_channel(channel(spec=spec))
    except InvalidResource as error:
        assert error.problems
