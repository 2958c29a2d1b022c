"""The canary's life: wait for Kafka and the topic, probe until the end, take up new credentials on the way.

Nothing that Kafka does ends it. While Kafka or the topic is away it waits as `KAFKA_BOOTSTRAP_BACKOFF_*` say, and
once Kafka answers never longer than one interval. A session that runs is ended by the program or by new credentials.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from canary_image import journal
from canary_image.backoff import Backoff
from canary_image.certificates import first_not_after
from canary_image.connection_check import SECONDS_A_DAY, ConnectionCheck, tls_context, visit_all
from canary_image.coverage import Broker
from canary_image.kafka_clients import KafkaClients
from canary_image.oauth import TokenClient, TokenError
from canary_image.probe import Probe
from canary_image.security import Access, read_access
from canary_image.session import Session
from canary_image.telemetry import Telemetry
from eventing import metrics
from eventing.errors import ConfigError, SluiceError
from eventing.kafka_security import Secret
from eventing.program_config import CanaryConfig

CREDENTIALS_INTERVAL_S = 5.0
"""How often mounted credentials are compared with those in use."""
SUSPECT_LIMIT_S = 2.0
"""How long a leader that owes an answer may take to accept a connection."""
RETRY_S = 1.0


class Canary:
    """Two threads beside those of the session: one lives this life, one checks connections."""

    def __init__(self, config: CanaryConfig, access: Access, probe: Probe, telemetry: Telemetry) -> None:
        self._config = config
        self._access = access
        self._tokens = _token_client(access)
        self._probe = probe
        self._telemetry = telemetry
        self._check = ConnectionCheck(telemetry, client_id=config.client_id)
        self._stop = threading.Event()
        self._session: Session | None = None
        self._threads = [
            threading.Thread(target=self._guard, args=(loop,), name=loop.__name__.strip("_"), daemon=True)
            for loop in (self._live, self._check_connections)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def is_alive(self) -> bool:
        """No thread has ended before its time."""
        session = self._session
        return all(thread.is_alive() for thread in self._threads) and (session is None or session.is_alive())

    def stop(self, timeout: float) -> None:
        """End within `timeout` seconds, or leave what still hangs to the end of the process."""
        self._stop.set()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def refresh_gauges(self, wall: float) -> None:
        """Days left of every certificate; `wall` is Unix time in seconds."""
        self._check.refresh_gauges(wall)
        pem = self._access.kafka.certificate_pem if self._access.uses_tls else None
        ends = first_not_after(pem) if pem is not None else None
        if ends is not None:
            days = (ends.timestamp() - wall) / SECONDS_A_DAY
            self._telemetry.set(metrics.CANARY_CLIENT_CERTIFICATE_DAYS, days, self._config.client_id)

    def _guard(self, loop: Callable[[], None]) -> None:
        while not self._stop.is_set():
            try:
                loop()
            except Exception as exc:  # noqa: BLE001  (a top loop: a canary that dies is blind)
                journal.note(logging.ERROR, "loop.failed", failure=exc, loop=loop.__name__)
                self._stop.wait(RETRY_S)

    # --- living ------------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        while not self._stop.is_set():
            clients = self._wait_for_topic()
            if clients is None:
                return
            session = Session(clients, self._unreachable, self._probe, self._telemetry, self._config)
            self._session = session
            session.start()
            try:
                while not self._stop.wait(CREDENTIALS_INTERVAL_S):
                    if self._take_new_credentials():
                        journal.note(logging.INFO, "credentials.changed")
                        break
            finally:
                self._session = None
                session.stop()

    def _wait_for_topic(self) -> KafkaClients | None:
        """Clients for a cluster on which the topic exists; None when the program ends first."""
        backoff = Backoff(
            scale=timedelta(milliseconds=self._config.bootstrap_backoff_scale_ms),
            max_attempts=self._config.bootstrap_backoff_max_attempts,
        )
        interval = self._config.reconcile_interval_ms / 1000
        clients: KafkaClients | None = None
        attempt = 0
        while not self._stop.is_set():
            attempt += 1
            wait = backoff.wait(attempt).total_seconds()
            try:
                clients = clients or KafkaClients(self._config, self._client_properties())
                view = clients.describe()
            except SluiceError as exc:
                self._telemetry.count(metrics.CANARY_CLIENT_CREATION_ERROR)
                journal.note(logging.WARNING, "kafka.unreachable", attempt=attempt, wait_seconds=wait, reason=exc)
                if clients is not None:
                    clients.close(0)  # quiet while we wait; and the next one may have other credentials
                    clients = None
            else:
                self._probe.observe(view)
                if view.partitions is not None:
                    journal.note(logging.INFO, "topic.found", topic=self._config.topic, partitions=len(view.partitions))
                    return clients
                expected = self._config.expected_cluster_size
                if expected is not None and len(view.brokers) != expected:
                    self._telemetry.count(metrics.CANARY_EXPECTED_CLUSTER_SIZE_ERROR)
                # A cluster that answers may be asked as often as a probe would; the topic should not wait for us.
                wait = min(wait, interval)
                journal.note(
                    logging.INFO if attempt == 1 else logging.DEBUG,
                    "topic.absent",
                    topic=self._config.topic,
                    brokers=len(view.brokers),
                    expected_brokers=expected if expected is not None else "any",
                )
            self._stop.wait(wait)
            self._take_new_credentials()
        if clients is not None:
            clients.close(0)
        return None

    def _client_properties(self) -> dict[str, Any]:
        properties: dict[str, Any] = dict(self._access.client_properties())
        tokens = self._tokens
        if tokens is not None:

            def refresh(_config: str) -> tuple[str, float]:
                token = tokens.get()
                return token.value.reveal(), token.expires_at

            properties["oauth_cb"] = refresh
        return properties

    def _take_new_credentials(self) -> bool:
        """True when they changed. Wrong ones are told and not taken: they may be half written."""
        try:
            access = read_access(self._config)
            if access.digest == self._access.digest:
                return False
            tokens = _token_client(access)
            if access.uses_tls:
                tls_context(access)
        except ConfigError as exc:
            journal.note(logging.WARNING, "credentials.wrong", reason=exc)
            return False
        self._access, self._tokens = access, tokens
        return True

    # --- checking connections ----------------------------------------------------------------------------------------

    def _check_connections(self) -> None:
        while not self._stop.is_set() and not self._probe.wait_for_brokers(RETRY_S):
            pass
        interval = self._config.connection_check_interval_ms / 1000
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            self._check.run(self._probe.checked_brokers(), self._access, self._bearer)
            due = max(due + interval, time.monotonic())

    def _unreachable(self, brokers: Iterable[Broker]) -> set[int]:
        """Those of the brokers that cannot be reached within a moment."""
        visits = visit_all(brokers, self._access, self._bearer, self._config.client_id, limit_s=SUSPECT_LIMIT_S)
        return {made.broker.id for made in visits if made.reason is not None}

    def _bearer(self) -> str:
        if self._tokens is None:
            raise TokenError("no token server is configured")
        return self._tokens.get().value.reveal()


def _token_client(access: Access) -> TokenClient | None:
    if not access.uses_tokens or access.token_url is None:
        return None
    return TokenClient(
        access.token_url,
        client_id=access.kafka.user or "",
        client_secret=access.kafka.password or Secret(""),
        scope=access.token_scope,
    )
