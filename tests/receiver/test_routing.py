"""Which channel a request is for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher_image.receiver_routing import MAX_CACHED, RoutingTable, channel_of
from eventing.channels import channel_url, parse_channel

ORDERS = ("team-a", "orders")


@pytest.mark.parametrize(
    "host",
    [
        "orders-kn-channel.team-a",
        "orders-kn-channel.team-a.svc",
        "orders-kn-channel.team-a.svc.cluster.local",
        "orders-kn-channel.team-a.svc.cluster.local.",
        "orders-kn-channel.team-a.svc.my.cluster",
        "orders-kn-channel.team-a:80",
        "orders-kn-channel.team-a.svc:8080",
        "orders-kn-channel.team-a.svc.cluster.local:8080",
        "ORDERS-KN-CHANNEL.Team-A.SVC.Cluster.Local:80",
        "orders-kn-channel.team-a.",
        "orders-kn-channel.team-a:",
    ],
)
def test_every_form_of_the_services_name_is_its_channel(host):
    for target in (b"/", b"/?x=1"):
        assert channel_of(host.encode(), target) == ORDERS


@pytest.mark.parametrize(
    ("host", "target"),
    [
        ("localhost:8080", "/team-a/orders"),
        ("127.0.0.1", "/team-a/orders?x=1"),
        ("[::1]:8080", "/team-a/orders"),
        ("", "/team-a/orders"),
        ("payments-kn-channel.team-b", "/team-a/orders"),
        ("x", "http://localhost/team-a/orders"),
        ("x", "http://orders-kn-channel.team-a/"),
        ("x", "http://orders-kn-channel.team-a.svc:80"),
        ("payments-kn-channel.team-b", "HTTP://orders-kn-channel.team-a/"),
    ],
)
def test_path_or_absolute_target_names_the_channel_whatever_the_host(host, target):
    assert channel_of(host.encode(), target.encode()) == ORDERS


@pytest.mark.parametrize(
    ("host", "target"),
    [
        ("localhost", "/"),
        ("orders.team-a", "/"),
        ("orders-kn-channel", "/"),
        ("-kn-channel.team-a", "/"),
        ("orders-kn-channel.team-a.example.com", "/"),
        ("orders-kn-channel.team-a", "/other"),
        ("orders-kn-channel.team-a", "/a/b/c"),
        ("localhost", "/team-a"),
        ("localhost", "/team-a/"),
        ("localhost", "//orders"),
        ("localhost", "/team-a/orders/"),
        ("localhost", "*"),
        ("localhost", "ftp://orders-kn-channel.team-a/"),
        ("localhost", "orders-kn-channel.team-a"),
    ],
)
def test_anything_else_names_none(host, target):
    assert channel_of(host.encode(), target.encode()) is None


def test_names_with_dots_are_read_from_a_host():
    assert channel_of(b"my.orders-kn-channel.team-a.svc", b"/") == ("team-a", "my.orders")


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_any_bytes_name_a_channel_or_none(host, target):
    found = channel_of(host, target)
    assert found is None or all(found)


def channel(name="orders", namespace="team-a", *, topic=None, deleted=False):
    return parse_channel(
        {
            "apiVersion": "messaging.knative.dev/v1beta1",
            "kind": "KafkaChannel",
            "metadata": {"name": name, "namespace": namespace}
            | ({"deletionTimestamp": "2026-11-20T03:00:00Z"} if deleted else {}),
            "spec": {},
            "status": {"annotations": {"default.topic": topic}} if topic else {},
        }
    )


class TestTable:
    def test_follows_channels_as_they_come_and_go(self):
        table = RoutingTable()
        assert table.find(b"h", b"/team-a/orders") is None
        table.replace({ORDERS: channel()})
        assert table.find(b"h", b"/team-a/orders").topic == "team-a.orders"
        table.replace({})
        assert table.find(b"h", b"/team-a/orders") is None

    def test_uses_the_topic_that_was_kept_in_the_status(self):
        table = RoutingTable()
        table.replace({ORDERS: channel()})
        table.replace({ORDERS: channel(topic="old-name")})
        assert table.find(b"h", b"/team-a/orders").topic == "old-name"

    def test_channel_that_is_being_deleted_takes_no_events(self):
        table = RoutingTable()
        table.replace({ORDERS: channel(deleted=True)})
        assert table.find(b"h", b"/team-a/orders") is None

    def test_counts_survive_a_new_view(self):
        table = RoutingTable()
        table.replace({ORDERS: channel()})
        table.find(b"h", b"/team-a/orders").accepted = 5
        table.replace({ORDERS: channel(topic="old-name")})
        assert [route.accepted for route in table.routes()] == [5]

    def test_what_strangers_ask_for_is_forgotten(self):
        table = RoutingTable()
        for i in range(2 * MAX_CACHED):
            table.find(b"h%d" % i, b"/")
        assert len(table._cache) <= MAX_CACHED

    @pytest.mark.parametrize("name", ["orders", "my.orders", "o" * 60, "7orders", "a.b.c"])
    def test_the_address_in_a_channels_status_leads_to_it(self, name):
        """A name that makes no DNS label has a Service with a hash in its name; its URL must work all the same."""
        table = RoutingTable()
        table.replace({("team-a", name): channel(name), ("team-a", "other"): channel("other")})
        host = channel_url("team-a", name).removeprefix("http://").encode()

        assert table.find(host, b"/").topic == f"team-a.{name}"
