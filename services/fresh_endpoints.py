"""Endpoints of sandboxes that have just begun to run, which nearly every client asks for next."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from uuid import UUID

from services.live_sandboxes import Endpoint

__all__ = ["FreshEndpoints"]

_SECONDS: Final = 1.0
_MOST: Final = 1024


class FreshEndpoints:
    """Remembers for a second what the answer to a create has read. For one event loop.

    A sandbox that another process ends within that second still has its endpoint here; nothing answers there then.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Start empty."""
        self._monotonic = monotonic
        self._known: OrderedDict[tuple[int, UUID], tuple[float, Endpoint]] = OrderedDict()

    def note(self, tenant_id: int, sandbox_id: UUID, endpoint: Endpoint) -> None:
        """Remember one that was read just now."""
        self._known[tenant_id, sandbox_id] = (self._monotonic() + _SECONDS, endpoint)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)

    def find(self, tenant_id: int, sandbox_id: UUID) -> Endpoint | None:
        """Give a tenant's; None: ask the database."""
        until, endpoint = self._known.get((tenant_id, sandbox_id), (0.0, None))
        return endpoint if self._monotonic() < until else None

    def forget(self, tenant_id: int, sandbox_id: UUID) -> None:
        """Ask the database from now on: something is done to the sandbox."""
        self._known.pop((tenant_id, sandbox_id), None)
