"""SQL that looks at artifacts: those of a trial's last attempt that has any."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from repositories.tenant_base import TenantSqlRepository

__all__ = ["ArtifactReadRepository", "ArtifactRow"]

# Only the last attempt's result becomes the trial's, so only its files are the trial's files.
_LAST = """
a.trial_id = %(trial_id)s AND a.tenant_id = %(tenant_id)s
  AND a.fence = (SELECT max(fence) FROM artifacts l WHERE l.trial_id = a.trial_id)
"""

_LIST = f"""
SELECT a.path, a.digest, a.size_bytes, a.created_at FROM artifacts a
WHERE {_LAST} AND (%(after)s::text IS NULL OR a.path COLLATE "C" > %(after)s COLLATE "C")
ORDER BY a.path COLLATE "C" LIMIT %(limit)s
"""

_FIND = f"SELECT a.path, a.digest, a.size_bytes, a.created_at FROM artifacts a WHERE {_LAST} AND a.path = %(path)s"


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """A collected file. path: as it was in the sandbox. digest: `sha256:<hex>`."""

    path: str
    digest: str
    size_bytes: int
    created_at: datetime


class ArtifactReadRepository(TenantSqlRepository):
    """Artifacts of one tenant."""

    def page(self, trial_id: UUID, *, after: str | None, limit: int) -> list[ArtifactRow]:
        """By path, in byte order; after `after`."""
        parameters = {"trial_id": trial_id, "after": after, "limit": limit}
        return [ArtifactRow(**row) for row in self._mine(_LIST, parameters)]

    def find(self, trial_id: UUID, path: str) -> ArtifactRow | None:
        """Look one up by its path in the sandbox."""
        row = self._mine_or_none(_FIND, {"trial_id": trial_id, "path": path})
        return None if row is None else ArtifactRow(**row)
