"""The dispatcher's small endpoints: health for the kubelet, metrics for Prometheus, `/subscriptions` for people.

METRICS_PORT   /metrics
HEALTH_PORT    /healthz (works), /readyz (registry read, all groups stable; else 503 with the reasons),
               /subscriptions (JSON: what each subscription does, and what is wrong with it)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from dispatcher_image.receiver_http import Exchange, HttpServer, Limits, Response, refusal
from dispatcher_image.telemetry import as_the_seed_shows

Page = Callable[[Exchange], Response]

_OK: Final = Response(200, b"ok\n", b"Content-Type: text/plain; charset=utf-8\r\n")


class _Pages:
    """GET of a known path."""

    def __init__(self, pages: Mapping[bytes, Page]) -> None:
        self._pages = pages

    def on_head(self, exchange: Exchange) -> Response | None:
        if exchange.target.partition(b"?")[0] not in self._pages:
            return refusal(404, "there is " + ", ".join(path.decode() for path in self._pages))
        return None if exchange.method in {b"GET", b"HEAD"} else refusal(405, "only GET", b"Allow: GET, HEAD\r\n")

    def on_request(self, exchange: Exchange) -> None:
        exchange.respond(self._pages[exchange.target.partition(b"?")[0]](exchange))


async def serve_pages(
    *,
    metrics_port: int,
    health_port: int,
    collector: Collector,
    reasons: Callable[[], list[str]],
    status: Callable[[], dict[str, Any]],
) -> list[HttpServer]:
    """Listen on both ports (one, when they are the same). Raises OSError when one is taken."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)

    def metrics(exchange: Exchange) -> Response:
        accept = next((value for name, value in exchange.headers if name.lower() == b"accept"), b"")
        encode, content_type = choose_encoder(accept.decode("latin-1"))
        return Response(200, as_the_seed_shows(encode(registry)), b"Content-Type: %b\r\n" % content_type.encode())

    def ready(_: Exchange) -> Response:
        found = reasons()
        return refusal(503, "; ".join(found)) if found else _OK

    def subscriptions(_: Exchange) -> Response:
        return Response(200, json.dumps(status(), indent=1).encode() + b"\n", b"Content-Type: application/json\r\n")

    by_port: dict[int, dict[bytes, Page]] = {}
    by_port.setdefault(metrics_port, {})[b"/metrics"] = metrics
    by_port.setdefault(health_port, {}).update(
        {b"/healthz": lambda _: _OK, b"/readyz": ready, b"/subscriptions": subscriptions}
    )
    servers = []
    for port, pages in by_port.items():
        server = HttpServer(_Pages(pages), Limits(max_body_bytes=1024, max_connections=256))
        await server.start(port)
        servers.append(server)
    return servers
