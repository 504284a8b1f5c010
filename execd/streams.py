"""Bytes both ways on a connection that has left HTTP behind."""

import asyncio
from typing import Final

__all__ = ["READ_BYTES", "ByteStream", "take_all"]

READ_BYTES: Final = 64 * 1024


def take_all(reader: asyncio.StreamReader) -> bytes:
    """Give what has come and was not read yet, without waiting for more."""
    # Its own name for it is all there is: `read` waits when there is nothing, and there is no way to ask.
    buffer: bytearray = reader._buffer  # type: ignore[attr-defined]  # noqa: SLF001
    data = bytes(buffer)
    buffer.clear()
    return data


class ByteStream:
    """One connection's two directions, each of which can end by itself."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: bytes = b""
    ) -> None:
        """received: what has been read of it already. The writer stays its maker's to close."""
        self._reader = reader
        self._writer = writer
        self._received = received

    async def read(self) -> bytes:
        """Give what has come, at most 64 KiB; empty at the end. Raises OSError."""
        if self._received:
            data, self._received = self._received, b""
            return data
        return await self._reader.read(READ_BYTES)

    async def write(self, data: bytes) -> None:
        """Send, and wait until the peer can take more, however long. Raises OSError."""
        self._writer.write(data)
        await self._writer.drain()

    def write_soon(self, data: bytes) -> None:
        """Send without waiting; for the few last bytes only."""
        self._writer.write(data)

    def write_eof(self) -> None:
        """End our direction; the other goes on."""
        if self._writer.can_write_eof():
            self._writer.write_eof()

    def abort(self) -> None:
        """Close without sending what is buffered; whoever reads or writes gets the end or an OSError."""
        self._writer.transport.abort()
