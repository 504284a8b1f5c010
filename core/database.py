"""Connections to Postgres. One engine per process; a transaction is `with engine.begin() as connection`.

Statements are plain SQL with psycopg's `%(name)s` parameters, and go to the driver's own cursor: that takes half of the
CPU time that they take with SQLAlchemy's results (`docs/decisions/0003`). Connections, pools, transactions and errors
are SQLAlchemy's.
"""

import contextlib
import time
from collections.abc import Mapping
from typing import Any, Final, cast

import psycopg
from psycopg.rows import dict_row
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, InvalidatePoolError, SQLAlchemyError

from core.failpoints import is_armed, remember_connection

__all__ = ["count_rows", "create_database_engine", "fetch_rows", "to_driver_url"]

_FRESH_SECONDS: Final = 0.1
"""A connection used so shortly ago is taken without asking whether it is alive: on a busy service, most of them are."""


def create_database_engine(
    url: str,
    *,
    actor: str,
    pool_size: int,
    statement_timeout_seconds: float = 30.0,
    pre_ping: bool = True,
    by_key_only: bool = False,
    lock_timeout_seconds: float | None = None,
) -> Engine:
    """Make an engine; connects on first use.

    url: `postgresql://...`. actor: who, in `trial_events`, every change over this engine is written down to.
    pre_ping: replace a connection found dead before use, for one round trip more per transaction unless it was used
    within the last tenth of a second. Without it, the first transaction on each connection after a database restart
    fails: for callers that try again anyway.
    by_key_only: every statement finds its rows by key, so sequential scans are ruled out. A plan made while a table
    was small is kept with the prepared statement, and would scan the table when it has grown.
    lock_timeout_seconds: after which a statement that waits for a lock fails; None: it waits for as long as it may run.
    """
    options = {
        "sandmill.actor": actor,
        "statement_timeout": str(int(statement_timeout_seconds * 1000)),
        "idle_in_transaction_session_timeout": "30000",
        **({"enable_seqscan": "off"} if by_key_only else {}),
        **({} if lock_timeout_seconds is None else {"lock_timeout": str(int(lock_timeout_seconds * 1000))}),
    }
    engine = create_engine(
        to_driver_url(url),
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=5,
        # The connection used last, which has its statements prepared; in turn, each would have to learn all of them.
        pool_use_lifo=True,
        connect_args={
            "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
            "application_name": f"sandmill-{actor}",
            "connect_timeout": 3,
            # A dead peer is found in seconds, not in the two hours of the kernel's default.
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 2,
            "tcp_user_timeout": 8000,
        },
    )
    if pre_ping:
        _ask_whether_alive(engine)
    if is_armed():
        event.listen(engine, "connect", remember_connection)
    return engine


def fetch_rows(connection: Connection, sql: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run a statement that gives rows; each by the names of its columns. Raises SQLAlchemyError."""
    try:
        return _execute(connection, sql, parameters).fetchall()
    except psycopg.Error as error:
        raise _translate(error, connection, sql, parameters) from error


def count_rows(connection: Connection, sql: str, parameters: Mapping[str, Any]) -> int:
    """Run a statement that changes rows; gives how many. Raises SQLAlchemyError."""
    try:
        return _execute(connection, sql, parameters).rowcount
    except psycopg.Error as error:
        raise _translate(error, connection, sql, parameters) from error


def _execute(
    connection: Connection, sql: str, parameters: Mapping[str, Any]
) -> psycopg.Cursor[dict[str, Any]]:
    if not connection.in_transaction():
        connection.begin()  # as any statement by SQLAlchemy does; without it a commit would do nothing
    raw = cast("psycopg.Connection", connection.connection.driver_connection)
    return raw.cursor(row_factory=dict_row).execute(cast("Any", sql), parameters)


def _translate(
    error: psycopg.Error, connection: Connection, sql: str, parameters: Mapping[str, Any]
) -> Exception:
    """Give what SQLAlchemy would raise."""
    is_lost = connection.dialect.is_disconnect(
        cast("Any", error), connection.connection.dbapi_connection, None
    )
    if is_lost:
        # It is to meet the same: then it takes out of the pool what was connected before.
        with contextlib.suppress(SQLAlchemyError):
            connection.exec_driver_sql("SELECT 1")
    return DBAPIError.instance(
        sql,
        dict(parameters),
        error,
        psycopg.Error,
        connection_invalidated=is_lost,
        dialect=connection.dialect,
    )


def to_driver_url(url: str) -> URL:
    """Name psycopg 3 as the driver, whichever of the usual spellings came in."""
    return make_url(url).set(drivername="postgresql+psycopg")


def _ask_whether_alive(engine: Engine) -> None:
    """Ping what rested in the pool before it is used. One that is dead takes all that are as old out of the pool."""
    dialect = engine.dialect

    def note(_: Any, record: Any) -> None:
        record.info["used_at"] = time.monotonic()

    def check(connection: Any, record: Any, _: Any) -> None:
        if time.monotonic() - record.info.get("used_at", 0.0) < _FRESH_SECONDS:
            return
        try:
            dialect.do_ping(connection)
        except dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error

    event.listen(engine, "connect", note)
    event.listen(engine, "checkin", note)
    event.listen(engine, "checkout", check)
