"""Tables that were there before they were partitioned keep every row."""

from alembic import command
from sqlalchemy import create_engine

from core.database import to_driver_url
from core.ids import new_id
from migrations.migrate import alembic_config, upgrade

BEFORE = "0007"


def test_rows_of_the_time_before_are_kept_and_numbered_on(empty_database_url):
    engine = create_engine(to_driver_url(empty_database_url))
    trial = new_id()
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), BEFORE)
    with engine.begin() as connection:
        run = connection.exec_driver_sql
        for _ in range(3):
            run(
                "INSERT INTO trial_events (trial_id, subject, fence, actor, from_state, to_state)"
                " VALUES (%(id)s, 'trial', 0, 'test', '', 'queued')",
                {"id": trial},
            )
        run(
            "INSERT INTO log_chunks (trial_id, fence, seq, step, stream, at, bytes)"
            " VALUES (%(id)s, 1, 0, 'run', 'stdout', now(), 'one')",
            {"id": trial},
        )
    upgrade(empty_database_url)
    with engine.begin() as connection:
        run = connection.exec_driver_sql
        added = (
            "INSERT INTO trial_events (trial_id, subject, fence, actor, from_state, to_state)"
            " VALUES (%(id)s, 'trial', 0, 'test', '', 'queued') RETURNING n, tableoid::regclass::text"
        )
        number, partition = run(added, {"id": trial}).one()
        # Both went where the rows of this month are; of the same chunk there is still one.
        assert (number, partition[:14]) == (4, "trial_events_p")
        repeated = run(
            "INSERT INTO log_chunks (trial_id, fence, seq, step, stream, at, bytes)"
            " VALUES (%(id)s, 1, 0, 'run', 'stdout', now(), 'two') ON CONFLICT (trial_id, fence, seq) DO NOTHING",
            {"id": trial},
        )
        assert repeated.rowcount == 0
        storages = run(
            "SELECT DISTINCT attstorage::text FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
            " WHERE a.attname = 'bytes' AND c.relname LIKE 'log_chunks%%'"
        ).scalars()
        assert list(storages) == ["e"]
    engine.dispose()
