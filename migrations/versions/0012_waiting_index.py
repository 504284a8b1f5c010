"""Keep the index that counts waiting trials out of the dispatcher's plans."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.drop_index("trials_waiting_idx", "trials")
    op.create_index(
        "trials_waiting_idx",
        "trials",
        [sa.literal_column("(tenant_id + 0)")],
        postgresql_where=sa.text("state IN ('blocked', 'paused', 'queued', 'retry_wait')"),
    )
