"""An asyncio transport in memory: what a connection writes, and what it does to the transport, as lists."""

from __future__ import annotations

import asyncio


class MemoryTransport(asyncio.Transport):
    """Calls `connection_lost` at once where the real one does so in the next round of the loop."""

    def __init__(self, protocol: asyncio.Protocol, *, can_write_eof: bool = True) -> None:
        super().__init__()
        self.protocol = protocol
        self.written = bytearray()
        self.is_closed = False
        self.was_aborted = False
        self.wrote_eof = False
        self.is_reading = True
        self._can_write_eof = can_write_eof

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed
        assert not self.wrote_eof
        self.written += data

    def can_write_eof(self) -> bool:
        return self._can_write_eof

    def write_eof(self) -> None:
        self.wrote_eof = True

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.protocol.connection_lost(None)

    def abort(self) -> None:
        self.was_aborted = True
        self.close()

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True
