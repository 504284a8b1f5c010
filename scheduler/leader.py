"""Leadership by advisory lock. It is for efficiency: the dispatch lock is what keeps two leaders harmless."""

import os
import socket
import time

from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from core.database import to_driver_url
from core.logging import get_logger
from core.metrics import LEADER, LEADER_CHANGES

__all__ = ["Leadership"]

_LEADER_LOCK = 0x5A4D_0003
_STANDSTILL_SECONDS = 2.0
"""A check takes a millisecond. What takes this long was no slow query: the server or the way to it was away."""

_BEGIN = """
INSERT INTO leader (name, epoch, holder) VALUES ('scheduler', 1, %(holder)s)
ON CONFLICT (name) DO UPDATE SET epoch = leader.epoch + 1, holder = excluded.holder, since = clock_timestamp()
RETURNING epoch
"""

log = get_logger(__name__)


class Leadership:
    """Tries for the lock, and keeps proving that it still holds it. Used by one thread."""

    def __init__(self, database_url: str) -> None:
        """Hold a connection of its own: the lock lives and dies with it.

        since: monotonic seconds of when the leadership, or the database's answering, began; None without leadership.
        epoch: which leadership of all there ever were; kept in the table `leader` for people.
        """
        self._engine = create_engine(
            to_driver_url(database_url),
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args={
                "application_name": "sandmill-leader",
                "connect_timeout": 3,
                "keepalives_idle": 5,
                "keepalives_interval": 2,
                "keepalives_count": 2,
                "tcp_user_timeout": 8000,
                "options": "-c statement_timeout=3000",
            },
        )
        self._connection: Connection | None = None
        self._holder = f"{socket.gethostname()}:{os.getpid()}"
        self.since: float | None = None
        self.epoch: int | None = None

    @property
    def held(self) -> bool:
        """Whether this process leads."""
        return self.since is not None

    def try_or_check(self) -> None:
        """Try to lead, or check that the connection that holds the lock is alive. Never raises."""
        try:
            if self._connection is None:
                self._connection = self._engine.connect()
            if self.held:
                self._check(self._connection)
                return
            lock = {"lock": _LEADER_LOCK}
            row = self._connection.exec_driver_sql("SELECT pg_try_advisory_lock(%(lock)s)", lock)
            if row.scalar_one():
                self.epoch = self._connection.exec_driver_sql(_BEGIN, {"holder": self._holder}).scalar_one()
                self.since = time.monotonic()
                LEADER.set(1)
                LEADER_CHANGES.inc()
                log.info("leadership_gained", epoch=self.epoch)
        except SQLAlchemyError as error:
            log.warning("leadership_check_failed", error=str(error).splitlines()[0])
            self.release()

    def _check(self, connection: Connection) -> None:
        """Prove that the lock is held. A database that stood still did so for the workers, too.

        They could not renew their leases: `since` starts anew, and with it the time in which nobody is judged.
        """
        asked = time.monotonic()
        connection.exec_driver_sql("SELECT 1")
        took = time.monotonic() - asked
        if took > _STANDSTILL_SECONDS:
            log.warning("database_stood_still", seconds=round(took, 1))
            self.since = time.monotonic()

    def release(self) -> None:
        """Give the lock up by closing its connection."""
        if self.held:
            log.info("leadership_lost")
        self.since = None
        LEADER.set(0)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()
