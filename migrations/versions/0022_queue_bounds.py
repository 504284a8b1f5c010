"""Remember how many trials of a tenant may be waiting at most, so that not each submission has to count them."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "queue_bounds",
        sa.Column("tenant_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at_most", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("queue_bounds_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("queue_bounds_pkey")),
        postgresql_with={"fillfactor": 50},
    )
