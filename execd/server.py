"""Accepting connections, and letting go of them in order."""

import asyncio
import logging
import socket

import h11

from execd.connection import Connection
from execd.errors import TooManyConnectionsError
from execd.exchange import Handler
from execd.limits import Limits
from execd.streams import READ_BYTES, keep_alive

__all__ = ["Server"]

log = logging.getLogger("execd.server")


class Server:
    """Accepts connections on one listening socket."""

    def __init__(self, handler: Handler, limits: Limits) -> None:
        self._handler = handler
        self._limits = limits
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Serve on a bound and listening socket of any family; it is owned from now on."""
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=READ_BYTES)

    async def stop(self, *, grace_seconds: float) -> None:
        """Accept no more, drop idle connections, let running exchanges end within the grace, then drop them."""
        if self._server is not None:
            self._server.close()
        for task, connection in self._connections.items():
            if not connection.is_busy:
                task.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=grace_seconds)
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        keep_alive(writer.get_extra_info("socket"))
        connection = Connection(reader, writer, self._handler, self._limits)
        self._connections[task] = connection
        try:
            if len(self._connections) > self._limits.connections:
                message = (
                    f"{self._limits.connections} connections are open already: close one, or use one again"
                )
                await connection.refuse(TooManyConnectionsError(message))
            else:
                await connection.run()
        except (OSError, EOFError, TimeoutError, h11.LocalProtocolError) as error:
            log.info("connection_dropped error=%s", type(error).__name__)
        except asyncio.CancelledError:
            log.debug("connection_cancelled")
        finally:
            self._connections.pop(task, None)
            connection.drop()
