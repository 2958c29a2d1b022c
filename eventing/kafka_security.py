"""How every program of ours speaks securely to Kafka: from a mounted Secret to client properties.

A Secret is a folder of files, one value each: `protocol`, `sasl.mechanism`, `user`, `password`, `ca.crt`, `user.crt`,
`user.key` (the layout of Knative's Kafka broker). The result is a dict of librdkafka properties; each program builds
its own client from it. Values that must never be printed are `Secret`s until the last moment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eventing.errors import ConfigError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
MAX_SECRET_BYTES = 1_048_576
"""A Kubernetes Secret cannot be larger; anything above is the wrong file."""


class Secret(str):
    """A string whose `repr` and formatting hide it; `reveal()` gives the value to a client."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def reveal(self) -> str:
        """The value itself."""
        return str.__str__(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSecurity:
    """What a client needs to reach a broker. PEM texts are the certificates themselves, not paths."""

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    user: str | None = None
    password: Secret | None = None
    ca_pem: str | None = None
    certificate_pem: str | None = None
    key_pem: Secret | None = None
    verify_host_name: bool = True

    def client_properties(self) -> dict[str, str]:
        """librdkafka properties. Holds secrets in the clear: hand it to a client and to nothing else."""
        if self.protocol == "PLAINTEXT":
            return {}
        properties = {"security.protocol": self.protocol.lower()}
        if self.protocol.startswith("SASL"):
            properties["sasl.mechanism"] = self.mechanism or "PLAIN"
            if self.user is not None:
                properties["sasl.username"] = self.user
            if self.password is not None:
                properties["sasl.password"] = self.password.reveal()
        if self.protocol.endswith("SSL"):
            # An https algorithm makes librdkafka compare the host name; Go clients with a custom CA often do not.
            properties["ssl.endpoint.identification.algorithm"] = "https" if self.verify_host_name else "none"
            if self.ca_pem is not None:
                properties["ssl.ca.pem"] = self.ca_pem
            if self.certificate_pem is not None:
                properties["ssl.certificate.pem"] = self.certificate_pem
            if self.key_pem is not None:
                properties["ssl.key.pem"] = self.key_pem.reveal()
        return properties


def read_secret_dir(path: str | Path | None) -> KafkaSecurity:
    """Read a mounted Secret. None: plain text.

    Raises:
        ConfigError: naming each file that is missing or wrong, never its content.
    """
    if path is None:
        return KafkaSecurity()
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError([f"KAFKA_SECRET_DIR {str(folder)!r} is not a folder"], subject="Kafka security")
    problems: list[str] = []

    def read(name: str) -> str | None:
        try:
            with (folder / name).open("rb") as file:
                content = file.read(MAX_SECRET_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as exc:
            problems.append(f"{name} cannot be read ({exc.strerror})")
            return None
        if len(content) > MAX_SECRET_BYTES:
            problems.append(f"{name} is larger than {MAX_SECRET_BYTES} bytes")
            return None
        try:
            # An editor's final newline is never part of a password or name.
            return content.decode().rstrip("\r\n") or None
        except UnicodeDecodeError:
            problems.append(f"{name} is not UTF-8 text")
            return None

    security = security_from(
        {
            name: read(name)
            for name in (
                "protocol",
                "sasl.mechanism",
                "user",
                "password",
                "ca.crt",
                "user.crt",
                "user.key",
                "user.skip",
            )
        },
        problems,
    )
    if problems:
        raise ConfigError(problems, subject="Kafka security")
    return security


def security_from(values: Mapping[str, str | None], problems: list[str]) -> KafkaSecurity:
    """Check the values of a Secret, by file name; what is wrong is appended to `problems`."""
    user, password = values.get("user"), values.get("password")
    protocol = (values.get("protocol") or _inferred_protocol(values)).strip().upper()
    if protocol not in PROTOCOLS:
        problems.append(f"protocol must be one of {', '.join(PROTOCOLS)}")
        protocol = "PLAINTEXT"
    mechanism: str | None = None
    if protocol.startswith("SASL"):
        mechanism = (values.get("sasl.mechanism") or "PLAIN").strip().upper()
        if mechanism not in MECHANISMS:
            problems.append(f"sasl.mechanism must be one of {', '.join(MECHANISMS)}")
        elif mechanism != "OAUTHBEARER":
            problems.extend(
                f"{name} is required with {protocol}"
                for name, value in (("user", user), ("password", password))
                if not value
            )
    certificate, key = values.get("user.crt"), values.get("user.key")
    if (values.get("user.skip") or "").lower() == "true":
        certificate = key = None
    if (certificate is None) != (key is None):
        problems.append("user.crt and user.key belong together; one of them is missing")
    for name, value in (("ca.crt", values.get("ca.crt")), ("user.crt", certificate), ("user.key", key)):
        if value is not None and "-----BEGIN " not in value:
            problems.append(f"{name} is not PEM text")
    return KafkaSecurity(
        protocol=protocol,
        mechanism=mechanism,
        user=user,
        password=None if password is None else Secret(password),
        ca_pem=values.get("ca.crt"),
        certificate_pem=certificate,
        key_pem=None if key is None else Secret(key),
    )


def _inferred_protocol(values: Mapping[str, str | None]) -> str:
    """Older Secrets have no `protocol`; what they hold says which one is meant."""
    sasl = "SASL_" if values.get("user") else ""
    secured = "SSL" if values.get("ca.crt") or values.get("user.crt") else ""
    return (sasl + (secured or ("PLAINTEXT" if sasl else ""))) or "PLAINTEXT"


def fingerprint(path: str | Path | None) -> str:
    """A digest of a mounted Secret's files, to notice that it changed; empty without one."""
    if path is None:
        return ""
    digest = hashlib.sha256()
    try:
        for file in sorted(Path(path).iterdir()):
            if not file.name.startswith(".") and file.is_file():
                digest.update(file.name.encode() + b"\0" + file.read_bytes()[:MAX_SECRET_BYTES] + b"\0")
    except OSError:
        return ""
    return digest.hexdigest()
