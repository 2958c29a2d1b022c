"""CloudEvents on Kafka, and the rules that every shape of an event must keep.

An event is an HTTP message (binary, structured or one of a batch), a Kafka record, or the HTTP request that a
subscriber gets. Receiver and dispatcher must agree on every byte of the middle shape:

    HTTP request  → `cloudevents_http.records_from_request` → `Record`     (receiver)
    Kafka record  → `cloudevents_http.request_from_record`  → `HttpEvent`  (dispatcher, for each delivery)
    HTTP response → `cloudevents_http.event_from_response`  → `HttpEvent`  (dispatcher, replies)
    Kafka record  → `json_from_record`                      → bytes        (dispatcher, batches to subscribers)

The record that we write is always in binary mode: headers `ce_<attribute>` in UTF-8, `content-type`, the data as the
value, null for an event without data, and the `partitionkey` extension as the key. A record that we read may be
binary or structured. Versions 1.0 and 0.3 are understood and never converted into each other.

Bad input is a value, `Undecodable(reason)`; no public function raises for it. All functions are pure.

Sources: CloudEvents 1.0.2 (spec, JSON event format, Kafka protocol binding), 0.3, partitioning extension.
"""

from __future__ import annotations

import binascii
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]  # not in typeshed; the C scanner of json itself
from typing import Final, NamedTuple

RecordHeaders = Sequence[tuple[str, bytes | None]]
"""Kafka record headers as confluent-kafka gives them; a null value counts as absent."""

SPEC_VERSIONS: Final = frozenset({b"1.0", b"0.3"})
CONTENT_TYPE: Final = "content-type"
_STRUCTURED_PREFIX: Final = b"application/cloudevents"
"""A content type that starts so (in any case) is structured or a batch; everything else is binary (HTTP binding §3)."""
JSON_EVENT_TYPES: Final = frozenset({"application/cloudevents+json", "application/cloudevents"})
JSON_BATCH_TYPES: Final = frozenset({"application/cloudevents-batch+json", "application/cloudevents-batch"})
BATCH_CONTENT_TYPE: Final = b"application/cloudevents-batch+json; charset=UTF-8"


class Record(NamedTuple):
    """An event as a Kafka record in binary mode. `value` None: an event without data."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Why something is not a CloudEvent, in words that the sender can act on."""

    reason: str


class InvalidEventError(Exception):
    """Carries a reason, inside `eventing`, to the public function that returns it as `Undecodable`."""


NOT_AN_EVENT: Final = Undecodable(
    "not a CloudEvent: neither a specversion attribute nor a content type application/cloudevents"
)
is_attribute_name = re.compile(r"[a-z0-9]+").fullmatch
is_field_value = re.compile(rb"[\t -~\x80-\xff]*").fullmatch
"""What RFC 9110 §5.5 lets into a header field; anything else could end the header early."""
holds_forbidden_character = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]").search
"""Characters that no attribute may hold (spec §"Type System", String)."""
_TEXT_ATTRIBUTES: Final = frozenset(
    {"id", "source", "specversion", "type", "subject", "time", "dataschema", "schemaurl", "partitionkey"}
)
_is_time = re.compile(
    rb"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?"
    rb"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
).fullmatch


def is_structured(content_type: bytes) -> bool:
    """Whether this content type announces an event (or a batch) in structured mode."""
    return content_type[:23].lower() == _STRUCTURED_PREFIX


def media_type(content_type: bytes) -> str:
    """The type without its parameters, in lower case."""
    return content_type.split(b";", 1)[0].strip().lower().decode("latin-1")


def is_event_header(record_name: str) -> bool:
    """Whether a record header is the event's own, not one that travels beside it."""
    return record_name == CONTENT_TYPE or record_name.startswith("ce_")


