"""The receiver: `python -m dispatcher_image receive`. Takes CloudEvents over HTTP and makes them durable in Kafka.

This is its composition root: it reads the configuration, connects the parts, follows what may change while it runs
(the registry, Kafka's credentials, the TLS certificate, whether Kafka answers), and ends in order.

    sender ──HTTP──► receiver_http ──► receiver_intake ──► receiver_producer ──► Kafka
                                        │ receiver_routing ◄── channel_source

SIGTERM and SIGINT: not ready, accept no more connections, answer what is under way, flush, exit 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from dispatcher_image.channel_source import ChannelSource, open_channel_source
from dispatcher_image.receiver_http import Exchange, HttpServer, Limits, Response, refusal
from dispatcher_image.receiver_intake import Intake
from dispatcher_image.receiver_metrics import ReceiverMetrics
from dispatcher_image.receiver_producer import KafkaLog, producer_properties
from dispatcher_image.receiver_routing import RoutingTable
from eventing import metrics
from eventing.errors import ConfigError
from eventing.kafka_security import fingerprint, read_secret_dir
from eventing.metrics import Metric
from eventing.program_config import ReceiveConfig

log = logging.getLogger(__name__)

REACH_INTERVAL_S: Final = 3.0
"""Between two looks whether Kafka answers, while it does."""
REACH_AGAIN_S: Final = 0.5
"""The same while it does not."""
FOLLOW_INTERVAL_S: Final = 2.0
"""Between two looks at mounted secrets; a kubelet takes up to a minute to update them anyway."""
LAST_CALL_S: Final = 0.2
"""How long open connections are served after SIGTERM (`HttpServer.stop`)."""

_OK: Final = Response(200, b"ok\n", b"Content-Type: text/plain; charset=utf-8\r\n")


class Readiness:
    """Why the receiver cannot take events now; ready when there is no reason."""

    def __init__(self) -> None:
        self.kafka: str | None = "Kafka was not asked yet"
        self.registry: str | None = "the registry was not read yet"
        self.stopping: str | None = None

    @property
    def reasons(self) -> list[str]:
        """In words, none when ready."""
        return [reason for reason in (self.stopping, self.registry, self.kafka) if reason is not None]


class Pages:
    """A `Handler` for the small endpoints: GET of a known path."""

    def __init__(self, pages: Mapping[bytes, Callable[[Exchange], Response]]) -> None:
        self._pages = pages

    def on_head(self, exchange: Exchange) -> Response | None:
        """Refuse unknown paths and other methods."""
        if exchange.target.partition(b"?")[0] not in self._pages:
            return refusal(404, "there is " + ", ".join(path.decode() for path in self._pages))
        return None if exchange.method in {b"GET", b"HEAD"} else refusal(405, "only GET", b"Allow: GET, HEAD\r\n")

    def on_request(self, exchange: Exchange) -> None:
        """Make the page."""
        exchange.respond(self._pages[exchange.target.partition(b"?")[0]](exchange))


async def receive(config: ReceiveConfig) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        ConfigError: something that the configuration names is missing or unusable.
        OSError: a port is taken.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    readiness = Readiness()
    table = RoutingTable()
    kafka = KafkaLog(_properties(config), loop)
    tls = None if config.tls_cert_file is None else _tls_context(config)

    def gauges() -> list[tuple[Metric, float]]:
        return [
            (metrics.RECEIVER_EVENTS_IN_FLIGHT, kafka.owed),
            (metrics.RECEIVER_CONNECTIONS, server.connections),
            (metrics.RECEIVER_BUFFERED_BYTES, server.buffered_bytes),
            (metrics.RECEIVER_CHANNELS, len(table.routes())),
            (metrics.RECEIVER_READY, 0 if readiness.reasons else 1),
        ]

    numbers = ReceiverMetrics(routes=table.routes, gauges=gauges)
    limits = Limits(max_body_bytes=config.max_event_bytes)
    server = HttpServer(Intake(table, kafka), limits, numbers.observe)
    side_servers = [
        await _serve_pages(port, pages) for port, pages in _pages_by_port(config, readiness, _registry(numbers)).items()
    ]

    source = open_channel_source(config.channel_source)
    port = await server.start(config.port, tls=tls)
    log.info("receiver.started port=%d tls=%s channel_source=%s", port, tls is not None, config.channel_source)
    # What exists now stays: the collector need not look at it again in the middle of a request.
    gc.collect()
    gc.freeze()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_follow_kafka(kafka, readiness)),
            group.create_task(_follow_secret(config, kafka)),
            group.create_task(_follow_registry(source, table, readiness)),
        ]
        if tls is not None:
            tasks.append(group.create_task(_follow_certificate(config, tls)))
        await stop.wait()
        readiness.stopping = "stopping"
        log.info("receiver.stopping in_flight=%d connections=%d", kafka.owed, server.connections)
        deadline = time.monotonic() + config.drain_timeout_seconds
        await server.stop(last_call=LAST_CALL_S, timeout=config.drain_timeout_seconds)
        unconfirmed = kafka.close(max(0.0, deadline - time.monotonic()))
        for task in tasks:
            task.cancel()
    for side_server in side_servers:
        await side_server.stop(last_call=0, timeout=0)
    # Nobody was told 202 for these.
    log.info("receiver.stopped unconfirmed=%d", unconfirmed)


def _properties(config: ReceiveConfig) -> dict[str, object]:
    return producer_properties(
        config.bootstrap_servers,
        read_secret_dir(config.kafka_secret_dir).client_properties(),
        delivery_timeout_s=config.delivery_timeout_seconds,
        max_event_bytes=config.max_event_bytes,
    )


# --- endpoints -------------------------------------------------------------------------------------------------------


def _registry(numbers: ReceiverMetrics) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(numbers)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def _pages_by_port(
    config: ReceiveConfig, readiness: Readiness, registry: CollectorRegistry
) -> dict[int, dict[bytes, Callable[[Exchange], Response]]]:
    def metrics_page(exchange: Exchange) -> Response:
        accept = next((value for name, value in exchange.headers if name.lower() == b"accept"), b"")
        encode, content_type = choose_encoder(accept.decode("latin-1"))
        return Response(200, encode(registry), b"Content-Type: %b\r\n" % content_type.encode())

    def readyz(_: Exchange) -> Response:
        return refusal(503, "; ".join(readiness.reasons)) if readiness.reasons else _OK

    pages: dict[int, dict[bytes, Callable[[Exchange], Response]]] = {}
    pages.setdefault(config.metrics_port, {})[b"/metrics"] = metrics_page
    pages.setdefault(config.health_port, {}).update({b"/healthz": lambda _: _OK, b"/readyz": readyz})
    return pages


async def _serve_pages(port: int, pages: Mapping[bytes, Callable[[Exchange], Response]]) -> HttpServer:
    server = HttpServer(Pages(pages), Limits(max_body_bytes=1024, max_connections=256))
    await server.start(port)
    return server


# --- what may change while it runs -----------------------------------------------------------------------------------


async def _follow_registry(source: ChannelSource, table: RoutingTable, readiness: Readiness) -> None:
    async with source as channels:
        async for view in channels.views():
            table.replace(view)
            readiness.registry = None
            log.info("receiver.channels count=%d", len(view))


async def _follow_kafka(kafka: KafkaLog, readiness: Readiness) -> None:
    while True:
        reason = await asyncio.to_thread(kafka.reach)
        if reason is None and readiness.kafka is not None:
            log.info("receiver.kafka_reached")
        elif reason is not None and readiness.kafka is None:
            log.warning("receiver.kafka_lost reason=%r", reason)
        readiness.kafka = None if reason is None else f"Kafka does not answer: {reason}"
        await asyncio.sleep(REACH_INTERVAL_S if reason is None else REACH_AGAIN_S)


async def _follow_secret(config: ReceiveConfig, kafka: KafkaLog) -> None:
    """Take over new credentials. A Secret that is wrong or half written leaves the old ones in force."""
    known = fingerprint(config.kafka_secret_dir)
    while config.kafka_secret_dir is not None:
        await asyncio.sleep(FOLLOW_INTERVAL_S)
        seen = await asyncio.to_thread(fingerprint, config.kafka_secret_dir)
        if not seen or seen == known:
            continue
        known = seen
        try:
            kafka.replace(_properties(config))
        except ConfigError as exc:
            log.error("receiver.secret_refused reason=%r", str(exc))  # noqa: TRY400 - the reason says it all
        else:
            log.info("receiver.secret_replaced")


def _tls_context(config: ReceiveConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(config, context)
    return context


def _load_certificate(config: ReceiveConfig, context: ssl.SSLContext) -> None:
    assert config.tls_cert_file is not None
    try:
        context.load_cert_chain(config.tls_cert_file, config.tls_key_file)
    except OSError as exc:  # ssl.SSLError is one; its text names neither file nor content
        raise ConfigError(
            [f"TLS_CERT_FILE, TLS_KEY_FILE cannot be used ({exc.strerror or exc})"], subject="environment"
        ) from exc


async def _follow_certificate(config: ReceiveConfig, context: ssl.SSLContext) -> None:
    """Use a renewed certificate for new connections."""

    def stamp() -> tuple[int, ...]:
        return tuple(Path(name).stat().st_mtime_ns for name in (config.tls_cert_file, config.tls_key_file) if name)

    known = stamp()
    while True:
        await asyncio.sleep(FOLLOW_INTERVAL_S)
        with contextlib.suppress(OSError):
            seen = stamp()
            if seen == known:
                continue
            known = seen
            try:
                _load_certificate(config, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # both files must fit first
                _load_certificate(config, context)
            except ConfigError as exc:
                log.error("receiver.certificate_refused reason=%r", str(exc))  # noqa: TRY400 - the reason says it all
            else:
                log.info("receiver.certificate_replaced")
