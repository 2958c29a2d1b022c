"""The client's half of SASL, as values: what to send first, and what to answer to each challenge.

The connection check speaks it itself, because a client library neither times the handshake nor shows the broker's
certificate. PLAIN is RFC 4616, SCRAM RFC 5802 and RFC 7677, OAUTHBEARER RFC 7628.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Generator

LEAST_ITERATIONS = 4096
"""RFC 7677 §4; a server that asks for fewer would make the password easy to find from what it saw."""
MOST_ITERATIONS = 1_000_000
"""Kafka's own bound is 16384; this only keeps a hostile server from holding the check up."""

Conversation = Generator[bytes, bytes, None]
"""Yields what the client says, is sent what the server answers; ends when the server has proven itself."""


class SaslError(Exception):
    """The server's answer is wrong, or it does not know the password. Never holds a secret."""


def plain(user: str, password: str) -> Conversation:
    yield f"\0{user}\0{password}".encode()


def oauthbearer(token: str) -> Conversation:
    answer = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if answer:
        # A failure comes as a challenge with JSON in it; the client has to answer ^A before the server ends it.
        yield b"\x01"
        raise SaslError("the token was refused")


def scram(user: str, password: str, *, algorithm: str, nonce: str) -> Conversation:
    """`algorithm` is `sha256` or `sha512`, `nonce` random printable text without a comma."""
    name = user.replace("=", "=3D").replace(",", "=2C")
    first_bare = f"n={name},r={nonce}"
    server_first = (yield f"n,,{first_bare}".encode()).decode(errors="replace")
    fields = _fields(server_first)
    try:
        server_nonce, salt, iterations = fields["r"], base64.b64decode(fields["s"]), int(fields["i"])
    except (KeyError, ValueError):
        raise SaslError("the server's first message is not SCRAM's") from None
    if not server_nonce.startswith(nonce) or server_nonce == nonce:
        raise SaslError("the server's nonce does not continue ours")
    if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
        raise SaslError(f"the server asks for {iterations} iterations")
    salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, iterations)
    without_proof = f"c={base64.b64encode(b'n,,').decode()},r={server_nonce}"
    signed = f"{first_bare},{server_first},{without_proof}".encode()
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    signature = hmac.digest(hashlib.new(algorithm, client_key).digest(), signed, algorithm)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_final = yield f"{without_proof},p={base64.b64encode(proof).decode()}".encode()
    verifier = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), signed, algorithm)
    shown = _fields(server_final.decode(errors="replace")).get("v", "")
    if not hmac.compare_digest(shown.encode(), base64.b64encode(verifier)):
        raise SaslError("the server does not know the password: it may not be the broker it claims to be")


def _fields(message: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in message.split(",") if "=" in part)