def check_attributes(attributes: Mapping[str, bytes]) -> None:
    """Hold an event to what its specification demands of attributes. Raises InvalidEventError."""
    version = attributes.get("ce_specversion")
    if version is None:
        raise InvalidEventError(NOT_AN_EVENT.reason)
    if version not in SPEC_VERSIONS:
        raise InvalidEventError(f"specversion must be 1.0 or 0.3, not {version[:20].decode(errors='replace')!r}")
    for name in ("ce_id", "ce_source", "ce_type"):
        if not attributes.get(name):
            raise InvalidEventError(f"the attribute {name[3:]} is required and must not be empty")
    time = attributes.get("ce_time")
    if time is not None and not _is_time(time):
        raise InvalidEventError("the attribute time is not an RFC 3339 timestamp")
    for name in ("ce_partitionkey", "ce_subject", "ce_dataschema", "ce_schemaurl"):
        if attributes.get(name) == b"":
            raise InvalidEventError(f"the attribute {name[3:]} must not be empty")


# --- records ----------------------------------------------------------------------------------------------------------


def binary_record(headers: RecordHeaders | None, value: bytes | None) -> Record | Undecodable:
    """A record in either mode as a binary one: names in lower case, the last of equal names, null headers left out."""
    fields = {name.lower(): content for name, content in headers or () if content is not None}
    try:
        content_type = fields.get(CONTENT_TYPE)
        if content_type is not None and is_structured(content_type):
            if media_type(content_type) in JSON_BATCH_TYPES:
                return Undecodable("a batch is not an event: the Kafka binding knows no batches")
            key, value, attributes = event_of_json(content_type, value or b"")
            passed = {name: content for name, content in fields.items() if not is_event_header(name)}
            return Record(key, value, [*attributes.items(), *passed.items()])
        declared = fields.pop("ce_datacontenttype", None)
        if declared is not None:
            fields.setdefault(CONTENT_TYPE, declared)
        if fields.get("ce_specversion") not in SPEC_VERSIONS or not all(
            fields.get(name) for name in ("ce_id", "ce_source", "ce_type")
        ):
            check_attributes(fields)  # says which rule is broken
        # Other rules bind the producer of an event, who is gone; what can be sent on is sent on.
        return Record(fields.get("ce_partitionkey"), value, list(fields.items()))
    except InvalidEventError as exc:
        return Undecodable(str(exc))


