"""The other end of a relay: one HTTP request to a program of this sandbox."""

import asyncio
import os
import socket
from typing import Final

import h11

from execd.errors import BackendError, BackendMissingError
from execd.streams import READ_BYTES, SocketStream, keep_alive

__all__ = ["Backend"]

_CONNECT_SECONDS: Final = 10.0
_MAX_HEADER_BYTES: Final = 64 * 1024
_HEAD_READ_BYTES: Final = 16 * 1024
_ADDRESSES: Final = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
"""The second for programs that take "localhost" for it and listen nowhere else."""


class Backend:
    """A connection of its own for one request."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEADER_BYTES)

    @classmethod
    async def connect(cls, port: int) -> "Backend":
        """Connect to a port of this host. Raises BackendMissingError."""
        reason = ""
        for family, address in _ADDRESSES:
            try:
                return cls(SocketStream(await _connect(family, address, port)))
            except TimeoutError:
                reason = reason or f"no answer within {_CONNECT_SECONDS:.0f} s"
            except OSError as error:
                reason = reason or os.strerror(error.errno or 0)
        raise BackendMissingError(f"port {port}: {reason}")

    async def send(self, event: h11.Event) -> None:
        """Send a part of the request and wait until more can be taken, however long. Raises OSError."""
        data = self._http.send(event)
        if data:
            await self._stream.write(data)

    async def next_event(self) -> h11.Event:
        """Give the next event of the response. Raises BackendError if it breaks off or is no HTTP."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                # h11 limits only heads that have not come whole: small reads until they have.
                size = READ_BYTES if self._http.their_state is h11.SEND_BODY else _HEAD_READ_BYTES
                self._http.receive_data(await self._stream.read(size))
        except h11.RemoteProtocolError as error:
            raise BackendError(f"the answer is broken: {error}") from error
        except OSError as error:
            raise BackendError(f"the answer breaks off: {error.strerror or error}") from error
        if isinstance(event, h11.Event):
            return event
        raise BackendError("the answer has an end that was not asked for")

    def leave_http(self) -> SocketStream:
        """Give the bare connection after a 101."""
        self._stream.push_back(self._http.trailing_data[0])
        return self._stream

    def abort(self) -> None:
        """Break off; whoever waits gets a BackendError or an OSError."""
        self._stream.abort()

    def close(self) -> None:
        """Let go of the connection. Nobody may be waiting any more."""
        self._stream.close()


async def _connect(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            await asyncio.get_running_loop().sock_connect(connection, (address, port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connection)
    except BaseException:
        connection.close()
        raise
    return connection
