"""Reading of JSON documents whose errors name the place: `topics["a"].partitions[3].leader: must be …`.

Two rules for everything read here: a missing key is the same as null, and null means *unknown* (never zero, never
empty). What is present must have the right type; the first thing that has not ends the reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from eventing.errors import SluiceError


class DocumentError(SluiceError):
    """A snapshot or plan document is damaged. `path` names the value, `reason` what it must be."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}" if path else reason)


def mapping(value: object, path: str) -> Mapping[str, Any]:
    """A JSON object with string keys."""
    if not isinstance(value, Mapping):
        raise DocumentError(path, f"must be an object, not {_word(value)}")
    for key in value:
        if not isinstance(key, str):
            raise DocumentError(path, f"must have strings as keys, not {key!r}")
    return value


def optional_mapping(value: object, path: str) -> Mapping[str, Any] | None:
    return None if value is None else mapping(value, path)


def items(value: object, path: str) -> Sequence[Any]:
    """A JSON list."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise DocumentError(path, f"must be a list, not {_word(value)}")
    return value


def optional_items(value: object, path: str) -> Sequence[Any] | None:
    return None if value is None else items(value, path)


def text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise DocumentError(path, f"must be a string, not {_word(value)}")
    return value


def optional_text(value: object, path: str) -> str | None:
    return None if value is None else text(value, path)


def integer(value: object, path: str, *, low: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DocumentError(path, f"must be a whole number, not {_word(value)}")
    if low is not None and value < low:
        raise DocumentError(path, f"must be at least {low}, not {value}")
    return value


def optional_integer(value: object, path: str, *, low: int | None = None) -> int | None:
    return None if value is None else integer(value, path, low=low)


def boolean(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise DocumentError(path, f"must be true or false, not {_word(value)}")
    return value


def optional_boolean(value: object, path: str) -> bool | None:
    return None if value is None else boolean(value, path)


def numeric_key(key: str, path: str) -> int:
    """A number that is the key of a JSON object, as in `{"0": …}`."""
    if not (key.isascii() and key.isdecimal()):
        raise DocumentError(path, f"must have whole numbers as keys, not {key!r}")
    return int(key)


def parse_time(value: str) -> datetime | None:
    """An RFC 3339 time with a zone, as UTC; None where it is no such time."""
    try:
        time = datetime.fromisoformat(value.strip().upper())
        return None if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def time(value: object, path: str) -> datetime:
    parsed = parse_time(text(value, path))
    if parsed is None:
        raise DocumentError(path, f"must be an RFC 3339 time with a zone, such as 2026-11-20T03:00:00Z, not {value!r}")
    return parsed


def optional_time(value: object, path: str) -> datetime | None:
    return None if value is None else time(value, path)


def format_time(value: datetime) -> str:
    """RFC 3339 in UTC; fractions of a second only where there are any."""
    value = value.astimezone(UTC)
    precision = "seconds" if not value.microsecond else "microseconds" if value.microsecond % 1000 else "milliseconds"
    return value.isoformat(timespec=precision).replace("+00:00", "Z")


def _word(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return repr(value) if len(repr(value)) <= 40 else repr(value)[:37] + "…"
