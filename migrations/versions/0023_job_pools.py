"""Remember which sandbox an attempt was given out of a warm pool."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    # Without a default, so no row is written and the lock is held for a moment.
    op.add_column("attempts", sa.Column("sandbox_name", sa.Text(), nullable=True))


def downgrade() -> None:
    """Take back. First delete the pools for jobs, and wait until no attempt uses a member: nothing else knows which."""
    op.drop_column("attempts", "sandbox_name")
