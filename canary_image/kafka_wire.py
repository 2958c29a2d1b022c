"""The three requests that the connection check sends, as bytes: https://kafka.apache.org/protocol.

Oldest versions that every broker from 2.1 to 4.x takes (KIP-896): ApiVersions 0, SaslHandshake 1, SaslAuthenticate 0,
all with request header 1 and response header 0.
"""

from __future__ import annotations

import struct

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
MAX_RESPONSE_BYTES = 1_048_576
"""No answer to these requests is near this; more means that the peer does not speak Kafka."""

_UNSUPPORTED_SASL_MECHANISM = 33


class WireError(Exception):
    """The peer's answer is not what the protocol says, or is an error; its text can be shown."""


def request(api_key: int, version: int, correlation_id: int, client_id: str, body: bytes) -> bytes:
    """A request with its length in front."""
    header = struct.pack(">hhi", api_key, version, correlation_id) + _string(client_id)
    return struct.pack(">i", len(header) + len(body)) + header + body


def api_versions(correlation_id: int, client_id: str) -> bytes:
    """Asked before anything else: only a broker answers it, a forwarder with nothing behind it does not."""
    return request(API_VERSIONS, 0, correlation_id, client_id, b"")


def sasl_handshake(correlation_id: int, client_id: str, mechanism: str) -> bytes:
    return request(SASL_HANDSHAKE, 1, correlation_id, client_id, _string(mechanism))


def sasl_authenticate(correlation_id: int, client_id: str, data: bytes) -> bytes:
    return request(SASL_AUTHENTICATE, 0, correlation_id, client_id, struct.pack(">i", len(data)) + data)


def response_length(prefix: bytes) -> int:
    """How many bytes follow the four of `prefix`."""
    (length,) = struct.unpack(">i", prefix)
    if not 4 <= length <= MAX_RESPONSE_BYTES:
        raise WireError("the peer does not speak Kafka's protocol")
    return int(length)


def body_of(response: bytes, correlation_id: int) -> bytes:
    """What follows the response header."""
    if int.from_bytes(response[:4], signed=True) != correlation_id:
        raise WireError("the peer answered another question")
    return response[4:]


def check_api_versions(body: bytes) -> None:
    _error_code(body)


def check_sasl_handshake(body: bytes) -> None:
    """Raises when the broker does not offer the mechanism, naming those that it does."""
    code = _error_code(body)
    if code == 0:
        return
    offered = ""
    if code == _UNSUPPORTED_SASL_MECHANISM:
        (count,) = _unpack(">i", body, 2)
        position, names = 6, []
        for _ in range(min(count, 100)):
            name, position = _read_string(body, position)
            names.append(name or "")
        offered = f"; it offers {', '.join(names)}"
    raise WireError(f"the broker refused the SASL mechanism (error {code}){offered}")


def read_sasl_authenticate(body: bytes) -> bytes:
    """The server's challenge or final message."""
    code = _error_code(body)
    message, position = _read_string(body, 2)
    if code != 0:
        raise WireError(f"authentication failed (error {code}): {message or 'no reason given'}")
    (length,) = _unpack(">i", body, position)
    return body[position + 4 : position + 4 + max(0, length)]


def _error_code(body: bytes) -> int:
    (code,) = _unpack(">h", body, 0)
    return code


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _read_string(body: bytes, position: int) -> tuple[str | None, int]:
    (length,) = _unpack(">h", body, position)
    if length < 0:
        return None, position + 2
    end = position + 2 + length
    return body[position + 2 : end].decode(errors="replace"), end


def _unpack(form: str, body: bytes, position: int) -> tuple[int, ...]:
    try:
        return struct.unpack_from(form, body, position)
    except struct.error:
        raise WireError("the peer's answer is cut short") from None
