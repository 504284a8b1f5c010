"""Clocks of tails: until when trials without a row may wait, and since when a job is paused."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("jobs", sa.Column("queue_deadline", sa.DateTime(timezone=True), nullable=True))
    op.add_column("jobs", sa.Column("paused_at", sa.DateTime(timezone=True), nullable=True))
    op.drop_column("jobs", "is_paused")
