"""The security of `eventing.kafka_security` in the words of kafka-python."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path
from typing import Any

from eventing.errors import ConfigError
from eventing.kafka_security import KafkaSecurity


def python_properties(security: KafkaSecurity) -> dict[str, Any]:
    """Arguments of `KafkaAdminClient`. Holds secrets: hand it to the client and to nothing else.

    Raises:
        ConfigError: a certificate or key that cannot be used, or a mechanism that kafka-python needs code for.
    """
    if security.protocol == "PLAINTEXT":
        return {}
    properties: dict[str, Any] = {"security_protocol": security.protocol}
    if security.protocol.startswith("SASL"):
        if security.mechanism == "OAUTHBEARER":
            raise ConfigError(
                ["sasl.mechanism OAUTHBEARER is not supported by orchestration"], subject="Kafka security"
            )
        properties["sasl_mechanism"] = security.mechanism or "PLAIN"
        properties["sasl_plain_username"] = security.user
        properties["sasl_plain_password"] = None if security.password is None else security.password.reveal()
    if security.protocol.endswith("SSL"):
        properties["ssl_context"] = _context(security)
    return properties


def _context(security: KafkaSecurity) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=security.ca_pem)
        context.check_hostname = security.verify_host_name
        if security.certificate_pem is not None and security.key_pem is not None:
            # Python's ssl loads a client certificate from a file only; it lives as long as the call.
            with tempfile.TemporaryDirectory() as folder:
                chain = Path(folder) / "client.pem"
                chain.touch(mode=0o600)
                chain.write_text(security.certificate_pem + "\n" + security.key_pem.reveal())
                context.load_cert_chain(chain)
    except (ssl.SSLError, ValueError) as exc:
        raise ConfigError([f"the certificates cannot be used: {exc}"], subject="Kafka security") from exc
    return context
