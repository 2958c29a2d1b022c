"""Which offset of a partition is safe to commit, and what is finished above it. Pure.

An offset always denotes the *next* record to read. The tracker of one assignment of one partition knows every record
that was polled and is not settled; whatever was polled and is not among them is finished. The committed offset is the
lowest unfinished one, so it never passes a record that is owed to the subscriber. Only offsets that were really polled
are tracked: those that compaction or transactions took away need no attention.

Records above the committed offset finish in any order. Their fates, and how often a failing one was tried already, go
into the metadata of the commit, so that a restart or a rebalance repeats nothing that was confirmed and `retry` counts
on. Format of the metadata, version 1:

    "sluice1:" + base85( checksum:2 | flags:1 | payload )          at most 4,096 characters
    payload    varints: length of the map from the committed offset, then for each run of unfinished offsets the
               distance from the run before and its length, a 0, then for each record with attempts its distance from
               the one before + 1, attempts, status code, attempts at the dead letter sink
    flags      1: payload is deflated
    checksum   CRC-16 over the committed offset and the payload: a map that belongs to another offset is foreign

Foreign or damaged metadata means only that records above the committed offset are delivered again.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

METADATA_LIMIT: Final = 4096
"""Characters; the broker's `offset.metadata.max.bytes`. A mock broker takes more, a real one refuses the commit."""
PREFIX: Final = "sluice1:"
DEFLATE_FROM: Final = 200
"""Bytes; below, deflating rarely saves any."""
MAX_MAP_LENGTH: Final = 1 << 40
"""Offsets; a longer map is damage, not data."""
_RAW_LIMIT: Final = (METADATA_LIMIT - len(PREFIX)) * 4 // 5 - 3
_DEFLATED: Final = 1


class Attempts(NamedTuple):
    """How far a failing record had come. `made` counts attempts at the subscriber, `code` is the last status (0: none),
    `sink` counts attempts at the dead letter sink; it is -1 while the subscriber is still owed attempts.
    """

    made: int
    code: int = 0
    sink: int = -1


@dataclass(frozen=True, slots=True)
class FinishedMap:
    """What is known about offsets from the committed one up to `end`: all finished but the ones listed."""

    end: int = 0
    unfinished: frozenset[int] = frozenset()
    attempts: Mapping[int, Attempts] = field(default_factory=dict)

    def is_finished(self, offset: int) -> bool:
        """True when a former assignment has confirmed this record."""
        return offset < self.end and offset not in self.unfinished


EMPTY_MAP: Final = FinishedMap()


class Commit(NamedTuple):
    """What to write for one partition. `forgotten`: finished records above `offset` that did not fit in."""

    offset: int
    metadata: str
    forgotten: int = 0


class OffsetTracker:
    """The unfinished records of one assignment of one partition.

    `unfinished` and `highest_finished` are public for the loop that settles records: it does what `finish` does.
    Offsets are added in ascending order, and a dict keeps its order, so that its first key is the lowest.
    """

    __slots__ = ("_committed", "attempts", "highest_finished", "known", "next_polled", "unfinished")

    def __init__(self, committed: int | None, known: FinishedMap = EMPTY_MAP) -> None:
        self.unfinished: dict[int, Any] = {}
        self.highest_finished = -1
        """Of those polled. Records above it are not begun with or under way, and need no place in the map."""
        self.known = known
        self.attempts: dict[int, Attempts] = dict(known.attempts)
        """Of records that failed and are not settled; whoever finishes one that failed removes it here too."""
        self.next_polled = committed if committed is not None else -1
        """One above the highest offset polled; -1 before anything is known."""
        self._committed: Commit | None = None if committed is None or known.end > 0 else Commit(committed, "")

    def polled(self, offset: int, record: object) -> bool:
        """Take note of a record; False when it is settled already and needs no delivery.

        Offsets must ascend: a partition that was set back is a new assignment.
        """
        assert offset >= self.next_polled, f"offset {offset} after {self.next_polled - 1}"
        self.next_polled = offset + 1
        if offset < self.known.end:
            if offset not in self.known.unfinished:
                self.highest_finished = offset
                return False
        elif self.known.end:
            self.known = EMPTY_MAP
        self.unfinished[offset] = record
        return True

    def finish(self, offset: int) -> None:
        """Settle a record, in any order; a second time is no error (the record of a former assignment)."""
        self.unfinished.pop(offset, None)
        self.attempts.pop(offset, None)
        self.highest_finished = max(self.highest_finished, offset)

    @property
    def safe_offset(self) -> int:
        """The lowest unfinished offset, else the next one to poll; -1 when nothing is known."""
        return min(next(iter(self.unfinished), self._end()), min(self._known_open(), default=self._end()))

    def uncommitted(self) -> Commit | None:
        """What to write now; None when the broker has it already or nothing is known."""
        commit = self.commit()
        return None if commit == self._committed else commit

    def commit(self) -> Commit | None:
        """The present state as a commit; None when nothing is known."""
        if self.known.end:
            unfinished = [*self.unfinished, *sorted(self._known_open())]
            end = self._end()
        else:
            if not self.unfinished:
                return Commit(self.next_polled, "") if self.next_polled >= 0 else None
            highest = max(self.highest_finished, max(self.attempts, default=-1))
            unfinished = list(itertools.takewhile(highest.__ge__, self.unfinished))
            end = highest + 1
            if not unfinished:
                return Commit(next(iter(self.unfinished)), "")
        return encode(unfinished[0] if unfinished else end, end, unfinished, self.attempts)

    def committed(self, commit: Commit) -> None:
        """The broker has taken it."""
        self._committed = commit

    def _end(self) -> int:
        return max(self.next_polled, self.known.end)

    def _known_open(self) -> Iterable[int]:
        return [offset for offset in self.known.unfinished if offset >= self.next_polled] if self.known.end else ()


