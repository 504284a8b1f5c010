"""Brings a database to the newest schema, and compares it with the models."""

from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

from core.database import to_driver_url
from models.schema import metadata

__all__ = ["schema_drift", "upgrade"]

_MIGRATION_LOCK = 0x5A4D_0001
"""Advisory lock: two processes that start at once migrate one after the other."""

_PARTITIONS = "SELECT relname FROM pg_class WHERE relispartition"


def upgrade(database_url: str) -> None:
    """Run all missing migrations; does nothing on an up-to-date database.

    lock_timeout keeps a migration from queueing behind a long query and so stopping all others behind itself.
    """
    engine = create_engine(to_driver_url(database_url), poolclass=NullPool)
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT pg_advisory_lock(%(lock)s)", {"lock": _MIGRATION_LOCK})
            connection.exec_driver_sql("SET lock_timeout = '10s'")
            connection.commit()
            command.upgrade(alembic_config(connection), "head")
            connection.commit()
            connection.exec_driver_sql("SELECT pg_advisory_unlock(%(lock)s)", {"lock": _MIGRATION_LOCK})
    finally:
        engine.dispose()


def schema_drift(database_url: str) -> list[object]:
    """List the differences between the migrated database and the models; empty when they agree."""
    engine = create_engine(to_driver_url(database_url), poolclass=NullPool)
    try:
        with engine.connect() as connection:
            partitions = set(connection.exec_driver_sql(_PARTITIONS).scalars())
            options = {
                "compare_type": True,
                "compare_server_default": False,
                "include_name": lambda name, kind, _parents: kind != "table" or name not in partitions,
            }
            context = MigrationContext.configure(connection, opts=options)
            return list(compare_metadata(context, metadata))
    finally:
        engine.dispose()


def alembic_config(connection: Connection) -> Config:
    """Build Alembic's configuration in code: no ini file, no environment."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
