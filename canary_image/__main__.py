"""`python -m canary_image`: environment → configuration → canary; ends with SIGTERM or SIGINT.

Exit codes: 0 ended by a signal, 1 the port is taken, 2 wrong use, 78 wrong configuration.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping

from canary_image import journal
from canary_image.canary import Canary
from canary_image.connection_check import tls_context
from canary_image.dynamic_config import DynamicConfig
from canary_image.http_api import Answers, HttpApi
from canary_image.probe import Probe
from canary_image.security import Access, environment_problems, read_access
from canary_image.telemetry import Telemetry
from eventing import metrics
from eventing.errors import EXIT_CONFIG, ConfigError
from eventing.program_config import CanaryConfig

SHUTDOWN_LIMIT_S = 10.0


def main(arguments: list[str], environ: Mapping[str, str]) -> int:
    """Run until a signal comes; the exit code."""
    if arguments:
        sys.stderr.write("usage: python -m canary_image (configuration comes from the environment; see README.md)\n")
        return 2
    try:
        config, access = read_configuration(environ)
    except ConfigError as exc:
        sys.stderr.write(f"canary: {exc}\n")
        return EXIT_CONFIG
    journal.configure(config.log_level, config.verbosity_log_level)
    if config.exporter_type_tracing is not None:
        journal.note(logging.WARNING, "tracing.absent", exporter=config.exporter_type_tracing)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    telemetry = Telemetry(
        constant_labels=config.prometheus_constant_labels,
        buckets={
            metrics.CANARY_RECORDS_PRODUCED_LATENCY: config.producer_latency_buckets_ms,
            metrics.CANARY_RECORDS_CONSUMED_LATENCY: config.endtoend_latency_buckets_ms,
            metrics.CANARY_CONNECTION_LATENCY: config.connection_check_latency_buckets_ms,
        },
    )
    probe = Probe(config, telemetry)
    canary = Canary(config, access, probe, telemetry)
    telemetry.before_scrape(lambda: probe.refresh_gauges(time.monotonic()))
    telemetry.before_scrape(lambda: canary.refresh_gauges(time.time()))
    answers = Answers(
        metrics=telemetry.exposition,
        is_alive=canary.is_alive,
        is_ready=lambda: probe.is_ready(time.monotonic()),
        status=probe.status,
    )
    try:
        api = HttpApi(config.metrics_port, answers)
    except OSError as exc:
        sys.stderr.write(f"canary: METRICS_PORT {config.metrics_port} cannot be had: {exc.strerror}\n")
        return 1
    journal.note(logging.INFO, "canary.started", port=api.port, topic=config.topic, client=config.client_id)
    canary.start()
    _keep_house(config, probe, stop)
    journal.note(logging.INFO, "canary.stopping")
    canary.stop(SHUTDOWN_LIMIT_S)
    api.close()
    return 0


def read_configuration(environ: Mapping[str, str]) -> tuple[CanaryConfig, Access]:
    """Everything that can be wrong at the start, told at once. Raises ConfigError."""
    try:
        config = CanaryConfig.from_env(environ)
    except ConfigError as exc:
        raise ConfigError([*exc.problems, *environment_problems(environ)], subject=exc.subject) from exc
    access = read_access(config)
    if access.uses_tls:
        tls_context(access)  # a certificate that cannot be used is a wrong value, not an outage
    return config, access


def _keep_house(config: CanaryConfig, probe: Probe, stop: threading.Event) -> None:
    """What is due now and then, until the end; nothing of it waits."""

    def apply(verbosity: int) -> None:
        journal.set_level(config.log_level, verbosity)

    duties: list[tuple[float, Callable[[], None]]] = [
        (config.status_check_interval_ms / 1000, probe.sample),
    ]
    if config.dynamic_config_file is not None:
        dynamic = DynamicConfig(config.dynamic_config_file, config.verbosity_log_level, apply)
        dynamic.look()
        duties.append((config.dynamic_config_watcher_interval_ms / 1000, dynamic.look))
    now = time.monotonic()
    due = [now + interval for interval, _ in duties]
    while not stop.wait(max(0.0, min(due) - time.monotonic())):
        now = time.monotonic()
        for number, (interval, duty) in enumerate(duties):
            if now >= due[number]:
                duty()
                due[number] = max(due[number] + interval, now)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
