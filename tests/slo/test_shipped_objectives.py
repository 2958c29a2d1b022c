"""The objectives that come with the platform ask only for what the images export."""

import pytest

from assets.objective_files import SHIPPED, load_objectives
from assets.slo.rules import rule_file
from eventing import metrics
from eventing.metrics import Kind

OBJECTIVES = load_objectives(SHIPPED)
CATALOGUE = {metric.name: metric for metric in metrics.ALL}
OF_THE_TARGET = {"namespace", "channel", "instance", "component"}


def test_they_cover_canary_ingress_and_delivery():
    assert [objective.name for objective in OBJECTIVES] == [
        "canary-availability",
        "canary-availability-by-broker",
        "canary-latency",
        "canary-latency-by-broker",
        "delivery-latency",
        "delivery-success",
        "ingress-availability",
    ]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.name)
def test_metrics_labels_and_bounds_are_in_the_catalogue(objective):
    for _, selector in objective.indicator.selectors():
        metric = CATALOGUE[selector.metric.removesuffix("_bucket")]
        is_bucket = selector.metric.endswith("_bucket")
        assert metric.kind is (Kind.HISTOGRAM if is_bucket else Kind.COUNTER)
        used = {matcher.label for matcher in selector.matchers} | set(objective.group_by)
        assert used - {"__name__", "le"} <= {*metric.labels, *OF_THE_TARGET}
    if objective.indicator.threshold is not None:
        assert float(objective.indicator.threshold) in metric.buckets


def test_every_objective_has_alerts_that_can_fire():
    assert len(rule_file(OBJECTIVES)["groups"]) == len(OBJECTIVES)
