"""Bytes from a subscriber → `Answer`. Pure: bytes in, answers out, no clock, no socket.

Most answers of a subscriber are the same few bytes again and again (`HTTP/1.1 204 …` with a date that changes once a
second). Parsing is a function of these bytes, so a complete small answer that came in one piece is remembered with
its result, and the next one like it costs one lookup instead of a parse.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import httptools

from dispatcher_image.delivery import MAX_REPLY_BYTES, Answer
from dispatcher_image.sender import MAX_DISCARDED_BYTES, MAX_HEADER_BYTES

MAX_REMEMBERED: Final = 512
MAX_REMEMBERED_BYTES: Final = 512
"""Longest answer that is remembered; the table stays below a megabyte."""


class Parsed(NamedTuple):
    """A complete answer, and whether the connection may be used again."""

    answer: Answer
    keep_alive: bool


class BrokenResponse(Exception):
    """What came is not an HTTP/1.1 response that we take; the connection is of no more use."""


remembered: Final[dict[bytes, Parsed]] = {}
"""Whole answers that were parsed before. Use only when the connection's parser is at the start of an answer."""


class ResponseParser:
    """One answer after the other from one connection. `feed` bytes until it returns an answer."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.is_started = False
        """True when a part of an answer was seen."""
        self._clear()

    def _clear(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._header_bytes = 0
        self._in_body = False
        self._delimited = False
        self._may_be_event = False
        self._finished: Parsed | None = None
        self._has_more = False

    def feed(self, data: bytes) -> Parsed | None:
        """The answer when it is complete, else None. Raises BrokenResponse."""
        if not self.is_started:
            known = remembered.get(data)
            if known is not None:
                return known
        is_whole = not self.is_started
        self.is_started = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # 101: we asked for nothing of the kind. The status is final, the connection is not HTTP any more.
            return Parsed(Answer(self._parser.get_status_code() or 101), keep_alive=False)
        except httptools.HttpParserCallbackError as exc:
            raise BrokenResponse(str(exc.__context__ or exc)) from exc
        except httptools.HttpParserError as exc:
            if self._finished is not None:
                return self._finished._replace(keep_alive=False)  # what came after a complete answer is nonsense
            raise BrokenResponse(f"not an HTTP response: {exc}") from exc
        parsed = self._finished
        if parsed is None:
            if not self._in_body:
                # A header without an end reaches no callback, so its bytes are counted here.
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEADER_BYTES:
                    raise BrokenResponse(f"more than {MAX_HEADER_BYTES} bytes of headers")
            return self._cut_off() if self._body_bytes > MAX_DISCARDED_BYTES else None
        if not parsed.keep_alive or self._has_more:
            return parsed._replace(keep_alive=False)  # the latter: more than one answer to one request
        self.is_started = False
        self._finished = None
        if is_whole and len(data) <= MAX_REMEMBERED_BYTES:
            if len(remembered) >= MAX_REMEMBERED:
                remembered.clear()
            remembered[data] = parsed
        return parsed

    def end(self) -> Parsed | None:
        """The peer has closed: the answer, if its end was to be told by that; else it is only a part of one."""
        if self._in_body and not self._delimited:
            return self._cut_off()
        return None

    def _cut_off(self) -> Parsed:
        return self._result()._replace(keep_alive=False)

    def _result(self) -> Parsed:
        body = b"".join(self._body)
        answer = Answer(
            self._parser.get_status_code(),
            tuple(self._headers),
            body,
            truncated=self._body_bytes > len(body),
            may_be_event=self._may_be_event,
        )
        return Parsed(answer, self._parser.should_keep_alive())

    # --- called by httptools -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._has_more = self._finished is not None

    def on_status(self, status: bytes) -> None:
        self._count(len(status))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        lower = name.lower()
        self._headers.append((lower, value))
        if lower == b"content-length":
            self._delimited = True
        elif lower == b"transfer-encoding":
            self._delimited = value.lower().endswith(b"chunked")
        elif lower == b"ce-specversion" or (
            lower == b"content-type" and value[:23].lower() == b"application/cloudevents"
        ):
            self._may_be_event = True

    def on_headers_complete(self) -> None:
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        if self._body_bytes + len(body) <= MAX_REPLY_BYTES:
            self._body.append(body)
        self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._clear()  # interim (RFC 9110 §15.2): the real answer follows
            return
        if self._finished is None:
            finished = self._result()
            self._clear()
            self._finished = finished

    def _count(self, more: int) -> None:
        self._header_bytes += more
        if self._header_bytes > MAX_HEADER_BYTES:
            raise BrokenResponse(f"more than {MAX_HEADER_BYTES} bytes of headers")
