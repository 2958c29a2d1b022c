"""CloudEvents over HTTP: requests into records, records into requests, answers into replies.

What we send is always in binary mode with percent-encoded attributes; what we take is binary, structured or a batch.
Beside the event a few headers travel with it, hop by hop: trace context, request id, `knative-…`. All others stay
behind: a record's header must not be able to become `Host` or `Content-Length`.

Bad input is a value, `Undecodable(reason)`; no public function raises for it. All functions are pure but for two
bounded lookup tables, which change their speed and nothing else.

Sources: CloudEvents HTTP protocol binding 1.0.2; Knative eventing data plane; W3C Trace Context.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

from eventing.cloudevents import (
    CONTENT_TYPE,
    JSON_BATCH_TYPES,
    NOT_AN_EVENT,
    SPEC_VERSIONS,
    InvalidEventError,
    Record,
    RecordHeaders,
    Undecodable,
    binary_record,
    check_attributes,
    event_of_json,
    events_of_batch,
    holds_forbidden_character,
    is_attribute_name,
    is_event_header,
    is_field_value,
    is_structured,
    json_text,
    media_type,
)

HttpHeaders = Iterable[tuple[bytes, bytes]]
"""Header fields as they came, names in any case."""
HttpEvent = tuple[bytes, bytes]
"""(header lines `name: value CRLF` one after the other, body): what a request needs besides its own headers."""

PASSED_HEADERS: Final = frozenset({"traceparent", "tracestate", "x-request-id", "retry-after"})
PASSED_PREFIXES: Final = ("knative-", "x-b3-")
MAX_CACHED: Final = 4096
"""Entries of each lookup table; a full one is emptied, so that what strangers send cannot grow it."""
MAX_CACHED_BYTES: Final = 128
"""Longest name or value that is kept. Both tables together stay below 5 MB."""

_is_plain_incoming = re.compile(rb"[ !#-$&-~]*").fullmatch
"""Printable ASCII without quotes and percent signs: the value is itself. Spaces were legal before 1.0.1."""
_is_plain_outgoing = re.compile(rb"[!#-$&-~]*").fullmatch
_ENCODED = re.compile(rb"[^!#-$&-~]")
"""Percent-encoded: space, double quote, percent sign, all outside U+0021 to U+007E (HTTP binding §3.1.3.2)."""
_is_token = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,128}").fullmatch
_UNREPEATED: Final = frozenset(
    {"ce_id", "ce_time", "ce_subject", "ce_partitionkey", "ce_sequence", "ce_traceparent"} | PASSED_HEADERS
)
"""Headers whose values hardly ever come twice; keeping them rendered would only empty the table."""
_UNREPEATED_PREFIXES: Final = {
    name: name.replace("ce_", "ce-").encode() + b": " for name in _UNREPEATED if name.startswith("ce_")
}


class _StructuredError(Exception):
    """The record that is being rendered turns out to be in structured mode."""


# --- HTTP → record ---------------------------------------------------------------------------------------------------

_record_names: dict[bytes, str | None] = {}
"""HTTP header name → record header name; None: not part of the event; "": an invalid attribute name."""


def records_from_request(headers: HttpHeaders, body: bytes) -> list[Record] | Undecodable:
    """The events of an HTTP request: one in binary or structured mode, any number in a batch.

    A batch is taken as a whole: one bad event makes the whole of it undecodable.
    """
    try:
        attributes = _read_headers(headers)
        content_type = attributes.get(CONTENT_TYPE)
        if content_type is None or not is_structured(content_type):
            return [_binary_record(attributes, body)]
        passed = {name: value for name, value in attributes.items() if not is_event_header(name)}
        if media_type(content_type) in JSON_BATCH_TYPES:
            return [
                Record(key, value, [*fields.items(), *passed.items()])
                for key, value, fields in events_of_batch(json_text(content_type, body))
            ]
        key, value, fields = event_of_json(content_type, body)
        return [Record(key, value, [*fields.items(), *passed.items()])]
    except InvalidEventError as exc:
        return Undecodable(str(exc))


def _read_headers(headers: HttpHeaders) -> dict[str, bytes]:
    """What of an HTTP head belongs to the event, under the names of a record."""
    attributes: dict[str, bytes] = {}
    for name, raw in headers:
        try:
            known = _record_names[name]
        except KeyError:
            known = _learn_record_name(name)
        if known is None:
            continue
        value = raw.strip(b" \t")
        if known in attributes:
            if known[:3] == "ce_" or known == CONTENT_TYPE:
                raise InvalidEventError(f"the header {name.decode('latin-1').lower()} is there twice")
            attributes[known] += b", " + value  # RFC 9110 §5.3: a list, in the order of arrival
        elif known[:3] == "ce_":
            attributes[known] = value if _is_plain_incoming(value) else _decoded(known, value)
        elif known:
            if value:  # an empty content type declares nothing
                attributes[known] = value
        else:
            raise InvalidEventError(
                f"the header {name.decode('latin-1').lower()} names no attribute: only a-z and 0-9 may follow ce-,"
                " and data and datacontenttype have places of their own"
            )
    return attributes


def _learn_record_name(name: bytes) -> str | None:
    lower = name.decode("latin-1").lower()
    known: str | None = None
    if lower.startswith("ce-"):
        attribute = lower[3:]
        valid = is_attribute_name(attribute) and attribute not in {"data", "datacontenttype"}
        known = "ce_" + attribute if valid else ""
    elif lower == CONTENT_TYPE or _is_passed(lower):
        known = lower
    if len(_record_names) >= MAX_CACHED:
        _record_names.clear()
    if len(name) <= MAX_CACHED_BYTES:
        _record_names[name] = known
    return known


def _is_passed(lower_name: str) -> bool:
    return lower_name in PASSED_HEADERS or lower_name.startswith(PASSED_PREFIXES)


def _decoded(name: str, value: bytes) -> bytes:
    """A header value of HTTP as UTF-8: quotes first, then one round of percent-decoding (HTTP binding §3.1.3.2)."""
    if len(value) >= 2 and value[:1] == value[-1:] == b'"':
        value = re.sub(rb"\\(.)", rb"\1", value[1:-1], flags=re.DOTALL)
    value = unquote_to_bytes(value)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise InvalidEventError(f"the attribute {name[3:]} is not valid UTF-8") from None
    if holds_forbidden_character(text):
        raise InvalidEventError(f"the attribute {name[3:]} holds a control character")
    return value


def _binary_record(attributes: dict[str, bytes], body: bytes | None) -> Record:
    check_attributes(attributes)
    return Record(attributes.get("ce_partitionkey"), body or None, list(attributes.items()))


# --- record → HTTP ---------------------------------------------------------------------------------------------------

_rendered: dict[tuple[str, bytes | None], bytes] = {}
"""Record header → its line in an HTTP request, for headers that come again and again (type, source, specversion)."""


def request_from_record(headers: RecordHeaders | None, value: bytes | None) -> HttpEvent | Undecodable:
    """What to send to a subscriber: header lines and body of a binary-mode request.

    The dispatcher calls this for every delivery, hence the shape: known headers cost one lookup each. `Host`,
    `Content-Length` and the empty line are the sender's.
    """
    if not headers:
        return NOT_AN_EVENT
    named = dict(headers)
    if (
        len(named) == len(headers)
        and named.get("ce_specversion") in SPEC_VERSIONS
        and named.get("ce_id")
        and named.get("ce_type")
        and named.get("ce_source")
    ):
        try:
            lines = []
            for header in headers:
                line = _rendered.get(header)
                if line is None:
                    name, content = header
                    prefix = _UNREPEATED_PREFIXES.get(name)
                    if prefix is not None and content is not None and _is_plain_outgoing(content):
                        line = prefix + content + b"\r\n"
                    else:
                        line = _header_line(name, content)
                lines.append(line)
            return b"".join(lines), value or b""
        except _StructuredError:
            pass  # attributes may be repeated as headers beside a structured value; the value counts
        except InvalidEventError as exc:
            return Undecodable(str(exc))
    record = binary_record(headers, value)
    if isinstance(record, Undecodable):
        return record
    try:
        return b"".join([_header_line(*header) for header in record.headers]), record.value or b""
    except InvalidEventError as exc:
        return Undecodable(str(exc))


def _header_line(name: str, value: bytes | None) -> bytes:
    """One header of a record as a header line, empty when it does not travel. Raises the two errors above."""
    if value is None:
        return b""
    lower = name.lower()
    if lower.startswith("ce_"):
        if not is_attribute_name(lower, 3):
            raise InvalidEventError(f"the record header {name!r} names no attribute: only a-z and 0-9 may follow ce_")
        if lower == "ce_datacontenttype":
            return b""  # HTTP binding §3.1.1: the attribute is the content type and never a header of its own
        line = b"ce-%b: %b\r\n" % (lower[3:].encode(), value if _is_plain_outgoing(value) else _encoded(lower, value))
    elif lower == CONTENT_TYPE:
        if is_structured(value):
            raise _StructuredError
        if not is_field_value(value):
            raise InvalidEventError("the content type holds a control character")
        line = b"content-type: %b\r\n" % value
    elif _is_passed(lower) and _is_token(lower) and is_field_value(value):
        line = b"%b: %b\r\n" % (lower.encode(), value)
    else:
        line = b""
    if len(value) <= MAX_CACHED_BYTES and name not in _UNREPEATED:
        if len(_rendered) >= MAX_CACHED:
            _rendered.clear()
        _rendered[name, value] = line
    return line


def _encoded(name: str, value: bytes) -> bytes:
    """UTF-8 as a header value (HTTP binding §3.1.3.2). Raises InvalidEventError."""
    try:
        value.decode()
    except UnicodeDecodeError:
        raise InvalidEventError(f"the attribute {name[3:]} is not valid UTF-8") from None
    return _ENCODED.sub(lambda match: b"%%%02X" % match[0][0], value)


# --- replies ---------------------------------------------------------------------------------------------------------


def event_from_response(headers: HttpHeaders, body: bytes) -> HttpEvent | Undecodable | None:
    """The event in a subscriber's answer, ready to be sent on. None: the answer does not claim to be an event.

    Undecodable: it claims to be one and is not. Whether an answer may be a reply at all (never with 202) is for the
    caller to decide from its status.
    """
    fields = [(name.lower(), value.strip(b" \t")) for name, value in headers]
    content_type = dict(fields).get(b"content-type", b"")
    if not is_structured(content_type) and not any(name == b"ce-specversion" for name, _ in fields):
        return None
    if media_type(content_type) in JSON_BATCH_TYPES:
        return Undecodable("a reply is one event, not a batch")
    records = records_from_request(fields, body)
    if isinstance(records, Undecodable):
        return records
    return request_from_record(records[0].headers, records[0].value)
