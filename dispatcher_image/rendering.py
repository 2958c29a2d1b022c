"""Record → request, fast: the same result as `eventing.cloudevents_http.request_from_record`, which stays the truth.

The records of a topic have a handful of *layouts* (which headers, in which order), and nearly all their values need no
encoding. So a layout is turned into a template once, and a record of a known layout costs one lookup, one check of
all its values together, and one formatting. Whatever is not plain goes the careful way.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from eventing.cloudevents import CONTENT_TYPE, SPEC_VERSIONS, RecordHeaders, Undecodable, is_structured
from eventing.cloudevents_http import HttpEvent, request_from_record

MAX_LAYOUTS: Final = 1024
MAX_LAYOUT_HEADERS: Final = 64
"""Records with more headers always go the careful way: what strangers send must not fill memory."""
MAX_CONTENT_TYPES: Final = 256
MAX_CONTENT_TYPE_BYTES: Final = 128

PLAIN: Final = bytes(byte for byte in range(0x21, 0x7F) if byte not in b'"%')
"""What stands for itself in a header of an attribute (HTTP binding §3.1.3.2)."""
_PROBE: Final = b"0"


class Layout(NamedTuple):
    """How the records with certain header names, in this order, look as a request."""

    template: bytes
    specversion: int
    """Index of the header; so are the next four."""
    id: int
    type: int
    source: int
    content_type: int
    """-1: there is none."""


layouts: Final[dict[tuple[str, ...], Layout | None]] = {}
"""By header names; None: such records always go the careful way."""
content_types: Final[set[bytes]] = set()
"""Those of data that were sent before; a content type of the event itself is never among them."""


def render(headers: RecordHeaders | None, value: bytes | None) -> HttpEvent | Undecodable:
    """Header lines and body of a request in binary mode; see `request_from_record`."""
    if not headers:
        return request_from_record(headers, value)
    names: tuple[str, ...]
    values: tuple[Any, ...]
    names, values = zip(*headers, strict=True)
    layout = layouts.get(names)
    if layout is not None:
        template, version, identity, kind, source, content_type = layout
        try:
            if (
                values[version] in SPEC_VERSIONS
                and values[identity]
                and values[kind]
                and values[source]
                and (content_type < 0 or values[content_type] in content_types)
                and not b"".join(values).translate(None, PLAIN)
            ):
                return template % values, value or b""
        except TypeError:
            pass  # a header without a value
    rendered = request_from_record(headers, value)
    if not isinstance(rendered, Undecodable):
        _learn(names, values)
    return rendered


def _learn(names: tuple[str, ...], values: tuple[Any, ...]) -> None:
    if names not in layouts and len(names) <= MAX_LAYOUT_HEADERS:
        if len(layouts) >= MAX_LAYOUTS:
            layouts.clear()
        layouts[names] = _layout(names)
    if CONTENT_TYPE in names:
        content_type = values[names.index(CONTENT_TYPE)]
        if content_type is not None and len(content_type) <= MAX_CONTENT_TYPE_BYTES and not is_structured(content_type):
            if len(content_types) >= MAX_CONTENT_TYPES:
                content_types.clear()
            content_types.add(content_type)


def _layout(names: tuple[str, ...]) -> Layout | None:
    """Ask the careful way what becomes of each header, with values that are plain for sure."""
    if len(set(names)) != len(names) or not {"ce_specversion", "ce_id", "ce_type", "ce_source"} <= set(names):
        return None
    template = b""
    for name in names:
        # One header after the other, between the four that make it an event, so that its line can be told apart.
        others = [(other, b"1.0") for other in ("ce_specversion", "ce_id", "ce_type", "ce_source") if other != name]
        mine = (name, b"1.0" if name == "ce_specversion" else _PROBE)
        alone, both = request_from_record(others, None), request_from_record([*others, mine], None)
        if name in {"ce_specversion", "ce_id", "ce_type", "ce_source"}:
            line = b"ce-%b: %%b\r\n" % name[3:].encode()
        elif isinstance(alone, Undecodable) or isinstance(both, Undecodable):
            return None
        else:
            rendered = both[0].removeprefix(alone[0])
            if rendered and not rendered.endswith(b": 0\r\n"):
                return None
            # A header that does not travel is formatted to nothing.
            line = rendered.replace(b"%", b"%%").removesuffix(b"0\r\n") + b"%b\r\n" if rendered else b"%.0b"
        template += line
    index_of = {name: index for index, name in enumerate(names)}
    return Layout(
        template,
        index_of["ce_specversion"],
        index_of["ce_id"],
        index_of["ce_type"],
        index_of["ce_source"],
        index_of.get(CONTENT_TYPE, -1),
    )
