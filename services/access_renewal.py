"""Moves the expiry of live sandboxes on while they are used. Source: section 5.2 of the wire protocol."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from core.logging import get_logger
from repositories.session_keeping import SessionKeepingRepository

__all__ = ["AccessRenewer"]

log = get_logger(__name__)

_MAX_WAITING: Final = 1024
"""Uses told while the database is away, and not written yet; a further one is forgotten: the next minute tells anew."""


class AccessRenewer:
    """Writes uses on a thread of its own, so that nobody who tells of one waits."""

    def __init__(self, engine: Engine) -> None:
        """engine: one of its connections is used at a time."""
        self._statements = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._lock = threading.Lock()
        self._waiting: set[UUID] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="renewal")

    def note(self, sandbox_id: UUID) -> None:
        """Take a use of a sandbox; returns at once and never raises."""
        with self._lock:
            if sandbox_id in self._waiting or len(self._waiting) >= _MAX_WAITING:
                return
            self._waiting.add(sandbox_id)
        try:
            self._thread.submit(self._extend, sandbox_id)
        except RuntimeError:  # closed: this process ends
            with self._lock:
                self._waiting.discard(sandbox_id)

    def close(self) -> None:
        """Write what was told, then end."""
        self._thread.shutdown(wait=True)

    def _extend(self, sandbox_id: UUID) -> None:
        with self._lock:
            self._waiting.discard(sandbox_id)
        try:
            with self._statements.connect() as connection:
                SessionKeepingRepository(connection).extend(sandbox_id)
        except SQLAlchemyError as error:
            log.warning("use_not_noted", sandbox_id=str(sandbox_id), error=str(error).splitlines()[0])