def with_attributes(headers: RecordHeaders, attributes: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Headers of a binary record with attributes set, those of the same name replaced: for dead letters."""
    added = {"ce_" + name: value.encode() for name, value in attributes.items()}
    kept = [(name, value) for name, value in headers if value is not None and name.lower() not in added]
    return [*kept, *added.items()]


# --- JSON event format -----------------------------------------------------------------------------------------------


def _parse_int(digits: str) -> float:
    # Python refuses integers of more than 4300 digits; in data they are legal, and attributes are at most 32 bits.
    return int(digits) if len(digits) < 20 else math.inf


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_int=_parse_int, parse_constant=_refuse_constant)
_space = re.compile(r"[ \t\n\r]*").match

_Event = tuple[bytes | None, bytes | None, dict[str, bytes]]
"""(record key, value, headers)"""


def _is_json(media_type: str) -> bool:
    """Whether data of this type is a JSON value (JSON event format §3.1)."""
    return media_type.endswith(("/json", "+json"))


def event_of_json(content_type: bytes, body: bytes) -> _Event:
    kind = media_type(content_type)
    if kind not in JSON_EVENT_TYPES:
        raise InvalidEventError(f"the event format {kind!r} is not supported; application/cloudevents+json is")
    text = json_text(content_type, body)
    event, end = _json_event(text, _skip(text, 0))
    if _skip(text, end) != len(text):
        raise InvalidEventError("there is something after the JSON event")
    return event


def events_of_batch(text: str) -> list[_Event]:
    index = _skip(text, 0)
    if text[index : index + 1] != "[":
        raise InvalidEventError("a batch is a JSON array of events")
    index = _skip(text, index + 1)
    events: list[_Event] = []
    while text[index : index + 1] != "]":
        try:
            event, index = _json_event(text, index)
        except InvalidEventError as exc:
            raise InvalidEventError(f"event {len(events)} of the batch: {exc}") from None
        events.append(event)
        index = _skip(text, index)
        if text[index : index + 1] == ",":
            index = _skip(text, index + 1)
            if text[index : index + 1] == "]":
                raise InvalidEventError("the batch is not valid JSON: a comma before its end")
        elif text[index : index + 1] != "]":
            raise InvalidEventError("the batch is not valid JSON: a comma or its end is missing")
    if _skip(text, index + 1) != len(text):
        raise InvalidEventError("there is something after the batch")
    return events


def json_text(content_type: bytes, body: bytes) -> str:
    charset = re.search(rb";\s*charset\s*=\s*\"?([^\s\";]+)", content_type, re.IGNORECASE)
    if charset is not None and charset[1].lower() not in {b"utf-8", b"us-ascii"}:
        raise InvalidEventError("the charset of a JSON event must be UTF-8 (RFC 8259 §8.1)")
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidEventError("the JSON event is not valid UTF-8") from None


def _skip(text: str, index: int) -> int:
    match = _space(text, index)
    assert match is not None  # it matches nothing as well
    return match.end()


def _json_event(text: str, index: int) -> tuple[_Event, int]:
    """Read one JSON event from `text` at `index`; gives the event and where it ends.

    The members are read one by one because `data` must go on byte for byte: parsing and writing it again would turn
    1.10 into 1.1 and lose digits, and data is not ours to change (Knative eventing data plane).
    """
    members: dict[str, object] = {}
    data: tuple[object, str] | None = None
    try:
        if text[index : index + 1] != "{":
            raise InvalidEventError("a JSON event is an object")
        index = _skip(text, index + 1)
        while text[index : index + 1] != "}":
            if text[index : index + 1] != '"':
                raise InvalidEventError("the JSON event is not valid JSON: a member name is missing")
            name, index = scanstring(text, index + 1, True)
            index = _skip(text, index)
            if text[index : index + 1] != ":":
                raise InvalidEventError("the JSON event is not valid JSON: a colon is missing")
            index = _skip(text, index + 1)
            value, end = _DECODER.raw_decode(text, index)
            if name in members or (name == "data" and data is not None):
                raise InvalidEventError(f"the member {name[:40]!r} is there twice")
            if name == "data":
                data = (value, text[index:end])
            else:
                members[name] = value
            index = _skip(text, end)
            if text[index : index + 1] == ",":
                index = _skip(text, index + 1)
                if text[index : index + 1] == "}":
                    raise InvalidEventError("the JSON event is not valid JSON: a comma before its end")
            elif text[index : index + 1] != "}":
                raise InvalidEventError("the JSON event is not valid JSON: a comma or its end is missing")
    except RecursionError:
        raise InvalidEventError("the JSON event is nested too deeply") from None
    except ValueError:
        raise InvalidEventError("the JSON event is not valid JSON") from None
    return _event_of_members(members, data), index + 1


def _event_of_members(members: dict[str, object], data: tuple[object, str] | None) -> _Event:
    declared = members.pop("datacontenttype", None)
    if not (declared is None or (isinstance(declared, str) and declared)):
        raise InvalidEventError("the attribute datacontenttype is not a media type")
    has_base64 = "data_base64" in members
    base64_text = members.pop("data_base64", None)
    version = members.get("specversion")
    is_encoded = False
    if version == "0.3" and data is not None and members.get("datacontentencoding") is not None:
        if str(members.pop("datacontentencoding")).lower() != "base64":
            raise InvalidEventError("the attribute datacontentencoding must be base64")
        # In binary mode the value is the data itself, so the attribute has done its work.
        base64_text, is_encoded, data = data[0], True, None
    attributes = {"ce_" + name: _attribute(name, value) for name, value in members.items() if value is not None}
    check_attributes(attributes)

    value: bytes | None = None
    if (has_base64 and version == "1.0" and base64_text is not None) or is_encoded:
        if data is not None:
            raise InvalidEventError("data and data_base64 exclude each other")
        try:
            value = binascii.a2b_base64(str(base64_text), strict_mode=True) if base64_text != "" else b""
        except ValueError:
            raise InvalidEventError("the data is not valid base64") from None
    elif has_base64 and version != "1.0":
        raise InvalidEventError("data_base64 belongs to version 1.0")
    elif data is not None and data[0] is not None:  # JSON null: no data, as for any member
        parsed, raw = data
        is_text = isinstance(parsed, str) and declared is not None and not _is_json(media_type(declared.encode()))
        try:
            value = (str(parsed) if is_text else raw).encode()
        except UnicodeEncodeError:
            raise InvalidEventError("the data holds half of a surrogate pair") from None
    if declared is not None:
        content_type = _attribute("datacontenttype", declared)
        if not is_field_value(content_type) or is_structured(content_type):
            raise InvalidEventError("the attribute datacontenttype is not a media type of data")
        attributes[CONTENT_TYPE] = content_type
    elif value is not None:
        attributes[CONTENT_TYPE] = b"application/json"  # what a JSON event without datacontenttype implies (spec)
    return attributes.get("ce_partitionkey"), value, attributes


def _attribute(name: str, value: object) -> bytes:
    """The canonical string of an attribute's value (spec §"Type System")."""
    if not is_attribute_name(name) or name == "data":
        raise InvalidEventError(f"the member {name[:40]!r} names no attribute: only a-z and 0-9 are allowed")
    if isinstance(value, str):
        if holds_forbidden_character(value):
            raise InvalidEventError(f"the attribute {name} holds a control character")
        return value.encode()
    if name in _TEXT_ATTRIBUTES:
        raise InvalidEventError(f"the attribute {name} must be a string")
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int) and -(2**31) <= value < 2**31:
        return b"%d" % value
    raise InvalidEventError(f"the attribute {name} must be a string, a boolean or a 32-bit integer")


