"""Bytes both ways on a connection that has left HTTP behind."""

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

__all__ = ["READ_BYTES", "ByteStream", "SocketStream", "keep_alive", "take_all"]

READ_BYTES: Final = 64 * 1024

_PROBES: Final = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}
"""After a minute of silence the kernel asks whether the peer is there, and gives it up a minute later."""


def keep_alive(connection: "socket.socket | TransportSocket | None") -> None:
    """Notice, on a TCP connection, a peer that vanished without a word while there is nothing to send to it."""
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):  # it is gone already
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _PROBES.items():
                connection.setsockopt(socket.IPPROTO_TCP, option, value)


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


class SocketStream:
    """The same on a bare socket.

    Here a write that fails does not take with it what is still to be read, as the transports of asyncio do: a program
    that refuses a body and closes has often said why before.
    """

    def __init__(self, connection: socket.socket) -> None:
        """connection: non-blocking, owned from now on."""
        self._socket = connection
        self._received = b""

    def push_back(self, data: bytes) -> None:
        """Let these bytes be read next."""
        self._received = data + self._received

    async def read(self, size: int = READ_BYTES) -> bytes:
        """Give what has come, at most `size` bytes if none were pushed back; empty at the end. Raises OSError."""
        if self._received:
            data, self._received = self._received, b""
            return data
        return await asyncio.get_running_loop().sock_recv(self._socket, size)

    async def write(self, data: bytes) -> None:
        """Send all of it, however long that takes. Raises OSError."""
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    def write_eof(self) -> None:
        """End our direction; the other goes on."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        """End both directions; whoever reads or writes gets the end or an OSError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the socket. Nobody may be reading or writing any more."""
        self._socket.close()
