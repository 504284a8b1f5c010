"""What an empty database gets before the programs start, and the commands for it."""

import subprocess
import sys
from uuid import UUID

import pytest
from sqlalchemy import create_engine

from core.database import to_driver_url
from core.errors import InvalidRequestError, UnauthenticatedError
from launcher.bootstrap import create_api_key, ensure_api_key, migrate
from launcher.errors import StartupError
from launcher.ports import find_free_port
from launcher.state import Home
from migrations.migrate import schema_drift
from services import tenants
from tests.support.launching import launcher_environment


@pytest.fixture
def home(tmp_path):
    with Home(tmp_path / "home") as entered:
        yield entered


def owner_of(database_url: str, key: str) -> tenants.Principal:
    engine = create_engine(to_driver_url(database_url))
    try:
        with engine.begin() as connection:
            return tenants.authenticate(connection, key)
    finally:
        engine.dispose()


def revoke(database_url: str, tenant_id: int, key_id: UUID) -> None:
    engine = create_engine(to_driver_url(database_url))
    try:
        with engine.begin() as connection:
            assert tenants.revoke_api_key(connection, tenant_id, key_id)
    finally:
        engine.dispose()


def test_home_keeps_its_key_over_starts(home, database_url):
    key = ensure_api_key(database_url, home)
    assert ensure_api_key(database_url, home) == key
    assert (home.secrets / "api_key").stat().st_mode & 0o777 == 0o600
    owner_of(database_url, key)


def test_key_of_the_home_is_stored_in_a_database_that_does_not_know_it(
    home, database_url, empty_database_url
):
    key = ensure_api_key(database_url, home)
    migrate(empty_database_url)
    assert ensure_api_key(empty_database_url, home) == key
    owner_of(empty_database_url, key)


def test_revoked_key_is_replaced(home, database_url):
    key = ensure_api_key(database_url, home)
    owner = owner_of(database_url, key)
    revoke(database_url, owner.tenant_id, owner.key_id)
    replaced = ensure_api_key(database_url, home)
    assert replaced != key
    assert owner_of(database_url, replaced).tenant_id == owner.tenant_id
    with pytest.raises(UnauthenticatedError):
        owner_of(database_url, key)


def test_damaged_key_file_is_replaced(home, database_url):
    home.write_secret("api_key", "rubbish")
    owner_of(database_url, ensure_api_key(database_url, home))


def test_migrating_twice_does_nothing_more(empty_database_url):
    migrate(empty_database_url)
    migrate(empty_database_url)
    assert schema_drift(empty_database_url) == []


def test_database_that_is_away_is_one_line_without_its_password():
    url = f"postgresql://user:hunter2@127.0.0.1:{find_free_port()}/x"
    for call in (lambda: migrate(url), lambda: create_api_key(url, tenant="t", name="n")):
        with pytest.raises(StartupError) as caught:
            call()
        assert "hunter2" not in caught.value.message
        assert "\n" not in caught.value.message


def test_bad_tenant_name_is_refused(database_url):
    with pytest.raises(InvalidRequestError, match="a tenant name has"):
        create_api_key(database_url, tenant="no blanks", name="n")


def test_commands_make_a_database_ready_and_print_a_key(empty_database_url):
    def command(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "launcher.cli", *words],
            env=launcher_environment(
                {"DATABASE_URL": empty_database_url, "REDIS_URL": "redis://127.0.0.1:1/0"}
            ),
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout

    assert command("migrate") == ""
    one, two = command("key", "create", "k"), command("key", "create", "k", "--tenant", "other")
    assert owner_of(empty_database_url, one.strip()) != owner_of(empty_database_url, two.strip())
