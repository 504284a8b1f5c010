"""Fenced writes about one attempt, patient with a database that is away, and obedient when the attempt is lost."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar
from uuid import UUID

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from core.logging import get_logger
from models.states import AttemptState
from repositories.attempts import AttemptEnd, AttemptRepository, AttemptStart, ClaimedAttempt
from services.attempt_control import AttemptControl, StopReason
from services.grouped_calls import GroupedCalls, GroupFailedError

__all__ = ["AttemptStatements", "AttemptWriter", "DisownedError"]

log = get_logger(__name__)

Result = TypeVar("Result")

_GROUP = 64
"""Most attempts in one statement: some milliseconds of work, for which the first of them waits."""


class DisownedError(Exception):
    """The attempt belongs to somebody else: stop at once, write nothing."""


class AttemptStatements:
    """What is written of every attempt, for those that come at the same time in one statement and one commit.

    Each is compared and set by itself, as if it were alone: what the fence keeps off is left out, and says nothing of
    the others. Where a statement for several fails, each of them is asked for alone.
    """

    def __init__(self, engine: Engine, group_engine: Engine, *, node_id: UUID) -> None:
        """engine: for statements of one attempt; `self.engine` is the same without transactions, `whole_engine` with.

        group_engine: for those of several, three connections with a short `lock_timeout`: nobody should wait for
        another's trial that somebody else holds.
        """
        # Each statement is a transaction of its own, so BEGIN and COMMIT would be two round trips for nothing.
        self.engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self.whole_engine = engine
        self._groups = group_engine.execution_options(isolation_level="AUTOCOMMIT")
        self._node_id = node_id
        self._claims = GroupedCalls(self._claim_all, most=_GROUP)
        self._starts = GroupedCalls(self._start_all, most=_GROUP)
        self._ends = GroupedCalls(self._finish_all, most=_GROUP)

    def claim(self, trial_id: UUID, fence: int, session_id: UUID) -> ClaimedAttempt | None:
        """Take a dispatched attempt; None if there is nothing to take, or the database is away: it is rung again."""
        try:
            return self._claims.call((trial_id, fence, session_id))
        except (GroupFailedError, SQLAlchemyError) as error:
            log.warning("claim_reply_lost", trial_id=str(trial_id), error=str(error).splitlines()[0])
        # The commit may have gone through with its reply lost. The claim comes first: it waits for one under way.
        try:
            with self.engine.connect() as connection:
                repository = AttemptRepository(connection)
                return repository.claim(
                    trial_id, fence, session_id=session_id, node_id=self._node_id
                ) or repository.find_claimed(trial_id, fence, session_id=session_id)
        except SQLAlchemyError:
            return None

    def mark_running(self, attempt: ClaimedAttempt, session_id: UUID, start: AttemptStart) -> bool:
        """Write that the first step begins. False: fenced off. Raises what the database raises."""
        with suppress(GroupFailedError, DBAPIError):
            if self._starts.call((attempt, session_id, start)):
                return True
        # It may have been written by a call whose reply was lost.
        with self.engine.connect() as connection:
            repository = AttemptRepository(connection)
            return repository.mark_running(attempt, session_id, start) or repository.is_in(
                attempt, session_id, AttemptState.RUNNING
            )

    def finish(self, attempt: ClaimedAttempt, session_id: UUID, end: AttemptEnd) -> bool:
        """Write the end. False: fenced off. Raises what the database raises."""
        with suppress(GroupFailedError, DBAPIError):
            if self._ends.call((attempt, session_id, end)):
                return True
        with self.engine.connect() as connection:
            repository = AttemptRepository(connection)
            return repository.finish(attempt, session_id, end) or repository.is_in(
                attempt, session_id, AttemptState.FINISHED
            )

    def _claim_all(self, wanted: Sequence[tuple[UUID, int, UUID]]) -> list[ClaimedAttempt | None]:
        claimed: dict[tuple[UUID, int], ClaimedAttempt] = {}
        with self._groups.connect() as connection:
            repository = AttemptRepository(connection)
            # One, but in the moment in which a lost session is followed by the next.
            for session in {session_id for _, _, session_id in wanted}:
                keys = [(trial_id, fence) for trial_id, fence, session_id in wanted if session_id == session]
                for attempt in repository.claim_all(keys, session_id=session, node_id=self._node_id):
                    claimed[attempt.trial_id, attempt.fence] = attempt
        return [claimed.get((trial_id, fence)) for trial_id, fence, _ in wanted]

    def _start_all(self, starts: Sequence[tuple[ClaimedAttempt, UUID, AttemptStart]]) -> list[bool]:
        with self._groups.connect() as connection:
            done = AttemptRepository(connection).mark_all_running(starts)
        return [(attempt.trial_id, attempt.fence) in done for attempt, _, _ in starts]

    def _finish_all(self, ends: Sequence[tuple[ClaimedAttempt, UUID, AttemptEnd]]) -> list[bool]:
        with self._groups.connect() as connection:
            done = AttemptRepository(connection).finish_all(ends)
        return [(attempt.trial_id, attempt.fence) in done for attempt, _, _ in ends]


class AttemptWriter:
    """Asks and writes as long as the attempt is ours."""

    def __init__(self, statements: AttemptStatements, control: AttemptControl) -> None:
        """control: says when the attempt is lost."""
        self._statements = statements
        self._control = control

    def mark_running(self, attempt: ClaimedAttempt, session_id: UUID, start: AttemptStart) -> None:
        """Write that the first step begins. Raises DisownedError when the fence keeps it off."""
        self._obey(self._patiently(lambda: self._statements.mark_running(attempt, session_id, start)))

    def finish(self, attempt: ClaimedAttempt, session_id: UUID, end: AttemptEnd) -> bool:
        """Write the end. False: the fence keeps it off. Raises as `ask` does."""
        return self._patiently(lambda: self._statements.finish(attempt, session_id, end))

    def write(self, action: Callable[[AttemptRepository], Result]) -> Result:
        """Run one statement about the attempt; see `ask`."""
        return self.ask(lambda connection: action(AttemptRepository(connection)))

    def write_mine(self, action: Callable[[AttemptRepository], bool]) -> None:
        """Run one fenced statement. Raises DisownedError when the fence keeps it off."""
        self._obey(self.write(action))

    def ask(self, action: Callable[[Connection], Result]) -> Result:
        """Run one statement, again and again while the database is away and the attempt is ours.

        Raises DisownedError once it is not, and what the database says of a statement that it refuses.
        """

        def run() -> Result:
            with self._statements.engine.connect() as connection:
                return action(connection)

        return self._patiently(run)

    def ask_whole(self, action: Callable[[Connection], Result]) -> Result:
        """Run several statements in one transaction; what the action raises undoes them. Else as `ask`."""

        def run() -> Result:
            with self._statements.whole_engine.begin() as connection:
                return action(connection)

        return self._patiently(run)

    def _obey(self, is_mine: bool) -> None:
        if not is_mine:
            self._control.request(StopReason.DISOWNED)
            raise DisownedError

    def _patiently(self, call: Callable[[], Result]) -> Result:
        pause = 0.1
        while True:
            if self._control.disowned:
                raise DisownedError
            try:
                return call()
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
