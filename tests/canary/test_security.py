"""TLS and SASL from strimzi-canary's variables or from a mounted Secret; nothing secret in any message."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from canary_image.__main__ import read_configuration
from canary_image.oauth import TokenClient, TokenError
from canary_image.security import read_access
from eventing.errors import ConfigError
from eventing.kafka_security import Secret
from eventing.program_config import CanaryConfig, SaslMechanism

PEM = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"


def test_without_anything_it_is_plain_text():
    assert read_access(CanaryConfig()).client_properties() == {}


@pytest.mark.parametrize("as_path", [True, False])
def test_pem_is_given_as_text_or_as_a_path(tmp_path, as_path):
    file = tmp_path / "ca.crt"
    file.write_text(PEM)

    access = read_access(CanaryConfig(tls_enabled=True, tls_ca_cert=str(file) if as_path else PEM))

    assert access.kafka.ca_pem == PEM


def test_a_ca_is_added_to_the_systems():
    properties = read_access(CanaryConfig(tls_enabled=True, tls_ca_cert=PEM)).client_properties()

    assert properties["ssl.ca.pem"].endswith(PEM)
    assert properties["ssl.endpoint.identification.algorithm"] == "https"
    assert "enable.ssl.certificate.verification" not in properties


def test_skipping_verification_skips_all_of_it():
    properties = read_access(CanaryConfig(tls_enabled=True, tls_insecure_skip_verify=True)).client_properties()

    assert properties["ssl.endpoint.identification.algorithm"] == "none"
    assert properties["enable.ssl.certificate.verification"] == "false"


@pytest.mark.parametrize(
    ("tls", "protocol"), [pytest.param(True, "sasl_ssl", id="TLS"), pytest.param(False, "sasl_plaintext", id="plain")]
)
def test_sasl_over_what_tls_enabled_says(tls, protocol):
    config = CanaryConfig(
        tls_enabled=tls, sasl_mechanism=SaslMechanism.SCRAM_SHA_256, sasl_user="u", sasl_password=Secret("p")
    )

    properties = read_access(config).client_properties()

    assert (properties["security.protocol"], properties["sasl.mechanism"]) == (protocol, "SCRAM-SHA-256")
    assert (properties["sasl.username"], properties["sasl.password"]) == ("u", "p")


def test_a_mounted_secret_is_taken_instead_and_its_change_is_noticed(tmp_path):
    for name, content in {"protocol": "SASL_PLAINTEXT", "user": "u", "password": "one"}.items():
        (tmp_path / name).write_text(content)
    config = CanaryConfig(kafka_secret_dir=str(tmp_path), sasl_mechanism=SaslMechanism.SCRAM_SHA_512)
    before = read_access(config)
    (tmp_path / "password").write_text("two")
    after = read_access(config)

    assert before.client_properties()["sasl.mechanism"] == "PLAIN"
    assert after.client_properties()["sasl.password"] == "two"
    assert before.digest != after.digest


def test_a_certificate_file_that_was_renewed_is_noticed(tmp_path):
    file = tmp_path / "ca.crt"
    file.write_text(PEM)
    config = CanaryConfig(tls_enabled=True, tls_ca_cert=str(file))
    before = read_access(config).digest
    file.write_text(PEM.replace("abc", "xyz"))

    assert read_access(config).digest != before


def test_every_wrong_file_is_told_together_with_every_wrong_value(tmp_path):
    (tmp_path / "no.pem").write_text("hello")
    with pytest.raises(ConfigError) as caught:
        read_configuration(
            {
                "TLS_ENABLED": "true",
                "TLS_CA_CERT": str(tmp_path / "absent"),
                "TLS_CLIENT_CERT": str(tmp_path / "no.pem"),
                "TLS_CLIENT_KEY": "MIIsecret",
                "RECONCILE_INTERVAL_MS": "x",
            }
        )

    told = str(caught.value)
    for key in ("TLS_CA_CERT", "TLS_CLIENT_CERT", "TLS_CLIENT_KEY", "RECONCILE_INTERVAL_MS"):
        assert key in told
    assert "MIIsecret" not in told


def test_a_certificate_that_is_damaged_stops_the_start():
    with pytest.raises(ConfigError, match="CA certificate"):
        read_configuration({"TLS_ENABLED": "true", "TLS_CA_CERT": PEM})


class TestTokens:
    @pytest.fixture
    def server(self):
        class Server(HTTPServer):
            status = 200
            body: object = None
            seen: list[tuple[str | None, bytes]]

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                form = self.rfile.read(int(self.headers["Content-Length"]))
                server.seen.append((self.headers["Authorization"], form))
                body = json.dumps(server.body or {"access_token": f"t{len(server.seen)}", "expires_in": 100}).encode()
                self.send_response(server.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = Server(("127.0.0.1", 0), Handler)
        server.seen = []
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        server.server_close()

    def client(self, server, clock=lambda: 1000.0, **more) -> TokenClient:
        url = f"http://127.0.0.1:{server.server_address[1]}/token"
        return TokenClient(url, client_id="me", client_secret=Secret("s:cret"), clock=clock, **more)

    def test_by_client_credentials(self, server):
        token = self.client(server, scope="kafka").get()

        assert (token.value.reveal(), token.expires_at) == ("t1", 1100.0)
        assert server.seen == [("Basic bWU6cyUzQWNyZXQ=", b"grant_type=client_credentials&scope=kafka")]

    def test_one_token_serves_until_a_fifth_of_its_life_is_left(self, server):
        now = [1000.0]
        client = self.client(server, clock=lambda: now[0])
        served = []
        for now[0] in (1000.0, 1079.0, 1081.0):
            served.append(client.get().value.reveal())

        assert served == ["t1", "t1", "t2"]

    @pytest.mark.parametrize(
        ("status", "body", "told"),
        [
            (401, None, "answered 401"),
            (200, {"error": "x"}, "answered no token"),
            (200, ["x"], "answered no token"),
            (200, {"access_token": 7}, "answered no token"),
        ],
    )
    def test_a_server_that_gives_none(self, server, status, body, told):
        server.status, server.body = status, body
        with pytest.raises(TokenError, match=told) as caught:
            self.client(server).get()

        assert "cret" not in str(caught.value)
