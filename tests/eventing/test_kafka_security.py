"""A mounted Secret becomes client properties, and nothing of it is ever printed."""

from __future__ import annotations

import pytest

from eventing.errors import ConfigError
from eventing.kafka_security import fingerprint, read_secret_dir

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"


@pytest.fixture
def secret_dir(tmp_path):
    def write(**files):
        for name, content in files.items():
            (tmp_path / name.replace("_", ".")).write_text(content)
        return tmp_path

    return write


def test_without_a_secret_the_connection_is_plain():
    assert read_secret_dir(None).client_properties() == {}


def test_sasl_over_tls_verifies_the_host_name(secret_dir):
    folder = secret_dir(
        protocol="SASL_SSL\n", sasl_mechanism="SCRAM-SHA-512", user="app", password="s3cret\n", ca_crt=PEM
    )

    assert read_secret_dir(folder).client_properties() == {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "app",
        "sasl.password": "s3cret",
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.ca.pem": PEM,
    }


def test_secrets_hide_from_every_way_of_printing(secret_dir):
    security = read_secret_dir(secret_dir(protocol="SASL_PLAINTEXT", user="app", password="s3cret"))

    assert "s3cret" not in f"{security} {security!r} {security.password} {security.password!r} %s" % security.password


def test_an_older_secret_without_protocol_is_understood(secret_dir):
    assert read_secret_dir(secret_dir(user="app", password="x", ca_crt=PEM)).protocol == "SASL_SSL"


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"protocol": "TLS"}, "protocol"),
        ({"protocol": "SASL_SSL"}, "user is required"),
        ({"protocol": "SASL_SSL", "user": "a", "password": "b", "sasl_mechanism": "GSSAPI"}, "sasl.mechanism"),
        ({"protocol": "SSL", "user_crt": PEM}, "user.crt and user.key"),
        ({"protocol": "SSL", "ca_crt": "/etc/ssl/ca.pem"}, "ca.crt is not PEM"),
    ],
)
def test_what_is_wrong_is_named_without_its_content(secret_dir, files, named):
    with pytest.raises(ConfigError, match=named):
        read_secret_dir(secret_dir(**files))


def test_a_changed_secret_has_another_fingerprint(secret_dir):
    before = fingerprint(secret_dir(protocol="SASL_SSL", password="a"))

    assert fingerprint(secret_dir(password="b")) != before
    assert fingerprint(None) == ""
