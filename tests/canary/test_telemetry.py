"""The exposition: as strimzi-canary's dashboards read it."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from canary_image.telemetry import Telemetry, go_float
from eventing import metrics


def samples(telemetry: Telemetry) -> dict[tuple[str, frozenset], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(telemetry.exposition().decode())
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset]:
    return name, frozenset(labels.items())


def test_a_counter_exists_with_zero_before_it_counts():
    telemetry = Telemetry()
    telemetry.expose(metrics.CANARY_RECORDS_PRODUCED, "me", "0")

    assert samples(telemetry)[key("strimzi_canary_records_produced_total", clientid="me", partition="0")] == 0

    telemetry.count(metrics.CANARY_RECORDS_PRODUCED, "me", "0")
    telemetry.expose(metrics.CANARY_RECORDS_PRODUCED, "me", "0")

    assert samples(telemetry)[key("strimzi_canary_records_produced_total", clientid="me", partition="0")] == 1


def test_buckets_are_cumulative_configurable_and_written_as_go_writes_them():
    telemetry = Telemetry(buckets={metrics.CANARY_RECORDS_CONSUMED_LATENCY: (2.5, 400)})
    for value in (1, 2.5, 2.6, 400, 401):
        telemetry.observe(metrics.CANARY_RECORDS_CONSUMED_LATENCY, value, "me", "0")

    text = telemetry.exposition().decode()
    name = "strimzi_canary_records_consumed_latency"
    assert f'{name}_bucket{{clientid="me",le="2.5",partition="0"}} 2.0' in text
    assert f'{name}_bucket{{clientid="me",le="400",partition="0"}} 4.0' in text
    assert f'{name}_bucket{{clientid="me",le="+Inf",partition="0"}} 5.0' in text
    assert f'{name}_count{{clientid="me",partition="0"}} 5.0' in text
    assert f'{name}_sum{{clientid="me",partition="0"}} 807.1' in text


def test_constant_labels_are_on_everything_but_client_creation_errors():
    telemetry = Telemetry(constant_labels=(("cluster", "east"),))
    telemetry.expose(metrics.CANARY_CONSUMER_ERROR, "me")
    telemetry.expose(metrics.CANARY_CLIENT_CREATION_ERROR)
    telemetry.observe(metrics.CANARY_CONNECTION_LATENCY, 1, "0", "true")

    found = samples(telemetry)
    assert key("strimzi_canary_consumer_error_total", clientid="me", cluster="east") in found
    assert key("strimzi_canary_client_creation_error_total") in found
    assert key("strimzi_canary_connection_latency_count", brokerid="0", connected="true", cluster="east") in found


def test_gauges_are_brought_up_to_date_before_a_scrape():
    telemetry = Telemetry()
    telemetry.before_scrape(lambda: telemetry.set(metrics.CANARY_READY, 1, "me"))

    assert samples(telemetry)[key("sluice_canary_ready", clientid="me")] == 1


def test_wrong_labels_are_a_bug_and_no_new_series():
    with pytest.raises(AssertionError):
        Telemetry().count(metrics.CANARY_RECORDS_PRODUCED, "me")


def test_every_name_of_strimzi_canary_is_in_the_catalogue():
    """facts: 16 counters and 3 histograms with these labels."""
    probed, checked = ("clientid", "partition"), ("brokerid", "connected")
    expected = {
        "client_creation_error_total": (),
        "expected_cluster_size_error_total": (),
        "topic_creation_failed_total": ("topic",),
        "topic_describe_cluster_error_total": (),
        "topic_describe_error_total": ("topic",),
        "topic_alter_assignments_error_total": ("topic",),
        "topic_alter_configuration_error_total": ("topic",),
        "records_produced_total": probed,
        "records_produced_failed_total": probed,
        "producer_refresh_metadata_error_total": ("clientid",),
        "records_consumed_total": probed,
        "consumer_error_total": ("clientid",),
        "consumer_timeout_join_group_total": ("clientid",),
        "consumer_refresh_metadata_error_total": ("clientid",),
        "connection_error_total": checked,
        "connection_total": checked,
        "records_produced_latency": probed,
        "records_consumed_latency": probed,
        "connection_latency": checked,
    }
    prefix = "strimzi_canary_"
    found = {m.name.removeprefix(prefix): m.labels for m in metrics.ALL if m.name.startswith(prefix)}

    assert found == expected


@pytest.mark.parametrize(
    ("number", "text"),
    [(2, "2"), (2.0, "2"), (0.5, "0.5"), (1600, "1600"), (999999, "999999"), (1e6, "1e+06"), (2.5e7, "2.5e+07")],
)
def test_numbers_as_go_writes_them(number, text):
    assert go_float(number) == text
