"""Connections to Postgres. One engine per process; a transaction is `with engine.begin() as connection`.

Statements are plain SQL through `connection.exec_driver_sql(SQL, {...})`, with psycopg's `%(name)s` parameters:
on the hot paths that costs a fifth of the ORM (`docs/decisions/0003`).
"""

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, make_url

from core.failpoints import is_armed, remember_connection

__all__ = ["create_database_engine", "to_driver_url"]


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
    pre_ping: replace a connection found dead before use, for one round trip more per transaction. Without it, the
    first transaction on each connection after a database restart fails: for callers that try again anyway.
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
        pool_pre_ping=pre_ping,
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
    if is_armed():
        event.listen(engine, "connect", remember_connection)
    return engine


def to_driver_url(url: str) -> URL:
    """Name psycopg 3 as the driver, whichever of the usual spellings came in."""
    return make_url(url).set(drivername="postgresql+psycopg")
