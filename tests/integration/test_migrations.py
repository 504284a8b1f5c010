from alembic import command
from sqlalchemy import create_engine

from core.database import to_driver_url
from migrations.migrate import alembic_config, schema_drift, upgrade
from models.states import TRANSITIONS


def test_migrations_run_up_from_empty_and_again(empty_database_url):
    upgrade(empty_database_url)
    upgrade(empty_database_url)
    assert schema_drift(empty_database_url) == []


def test_pools_for_jobs_can_be_taken_back(empty_database_url):
    upgrade(empty_database_url)
    engine = create_engine(to_driver_url(empty_database_url))
    with engine.connect() as connection:
        command.downgrade(alembic_config(connection), "0022")
        connection.commit()
    engine.dispose()
    assert "sandbox_name" in str(schema_drift(empty_database_url))
    upgrade(empty_database_url)
    assert schema_drift(empty_database_url) == []


def test_drift_between_models_and_database_is_seen(database_url):
    engine = create_engine(to_driver_url(database_url))
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE trials DROP COLUMN rewards")
        connection.exec_driver_sql("DROP INDEX attempts_one_live_idx")
    engine.dispose()
    drift = str(schema_drift(database_url))
    assert "rewards" in drift
    assert "attempts_one_live_idx" in drift


def test_table_of_moves_equals_the_models(database_url):
    engine = create_engine(to_driver_url(database_url))
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT entity, from_state, to_state FROM state_transitions")
        stored = {tuple(row) for row in rows}
    engine.dispose()
    assert stored == {(entity, str(a), str(b)) for entity, moves in TRANSITIONS.items() for a, b in moves}
