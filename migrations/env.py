"""Alembic's entry: runs the migrations on the connection that `migrations.migrate` hands over."""

from alembic import context

from models.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
