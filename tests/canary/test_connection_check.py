"""Can a broker be reached, in words, for every way in which it cannot."""

from __future__ import annotations

import socket
import ssl
import time
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from canary_image.certificates import first_not_after, not_after
from canary_image.connection_check import ConnectionCheck, tls_context, visit
from canary_image.coverage import Broker
from canary_image.oauth import TokenError
from canary_image.security import Access
from canary_image.telemetry import Telemetry
from eventing.errors import ConfigError
from eventing.kafka_security import KafkaSecurity, Secret
from tests.fakes.broker_socket import BrokerSocket

PLAINTEXT = Access(kafka=KafkaSecurity())


def no_token() -> str:
    raise TokenError("none here")


def access(authority, **security) -> Access:
    return Access(kafka=KafkaSecurity(**({"protocol": "SSL", "ca_pem": authority.text("ca.crt")} | security)))


def server_context(authority, name: str = "localhost") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.path(f"{name}.crt"), authority.path(f"{name}.key"))
    return context


def look(port: int, how: Access, *, host: str = "localhost", limit_s: float = 5.0):
    context = tls_context(how) if how.uses_tls else None
    return visit(Broker(7, host, port), how, no_token, "me", context, limit_s=limit_s)


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class TestPlaintext:
    def test_a_broker_that_answers_is_connected(self):
        with BrokerSocket() as broker:
            made = look(broker.port, PLAINTEXT)

        assert made.reason is None
        assert 0 < made.latency_s < 5
        assert broker.asked == [18]

    def test_a_closed_port(self):
        assert look(closed_port(), PLAINTEXT).reason == "Connection refused"

    def test_a_host_that_does_not_exist(self):
        assert look(1, PLAINTEXT, host="no-such-host.invalid").reason

    def test_a_broker_that_hangs_is_given_up_after_the_limit(self):
        with BrokerSocket(silent=True) as broker:
            began = time.monotonic()
            made = look(broker.port, PLAINTEXT, limit_s=0.3)

        assert made.reason == "no answer within 0.3 s"
        assert time.monotonic() - began < 2

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the peer does not speak Kafka's protocol"),
            (b"\x00\x00\x00\x06\x00\x00\x00\x63\x00\x00", "the peer answered another question"),
            (b"\x00\x00\x00\x04\x00\x00\x00\x01", "the peer's answer is cut short"),
            (b"\x00\x00", "the peer closed the connection"),
        ],
    )
    def test_a_peer_that_is_no_broker(self, answer, reason):
        with BrokerSocket(answer=answer) as broker:
            assert look(broker.port, PLAINTEXT).reason == reason


class TestTls:
    def test_a_broker_with_a_good_certificate_and_when_it_ends(self, authority):
        with BrokerSocket(context=server_context(authority)) as broker:
            made = look(broker.port, access(authority))

        assert made.reason is None
        assert abs(made.certificate_ends - datetime.now(UTC) - timedelta(days=90)) < timedelta(hours=1)

    def test_the_host_name_is_verified(self, authority):
        with BrokerSocket(context=server_context(authority, "elsewhere")) as broker:
            made = look(broker.port, access(authority))

        assert "certificate is not accepted" in made.reason
        assert "mismatch" in made.reason

    def test_an_unknown_authority_is_not_accepted(self, authority):
        with BrokerSocket(context=server_context(authority)) as broker:
            made = look(broker.port, access(authority, ca_pem=authority.text("other.crt")))

        assert "certificate is not accepted" in made.reason

    def test_skipping_verification_accepts_all_and_still_tells_when_it_ends(self, authority):
        how = Access(kafka=KafkaSecurity(protocol="SSL", verify_host_name=False), verify=False)
        with BrokerSocket(context=server_context(authority, "elsewhere")) as broker:
            made = look(broker.port, how)

        assert made.reason is None
        assert made.certificate_ends is not None

    def test_a_client_certificate_is_shown_when_asked_for(self, authority):
        context = server_context(authority)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.path("ca.crt"))
        own = {"certificate_pem": authority.text("client.crt"), "key_pem": Secret(authority.text("client.key"))}
        with BrokerSocket(context=context) as broker:
            assert look(broker.port, access(authority, **own)).reason is None
            assert look(broker.port, access(authority)).reason is not None

    def test_a_plaintext_listener_is_no_tls(self, authority):
        with BrokerSocket() as broker:
            reason = look(broker.port, access(authority), limit_s=1).reason

        assert reason is not None

    @pytest.mark.parametrize(
        "wrong",
        [
            {"ca_pem": "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n"},
            {"certificate_pem": "-----BEGIN CERTIFICATE-----\nx", "key_pem": Secret("-----BEGIN PRIVATE KEY-----\nx")},
        ],
    )
    def test_a_certificate_that_cannot_be_used_is_wrong_configuration(self, authority, wrong):
        with pytest.raises(ConfigError):
            tls_context(access(authority, **wrong))


