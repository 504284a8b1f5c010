"""SQL of tenants as operators see them: limits, and what counts against them now."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from models.states import LIVE_ATTEMPT_STATES, sql_list
from repositories.base import SqlRepository

__all__ = ["LIMIT_COLUMNS", "TenantAdminRepository", "TenantRow"]

_LIVE = f"state IN ({sql_list(LIVE_ATTEMPT_STATES)})"

LIMIT_COLUMNS = (
    *("weight", "class", "max_running", "max_queued", "max_cpu_millicores", "max_memory_bytes", "max_gpu"),
    *("rate_per_second", "rate_burst", "budget_period_seconds", "budget_cpu_seconds", "guaranteed_share"),
)
"""What operators set, by column of `tenants`."""

# One probe of a partial index each: the cost follows what runs, and what is dead, of the tenants shown.
_TENANTS = f"""
SELECT t.id, t.name, t.weight, t.class, t.max_running, t.max_queued, t.max_cpu_millicores, t.max_memory_bytes,
       t.max_gpu, t.rate_per_second, t.rate_burst, t.budget_period_seconds, t.budget_cpu_seconds, t.guaranteed_share,
       t.version, t.paused_at, t.created_at, coalesce(u.n, 0) AS running, coalesce(u.cpu, 0) AS used_cpu_millicores,
       coalesce(u.memory, 0) AS used_memory_bytes, coalesce(u.gpu, 0) AS used_gpu,
       (SELECT count(*) FROM dead_letters d
        WHERE d.tenant_id = t.id AND d.replayed_at IS NULL AND d.discarded_at IS NULL) AS dead_letters
FROM (
  SELECT * FROM tenants
  WHERE (%(name)s::text IS NULL OR name = %(name)s) AND (%(after)s::text IS NULL OR name > %(after)s)
  ORDER BY name LIMIT %(limit)s
) t LEFT JOIN LATERAL (
  SELECT count(*)::int AS n, sum(cpu_millicores)::bigint AS cpu, sum(memory_bytes)::bigint AS memory,
         sum(gpu)::int AS gpu
  FROM attempts WHERE tenant_id = t.id AND {_LIVE}
) u ON true
ORDER BY t.name
"""

_CREATE = "INSERT INTO tenants (name) VALUES (%(name)s) ON CONFLICT (name) DO NOTHING"

_LOCK = "SELECT id FROM tenants WHERE name = %(name)s FOR UPDATE"

# Of the table as a whole: two operators who hand out shares at once take turns.
_LOCK_SHARES = "LOCK TABLE tenants IN SHARE ROW EXCLUSIVE MODE"

_GUARANTEED = """
SELECT coalesce(sum(guaranteed_share), 0)::float8 AS sum FROM tenants WHERE name <> %(name)s
"""

_PAUSE = """
UPDATE tenants SET paused_at = CASE WHEN %(paused)s THEN coalesce(paused_at, clock_timestamp()) END,
  version = version + 1
WHERE name = %(name)s AND (paused_at IS NOT NULL) <> %(paused)s
"""


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant, its limits (None: no such limit) and what counts against them now."""

    id: int
    name: str
    weight: float
    class_: int
    max_running: int
    max_queued: int
    max_cpu_millicores: int | None
    max_memory_bytes: int | None
    max_gpu: int | None
    rate_per_second: float | None
    rate_burst: int | None
    budget_period_seconds: int | None
    budget_cpu_seconds: int | None
    guaranteed_share: float | None
    version: int
    paused_at: datetime | None
    created_at: datetime
    running: int
    used_cpu_millicores: int
    used_memory_bytes: int
    used_gpu: int
    dead_letters: int


class TenantAdminRepository(SqlRepository):
    """Statements over all tenants: for operators only."""

    def page(self, *, after: str | None, limit: int) -> list[TenantRow]:
        """By name."""
        return self._read(name=None, after=after, limit=limit)

    def find(self, name: str) -> TenantRow | None:
        """Look one up."""
        found = self._read(name=name, after=None, limit=1)
        return found[0] if found else None

    def create(self, name: str) -> bool:
        """Make one with the limits everybody starts with. False: the name is taken."""
        return self._count(_CREATE, {"name": name}) == 1

    def lock(self, name: str) -> bool:
        """Let nobody else change it until the end of the transaction. False: no such tenant."""
        return self._row(_LOCK, {"name": name}) is not None

    def guaranteed_to_others(self, name: str) -> float:
        """Sum the guaranteed shares of all other tenants, and keep them from changing."""
        self._connection.exec_driver_sql(_LOCK_SHARES)
        row = self._row(_GUARANTEED, {"name": name})
        return 0.0 if row is None else float(row["sum"])

    def change(self, name: str, limits: Mapping[str, Any]) -> None:
        """Set limits by column, names out of LIMIT_COLUMNS."""
        unknown = limits.keys() - set(LIMIT_COLUMNS)
        if unknown:
            message = f"no limits: {sorted(unknown)}"
            raise ValueError(message)
        changes = ", ".join(f"{column} = %({column})s" for column in limits)
        # Only names from the constant above reach the text.
        self._count(
            f"UPDATE tenants SET {changes}, version = version + 1 WHERE name = %(name)s",
            {**limits, "name": name},
        )

    def pause(self, name: str, *, paused: bool) -> bool:
        """Start nothing of it, or again. False: it is so already, or there is no such tenant."""
        return self._count(_PAUSE, {"name": name, "paused": paused}) == 1

    def _read(self, *, name: str | None, after: str | None, limit: int) -> list[TenantRow]:
        rows = self._rows(_TENANTS, {"name": name, "after": after, "limit": limit})
        return [TenantRow(class_=row.pop("class"), **row) for row in rows]
