"""Count the tries of a grade, and say since when a webhook has been told without a break."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("grades", sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("grades", sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=True))
    op.add_column(
        "webhook_endpoints",
        sa.Column(
            "enabled_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
    )
