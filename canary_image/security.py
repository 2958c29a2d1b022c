"""How the canary speaks to Kafka: the mounted Secret, or strimzi-canary's `TLS_*` and `SASL_*` variables.

`TLS_CA_CERT`, `TLS_CLIENT_CERT` and `TLS_CLIENT_KEY` hold PEM text or the path of a file with it. A CA given so is
added to the system's; one in a Secret is the only one trusted. Host names are verified unless
`TLS_INSECURE_SKIP_VERIFY` says otherwise, which also accepts any certificate.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from eventing.errors import ConfigError
from eventing.kafka_security import KafkaSecurity, Secret, fingerprint, read_secret_dir
from eventing.program_config import CanaryConfig, SaslMechanism

_PEM_START = "-----BEGIN "


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Everything that a connection needs; `digest` changes when any of it does."""

    kafka: KafkaSecurity
    verify: bool = True
    system_authorities: bool = True
    """Trust the system's authorities beside `kafka.ca_pem`."""
    token_url: str | None = None
    token_scope: str | None = None
    digest: str = ""

    @property
    def uses_tls(self) -> bool:
        return self.kafka.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.kafka.protocol.startswith("SASL")

    @property
    def uses_tokens(self) -> bool:
        return self.uses_sasl and self.kafka.mechanism == SaslMechanism.OAUTHBEARER

    def client_properties(self) -> dict[str, str]:
        """librdkafka properties. Holds secrets in the clear: hand it to a client and to nothing else."""
        properties = self.kafka.client_properties()
        if self.uses_tls:
            if not self.verify:
                properties["enable.ssl.certificate.verification"] = "false"
            if self.kafka.ca_pem is not None and self.system_authorities:
                # librdkafka trusts the given ones alone; the system's come first because they are many and known good.
                properties["ssl.ca.pem"] = f"{_system_authorities()}\n{self.kafka.ca_pem}"
        return properties


def read_access(config: CanaryConfig) -> Access:
    """Read the files that the configuration names.

    Raises:
        ConfigError: naming each variable or file that is wrong, never its content.
    """
    if config.kafka_secret_dir is not None:
        security = read_secret_dir(config.kafka_secret_dir)
        verify = not config.tls_insecure_skip_verify
        return Access(
            kafka=replace(security, verify_host_name=verify),
            verify=verify,
            system_authorities=security.ca_pem is None,
            token_url=config.sasl_token_endpoint_url,
            token_scope=config.sasl_token_scope,
            digest=fingerprint(config.kafka_secret_dir),
        )
    problems: list[str] = []
    ca = _pem("TLS_CA_CERT", config.tls_ca_cert, problems)
    certificate = _pem("TLS_CLIENT_CERT", config.tls_client_cert, problems)
    key = _pem(
        "TLS_CLIENT_KEY",
        None if config.tls_client_key is None else config.tls_client_key.reveal(),
        problems,
        secret=True,
    )
    if problems:
        raise ConfigError(problems, subject="environment")
    protocol = ("SASL_" if config.sasl_mechanism else "") + ("SSL" if config.tls_enabled else "PLAINTEXT")
    return Access(
        kafka=KafkaSecurity(
            protocol=protocol,
            mechanism=config.sasl_mechanism,
            user=config.sasl_user,
            password=config.sasl_password,
            ca_pem=ca,
            certificate_pem=certificate,
            key_pem=None if key is None else Secret(key),
            verify_host_name=not config.tls_insecure_skip_verify,
        ),
        verify=not config.tls_insecure_skip_verify,
        token_url=config.sasl_token_endpoint_url,
        token_scope=config.sasl_token_scope,
        digest=hashlib.sha256("\0".join([ca or "", certificate or "", key or ""]).encode()).hexdigest(),
    )


def environment_problems(environ: Mapping[str, str]) -> list[str]:
    """What is wrong with the files that the environment names, for an environment that is wrong already."""
    problems: list[str] = []
    if environ.get("KAFKA_SECRET_DIR"):
        try:
            read_secret_dir(environ["KAFKA_SECRET_DIR"])
        except ConfigError as exc:
            problems.extend(exc.problems)
        return problems
    for variable in ("TLS_CA_CERT", "TLS_CLIENT_CERT", "TLS_CLIENT_KEY"):
        _pem(variable, environ.get(variable) or None, problems, secret=variable == "TLS_CLIENT_KEY")
    return problems


def _pem(variable: str, value: str | None, problems: list[str], *, secret: bool = False) -> str | None:
    """PEM text as given, or from the file that is named."""
    if value is None or _PEM_START in value:
        return value
    # A key pasted without its first line must not be repeated in a message as if it were a path.
    named = "the file that it names" if secret else repr(value)
    try:
        text = Path(value).read_text()
    except (OSError, ValueError) as exc:
        problems.append(f"{variable}: {named} cannot be read ({getattr(exc, 'strerror', None) or 'no text'})")
        return None
    if _PEM_START not in text:
        problems.append(f"{variable}: {named} is not PEM text")
        return None
    return text


def _system_authorities() -> str:
    """The system's authorities as PEM, empty where there are none."""
    paths = ssl.get_default_verify_paths()
    for name in (paths.cafile, paths.openssl_cafile, "/etc/ssl/certs/ca-certificates.crt"):
        if name:
            try:
                return Path(name).read_text()
            except (OSError, ValueError):
                continue
    return ""