def json_from_record(headers: RecordHeaders | None, value: bytes | None) -> bytes | Undecodable:
    """A record as one event of the JSON event format, as structured requests and batches hold it.

    JSON data becomes the member `data` byte for byte, text a string, everything else `data_base64` (0.3: base64 text
    with `datacontentencoding`).
    """
    record = binary_record(headers, value)
    if isinstance(record, Undecodable):
        return record
    members: list[str] = []
    content_type = b""
    version = b""
    for name, content in record.headers:
        if name.startswith("ce_"):
            if not is_attribute_name(name, 3):
                return Undecodable(f"the record header {name!r} names no attribute: only a-z and 0-9 may follow ce_")
            if name == "ce_specversion":
                version = content
            try:
                members.append(f'"{name[3:]}":{json.dumps(content.decode(), ensure_ascii=False)}')
            except UnicodeDecodeError:
                return Undecodable(f"the attribute {name[3:]} is not valid UTF-8")
        elif name == CONTENT_TYPE:
            content_type = content
            members.append(f'"datacontenttype":{json.dumps(content.decode("utf-8", "replace"), ensure_ascii=False)}')
    if record.value is not None and version == b"0.3" and "ce_datacontentencoding" in dict(record.headers):
        # The value is base64 text already, and the attribute that says so is among the members.
        members.append(f'"data":{json.dumps(record.value.decode("utf-8", "replace"))}')
    elif record.value is not None:
        members.append(_data_member(record.value, media_type(content_type), version))
    return ("{" + ",".join(members) + "}").encode()


def _data_member(value: bytes, media_type: str, version: bytes) -> str:
    try:
        text = value.decode()
        if _is_json(media_type) or not media_type:
            _, end = _DECODER.raw_decode(text, _skip(text, 0))
            if _skip(text, end) == len(text):
                return f'"data":{text.strip()}'
        elif media_type.startswith("text/") or media_type.endswith(("/xml", "+xml")):
            return f'"data":{json.dumps(text, ensure_ascii=False)}'
    except (ValueError, RecursionError):
        pass  # declared as text or JSON and is not: only its bytes are sure
    encoded = binascii.b2a_base64(value, newline=False).decode()
    if version == b"0.3":
        return f'"datacontentencoding":"base64","data":"{encoded}"'
    return f'"data_base64":"{encoded}"'
