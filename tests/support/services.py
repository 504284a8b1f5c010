"""Real Postgres and Valkey for tests: one pair per session, one database per test.

External servers instead: SANDMILL_TEST_DATABASE_URL (a user who may create databases) and SANDMILL_TEST_REDIS_URL.
"""

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.engine import make_url

from launcher.embedded import EmbeddedServices, embedded_services

# The data is thrown away, so nothing needs to reach the disk. What a commit means stays as in production.
THROWAWAY = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "128MB"}

# Some thousand databases are made and dropped, three hundred files each. In memory that takes a tenth of the processor
# time that it takes on a disk's file system.
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 2 << 30
"""So much must be free there: a few times what the servers of a session have ever had."""


@dataclass(frozen=True)
class _Urls:
    database_url: str
    redis_url: str


@pytest.fixture(scope="session")
def _services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Urls]:
    database_url = os.environ.get("SANDMILL_TEST_DATABASE_URL")
    redis_url = os.environ.get("SANDMILL_TEST_REDIS_URL")
    if database_url and redis_url:
        yield _Urls(database_url, redis_url)
        return
    with (
        throwaway_folder(tmp_path_factory.mktemp("services")) as folder,
        embedded_services(folder, settings=THROWAWAY) as embedded,
    ):
        yield _Urls(database_url or embedded.database_url, redis_url or embedded.redis_url)


@pytest.fixture(scope="session")
def postgres_url(_services: _Urls) -> str:
    """A Postgres server; tests that write use `database_url` or make a database of their own."""
    return _services.database_url


@pytest.fixture(scope="session")
def redis_url(_services: _Urls) -> str:
    """A Valkey server shared by the session: use names of your own (ids are unique anyway)."""
    return _services.redis_url


@pytest.fixture(scope="session")
def migrated_template(postgres_url: str) -> Iterator[str]:
    """Name of a database that has all migrations and no rows beyond theirs."""
    from migrations.migrate import upgrade  # noqa: PLC0415 -- only tests with a database pay for Alembic

    with new_database(postgres_url, prefix="template") as url:
        upgrade(url)
        yield make_url(url).database or ""


@pytest.fixture
def database_url(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """A fresh, migrated database for one test, dropped after it whoever is still connected."""
    with new_database(postgres_url, template=migrated_template) as url:
        yield url


@pytest.fixture
def empty_database_url(postgres_url: str) -> Iterator[str]:
    """A fresh database without any table, for one test."""
    with new_database(postgres_url) as url:
        yield url


@pytest.fixture
def own_services(tmp_path) -> Iterator[EmbeddedServices]:
    """A pair of servers of this test's own, to be stopped and killed at will."""
    with embedded_services(tmp_path / "own", settings=THROWAWAY) as embedded:
        yield embedded


@contextlib.contextmanager
def throwaway_folder(instead: Path) -> Iterator[Path]:
    """Give a folder in memory and remove it in the end; `instead`, which stays, where there is little memory."""
    prefix = "tests-of-sandmill-"
    if not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _MEMORY_BYTES:
        yield instead
        return
    for left in _MEMORY.glob(f"{prefix}*"):
        # Of tests that were killed. What another user has is that user's to remove.
        if not Path("/proc", left.name.removeprefix(prefix).partition("-")[0]).exists():
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=f"{prefix}{os.getpid()}-", dir=_MEMORY, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


@contextlib.contextmanager
def new_database(server_url: str, *, template: str = "template0", prefix: str = "test") -> Iterator[str]:
    """Make a database on the server, yield its URL, drop it."""
    name = f"{prefix}_{uuid.uuid4().hex[:16]}"
    quoted = sql.Identifier(name)
    with psycopg.connect(server_url, autocommit=True) as connection:
        # Copying files is the quicker way for a small template on a server that does not sync.
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
        connection.execute(create.format(quoted, sql.Identifier(template)))
        try:
            url = make_url(server_url).set(database=name)
            yield url.render_as_string(hide_password=False)
        finally:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(quoted))
