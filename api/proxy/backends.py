"""Connections of the API to the ingress of each node."""

import asyncio
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from api.proxy.calls import ProxyError
from traffic.backends import Backend, BackendPool
from traffic.streams import Stream

__all__ = ["CONNECT_SECONDS", "Backends"]

CONNECT_SECONDS: Final = 5.0
_IDLE_SECONDS: Final = 30.0
"""The ingress keeps an idle connection for two minutes."""


class Backends:
    """Keeps connections to the ingress of each node. For one event loop."""

    def __init__(self) -> None:
        self._pool = BackendPool(idle_seconds=_IDLE_SECONDS)
        self.give_back: Callable[[Backend], None] = self._pool.give_back

    async def get(self, ingress_url: str, *, is_new: bool = False) -> Backend:
        """Give a connection. Raises ProxyError."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._pool.get(ingress_url, lambda: _connect(ingress_url), is_new=is_new)
        except (OSError, ValueError) as error:  # TimeoutError is one, too
            raise ProxyError(
                502, "BACKEND_CONNECTION_FAILED", "the ingress of the sandbox's node does not answer"
            ) from error

    def close(self) -> None:
        """Close those that wait."""
        self._pool.close()


async def _connect(ingress_url: str) -> Stream:
    parts = urlsplit(ingress_url)
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(Stream, parts.hostname or "", parts.port or 80)
    return stream
