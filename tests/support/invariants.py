"""Watches a database while a test uses it: what must always hold is asked every second, and once at the end."""

import contextlib
import threading
from collections.abc import Collection, Iterator

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from core.database import to_driver_url
from repositories.invariants import InvariantRepository, Violation, all_invariants

__all__ = ["SANDBOXES_BY_HAND", "InvariantWatch", "watched"]

SANDBOXES_BY_HAND = pytest.mark.breaks_invariants(
    "session_missing",
    "session_ends_early",
    "session_runs_unstarted",
    "session_runs_without_attempt",
    "session_hidden_alive",
    "session_not_as_told",
    "session_end_untold",
    reason="rows of live sandboxes are made and moved by the test, without a node",
)
"""Mark of tests in which nothing runs behind the rows."""

_INTERVAL_SECONDS = 1.0
_WINDOW_SECONDS = 3600.0


class InvariantWatch:
    """Asks again and again. allowed: names of invariants that the test breaks on purpose."""

    def __init__(
        self, database_url: str, *, allowed: Collection[str] = (), slack_seconds: float | None = None
    ) -> None:
        """slack_seconds: how late a scheduler may be; None: there is none, ask only what always holds."""
        self._engine = create_engine(to_driver_url(database_url), poolclass=NullPool)
        self._slack = slack_seconds
        self._invariants = [
            invariant
            for invariant in all_invariants()
            if invariant.name not in allowed and (slack_seconds is not None or invariant.mode == "always")
        ]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="invariants", daemon=True)
        self._known: set[tuple[str, str]] = set()
        self.violations: list[Violation] = []
        self.rounds = 0

    def start(self) -> None:
        self._thread.start()

    def forget_past(self) -> None:
        """Blame nobody for what is there already: in a database that several tests use one after the other."""
        self._known = {(violation.invariant.name, violation.subject) for violation in self.ask()}

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=30)

    def ask(self, *, live: bool = True) -> list[Violation]:
        """Ask once, now. live: False leaves out what needs a scheduler at work."""
        invariants = [invariant for invariant in self._invariants if live or invariant.mode == "always"]
        with self._engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL statement_timeout = '20s'")
            found = InvariantRepository(connection).violations(
                invariants,
                slack_seconds=self._slack or 0.0,
                lease_seconds=self._slack or 0.0,
                window_seconds=_WINDOW_SECONDS,
            )
        return [row for row in found if (row.invariant.name, row.subject) not in self._known]

    def check(self) -> None:
        """Ask once more; raises AssertionError with all that was ever found."""
        with contextlib.suppress(SQLAlchemyError, psycopg.Error):
            self.violations += self.ask()
        assert not self.violations, "\n".join(sorted({str(violation) for violation in self.violations}))

    def _run(self) -> None:
        while not self._stopping.wait(_INTERVAL_SECONDS) and not self.violations:
            # A test may stop its server, or take the schema down.
            with contextlib.suppress(SQLAlchemyError, psycopg.Error):
                self.violations += self.ask()
                self.rounds += 1


@contextlib.contextmanager
def watched(
    database_url: str,
    *,
    allowed: Collection[str] = (),
    slack_seconds: float | None = None,
    is_shared: bool = False,
) -> Iterator[InvariantWatch]:
    """Watch as long as the block runs; an end without an error raises AssertionError for what was found.

    is_shared: others have used the database before; what they left is not looked at.
    """
    watch = InvariantWatch(database_url, allowed=allowed, slack_seconds=slack_seconds)
    if is_shared:
        watch.forget_past()
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()
    watch.check()
