"""The receiver's numbers: complete from the start, and right."""

from __future__ import annotations

from http import HTTPStatus

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dispatcher_image.receiver_metrics import ReceiverMetrics
from dispatcher_image.receiver_routing import Route
from eventing import metrics


def expose(numbers: ReceiverMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(numbers)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def make(routes=()) -> ReceiverMetrics:
    return ReceiverMetrics(routes=lambda: list(routes), gauges=lambda: [(metrics.RECEIVER_READY, 1)])


def test_every_status_has_its_series_from_the_start():
    samples = expose(make())
    for code in metrics.RECEIVER_CODES:
        assert HTTPStatus(code)
        assert samples["sluice_receiver_requests_total", (("code", str(code)),)] == 0
        assert samples["sluice_receiver_request_duration_seconds_count", (("code", str(code)),)] == 0


def test_answers_are_counted_by_status_and_duration():
    numbers = make()
    for seconds in (0.0005, 0.001, 0.0011, 70.0):
        numbers.observe(202, seconds)
    numbers.observe(503, 1.0)
    samples = expose(numbers)
    assert samples["sluice_receiver_requests_total", (("code", "202"),)] == 4
    assert samples["sluice_receiver_requests_total", (("code", "503"),)] == 1
    name = "sluice_receiver_request_duration_seconds"
    assert samples[f"{name}_bucket", (("code", "202"), ("le", "0.001"))] == 2
    assert samples[f"{name}_bucket", (("code", "202"), ("le", "0.0025"))] == 3
    assert samples[f"{name}_bucket", (("code", "202"), ("le", "60.0"))] == 3
    assert samples[f"{name}_bucket", (("code", "202"), ("le", "+Inf"))] == 4
    assert samples[f"{name}_sum", (("code", "202"),)] > 70


def test_channels_have_their_series_before_their_first_event():
    route = Route(("team-a", "orders"), "team-a.orders")
    labels = (("channel", "orders"), ("namespace", "team-a"))
    assert expose(make([route]))["sluice_receiver_events_total", labels] == 0
    route.accepted = 3
    assert expose(make([route]))["sluice_receiver_events_total", labels] == 3


def test_every_family_of_the_catalogue_is_exposed():
    gauges = [
        metrics.RECEIVER_EVENTS_IN_FLIGHT, metrics.RECEIVER_CONNECTIONS, metrics.RECEIVER_BUFFERED_BYTES,
        metrics.RECEIVER_CHANNELS, metrics.RECEIVER_READY,
    ]  # fmt: skip
    numbers = ReceiverMetrics(
        routes=lambda: [Route(("n", "c"), "t")], gauges=lambda: [(gauge, 0.0) for gauge in gauges]
    )
    exposed = {name for name, _ in expose(numbers)}
    for metric in metrics.ALL:
        if metric.name.startswith("sluice_receiver_"):
            assert exposed & {metric.name, metric.name + "_count"}, metric.name
