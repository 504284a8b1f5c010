"""SQL of what entrypoints of live sandboxes wrote: asked for by tenants, read by nodes, kept after the end."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from repositories.base import SqlRepository
from repositories.tenant_base import TenantSqlRepository

__all__ = ["OutputKeepingRepository", "OutputRow", "SandboxOutputRepository", "WantedOutput"]

_FACTS = """
SELECT j.spec, o.output, o.total_bytes, o.ended, o.read_at, o.wanted_at
FROM sandbox_sessions s JOIN trials t ON t.id = s.trial_id JOIN jobs j ON j.id = t.job_id
LEFT JOIN sandbox_outputs o ON o.trial_id = s.trial_id
WHERE s.trial_id = %(id)s AND s.tenant_id = %(tenant_id)s
"""

_WANT = """
INSERT INTO sandbox_outputs (trial_id, node_id, wanted_at)
SELECT s.trial_id, s.node_id, clock_timestamp() FROM sandbox_sessions s
WHERE s.trial_id = %(id)s AND s.tenant_id = %(tenant_id)s AND s.state = 'Running' AND s.node_id IS NOT NULL
ON CONFLICT (trial_id) DO UPDATE SET node_id = excluded.node_id, wanted_at = excluded.wanted_at
RETURNING node_id, wanted_at
"""

_WANTED = """
SELECT trial_id, wanted_at, clock_timestamp() AS now FROM sandbox_outputs
WHERE node_id = %(node_id)s AND wanted_at IS NOT NULL
"""

# The end is told once, whoever sees it first; a wish that came after the look is still one.
_STORE = """
WITH before AS (
  SELECT ended FROM sandbox_outputs WHERE trial_id = %(trial_id)s
), written AS (
  INSERT INTO sandbox_outputs AS o (trial_id, node_id, read_at, output, total_bytes, ended)
  VALUES (%(trial_id)s, %(node_id)s, coalesce(%(read_at)s, clock_timestamp()), %(output)s, %(total_bytes)s, %(ended)s)
  ON CONFLICT (trial_id) DO UPDATE SET
    read_at = excluded.read_at, output = excluded.output, total_bytes = excluded.total_bytes,
    ended = coalesce(o.ended, excluded.ended),
    wanted_at = CASE WHEN o.wanted_at > excluded.read_at THEN o.wanted_at END
)
INSERT INTO sandbox_events (trial_id, actor, reason, message)
SELECT %(trial_id)s, %(actor)s, 'ENTRYPOINT_EXITED', %(ended)s
WHERE %(ended)s::text IS NOT NULL AND NOT EXISTS (SELECT 1 FROM before WHERE ended IS NOT NULL)
"""

_REFUSE = (
    "UPDATE sandbox_outputs SET wanted_at = NULL WHERE trial_id = %(trial_id)s AND wanted_at <= %(wanted_at)s"
)


@dataclass(frozen=True, slots=True)
class OutputRow:
    """spec: of the sandbox's job. output: the end of what its entrypoint wrote, as of read_at; None: never read.

    ended: how the entrypoint ended, in words. wanted_at: since when somebody waits for it to be read anew.
    """

    spec: dict[str, Any]
    output: bytes | None
    total_bytes: int | None
    ended: str | None
    read_at: datetime | None
    wanted_at: datetime | None


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """A wish to read. now: by the database, before the reading."""

    trial_id: UUID
    wanted_at: datetime
    now: datetime


class SandboxOutputRepository(TenantSqlRepository):
    """Outputs of one tenant's sandboxes."""

    def find(self, sandbox_id: UUID) -> OutputRow | None:
        """Give what is kept. None: there is no such sandbox."""
        row = self._mine_or_none(_FACTS, {"id": sandbox_id})
        return None if row is None else OutputRow(**row)

    def want(self, sandbox_id: UUID) -> tuple[UUID, datetime] | None:
        """Wish that its node reads anew; gives the node, and since when. None: it does not run."""
        row = self._mine_or_none(_WANT, {"id": sandbox_id})
        return None if row is None else (row["node_id"], row["wanted_at"])


class OutputKeepingRepository(SqlRepository):
    """Outputs of all tenants' sandboxes, for nodes."""

    def wanted(self, node_id: UUID) -> list[WantedOutput]:
        """What somebody waits for."""
        return [WantedOutput(**row) for row in self._rows(_WANTED, {"node_id": node_id})]

    def store(
        self,
        trial_id: UUID,
        *,
        node_id: UUID,
        output: bytes,
        total_bytes: int,
        ended: str | None,
        read_at: datetime | None = None,
    ) -> None:
        """Keep the end of an output. read_at: from before the reading; None: now."""
        parameters = {
            "trial_id": trial_id,
            "node_id": node_id,
            "actor": f"worker:{node_id}",
            "output": output,
            "total_bytes": total_bytes,
            "ended": ended,
            "read_at": read_at,
        }
        self._count(_STORE, parameters)

    def refuse(self, wanted: WantedOutput) -> None:
        """Let those who wait have what there is: it cannot be read now."""
        self._count(_REFUSE, {"trial_id": wanted.trial_id, "wanted_at": wanted.wanted_at})
