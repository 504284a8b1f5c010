"""Statements over the driver's cursor: transactions, errors and lost connections are SQLAlchemy's all the same."""

import pytest
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from core import database
from core.database import count_rows, create_database_engine, fetch_rows

END_OTHERS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE application_name = 'sandmill-here' AND datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture
def opened(database_url, world):
    engines = []

    def open_one(**options):
        engines.append(create_database_engine(database_url, actor="here", pool_size=2, **options))
        with engines[-1].connect() as one, engines[-1].connect() as two:
            pids = [fetch_rows(each, "SELECT pg_backend_pid() AS pid", {})[0]["pid"] for each in (one, two)]
        assert len(set(pids)) == 2
        return engines[-1]

    yield open_one
    for engine in engines:
        engine.dispose()


def break_connections(world):
    (row,) = world.execute(END_OTHERS)
    assert row["count"] == 2


@pytest.fixture
def distrust(monkeypatch):
    """Let no connection be trusted for having been used a moment ago."""
    monkeypatch.setattr(database, "_FRESH_SECONDS", 0.0)


def test_rows_have_the_names_of_their_columns(world):
    with world.engine.begin() as connection:
        found = fetch_rows(connection, "SELECT %(n)s::int AS n, 'a%%b' AS text", {"n": 3})
        assert found == [{"n": 3, "text": "a%b"}]
        assert fetch_rows(connection, "SELECT '5%%' AS text", {}) == [{"text": "5%"}]


def test_statement_without_a_begin_begins_a_transaction(world):
    sql = "UPDATE tenants SET name = %(name)s WHERE id = %(id)s"
    tenant = world.tenant("before")
    with world.engine.connect() as connection:
        assert count_rows(connection, sql, {"id": tenant, "name": "lost"}) == 1
    assert world.execute("SELECT name FROM tenants WHERE id = %(id)s", id=tenant) == [{"name": "before"}]
    with world.engine.connect() as connection:
        assert count_rows(connection, sql, {"id": tenant, "name": "kept"}) == 1
        connection.commit()
    assert world.execute("SELECT name FROM tenants WHERE id = %(id)s", id=tenant) == [{"name": "kept"}]


def test_error_of_a_statement_is_sqlalchemys_with_the_drivers_inside(world):
    with pytest.raises(ProgrammingError, match="no_such_table") as caught, world.engine.begin() as connection:
        fetch_rows(connection, "SELECT 1 FROM no_such_table", {})
    assert caught.value.orig.sqlstate == "42P01"
    assert not caught.value.connection_invalidated
    with pytest.raises(DBAPIError, match="division by zero"), world.engine.begin() as connection:
        count_rows(connection, "SELECT 1 / %(n)s::int", {"n": 0})


@pytest.mark.usefixtures("distrust")
def test_connections_that_broke_while_they_rested_are_replaced_before_use(world, opened):
    engine = opened()
    break_connections(world)
    for _ in range(2):
        with engine.connect() as one, engine.connect() as two:
            assert fetch_rows(one, "SELECT 1 AS n", {}) == fetch_rows(two, "SELECT 1 AS n", {}) == [{"n": 1}]


def test_one_that_breaks_in_use_takes_the_others_out_of_the_pool(world, opened):
    engine = opened(pre_ping=False)
    break_connections(world)
    with pytest.raises(OperationalError) as caught, engine.begin() as connection:
        fetch_rows(connection, "SELECT 1 AS n", {})
    assert caught.value.connection_invalidated
    with engine.connect() as one, engine.connect() as two:
        assert fetch_rows(one, "SELECT 1 AS n", {}) == fetch_rows(two, "SELECT 1 AS n", {}) == [{"n": 1}]


def test_one_used_a_moment_ago_is_not_asked_whether_it_is_alive(world, opened, monkeypatch):
    engine = opened()
    asked = []
    monkeypatch.setattr(engine.dialect, "do_ping", lambda connection: asked.append(connection) or True)
    monkeypatch.setattr(database, "_FRESH_SECONDS", 3600.0)
    with engine.begin() as connection:
        fetch_rows(connection, "SELECT 1 AS n", {})
    assert not asked
    monkeypatch.setattr(database, "_FRESH_SECONDS", 0.0)
    with engine.begin() as connection:
        fetch_rows(connection, "SELECT 1 AS n", {})
    assert len(asked) == 1
