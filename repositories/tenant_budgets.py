"""SQL of what tenants may start over time: the bucket of their rate, and their budget of CPU seconds.

Written under the dispatch lock only.
"""

from collections.abc import Mapping

from models.states import LIVE_ATTEMPT_STATES, sql_list
from repositories.base import SqlRepository

__all__ = ["BUDGET_LEFT", "TOKENS", "TenantBudgetRepository"]

_LIVE = f"state IN ({sql_list(LIVE_ATTEMPT_STATES)})"

_BURST = "coalesce(t.rate_burst, greatest(1, ceil(t.rate_per_second)))"

TOKENS = f"""CASE WHEN t.rate_per_second IS NOT NULL THEN least({_BURST}, coalesce(s.tokens, {_BURST})
  + t.rate_per_second * extract(epoch FROM clock_timestamp() - coalesce(s.tokens_at, clock_timestamp()))::float8) END"""
"""Starts that the rate of `tenants t` allows now, with `tenant_schedule s` (outer join). NULL: no rate."""

# Class infra is the operator's own cost. Never more than was reserved: else a slow removal could exceed the budget.
_CHARGE = """CASE WHEN a.state = 'finished' AND coalesce(a.failure ->> 'class', '') <> 'infra'
  THEN least(a.reserved_cpu_seconds, a.cpu_millicores / 1000.0
             * extract(epoch FROM a.finished_at - coalesce(a.claimed_at, a.finished_at))::float8)
  ELSE 0 END"""

BUDGET_LEFT = f"""CASE WHEN t.budget_cpu_seconds IS NOT NULL THEN t.budget_cpu_seconds
  - (SELECT coalesce(sum(p.spent_cpu_seconds), 0) FROM budget_periods p WHERE p.tenant_id = t.id
       AND p.starts_at <= clock_timestamp() AND clock_timestamp() < p.ends_at)
  - (SELECT coalesce(sum(CASE WHEN a.{_LIVE} THEN a.reserved_cpu_seconds ELSE {_CHARGE} END), 0) FROM attempts a
     WHERE a.tenant_id = t.id AND a.reserved_cpu_seconds IS NOT NULL AND a.charged_at IS NULL) END"""
"""CPU seconds left of the budget of `tenants t` in this period, reservations taken off. NULL: no budget."""

_TAKE_TOKENS = f"""
INSERT INTO tenant_schedule (tenant_id, tokens, tokens_at)
SELECT t.id, {TOKENS} - c.n, clock_timestamp()
FROM unnest(%(tenants)s::bigint[], %(counts)s::int[]) AS c(tenant_id, n) JOIN tenants t ON t.id = c.tenant_id
  LEFT JOIN tenant_schedule s ON s.tenant_id = t.id
WHERE t.rate_per_second IS NOT NULL
ON CONFLICT (tenant_id) DO UPDATE SET tokens = excluded.tokens, tokens_at = excluded.tokens_at
"""

# A period starts at a multiple of its length since 1970, so nobody has to remember when one began.
_CHARGE_ENDED = f"""
WITH ended AS (
  SELECT trial_id, fence FROM attempts
  WHERE reserved_cpu_seconds IS NOT NULL AND charged_at IS NULL AND finished_at IS NOT NULL
  ORDER BY tenant_id LIMIT 5000
), charged AS (
  UPDATE attempts a SET charged_at = clock_timestamp() FROM ended e
  WHERE a.trial_id = e.trial_id AND a.fence = e.fence
  RETURNING a.tenant_id, a.finished_at, {_CHARGE} AS cost
), entered AS (
  INSERT INTO budget_periods (tenant_id, starts_at, ends_at, spent_cpu_seconds)
  SELECT t.id, to_timestamp(k.n * t.budget_period_seconds), to_timestamp((k.n + 1) * t.budget_period_seconds),
         sum(c.cost)
  FROM charged c JOIN tenants t ON t.id = c.tenant_id CROSS JOIN LATERAL (
    SELECT floor(extract(epoch FROM c.finished_at) / t.budget_period_seconds)::float8 AS n) k
  WHERE t.budget_period_seconds IS NOT NULL GROUP BY t.id, k.n
  ON CONFLICT (tenant_id, starts_at, ends_at) DO UPDATE
    SET spent_cpu_seconds = budget_periods.spent_cpu_seconds + excluded.spent_cpu_seconds
)
SELECT count(*) AS n FROM charged
"""


class TenantBudgetRepository(SqlRepository):
    """Tokens and charges."""

    def take_tokens(self, starts: Mapping[int, int]) -> None:
        """Take as many tokens as trials were started, by tenant; tenants without a rate are left alone."""
        parameters = {"tenants": list(starts), "counts": list(starts.values())}
        self._count(_TAKE_TOKENS, parameters)

    def charge_ended(self) -> int:
        """Replace reservations of ended attempts by what they used, some thousand at most; gives how many."""
        row = self._row(_CHARGE_ENDED)
        return 0 if row is None else int(row["n"])