# --- the map as text -------------------------------------------------------------------------------------------------


def encode(offset: int, end: int, unfinished: Sequence[int], attempts: Mapping[int, Attempts]) -> Commit:
    """The commit for a partition whose records below `end` are finished, but the ascending `unfinished`.

    When the map is too long its far end is left out: those records may be delivered again after a crash, which costs
    the subscriber a repeat, while waiting for room would cost all other keys their turn.
    """
    metadata = _encode(offset, end, unfinished, attempts)
    if metadata is not None:
        return Commit(offset, metadata)
    # The map of the first k unfinished records ends before the next one. Search for the largest k that fits.
    fits, too_long, best = 0, len(unfinished), ""
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        text = _encode(offset, unfinished[middle], unfinished[:middle], attempts)
        if text is None:
            too_long = middle
        else:
            fits, best = middle, text
    reached = unfinished[fits] if best else offset
    forgotten = (end - reached) - (len(unfinished) - fits)
    return Commit(offset, best, forgotten)


def _encode(offset: int, end: int, unfinished: Sequence[int], attempts: Mapping[int, Attempts]) -> str | None:
    """The metadata, empty when there is nothing to say, None when it is too long."""
    open_attempts = [(o, attempts[o]) for o in unfinished if o in attempts] if attempts else []
    if not open_attempts and end - offset == len(unfinished):
        return ""  # nothing above is finished
    # Runs by their borders: most unfinished records are one long run that nobody has begun with, and this is done for
    # every partition once a second.
    starts = [after for before, after in itertools.pairwise(unfinished) if after != before + 1]
    ends = [before + 1 for before, after in itertools.pairwise(unfinished) if after != before + 1]
    if unfinished:
        starts.insert(0, unfinished[0])
        ends.append(unfinished[-1] + 1)
    payload = bytearray()
    _put(payload, end - offset)
    previous = offset
    for start, stop in zip(starts, ends, strict=True):
        _put(payload, start - previous)
        _put(payload, stop - start)
        previous = stop
    _put(payload, 0)
    _put(payload, 0)
    previous = offset - 1
    for o, (made, code, sink) in open_attempts:
        _put(payload, o - previous)
        _put(payload, made)
        _put(payload, code)
        _put(payload, sink + 1)
        previous = o
    raw, flags = bytes(payload), 0
    if len(raw) > DEFLATE_FROM:
        deflated = zlib.compress(raw, 6)
        if len(deflated) < len(raw):
            raw, flags = deflated, _DEFLATED
    if len(raw) > _RAW_LIMIT:
        return None
    body = bytes([flags]) + raw
    return PREFIX + base64.b85encode(_checksum(offset, body) + body).decode()


def decode(committed: int, metadata: str | None) -> FinishedMap | str:
    """The map that a commit carries; a string says why there is none that can be used (empty: nothing was said)."""
    if not metadata:
        return EMPTY_MAP
    if not metadata.startswith(PREFIX):
        return "foreign metadata"
    if len(metadata) > METADATA_LIMIT:
        return "metadata is too long"
    try:
        body = base64.b85decode(metadata[len(PREFIX) :])
        if len(body) < 4 or body[:2] != _checksum(committed, body[2:]):
            return "the checksum is wrong"
        flags, payload = body[2], body[3:]
        if flags == _DEFLATED:
            inflater = zlib.decompressobj()
            payload = inflater.decompress(payload, 1 << 20)
            if not inflater.eof:
                return "the map is damaged"
        elif flags:
            return "unknown flags"
        return _decode(committed, payload)
    except (ValueError, IndexError, zlib.error):
        return "the map is damaged"


def _decode(committed: int, payload: bytes) -> FinishedMap:
    length, index = _get(payload, 0)
    end = committed + length
    unfinished: list[int] = []
    position = committed
    while True:
        distance, index = _get(payload, index)
        run, index = _get(payload, index)
        if not run:
            break
        position += distance + run
        if position > end or len(unfinished) + run > 16 * METADATA_LIMIT * 8:
            raise ValueError
        unfinished.extend(range(position - run, position))
    attempts: dict[int, Attempts] = {}
    position = committed - 1
    while index < len(payload):
        distance, index = _get(payload, index)
        made, index = _get(payload, index)
        code, index = _get(payload, index)
        sink, index = _get(payload, index)
        position += distance
        attempts[position] = Attempts(made, code, sink - 1)
    if not attempts.keys() <= set(unfinished) or length > MAX_MAP_LENGTH:
        raise ValueError
    return FinishedMap(end, frozenset(unfinished), attempts)


def _checksum(offset: int, body: bytes) -> bytes:
    return binascii.crc_hqx(b"%d:" % offset + body, 0).to_bytes(2, "big")


def _put(target: bytearray, number: int) -> None:
    """Append an unsigned LEB128 varint."""
    while number > 0x7F:
        target.append(number & 0x7F | 0x80)
        number >>= 7
    target.append(number)


def _get(source: bytes, index: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = source[index]
        index += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, index
        shift += 7
        if shift > 63:
            raise ValueError