class TestSasl:
    def test_plain_with_the_right_and_the_wrong_password(self):
        with BrokerSocket(users={"me": "secret"}) as broker:
            right, wrong = (
                look(
                    broker.port,
                    Access(
                        kafka=KafkaSecurity(
                            protocol="SASL_PLAINTEXT", mechanism="PLAIN", user="me", password=Secret(password)
                        )
                    ),
                ).reason
                for password in ("secret", "hunter2")
            )

        assert right is None
        assert wrong == "authentication failed (error 58): denied"

    def test_a_mechanism_that_the_broker_does_not_offer(self):
        how = Access(
            kafka=KafkaSecurity(
                protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-512", user="me", password=Secret("secret")
            )
        )
        with BrokerSocket() as broker:
            reason = look(broker.port, how).reason

        assert reason == "the broker refused the SASL mechanism (error 33); it offers PLAIN"

    def test_no_token_is_told_as_that(self):
        how = Access(kafka=KafkaSecurity(protocol="SASL_PLAINTEXT", mechanism="OAUTHBEARER"))

        assert look(1, how).reason == "no token: none here"


def test_every_broker_is_counted_by_whether_it_could_be_reached():
    telemetry = Telemetry()
    with BrokerSocket() as broker:
        brokers = [Broker(0, "127.0.0.1", broker.port), Broker(1, "127.0.0.1", closed_port())]
        ConnectionCheck(telemetry, client_id="me").run(brokers, PLAINTEXT, no_token)

    found = {
        (sample.name.removeprefix("strimzi_canary_connection_"), sample.labels["brokerid"], sample.labels["connected"])
        for family in text_string_to_metric_families(telemetry.exposition().decode())
        for sample in family.samples
        if sample.name.startswith("strimzi_canary_connection_") and "le" not in sample.labels and sample.value > 0
    }
    assert found == {
        ("total", "0", "true"),
        ("latency_count", "0", "true"),
        ("latency_sum", "0", "true"),
        ("total", "1", "false"),
        ("error_total", "1", "false"),
        ("latency_count", "1", "false"),
        ("latency_sum", "1", "false"),
    }


def test_days_left_of_a_certificate_count_down(authority):
    telemetry = Telemetry()
    check = ConnectionCheck(telemetry, client_id="me")
    with BrokerSocket(context=server_context(authority)) as broker:
        check.run([Broker(4, "localhost", broker.port)], access(authority), no_token)

    check.refresh_gauges(time.time() + 100 * 86_400)

    assert 'sluice_canary_certificate_remaining_days{brokerid="4"} -1' in telemetry.exposition().decode()


class TestCertificates:
    def test_as_the_standard_library_reads_it(self, authority):
        for name in ("ca", "localhost", "client"):
            expected = ssl._ssl._test_decode_cert(authority.path(f"{name}.crt"))["notAfter"]

            assert first_not_after(authority.text(f"{name}.crt")).timestamp() == ssl.cert_time_to_seconds(expected)

    @pytest.mark.parametrize("der", [b"", b"\x30", b"\x30\x82", b"\x30\x03\x30\x01\x00", b"nonsense"])
    def test_what_is_no_certificate_has_no_end(self, der):
        assert not_after(der) is None
        assert first_not_after("no PEM") is None
