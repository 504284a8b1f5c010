"""`sandmill-server verify`: asks the database of a running installation whether everything in it is right."""

import json
import sys
import time
from collections.abc import Callable

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from core.config import Settings
from core.database import create_database_engine
from launcher.errors import StartupError
from repositories.invariants import InvariantRepository, Violation, all_invariants

__all__ = ["VerifyOptions", "verify"]

_STATEMENT_TIMEOUT_SECONDS = 120.0
_PAUSE_SECONDS = 5.0


class VerifyOptions:
    """How to verify. slack_seconds: how late the scheduler may be. window_seconds: how far back starts are judged."""

    def __init__(
        self,
        *,
        slack_seconds: float,
        window_seconds: float,
        as_json: bool,
        interval_seconds: float | None,
        rounds: int | None,
    ) -> None:
        """interval_seconds: between two rounds; None: one round. rounds: end after so many; None: never."""
        self.slack_seconds = slack_seconds
        self.window_seconds = window_seconds
        self.as_json = as_json
        self.interval_seconds = interval_seconds
        self.rounds = 1 if interval_seconds is None else rounds


def verify(settings: Settings, options: VerifyOptions, *, write: Callable[[str], None] | None = None) -> bool:
    """Ask once, or every interval until interrupted; gives whether no violation was ever found.

    Raises StartupError when the database does not answer; a watch goes on when that happens later.
    """
    write = write or _write_line
    engine = create_database_engine(
        settings.database_url.get_secret_value(),
        actor="verify",
        pool_size=1,
        statement_timeout_seconds=_STATEMENT_TIMEOUT_SECONDS,
    )
    is_right, done = True, 0
    try:
        while True:
            try:
                found = _ask(engine, settings, options)
            except SQLAlchemyError as error:
                reason = str(error).splitlines()[0]
                if done == 0:
                    raise StartupError(f"DATABASE_URL does not work: {reason}") from None
                sys.stderr.write(f"sandmill: not verified: {reason}\n")
                time.sleep(_PAUSE_SECONDS)
                continue
            done += 1
            is_right = is_right and not found
            _report(found, options, write)
            if done == options.rounds:
                return is_right
            time.sleep(options.interval_seconds or 0.0)
    except KeyboardInterrupt:
        return is_right
    finally:
        engine.dispose()


def _ask(engine: Engine, settings: Settings, options: VerifyOptions) -> list[Violation]:
    with engine.begin() as connection:
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        return InvariantRepository(connection).violations(
            all_invariants(),
            slack_seconds=options.slack_seconds,
            lease_seconds=settings.lease_seconds + settings.lease_grace_seconds,
            pool_age_seconds=2 * settings.pool_member_age_seconds,
            window_seconds=options.window_seconds,
        )


def _report(found: list[Violation], options: VerifyOptions, write: Callable[[str], None]) -> None:
    if options.as_json:
        rows = [
            {
                "group": violation.invariant.group,
                "invariant": violation.invariant.name,
                "meaning": violation.invariant.meaning,
                "subject": violation.subject,
                "detail": violation.detail,
            }
            for violation in found
        ]
        write(json.dumps({"invariants": len(all_invariants()), "violations": rows}))
    elif found:
        for violation in found:
            write(str(violation))
    else:
        write(f"{len(all_invariants())} invariants hold")


def _write_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
