"""Can every broker be reached, how long does it take, and when does its certificate end?

A check opens a connection as a client would: TCP, then TLS, then one ApiVersions request (a load balancer with
nothing behind it takes connections too), then SASL. All brokers are visited at once, each within its own limit.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from canary_image import journal, kafka_wire, sasl
from canary_image.certificates import not_after
from canary_image.coverage import Broker
from canary_image.kafka_wire import WireError
from canary_image.oauth import TokenError
from canary_image.sasl import Conversation, SaslError
from canary_image.security import Access
from canary_image.telemetry import Telemetry
from eventing import metrics
from eventing.errors import ConfigError
from eventing.program_config import SaslMechanism

CONNECT_LIMIT_S = 10.0
"""A broker that takes longer counts as not connected."""
MOST_AT_ONCE = 64
"""Brokers visited at the same time; the rest follow."""
SECONDS_A_DAY = 86_400

TokenSource = Callable[[], str]
"""Gives a bearer token for OAUTHBEARER; raises TokenError."""


@dataclass(frozen=True, slots=True)
class Visit:
    """What one connection showed. `reason` is None when it was made."""

    broker: Broker
    latency_s: float
    reason: str | None
    certificate_ends: datetime | None


class ConnectionCheck:
    """Visits brokers and books the outcome."""

    def __init__(self, telemetry: Telemetry, *, client_id: str) -> None:
        self._telemetry = telemetry
        self._client_id = client_id
        self._ends: dict[int, datetime] = {}
        self._unreachable: set[int] = set()
        self._lock = threading.Lock()

    def run(self, brokers: Iterable[Broker], access: Access, token: TokenSource) -> None:
        """Visit each broker once and count it; returns when all are done."""
        for made in visit_all(brokers, access, token, self._client_id):
            self._book(made)

    def refresh_gauges(self, wall: float) -> None:
        """Days left of each certificate that was seen; `wall` is Unix time in seconds."""
        with self._lock:
            for broker, ends in self._ends.items():
                days = (ends.timestamp() - wall) / SECONDS_A_DAY
                self._telemetry.set(metrics.CANARY_CERTIFICATE_DAYS, days, str(broker))

    def _book(self, made: Visit) -> None:
        broker, connected = str(made.broker.id), "true" if made.reason is None else "false"
        self._telemetry.count(metrics.CANARY_CONNECTION, broker, connected)
        self._telemetry.observe(metrics.CANARY_CONNECTION_LATENCY, made.latency_s * 1000, broker, connected)
        with self._lock:
            if made.certificate_ends is not None:
                self._ends[made.broker.id] = made.certificate_ends
        if made.reason is not None:
            self._telemetry.count(metrics.CANARY_CONNECTION_ERROR, broker, connected)
            level = logging.DEBUG if made.broker.id in self._unreachable else logging.WARNING
            self._unreachable.add(made.broker.id)
            address = f"{made.broker.host}:{made.broker.port}"
            journal.note(level, "broker.unreachable", broker=broker, address=address, reason=made.reason)
        elif made.broker.id in self._unreachable:
            self._unreachable.discard(made.broker.id)
            journal.note(logging.INFO, "broker.reachable", broker=broker, seconds=round(made.latency_s, 3))


def visit_all(
    brokers: Iterable[Broker], access: Access, token: TokenSource, client_id: str, *, limit_s: float = CONNECT_LIMIT_S
) -> list[Visit]:
    """Visit all at once; takes at most `limit_s` for each MOST_AT_ONCE of them."""
    context = tls_context(access) if access.uses_tls else None
    visits: list[Visit] = []
    waiting = list(brokers)
    while waiting:
        batch, waiting = waiting[:MOST_AT_ONCE], waiting[MOST_AT_ONCE:]

        def go(broker: Broker) -> None:
            visits.append(visit(broker, access, token, client_id, context, limit_s=limit_s))

        threads = [
            threading.Thread(target=go, args=(broker,), name=f"visit-{broker.id}", daemon=True) for broker in batch
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return visits


def visit(
    broker: Broker,
    access: Access,
    token: TokenSource,
    client_id: str,
    context: ssl.SSLContext | None,
    *,
    limit_s: float = CONNECT_LIMIT_S,
) -> Visit:
    """Open a connection to one broker and close it again. Raises nothing. `context` is None without TLS."""
    began = time.monotonic()
    ends: datetime | None = None
    reason: str | None = None
    try:
        bearer = token() if access.uses_tokens else ""
        began = time.monotonic()  # the token server is no broker
        connection = _Connection(broker, client_id, began + limit_s)
        try:
            connection.open(context)
            ends = connection.certificate_ends
            connection.prove_broker()
            if access.uses_sasl:
                connection.authenticate(access.kafka.mechanism or SaslMechanism.PLAIN, _conversation(access, bearer))
        finally:
            connection.close()
    except TokenError as exc:
        reason = f"no token: {exc}"
    except (WireError, SaslError) as exc:
        reason = str(exc)
    except ssl.SSLCertVerificationError as exc:
        reason = f"the certificate is not accepted: {exc.verify_message}"
    except ssl.SSLError as exc:
        reason = f"TLS failed: {exc.reason or exc}"
    except TimeoutError:
        reason = f"no answer within {limit_s:g} s"
    except OSError as exc:
        reason = exc.strerror or str(exc)
    except ValueError as exc:  # a host name that cannot be one
        reason = str(exc)
    return Visit(broker, time.monotonic() - began, reason, ends)


def _conversation(access: Access, bearer: str) -> Conversation:
    user = access.kafka.user or ""
    password = access.kafka.password.reveal() if access.kafka.password is not None else ""
    match access.kafka.mechanism:
        case SaslMechanism.SCRAM_SHA_256:
            return sasl.scram(user, password, algorithm="sha256", nonce=secrets.token_urlsafe(24))
        case SaslMechanism.SCRAM_SHA_512:
            return sasl.scram(user, password, algorithm="sha512", nonce=secrets.token_urlsafe(24))
        case SaslMechanism.OAUTHBEARER:
            return sasl.oauthbearer(bearer)
        case _:
            return sasl.plain(user, password)


class _Connection:
    """One connection, with one deadline for everything on it."""

    def __init__(self, broker: Broker, client_id: str, deadline: float) -> None:
        self._broker = broker
        self._client_id = client_id
        self._deadline = deadline
        self._socket: socket.socket | None = None
        self._correlation_id = 0
        self.certificate_ends: datetime | None = None

    def open(self, context: ssl.SSLContext | None) -> None:
        self._socket = socket.create_connection((self._broker.host, self._broker.port), timeout=self._left())
        if context is None:
            return
        self._socket.settimeout(self._left())
        secured = context.wrap_socket(self._socket, server_hostname=self._broker.host)
        self._socket = secured
        certificate = secured.getpeercert(binary_form=True)
        self.certificate_ends = not_after(certificate) if certificate else None

    def prove_broker(self) -> None:
        kafka_wire.check_api_versions(self._ask(kafka_wire.api_versions(self._next_id(), self._client_id)))

    def authenticate(self, mechanism: str, conversation: Conversation) -> None:
        hello = kafka_wire.sasl_handshake(self._next_id(), self._client_id, mechanism)
        kafka_wire.check_sasl_handshake(self._ask(hello))
        said = next(conversation)
        while True:
            request = kafka_wire.sasl_authenticate(self._next_id(), self._client_id, said)
            answer = kafka_wire.read_sasl_authenticate(self._ask(request))
            try:
                said = conversation.send(answer)
            except StopIteration:
                return

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _ask(self, request: bytes) -> bytes:
        assert self._socket is not None, "open() comes first"
        self._socket.settimeout(self._left())
        self._socket.sendall(request)
        response = self._read(kafka_wire.response_length(self._read(4)))
        return kafka_wire.body_of(response, self._correlation_id)

    def _read(self, length: int) -> bytes:
        assert self._socket is not None, "open() comes first"
        data = b""
        while len(data) < length:
            self._socket.settimeout(self._left())
            more = self._socket.recv(length - len(data))
            if not more:
                raise WireError("the peer closed the connection")
            data += more
        return data

    def _next_id(self) -> int:
        self._correlation_id += 1
        return self._correlation_id

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def tls_context(access: Access) -> ssl.SSLContext:
    """Verifies certificate and host name unless the configuration says not to.

    Raises:
        ConfigError: a certificate or key of the configuration is wrong.
    """
    try:
        context = ssl.create_default_context() if access.system_authorities else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if access.kafka.ca_pem is not None:
            context.load_verify_locations(cadata=access.kafka.ca_pem)
    except (ssl.SSLError, ValueError) as exc:
        raise ConfigError(["the CA certificate cannot be used"], subject="TLS") from exc
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if access.kafka.certificate_pem is not None and access.kafka.key_pem is not None:
        # OpenSSL reads a certificate and its key from a file only; this one is in memory and nobody else's.
        file = os.memfd_create("canary-certificate", os.MFD_CLOEXEC)
        try:
            os.write(file, f"{access.kafka.certificate_pem}\n{access.kafka.key_pem.reveal()}\n".encode())
            # An empty password, or OpenSSL would ask for one at the terminal.
            context.load_cert_chain(f"/proc/self/fd/{file}", password="")
        except (ssl.SSLError, ValueError) as exc:
            raise ConfigError(["the client's certificate and key cannot be used"], subject="TLS") from exc
        finally:
            os.close(file)
    return context
