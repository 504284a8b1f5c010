"""Ends what nobody owns any more: lapsed sessions, lost attempts, trials past their deadline."""

from random import Random

from sqlalchemy import Connection, Engine

from core.errors import FailureClass
from core.failpoints import failpoint
from core.jsonb import to_jsonb
from core.logging import get_logger
from core.metrics import REAPED
from repositories.dispatch import DispatchRepository
from repositories.sweeping import SweepRepository
from services.lost_attempts import reap_ended_sessions, take_overdue
from services.outcomes import CANCELLED, Failure

__all__ = ["Reaper"]

log = get_logger(__name__)


_QUEUE_TIMEOUT = Failure(FailureClass.QUOTA, "queue_timeout", "not started within timeouts.queue")
_TOTAL_TIMEOUT = Failure(FailureClass.TASK, "total_timeout", "not finished within timeouts.total")


class Reaper:
    """Moves on what its owner cannot. Only the database's clock is asked."""

    def __init__(
        self,
        engine: Engine,
        *,
        lease_grace_seconds: float,
        lease_seconds: float = 60.0,
        rng: Random | None = None,
    ) -> None:
        """lease_grace_seconds: how long after its lapse a session is still left alone. lease_seconds: of a lease.

        rng: for the jitter of retries.
        """
        self._engine = engine
        self._grace = lease_grace_seconds
        self._lease = lease_seconds
        self._rng = rng or Random()  # noqa: S311 -- nobody gains by guessing when a trial runs again

    def reap(self, *, lapsed_sessions: bool = True) -> int:
        """Requeue or end the trials of dead sessions and overdue attempts; gives how many were lost with a session.

        lapsed_sessions False: only sessions that were ended on purpose count. The scheduler asks for that during
        the first lease time after it took over: workers that could not renew in a database outage are not dead.
        """
        with self._engine.begin() as connection:
            repository = DispatchRepository(connection)
            repository.lock()
            if lapsed_sessions:
                ended = repository.end_lapsed_sessions(grace_seconds=self._grace)
                REAPED.labels("session").inc(ended)
                if ended:
                    log.warning("sessions_lapsed", count=ended)
            lost = reap_ended_sessions(connection, grace_seconds=self._grace, rng=self._rng)
            overdue = self._take_overdue(connection) if lapsed_sessions else 0
            if lost or overdue:
                failpoint("reap.before_commit")
        if lost or overdue:
            failpoint("reap.after_commit")
        REAPED.labels("attempt").inc(lost)
        REAPED.labels("overdue").inc(overdue)
        if lost:
            log.warning("attempts_lost", count=lost)
        if overdue:
            log.error("attempts_overdue", count=overdue)
        return lost

    def _take_overdue(self, connection: Connection) -> int:
        """A worker that could not write an end in an outage is not stuck, so they get the same time as leases do."""
        return take_overdue(connection, settle_seconds=self._lease + self._grace, rng=self._rng)

    def sweep(self) -> None:
        """Promote what is due, expire and cancel what waits."""
        with self._engine.begin() as connection:
            repository = DispatchRepository(connection)
            repository.lock()
            sweep = SweepRepository(connection)
            sweep.promote_due()
            sweep.expire(
                queue_failure=to_jsonb(_QUEUE_TIMEOUT.to_json()),
                total_failure=to_jsonb(_TOTAL_TIMEOUT.to_json()),
            )
            sweep.cancel_waiting(to_jsonb(CANCELLED.to_json()))
            failpoint("sweep.before_commit")
        failpoint("sweep.after_commit")

    def purge(self) -> None:
        """Delete what has served its time. Not under the dispatch lock: nobody else looks at it."""
        with self._engine.begin() as connection:
            purged = DispatchRepository(connection).purge_idempotency_keys()
        if purged:
            log.info("idempotency_keys_purged", count=purged)
