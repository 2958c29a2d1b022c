"""The value of a canary record: JSON with `producerId`, `messageId`, `timestamp` in this order and without blanks.

A wanted record size is reached with blanks *after* the JSON text: they are JSON white space (RFC 8259 §2), so that
every reader of strimzi-canary's records reads ours too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Payload:
    """`message_id` starts at 1 and grows by one over all partitions; `timestamp_ms` is Unix time in milliseconds."""

    producer_id: str
    message_id: int
    timestamp_ms: int


def encode(payload: Payload, size_bytes: int = 0) -> bytes:
    """The record's value, at least `size_bytes` long."""
    text = json.dumps(
        {"producerId": payload.producer_id, "messageId": payload.message_id, "timestamp": payload.timestamp_ms},
        separators=(",", ":"),
    )
    return text.encode().ljust(size_bytes)


def decode(value: bytes | None) -> Payload | None:
    """None for everything that is not such a record."""
    if value is None:
        return None
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return None
    match document:
        case {"producerId": str(producer), "messageId": int(message), "timestamp": int(timestamp)} if not (
            isinstance(message, bool) or isinstance(timestamp, bool)
        ):
            return Payload(producer, message, timestamp)
    return None
