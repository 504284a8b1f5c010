"""One connection's two directions on the event loop, each bounded, each of which can end by itself."""

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, Final, cast

__all__ = ["BUFFER_BYTES", "Stream", "open_stream"]

BUFFER_BYTES: Final = 64 << 10
"""Of one direction. So much is received at a time, too, so twice that is the most a stream holds of it."""

_LAST_WORDS_BYTES: Final = 1 << 20
_PROBES: Final = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}
"""After a minute of silence the kernel asks whether the peer is there, and gives it up a minute later."""


class _Received(threading.local):
    """One buffer for all streams of a loop: what it has received is copied out of it before anything else runs.

    Of a loop, which is of a thread: another one receives at the same time.
    """

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(BUFFER_BYTES))


_received = _Received()


class Stream(asyncio.BufferedProtocol):
    """A connection that is read and written by one task for each direction.

    is_broken: it was lost in other than an orderly way. on_eof: called once when the peer ends its direction. on_lost:
    called once when nothing can be sent any more. Both are called by the loop, also while nobody reads, unless
    BUFFER_BYTES wait to be read.
    """

    def __init__(self) -> None:
        self.is_eof = False
        self.is_lost = False
        self.is_broken = False
        self.on_eof: Callable[[], None] | None = None
        self.on_lost: Callable[[], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._is_reading = True
        self._is_writing = True
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=BUFFER_BYTES)
        _tune(transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Say where the next bytes go."""
        del sizehint
        return _received.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take them."""
        self._take_in(bytes(_received.buffer[:nbytes]))

    def eof_received(self) -> bool:
        """Note that the peer sends no more; our direction stays open."""
        self._end_reading()
        return True

    def pause_writing(self) -> None:
        """Let writers wait."""
        self._is_writing = False

    def resume_writing(self) -> None:
        """Let writers go on."""
        self._is_writing = True
        _wake(self._writer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of both directions. What the peer has said before it closed is still to be read."""
        if exc is not None and not self.is_eof:
            self._take_last_words()
        self.is_broken = exc is not None
        self.is_lost = True
        self._end_reading()
        _wake(self._writer)
        self._call("on_lost")

    # What tasks call.

    @property
    def has_data(self) -> bool:
        """Whether something waits to be read."""
        return bool(self._data)

    def take(self) -> bytes:
        """Give what waits to be read, which may be nothing."""
        data, self._data = self._data, b""
        if not self._is_reading and not self.is_lost and self._transport is not None:
            self._is_reading = True
            self._transport.resume_reading()
        return data

    def push_back(self, data: bytes) -> None:
        """Let these bytes be read next."""
        self._data = data + self._data

    async def wait(self) -> bool:
        """Wait until there is something to be read; False at the end, however it came about."""
        while not self._data and not self.is_eof:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return bool(self._data)

    async def read(self) -> bytes:
        """Give what has come, and wait for something if nothing has; empty at the end."""
        if not self._data:
            await self.wait()
        return self.take()

    async def write(self, data: bytes) -> None:
        """Send, and wait until the peer can take more, however long. Raises ConnectionError."""
        if self.is_lost or self._transport is None:
            raise ConnectionResetError("the connection is closed")
        self._transport.write(data)
        while not self._is_writing and not self.is_lost:
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None
        if self.is_lost:
            raise ConnectionResetError("the connection is closed")

    def write_eof(self) -> None:
        """End our direction once all is sent; the other goes on."""
        if self._transport is not None and not self._transport.is_closing():
            with contextlib.suppress(OSError):  # the peer was quicker
                self._transport.write_eof()

    def abort(self) -> None:
        """Close at once; whoever reads or writes gets the end or a ConnectionError."""
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """Close so that the peer sees a break, whatever it has read: the only way where an end has no other sign."""
        watched = self.info("socket")
        if watched is not None and not self.is_lost:
            with contextlib.suppress(OSError):
                watched.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()

    def close(self) -> None:
        """Close once all is sent; a peer that does not take it is the caller's to `abort`."""
        if self._transport is not None:
            self._transport.close()

    @property
    def unsent_bytes(self) -> int:
        """What the peer has not yet taken."""
        return 0 if self.is_lost or self._transport is None else self._transport.get_write_buffer_size()

    def info(self, name: str) -> Any:
        """Give `peername`, `sockname`, `socket`."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    def _take_in(self, data: bytes) -> None:
        self._data = self._data + data if self._data else data
        if len(self._data) >= BUFFER_BYTES and self._is_reading and self._transport is not None:
            self._is_reading = False
            self._transport.pause_reading()
        _wake(self._reader)

    def _take_last_words(self) -> None:
        """Read what came before a write failed: a program that refuses a body and closes has often said why."""
        watched = self._transport and self._transport.get_extra_info("socket")
        if not watched:
            return
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(watched.fileno())) as own:
            own.setblocking(False)
            while len(self._data) < _LAST_WORDS_BYTES and (data := own.recv(BUFFER_BYTES)):
                self._data += data

    def _end_reading(self) -> None:
        if not self.is_eof:
            self.is_eof = True
            _wake(self._reader)
            self._call("on_eof")

    def _call(self, name: str) -> None:
        callback: Callable[[], None] | None = getattr(self, name)
        setattr(self, name, None)
        if callback is not None:
            callback()


async def open_stream(connection: socket.socket) -> Stream:
    """Take over a connected socket of any family."""
    connection.setblocking(False)
    try:
        _, stream = await asyncio.get_running_loop().create_connection(Stream, sock=connection)
    except BaseException:
        connection.close()
        raise
    return stream


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _tune(connection: Any) -> None:
    """Send small messages at once over TCP, and notice a peer that vanished while there is nothing to send to it.

    asyncio sets TCP_NODELAY only on sockets made with IPPROTO_TCP by name. Without it, an answer of two writes waits
    for the 40 ms after which the other side's kernel acknowledges the first.
    """
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):  # it is gone already
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _PROBES.items():
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
