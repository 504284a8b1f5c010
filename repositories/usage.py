"""SQL of what tenants have used: archived days, and the attempts that are not archived yet."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from repositories.base import SqlRepository

__all__ = ["UsageRepository", "UsageRow"]

# An attempt is in one of the two halves only: the archiver adds to usage_days in the transaction that deletes it.
# An attempt that was never claimed has used nothing.
_USAGE = """
WITH found AS (
  SELECT tenant_id, day, kind, attempts, attempt_seconds, cpu_seconds, memory_peak_bytes, log_bytes, artifact_bytes
  FROM usage_days
  WHERE tenant_id = ANY(%(tenants)s) AND day >= %(since)s AND day < %(until)s
  UNION ALL
  SELECT a.tenant_id, (a.finished_at AT TIME ZONE 'UTC')::date,
         CASE WHEN a.state = 'lost' OR a.failure ->> 'class' = 'infra' THEN 'infra' ELSE 'task' END,
         1, extract(epoch FROM a.finished_at - a.claimed_at)::float8,
         coalesce((a.usage ->> 'cpu_seconds')::float8, 0), coalesce((a.usage ->> 'memory_peak_bytes')::bigint, 0),
         coalesce((a.usage ->> 'log_bytes')::bigint, 0),
         coalesce((SELECT sum(f.size_bytes) FROM artifacts f WHERE f.trial_id = a.trial_id AND f.fence = a.fence), 0)
           + a.expired_artifact_bytes
  FROM attempts a
  WHERE a.tenant_id = ANY(%(tenants)s) AND a.claimed_at IS NOT NULL
    AND a.finished_at >= %(since)s::timestamp AT TIME ZONE 'UTC'
    AND a.finished_at < %(until)s::timestamp AT TIME ZONE 'UTC'
)
SELECT tenant_id, day, kind, sum(attempts)::bigint AS attempts, sum(attempt_seconds)::float8 AS attempt_seconds,
       sum(cpu_seconds)::float8 AS cpu_seconds, max(memory_peak_bytes)::bigint AS memory_peak_bytes,
       sum(log_bytes)::bigint AS log_bytes, sum(artifact_bytes)::bigint AS artifact_bytes
FROM found GROUP BY tenant_id, day, kind ORDER BY tenant_id, day, kind
"""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One tenant, one UTC day, one kind. memory_peak_bytes: the largest of any attempt; all else are sums."""

    tenant_id: int
    day: date
    kind: str
    attempts: int
    attempt_seconds: float
    cpu_seconds: float
    memory_peak_bytes: int
    log_bytes: int
    artifact_bytes: int


class UsageRepository(SqlRepository):
    """Reads usage; the caller says of whom."""

    def read(self, tenant_ids: Sequence[int], *, since: date, until: date) -> list[UsageRow]:
        """Give the days from `since` on and before `until`, by tenant, day and kind; empty days are left out."""
        parameters = {"tenants": list(tenant_ids), "since": since, "until": until}
        return [UsageRow(**row) for row in self._rows(_USAGE, parameters)]
