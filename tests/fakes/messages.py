"""Kafka messages as confluent-kafka gives them, as far as the dispatcher looks at them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class FakeMessage:
    """One polled record."""

    partition_number: int
    offset_number: int
    key_bytes: bytes | None
    value_bytes: bytes | None
    header_list: list[tuple[str, bytes]] = field(default_factory=list)
    time_ms: int = 0

    def partition(self):
        return self.partition_number

    def offset(self):
        return self.offset_number

    def key(self):
        return self.key_bytes

    def value(self):
        return self.value_bytes

    def headers(self):
        return self.header_list or None

    def timestamp(self):
        return 1, self.time_ms

    def __len__(self):
        return len(self.value_bytes or b"")
