"""Which channel a request is for: read from its path or its Host, and looked up among the registered ones. Pure.

A path `/<namespace>/<name>` names the channel and wins (Knative's Kafka broker). With the path `/` the Host does:
`<name>-kn-channel.<namespace>`, followed by nothing, `.svc` or `.svc.<cluster domain>`, with or without a port, a
final dot and capitals: all that resolves to the channel's Service in a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from eventing.channels import KafkaChannel, service_name, topic_name

ChannelKey = tuple[str, str]
"""(namespace, name)"""

MAX_CACHED: Final = 8192
"""Pairs of host and target that are remembered; a full table is emptied."""

SERVICE_SUFFIX: Final = "-kn-channel"
_PATH = re.compile(r"/([^/]+)/([^/]+)").fullmatch
_HOST = re.compile(r"(?P<name>.+)-kn-channel\.(?P<namespace>[^.]+)(\.svc(\.[^.]+)*)?\.?").fullmatch
_PORT = re.compile(r":\d*\Z")


def channel_of(host: bytes, target: bytes) -> ChannelKey | None:
    """The channel that a request line and a Host header name, None when they name none.

    `target` in origin form (`/path?query`) or absolute form (`http://host/path`), which overrules the Host
    (RFC 9112 §3.2.2).
    """
    authority, path = host, target
    if not target.startswith(b"/"):
        scheme, separator, rest = target.partition(b"://")
        if not separator or scheme.lower() not in {b"http", b"https"}:
            return None
        authority, slash, tail = rest.partition(b"/")
        path = slash + tail
    path = path.partition(b"?")[0]
    by_path = _PATH(path.decode("latin-1"))
    if by_path is not None:
        return by_path[1], by_path[2]
    if path not in {b"", b"/"}:
        return None
    by_host = _HOST(_PORT.sub("", authority.decode("latin-1").lower()))
    return None if by_host is None else (by_host["namespace"], by_host["name"])


class Route:
    """Where the events of one channel go."""

    __slots__ = ("accepted", "key", "topic")

    def __init__(self, key: ChannelKey, topic: str) -> None:
        self.key = key
        self.topic = topic
        self.accepted = 0
        """Events made durable since the start; read by the metrics."""


class RoutingTable:
    """The registered channels. A request costs one lookup once its host and target were seen."""

    def __init__(self) -> None:
        self._routes: dict[ChannelKey, Route] = {}
        # Names that make no DNS label have a Service with a hash in its name; the others are found by their own.
        self._by_service: dict[ChannelKey, ChannelKey] = {}
        self._cache: dict[tuple[bytes, bytes], Route | None] = {}
        self.is_known = False
        """Whether the registry was read: before, that a channel is not here says nothing."""

    def replace(self, channels: Mapping[ChannelKey, KafkaChannel]) -> None:
        """Take over the present channels. One that is being deleted takes no more events."""
        routes: dict[ChannelKey, Route] = {}
        for key, channel in channels.items():
            if channel.is_being_deleted:
                continue
            topic = topic_name(channel)
            known = self._routes.get(key)
            routes[key] = known if known is not None and known.topic == topic else Route(key, topic)
            if known is not None:
                routes[key].accepted = known.accepted
        self._routes = routes
        self._by_service = {
            (namespace, service): (namespace, name)
            for namespace, name in routes
            if (service := service_name(name).removesuffix(SERVICE_SUFFIX)) != name
        }
        self._cache.clear()
        self.is_known = True

    def find(self, host: bytes, target: bytes) -> Route | None:
        """The route of a request, None for an unknown channel."""
        pair = (host, target)
        try:
            return self._cache[pair]
        except KeyError:
            key = channel_of(host, target)
            route = None if key is None else self._routes.get(key) or self._routes.get(self._by_service.get(key, key))
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            if len(host) + len(target) <= 512:
                self._cache[pair] = route
            return route

    def routes(self) -> list[Route]:
        """All of them, in the order of their channels."""
        return [self._routes[key] for key in sorted(self._routes)]
