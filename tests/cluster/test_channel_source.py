"""The dispatcher's and receiver's view of the channels, from a real API server and with their own rights."""

from __future__ import annotations

import asyncio
import time

import pytest

from dispatcher_image.channel_source import open_channel_source
from tests.cluster.conftest import channel

pytestmark = pytest.mark.cluster

SUBSCRIBER = {"uid": "a1", "subscriberUri": "http://orders.example.com"}


@pytest.fixture(autouse=True)
def as_dispatcher(deployed, monkeypatch):
    token = deployed.token_of("sluice-system", "sluice-dispatcher")
    kubeconfig = deployed.kubeconfig("sluice-dispatcher", token=token)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))


def path(namespace, name="orders"):
    return f"/apis/messaging.knative.dev/v1beta1/namespaces/{namespace}/kafkachannels/{name}"


class Views:
    """The views of one source, one after the other, each awaited for a bounded time."""

    def __init__(self, only):
        self._only = only

    async def __aenter__(self):
        self._source = await open_channel_source("kubernetes", only=self._only).__aenter__()
        self._views = self._source.views()
        return self

    async def __aexit__(self, *error):
        await self._source.__aexit__(*error)

    async def until(self, claim, within_s=15.0):
        async with asyncio.timeout(within_s):
            async for view in self._views:
                if claim(view):
                    return view
        raise AssertionError("the views ended")


def test_a_dispatcher_follows_its_channel_and_no_other(deployed, namespace):
    key = (namespace, "orders")

    async def follow():
        async with Views(key) as views:
            assert await views.until(lambda view: True) == {}
            deployed.apply(channel(namespace, "other", subscribers=[SUBSCRIBER]))
            deployed.apply(channel(namespace, subscribers=[SUBSCRIBER]))
            view = await views.until(lambda view: key in view)
            assert set(view) == {key}
            assert view[key].subscribers[0].subscriber_uri == "http://orders.example.com"
            started = time.monotonic()
            moved = SUBSCRIBER | {"subscriberUri": "http://elsewhere.example.com"}
            deployed.apply(channel(namespace, subscribers=[moved]))
            await views.until(lambda view: view[key].subscribers[0].subscriber_uri == moved["subscriberUri"])
            assert time.monotonic() - started < 2.0
            deployed.request("DELETE", path(namespace))
            await views.until(lambda view: key not in view)

    asyncio.run(follow())


def test_the_receiver_sees_all_channels_and_the_topic_that_is_kept(deployed, namespace):
    async def follow():
        async with Views(None) as views:
            deployed.apply(channel(namespace))
            status = {"annotations": {"default.topic": "kept"}}
            deployed.request(
                "PATCH",
                path(namespace) + "/status",
                {"status": status},
                content_type="application/merge-patch+json",
            )
            key = (namespace, "orders")
            await views.until(lambda view: key in view and view[key].persisted_topic == "kept")

    asyncio.run(follow())


def test_a_view_outlives_the_api_servers_restart(deployed, namespace):
    key = (namespace, "orders")

    async def follow():
        async with Views(key) as views:
            deployed.apply(channel(namespace))
            await views.until(lambda view: key in view)
            deployed.restart_api_server()  # in this thread: the server ends with the one that started it
            deployed.apply(channel(namespace, numPartitions=3))
            view = await views.until(lambda view: view[key].num_partitions == 3, within_s=45.0)
            assert set(view) == {key}

    asyncio.run(follow())
