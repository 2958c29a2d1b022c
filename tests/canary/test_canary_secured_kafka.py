"""Every way to speak securely to Kafka, against one real broker with a listener for each."""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from orchestration.local.kafka_server import KafkaServer
from orchestration.local.ports import free_port
from tests.canary.canary_process import CanaryProcess

pytestmark = pytest.mark.kafka

TOPIC = "__strimzi_canary"
PASSWORD = "correct-horse"
LISTENERS = {
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "ELSEWHERE": "SSL",
    "PLAIN": "SASL_SSL",
    "SCRAM": "SASL_PLAINTEXT",
    "OAUTH": "SASL_PLAINTEXT",
}

numbers = itertools.count(1)


@pytest.fixture(scope="module")
def secured(tmp_path_factory, authority):
    """A broker with plain text and all of LISTENERS; gives the address of each."""
    for name in ("localhost", "elsewhere"):
        (authority.folder / f"{name}.pem").write_text(authority.text(f"{name}.key") + authority.text(f"{name}.crt"))
    server = KafkaServer(tmp_path_factory.mktemp("secured"), brokers=1)
    settings = server.settings(0)
    ports = {name: free_port() for name in LISTENERS}
    more = ",".join(f"{name}://localhost:{port}" for name, port in ports.items())
    security = ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items())
    jaas = "org.apache.kafka.common.security"
    server._properties.update(
        {
            "listeners": f"{settings['listeners']},{more}",
            "advertised.listeners": f"{settings['advertised.listeners']},{more}",
            "listener.security.protocol.map": f"{settings['listener.security.protocol.map']},{security}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": authority.path("localhost.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": authority.path("ca.crt"),
            "listener.name.elsewhere.ssl.keystore.type": "PEM",
            "listener.name.elsewhere.ssl.keystore.location": authority.path("elsewhere.pem"),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.plain.plain.sasl.jaas.config": (
                f'{jaas}.plain.PlainLoginModule required user_me="{PASSWORD}";'
            ),
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.scram.scram-sha-256.sasl.jaas.config": f"{jaas}.scram.ScramLoginModule required;",
            "listener.name.scram.scram-sha-512.sasl.jaas.config": f"{jaas}.scram.ScramLoginModule required;",
            "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.oauth.oauthbearer.sasl.jaas.config": (
                f'{jaas}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
            ),
        }
    )
    with server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        for future in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
            future.result(30)
        upserts = [
            UserScramCredentialUpsertion("me", ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        for upsert in upserts:  # one request names a user once
            for future in admin.alter_user_scram_credentials([upsert]).values():
                future.result(30)
        yield {name: f"localhost:{port}" for name, port in ports.items()}


@pytest.fixture
def start(secured, tmp_path, authority):
    def start(listener: str, **environ: str) -> CanaryProcess:
        name = f"canary-{next(numbers)}"
        full = {"KAFKA_BOOTSTRAP_SERVERS": secured[listener], "CLIENT_ID": name, "CONSUMER_GROUP_ID": name}
        if LISTENERS[listener].endswith("SSL"):
            full |= {"TLS_ENABLED": "true", "TLS_CA_CERT": authority.path("ca.crt")}
        return CanaryProcess(full | environ, tmp_path / f"{name}.log")

    return start


def sasl(mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    return {"SASL_MECHANISM": mechanism, "SASL_USER": "me", "SASL_PASSWORD": password}


def connected(canary: CanaryProcess, is_connected: str = "true") -> float:
    return canary.count("strimzi_canary_connection_total", brokerid="0", connected=is_connected)


def works(canary: CanaryProcess) -> None:
    canary.eventually(canary.is_ready)
    canary.eventually(lambda: connected(canary) >= 1)
    assert connected(canary, "false") == 0
    assert PASSWORD not in canary.log.read_text() + canary.get("/metrics")[1]


def test_tls_and_when_the_certificates_end(start):
    with start("TLS") as canary:
        works(canary)

        assert 89 < canary.count("sluice_canary_certificate_remaining_days", brokerid="0") <= 90


def test_tls_with_the_authority_as_text(start, authority):
    with start("TLS", TLS_CA_CERT=authority.text("ca.crt")) as canary:
        works(canary)


def test_mutual_tls(start, authority):
    own = {"TLS_CLIENT_CERT": authority.path("client.crt"), "TLS_CLIENT_KEY": authority.text("client.key")}
    with start("MUTUAL", **own) as canary:
        works(canary)

        assert 44 < canary.count("sluice_canary_client_certificate_remaining_days") <= 45


def test_a_certificate_of_another_host_is_not_accepted(start):
    with start("ELSEWHERE") as canary:
        canary.eventually(lambda: canary.count("strimzi_canary_client_creation_error_total") >= 1)

        assert not canary.is_ready()


def test_unless_verification_is_switched_off(start):
    with start("ELSEWHERE", TLS_INSECURE_SKIP_VERIFY="true") as canary:
        works(canary)


@pytest.mark.parametrize(
    ("listener", "mechanism"), [("PLAIN", "PLAIN"), ("SCRAM", "SCRAM-SHA-256"), ("SCRAM", "SCRAM-SHA-512")]
)
def test_sasl(start, listener, mechanism):
    with start(listener, **sasl(mechanism)) as canary:
        works(canary)


def test_oauthbearer(start):
    def token() -> str:
        now = int(time.time())
        parts = ({"alg": "none"}, {"sub": "me", "iat": now, "exp": now + 600})
        return ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts) + "."

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.dumps({"access_token": token(), "expires_in": 600}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/token"
    try:
        with start("OAUTH", **sasl("OAUTHBEARER"), SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL=url) as canary:
            works(canary)
    finally:
        server.shutdown()
        server.server_close()


def test_a_mounted_secret_that_changes_is_followed_without_a_restart(secured, start, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    for name, content in {
        "protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "user": "me",
        "password": "wrong",
    }.items():
        (secret / name).write_text(content)
    with start("SCRAM", KAFKA_SECRET_DIR=str(secret)) as canary:
        canary.eventually(lambda: canary.count("strimzi_canary_client_creation_error_total") >= 1)
        assert canary.get("/liveness")[0] == 200

        (secret / "password").write_text(PASSWORD)
        works(canary)
        # Once more while it runs: the session is replaced, and nothing of the records is lost.
        (secret / "sasl.mechanism").write_text("SCRAM-SHA-256")
        canary.eventually(lambda: "credentials.changed" in canary.log.read_text())
        consumed = canary.consumed(0)
        canary.eventually(lambda: canary.consumed(0) >= consumed + 3)

        assert canary.count("sluice_canary_records_lost_total") == 0
        assert "wrong" not in canary.get("/metrics")[1]
