"""Waits a short while for what a node does, so that a client that goes step by step loses nothing."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import UUID

from starlette.concurrency import run_in_threadpool

from api.services import ApiServices
from services.log_hub import LogListener

__all__ = ["ChangeWaiter", "watching"]

_Row = TypeVar("_Row")

_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 1.0, 4.0
"""Between the first two looks at the row while nothing is heard, then twice as long each time: a message may be lost,
but after a break of the line to Redis there is a look anyway."""


class ChangeWaiter:
    """Waits for one sandbox, or one snapshot, to change."""

    def __init__(self, listener: LogListener) -> None:
        """listener: hears of it since before the change was asked for."""
        self._listener = listener

    async def until(
        self,
        read: Callable[[], _Row | None],
        is_over: Callable[[_Row], bool],
        *,
        seconds: float,
        first_wait_seconds: float | None = None,
    ) -> _Row | None:
        """Give the row once it is so, or after so long as it is then; None if it is gone.

        first_wait_seconds: for a change to be heard of, before the first look; 0 where it may have been before this.
        None: as long as before any other look.
        """
        deadline = time.monotonic() + seconds
        first_wait = _LOOK_SECONDS if first_wait_seconds is None else first_wait_seconds
        if first_wait > 0:
            await self._listener.next(min(seconds, first_wait))
        pause = _LOOK_SECONDS
        while True:
            row = await run_in_threadpool(read)
            left = deadline - time.monotonic()
            if row is None or is_over(row) or left <= 0:
                return row
            await self._listener.next(min(left, pause))
            pause = min(2 * pause, _LONGEST_LOOK_SECONDS)


@asynccontextmanager
async def watching(services: ApiServices, key: UUID) -> AsyncIterator[ChangeWaiter]:
    """Hear of the changes of a sandbox, or of a snapshot, from here on. key: its id."""
    async with services.hub.listen(key) as listener:
        yield ChangeWaiter(listener)
