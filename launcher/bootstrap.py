"""What an empty database needs before the programs start: its schema, a tenant, a key."""

from collections.abc import Iterator
from contextlib import contextmanager

from alembic.util import CommandError
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from core.database import to_driver_url
from core.errors import ConflictError, InvalidRequestError
from launcher.errors import StartupError
from launcher.state import Home
from migrations.migrate import upgrade
from services import tenants

__all__ = ["create_admin_key", "create_api_key", "ensure_api_key", "migrate"]

_SECRET = "api_key"  # noqa: S105 -- the name of a file


def migrate(database_url: str) -> None:
    """Bring the database to the newest schema. Raises StartupError."""
    try:
        upgrade(database_url)
    except (SQLAlchemyError, CommandError) as error:
        raise StartupError(f"cannot migrate the database: {_first_line(error)}") from error


def ensure_api_key(database_url: str, home: Home) -> str:
    """Give the key of this home, the same at every start. One that was revoked is replaced."""
    stored = home.read_secret(_SECRET)
    if stored is not None:
        try:
            return create_api_key(database_url, tenant=tenants.DEFAULT_TENANT, name="local", key=stored)
        except (ConflictError, InvalidRequestError):
            pass
    return home.write_secret(
        _SECRET, create_api_key(database_url, tenant=tenants.DEFAULT_TENANT, name="local")
    )


def create_api_key(database_url: str, *, tenant: str, name: str, key: str | None = None) -> str:
    """Store a key for a tenant, made if missing; returns its text.

    key: None makes a new one. Raises StartupError when the database is away, InvalidRequestError for a bad name,
    ConflictError when the key given was revoked or is another tenant's.
    """
    with _transaction(database_url) as connection:
        tenant_id = tenants.ensure_tenant(connection, tenant)
        return tenants.create_api_key(connection, tenant_id, name, key=key)


def create_admin_key(database_url: str, *, name: str) -> str:
    """Store an operator's key; returns its text. Raises StartupError when the database is away."""
    with _transaction(database_url) as connection:
        return tenants.create_admin_key(connection, name)


@contextmanager
def _transaction(database_url: str) -> Iterator[Connection]:
    engine = create_engine(to_driver_url(database_url), poolclass=NullPool)
    try:
        with engine.begin() as connection:
            yield connection
    except SQLAlchemyError as error:
        raise StartupError(f"cannot make an API key: {_first_line(error)}") from error
    finally:
        engine.dispose()


def _first_line(error: Exception) -> str:
    # SQLAlchemy adds the statement and a link in further lines.
    return str(error).splitlines()[0] if str(error) else type(error).__name__
