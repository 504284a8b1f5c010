"""Reads what happens in a batch: a page, or from any event on until the batch ends.

The scheduler says over Redis that there is something new; the store says what. A lost message costs two seconds.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from uuid import UUID

import anyio.to_thread
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from core.errors import NotFoundError
from core.logging import get_logger
from repositories.batch_events import BatchEventRepository, BatchEventRow
from services.history import missing_batch
from services.log_hub import LogHub

__all__ = ["BatchEventFollower", "BatchEventRow", "EventPage", "EventsEnd", "read_event_page"]

log = get_logger(__name__)

_PAGE = 200
_QUIET_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class EventPage:
    """events: in order. next_after: where to go on; None: the batch is finished and this was its last part."""

    events: list[BatchEventRow]
    next_after: int | None


@dataclass(frozen=True, slots=True)
class EventsEnd:
    """The batch is finished and all its events were given. A retry may add more: come back with the last one's n."""


def read_event_page(
    connection: Connection, tenant_id: int, batch_id: UUID, *, after: int, limit: int
) -> EventPage:
    """Read at most `limit` events with n > after. Raises NotFoundError for the batch."""
    repository = BatchEventRepository(connection, tenant_id)
    # The state first: an event written between the two statements then belongs to this page or the next.
    state = repository.state(batch_id)
    if state is None:
        raise missing_batch(connection, tenant_id, batch_id)
    is_finished, last = state
    events = repository.page(batch_id, after=after, limit=limit)
    reached = events[-1].n if events else after
    return EventPage(events, None if is_finished and reached >= last else reached)


class BatchEventFollower:
    """Follows one batch until it is finished."""

    def __init__(self, engine: Engine, hub: LogHub, tenant_id: int, batch_id: UUID) -> None:
        """batch_id: of a batch that this tenant has."""
        self._engine = engine
        self._hub = hub
        self._tenant_id = tenant_id
        self._batch_id = batch_id

    async def follow(self, *, after: int) -> AsyncGenerator[BatchEventRow | EventsEnd | None]:
        """Give every event with n > after once, in order, then an EventsEnd.

        None comes every two seconds or oftener while nothing happens, for the caller's own checks. While the database
        is away the reader waits for it.
        """
        last = after
        # The channels of logs carry ids of attempts; that of a batch is as unique and lies beside them.
        async with self._hub.listen(self._batch_id) as listener:
            while True:
                page = await self._ask(last)
                for event in page.events if page else []:
                    yield event
                    last = event.n
                if page and page.next_after is None:
                    yield EventsEnd()
                    return
                if page is None or not page.events:
                    yield None
                    await listener.next(_QUIET_SECONDS)

    async def _ask(self, after: int) -> EventPage | None:
        """Ask the store on a thread; None while it is away."""

        def ask() -> EventPage | None:
            try:
                with self._engine.begin() as connection:
                    return read_event_page(
                        connection, self._tenant_id, self._batch_id, after=after, limit=_PAGE
                    )
            except SQLAlchemyError as error:
                log.warning("event_store_unreachable", error=type(error).__name__)
                return None
            except NotFoundError:
                # Archived meanwhile: there is no more of it here.
                return EventPage([], None)

        return await anyio.to_thread.run_sync(ask)
