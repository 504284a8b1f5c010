"""Fenced writes about one attempt, patient with a database that is away, and obedient when the attempt is lost."""

import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from core.logging import get_logger
from repositories.attempts import AttemptRepository
from services.attempt_control import AttemptControl, StopReason

__all__ = ["AttemptWriter", "DisownedError"]

log = get_logger(__name__)

Result = TypeVar("Result")


class DisownedError(Exception):
    """The attempt belongs to somebody else: stop at once, write nothing."""


class AttemptWriter:
    """Asks and writes as long as the attempt is ours."""

    def __init__(self, engine: Engine, control: AttemptControl) -> None:
        """engine: its connections write events as the worker. control: says when the attempt is lost."""
        # Each statement is a transaction of its own, so BEGIN and COMMIT would be two round trips for nothing.
        self._statements = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._control = control

    def write(self, action: Callable[[AttemptRepository], Result]) -> Result:
        """Run one statement about the attempt; see `ask`."""
        return self.ask(lambda connection: action(AttemptRepository(connection)))

    def write_mine(self, action: Callable[[AttemptRepository], bool]) -> None:
        """Run one fenced statement. Raises DisownedError when the fence keeps it off."""
        if not self.write(action):
            self._control.request(StopReason.DISOWNED)
            raise DisownedError

    def ask(self, action: Callable[[Connection], Result]) -> Result:
        """Run one statement, again and again while the database is away and the attempt is ours.

        Raises DisownedError once it is not, and what the database says of a statement that it refuses.
        """
        pause = 0.1
        while True:
            if self._control.disowned:
                raise DisownedError
            try:
                with self._statements.connect() as connection:
                    return action(connection)
            except DBAPIError as error:
                if not _is_outage(error):
                    raise
                log.warning("attempt_write_delayed", error=str(error).splitlines()[0])
            except SQLAlchemyError as error:
                log.warning("attempt_write_delayed", error=str(error).splitlines()[0])
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


def _is_outage(error: DBAPIError) -> bool:
    """Tell a database that is away or restarting from a statement that it refuses."""
    return error.connection_invalidated or type(error).__name__ in {"OperationalError", "InterfaceError"}
