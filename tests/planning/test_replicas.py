"""How many replicas: the rule as a table, and what holds for every input."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventing.channels import parse_channel
from orchestration.planning.replicas import bounds, decide_size, total_lag
from orchestration.planning.snapshot import GroupLag
from tests.planning.worlds import NOW, actions, at, channel, document, reasons, steady, subscriber

SCALE = "autoscaling.eventing.knative.dev/"


def declared(**annotations):
    return parse_channel(channel(annotations={SCALE + key.replace("_", "-"): str(v) for key, v in annotations.items()}))


def size(*, lags, partitions=10, current=1, resized=-3600.0, **annotations):
    return decide_size(
        declared(**annotations),
        partitions=partitions,
        lags=lags,
        current=current,
        last_resize=None if resized is None else NOW + timedelta(seconds=resized),
        now=NOW,
    )


@pytest.mark.parametrize(
    ("lag", "replicas"),
    [(0, 1), (1, 1), (100, 1), (101, 2), (200, 2), (201, 3), (1000, 10), (1001, 10), (10**12, 10)],
)
def test_replicas_are_lag_over_threshold_rounded_up_and_at_most_the_partitions(lag, replicas):
    assert size(lags={"u1": lag}).replicas == replicas


@pytest.mark.parametrize(
    ("case", "replicas"),
    [
        pytest.param({"lags": {"a": 150, "b": 420}}, 5, id="the neediest subscription decides"),
        pytest.param({"lags": {"a": 99, "b": 99}}, 1, id="subscriptions are not added up"),
        pytest.param({"lags": {}}, 1, id="no subscription: the least"),
        pytest.param({"lags": {"a": 0}, "min_scale": 3}, 3, id="min-scale"),
        pytest.param({"lags": {"a": 0}, "min_scale": 30}, 10, id="min-scale above partitions: partitions"),
        pytest.param({"lags": {"a": 0}, "min_scale": 5, "max_scale": 2}, 2, id="min-scale above max-scale: max-scale"),
        pytest.param({"lags": {"a": 5000}, "max_scale": 4}, 4, id="max-scale"),
        pytest.param({"lags": {"a": 5000}, "max_scale": 400}, 10, id="max-scale above partitions: partitions"),
        pytest.param({"lags": {"a": 50}, "lag_threshold": 10}, 5, id="lag-threshold"),
        pytest.param({"lags": {"a": 0}, "min_scale": 0}, 0, id="min-scale 0: scale to zero"),
        pytest.param({"lags": {"a": 1}, "min_scale": 0, "current": 0}, 1, id="wakes on the first record"),
        pytest.param({"lags": {"a": None}, "current": 4}, 4, id="unknown: as it is"),
        pytest.param({"lags": {"a": None, "b": 700}, "current": 4}, 7, id="one unknown, the other asks for more"),
        pytest.param({"lags": {"a": None, "b": 100}, "current": 4}, 4, id="one unknown, the other would do with less"),
        pytest.param({"lags": {"a": None}, "current": 0, "min_scale": 0}, 0, id="unknown at zero: as it is"),
        pytest.param({"lags": {"a": None}, "current": 0}, 1, id="unknown, and less than min-scale"),
        pytest.param({"lags": {"a": None}, "current": None, "min_scale": 0}, 1, id="new and unknown: not zero"),
        pytest.param({"lags": {"a": 0}, "current": None, "min_scale": 0}, 0, id="new and known to be idle"),
        pytest.param({"lags": {"a": 900}, "current": None}, 9, id="new: as many as needed at once"),
        pytest.param({"lags": {"a": 0}, "current": 9}, 1, id="down after the cooldown"),
        pytest.param({"lags": {"a": 0}, "current": 9, "resized": -29}, 9, id="not down within the cooldown"),
        pytest.param({"lags": {"a": 0}, "current": 9, "resized": -30}, 1, id="down at the end of the cooldown"),
        pytest.param({"lags": {"a": 0}, "current": 9, "resized": -30, "cooldown_period": 60}, 9, id="cooldown-period"),
        pytest.param({"lags": {"a": 0}, "current": 9, "resized": 0, "cooldown_period": 0}, 1, id="no cooldown"),
        pytest.param({"lags": {"a": 0}, "current": 9, "resized": None}, 9, id="not known when it was resized"),
        pytest.param({"lags": {"a": 0}, "current": 9, "resized": 3600}, 9, id="a clock that went back"),
        pytest.param({"lags": {"a": 900}, "current": 2, "resized": 0}, 9, id="up at once"),
        pytest.param({"lags": {"a": 0}, "current": 9, "partitions": 4, "min_scale": 4}, 4, id="fewer partitions"),
    ],
)
def test_the_rule(case, replicas):
    assert size(**case).replicas == replicas


lag = st.one_of(st.none(), st.integers(0, 10**9))


@given(
    lags=st.dictionaries(st.text("ab", min_size=1, max_size=3), lag, max_size=4),
    partitions=st.integers(1, 500),
    least=st.integers(0, 40),
    most=st.one_of(st.none(), st.integers(1, 40)),
    current=st.one_of(st.none(), st.integers(0, 500)),
    resized=st.one_of(st.none(), st.integers(-1000, 1000)),
)
def test_size_stays_in_bounds_and_never_falls_for_an_unknown_lag(*, lags, partitions, least, most, current, resized):
    annotations = {"min_scale": least} | ({} if most is None else {"max_scale": most})
    parsed = declared(**annotations)
    low, high = bounds(parsed, partitions)

    decided = size(lags=lags, partitions=partitions, current=current, resized=resized, **annotations)

    assert 0 <= low <= high <= partitions
    assert decided.replicas <= max(high, current or 0), "never more than is allowed or there already"
    if current is None or decided.replicas != current:
        assert low <= decided.replicas <= high
    if current is not None and None in lags.values():
        assert decided.replicas >= current
        if decided.replicas == current:
            assert decided.waiting
    if current is not None and decided.replicas < current:
        assert resized is not None
        assert -resized >= parsed.cooldown.total_seconds()


@pytest.mark.parametrize(
    ("partitions", "total"),
    [
        pytest.param({0: 5, 1: 7}, 12, id="known"),
        pytest.param({0: 5, 1: None}, None, id="one partition unknown"),
        pytest.param({0: 5}, None, id="one partition without an offset"),
        pytest.param({0: 5, 1: -3}, None, id="the log is shorter than the commit"),
        pytest.param({0: 5, 1: 7, 2: 100}, 12, id="a partition that the topic does not have"),
    ],
)
def test_one_unknown_partition_makes_the_lag_unknown(partitions, total):
    assert total_lag(GroupLag(topic="t", partitions=partitions), 2) == total


# --- in a whole plan


def lagging(lag, **parts):
    """A ready channel of ten partitions, then this lag."""
    doc = steady(document(channels=[channel(numPartitions=10, **parts)]))
    partitions = {str(n): 0 for n in range(10)} | ({"0": lag} if not isinstance(lag, dict) else lag)
    doc["lag"] = {"kafka.shop.orders.u1": {"topic": "shop.orders", "partitions": partitions}}
    return doc


def resized(doc, replicas, seconds):
    """As if it had been resized so many seconds before now."""
    deployment = doc["deployments"][0]
    deployment["spec"]["replicas"] = replicas
    deployment["metadata"]["annotations"]["sluice.dev/last-resize"] = at(seconds)
    return doc


def test_up_at_once_and_remembered():
    (scale,) = actions(lagging(420))

    assert scale["kind"] == "ScaleDeployment"
    assert scale["namespace"] == "sluice-system"
    assert scale["replicas"] == 5
    assert scale["annotations"] == {"sluice.dev/last-resize": "2026-11-20T03:00:00Z"}
    assert "u1" in scale["why"]
    assert "420" in scale["why"]


def test_down_after_the_cooldown_only():
    assert actions(resized(lagging(0), 5, -29)) == []
    assert [a["replicas"] for a in actions(resized(lagging(0), 5, -30))] == [1]
    assert any("cooldown" in r or "stays" in r for r in reasons(resized(lagging(0), 5, -29), "waiting"))


def test_without_a_resize_the_cooldown_counts_from_the_creation():
    doc = lagging(0)
    doc["deployments"][0]["spec"]["replicas"] = 5
    doc["deployments"][0]["metadata"]["annotations"].pop("sluice.dev/last-resize", None)

    doc["deployments"][0]["metadata"]["creationTimestamp"] = at(-10)
    assert actions(doc) == []
    doc["deployments"][0]["metadata"]["creationTimestamp"] = at(-31)
    assert [a["replicas"] for a in actions(doc)] == [1]


@pytest.mark.parametrize("stamp", ["yesterday", "", "2026-11-20 03:00:00", 5, None])
def test_a_damaged_memory_of_the_last_resize_falls_back_to_the_creation(stamp):
    doc = lagging(0)
    doc["deployments"][0]["spec"]["replicas"] = 5
    doc["deployments"][0]["metadata"]["annotations"]["sluice.dev/last-resize"] = stamp
    doc["deployments"][0]["metadata"]["creationTimestamp"] = at(-10)

    assert actions(doc) == []


@pytest.mark.parametrize("lag", [{"3": None}, {str(n): None for n in range(10)}])
def test_one_unknown_partition_keeps_the_size(lag):
    doc = resized(lagging(lag), 7, -3600)

    assert actions(doc) == []
    assert any("unknown" in reason for reason in reasons(doc, "waiting", about="shop/orders"))


def test_an_unreadable_lag_keeps_the_size():
    assert actions({**resized(lagging(0), 7, -3600), "lag": None}) == []


def test_scale_to_zero_and_back():
    quiet = resized(lagging(0, annotations={SCALE + "min-scale": "0"}), 1, -3600)
    (down,) = actions(quiet, "ScaleDeployment")
    assert down["replicas"] == 0

    woken = resized(lagging(1, annotations={SCALE + "min-scale": "0"}), 0, -1)
    (up,) = actions(woken, "ScaleDeployment")
    assert up["replicas"] == 1


def test_each_subscription_asks_and_the_most_is_taken():
    doc = steady(document(channels=[channel(numPartitions=10, subscribers=[subscriber("a"), subscriber("b")])]))
    for uid, behind in (("a", 50), ("b", 730)):
        doc["lag"][f"kafka.shop.orders.{uid}"] = {
            "topic": "shop.orders",
            "partitions": {str(n): behind // 10 for n in range(10)},
        }

    assert [a["replicas"] for a in actions(doc)] == [8]


def test_a_scaled_plan_leaves_nothing_to_do():
    assert actions(steady(lagging(420))) == []
