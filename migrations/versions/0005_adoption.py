"""What the next worker of a node needs to go on with the attempts of the last one."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("attempts", sa.Column("progress", postgresql.JSONB(astext_type=sa.Text()), nullable=True))
    op.add_column(
        "attempts",
        sa.Column("adoptions", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
    )
    op.add_column("attempts", sa.Column("adopted_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("worker_sessions", sa.Column("boot_id", sa.Text(), nullable=True))
    op.add_column("worker_sessions", sa.Column("adoptable_until", sa.DateTime(timezone=True), nullable=True))
