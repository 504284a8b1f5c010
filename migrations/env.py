"""Alembic's entry: runs the migrations on the connection that `migrations.migrate` hands over."""

from alembic import context

import models.tables  # noqa: F401 -- fills the metadata
from models.base import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
