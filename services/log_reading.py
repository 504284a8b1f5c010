"""Reads the log of an attempt: a page, or from any point on until its end.

A follower subscribes first, then reads the store, then takes live chunks, dropping what it has seen; on a gap, and
whenever it is quiet, it looks at the store again. So messages may be lost, doubled or late: what comes out is every
chunk once, in order. The end is what the store says, never a message.
"""

import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

import anyio.to_thread
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from core.errors import NotFoundError
from core.logging import get_logger
from repositories.log_reading import LogChunkRow, LogKey, LogReadRepository, LogState
from services.log_hub import LogHub, LogListener

__all__ = ["LogChunkRow", "LogEnd", "LogFollower", "LogKey", "LogPage", "find_log", "read_log_page"]

log = get_logger(__name__)

T = TypeVar("T")

_PAGE_BYTES = 1 << 20
"""Size at which a page is full whatever its limit says."""
_STORE_CHUNKS = 16
"""Chunks per statement: 1 MiB at most, since a chunk has at most 64 KiB."""
_QUIET_SECONDS = 0.1
_MAX_QUIET_SECONDS = 2.0
"""After this much silence the store is asked anyway: a lost message delays a line by so much, no more."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """chunks: in order. next_after: where to go on; None: the log has ended and this was its last part."""

    chunks: list[LogChunkRow]
    next_after: int | None
    state: LogState


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The log is complete. truncated_bytes: cut from its middle by the size limit."""

    truncated_bytes: int


def find_log(connection: Connection, tenant_id: int, attempt_id: UUID) -> LogKey:
    """Find the log of a tenant's attempt. Raises NotFoundError."""
    key = LogReadRepository(connection, tenant_id).key(attempt_id)
    if key is None:
        raise NotFoundError("attempt", attempt_id)
    return key


def read_log_page(
    connection: Connection,
    tenant_id: int,
    key: LogKey,
    *,
    after: int,
    limit: int,
    step: str | None = None,
    stream: str | None = None,
) -> LogPage:
    """Read at most `limit` chunks and about 1 MiB with seq > after."""
    repository = LogReadRepository(connection, tenant_id)
    # The state first: a chunk stored between the two statements is then read now, or belongs to the next page.
    state = repository.state(key)
    chunks: list[LogChunkRow] = []
    size = 0
    while len(chunks) < limit and size < _PAGE_BYTES:
        wanted = min(_STORE_CHUNKS, limit - len(chunks))
        position = chunks[-1].seq if chunks else after
        found = repository.chunks(key, after=position, limit=wanted, step=step, stream=stream)
        chunks += found
        size += sum(len(chunk.data) for chunk in found)
        if len(found) < wanted:
            # Nothing more matches for now, so the next page begins after all that was there.
            reached = max(after, chunks[-1].seq if chunks else -1, _last(state))
            return LogPage(chunks, None if state.closed else reached, state)
    return LogPage(chunks, chunks[-1].seq, state)


class LogFollower:
    """Follows one log until its end."""

    def __init__(self, engine: Engine, hub: LogHub, tenant_id: int, key: LogKey) -> None:
        """key: from `find_log` for this tenant."""
        self._engine = engine
        self._hub = hub
        self._tenant_id = tenant_id
        self._key = key

    async def follow(self, *, after: int) -> AsyncGenerator[LogChunkRow | LogEnd | None]:
        """Give every chunk with seq > after once, in order, then a LogEnd.

        None comes every two seconds or oftener while nothing happens, for the caller's own checks. While the database
        is away the reader waits for it.
        """
        last = after
        async with self._hub.listen(self._key.attempt_id) as listener:
            while True:
                for chunk in await self._read_store(last):
                    yield chunk
                    last = chunk.seq
                state = await self._read_state()
                if state is not None and _last(state) <= last:
                    if state.closed:
                        yield LogEnd(state.truncated_bytes)
                        return
                    async with contextlib.aclosing(self._listen(listener, last)) as heard:
                        async for live in heard:
                            yield live
                            last = last if live is None else live.seq
                elif state is None:
                    yield None
                    await anyio.sleep(1.0)

    async def _listen(self, listener: LogListener, last: int) -> AsyncGenerator[LogChunkRow | None]:
        """Give live chunks without a gap; ends when the store has to be asked."""
        quiet = _QUIET_SECONDS
        while True:
            chunk = await listener.next(quiet)
            if chunk is None:
                yield None
                state = await self._read_state()
                if state is None or state.closed or _last(state) > last:
                    return
                quiet = min(2 * quiet, _MAX_QUIET_SECONDS)
            elif chunk.seq == last + 1:
                yield chunk
                last, quiet = chunk.seq, _QUIET_SECONDS
            elif chunk.seq > last:
                return

    async def _read_store(self, after: int) -> list[LogChunkRow]:
        chunks = await self._ask(lambda store: store.chunks(self._key, after=after, limit=_STORE_CHUNKS))
        return chunks or []

    async def _read_state(self) -> LogState | None:
        return await self._ask(lambda store: store.state(self._key))

    async def _ask(self, question: Callable[[LogReadRepository], T]) -> T | None:
        """Ask the store on a thread; None while it is away."""

        def ask() -> T | None:
            try:
                with self._engine.begin() as connection:
                    return question(LogReadRepository(connection, self._tenant_id))
            except SQLAlchemyError as error:
                log.warning("log_store_unreachable", error=type(error).__name__)
                return None

        return await anyio.to_thread.run_sync(ask)


def _last(state: LogState) -> int:
    return -1 if state.last_seq is None else state.last_seq
