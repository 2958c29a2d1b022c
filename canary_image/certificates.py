"""When a certificate ends, read from its bytes: the standard library decodes only those that it has verified.

Just enough DER (X.690) to walk to `Certificate.tbsCertificate.validity.notAfter` (RFC 5280 §4.1).
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18


def not_after(der: bytes) -> datetime | None:
    """The last moment at which the certificate is valid; None where the bytes are no certificate."""
    try:
        ((_, certificate),) = _elements(der)
        to_be_signed = _elements(certificate)[0][1]
        fields = _elements(to_be_signed)
        if fields[0][0] == _VERSION:  # absent in version 1
            del fields[0]
        _serial, _algorithm, _issuer, (_, validity), *_ = fields
        _begin, (tag, end) = _elements(validity)
        # Both forms end in Z here (RFC 5280 §4.1.2.5); two-digit years are 1950 to 2049.
        text = end.decode("ascii")
        if tag == _UTC_TIME:
            text = ("19" if text >= "50" else "20") + text
        elif tag != _GENERALIZED_TIME:
            return None
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except (ValueError, IndexError):
        return None


def first_not_after(pem: str) -> datetime | None:
    """As `not_after`, of the first certificate in PEM text: in a chain that is the owner's."""
    found = _PEM.search(pem)
    if found is None:
        return None
    try:
        return not_after(base64.b64decode(found[1]))
    except binascii.Error:
        return None


def _elements(data: bytes) -> list[tuple[int, bytes]]:
    """The elements that follow each other in `data`, as tag and content. Raises IndexError when they are cut short."""
    found: list[tuple[int, bytes]] = []
    position = 0
    while position < len(data):
        tag, length = data[position], data[position + 1]
        position += 2
        if length >= 0x80:
            size = length - 0x80
            length = int.from_bytes(data[position : position + size])
            position += size
        if position + length > len(data):
            raise IndexError("an element reaches beyond its parent")
        found.append((tag, data[position : position + length]))
        position += length
    return found
