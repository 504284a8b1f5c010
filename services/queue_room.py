"""Holds a tenant to `max_queued`: how many of its trials may wait, for whatever reason."""

from sqlalchemy import Connection

from core.errors import QuotaExceededError
from repositories.tenants import TenantRepository

__all__ = ["QueueRoom"]


class QueueRoom:
    """The room in one tenant's queue, inside the caller's transaction."""

    def __init__(self, connection: Connection, tenant_id: int) -> None:
        """connection: the caller begins and commits."""
        self._tenants = TenantRepository(connection)
        self._tenant_id = tenant_id

    def refuse_early(self, trials: int) -> None:
        """Raise QuotaExceededError if so many more do not fit already; before the work of inserting them."""
        if not trials or self._tenants.fit_surely(self._tenant_id, trials):
            return
        if trials > self._tenants.queue_room(self._tenant_id).room:
            raise _full()

    def hold(self, trials: int) -> None:
        """Raise QuotaExceededError if these, now inserted, are too many, whoever inserts at the same time.

        Call it last: from here to the commit the tenant's other submissions wait. What waits is counted only where a
        bound, which never is too low, says that they may be too many.
        """
        if not trials:
            return
        if self._tenants.add_to_bound(self._tenant_id, trials):
            return
        self._tenants.lock_queue(self._tenant_id)
        found = self._tenants.queue_room(self._tenant_id)
        if found.room < 0:
            raise _full()
        self._tenants.set_bound(self._tenant_id, found.max_queued - found.room + found.running)


def _full() -> QuotaExceededError:
    return QuotaExceededError("too many trials are queued: wait until some have run")
