"""SQL that says where a live sandbox is: for whoever leads traffic to it."""

from dataclasses import dataclass
from uuid import UUID

from repositories.base import SqlRepository

__all__ = ["SandboxTargetRepository", "SandboxTargetRow"]

# Expiry by the clock of the database: those of the nodes may drift.
_FIND = """
SELECT s.tenant_id, s.node_id, s.runtime, s.sandbox_name, s.state, s.access_token, s.is_secure, n.ingress_url,
       s.state_reason, s.state_message,
       extract(epoch FROM s.expires_at - clock_timestamp())::float8 AS seconds_left
FROM sandbox_sessions s LEFT JOIN nodes n ON n.id = s.node_id
WHERE s.trial_id = %(id)s AND (s.hidden_at IS NULL OR s.ended_at IS NOT NULL AND NOT s.is_warm)
"""


@dataclass(frozen=True, slots=True)
class SandboxTargetRow:
    """A live sandbox of any tenant. seconds_left: until it expires; None: it does not."""

    tenant_id: int
    node_id: UUID | None
    runtime: str | None
    sandbox_name: str | None
    state: str
    access_token: str
    is_secure: bool
    ingress_url: str | None
    state_reason: str | None
    state_message: str | None
    seconds_left: float | None


class SandboxTargetRepository(SqlRepository):
    """Live sandboxes of the whole installation: who asks checks the access token, or the tenant."""

    def find(self, sandbox_id: UUID) -> SandboxTargetRow | None:
        """Look one up; None if there is none that the wire shows, or keeps a record of."""
        row = self._row(_FIND, {"id": sandbox_id})
        return SandboxTargetRow(**row) if row else None
